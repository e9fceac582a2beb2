"""The formats of raw rows: how one is recognised, and what a row of it holds.

Every format becomes the same `RawExample`: a question, the data set's own answer, a ground truth, and either a response in
which steps are still to be found, or pieces that the row itself names as steps.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from stepjepa.config.option import MISSING, Names, options_of
from stepjepa.data.answers import after_hashes
from stepjepa.data.blocks import answer_of, holds_code
from stepjepa.data.chat import one_turn, row_to_messages
from stepjepa.data.columns import (
    Form,
    absent,
    as_object,
    asked_in,
    chat_column,
    column_value,
    form_of,
    history_of,
    listed_columns,
    system_of,
)
from stepjepa.data.numbers import number_of
from stepjepa.data.prepare.options import RESPONSE_COLUMN, PrepareOptions
from stepjepa.data.steps import LISTED
from stepjepa.errors import DataError, RowError
from stepjepa.utils.text import counted

MAX_TEXT = 1_000_000  # characters; what is longer is no answer, and cutting it into steps would take minutes

_NAME = Names(PrepareOptions)
_MARK = re.compile(r"<<[^\n]*?>>")
_BLANK_LINES = re.compile(r"\A(?:[^\S\n]*\n)+")
_FINAL = re.compile(r"(?:\A|\n)[ \t]*####[ \t]*(\S[^\n]*)\s*\Z")


class RawFormat(NamedTuple):
    """A format, the names of its columns (of `Form` and others), and why it was chosen. Steps are found in the response."""

    name: str
    question: str = ""
    answer: str = ""
    response: str = ""
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
    if not objects:
        raise DataError(f"{name}: the rows are JSON of type {type(rows[0]).__name__}; JSON objects are expected")
    columns = listed_columns(objects[0])
    for which in (option for option in options_of(PrepareOptions) if option.endswith("_column")):
        column = getattr(options, which)
        if column and all(column_value(row, column, MISSING) is MISSING for row in objects):
            message = f"none of the first rows has the column {which} names, {column!r} (found: {columns})"
            raise DataError(f"{name}: {message}")
    forms = Counter(form for form in (_format_of(row, options) for row in objects) if form is not None)
    if not forms:
        raise DataError(
            f"{name}: format not recognised (columns found: {columns}); name the columns with "
            f"--{_NAME.question_column} and --{_NAME.response_column}, or give --{_NAME.format}"
        )
    form, count = forms.most_common(1)[0]
    if options.format != "auto":
        return form
    return form._replace(why=f"recognised: {count} of the first {counted(len(rows), 'row')}")


def _format_of(row: Mapping[str, Any], options: PrepareOptions) -> RawFormat | None:
    """Format and columns of one row, None where it shows nothing."""
    name, usual = options.format, form_of(row)
    question = options.question_column or usual.question
    answer = options.answer_column or usual.answer
    response = options.response_column
    asked = column_value(row, question)
    if name == "auto" and not options.question_column:
        unpaired = asked is None or (response is None and column_value(row, answer) is None)
        if isinstance(asked, list) or (unpaired and chat_column(row)):
            name = "chats"
    if name == "chats":
        return RawFormat(name, "question", "answer", "answer")
    if response is None and name in ("auto", "teacher"):
        response = _response_column(row)
    if name == "auto":
        text = column_value(row, response or answer)
        if asked is None or text is None:
            return None
        if response is None:
            ends_in_final = isinstance(text, str) and _split_final(text)[1] is not None
            name = "gsm8k" if ends_in_final else "columns"
        else:
            name = "columns" if options.question_column or options.response_column else "teacher"
    response = response or (RESPONSE_COLUMN if name == "teacher" else answer)
    return RawFormat(name, question, answer, response, None if options.question_column else usual)


def _response_column(row: Mapping[str, Any]) -> str | None:
    """The column with a generated response, None without one or with several."""
    if row.get(RESPONSE_COLUMN) is not None:
        return RESPONSE_COLUMN
    names = [name for name in row if isinstance(name, str) and (name == "response" or name.endswith("_response"))]
    return names[0] if len(names) == 1 and row[names[0]] is not None else None


def read_example(row: object, form: RawFormat, options: PrepareOptions) -> RawExample:
    """The parts of one raw row.

    Raises:
        RowError: something is missing, or is no text.
    """
    row = as_object(row)
    if form.name == "chats":
        system, asked, answered = one_turn(row_to_messages(row))
        row = {**row, form.question: asked, form.answer: answered}
    else:
        system = system_of(row)
        if history_of(row):
            one_turn(row_to_messages(row))  # refuses several turns
        if form.asked is not None and form.question in row:
            row = {**row, form.question: asked_in(row, form.asked)}
    question = _text(row, form.question).strip()
    if form.name != "gsm8k" and options.step_splitter == LISTED:
        pieces = _listed(row, form.response)
        answer, response, final = "\n\n".join(pieces), "", None
    else:
        pieces = None
        answer = _text(row, form.response)
        response, final = _split_final(answer)
    if form.name == "gsm8k":
        if final is None:
            raise RowError("no_final_answer", f"the answer does not end in a line '#### ...': {_end_of(answer)}")
        if options.calculator_marks == "drop":
            response = _MARK.sub("", response)
    if form.answer != form.response and column_value(row, form.answer) is not None:
        answer = _text(row, form.answer, numbers=True)
    truth = _ground_truth(row, options.ground_truth_column or "ground_truth", final)
    return RawExample(question, answer, truth, response, final, pieces, system)


def _split_final(text: str) -> tuple[str, str | None]:
    r"""A text without its last line ``#### 72``, and what follows the hashes; None without such a line.

    A text with a ``\boxed{}`` has its answer there: ``####`` is a heading in it. Of several such lines the first is the
    answer, so a text that goes on to another one does not end in it. At the end of code, words after hashes are a comment.
    """
    match = None if "\\boxed" in text else _FINAL.search(text)
    if match is None:
        return text, None
    final = match[1].strip()
    comment = number_of(final) is None and holds_code(text)
    if comment or after_hashes(answer_of(text)) != final:
        return text, None
    return text[: match.start()], final


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
    _check_length(len(value), name)
    value = blank_lines_off(_with_line_feeds(value))
    if not value:
        raise RowError("empty_text", f"column {name!r} is empty")
    return value


def _listed(row: Mapping[str, Any], name: str) -> list[str]:
    """The texts of a column with a list of steps."""
    steps = _value(row, name)
    if not isinstance(steps, (list, tuple)) or not all(isinstance(step, str) for step in steps):
        raise RowError("not_text", f"column {name!r} is no list of texts, which {_NAME.step_splitter}=list reads")
    text = "".join(steps)
    _check_length(len(text), name)
    if not text.strip():
        raise RowError("empty_text", f"column {name!r} is empty")
    return [_with_line_feeds(step) for step in steps]


def _value(row: Mapping[str, Any], name: str) -> Any:
    value = column_value(row, name)
    if value is None:
        raise RowError("missing_column", absent(row, name))
    return value


def _check_length(length: int, name: str) -> None:
    if length > MAX_TEXT:
        what = f"column {name!r} has {length:,} characters; more than {MAX_TEXT:,} is no answer"
        raise RowError("text_too_long", what)


def _with_line_feeds(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _ground_truth(row: Mapping[str, Any], name: str, final: str | None) -> str | None:
    """What the column says, else `final`; tables write NaN for a missing number."""
    value = column_value(row, name)
    if value is None or value != value or (isinstance(value, str) and not value.strip()):
        return final
    return _text(row, name, numbers=True).strip()


def blank_lines_off(text: str) -> str:
    """A text without blank lines at its start and white space at its end: its first line keeps its indentation."""
    return _BLANK_LINES.sub("", text).rstrip()


def _end_of(text: str) -> str:
    end = " ".join(text[-200:].split())
    return f"it ends in {end[-40:]!r}" if end else "it is empty"
