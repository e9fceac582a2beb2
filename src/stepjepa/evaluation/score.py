"""From replies to numbers: a prediction for each, and what every metric comes to."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from math import comb
from statistics import fmean
from typing import Any

from stepjepa.data.tokens import Prompter
from stepjepa.errors import ConfigError, DataError, RowError
from stepjepa.evaluation.intervals import mean, share
from stepjepa.evaluation.metrics import CONTENT_NLL, END_NLL, NLL, Judgement, Metric
from stepjepa.evaluation.nll import AnswerLoss
from stepjepa.evaluation.predictions import CUT, REFUSED, STOPPED, Prediction
from stepjepa.evaluation.questions import Question, QuestionSet
from stepjepa.generation.protocol import Reply

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
            judgement_of(metric, usable[0].chat[-1]["content"], usable[0])
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


def judgement_of(metric: Metric, text: str, question: Question, stopped: bool = False) -> Judgement:
    """A metric's judgement of a text, which the model ended by itself if it `stopped`.

    Raises:
        DataError: the row holds nothing to compare with, or a user's function failed.
    """
    try:
        return metric.score_response(text, question.row, stopped)
    except DataError as error:
        raise DataError(f"{question.place}: {error}") from None


def _judgement_of_reply(metric: Metric, reply: Reply, question: Question) -> Judgement:
    """A refused request is wrong."""
    if reply.refused is None:
        return judgement_of(metric, reply.text, question, reply.stopped)
    gold = None if metric.is_custom else judgement_of(metric, "", question).gold
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
        judgements = [_judgement_of_reply(metric, reply, question) for metric in metrics]
        first = judgements[0]
        binary = metrics[0].kind == "accuracy" or (metrics[0].is_custom and first.score in (0.0, 1.0))
        prediction = Prediction(
            question.index,
            question.text,
            question.ground_truth,
            reply.text,
            gt_answer=first.gold,
            gen_answer=first.answer,
            correct=first.score == 1.0 if binary else None,
            stop_reason=_stop_reason(reply),
            tokens=reply.new_tokens,
            scores={metric.name: one.score for metric, one in zip(metrics, judgements, strict=True)},
            note=first.note or None,
            undecided=first.undecided,
            sample=number % samples + 1 if samples > 1 else None,
        )
        loss = losses.get(question.index)
        if loss is not None:
            prediction.answer_nll, prediction.answer_tokens = loss.of(NLL), loss.tokens
            prediction.content_nll, prediction.end_nll = loss.of(CONTENT_NLL), loss.of(END_NLL)
            prediction.end_tokens = loss.end_tokens
        predictions.append(prediction)
        step(1)
    return predictions


def _stop_reason(reply: Reply) -> str:
    if reply.refused is not None:
        return REFUSED
    return STOPPED if reply.stopped else CUT


def summarise(
    metrics: Sequence[Metric], predictions: Sequence[Prediction], questions: Sequence[Question]
) -> dict[str, dict[str, Any]]:
    """What each metric comes to: a share with its Wilson interval, or a mean with its t interval.

    Both are over questions: one with several samples counts with their mean, which is its pass@1, and in a further summary
    with its pass@k. A function of the user's that has returned nothing but yes and no is a share too.
    """
    summary: dict[str, dict[str, Any]] = {}
    samples = len(predictions) // max(len(questions), 1)
    for metric in metrics:
        scores = [prediction.scores[metric.name] for prediction in predictions]
        groups = [scores[begin : begin + samples] for begin in range(0, len(scores), samples)]
        binary = metric.kind == "accuracy" or (metric.is_custom and all(score in (0.0, 1.0) for score in scores))
        if metric.kind == "count":
            counted = [[score for score in group if not math.isnan(score)] for group in groups]
            values = [fmean(group) for group in counted if group]
            summary[metric.name] = {"kind": "count", **mean(values)._asdict(), "n": len(values)}
        else:
            summary[metric.name] = _summary_of([fmean(group) for group in groups], binary)
        if binary and samples > 1:
            for k in sorted({samples, *(k for k in _PASS_AT if k < samples)}):
                chances = [pass_at_k(samples, group.count(1.0), k) for group in groups]
                summary[f"{metric.name} pass@{k}"] = _summary_of(chances, binary)
        rows = [question.row for question in questions for _ in range(samples)]
        corpus = metric.corpus_score([one.generated_response for one in predictions], rows)
        if corpus is not None:
            summary[metric.name]["corpus"] = corpus
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
