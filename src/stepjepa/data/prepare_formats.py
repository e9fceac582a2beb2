"""The forms in which raw rows come.

Every format becomes the same `Example`: a question, the data set's own answer, a ground truth, and either a response in
which steps are still to be found, or pieces that the row itself names as steps.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from stepjepa.data.chat import RowError
from stepjepa.data.prepare_options import PrepareOptions
from stepjepa.data.sources import listed_columns
from stepjepa.data.steps import LISTED, make_splitter

MAX_TEXT = 1_000_000  # characters; what is longer is no answer, and cutting it into steps would take minutes

_MARK = re.compile(r"<<[^\n]*?>>")
_MARKS_ONLY = re.compile(r"(?:\s*<<[^\n]*?>>)+\s*")
_FINAL = re.compile(r"(?:\A|\n)[ \t]*####[ \t]*(\S[^\n]*)\s*\Z")


class Columns(NamedTuple):
    """Names of the columns; None where a format has none."""

    question: str
    answer: str | None
    response: str | None
    ground_truth: str | None


class Form(NamedTuple):
    """A format that was chosen, its columns, and why in words."""

    format: str
    columns: Columns
    why: str


@dataclass(frozen=True)
class Example:
    """One raw row, its parts told apart.

    Attributes:
        question: without surrounding white space.
        answer: the data set's own, as it stood.
        ground_truth: the final answer where a column or a ``####`` line names it.
        response: the text in which steps are found, without its final ``####`` line.
        final: what stood behind that ``####``.
        pieces: the steps, where the row names them itself; `response` is empty then.
    """

    question: str
    answer: str
    ground_truth: str | None
    response: str = ""
    final: str | None = None
    pieces: tuple[str, ...] | None = None


def read_example(row: Any, form: Form, options: PrepareOptions) -> Example:
    """The parts of one raw row: a line of text for ``implicit_cot``, an object with columns else.

    Raises:
        RowError: something is missing, or is no text.
    """
    if form.format == "implicit_cot":
        return _implicit(row, options)
    if not isinstance(row, Mapping):
        raise RowError("not_an_object", f"the row is a {type(row).__name__}, not an object with columns")
    if form.format in ("gsm8k", "gsm8k_socratic"):
        return _gsm8k(row, form, options)
    return _response(row, form.columns, options)


def is_gsm8k(answer: str) -> bool:
    """Whether an answer ends in a line ``#### 72``."""
    return _without_final(answer)[1] is not None


def is_socratic(answer: str) -> bool:
    """Whether half of an answer's lines or more are ``sub-question ** step``."""
    lines = [line for line in _without_final(answer)[0].split("\n") if line.strip()]
    return bool(lines) and 2 * sum(" ** " in line for line in lines) >= len(lines)


def _gsm8k(row: Mapping[str, Any], form: Form, options: PrepareOptions) -> Example:
    columns = form.columns
    question, answer = _text(row, columns.question), _text(row, columns.answer or "answer")
    response = answer if columns.response in (None, columns.answer) else _text(row, columns.response)
    body, final = _without_final(response)
    if final is None:
        raise RowError("no_final_answer", f"the answer does not end in a line '#### ...': {_end_of(response)}")
    if options.calculator_marks == "drop":
        body = _MARK.sub("", body)
    pieces = None
    if form.format == "gsm8k_socratic":
        # Without a sub-question the line is a step as it is.
        lines = (line.partition(" ** ") for line in body.split("\n"))
        pieces = tuple("\n".join(part.strip() for part in (title, step) if part.strip()) for title, _, step in lines)
    truth = _ground_truth(row, columns)
    truth = final if truth is None else truth
    return Example(question, answer, truth, "" if pieces else body, final, pieces)


