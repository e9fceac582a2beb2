"""Raw rows in blocks, from a place on that an interrupted run may go on from."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from stepjepa.data.chat import RowError
from stepjepa.data.files import FILE_SUFFIXES, JSON_SUFFIXES
from stepjepa.data.lines import check_unchanged, csv_rows, file_state, read_lines, skip_line
from stepjepa.data.prepare_options import PrepareOptions
from stepjepa.data.prepare_recognise import ROWS_LOOKED_AT
from stepjepa.data.prepare_rows import LINE_BYTES, SHOWN_BYTES, Dropped, RawRow, parse
from stepjepa.data.sources import RowSource
from stepjepa.errors import DataError

_BLOCK_ROWS = 500
_BLOCK_BYTES = 2**20


class Position(NamedTuple):
    """How far a source is read: bytes of a file of lines, or rows; and the number of the last line or row."""

    offset: int = 0
    number: int = 0


class Block(NamedTuple):
    """Rows that are prepared together, and the position behind them."""

    rows: list[RawRow]
    end: Position


class RawInput:
    """A source of raw rows.

    Args:
        source: a file (JSONL, text, CSV, Parquet) or anything else that `RowSource` takes.

    Attributes:
        name: for messages.
        path: of the file, None for other sources.
        text_lines: whether rows are lines of text.

    Raises:
        DataError: nothing that can be read, or one JSON array.
    """

    def __init__(self, source: Any, options: PrepareOptions):
        is_name = isinstance(source, (str, os.PathLike))
        if isinstance(source, Iterator):  # read twice: to recognise the format, and to prepare
            source = list(source)
        self.name = str(source) if is_name else type(source).__name__
        self.path: Path | None = Path(os.path.expanduser(source)) if is_name else None
        self._source: RowSource | None = None
        self._kind, self.text_lines = "rows", False
        try:
            if self.path is not None and not self.path.is_file():
                self.path = None
            self._before = None if self.path is None else file_state(self.path)
            if self.path is not None:
                self._kind = self._kind_of(self.path, options)
                self.text_lines = self._kind == "text"
        except OSError as error:
            raise DataError(f"{self.name[:200]}: cannot be read ({error.strerror or error})") from None
        if self._kind == "rows":
            self._source = RowSource(source, options.dataset_split)

    def _kind_of(self, path: Path, options: PrepareOptions) -> str:
        suffix = path.suffix.lower()
        if options.format == "implicit_cot":
            return "text"
        if suffix in FILE_SUFFIXES - JSON_SUFFIXES:
            return suffix[1:] if suffix == ".csv" else "rows"
        with open(path, "rb") as file:
            starts = (raw.lstrip(b"\xef\xbb\xbf \t\r\n") for raw in read_lines(file, 4096))
            first = next(filter(None, starts), b"")
        if first[:1] == b"[":
            raise DataError(f"{path}: this looks like one JSON array; write one object per line (JSONL)")
        return "json" if suffix in JSON_SUFFIXES or first[:1] == b"{" else "text"

    def place(self, number: int) -> str:
        """Where a row stands, in words."""
        return f"{self.name} {'line' if self._source is None else 'row'} {number}"

    def identity(self) -> dict[str, Any]:
        """What an interrupted run must find unchanged."""
        if self._before is None:
            return {"name": self.name}
        return {"name": self.name, "size": self._before.size, "modified": self._before.modified}

    def first_rows(self) -> list[Any]:
        """The first rows that can be read, for recognising their format.

        Raises:
            DataError: there is none.
        """
        found: list[Any] = []
        wrong: Dropped | None = None
        looked_at = 0
        for block in islice(self.blocks(), 2):
            looked_at += len(block.rows)
            for number, raw in block.rows:
                try:
                    row = parse(raw, self.text_lines) if isinstance(raw, bytes) else raw
                except RowError as error:
                    row = Dropped(number, error.reason, str(error), "")
                if isinstance(row, Dropped):
                    wrong = wrong or row
                elif row is not None:
                    found.append(row)
        if found:
            return found[:ROWS_LOOKED_AT]
        if wrong is not None:
            which = f"none of the first {looked_at:,} lines can" if looked_at > 1 else "the only line cannot"
            raise DataError(f"{self.place(wrong.number)}: {wrong.what} ({which} be read)")
        raise DataError(f"{self.name}: the file or data set is empty; it needs at least one row")

    def blocks(self, start: Position | None = None) -> Iterator[Block]:
        """The rows from a position on.

        Raises:
            DataError: the file cannot be read to its end, or is no longer what it was.
        """
        try:
            yield from self._blocks(start or Position())
        except DataError:
            self.check_unchanged()  # what is being written looks broken
            raise
        except OSError as error:
            raise DataError(f"{self.name}: cannot be read ({error.strerror or error})") from None
        self.check_unchanged()

    def check_unchanged(self) -> None:
        """Refuse a file that has changed since it was opened (`DataError`)."""
        if self.path is not None and self._before is not None:
            check_unchanged(self.path, self._before)

    def _blocks(self, start: Position) -> Iterator[Block]:
        rows: list[RawRow] = []
        end, size = start, 0
        for row, length, end in self._rows(start):
            rows.append(row)
            size += length
            if len(rows) == _BLOCK_ROWS or size >= _BLOCK_BYTES:
                yield Block(rows, end)
                rows, size = [], 0
        if rows:
            yield Block(rows, end)

    def _rows(self, start: Position) -> Iterator[tuple[RawRow, int, Position]]:
        """A row, about how many bytes it has, and the position behind it."""
        if self._kind in ("json", "text"):
            yield from self._lines(start)
        else:
            numbered = self._csv_rows() if self._kind == "csv" else iter(self._source or ())
            for count, (number, row) in enumerate(islice(numbered, start.offset, None), start.offset + 1):
                yield (number, row), 1000, Position(count, number)

    def _lines(self, start: Position) -> Iterator[tuple[RawRow, int, Position]]:
        assert self.path is not None
        offset, number = start
        with open(self.path, "rb") as file:
            file.seek(offset)
            while raw := file.readline(LINE_BYTES + 1):
                number += 1
                offset += len(raw)
                row: RawRow = number, raw
                if len(raw) > LINE_BYTES and not raw.endswith(b"\n"):
                    offset += skip_line(file)
                    text = raw[:SHOWN_BYTES].decode("utf-8", "replace")
                    what = f"the line has more than {LINE_BYTES >> 20} MiB"
                    row = number, Dropped(number, "line_too_long", what, text)
                yield row, len(raw), Position(offset, number)

    def _csv_rows(self) -> Iterator[RawRow]:
        assert self.path is not None
        for number, row in csv_rows(self.path, LINE_BYTES):
            yield number, Dropped(number, row.reason, str(row), "") if isinstance(row, RowError) else row
