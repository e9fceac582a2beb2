"""Rows from files, data sets and lists; what cannot be read is an error that names the place and the remedy."""

import json
import os

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from stepjepa.data.chat import row_to_messages
from stepjepa.data.sources import RowShare, RowSource
from stepjepa.errors import DataError

MESSAGES = [{"role": "user", "content": "12+5?"}, {"role": "assistant", "content": "17"}]
LINE = json.dumps({"messages": MESSAGES})


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def rows_of(source, split="train"):
    return [row for _, row in RowSource(source, split)]


def chats_of(source, split="train"):
    return [row_to_messages(row) for row in rows_of(source, split)]


def error_of(source, split="train"):
    with pytest.raises(DataError) as caught:
        rows_of(source, split)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("suffix", ["json", "JSONL"])
def test_jsonl(tmp_path, suffix):
    for content in (f"{LINE}\n{LINE}\n", f"\n  \n{LINE}\r\n\r\n{LINE}\r\n \t\n", f"\ufeff\n{LINE}\n{LINE}"):
        assert chats_of(write(tmp_path / f"a.{suffix}", content)) == [MESSAGES, MESSAGES]
    # What ends a line inside of a string does not end a row.
    row = {"question": "a\u2028b\u2029c\x85d\x0be", "answer": "17"}
    assert rows_of(write(tmp_path / f"a.{suffix}", json.dumps(row, ensure_ascii=False) + "\n")) == [row]


@pytest.mark.parametrize(
    ("suffix", "content", "line", "what"),
    [
        ("jsonl", f"{LINE}\n\n{{broken\n", 3, "broken JSON"),
        ("jsonl", f"{LINE}\n{LINE}\n".encode() + b'{"question": "caf\xc3', 3, "not UTF-8 text (unexpected end"),
        ("jsonl", json.dumps({"messages": MESSAGES}, indent=1), 1, "one JSON object per line is expected"),
        ("jsonl", f"{LINE}\n".encode() * 500 + b'{"question": "\xe9"}\n' + f"{LINE}\n".encode(), 501, "not UTF-8"),
        ("jsonl", '{"a": ' * 100_000, 1, "broken JSON (nested too deeply)"),
        ("csv", b"question,answer\na,b\n\xe9,b\n", 3, "not UTF-8 text"),
        ("csv", "question,answer\na,b\nc\n", 3, "the row does not have one field for each of 2 columns"),
        ("csv", "question,question\na,b\n", 2, "for each of 2 columns with different names"),
        ("csv", 'question,answer\na,"b\nc', 3, "broken CSV (unexpected end of data); a closing quote may be missing"),
        ("csv", 'question,answer\na,"b"c\n', 2, "broken CSV"),
    ],
)
def test_broken_files_name_the_line(tmp_path, suffix, content, line, what):
    file = write(tmp_path / f"a.{suffix}", content)
    message = error_of(file)
    assert message.startswith(f"{file} line {line}: ") and what in message


def test_a_name_that_is_no_file_and_no_data_set(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "my_train_set", "")
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **kwargs: [][1])
    message = error_of("my_train_sets")
    assert message.startswith("my_train_sets: neither a file here nor a data set that could be loaded (list index out")
    assert message.endswith("did you mean my_train_set?")


def test_names_of_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    seen = []
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **more: seen.append((*args, more)) or [{"a": 1}])
    for name, asked in (("openai/gsm8k:main", ("openai/gsm8k", "main")), ("squad", ("squad", None))):
        assert rows_of(name, "test") == [{"a": 1}]
        assert seen.pop() == (*asked, {"split": "test", "streaming": False})


def test_other_things_that_are_no_data(tmp_path):
    assert "unknown type of file; known types: .csv, .json" in error_of(write(tmp_path / "a.txt", LINE))
    (tmp_path / "empty").mkdir()
    assert error_of(tmp_path / "empty").startswith(f"{tmp_path}/empty: cannot be read (The directory at ")
    assert "data of type int cannot be read" in error_of(7)
    assert "no split 'train' (found: messages); name one of them, or give a list" in error_of({"messages": [MESSAGES]})


def test_a_home_folder_and_a_name_that_no_file_can_have(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path / "a.jsonl", LINE)
    assert chats_of("~/a.jsonl") == [MESSAGES]
    assert error_of("a" * 5000 + ".jsonl").endswith(f"{'a' * 200}: cannot be read (File name too long)")


