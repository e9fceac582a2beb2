"""Parts of files: what several processes, and a run that goes on, read of them."""

import json

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from stepjepa.data.sources import Part, RowSource
from stepjepa.errors import DataError

ROWS = [{"text": f"row {i}"} for i in range(23)]


def sources(tmp_path):
    lines = tmp_path / "rows.jsonl"
    lines.write_text("\n".join(json.dumps(row) for row in ROWS))
    table = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), table, row_group_size=5)
    commas = tmp_path / "rows.csv"
    commas.write_text("text\n" + "\n".join(row["text"] for row in ROWS))
    dataset = datasets.Dataset.from_list(ROWS)
    return [lines, table, commas, ROWS, dataset, dataset.to_iterable_dataset()]


@pytest.mark.parametrize("kind", range(6), ids=["jsonl", "parquet", "csv", "list", "Dataset", "IterableDataset"])
def test_shards_together_are_the_whole(tmp_path, kind):
    source = RowSource(sources(tmp_path)[kind])
    whole = list(source)
    assert [row["text"] for _, row in whole] == [row["text"] for row in ROWS]
    for shards in (1, 2, 3, 50):
        parts = [list(source.rows(Part(shard=shard, shards=shards))) for shard in range(shards)]
        assert sorted((pair for part in parts for pair in part), key=lambda pair: pair[0]) == whole
    for start in (0, 1, 2, 7, 21, 23, 24, 99):
        for shard in range(2):
            expected = [pair for pair in whole if pair[0] >= start and pair[0] % 2 == shard]
            assert list(source.rows(Part(start, shard, 2))) == expected


def test_lines_of_other_shards_are_not_parsed(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"text": "a"}\n{broken\n{"text": "c"}\n')
    assert [row["text"] for _, row in RowSource(file).rows(Part(0, 1, 2))] == ["a", "c"]
    with pytest.raises(DataError, match="line 2: .*broken JSON"):
        list(RowSource(file).rows(Part(0, 0, 2)))
