"""Solutions to score: answers that somebody or some model has given, several to a question where they were sampled."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stepjepa.data.chat import RowError, check_messages
from stepjepa.data.sources import ANSWER_COLUMNS, PairColumns, RowSource, row_to_messages
from stepjepa.errors import DataError
from stepjepa.evaluation.metrics.base import Metric
from stepjepa.evaluation.questions import Question, QuestionSet, Skipped, SystemPrompt
from stepjepa.evaluation.run import Answers, Task, answer
from stepjepa.generation.store import Output, json_line

GENERATED = "generated_response"


@dataclass(frozen=True)
class Solution:
    """One solution of one question.

    Attributes:
        index: number of its row in the file, from 0.
        place: where it stands, in words.
        chat: up to the solution, which is its last message.
        row: what a metric compares it with: the row without the column in which the solution stands.
        question_key: the same for all solutions of a question.
    """

    index: int
    place: str
    chat: list[dict[str, str]]
    row: dict[str, Any]
    question_key: str

    @property
    def text(self) -> str:
        """The solution."""
        return self.chat[-1]["content"]

    @property
    def question(self) -> str:
        """The last message of the user; empty where there is none."""
        return next((turn["content"] for turn in reversed(self.chat) if turn["role"] == "user"), "")


@dataclass
class SolutionSet(Skipped):
    """The solutions of a file; every row is in `solutions` or counted in `skipped`.

    Attributes:
        generated: whether they are predictions, as a model wrote them.
    """

    source: str
    solutions: list[Solution] = field(default_factory=list)
    rows_read: int = 0
    generated: bool = False


def read_solutions(
    source: RowSource, system: SystemPrompt, columns: PairColumns | None = None, limit: int | None = None
) -> SolutionSet:
    """Read the solutions of the first `limit` rows.

    A row with a text in ``generated_response`` is a prediction: that is the solution, and what else the row holds is the
    question. In any other row the last answer of the chat is the solution. Two rows belong to one question if the chats
    before the solution are the same, and for predictions the column ``index`` as well.

    Raises:
        DataError: the file cannot be read, or holds no solution.
    """
    found = SolutionSet(source.name)
    for index, (number, row) in enumerate(source):
        if index == limit:
            break
        found.rows_read += 1
        place = source.place(number)
        try:
            found.solutions.append(_solution(index, place, row, system, columns))
            found.generated = found.generated or _is_prediction(row)
        except RowError as error:
            found.skip(error.reason, place, str(error))
    if not found.rows_read:
        raise DataError(f"{source.name}: the file or data set is empty; it needs at least one solution")
    if not found.solutions:
        raise DataError(
            f"none of {found.rows_read} rows holds a solution; first: {next(iter(found.first_skipped.values()))}"
        )
    return found


def _is_prediction(row: Any) -> bool:
    return isinstance(row, dict) and isinstance(row.get(GENERATED), str)


def _solution(index: int, place: str, row: Any, system: SystemPrompt, columns: PairColumns | None) -> Solution:
    if _is_prediction(row):
        given, key = {name: value for name, value in row.items() if name != GENERATED}, row.get("index")
        try:
            messages = row_to_messages(given, None, columns)
        except RowError:  # as the evaluation writes them: the question alone
            if not isinstance(row.get("question"), str):
                raise
            messages = [{"role": "user", "content": row["question"]}]
        asked = [number for number, message in enumerate(messages) if message["role"] == "user"]
        answered = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
        asked = [number for number in asked if not answered or number < answered[-1]]
        if not asked:
            raise RowError("no_user_message", "no message of the user before the last answer")
        chat = check_messages([*messages[: asked[-1] + 1], {"role": "assistant", "content": row[GENERATED]}])
    else:
        messages, key = row_to_messages(row, None, columns), None
        last = max(number for number, message in enumerate(messages) if message["role"] == "assistant")
        chat, given = messages[: last + 1], _without_solution(row, columns)
    chat = system.apply(chat)
    return Solution(index, place, chat, given, json.dumps([key, chat[:-1]], default=str))


def _without_solution(row: Any, columns: PairColumns | None) -> dict[str, Any]:
    """The row without what may be the solution, with which it must not be compared."""
    if columns is not None:
        taken: Sequence[str] = (columns.target,)
    else:
        taken = ("messages",) if row.get("messages") is not None else ANSWER_COLUMNS
    return {name: value for name, value in row.items() if name not in taken}


def sample_solutions(task: Task, output: Output, samples: int) -> Path:
    """Sample solutions of every question into a file that `read_solutions` reads: the rows of the questions, each `samples`
    times, with ``index``, ``sample`` (from 1) and ``generated_response``. Interrupted, the same call goes on.

    Args:
        task: the questions, the generator, temperature and seed.

    Raises:
        ConfigError: a batch does not fit into memory.
        DataError: the file cannot be written.
    """
    if output.complete is not None:
        return output.paths.results[0]
    questions = task.questions.questions
    # One request for each sample, with a number, and so a seed, of its own.
    requests = [replace(one, index=one.index * samples + number) for one in questions for number in range(samples)]
    answers, target = Answers(output), output.paths.results[0]
    with output.opened(answers.take):
        answer(replace(task, questions=QuestionSet(task.questions.source, requests)), answers)
        records = (_sample(one, answers, one.index * samples, number) for one in questions for number in range(samples))
        output.finish({target: map(json_line, records)}, {"identity": output.identity, "scoring": output.scoring})
    return target


def _sample(question: Question, answers: Answers, first: int, number: int) -> dict[str, Any]:
    reply = answers.replies[first + number]
    return {
        **json.loads(json.dumps(question.row, default=str)),  # a table may hold dates and the like
        "index": question.index,
        "sample": number + 1,
        GENERATED: reply.text,
        "stop_reason": "refused" if reply.refused is not None else "stop" if reply.stopped else "length",
        "tokens": reply.new_tokens,
    }


def right_answers(metric: Metric, solutions: Sequence[Solution]) -> list[tuple[bool, str | None]]:
    """For each solution whether it is right, and its final answer as the metric reads it.

    Raises:
        DataError: a row holds nothing to compare with.
    """
    found = []
    for one in solutions:
        try:
            verdict = metric.score(one.text, one.row)
        except DataError as error:
            raise DataError(f"{one.place}: {error}") from None
        found.append((verdict.score == 1.0, verdict.answer))
    return found
