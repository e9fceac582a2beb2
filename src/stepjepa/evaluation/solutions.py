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
from stepjepa.evaluation.metrics import Metric
from stepjepa.evaluation.predictions import stop_reason
from stepjepa.evaluation.questions import QuestionSet, SystemPrompt, last_answer, last_question
from stepjepa.evaluation.run import Answers, Task, answer
from stepjepa.generation import RowsRead
from stepjepa.generation.store import Output, json_line

GENERATED = "generated_response"


@dataclass(frozen=True)
class Solution:
    """One solution of one question.

    Attributes:
        index: number of its row in the file, from 0.
        place: its file and line, as messages name it.
        chat: up to the solution, which is its last message.
        row: what a metric compares it with: the row without the column that holds the solution.
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
class SolutionSet(RowsRead):
    """The solutions of a file; every row is in `solutions` or counted.

    Attributes:
        generated: whether they are predictions, as a model wrote them.
    """

    solutions: list[Solution] = field(default_factory=list)
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

    def solution(row: Any, index: int, number: int) -> Solution:
        if isinstance(row, dict) and isinstance(row.get(GENERATED), str):
            given, key = {name: value for name, value in row.items() if name != GENERATED}, row.get("index")
            try:
                messages = row_to_messages(given, None, columns)
            except RowError:  # as the evaluation writes them: the question alone
                if not isinstance(row.get("question"), str):
                    raise
                messages = [{"role": "user", "content": row["question"]}]
            asked = messages[: last_question(messages) + 1]
            chat, found.generated = check_messages([*asked, {"role": "assistant", "content": row[GENERATED]}]), True
        else:
            messages, key = row_to_messages(row, None, columns), None
            chat = messages[: last_answer(messages) + 1]
            # What may be the solution is not what it is compared with.
            taken = ("messages",) if row.get("messages") is not None else ANSWER_COLUMNS
            taken = taken if columns is None else (columns.target,)
            given = {name: value for name, value in row.items() if name not in taken}
        chat = system.apply(chat)
        return Solution(index, source.place(number), chat, given, json.dumps([key, chat[:-1]], default=str))

    found.solutions = list(found.usable(source, solution, limit))
    found.require(found.solutions, "holds a solution")
    return found


def sample_solutions(task: Task, output: Output, samples: int) -> Path:
    """Sample solutions of every question into a file that `read_solutions` reads: the rows of the questions, each `samples`
    times, with ``index``, ``sample`` (from 1) and ``generated_response``. Interrupted, the same call resumes.

    Args:
        task: the questions, the generator, temperature and seed.

    Raises:
        ConfigError: a batch does not fit into memory.
        DataError: the file cannot be written.
    """
    target = output.paths.results[0]
    if output.complete is not None:
        return target
    # One request for each sample, with a number, and so a seed, of its own.
    sampled = [(one, number) for one in task.questions.questions for number in range(samples)]
    requests = [replace(one, index=one.index * samples + number) for one, number in sampled]
    answers, records = Answers(output), []
    with output.opened(answers.take):
        answer(replace(task, questions=QuestionSet(task.questions.source, questions=requests)), answers)
        for question, number in sampled:
            reply = answers.replies[question.index * samples + number]
            records.append({
                **json.loads(json.dumps(question.row, default=str)),  # a table may hold dates and the like
                "index": question.index,
                "sample": number + 1,
                GENERATED: reply.text,
                "stop_reason": stop_reason(reply),
                "tokens": reply.new_tokens,
            })  # fmt: skip
        output.finish({target: map(json_line, records)}, {"identity": output.identity, "scoring": output.scoring})
    return target


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
