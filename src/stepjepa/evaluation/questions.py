"""From the rows of a file to questions (the chat up to where the model answers, and what the answer should be) and to
solutions: answers that somebody or some model has given, several to a question where they were sampled."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from stepjepa.config.option import Names
from stepjepa.data.chat import check_messages, row_to_messages
from stepjepa.data.options import PairColumns, answer_column
from stepjepa.data.sources import RowSource
from stepjepa.errors import RowError
from stepjepa.evaluation.metrics import Metric
from stepjepa.evaluation.models import TrainingRecord
from stepjepa.evaluation.options import AS_TRAINED, EvaluateOptions
from stepjepa.evaluation.predictions import quoted, scored
from stepjepa.generation import RowsRead, digest_of, text_of

_NAME = Names(EvaluateOptions)
GENERATED = "generated_response"


class SystemPrompt(NamedTuple):
    """Which system message a question gets.

    Attributes:
        text: the message, None for none.
        keep: whether a row's own goes before it.
        origin: where it comes from, to be printed.
    """

    text: str | None
    keep: bool
    origin: str

    def apply(self, messages: list[dict[str, str]]) -> list[dict[str, str]]:
        """The chat with this system message."""
        own = messages[0]["role"] == "system"
        if own and self.keep:
            return messages
        rest = messages[1:] if own else messages
        return rest if self.text is None else [{"role": "system", "content": self.text}, *rest]


@dataclass(frozen=True)
class Question:
    """One row that is evaluated.

    Attributes:
        index: number of the row, from 0.
        place: its file and line, or row, as messages name it.
        prompt: the chat that the model is to answer; ends with the user's message.
        chat: the complete chat, for the reference answer's likelihood.
        row: what metrics see: the row's columns, with the chat as ``messages``.
    """

    index: int
    place: str
    prompt: list[dict[str, str]]
    chat: list[dict[str, str]]
    row: dict[str, Any]

    @property
    def text(self) -> str:
        """The user's last message."""
        return self.prompt[-1]["content"]

    @property
    def ground_truth(self) -> str:
        """The column `ground_truth` where there is one, else the reference answer."""
        text = text_of(self.row.get("ground_truth"))
        return text if text.strip() else self.chat[-1]["content"]


@dataclass
class QuestionSet(RowsRead):
    """The questions of a file; every row that was read is in `questions` or counted.

    Attributes:
        own_system_prompts: rows that come with a system message.
    """

    questions: list[Question] = field(default_factory=list)
    own_system_prompts: int = 0

    def fingerprint(self) -> str:
        """Changes with any prompt, any column of a row, or the rows' order."""
        return digest_of([one.index, one.prompt, one.row] for one in self.questions)


def read_questions(
    source: RowSource, system: SystemPrompt, columns: PairColumns | None = None, limit: int | None = None
) -> QuestionSet:
    """Read the questions of the first `limit` rows; what cannot be asked is counted.

    Raises:
        DataError: the file cannot be read.
    """
    found = QuestionSet(source.name)

    def question(row: Any, index: int, number: int) -> Question:
        messages = row_to_messages(row, None, columns)
        found.own_system_prompts += messages[0]["role"] == "system"
        last, asked = last_answer(messages), last_question(messages)
        chat = system.apply(messages[: last + 1])
        seen = {**row, "messages": messages[: last + 1]}
        if columns is not None:  # what metrics look for by its usual name
            seen["answer"] = messages[last]["content"]
        return Question(index, source.place(number), chat[: asked + len(chat) - last], chat, seen)

    found.questions = list(found.usable(source, question, limit))
    return found


def last_answer(messages: list[dict[str, str]]) -> int:
    """The position of the last answer in a checked chat, which has one."""
    return max(number for number, message in enumerate(messages) if message["role"] == "assistant")


def last_question(messages: list[dict[str, str]]) -> int:
    """The position of the user's last message before the last answer, where there is one, else of the last.

    Raises:
        RowError: there is none.
    """
    answered = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
    before = messages[: answered[-1]] if answered else messages
    asked = [number for number, message in enumerate(before) if message["role"] == "user"]
    if not asked:
        raise RowError("no_user_message", "no message of the user before the last answer")
    return asked[-1]


def choose_system_prompt(asked: str | None, use_test_prompts: bool, record: TrainingRecord, name: str) -> SystemPrompt:
    """Which system message the questions get, by the options and by what is known of the training of the model `name`.

    A model that was trained with one system message (or with none) gets it. One that was trained with several gets each
    row's own; rows without one get the most common one.
    """
    if use_test_prompts:
        return SystemPrompt(None, True, f"the file's own (--{_NAME.use_test_prompts})")
    if asked != AS_TRAINED:
        return SystemPrompt(asked, False, f"{quoted(asked)} (--{_NAME.system_prompt})")
    if not record.system_prompts:
        return SystemPrompt(None, True, f"the file's own, where it has one ({name} has no record of its training)")
    (common, _), *further = record.system_prompts.most_common()
    if not further and not record.others:
        return SystemPrompt(common, False, f"{quoted(common)}, as in training")
    count = f"{len(record.system_prompts)}{' and more' if record.others else ''}"
    own = f"the file's own, as in training with {count} different ones"
    return SystemPrompt(common, True, f"{own}; for rows without one {quoted(common)}")


def system_prompt_line(system: SystemPrompt, questions: QuestionSet) -> str:
    """Which system message is used, and what becomes of the file's own."""
    line, rows = f"system   {system.origin}", questions.rows_read
    if system.keep:
        return f"{line}: {questions.own_system_prompts} of {rows} rows have one"
    own = [(one.row["messages"][0], one.chat) for one in questions.questions]
    others = sum(message["role"] == "system" and message not in chat for message, chat in own)
    return line + (f"; the file's own differs in {others} of {rows} rows" if others else "")


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
            taken = answer_column(row) if columns is None else columns.target
            given = {name: value for name, value in row.items() if name != taken}
        chat = system.apply(chat)
        return Solution(index, source.place(number), chat, given, json.dumps([key, chat[:-1]], default=str))

    found.solutions = list(found.usable(source, solution, limit))
    found.require(found.solutions, "holds a solution")
    return found


def right_answers(metric: Metric, solutions: Sequence[Solution]) -> list[tuple[bool, str | None]]:
    """For each solution whether it is right, and its final answer as the metric reads it.

    Raises:
        DataError: a row holds nothing to compare with.
    """
    verdicts = [scored(metric, one.text, one) for one in solutions]
    return [(verdict.score == 1.0, verdict.answer) for verdict in verdicts]
