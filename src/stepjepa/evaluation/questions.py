"""From the rows of a file to questions: the chat up to where the model answers, and what the answer should be."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from stepjepa.data.chat import row_to_messages
from stepjepa.data.columns import is_trained, template_kwargs_of
from stepjepa.data.options import PairColumns, text_of
from stepjepa.data.report import RowCounts
from stepjepa.data.sources import RowSource
from stepjepa.errors import RowError
from stepjepa.evaluation.system import SystemPrompt
from stepjepa.generation.output import digest_of


@dataclass(frozen=True)
class Question:
    """One row that is evaluated.

    Attributes:
        index: number of the row, from 0.
        place: its file and line, or row, as messages name it.
        prompt: the chat before the answer; an earlier answer may stand between the user's last message and it.
        chat: the complete chat, for the reference answer's likelihood.
        row: what metrics see: the row's columns, with the chat as ``messages``.
    """

    index: int
    place: str
    prompt: list[dict[str, str]]
    chat: list[dict[str, str]]
    row: dict[str, Any]

    @property
    def template_kwargs(self) -> dict[str, Any]:
        """What the chat template gets for this row alone."""
        return template_kwargs_of(self.row)

    @property
    def text(self) -> str:
        """The user's last message."""
        return next(turn["content"] for turn in reversed(self.prompt) if turn["role"] == "user")

    @property
    def ground_truth(self) -> str:
        """The column `ground_truth` where there is one, else the reference answer."""
        text = text_of(self.row.get("ground_truth"))
        return text if text.strip() else self.chat[-1]["content"]


@dataclass
class QuestionSet(RowCounts):
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
    asked = QuestionSet(source.name)
    for index, (number, row) in enumerate(islice(source, limit)):
        place = source.place(number)
        asked.rows_read += 1
        try:
            messages = row_to_messages(row, None, columns)
            asked.own_system_prompts += messages[0]["role"] == "system"
            asked.questions.append(_question(row, messages, index, place, system, columns))
        except RowError as error:
            asked.skip(error, place)
    return asked


def _question(
    row: Any,
    messages: list[dict[str, str]],
    index: int,
    place: str,
    system: SystemPrompt,
    columns: PairColumns | None,
) -> Question:
    template_kwargs_of(row)  # refuses what no template could take
    last = last_answer(messages)
    if all(turn["role"] != "user" for turn in messages[:last]):
        raise RowError("no_user_message", "no message of the user before the last answer")
    chat = system.apply(messages[: last + 1])
    shown = {**row, "messages": messages[: last + 1]}
    if columns is not None:  # what metrics look for by its usual name
        shown["answer"] = messages[last]["content"]
    return Question(index, place, chat[:-1], chat, shown)


def last_answer(messages: list[dict[str, str]]) -> int:
    """The position of the last answer in a checked chat, which has one: of the last one that is trained, where one is."""
    answers = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
    trained = [number for number in answers if is_trained(messages[number])]
    return max(trained or answers)
