"""Examples of data sets that are never read as a whole: rows as they come, over and over, shuffled within a window.

Nothing is counted before: a pass over the data is known to be over when its last row came. The state of a stream is a few
numbers (`StreamStart`), so that a resumed run continues after reading one window again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from stepjepa.config.option import Names
from stepjepa.data.encode import CHUNK_ROWS, Encoded, PlacedRow
from stepjepa.data.options import ReadingOptions
from stepjepa.data.report import DataReport
from stepjepa.data.sources import RowShare, RowSource
from stepjepa.data.types import Example
from stepjepa.errors import DataError, no_rows
from stepjepa.utils.parallel import mapped, twice

_NAME = Names(ReadingOptions)


class Cursor(NamedTuple):
    """How far one group of data sets was read: `passes` times, now its data set `member` up to row `start`; `taken` rows in
    all."""

    passes: int = 0
    member: int = 0
    start: int = 0
    taken: int = 0


class StreamStart(NamedTuple):
    """Where window number `window` begins: the cursors of every group before its first chunk, of which `dropped` examples
    belong to the window before; and the records of the reports on what was read before that chunk."""

    window: int
    cursors: tuple[Cursor, ...]
    dropped: int
    counted: tuple[dict[str, Any], ...] = ()

    @classmethod
    def of_record(cls, record: Sequence[Any]) -> StreamStart:
        """What `list` of a start, written as JSON, holds."""
        window, cursors, dropped, *counted = record
        reports = tuple(counted[0]) if counted else ()  # version 0.2.0 had none
        return cls(int(window), tuple(Cursor(*map(int, cursor)) for cursor in cursors), int(dropped), reports)


class Streamed(NamedTuple):
    """One example of a stream: its data set's number, how often that was read before, and its row's number times 2^16 plus
    its own among those of the row."""

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


@dataclass(frozen=True)
class RowStream:
    """The rows of several data sets without end.

    Attributes:
        weights: rows are taken in this proportion; None reads one data set after the other.
        shard, shards: only those rows whose number leaves the remainder `shard` are read.
    """

    sources: Sequence[RowSource]
    weights: Sequence[float] | None = None
    shard: int = 0
    shards: int = 1

    @property
    def groups(self) -> list[list[int]]:
        """The data sets that are read one after the other."""
        numbers = range(len(self.sources))
        return [list(numbers)] if self.weights is None else [[number] for number in numbers]

    def start(self) -> StreamStart:
        """The very beginning."""
        return StreamStart(0, tuple(Cursor() for _ in self.groups), 0)

    def chunks(self, size: int, cursors: Sequence[Cursor]) -> Iterator[tuple[tuple[Cursor, ...], bool, list[_Row]]]:
        """Rows, `size` at a time or fewer where a pass over all groups ends, with the cursors before and whether it does."""
        weights = self.weights or [1.0]
        total = sum(weights)
        shares = [weight / total for weight in weights]
        cursors = list(cursors)
        readers = [self._read(group, cursor) for group, cursor in zip(self.groups, cursors, strict=True)]
        while True:
            before = tuple(cursors)
            rows: list[_Row] = []
            ended = False
            while len(rows) < size and not ended:
                drawn = sum(cursor.taken for cursor in cursors) + 1
                # The group that is furthest below its share.
                lags = [share * drawn - cursor.taken for share, cursor in zip(shares, cursors, strict=True)]
                chosen = lags.index(max(lags))
                row, cursors[chosen] = next(readers[chosen])
                rows.append(row)
                ended = all(now.passes > then.passes for now, then in zip(cursors, before, strict=True))
            yield before, ended, rows

    def _read(self, group: list[int], cursor: Cursor) -> Iterator[tuple[_Row, Cursor]]:
        """The rows of a group, each with the cursor after it."""
        passes, member, start, taken = cursor
        # The row that was read last, its data set and the next row: not given yet, as it may end the pass.
        last: tuple[_Row, int, int] | None = None
        while True:
            source = group[member]
            for number, row in self.sources[source].rows(RowShare(start, self.shard, self.shards)):
                if last is not None:
                    yield last[0], Cursor(passes, *last[1:], taken)
                taken += 1
                last = _Row(source, passes, number, row), member, number + 1
            member = member + 1
            start = 0
            if member < len(group):
                continue
            if taken == cursor.taken and cursor.start == cursor.member == 0:
                names = ", ".join(self.sources[number].name for number in group)
                if self.shards == 1:
                    raise no_rows(names)
                raise DataError(
                    f"{names}: process {self.shard + 1} of {self.shards} finds no row to read; leave out "
                    f"--{_NAME.streaming}"
                )
            passes = passes + 1
            member = 0
            if last is not None:
                yield last[0], Cursor(passes, taken=taken)
            last = None


def _encode(
    encoders: Sequence[Callable[[Sequence[PlacedRow]], Encoded]], parts: dict[int, list[PlacedRow]]
) -> dict[int, Encoded]:
    """A chunk whose rows come from several data sets."""
    return {source: encoders[source](rows) for source, rows in parts.items()}


class ExampleStream:
    """Windows of examples, encoded ahead of what is taken (see `mapped`) by an encoder for every data set.

    Attributes:
        reports: on what was read so far, for every data set; what is read again counts again.
    """

    def __init__(self, rows: RowStream, encoders: Sequence[Any], processes: int = 1):
        self.rows, self.encoders, self.processes = rows, encoders, processes
        self.reports = [DataReport(source.name) for source in rows.sources]

    def part(self, shard: int, shards: int) -> ExampleStream:
        """The examples of the rows whose number leaves the remainder `shard`; its reports are those of all."""
        part = copy(self)
        part.rows = replace(self.rows, shard=shard, shards=shards)
        return part

    def windows(self, size: int, start: StreamStart | None = None, step: int = 1) -> Iterator[Window]:
        """`size` examples at a time, in the rows' order, with where they begin; where a pass over the data ends, the window
        ends with the multiple of `step` examples that is reached next.

        Raises:
            DataError: the data cannot be read, or a complete pass gave no example.
        """
        window, cursors, dropped, records = start or self.rows.start()
        counted = list(map(DataReport.from_dict, records)) or [DataReport(one.name) for one in self.rows.sources]
        held: list[Streamed] = []  # of the window that is being filled
        begin, most = (cursors, dropped, records), size
        for before, ended, reports, chunk in self._encoded(min(CHUNK_ROWS, size), cursors):
            used, dropped = dropped, 0
            records = tuple(report.to_dict() for report in counted)
            for source, report in reports.items():
                counted[source].add(report)
                self.reports[source].add(report)
            if not held:
                begin = before, used, records
            while there := len(held) + len(chunk) - used:
                if ended:
                    most = min(most, -(-there // step) * step)
                if there < most:
                    break
                taken = most - len(held)
                yield StreamStart(window, *begin), held + chunk[used : used + taken]
                window, used, held, most = window + 1, used + taken, [], size
                begin = before, used, records
            held += chunk[used:]
            if all(cursor.passes for cursor in before) and not any(report.examples for report in self.reports):
                max(self.reports, key=lambda report: report.rows_read).require(False)

    def _encoded(
        self, rows: int, cursors: Sequence[Cursor]
    ) -> Iterator[tuple[tuple[Cursor, ...], bool, dict[int, DataReport], list[Streamed]]]:
        """The examples of `RowStream.chunks`, in the rows' order, with the reports on them by the data set's number."""

        def by_source(chunk: list[_Row]) -> dict[int, list[PlacedRow]]:
            parts: dict[int, list[PlacedRow]] = {}
            for source, _, number, value in chunk:
                parts.setdefault(source, []).append((self.rows.sources[source].place(number), value))
            return parts

        ahead, chunks = twice(self.rows.chunks(rows, cursors))
        encoder, tasks = partial(_encode, self.encoders), (by_source(chunk) for *_, chunk in ahead)
        encoded = mapped(encoder, tasks, self.processes, _NAME.dataset_num_proc)
        for parts, (before, ended, chunk) in zip(encoded, chunks, strict=False):
            counts = {source: iter(part.counts) for source, part in parts.items()}
            stores = {source: iter(part.store) for source, part in parts.items()}
            examples = [
                Streamed(next(stores[source]), source, passes, number << 16 | index)
                for source, passes, number, _ in chunk
                for index in range(next(counts[source]))
            ]
            yield before, ended, {source: part.report for source, part in parts.items()}, examples
