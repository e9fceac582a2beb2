"""Damaged sources: a message with file and line, or a counted row; a whole output or none."""

import json
import os
import re
import tracemalloc

import datasets
import pytest

from stepjepa.data.prepare import PrepareOptions, prepare, rows
from stepjepa.data.prepare.rows import LINE_BYTES
from stepjepa.errors import DataError

GOOD = {"question": "What is 4 and 1?", "answer": "He has 4 of them.\nOne more is 4+1=5.\n#### 5"}
LINE = json.dumps(GOOD).encode() + b"\n"


def run(folder, content, suffix="jsonl", **changes):
    source = folder / f"raw.{suffix}"
    source.write_bytes(content)
    return prepare(PrepareOptions(file=str(source), output_file=str(folder / "out" / "out.jsonl"), **changes))


def left(folder):
    return sorted(path.name for path in (folder / "out").iterdir()) if (folder / "out").is_dir() else []


@pytest.mark.parametrize(
    ("line", "reason", "words"),
    [
        (LINE[:-20], "truncated_line", "the file ends in the middle of this line (at character"),
        (b'{"question": "caf\xc3', "truncated_line", "(inside a character)"),
        (b'{"question": "caf\xe9", "answer": "a"}\n', "not_utf8", "not UTF-8 text (invalid continuation byte)"),
        (b"\0" * 5000 + b"\n", "broken_json", "broken JSON (Expecting value at character 1)"),
        (b'{"question": "q", "answer": "a"}{}\n', "broken_json", "Extra data"),
        (b"null\n", "not_an_object", "the row is null"),
        (b"[1, 2]\n", "not_an_object", "the row is a list"),
        (b'"text"\n', "not_an_object", "the row is a str"),
        (b'{"a": ' * 100_000 + b"\n", "broken_json", "nested too deeply"),
        (b'{"question": "\\ud83d", "answer": "a\\nb\\n#### 1"}\n', "broken_text", "\\ud83d without its other half"),
        (b'{"question": "q", "answer": null}\n', "missing_column", "column 'answer' is null"),
        (b'{"question": ["q"], "answer": "#### 1"}\n', "not_text", "column 'question' has type list"),
        (b'{"prompt": "q", "completion": "a"}\n', "missing_column", "is missing (columns found: prompt, completion)"),
        (b'{"' + b"k" * 3000 + b'": 1}\n', "missing_column", f"(columns found: {'k' * 80}...)"),
    ],
)
def test_a_bad_row(tmp_path, line, reason, words):
    report = run(tmp_path, b"\xef\xbb\xbf" + LINE + b"\n" + line)
    assert report.rows_dropped == {reason: 1} and report.rows_kept == 1
    (example,) = report.examples[reason]
    assert example["place"] == f"{tmp_path}/raw.jsonl line 3" and words in example["what"]
    assert len(example["text"]) < 2000 and all(line.isprintable() for line in report.lines())
    with pytest.raises(DataError) as caught:
        run(tmp_path, LINE + b"\n" + line, strict_data=True, overwrite=True)
    assert str(caught.value).startswith(f"{tmp_path}/raw.jsonl line 3: ") and "\n" not in str(caught.value)
    assert left(tmp_path) == ["out.jsonl", "out.report.json"]  # of the run before


def test_bad_rows_in_other_processes(tmp_path):
    content = LINE + b"\xe9\n" + b'{"question": "\\ud83d", "answer": "a\\nb\\n#### 1"}\n' + LINE[:-9]
    one = run(tmp_path, content)
    two = run(tmp_path, content, num_proc=2, overwrite=True)
    assert one.to_dict() == two.to_dict() and set(one.rows_dropped) == {"not_utf8", "broken_text", "truncated_line"}


def test_a_line_of_fifty_megabytes(tmp_path):
    with open(tmp_path / "raw.jsonl", "wb") as file:
        file.write(LINE)
        file.write(b'{"question": "' + b"x" * 50 * 2**20 + b'", "answer": "a"}\n')
        file.write(LINE)
    tracemalloc.start()
    report = prepare(PrepareOptions(output_file=str(tmp_path / "out.jsonl")), tmp_path / "raw.jsonl")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert report.rows_kept == 2 and report.rows_dropped == {"line_too_long": 1}
    (example,) = report.examples["line_too_long"]
    assert example["place"].endswith("raw.jsonl line 2") and example["text"].startswith('{"question": "xxx')
    assert peak < 4 * LINE_BYTES


