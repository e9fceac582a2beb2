"""From answers to numbers: each metric's verdict on each answer, and what they come to."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepjepa.errors import DataError
from stepjepa.evaluation.intervals import mean, share
from stepjepa.evaluation.metrics import Metric, Verdict
from stepjepa.evaluation.nll import AnswerLoss
from stepjepa.evaluation.predictions import CUT, REFUSED, Prediction, stop_reason
from stepjepa.evaluation.questions import Question, QuestionSet
from stepjepa.generation import Reply


@dataclass
class EvaluationResult:
    """What came of an evaluation; printed, the metrics with their intervals and the files.

    Attributes:
        metrics: metric -> ``value``, ``low`` and ``high`` (95 %), ``n`` and what else belongs to its kind.
        generation: share that did not stop, tokens, seconds; empty where nothing was generated.
        rows: how many rows were read, evaluated, and skipped for which reason.
        predictions: one for each question, in order; empty where they were written before.
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
        lines = ["complete already; --overwrite_output_dir evaluates again"] if self.already else []
        return "\n".join([*lines, *(f"{name:<14} {text}" for name, text in self._table())])

    def _table(self) -> Iterator[tuple[str, str]]:
        for name, found in self.metrics.items():
            yield name, _metric_text(found)
        if self.generation:
            made, stop = self.generation, self.generation["did_not_stop"]
            if not stop["n"]:
                yield "refused", f"all {made['refused']} prompts: the model has no room for them"
            else:
                refused = f"; {made['refused']} prompts had no room" if made["refused"] else ""
                yield "did not stop", f"{_share_text(stop)} ({stop['count']} of {stop['n']}){refused}"
                speed = f", {made['tokens_per_second']:.0f} per second" if made["tokens_per_second"] else ""
                total = f"{made['tokens']} in {made['seconds']:.1f} s{speed}"
                yield "tokens", f"{made['mean_tokens']:.1f} per response; {total}"
        skipped = sum(self.rows["skipped"].values())
        if skipped:
            yield "skipped", f"{skipped} of {self.rows['read']} rows, which count nowhere (see metrics.json)"
        yield from (("unchanged" if self.already else "written", str(path)) for path in self.files)


def _metric_text(found: Mapping[str, Any]) -> str:
    value, ends = found["value"], ""
    if found["kind"] == "accuracy":
        return f"{_share_text(found)} ({found['correct']} of {found['n']})"
    if found.get("low") is not None:
        ends = f", 95 % interval {found['low']:.4f} to {found['high']:.4f}"
    if found["kind"] == "score" and value is not None:
        corpus = f"; of all texts together {found['corpus']:.4f}" if "corpus" in found else ""
        return f"{value:.4f}{ends}{corpus}"
    if value is None or not math.isfinite(value):
        return f"no finite number ({found['n']} rows)"
    skipped = sum(found["skipped"].values())
    cut = f"; {found['answers_truncated']} answers cut at max_length" if found["answers_truncated"] else ""
    cut += f"; {skipped} rows left out" if skipped else ""
    return (
        f"{value:.4f} nats per token (perplexity {found['perplexity']:.4g}, {found['tokens']} tokens); "
        f"mean of {found['n']} rows {found['row_mean']:.4f}{ends}{cut}"
    )


def _share_text(found: Mapping[str, Any]) -> str:
    return f"{100 * found['value']:.1f} %, 95 % interval {100 * found['low']:.1f} to {100 * found['high']:.1f}"


def drop_unscorable(metrics: Sequence[Metric], questions: QuestionSet) -> None:
    """Take out and count the rows that lack what a metric compares with, before anything is generated.

    A function of the user's is tried on the first row alone, with the reference as the answer.

    Raises:
        ConfigError: a metric lacks an option.
        DataError: a function of the user's fails.
    """
    kept = []
    for question in questions.questions:
        try:
            for metric in metrics:
                if not metric.is_custom:
                    metric.score("", question.row)
            kept.append(question)
        except DataError as error:
            questions.skip("no_reference", question.place, str(error))
    questions.questions = kept
    for metric in metrics:
        if metric.is_custom and kept:
            _score(metric, kept[0].chat[-1]["content"], kept[0])


def predictions_of(
    questions: Sequence[Question],
    replies: Mapping[int, Reply],
    losses: Mapping[int, AnswerLoss],
    metrics: Sequence[Metric],
    step: Callable[[int], object] = lambda count: None,
) -> list[Prediction]:
    """A record for each question; `step` is called with how many more were scored.

    Raises:
        DataError: a function of the user's failed.
    """
    found = []
    for question in questions:
        reply, loss = replies[question.index], losses.get(question.index)
        verdicts = [_verdict(metric, reply, question) for metric in metrics]
        first = verdicts[0]
        binary = metrics[0].kind == "accuracy" or (metrics[0].is_custom and first.score in (0.0, 1.0))
        one = Prediction(
            question.index,
            question.text,
            question.ground_truth,
            reply.text,
            first.gold,
            first.answer,
            first.score == 1.0 if binary else None,
            stop_reason(reply),
            reply.new_tokens,
            {metric.name: verdict.score for metric, verdict in zip(metrics, verdicts, strict=True)},
            first.note or None,
        )
        if loss is not None:
            one.answer_nll, one.answer_tokens = loss.total / loss.tokens, loss.tokens
        found.append(one)
        step(1)
    return found


def _verdict(metric: Metric, reply: Reply, question: Question) -> Verdict:
    """A metric's verdict; a refused request is wrong."""
    if reply.refused is None:
        return _score(metric, reply.text, question)
    gold = None if metric.is_custom else _score(metric, "", question).gold
    return Verdict(0.0, gold, None, reply.refused)


def _score(metric: Metric, text: str, question: Question) -> Verdict:
    try:
        return metric.score(text, question.row)
    except DataError as error:
        raise DataError(f"{question.place}: {error}") from None


def summarise(
    metrics: Sequence[Metric], predictions: Sequence[Prediction], questions: Sequence[Question]
) -> dict[str, dict[str, Any]]:
    """What each metric comes to: a share with its Wilson interval, or a mean with its t interval.

    A function of the user's that has returned nothing but yes and no is a share too.
    """
    summary: dict[str, dict[str, Any]] = {}
    for metric in metrics:
        scores = [prediction.scores[metric.name] for prediction in predictions]
        more: dict[str, Any] = {}
        if metric.kind == "accuracy" or (metric.is_custom and all(score in (0.0, 1.0) for score in scores)):
            right = sum(score == 1.0 for score in scores)
            kind, interval, more = "accuracy", share(right, len(scores)), {"correct": right}
        else:
            corpus = metric.corpus_score([p.generated_response for p in predictions], [q.row for q in questions])
            kind, interval, more = "score", mean(scores), {} if corpus is None else {"corpus": corpus}
        summary[metric.name] = {"kind": kind, **interval._asdict(), **more, "n": len(scores)}
    return summary


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