def _implicit(line: Any, options: PrepareOptions) -> Example:
    if not isinstance(line, str):
        raise RowError(
            "not_text", f"the row is a {type(line).__name__}; a line 'question||steps #### answer' is expected"
        )
    _refuse_long(line, "the line")
    question, bars, rest = line.partition("||")
    if not bars:
        raise RowError("no_bars", "the line has no '||' between question and steps")
    body, hashes, final = rest.rpartition("####")
    if not hashes or not final.strip():
        raise RowError("no_final_answer", f"the line does not end in '#### ...': {_end_of(rest)}")
    if not question.strip():
        raise RowError("empty_question", "nothing stands in front of '||'")
    keep = options.calculator_marks == "keep"
    if _MARKS_ONLY.fullmatch(body):
        pieces = [mark if keep else mark[2:-2] for mark in _MARK.findall(body)]
    else:
        body = body if keep else _MARK.sub("", body)
        pieces = [body[start:end] for start, end in make_splitter("sentence").spans(body)]
    final = final.strip()
    return Example(question.strip(), rest.strip(), final, "", final, tuple(pieces))


def _response(row: Mapping[str, Any], columns: Columns, options: PrepareOptions) -> Example:
    """``teacher`` and ``columns``."""
    question, name = _text(row, columns.question), columns.response or ""
    if options.step_splitter == LISTED:
        pieces = _listed(row, name)
        response, final = "\n\n".join(pieces), None
    else:
        response, pieces = _text(row, name), None
    answer = response
    if columns.answer not in (None, columns.response) and row.get(columns.answer) is not None:
        answer = _text(row, columns.answer, numbers=True)
    if pieces is None:
        response, final = _without_final(response)
    else:
        response = ""
    truth = _ground_truth(row, columns)
    return Example(question, answer, final if truth is None else truth, response, final, pieces)


def _without_final(text: str) -> tuple[str, str | None]:
    r"""A text without its last line ``#### 72``, and what stands behind the signs.

    A text with a ``\boxed{}`` has its answer there: ``####`` is a heading in it.
    """
    match = None if "\\boxed" in text else _FINAL.search(text)
    if match is None:
        return text, None
    return text[: match.start()], match[1].strip()


def _text(row: Mapping[str, Any], name: str, numbers: bool = False) -> str:
    """The text of a column, line ends as ``\\n``."""
    value = row.get(name)
    if value is None:
        there = "is null" if name in row else f"is missing (columns found: {listed_columns(row)})"
        raise RowError("missing_column", f"column {name!r} {there}")
    if numbers and type(value) in (int, float):
        value = _number(value)
    if not isinstance(value, str):
        raise RowError("not_text", f"column {name!r} has type {type(value).__name__}; it must be text")
    _refuse_long(value, f"column {name!r}")
    if "\r" in value:
        value = value.replace("\r\n", "\n").replace("\r", "\n")
    value = value.strip()
    if not value:
        raise RowError("empty_text", f"column {name!r} is empty")
    return value


def _listed(row: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = row.get(name)
    if value is None:
        there = "is null" if name in row else f"is missing (columns found: {listed_columns(row)})"
        raise RowError("missing_column", f"column {name!r} {there}")
    if not isinstance(value, (list, tuple)) or not all(isinstance(step, str) for step in value):
        raise RowError("not_text", f"column {name!r} is no list of texts, which step_splitter=list reads")
    _refuse_long("", f"column {name!r}", sum(map(len, value)))
    if not any(step.strip() for step in value):
        raise RowError("empty_text", f"column {name!r} is empty")
    return tuple(step.replace("\r\n", "\n").replace("\r", "\n") for step in value)


def _ground_truth(row: Mapping[str, Any], columns: Columns) -> str | None:
    if columns.ground_truth is None or row.get(columns.ground_truth) is None:
        return None
    value = row[columns.ground_truth]
    if type(value) is float and not math.isfinite(value):  # how tables write a missing number
        return None
    if isinstance(value, str) and not value.strip():
        return None
    return _text(row, columns.ground_truth, numbers=True)


def _number(value: int | float) -> str:
    try:
        return str(value)
    except ValueError:  # thousands of digits
        raise RowError("not_text", "a number with thousands of digits") from None


def _refuse_long(text: str, what: str, length: int = 0) -> None:
    length = length or len(text)
    if length > MAX_TEXT:
        raise RowError("text_too_long", f"{what} has {length:,} characters; more than {MAX_TEXT:,} is no answer")


def _end_of(text: str) -> str:
    end = " ".join(text[-200:].split())
    return f"it ends in {end[-40:]!r}" if end else "it is empty"
