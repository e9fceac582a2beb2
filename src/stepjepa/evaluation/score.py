"""Scores replies: a prediction for each reply, a summary for each metric, and the printed result."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stepjepa.data.tokens import Prompter
from stepjepa.errors import ConfigError, DataError, RowError
from stepjepa.evaluation.metrics.base import Judgement, Metric
from stepjepa.evaluation.predictions import CUT, REFUSED, STOPPED, Prediction
from stepjepa.evaluation.questions import Question, QuestionSet
from stepjepa.evaluation.statistics import mean, share
from stepjepa.generation.options import OVERWRITE
from stepjepa.generation.output import Reply, acceptance, acceptance_text
from stepjepa.utils.files import Record


def drop_unusable(question_set: QuestionSet, metrics: Sequence[Metric], prompter: Prompter) -> None:
    """Before generation, remove and count rows that the chat template rejects or that have no reference for a metric.

    Without metrics all rows are kept. A user's function is tried on the first row, with the reference as the response.

    Raises:
        ConfigError: a metric lacks an option.
        DataError: no row is left, or a user's function fails.
    """
    usable = []
    for question in question_set.questions:
        try:
            if metrics:
                _check_usable(question, metrics, prompter)
            usable.append(question)
        except RowError as error:
            question_set.skip(error, question.place)
    question_set.questions = usable
    # A mistake in a user's function should show before hours of generation, not after.
    for metric in metrics:
        if metric.is_custom and usable:
            judgement_of(metric, Reply(0, usable[0].chat[-1]["content"]), usable[0])
    question_set.require(usable, "can be evaluated on")


def _check_usable(question: Question, metrics: Sequence[Metric], prompter: Prompter) -> None:
    try:
        prompt = prompter.ids(question.prompt, question.template_kwargs)
    except ConfigError as error:
        raise RowError("template_refused", str(error)) from None
    if not prompt:
        raise RowError("empty_prompt", "the prompt is empty")
    # Metrics read the reference first, so an empty response is enough. A user's function may need no reference.
    try:
        for metric in metrics:
            if not metric.is_custom:
                metric.score("", question.row)
    except DataError as error:
        raise RowError("no_reference", str(error)) from None


def judgement_of(metric: Metric, reply: Reply, question: Question) -> Judgement:
    """A metric's judgement of a reply; a refused request counts as wrong.

    Raises:
        DataError: the row has no reference, or a user's function failed.
    """
    # A count does not apply where there is no response.
    if reply.refused is not None:
        score = math.nan if metric.kind == "count" else 0.0
        return Judgement(score, None, None, reply.refused)
    try:
        return metric.score_response(reply.text, question.row, reply.stopped)
    except DataError as error:
        raise DataError(f"{question.place}: {error}") from None


def prediction_of(
    question: Question, reply: Reply, metrics: Sequence[Metric], likelihood: Record
) -> Prediction:
    """Score a reply.

    Raises:
        DataError: a user's function failed.
    """
    judgements = [judgement_of(metric, reply, question) for metric in metrics]
    first = judgements[0]
    # A user's function may also return numbers between 0 and 1.
    is_verdict = metrics[0].kind != "count" and first.score in (0.0, 1.0)
    stop_reason = STOPPED if reply.stopped else CUT
    return Prediction(
        question.index,
        question.text,
        question.ground_truth,
        reply.text,
        gt_answer=first.gold,
        gen_answer=first.answer,
        correct=first.score == 1.0 if is_verdict else None,
        stop_reason=stop_reason if reply.refused is None else REFUSED,
        tokens=reply.new_tokens,
        scores={
            metric.name: judgement.score
            for metric, judgement in zip(metrics, judgements, strict=True)
        },
        note=first.note or None,
        undecided=first.undecided,
        drafts=reply.drafts,
        **likelihood,
    )


def summarise(metric: Metric, predictions: Sequence[Prediction]) -> Record:
    """Summarize a metric: a share with its Wilson interval, or a mean with its t interval.

    A metric that only returned 0 and 1 gives a share.
    """
    scores = [prediction.scores[metric.name] for prediction in predictions]
    # NaN stands for an answer that cannot be counted.
    values = [score for score in scores if not math.isnan(score)]
    n = len(values)
    if metric.kind != "count" and set(values) <= {0.0, 1.0}:
        right = values.count(1.0)
        interval = share(right, n)
        return {"kind": "accuracy", **interval._asdict(), "correct": right, "n": n}
    interval = mean(values)
    return {"kind": metric.kind, **interval._asdict(), "n": n}


def generation_summary(predictions: Sequence[Prediction], seconds: float) -> Record:
    """How the responses ended, their length, and the time; empty without predictions."""
    if not predictions:
        return {}
    # Refused prompts are counted separately: they have no response that could stop or be cut off.
    answered = [prediction for prediction in predictions if prediction.stop_reason != REFUSED]
    cut = sum(prediction.stop_reason == CUT for prediction in answered)
    tokens = sum(prediction.tokens or 0 for prediction in answered)
    return {
        "did_not_stop": {**share(cut, len(answered))._asdict(), "count": cut, "n": len(answered)},
        "refused": len(predictions) - len(answered),
        "mean_tokens": tokens / len(answered) if answered else None,
        "tokens": tokens,
        "seconds": round(seconds, 3),
        "drafts": acceptance(prediction.drafts for prediction in answered),
    }


@dataclass
class EvaluationResult:
    """Result of an evaluation; ``str()`` gives the metrics with their intervals, and the files.

    Attributes:
        metrics: metric -> ``value``, ``low`` and ``high`` (95 %), ``n`` and the other values of its kind.
        generation: share that did not stop, tokens, seconds; empty if nothing was generated.
        rows: number of rows that were read, evaluated, and skipped by reason.
        predictions: one for each question, in order; empty if an earlier call wrote them.
        answer_nll: for each question with likelihoods its index, its text, and the values of `Likelihoods.rows`.
        record: content of ``metrics.json``; empty if no file is written.
        files: the written files.
        already: whether an earlier call completed the evaluation.
    """

    metrics: dict[str, Record]
    generation: Record
    rows: Record
    predictions: list[Prediction] = field(default_factory=list)
    answer_nll: list[Record] = field(default_factory=list)
    record: Record = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)
    already: bool = False

    def value(self, name: str) -> float | None:
        """The value of a metric."""
        return self.metrics[name]["value"]

    def __str__(self) -> str:
        lines = [f"already complete; {OVERWRITE} evaluates again"] if self.already else []
        lines += [f"{name:<14} {_metric_text(summary)}" for name, summary in self.metrics.items()]
        if self.generation:
            lines += _generation_lines(self.generation)
        skipped = sum(self.rows["skipped"].values())
        if skipped:
            lines.append(
                f"skipped        {skipped} of {self.rows['read']} rows, which do not count (see metrics.json)"
            )
        lines += [f"{'unchanged' if self.already else 'written':<14} {path}" for path in self.files]
        return "\n".join(lines)


def earlier_result(record: Record, written: list[Path]) -> EvaluationResult:
    """The result of a completed evaluation, from its record.

    Raises:
        KeyError, TypeError, ValueError, AttributeError, ArithmeticError: the record is damaged.
    """
    parts = record["metrics"], record["generation"], record["rows"]
    result = EvaluationResult(*parts, record=record, files=written, already=True)
    # Printing reads the rest of the record, so a damaged one fails here, where the caller reports it.
    str(result)
    return result


def _generation_lines(generation: Record) -> Iterator[str]:
    refused, stop = generation["refused"], generation["did_not_stop"]
    if refused:
        yield f"refused        {refused} prompts were too long"
    if stop["n"]:
        yield f"did not stop   {_share_text(stop)} ({stop['count']} of {stop['n']})"
        total = f"{generation['tokens']} in {generation['seconds']:.1f} s"
        yield f"tokens         {generation['mean_tokens']:.1f} per response; {total}"
    if drafts := generation.get("drafts"):
        yield f"drafts         {acceptance_text(drafts)}"


def _metric_text(summary: Record) -> str:
    kind, value, n = summary["kind"], summary["value"], summary["n"]
    if kind == "accuracy":
        return f"{_share_text(summary)} ({summary['correct']} of {n})"
    # A loss may be missing or infinite, and a metric of counts may apply to no answer.
    if value is None or not math.isfinite(value):
        return f"no finite number ({n} rows)"
    interval = ""
    if summary.get("low") is not None:
        interval = f", 95 % interval {summary['low']:.4f} to {summary['high']:.4f}"
    if kind != "loss":
        return f"{value:.4f}{interval} ({n} answers)"
    per_token = f"perplexity {summary['perplexity']:.4g}, {summary['tokens']} tokens"
    text = f"{value:.4f} nats per token ({per_token}); mean of {n} rows {summary['row_mean']:.4f}{interval}"
    cut = summary["answers_truncated"]
    if cut:
        text += f"; {cut} answers truncated"
    skipped = sum(summary["skipped"].values())
    if skipped:
        text += f"; {skipped} rows left out"
    return text


def _share_text(share: Record) -> str:
    return f"{100 * share['value']:.1f} %, 95 % interval {100 * share['low']:.1f} to {100 * share['high']:.1f}"
