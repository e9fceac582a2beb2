"""From the rows of a file to questions: the chat up to where the model answers, with which system message, and what the
answer should be."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from stepjepa.config.option import Names
from stepjepa.data.chat import row_to_messages
from stepjepa.data.columns import is_answer, is_trained, template_kwargs_of
from stepjepa.data.options import PairColumns, text_of
from stepjepa.data.report import RowCounts
from stepjepa.data.sources import RowSource
from stepjepa.errors import RowError
from stepjepa.evaluation.options import AS_TRAINED, EvaluateOptions
from stepjepa.evaluation.predictions import quoted
from stepjepa.generation.output import digest_of
from stepjepa.generation.place import Place

_NAME = Names(EvaluateOptions)


@dataclass
class TrainingRecord:
    """What a folder says of how its model was trained; empty for a model from elsewhere.

    Attributes:
        system_prompts: system message -> rows; None for rows without one.
        others: rows with further system messages, which the record does not hold.
        splitter: name of the step splitter that its training data were read with, None where they were several data sets.
    """

    system_prompts: Counter[str | None] = field(default_factory=Counter)
    others: int = 0
    splitter: str | None = None


def read_record(place: Place) -> TrainingRecord:
    """What the model's folder, or that of the run whose checkpoint it is, says of the training data."""
    record = TrainingRecord()
    for name, report in place.record("data_report.json").items():
        if not name.startswith("train") or not isinstance(report, dict):
            continue
        if name == "train":
            record.splitter = (report.get("steps") or {}).get("splitter")
        record.system_prompts.update(report.get("system_prompts") or {})
        record.system_prompts[None] += report.get("without_system_prompt") or 0
        record.others += report.get("other_system_prompts") or 0
    record.system_prompts = +record.system_prompts  # those with rows
    return record


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

    def line(self, own: int, rows: int) -> str:
        """Which system message is used, where `own` of so many rows come with one."""
        what = "keep their own" if self.keep else "have another in the file, which is replaced"
        return f"system   {self.origin}" + (f"; {own} of {rows} rows {what}" if own else "")


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
    own = "the file's own, as in training with different ones"
    return SystemPrompt(common, True, f"{own}; for rows without one {quoted(common)}")


@dataclass(frozen=True)
class Question:
    """One row that is evaluated.

    Attributes:
        index: number of the row, from 0.
        place: its file and line, or row, as messages name it.
        chat: the chat up to the answer, which is its last message; an earlier answer may stand between it and the user's
            last message.
        row: what metrics see: the row's columns, with the chat as ``messages``.
        template_kwargs: what the chat template gets for this row alone.
    """

    index: int
    place: str
    chat: list[dict[str, str]]
    row: dict[str, Any]
    template_kwargs: dict[str, Any]

    @property
    def prompt(self) -> list[dict[str, str]]:
        """The chat before the answer."""
        return self.chat[:-1]

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
            template_kwargs = template_kwargs_of(row)
            last = _last_answer(messages)
            if all(turn["role"] != "user" for turn in messages[:last]):
                raise RowError("no_user_message", "no message of the user before the last answer")
        except RowError as error:
            asked.skip(error, place)
            continue
        shown = {**row, "messages": messages[: last + 1]}
        if columns is not None:  # what metrics look for by its usual name
            shown["answer"] = messages[last]["content"]
        chat = system.apply(messages[: last + 1])
        asked.questions.append(Question(index, place, chat, shown, template_kwargs))
    return asked


def _last_answer(messages: list[dict[str, str]]) -> int:
    """The position of the last answer in a checked chat, of the last one that is trained where one is; RowError where the
    assistant calls tools alone."""
    answers = [number for number, message in enumerate(messages) if is_answer(message)]
    if not answers:
        raise RowError(
            "no_answer_in_text", "the assistant calls tools alone, so there is no text to compare an answer with"
        )
    trained = [number for number in answers if is_trained(messages[number])]
    return max(trained or answers)