def test_a_long_text_on_a_line_that_is_short_enough(tmp_path):
    long = json.dumps({"question": "q", "answer": "\\[ " * 400_000 + "\n#### 1"}).encode() + b"\n"
    assert run(tmp_path, LINE + long).rows_dropped == {"text_too_long": 1}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "raw.jsonl: the file or data set is empty; it needs at least one row"),
        (b"\n \n\xef\xbb\xbf\n", "the file or data set is empty"),
        (b'[\n{"question": "q"}]', "raw.jsonl: this looks like one JSON array; write one object per line (JSONL)"),
        (LINE.decode().encode("utf-16"), "raw.jsonl line 1: not UTF-8 text (invalid start byte)"),
        (
            b"\x80\x04\x95\x10",
            "raw.jsonl line 1: not UTF-8 text (invalid start byte); save the file as UTF-8 (the only",
        ),
        (b"PK\x03\x04\nabc\n", "raw.jsonl line 1: broken JSON"),
        (
            b'{"question": "q", "answer": "#### 1"}\n',
            "none of 1 rows can be kept; dropped 1: too few steps (--min_steps)",
        ),
    ],
)
def test_files_without_a_row(tmp_path, content, words):
    with pytest.raises(DataError) as caught:
        run(tmp_path, content)
    assert words in str(caught.value) and "\n" not in str(caught.value)
    assert left(tmp_path) == []


def test_other_files_that_cannot_be_read(tmp_path):
    options = PrepareOptions(output_file=str(tmp_path / "out" / "out.jsonl"))
    (tmp_path / "raw.bin").write_bytes(b"some text\n")
    (tmp_path / "empty").mkdir()
    for name, words in {
        "no.jsonl": "no such file",
        "a" * 300: "cannot be read (File name too long)",
        "empty": "the folder is empty",
        "raw.bin": "lines of text without '||'",
    }.items():
        with pytest.raises(DataError, match=re.escape(words)):
            prepare(options, tmp_path / name)
    datasets.Dataset.from_list([GOOD] * 5).to_parquet(tmp_path / "raw.parquet")
    whole = (tmp_path / "raw.parquet").read_bytes()
    for content in (b"", whole[:-30], whole[40:]):
        (tmp_path / "raw.parquet").write_bytes(content)
        with pytest.raises(DataError, match=r"raw\.parquet: cannot be read"):
            prepare(options, tmp_path / "raw.parquet")
    assert left(tmp_path) == []


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
@pytest.mark.parametrize("change", ["append", "cut", "remove", "touch"])
def test_a_file_that_changes(tmp_path, monkeypatch, suffix, change):
    count = 2000
    content = LINE * count if suffix == "jsonl" else b"question,answer\n" + b'q,"a\nb\n#### 1"\n' * count
    original = rows.question_key
    source = tmp_path / f"raw.{suffix}"

    def key(question):
        if change == "append" and source.stat().st_size == len(content):
            with open(source, "ab") as file:
                file.write(LINE)
        elif change == "cut":
            os.truncate(source, len(content) - 7)
        elif change == "remove":
            source.unlink(missing_ok=True)
        elif change == "touch":
            os.utime(source, ns=(0, 0))
        return original(question)

    monkeypatch.setattr(rows, "question_key", key)
    with pytest.raises(DataError) as caught:
        run(tmp_path, content, suffix)
    message = str(caught.value)
    assert message.startswith(f"{source}: the file ") and "while it was read" in message
    assert left(tmp_path) == []


def test_mixed_rows(tmp_path):
    teacher = {
        "question": "How?",
        "deepseek_response": "First we look at the thing.\n\nThen we see that it is \\boxed{3}.",
    }
    chat = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
    content = b"".join(json.dumps(row).encode() + b"\n" for row in [teacher, GOOD, teacher, chat, 7, teacher])
    report = run(tmp_path, content)
    assert report.format == "teacher" and report.rows_kept == 3
    assert report.rows_dropped == {"missing_column": 2, "not_an_object": 1}
