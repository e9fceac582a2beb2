"""Lines of files that may be damaged: cut off, not UTF-8, endless, or written to while they are read.

A line is read as bytes, so that one bad line neither stops the reading nor shifts the numbers of those behind it, and never
beyond a limit, so that a file without line ends cannot fill the memory.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

from stepjepa.data.chat import RowError
from stepjepa.errors import DataError
from stepjepa.utils.files import parse_json

MAX_LINE_BYTES = 64 * 2**20  # a longer line is refused before it is read whole
_SKIPPED_AT_ONCE = 2**20


class FileState(NamedTuple):
    """What tells that a file has changed: its inode, size in bytes, and time of change in nanoseconds."""

    inode: int
    size: int
    modified: int


def file_state(path: str | os.PathLike[str]) -> FileState:
    """The state of the file that `path` names now."""
    info = os.stat(path)
    return FileState(info.st_ino, info.st_size, info.st_mtime_ns)


def check_unchanged(path: str | os.PathLike[str], before: FileState) -> None:
    """Refuse a file that is no longer in the state `before`.

    Raises:
        DataError: it was written to, replaced or removed since.
    """
    try:
        now = file_state(path)
    except FileNotFoundError:
        raise DataError(f"{path}: the file was removed while it was read; give a file that stays") from None
    if now == before:
        return
    size = f" ({before.size:,} bytes before, {now.size:,} now)" if now.size != before.size else ""
    raise DataError(f"{path}: the file changed while it was read{size}; start again when nothing writes to it")


def read_lines(file: BinaryIO, limit: int = MAX_LINE_BYTES) -> Iterator[bytes]:
    """The lines of a file from where it stands, with their line ends.

    Of a line with more than `limit` bytes the first ``limit + 1`` come; the rest is passed over when the next line is asked
    for.
    """
    while raw := file.readline(limit + 1):
        yield raw
        if len(raw) > limit and not raw.endswith(b"\n"):
            skip_line(file)


def skip_line(file: BinaryIO) -> int:
    """Pass over the rest of a line; returns its bytes."""
    skipped = 0
    while raw := file.readline(_SKIPPED_AT_ONCE):
        skipped += len(raw)
        if raw.endswith(b"\n"):
            break
    return skipped


def line_text(raw: bytes, limit: int = MAX_LINE_BYTES) -> str:
    """The text of a line as `read_lines` gives it, without surrounding white space and byte-order mark.

    Raises:
        RowError: ``line_too_long``, ``not_utf8``, or ``truncated_line`` where a file ends inside a character.
    """
    if len(raw) > limit and not raw.endswith(b"\n"):
        size = f"{limit >> 20} MiB" if limit >= 2**20 else f"{limit} bytes"
        raise RowError("line_too_long", f"the line has more than {size}; one row a line is expected")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.reason == "unexpected end of data" and error.end == len(raw):
            raise _cut_off("inside a character") from None
        raise RowError("not_utf8", f"not UTF-8 text ({error.reason}); save the file as UTF-8") from None
    return text.removeprefix("\ufeff").strip()


def line_row(text: str, raw: bytes) -> Any:
    """The JSON value that a line holds; `text` is `line_text` of `raw`.

    Raises:
        RowError: ``broken_json``, or ``truncated_line`` where the file ends in the middle of the object.
    """
    try:
        return parse_json(text)
    except json.JSONDecodeError as error:
        if not raw.endswith(b"\n") and text[:1] == "{" and text[-1:] != "}":
            raise _cut_off(f"at character {len(text)} of it") from None
        why = f"{error.msg.removesuffix(' at')} at character {error.pos + 1}"
    except ValueError as error:
        why = str(error)
    raise RowError("broken_json", f"broken JSON ({why}); one JSON object per line is expected") from None


def _cut_off(where: str) -> RowError:
    return RowError(
        "truncated_line",
        f"the file ends in the middle of this line ({where}): it is cut off; copy it again, or remove the line",
    )


CsvRow = tuple[int, "dict[str, str] | RowError"]


def csv_rows(path: str | os.PathLike[str], limit: int = MAX_LINE_BYTES) -> Iterator[CsvRow]:
    """(line on which it begins, row or what is wrong with it) of every row of a CSV file; all values are text.

    Raises:
        DataError: a header that is missing, broken or names a column twice, or a line of more than `limit` bytes.
        OSError: the file cannot be read.
    """
    csv.field_size_limit(max(csv.field_size_limit(), limit))  # the module's own limit is shorter than many answers
    header: list[str] = []
    with open(path, "rb") as file:
        reader = csv.reader(_csv_lines(file, path, limit), strict=True)
        while True:
            start = reader.line_num + 1
            row: dict[str, str] | RowError
            try:
                fields = next(reader)
                row = _csv_row(fields, header)
            except StopIteration:
                break
            except csv.Error as error:
                row = RowError("broken_csv", f"broken CSV ({error}); a quote may lack its partner")
            if header:
                if row:
                    yield start, row
            elif isinstance(row, RowError):
                raise DataError(f"{path} line {start}: {row}")
            elif "".join(fields).strip():
                header = fields
                if len(set(header)) < len(header):
                    twice = next(name for name in header if header.count(name) > 1)
                    raise DataError(f"{path} line {start}: two columns are called {twice[:40]!r}; rename one")
    if not header:
        raise DataError(f"{path}: the file is empty; a CSV file begins with the names of its columns")


def _csv_lines(file: BinaryIO, path: str | os.PathLike[str], limit: int) -> Iterator[str]:
    for number, raw in enumerate(read_lines(file, limit), 1):
        if len(raw) > limit:
            try:
                line_text(raw, limit)
            except RowError as error:
                raise DataError(f"{path} line {number}: {error}") from None
        text = raw.decode("utf-8", "surrogateescape")  # what is not UTF-8 is found with its row
        yield text.removeprefix("\ufeff") if number == 1 else text


def _csv_row(fields: list[str], header: list[str]) -> dict[str, str] | RowError:
    """A row; {} for a blank line and for the header."""
    text = "".join(fields)
    try:
        text.encode()
    except UnicodeEncodeError:
        return RowError("not_utf8", "not UTF-8 text; save the file as UTF-8")
    if not header or (not text.strip() and len(fields) < len(header)):
        return {}
    if len(fields) != len(header):
        return RowError("broken_csv", f"the row has {len(fields)} fields, the header names {len(header)} columns")
    return dict(zip(header, fields, strict=True))
