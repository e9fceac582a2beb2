"""From replies to numbers: a prediction for each, what every metric comes to, and how that is printed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import comb
from pathlib import Path
from statistics import fmean
from typing import Any

from stepjepa.data.tokens import Prompter
from stepjepa.errors import ConfigError, DataError, RowError
from stepjepa.evaluation.metrics import Judgement, Metric
from stepjepa.evaluation.nll import AnswerLoss
from stepjepa.evaluation.predictions import CUT, REFUSED, STOPPED, Prediction
from stepjepa.evaluation.questions import Question, QuestionSet
from stepjepa.evaluation.statistics import mean, share
from stepjepa.generation.options import OVERWRITE
from stepjepa.generation.output import Reply

_PASS_AT = (5, 10, 100)  # k of pass@k besides 1 and all samples


def drop_unusable(asked: QuestionSet, metrics: Sequence[Metric], prompter: Prompter) -> None:
    """Take out and count the rows of which the chat template makes no prompt, or that lack what a metric compares with,
    before anything is generated; without metrics all are kept. A function of the user's is tried on the first row, with the
    reference as the answer.

    Raises:
        ConfigError: a metric lacks an option.
        DataError: nothing is left, or a function of the user's fails.
    """
    usable = []
    for question in asked.questions:
        try:
            if metrics:
                _check_usable(question, metrics, prompter)
            usable.append(question)
        except RowError as error:
            asked.skip(error, question.place)
    asked.questions = usable
    for metric in metrics:
        if metric.is_custom and usable:
            judgement_of(metric, Reply(0, usable[0].chat[-1]["content"]), usable[0])
    asked.require(usable, "can be evaluated on")


def _check_usable(question: Question, metrics: Sequence[Metric], prompter: Prompter) -> None:
    try:
        prompt = prompter.ids(question.prompt, question.template_kwargs)
    except ConfigError as error:
        raise RowError("template_refused", str(error)) from None
    if not prompt:
        raise RowError("empty_prompt", "the prompt is empty")
    try:
        for metric in metrics:
            if not metric.is_custom:
                metric.score("", question.row)
    except DataError as error:
        raise RowError("no_reference", str(error)) from None


def judgement_of(metric: Metric, reply: Reply, question: Question) -> Judgement:
    """A metric's judgement of a reply; a refused request is wrong.

    Raises:
        DataError: the row holds nothing to compare with, or a user's function failed.
    """
    try:
        if reply.refused is None:
            return metric.score_response(reply.text, question.row, reply.stopped)
        gold = None if metric.is_custom else metric.score("", question.row).gold
    except DataError as error:
        raise DataError(f"{question.place}: {error}") from None
    return Judgement(math.nan if metric.kind == "count" else 0.0, gold, None, reply.refused)


def predictions_of(
    answered: Sequence[tuple[Question, Reply]],
    samples: int,
    losses: Mapping[int, AnswerLoss],
    metrics: Sequence[Metric],
    step: Callable[[int], object],
) -> list[Prediction]:
    """A record for each reply, `samples` to each question; `step` is called with how many more were scored.

    Raises:
        DataError: a function of the user's failed.
    """
    predictions = []
    for number, (question, reply) in enumerate(answered):
        judgements = [judgement_of(metric, reply, question) for metric in metrics]
        first = judgements[0]
        binary = metrics[0].kind == "accuracy" or (metrics[0].is_custom and first.score in (0.0, 1.0))
        stop_reason = STOPPED if reply.stopped else CUT
        prediction = Prediction(
            question.index,
            question.text,
            question.ground_truth,
            reply.text,
            gt_answer=first.gold,
            gen_answer=first.answer,
            correct=first.score == 1.0 if binary else None,
            stop_reason=stop_reason if reply.refused is None else REFUSED,
            tokens=reply.new_tokens,
            scores={metric.name: one.score for metric, one in zip(metrics, judgements, strict=True)},
            note=first.note or None,
            undecided=first.undecided,
            sample=number % samples + 1 if samples > 1 else None,
        )
        loss = losses.get(question.index)
        if loss is not None:
            for name, value in loss.values().items():
                setattr(prediction, name, value)
        predictions.append(prediction)
        step(1)
    return predictions


def summarise(
    metrics: Sequence[Metric], predictions: Sequence[Prediction], questions: Sequence[Question]
) -> dict[str, dict[str, Any]]:
    """What each metric comes to: a share with its Wilson interval, or a mean with its t interval.

    Both are over questions: one with several samples counts with their mean, which is its pass@1, and in a further summary
    with its pass@k. A function of the user's that has returned nothing but yes and no is a share too.
    """
    summary: dict[str, dict[str, Any]] = {}
    samples = len(predictions) // max(len(questions), 1)
    rows = [question.row for question in questions for _ in range(samples)]
    texts = [prediction.generated_response for prediction in predictions]
    for metric in metrics:
        scores = [prediction.scores[metric.name] for prediction in predictions]
        groups = [scores[begin : begin + samples] for begin in range(0, len(scores), samples)]
        if metric.kind == "count":
            counted = [[score for score in group if not math.isnan(score)] for group in groups]
            values = [fmean(group) for group in counted if group]
            summary[metric.name] = {"kind": "count", **mean(values)._asdict(), "n": len(values)}
            continue
        binary = metric.kind == "accuracy" or (metric.is_custom and all(score in (0.0, 1.0) for score in scores))
        summary[metric.name] = _summary_of([fmean(group) for group in groups], binary)
        corpus = metric.corpus_score(texts, rows)
        if corpus is not None:
            summary[metric.name]["corpus"] = corpus
        for k in (*_PASS_AT, samples):
            if binary and 1 < k <= samples:
                chances = [pass_at_k(samples, group.count(1.0), k) for group in groups]
                summary[f"{metric.name} pass@{k}"] = _summary_of(chances, binary)
    return summary


def _summary_of(values: Sequence[float], binary: bool) -> dict[str, Any]:
    n = len(values)
    if binary and all(value in (0.0, 1.0) for value in values):
        right = values.count(1.0)
        return {"kind": "accuracy", **share(right, n)._asdict(), "correct": right, "n": n}
    return {"kind": "score", **mean(values)._asdict(), "n": n}


def pass_at_k(n: int, right: int, k: int) -> float:
    """The chance that one of k answers is right, of n of which `right` are: 1 - C(n - right, k) / C(n, k), which is unbiased
    (Chen et al. 2021, equation 1)."""
    return 1.0 - comb(n - right, k) / comb(n, k)


def generation_summary(predictions: Sequence[Prediction], seconds: float) -> dict[str, Any]:
    """How the answers ended, how long they are, how long they took; empty without any."""
    if not predictions:
        return {}
    answered = [one for one in predictions if one.stop_reason != REFUSED]
    cut = sum(one.stop_reason == CUT for one in answered)
    tokens = sum(one.tokens or 0 for one in answered)
    return {
        "did_not_stop": {**share(cut, len(answered))._asdict(), "count": cut, "n": len(answered)},
        "refused": len(predictions) - len(answered),
        "mean_tokens": tokens / len(answered) if answered else None,
        "tokens": tokens,
        "seconds": round(seconds, 3),
        "tokens_per_second": round(tokens / seconds, 1) if seconds else None,
    }


@dataclass
class EvaluationResult:
    """What came of an evaluation; printed, the metrics with their intervals and the files.

    Attributes:
        metrics: metric -> ``value``, ``low`` and ``high`` (95 %), ``n`` and what else belongs to its kind.
        generation: share that did not stop, tokens, seconds; empty where nothing was generated.
        rows: how many rows were read, evaluated, and skipped for which reason.
        predictions: one for each question, or each of its samples, in order; empty where they were written before.
        answer_nll: of each question its index, text, nats per token of the reference answer and its tokens.
        record: what ``metrics.json`` holds; empty where no file is written.
        files: those that are written.
        already: whether all was done before.
    """

    metrics: dict[str, dict[str, Any]]
    generation: dict[str, Any]
    rows: dict[str, Any]
    predictions: list[Prediction] = field(default_factory=list)
    answer_nll: list[dict[str, Any]] = field(default_factory=list)
    record: dict[str, Any] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)
    already: bool = False

    def value(self, name: str) -> float | None:
        """The value of a metric."""
        return self.metrics[name]["value"]

    def __str__(self) -> str:
        lines = [f"complete already; {OVERWRITE} evaluates again"] if self.already else []
        lines += [f"{name:<14} {_metric_text(summary)}" for name, summary in self.metrics.items()]
        if self.generation:
            lines += _generation_lines(self.generation)
        skipped = sum(self.rows["skipped"].values())
        if skipped:
            lines.append(
                f"skipped        {skipped} of {self.rows['read']} rows, which count nowhere (see metrics.json)"
            )
        lines += [f"{'unchanged' if self.already else 'written':<14} {path}" for path in self.files]
        return "\n".join(lines)


def _generation_lines(generation: Mapping[str, Any]) -> Iterator[str]:
    refused, stop = generation["refused"], generation["did_not_stop"]
    if not stop["n"]:
        yield f"refused        all {refused} prompts: the model has no room for them"
        return
    no_room = f"; {refused} prompts had no room" if refused else ""
    yield f"did not stop   {_share_text(stop)} ({stop['count']} of {stop['n']}){no_room}"
    speed = generation["tokens_per_second"]
    per_second = f", {speed:.0f} per second" if speed else ""
    total = f"{generation['tokens']} in {generation['seconds']:.1f} s{per_second}"
    yield f"tokens         {generation['mean_tokens']:.1f} per response; {total}"


def _metric_text(summary: Mapping[str, Any]) -> str:
    kind, value, n = summary["kind"], summary["value"], summary["n"]
    if kind == "accuracy":
        return f"{_share_text(summary)} ({summary['correct']} of {n})"
    if value is None or not math.isfinite(value):
        return f"no finite number ({n} rows)"
    interval = ""
    if summary.get("low") is not None:
        interval = f", 95 % interval {summary['low']:.4f} to {summary['high']:.4f}"
    if kind == "score":
        corpus = f"; of all texts together {summary['corpus']:.4f}" if "corpus" in summary else ""
        return f"{value:.4f}{interval}{corpus}"
    if kind == "count":
        return f"{value:.1f}{interval} ({n} answers)"
    bits = f"{summary['bits_per_byte']:.4f} bits per byte, " if summary.get("bits_per_byte") else ""
    per_token = f"perplexity {summary['perplexity']:.4g}, {summary['tokens']} tokens"
    rows = f"mean of {n} rows {summary['row_mean']:.4f}{interval}"
    cut, skipped = summary["answers_truncated"], sum(summary["skipped"].values())
    left_out = (f"; {cut} answers cut" if cut else "") + (f"; {skipped} rows left out" if skipped else "")
    return f"{value:.4f} nats per token ({bits}{per_token}); {rows}{left_out}"


def _share_text(share: Mapping[str, Any]) -> str:
    return f"{100 * share['value']:.1f} %, 95 % interval {100 * share['low']:.1f} to {100 * share['high']:.1f}"
