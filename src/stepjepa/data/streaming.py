"""Streams of examples from data sets that are never completely in memory: row by row, pass after pass, shuffled within a
window.

The number of rows is unknown: a pass over the data ends after its last row. The state of a stream is a few numbers
(`StreamStart`), so that a resumed run only has to read one window again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from stepjepa.config.option import Names
from stepjepa.data.encode import CHUNK_ROWS, Encoded, PlacedRow
from stepjepa.data.options import ReadingOptions
from stepjepa.data.report import DataReport
from stepjepa.data.sources import RowShare, RowSource
from stepjepa.data.types import Example
from stepjepa.errors import DataError
from stepjepa.utils.parallel import mapped

_NAME = Names(ReadingOptions)


class Cursor(NamedTuple):
    """The position in a group of data sets: `passes` complete passes, then its data set `member` up to row `start`; `rows`
    rows in all."""

    passes: int = 0
    member: int = 0
    start: int = 0
    rows: int = 0


class StreamStart(NamedTuple):
    """The start of window number `window`: the cursors of all groups before its first chunk, whose first `dropped` examples
    belong to the window before; and the records of the reports on all chunks before."""

    window: int
    cursors: tuple[Cursor, ...]
    dropped: int
    counted: tuple[dict[str, Any], ...] = ()

    @classmethod
    def of_record(cls, record: Sequence[Any]) -> StreamStart:
        """Return the start that a record holds: the list of its fields, after a round trip through JSON."""
        window, cursors, dropped, *counted = record
        # Version 0.2.0 wrote no reports.
        reports = map(tuple, counted)
        positions = tuple(Cursor(*map(int, cursor)) for cursor in cursors)
        return cls(int(window), positions, int(dropped), *reports)


class Streamed(NamedTuple):
    """An example of a stream: the number of its data set, the number of earlier passes over it, and the number of its row
    times 2^16 plus its index among the examples of the row."""

    example: Example
    source: int
    passes: int
    row: int


Window = tuple[StreamStart, list[Streamed]]


class _Row(NamedTuple):
    source: int
    passes: int
    number: int
    value: Any


# The cursors before a chunk of rows, whether a pass over all groups ends with it, and its rows.
_Chunk = tuple[tuple[Cursor, ...], bool, list[_Row]]


@dataclass(frozen=True)
class RowStream:
    """An endless stream of the rows of several data sets.

    Attributes:
        weights: proportions of the data sets; None reads one data set after the other.
        shard, shards: only rows whose number leaves the remainder `shard` are read.
    """

    sources: Sequence[RowSource]
    weights: Sequence[float] | None = None
    shard: int = 0
    shards: int = 1

    @property
    def groups(self) -> list[list[int]]:
        """The groups of data sets; a group is read one data set after the other."""
        numbers = range(len(self.sources))
        return [list(numbers)] if self.weights is None else [[number] for number in numbers]

    def start(self) -> StreamStart:
        """Return the start of the first window."""
        return StreamStart(0, tuple(Cursor() for _ in self.groups), 0)

    def chunks(self, size: int, cursors: Sequence[Cursor]) -> Iterator[_Chunk]:
        """Yield chunks of `size` rows, or fewer at the end of a pass over all groups."""
        weights = self.weights or [1.0]
        total = sum(weights)
        shares = [weight / total for weight in weights]
        cursors = list(cursors)
        readers = [
            self._read(group, cursor) for group, cursor in zip(self.groups, cursors, strict=True)
        ]
        while True:
            before = tuple(cursors)
            rows: list[_Row] = []
            ended = False
            while len(rows) < size and not ended:
                drawn = sum(cursor.rows for cursor in cursors) + 1
                # The group furthest below its share comes next. No random number is drawn, so a resumed run repeats the
                # order.
                lags = [
                    share * drawn - cursor.rows
                    for share, cursor in zip(shares, cursors, strict=True)
                ]
                chosen = lags.index(max(lags))
                row, cursors[chosen] = next(readers[chosen])
                rows.append(row)
                ended = all(
                    now.passes > then.passes for now, then in zip(cursors, before, strict=True)
                )
            yield before, ended, rows

    def _read(self, group: list[int], cursor: Cursor) -> Iterator[tuple[_Row, Cursor]]:
        """Yield the rows of a group, each with the cursor after it."""
        passes, member, start, count = cursor
        # The last row, its data set and the number of the next row. A row is yielded one row late, when it is known whether
        # it ended the pass.
        last: tuple[_Row, int, int] | None = None
        while True:
            source = group[member]
            for number, row in self.sources[source].rows(RowShare(start, self.shard, self.shards)):
                if last is not None:
                    yield last[0], Cursor(passes, *last[1:], count)
                count += 1
                last = _Row(source, passes, number, row), member, number + 1
            member = member + 1
            start = 0
            if member < len(group):
                continue
            # Without any row, the passes would go on forever.
            if count == cursor.rows and cursor.start == cursor.member == 0:
                names = ", ".join(self.sources[number].name for number in group)
                raise DataError(
                    f"{names}: process {self.shard + 1} of {self.shards} finds no row to read; leave out "
                    f"--{_NAME.streaming}"
                )
            passes = passes + 1
            member = 0
            if last is not None:
                yield last[0], Cursor(passes, rows=count)
            last = None


def _encode(
    encoders: Sequence[Callable[[Sequence[PlacedRow]], Encoded]], parts: dict[int, list[PlacedRow]]
) -> dict[int, Encoded]:
    """Encode a chunk whose rows come from several data sets."""
    return {source: encoders[source](rows) for source, rows in parts.items()}


class ExampleStream:
    """Windows of examples, encoded in advance (see `mapped`) by an encoder for every data set.

    Attributes:
        reports: for every data set, the report on all rows so far; a further pass counts them again.
    """

    def __init__(self, rows: RowStream, encoders: Sequence[Any], processes: int = 1):
        self.rows, self.encoders, self.processes = rows, encoders, processes
        self.reports = [DataReport(source.name) for source in rows.sources]

    def windows(
        self, size: int, start: StreamStart | None = None, step: int = 1
    ) -> Iterator[Window]:
        """Yield windows of `size` examples, in the order of the rows, each with its start. At the end of a pass over the
        data, the window ends with the next multiple of `step` examples.

        For a later start, `reports` must contain the counts of the rows before it.

        Raises:
            DataError: the data cannot be read, or a complete pass has no example.
        """
        begin = start or self.rows.start()
        used = begin.dropped
        # The examples of the unfinished window, which is complete with `most` examples.
        held: list[Streamed] = []
        most = size
        for before, ended, reports, chunk in self._encoded(min(CHUNK_ROWS, size), begin.cursors):
            records = tuple(report.to_dict() for report in self.reports)
            for source, report in reports.items():
                self.reports[source].add(report)
            if not held:
                begin = StreamStart(begin.window, before, used, records)
            # A chunk may fill the window, and then further windows.
            while available := len(held) + len(chunk) - used:
                if ended:
                    most = min(most, -(-available // step) * step)
                if available < most:
                    break
                filling = most - len(held)
                yield begin, held + chunk[used : used + filling]
                used, held, most = used + filling, [], size
                begin = StreamStart(begin.window + 1, before, used, records)
            held += chunk[used:]
            used = 0
            # If every group was read completely and no row became an example, reading on would not help.
            if all(cursor.passes for cursor in before) and not any(
                report.examples for report in self.reports
            ):
                max(self.reports, key=lambda report: report.rows_read).require(False)

    def _encoded(
        self, rows: int, cursors: Sequence[Cursor]
    ) -> Iterator[tuple[tuple[Cursor, ...], bool, dict[int, DataReport], list[Streamed]]]:
        """Yield as `RowStream.chunks` does, with the reports by number of the data set, and examples in place of rows."""

        # Workers receive the values of the rows; their numbers and passes stay here.
        waiting = deque[_Chunk]()

        def by_source() -> Iterator[dict[int, list[PlacedRow]]]:
            for chunk in self.rows.chunks(rows, cursors):
                waiting.append(chunk)
                parts: dict[int, list[PlacedRow]] = {}
                for source, _, number, value in chunk[-1]:
                    place = self.rows.sources[source].place(number)
                    parts.setdefault(source, []).append((place, value))
                yield parts

        encode = partial(_encode, self.encoders)
        # Each data set's part of a chunk was encoded separately: these iterators restore the order of the rows.
        for parts in mapped(encode, by_source(), self.processes, _NAME.dataset_num_proc):
            before, ended, chunk = waiting.popleft()
            counts = {source: iter(part.counts) for source, part in parts.items()}
            stores = {source: iter(part.store) for source, part in parts.items()}
            examples = [
                Streamed(next(stores[source]), source, passes, number << 16 | index)
                for source, passes, number, _ in chunk
                for index in range(next(counts[source]))
            ]
            yield before, ended, {source: part.report for source, part in parts.items()}, examples
