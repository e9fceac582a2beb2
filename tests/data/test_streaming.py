"""Streams of examples: order, proportions, shards, windows that can be gone on from."""

import json
from itertools import islice

import numpy as np
import pytest

from stepjepa.data.dataset import Example, ExampleStore
from stepjepa.data.encode import Encoded
from stepjepa.data.report import DataReport
from stepjepa.data.sources import RowSource
from stepjepa.data.streaming import ExampleStream, RowStream, StreamStart
from stepjepa.errors import DataError


class Encoder:
    """A row n becomes n % 3 examples of the tokens (n, index)."""

    name = "rows"

    def __call__(self, rows):
        counts = [row["n"] % 3 for _, row in rows]
        examples = [
            Example(np.array([row["n"], index], np.int32), ((1, 2),))
            for (_, row), count in zip(rows, counts, strict=True)
            for index in range(count)
        ]
        report = DataReport(self.name, rows_read=len(rows), examples=len(examples))
        report.rows_skipped["nothing_to_learn"] = counts.count(0)
        report.first_skipped = {"nothing_to_learn": "row 0: it is empty"}
        return Encoded(counts, ExampleStore.of(examples), report, b"")


def rows(first, stop):
    return RowSource([{"n": number} for number in range(first, stop)])


def stream(sources, weights=None, shard=0, shards=1, processes=1):
    return ExampleStream(RowStream(sources, weights, shard, shards), [Encoder() for _ in sources], processes)


def tokens(window):
    return [tuple(one.example.trunk.tolist()) for one in window]


@pytest.mark.parametrize(
    ("weights", "size", "processes"),
    [*((weights, size, 1) for weights in (None, [0.7, 0.3]) for size in (1, 7, 50)), ([0.7, 0.3], 7, 2)],
)
def test_every_window_can_be_resumed_from(weights, size, processes, monkeypatch):
    monkeypatch.setattr("stepjepa.data.streaming.CHUNK_ROWS", 5)
    sources = [rows(0, 13), rows(50, 54)]
    whole = list(islice(stream(sources, weights, processes=processes).windows(size, None, 2), 9))
    assert all(len(window) == size or len(window) < size and len(window) % 2 == 0 for _, window in whole)
    for index, (start, _) in enumerate(whole):
        record = json.loads(json.dumps(list(start)))
        position, resumed = StreamStart.of_record(record), stream(sources, weights)
        resumed.reports = list(map(DataReport.from_dict, position.counted))
        again = list(islice(resumed.windows(size, position, 2), 9 - index))
        assert [(place, tokens(window)) for place, window in again] == [
            (place, tokens(window)) for place, window in whole[index:]
        ]
        assert again[0][0].window == index


def test_nothing_to_read_is_an_error():
    with pytest.raises(DataError, match="process 3 of 4 finds no row to read; leave out --streaming"):
        next(stream([rows(0, 2)], shard=2, shards=4).windows(4))
    with pytest.raises(DataError, match="none of .* rows can be used; skipped .*first: row 0: it is empty"):
        next(stream([RowSource([{"n": 0}, {"n": 3}])]).windows(4))
