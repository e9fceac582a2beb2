"""Which format raw rows have, and in which columns their texts stand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from stepjepa.data.prepare_formats import Columns, Form, is_gsm8k, is_socratic
from stepjepa.data.prepare_options import OWN_STEPS, RESPONSE_COLUMN, PrepareOptions
from stepjepa.data.sources import TEXT_COLUMNS, listed_columns
from stepjepa.errors import ConfigError, DataError

ROWS_LOOKED_AT = 100

_LOOKS = {
    "gsm8k": "answers that end in '#### ...'",
    "gsm8k_socratic": "answers of lines 'sub-question ** step' that end in '#### ...'",
    "teacher": "a response beside the question",
    "implicit_cot": "lines 'question||steps #### answer'",
    "columns": "these columns",
}


def recognise(rows: Sequence[Any], options: PrepareOptions, name: str) -> Form:
    """The form of a file's first rows; where the format is given, its columns.

    Args:
        rows: lines of text, or objects with columns.
        name: of the file, for messages.

    Raises:
        DataError: none of the formats, a column that no row has, or rows that are chats already.
        ConfigError: options that exclude each other.
    """
    found = Counter(columns for row in rows for columns in [_form(row, options)] if columns is not None)
    _check_columns(rows, options, name)
    if not found:
        raise DataError(_nothing_found(rows, options, name))
    (format, columns), count = found.most_common(1)[0]
    if options.format != "auto":
        return Form(format, columns, "as given")
    if format in OWN_STEPS and options.step_splitter != "auto":
        raise ConfigError(f"step_splitter: {name} has format {format}, whose rows name their steps; leave it out")
    looked = f"{count} of the first {len(rows)} rows have" if len(rows) > 1 else "the only row has"
    return Form(format, columns, f"recognised: {looked} {_LOOKS[format]}")


def _form(row: Any, options: PrepareOptions) -> tuple[str, Columns] | None:
    """Format and columns of one row, None where it tells nothing."""
    if isinstance(row, str):
        fits = options.format == "implicit_cot" or (options.format == "auto" and "||" in row)
        return ("implicit_cot", Columns("", None, None, None)) if fits else None
    if not isinstance(row, Mapping):
        return None
    pair = next((pair for pair in TEXT_COLUMNS if all(row.get(name) is not None for name in pair)), None)
    question = options.question_column or (pair[0] if pair else "question")
    answer = options.answer_column or (pair[1] if pair else "answer")
    response = options.response_column
    if options.format in ("gsm8k", "gsm8k_socratic"):
        return options.format, Columns(question, answer, response, options.ground_truth_column or "ground_truth")
    if response is None and options.format != "columns":
        response = _response_column(row)
    if options.format == "teacher":
        response = response or RESPONSE_COLUMN
    if options.format == "auto" and (row.get(question) is None or row.get(response or answer) is None):
        return None
    format = options.format
    if format == "auto":
        text = row[response or answer]
        named = options.question_column or options.response_column
        format = "teacher" if response and not named else "columns"
        if response is None and isinstance(text, str) and is_gsm8k(text):
            format = "gsm8k_socratic" if is_socratic(text) else "gsm8k"
    return format, Columns(question, answer, response or answer, options.ground_truth_column or "ground_truth")


def _response_column(row: Mapping[str, Any]) -> str | None:
    if row.get(RESPONSE_COLUMN) is not None:
        return RESPONSE_COLUMN
    names = [name for name in row if isinstance(name, str) and (name == "response" or name.endswith("_response"))]
    return names[0] if len(names) == 1 and row[names[0]] is not None else None


def _check_columns(rows: Sequence[Any], options: PrepareOptions, name: str) -> None:
    objects = [row for row in rows if isinstance(row, Mapping)]
    for which in ("question_column", "answer_column", "response_column", "ground_truth_column"):
        column = getattr(options, which)
        if column is not None and objects and not any(column in row for row in objects):
            found = listed_columns(objects[0])
            raise DataError(f"{name}: none of the first rows has the column {which} names, {column!r} (found: {found})")


def _nothing_found(rows: Sequence[Any], options: PrepareOptions, name: str) -> str:
    objects = [row for row in rows if isinstance(row, Mapping)]
    if not objects:
        kind = "lines of text without '||'" if isinstance(rows[0], str) else f"JSON of type {type(rows[0]).__name__}"
        return f"{name}: the rows are {kind}; JSON objects, or lines 'question||steps #### answer', are expected"
    if any(row.get("messages") is not None for row in objects):
        return f"{name}: the rows are chats already ('messages'); stepjepa train reads them as they are"
    return (
        f"{name}: format not recognised (columns found: {listed_columns(objects[0])}); name the columns with "
        "--question_column and --response_column, or give --format"
    )