def test_data_sets_parquet_and_folders(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    data = datasets.Dataset.from_list([{"messages": MESSAGES}] * 3)
    data.to_parquet(tmp_path / "a.parquet")
    assert chats_of(tmp_path / "a.parquet") == [MESSAGES] * 3
    data.save_to_disk(tmp_path / "one")
    assert chats_of(tmp_path / "one") == [MESSAGES] * 3
    both = datasets.DatasetDict(train=data, test=data.select([0]))
    both.save_to_disk(tmp_path / "two")
    for source in (both, tmp_path / "two"):
        assert len(chats_of(source)) == 3 and chats_of(source, "test") == [MESSAGES]
    assert "no split 'dev' (found: train, test)" in error_of(tmp_path / "two", "dev")
    whole = (tmp_path / "a.parquet").read_bytes()
    for content in (b"", whole[:-20], whole[len(whole) // 2 :], b"PAR1" + bytes(40)):
        message = error_of(write(tmp_path / "b.parquet", content))
        assert message.startswith(f"{tmp_path}/b.parquet: cannot be read (")


def test_csv(tmp_path):
    text = '\ufeffquestion,answer,id\r\n12+5?,17,1\r\n"a, ""b""\nc",NA,2\r\n"",,3\r\n'
    assert chats_of(write(tmp_path / "a.csv", text)) == [
        MESSAGES,
        [{"role": "user", "content": 'a, "b"\nc'}, {"role": "assistant", "content": "NA"}],
        [{"role": "user", "content": ""}, {"role": "assistant", "content": ""}],
    ]
    assert list(RowSource(write(tmp_path / "empty.csv", ""))) == []
    cell = json.dumps(MESSAGES).replace('"', '""')
    assert chats_of(write(tmp_path / "b.csv", f'messages\n"{cell}"\n')) == [MESSAGES]
    rows = RowSource(write(tmp_path / "c.csv", "\n\nquestion,answer\na,b\n\n , \n"))
    assert [(rows.place(number), row) for number, row in rows] == [
        (f"{tmp_path}/c.csv line 4", {"question": "a", "answer": "b"}),
        (f"{tmp_path}/c.csv line 6", {"question": " ", "answer": " "}),
    ]


# Parts of files, and damaged ones

ROWS = [{"text": f"row {i}"} for i in range(23)]


def numbered_sources(tmp_path):
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
    source = RowSource(numbered_sources(tmp_path)[kind])
    whole = list(source)
    assert [row["text"] for _, row in whole] == [row["text"] for row in ROWS]
    for shards in (1, 3, 50):
        parts = [list(source.rows(RowShare(shard=shard, shards=shards))) for shard in range(shards)]
        assert sorted((pair for part in parts for pair in part), key=lambda pair: pair[0]) == whole
    for start in (0, 1, 7, 23, 99):
        for shard in range(2):
            expected = [pair for pair in whole if pair[0] >= start and pair[0] % 2 == shard]
            assert list(source.rows(RowShare(start, shard, 2))) == expected


CHANGES = {
    "append": lambda file: file.open("ab").write(LINE.encode() + b"\n"),
    "replace": lambda file: os.replace(write(file.with_name("other"), file.read_bytes()), file),
    "cut": lambda file: os.truncate(file, file.stat().st_size - 5),
    "remove": os.unlink,
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_a_file_that_changes(tmp_path, change, suffix):
    rows = 3_000  # more than one read's worth
    content = f"{LINE}\n" * rows if suffix == "jsonl" else "question,answer\n" + "12+5?,17\n" * rows
    file = write(tmp_path / f"a.{suffix}", content)
    message = r"cannot be read \(No such file" if change == "remove" else "the file changed while it was being read"
    with pytest.raises(DataError, match=rf"^[^\n]*: {message}"):
        for read, _ in enumerate(RowSource(file)):
            if read == 3:
                CHANGES[change](file)


def test_csv_goes_on_behind_a_broken_row(tmp_path):
    file = tmp_path / "a.csv"
    file.write_bytes(b'a,b\n1,2\n"x"y,3\n\xe9,4\n5\n6,"long\nvalue"\n7,8,9\n' + b"10," + b"z" * 200_000 + b"\n")
    found = [(number, getattr(row, "reason", row)) for number, row in RowSource(file).rows(strict=False)]
    assert found == [
        (2, {"a": "1", "b": "2"}),
        (3, "broken_csv"),
        (4, "not_utf8"),
        (5, "broken_csv"),
        (7, {"a": "6", "b": "long\nvalue"}),
        (8, "broken_csv"),
        (9, {"a": "10", "b": "z" * 200_000}),
    ]
    file.write_text('"a"b,c\n1,2\n3,4\n')
    with pytest.raises(DataError, match="line 1: broken CSV"):  # without a header no row can be read
        list(RowSource(file).rows(strict=False))
