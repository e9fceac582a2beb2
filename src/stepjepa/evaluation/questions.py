"""Turns the rows of a file into questions: the chat before the answer, its system message, and the reference answer."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from stepjepa.config.option import Names
from stepjepa.data.chat import row_to_messages
from stepjepa.data.columns import Messages, is_answer, is_trained, template_kwargs_of
from stepjepa.data.options import PairColumns, text_of
from stepjepa.data.report import DataReport, RowCounts
from stepjepa.data.sources import RowSource
from stepjepa.errors import RowError
from stepjepa.evaluation.options import AS_TRAINED, EvaluateOptions
from stepjepa.evaluation.predictions import quoted
from stepjepa.generation.output import digest_of
from stepjepa.generation.place import Place

_NAME = Names(EvaluateOptions)


def read_record(place: Place) -> DataReport:
    """The data report in the model's folder, or in the run's folder for a checkpoint; the sum over several training sets.

    Empty for a model that this library did not train, or if the report is damaged.
    """
    total = DataReport("")
    try:
        for name, record in place.record("data_report.json").items():
            if name.startswith("train"):
                report = DataReport.from_dict(record)
                # Several training sets may use different splitters.
                if name != "train":
                    report.steps.splitter = ""
                total.add(report)
    except (TypeError, ValueError, AttributeError):
        return DataReport("")
    return total


class SystemPrompt(NamedTuple):
    """The system message of the questions.

    Attributes:
        text: the message; None for no message.
        keep: whether a row that has its own system message keeps it.
        origin: where the message comes from, as printed.
    """

    text: str | None
    keep: bool
    origin: str

    def apply(self, messages: Messages) -> Messages:
        """The chat with this system message."""
        has_own = messages[0]["role"] == "system"
        if has_own and self.keep:
            return messages
        rest = messages[1:] if has_own else messages
        return rest if self.text is None else [{"role": "system", "content": self.text}, *rest]


def choose_system_prompt(
    setting: str | None, use_test_prompts: bool, record: DataReport, name: str
) -> SystemPrompt:
    """Choose the system message from the options and from the data report of the training run of model `name`.

    A model that was trained with one system message, or with none, is evaluated the same way. After training with several,
    each row keeps its own message, and rows without a message get the most common one.
    """
    if use_test_prompts:
        return SystemPrompt(None, True, f"the file's own (--{_NAME.use_test_prompts})")
    if setting != AS_TRAINED:
        origin = f"{quoted(setting)} (--{_NAME.system_prompt}), not the file's own"
        return SystemPrompt(setting, False, origin)
    # None stands for rows without a message; the unary plus of a Counter drops entries without rows.
    prompts: Counter[str | None] = Counter(record.system_prompts)
    prompts[None] = record.without_system_prompt
    if not +prompts:
        return SystemPrompt(
            None, True, f"the file's own, where it has one ({name} has no record of its training)"
        )
    (common, _), *further = (+prompts).most_common()
    if not further and not record.other_system_prompts:
        return SystemPrompt(common, False, f"{quoted(common)}, as in training, not the file's own")
    origin = "the file's own, because training used several"
    return SystemPrompt(common, True, f"{origin}; for rows without one {quoted(common)}")


@dataclass(frozen=True)
class Question:
    """A row that can be evaluated.

    Attributes:
        index: number of the row, from 0.
        place: file and line, or row, for error messages.
        chat: the chat, with the reference answer as its last message. Other answers may come between the user's last
            message and the reference.
        row: the row as metrics see it: its columns, with the chat as ``messages``.
        template_kwargs: the chat-template arguments of this row.
    """

    index: int
    place: str
    chat: Messages
    row: dict[str, Any]
    template_kwargs: dict[str, Any]

    @property
    def prompt(self) -> Messages:
        """The chat before the answer."""
        return self.chat[:-1]

    @property
    def text(self) -> str:
        """The user's last message."""
        return next(turn["content"] for turn in reversed(self.prompt) if turn["role"] == "user")

    @property
    def ground_truth(self) -> str:
        """The column `ground_truth` if it has text, else the reference answer."""
        text = text_of(self.row.get("ground_truth"))
        return text if text.strip() else self.chat[-1]["content"]


@dataclass
class QuestionSet(RowCounts):
    """The questions of a file; every row that was read is in `questions` or counted as skipped."""

    questions: list[Question] = field(default_factory=list)

    def fingerprint(self) -> str:
        """A digest that changes with any prompt, any column of a row, and the order of the rows."""
        return digest_of(
            [question.index, question.prompt, question.row] for question in self.questions
        )


def read_questions(
    source: RowSource,
    system: SystemPrompt,
    columns: PairColumns | None = None,
    limit: int | None = None,
) -> QuestionSet:
    """Read the questions in the first `limit` rows; rows that cannot be used are counted.

    Raises:
        DataError: the file cannot be read.
    """
    question_set = QuestionSet(source.name)
    # `index` counts rows, `number` is the row's or line's number in its file.
    for index, (number, row) in enumerate(islice(source, limit)):
        place = source.place(number)
        question_set.rows_read += 1
        try:
            messages = row_to_messages(row, None, columns)
            template_kwargs = template_kwargs_of(row)
            last = _last_answer(messages)
            if all(turn["role"] != "user" for turn in messages[:last]):
                raise RowError("no_user_message", "no user message before the last answer")
        except RowError as error:
            question_set.skip(error, place)
            continue
        shown = {**row, "messages": messages[: last + 1]}
        # Metrics look for a reference under its usual name, not in the user's columns.
        if columns is not None:
            shown["answer"] = messages[last]["content"]
        chat = system.apply(messages[: last + 1])
        question_set.questions.append(Question(index, place, chat, shown, template_kwargs))
    return question_set


def _last_answer(messages: Messages) -> int:
    """Position of the last answer in a checked chat; answers marked as context count only if there is no other.

    Raises:
        RowError: the assistant only calls tools.
    """
    answers = [number for number, message in enumerate(messages) if is_answer(message)]
    if not answers:
        raise RowError(
            "no_answer_in_text",
            "the assistant only calls tools, so there is no text to compare an answer with",
        )
    trained = [number for number in answers if is_trained(messages[number])]
    return max(trained or answers)
