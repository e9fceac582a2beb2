"""Rows of files: JSONL, CSV, Parquet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepjepa.data.chat import RowError
from stepjepa.data.lines import check_unchanged, csv_rows, file_state, line_row, line_text, read_lines
from stepjepa.errors import DataError

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
    read = {".csv": _csv, ".parquet": parquet_rows}.get(path.suffix.lower(), _json_lines)
    try:
        before = file_state(path)
        try:
            yield from read(path, part)
        except DataError:
            check_unchanged(path, before)  # what is being written looks broken
            raise
        check_unchanged(path, before)
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
                row = line_row(text, raw)
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


def parquet_rows(path: Path, part: Part = EVERY_ROW) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number, row) of a Parquet file's rows, a few at a time; row groups before the first one are not read.

    Raises:
        DataError: it is no Parquet file, or a damaged one.
    """
    import pyarrow.parquet

    number = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            groups = range(file.num_row_groups)
            for group in groups:
                rows = file.metadata.row_group(group).num_rows
                if number + rows > part.start:
                    groups = groups[group:]
                    break
                number += rows
            else:
                return
            for batch in file.iter_batches(batch_size=256, row_groups=list(groups)):
                for row in batch.to_pylist():
                    if number in part:
                        yield number, row
                    number += 1
    except Exception as error:  # pyarrow raises its own errors and those of decoding
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"{path}: cannot be read behind row {number} ({why}); copy or write it again") from None
