"""The work of an evaluation: ask a model whatever is not answered yet, score the answers, sum up."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from stepjepa.data.prompts import Prompter
from stepjepa.errors import DataError
from stepjepa.evaluation import nll
from stepjepa.evaluation.intervals import share
from stepjepa.evaluation.metrics.base import Metric
from stepjepa.evaluation.options import NLL
from stepjepa.evaluation.predictions import CUT, REFUSED, Prediction
from stepjepa.evaluation.rows import Question, QuestionSet
from stepjepa.evaluation.scoring import predictions_of, summarise
from stepjepa.evaluation.store import Work
from stepjepa.evaluation.teachers.local import BATCH_SIZE
from stepjepa.evaluation.teachers.requests import Request, Teacher, seed_of


class Watcher(Protocol):
    """Whoever wants to know how far an evaluation is."""

    def say(self, line: str) -> None:
        """Something to know."""

    def begin(self, what: str, total: int, done: int) -> None:
        """Something begins of which there are `total`, `done` of them done before."""

    def step(self, count: int) -> None:
        """So many more are done."""


class NoWatcher:
    """Says nothing."""

    def say(self, line: str) -> None:
        """Nothing."""

    def begin(self, what: str, total: int, done: int) -> None:
        """Nothing."""

    def step(self, count: int) -> None:
        """Nothing."""


@dataclass
class Evaluation:
    """What came of an evaluation.

    Attributes:
        metrics: metric -> ``value``, ``low`` and ``high`` (95 %), ``n`` and what else belongs to its kind.
        generation: share that did not stop, tokens, seconds; empty where nothing was generated.
        predictions: a record for each question, in order.
        answer_nll: index -> nats a token of the reference answer.
        rows: how many rows were read, evaluated, and skipped for which reason.
    """

    metrics: dict[str, dict[str, Any]]
    generation: dict[str, Any]
    predictions: list[Prediction]
    answer_nll: list[dict[str, Any]]
    rows: dict[str, Any]

    def value(self, name: str) -> float | None:
        """The value of a metric."""
        return self.metrics[name]["value"]


@dataclass
class Task:
    """What the model is asked for, and with what.

    Attributes:
        teacher: generates the answers to score; None where no metric reads any.
        likelihood: the reference answers whose likelihood is computed, None for none.
        model, pad_id, vocabulary: for the likelihood.
    """

    questions: QuestionSet
    metrics: list[Metric]
    teacher: Teacher | None
    likelihood: nll.AnswerLikelihood | None
    model: Any = None
    pad_id: int = 0
    batch_size: int = BATCH_SIZE
    vocabulary: int | None = None
    temperature: float = 0.0
    seed: int = 42
    watcher: Watcher = field(default_factory=NoWatcher)


def likelihood_of(
    questions: QuestionSet, prompter: Prompter, max_length: int | None, positions: int | None
) -> nll.AnswerLikelihood:
    """The reference answers, encoded; see `nll.AnswerLikelihood.of`.

    Raises:
        DataError: not one can be used.
    """
    found = nll.AnswerLikelihood.of(questions.questions, prompter.tokenizer, prompter.renderer, max_length, positions)
    if not found.examples:
        first = next(iter(found.report.first_skipped.values()), "no row")
        raise DataError(f"{questions.source}: {NLL}: no row has an answer that can be used; first: {first}")
    return found


def answer(task: Task, work: Work) -> None:
    """Let the model answer whatever is not answered yet."""
    questions, watcher = task.questions.questions, task.watcher
    if task.likelihood is not None:
        watcher.begin("likelihoods", len(task.likelihood.examples), len(work.losses))
        for losses in task.likelihood.compute(task.model, task.pad_id, task.batch_size, work.losses, task.vocabulary):
            work.add_losses(losses)
            watcher.step(len(losses))
    if task.teacher is None:
        return
    requests = [
        Request(question.index, question.prompt, task.temperature, seed_of(task.seed, question.index))
        for question in questions
    ]
    watcher.begin("answers", len(questions), len(work.replies))
    if len(work.replies) == len(questions):
        return
    for replies, seconds in _timed(task.teacher.answer(requests, frozenset(work.replies))):
        work.add_replies(replies, seconds)
        watcher.step(len(replies))


def _timed(groups: Iterator[Any]) -> Iterator[tuple[Any, float]]:
    """Each group with the seconds that it took."""
    while True:
        begin = time.perf_counter()
        group = next(groups, None)
        if group is None:
            return
        yield group, time.perf_counter() - begin


def score(task: Task, work: Work) -> Evaluation:
    """What the answers come to.

    Raises:
        DataError: a metric of the user's failed.
    """
    questions: list[Question] = task.questions.questions
    metrics: dict[str, dict[str, Any]] = {}
    predictions: list[Prediction] = []
    if task.metrics:
        task.watcher.begin("scores", len(questions), 0)
        predictions = predictions_of(questions, work.replies, work.losses, task.metrics, task.watcher.step)
        metrics |= summarise(task.metrics, predictions, questions)
    losses = []
    if task.likelihood is not None:
        values = [work.losses[index] for index in sorted(work.losses)]
        metrics[NLL] = nll.summarise(values, task.likelihood.report)
        texts = {question.index: question.text for question in questions}
        losses = [
            {"index": one.row, "question": texts[one.row], NLL: one.total / one.tokens, "answer_tokens": one.tokens}
            for one in values
        ]
    rows = {
        "read": task.questions.rows_read,
        "evaluated": len(questions),
        "skipped": dict(task.questions.skipped),
        "first_skipped": task.questions.first_skipped,
    }
    return Evaluation(metrics, _generation(predictions, work.seconds), predictions, losses, rows)


def _generation(predictions: Sequence[Prediction], seconds: float) -> dict[str, Any]:
    answered = [one for one in predictions if one.stop_reason != REFUSED]
    if not predictions:
        return {}
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
