"""Rows of files: JSONL, CSV, Parquet."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from stepjepa.errors import DataError, RowError
from stepjepa.utils.jsonl import MAX_LINE_BYTES, line_text, line_value, read_lines, unchanged

JSON_SUFFIXES = {".jsonl", ".json", ".ndjson"}
FILE_SUFFIXES = JSON_SUFFIXES | {".parquet", ".csv"}


@dataclass(frozen=True)
class Part:
    """The rows with a number of `start` or more that leaves the remainder `shard` when divided by `shards`."""

    start: int = 0
    shard: int = 0
    shards: int = 1

    def __contains__(self, number: int) -> bool:
        return number >= self.start and number % self.shards == self.shard


EVERY_ROW = Part()


def file_rows(path: Path, part: Part = EVERY_ROW) -> Iterator[tuple[int, Any]]:
    """(number, row) of a file that must stay as it is meanwhile. Lines count from 1, rows of a Parquet file from 0.

    Raises:
        DataError: the file cannot be read, is broken, or changes.
    """
    read = {".csv": _csv, ".parquet": _parquet}.get(path.suffix.lower(), _json_lines)
    try:
        with unchanged(path):
            yield from read(path, part)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from None


def _json_lines(path: Path, part: Part) -> Iterator[tuple[int, Any]]:
    first = True
    with open(path, "rb") as file:
        for number, raw in enumerate(read_lines(file), 1):
            if not first and number not in part:
                continue
            try:
                text = line_text(raw)
                if not text:
                    continue
                if first and text[0] == "[":
                    raise RowError("json_array", "this looks like one JSON array; write one object per line (JSONL)")
                first = False
                if number not in part:
                    continue
                row = line_value(text, raw)
            except RowError as error:
                raise DataError(f"{path} line {number}: {error}") from None
            yield number, row


def _csv(path: Path, part: Part) -> Iterator[tuple[int, Any]]:
    for number, row in csv_rows(path):
        if number not in part:
            continue
        if isinstance(row, RowError):
            raise DataError(f"{path} line {number}: {row}")
        yield number, row


def _parquet(path: Path, part: Part) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows of a Parquet file, a few at a time; row groups before the first one are not read."""
    import pyarrow.parquet

    number = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            groups = list(range(file.num_row_groups))
            while groups and number + (rows := file.metadata.row_group(groups[0]).num_rows) <= part.start:
                number += rows
                groups = groups[1:]
            for batch in file.iter_batches(batch_size=256, row_groups=groups) if groups else ():
                for row in batch.to_pylist():
                    if number in part:
                        yield number, row
                    number += 1
    except Exception as error:  # pyarrow raises its own errors and those of decoding
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"{path}: cannot be read behind row {number} ({why}); copy or write it again") from None


def csv_rows(path: Path, limit: int = MAX_LINE_BYTES) -> Iterator[tuple[int, dict[str, str] | RowError]]:
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
                twice = [name for name in header if header.count(name) > 1]
                if twice:
                    raise DataError(f"{path} line {start}: two columns are called {twice[0][:40]!r}; rename one")
    if not header:
        raise DataError(f"{path}: the file is empty; a CSV file begins with the names of its columns")


def _csv_lines(file: BinaryIO, path: Path, limit: int) -> Iterator[str]:
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
