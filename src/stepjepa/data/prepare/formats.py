"""The formats of raw rows: how one is recognised, and what a row of it holds.

Every format becomes the same `RawExample`: a question, the data set's own answer, a ground truth, and either a response in
which steps are still to be found, or pieces that the row itself names as steps.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from stepjepa.config.option import MISSING, Names, options_of
from stepjepa.data.answers import after_hashes
from stepjepa.data.blocks import answer_of
from stepjepa.data.chat import one_turn, row_to_messages
from stepjepa.data.columns import history_of, system_of
from stepjepa.data.numbers import number_of
from stepjepa.data.options import Form, absent, as_object, asked_in, chat_column, column_value, form_of, listed_columns
from stepjepa.data.prepare.code import holds_code
from stepjepa.data.prepare.options import RESPONSE_COLUMN, PrepareOptions
from stepjepa.data.steps import LISTED
from stepjepa.errors import DataError, RowError

MAX_TEXT = 1_000_000  # characters; what is longer is no answer, and cutting it into steps would take minutes

_NAME = Names(PrepareOptions)
_MARK = re.compile(r"<<[^\n]*?>>")
_BLANK_LINES = re.compile(r"\A(?:[^\S\n]*\n)+")
_FINAL = re.compile(r"(?:\A|\n)[ \t]*####[ \t]*(\S[^\n]*)\s*\Z")
_LOOKS = {
    "gsm8k": "answers that end in '#### ...'",
    "teacher": "a response next to the question",
    "columns": "these columns",
    "chats": "chats of one question and its answer",
}


class RawFormat(NamedTuple):
    """A format, the names of its columns (of `Form` and others), and why it was chosen. Steps are found in the response."""

    name: str
    question: str = ""
    answer: str = ""
    response: str = ""
    ground_truth: str = "ground_truth"
    asked: Form | None = None
    why: str = "as given"


@dataclass(frozen=True)
class RawExample:
    """The parts of one raw row.

    Attributes:
        question: without surrounding white space.
        answer: the data set's own, as it was.
        ground_truth: the final answer where a column or a ``####`` line names it.
        response: the text in which steps are found, without its final ``####`` line.
        final: what follows that ``####``.
        pieces: the steps, where the row names them itself; `response` is empty then.
        system: the system message of a chat.
    """

    question: str
    answer: str
    ground_truth: str | None
    response: str = ""
    final: str | None = None
    pieces: Sequence[str] | None = None
    system: str | None = None


def recognise(rows: Sequence[Any], options: PrepareOptions, name: str) -> RawFormat:
    """The format of a file's first rows; where it is given, with its columns.

    Args:
        rows: objects with columns, or what else JSON can hold.
        name: of the file, for messages.

    Raises:
        DataError: none of the formats, or a column that no row has.
        ConfigError: options that exclude each other.
    """
    objects = [row for row in rows if isinstance(row, Mapping)]
    for which in (name for name in options_of(PrepareOptions) if name.endswith("_column")):
        column = getattr(options, which)
        if column and objects and all(column_value(row, column, MISSING) is MISSING for row in objects):
            there = listed_columns(objects[0])
            raise DataError(f"{name}: none of the first rows has the column {which} names, {column!r} (found: {there})")
    found = Counter(form for form in (_format_of(row, options) for row in rows) if form is not None)
    if not found and not objects:
        raise DataError(f"{name}: the rows are JSON of type {type(rows[0]).__name__}; JSON objects are expected")
    if not found:
        raise DataError(
            f"{name}: format not recognised (columns found: {listed_columns(objects[0])}); name the columns with "
            f"--{_NAME.question_column} and --{_NAME.response_column}, or give --{_NAME.format}"
        )
    (form, count), *_ = found.most_common(1)
    if options.format != "auto":
        return form
    which_rows = f"{count} of the first {len(rows)} rows have" if len(rows) > 1 else "the only row has"
    return form._replace(why=f"recognised: {which_rows} {_LOOKS[form.name]}")


def _format_of(row: Any, options: PrepareOptions) -> RawFormat | None:
    """Format and columns of one row, None where it shows nothing."""
    name = options.format
    if not isinstance(row, Mapping):
        return None
    usual, response = form_of(row), options.response_column
    question, answer = options.question_column or usual.question, options.answer_column or usual.answer
    asked = column_value(row, question)
    unpaired = asked is None or (response is None and column_value(row, answer) is None)
    chat = isinstance(asked, list) or (unpaired and chat_column(row))
    if name == "chats" or (name == "auto" and chat and not options.question_column):
        return RawFormat("chats", "question", "answer", "answer", options.ground_truth_column or "ground_truth")
    if response is None and name in ("auto", "teacher"):
        names = [one for one in row if isinstance(one, str) and (one == "response" or one.endswith("_response"))]
        names = [RESPONSE_COLUMN] if row.get(RESPONSE_COLUMN) is not None else names
        response = names[0] if len(names) == 1 and row[names[0]] is not None else None
    if name == "auto":
        text = column_value(row, response or answer)
        if asked is None or text is None:
            return None
        named = options.question_column or options.response_column
        name = "teacher" if response and not named else "columns"
        if response is None and isinstance(text, str) and _split_final(text)[1] is not None:
            name = "gsm8k"
    response = response or (RESPONSE_COLUMN if name == "teacher" else answer)
    form = None if options.question_column else usual
    return RawFormat(name, question, answer, response, options.ground_truth_column or "ground_truth", form)


def read_example(row: object, form: RawFormat, options: PrepareOptions) -> RawExample:
    """The parts of one raw row.

    Raises:
        RowError: something is missing, or is no text.
    """
    row, system = as_object(row), None
    if form.name == "chats":
        system, question, answer = one_turn(row_to_messages(row))
        row = {**row, form.question: question, form.answer: answer}
    else:
        system = system_of(row)
        if history_of(row):
            one_turn(row_to_messages(row))  # refuses several turns
        if form.asked is not None and form.question in row:
            row = {**row, form.question: asked_in(row, form.asked)}
    question, pieces = _text(row, form.question).strip(), None
    if form.name == "gsm8k":
        answer = _text(row, form.answer)
        text = answer if form.response == form.answer else _text(row, form.response)
        response, final = _split_final(text)
        if final is None:
            raise RowError("no_final_answer", f"the answer does not end in a line '#### ...': {_end_of(text)}")
        if options.calculator_marks == "drop":
            response = _MARK.sub("", response)
    else:
        if options.step_splitter == LISTED:
            pieces = _listed(row, form.response)
            answer, response, final = "\n\n".join(pieces), "", None
        else:
            answer = _text(row, form.response)
            response, final = _split_final(answer)
        if form.answer != form.response and column_value(row, form.answer) is not None:
            answer = _text(row, form.answer, numbers=True)
    return RawExample(question, answer, _ground_truth(row, form.ground_truth, final), response, final, pieces, system)


def _split_final(text: str) -> tuple[str, str | None]:
    r"""A text without its last line ``#### 72``, and what follows the hashes; None without such a line.

    A text with a ``\boxed{}`` has its answer there: ``####`` is a heading in it. Of several such lines the first is the
    answer, so a text that goes on to another one does not end in it. At the end of code, words after hashes are a comment.
    """
    match = None if "\\boxed" in text else _FINAL.search(text)
    if match is None or after_hashes(answer_of(text)) != match[1].strip():
        return text, None
    if number_of(match[1].strip()) is None and holds_code(text):
        return text, None
    return text[: match.start()], match[1].strip()


def _value(row: Mapping[str, Any], name: str) -> Any:
    value = column_value(row, name)
    if value is None:
        raise RowError("missing_column", absent(row, name))
    return value


def _text(row: Mapping[str, Any], name: str, numbers: bool = False) -> str:
    """The text of a column, line ends as ``\\n``, without blank lines at its start and white space at its end."""
    value = _value(row, name)
    if numbers and type(value) in (int, float):
        try:
            value = str(value)
        except ValueError:
            raise RowError("not_text", "a number with thousands of digits") from None
    if not isinstance(value, str):
        raise RowError("not_text", f"column {name!r} has type {type(value).__name__}; it must be text")
    _refuse_long(len(value), f"column {name!r}")
    if "\r" in value:
        value = value.replace("\r\n", "\n").replace("\r", "\n")
    value = blank_lines_off(value)
    if not value:
        raise RowError("empty_text", f"column {name!r} is empty")
    return value


def _listed(row: Mapping[str, Any], name: str) -> list[str]:
    value = _value(row, name)
    if not isinstance(value, (list, tuple)) or not all(isinstance(step, str) for step in value):
        raise RowError("not_text", f"column {name!r} is no list of texts, which {_NAME.step_splitter}=list reads")
    _refuse_long(sum(map(len, value)), f"column {name!r}")
    if not any(step.strip() for step in value):
        raise RowError("empty_text", f"column {name!r} is empty")
    return [step.replace("\r\n", "\n").replace("\r", "\n") for step in value]


def _ground_truth(row: Mapping[str, Any], name: str, final: str | None) -> str | None:
    """What the column says, else `final`; tables write NaN for a missing number."""
    value = column_value(row, name)
    missing = value is None or (isinstance(value, str) and not value.strip())
    if missing or (type(value) is float and not math.isfinite(value)):
        return final
    return _text(row, name, numbers=True).strip()


def blank_lines_off(text: str) -> str:
    """A text without blank lines at its start and white space at its end: its first line keeps its indentation."""
    return _BLANK_LINES.sub("", text).rstrip()


def _refuse_long(length: int, what: str) -> None:
    if length > MAX_TEXT:
        raise RowError("text_too_long", f"{what} has {length:,} characters; more than {MAX_TEXT:,} is no answer")


def _end_of(text: str) -> str:
    end = " ".join(text[-200:].split())
    return f"it ends in {end[-40:]!r}" if end else "it is empty"
