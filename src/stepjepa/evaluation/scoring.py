"""From answers to numbers: each metric's verdict on each answer, and what they come to."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from stepjepa.errors import ConfigError, DataError
from stepjepa.evaluation.intervals import mean, share
from stepjepa.evaluation.metrics.base import Metric, Verdict
from stepjepa.evaluation.metrics.registry import MODEL_METRICS, make_metric
from stepjepa.evaluation.nll import AnswerLoss
from stepjepa.evaluation.predictions import CUT, REFUSED, STOPPED, Prediction
from stepjepa.evaluation.rows import Question, QuestionSet
from stepjepa.evaluation.teachers.requests import Reply


def make_metrics(names: Sequence[str], options: Mapping[str, Any] | None = None) -> list[Metric]:
    """The metrics of these names that read a generated text.

    Args:
        options: of the metrics; each takes those that it has.

    Raises:
        ConfigError: no such metric, an option that none of them has, a package that is not installed.
    """
    options = options or {}
    known: set[str] = set()
    made = []
    for name in dict.fromkeys(names):
        if name in MODEL_METRICS:
            continue
        has = {field.name for field in dataclasses.fields(make_metric(name)) if field.init} - {"target"}
        known |= has
        made.append(make_metric(name, **{key: value for key, value in options.items() if key in has}))
    for key in options:
        if key not in known:
            close = difflib.get_close_matches(key, sorted(known), n=1, cutoff=0.0)
            hint = f"; did you mean {close[0]!r}? (known: {', '.join(sorted(known))})" if close else ""
            raise ConfigError(f"metric_options: none of the metrics has an option {key!r}{hint}")
    return made


def drop_unscorable(metrics: Sequence[Metric], questions: QuestionSet) -> None:
    """Take out and count the rows that lack what a metric compares with, before anything is generated.

    A function of the user's is tried on the first row alone, with the reference as the answer.

    Raises:
        ConfigError: a metric lacks an option.
        DataError: a function of the user's fails.
    """
    built_in = [metric for metric in metrics if ":" not in metric.name]
    kept = []
    for question in questions.questions:
        try:
            for metric in built_in:
                metric.score("", question.row)
            kept.append(question)
        except DataError as error:
            questions.skip("no_reference", question.place, str(error))
    questions.questions = kept
    for metric in metrics:
        if metric not in built_in and kept:
            _score(metric, kept[0].chat[-1]["content"], kept[0])


def predictions_of(
    questions: Sequence[Question],
    replies: Mapping[int, Reply],
    losses: Mapping[int, AnswerLoss],
    metrics: Sequence[Metric],
    step: Any = lambda count: None,
) -> list[Prediction]:
    """A record for each question that has an answer.

    Args:
        step: is told how many more were scored.

    Raises:
        DataError: a function of the user's failed.
    """
    found = []
    for question in questions:
        reply = replies[question.index]
        refused = reply.refused is not None
        verdicts = [_verdict(metric, reply, question) for metric in metrics]
        first = verdicts[0]
        binary = metrics[0].kind == "accuracy" or (":" in metrics[0].name and first.score in (0.0, 1.0))
        loss = losses.get(question.index)
        found.append(
            Prediction(
                question.index,
                question.text,
                question.ground_truth,
                reply.text,
                first.gold,
                first.answer,
                first.score == 1.0 if binary else None,
                REFUSED if refused else STOPPED if reply.stopped else CUT,
                reply.new_tokens,
                {metric.name: verdict.score for metric, verdict in zip(metrics, verdicts, strict=True)},
                first.note or None,
                None if loss is None else loss.total / loss.tokens,
                None if loss is None else loss.tokens,
            )
        )
        step(1)
    return found


def summarise(
    metrics: Sequence[Metric], predictions: Sequence[Prediction], questions: Sequence[Question]
) -> dict[str, dict[str, Any]]:
    """What each metric comes to: a share with its Wilson interval, or a mean with its t interval.

    A function of the user's that has said nothing but yes and no is a share too.
    """
    summary: dict[str, dict[str, Any]] = {}
    for metric in metrics:
        scores = [prediction.scores[metric.name] for prediction in predictions]
        more: dict[str, Any]
        own = ":" in metric.name and all(score in (0.0, 1.0) for score in scores)
        if metric.kind == "accuracy" or own:
            right = sum(score == 1.0 for score in scores)
            kind, interval, more = "accuracy", share(right, len(scores)), {"correct": right}
        else:
            corpus = metric.corpus_score([p.generated_response for p in predictions], [q.row for q in questions])
            kind, interval, more = "score", mean(scores), {} if corpus is None else {"corpus": corpus}
        summary[metric.name] = {"kind": kind, **interval._asdict(), **more, "n": len(scores)}
    return summary


def _verdict(metric: Metric, reply: Reply, question: Question) -> Verdict:
    if reply.refused is None:
        return _score(metric, reply.text, question)
    if ":" in metric.name:
        return Verdict(0.0, None, None, reply.refused)
    return _score(metric, "", question)._replace(score=0.0, answer=None, note=reply.refused)


def _score(metric: Metric, text: str, question: Question) -> Verdict:
    try:
        return metric.score(text, question.row)
    except DataError as error:
        raise DataError(f"{question.place}: {error}") from None
