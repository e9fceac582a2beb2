"""Files that are cut off, endless, or written to while they are read."""

import io
import json
import os
import tracemalloc

import pytest

from stepjepa.data.sources import RowSource, csv_rows
from stepjepa.errors import DataError, RowError
from stepjepa.utils import files
from stepjepa.utils.files import line_text, line_value, read_lines

LINE = json.dumps({"question": "12+5?", "answer": "17"})


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", []),
        (b"ab\n\ncd", [b"ab\n", b"\n", b"cd"]),
        (b"abcd\nab\n", [b"abcd\n", b"ab\n"]),  # the line end does not count
        (b"abcde\nab\n", [b"abcde", b"ab\n"]),
        (b"abcdefghijklm\nab", [b"abcde", b"ab"]),
        (b"abcdefghijklm", [b"abcde"]),
        (b"abcd", [b"abcd"]),
    ],
)
def test_lines_up_to_a_limit(data, expected, monkeypatch):
    monkeypatch.setattr(files, "_SKIPPED_AT_ONCE", 3)
    assert list(read_lines(io.BytesIO(data), 4)) == expected
    for raw in expected:
        if len(raw) == 5 and raw[-1:] != b"\n":
            with pytest.raises(RowError, match="the line has more than 4 bytes") as caught:
                line_text(raw, 4)
            assert caught.value.reason == "line_too_long"
        else:
            assert line_text(raw, 4) == raw.decode().strip()


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b'{"a": 1', "truncated_line"),
        (b'{"a": "\\u12', "truncated_line"),
        (b'{"a": "\xe2\x82', "truncated_line"),
        (b'{"a": 1\n', "broken_json"),
        (b'{"a": \xe2\x82\n', "not_utf8"),
        (b'{"a": 1}}', "broken_json"),
        (b"nul", "broken_json"),
        (b"\xff\xfe{", "not_utf8"),
    ],
)
def test_what_is_wrong_with_a_line(raw, reason):
    with pytest.raises(RowError) as caught:
        line_value(line_text(raw), raw)
    assert caught.value.reason == reason


def test_a_byte_order_mark_at_any_line():
    raw = b'\xef\xbb\xbf {"a": 1}\r\n'
    assert line_value(line_text(raw), raw) == {"a": 1}


def test_an_endless_line_is_refused_before_it_is_read(tmp_path):
    file = tmp_path / "a.jsonl"
    with open(file, "wb") as out:
        out.write(LINE.encode() + b"\n")
        out.seek(10 * 2**30)  # ten gigabytes without a line end, none of them on the disk
        out.write(b"\0")
    tracemalloc.start()
    with pytest.raises(DataError) as caught:
        list(RowSource(file))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert str(caught.value) == f"{file} line 2: the line has more than 64 MiB; one row a line is expected"
    assert peak < 3 * 64 * 2**20


def append(file):
    with open(file, "ab") as out:
        out.write(LINE.encode() + b"\n")


def touch(file):
    os.utime(file, ns=(0, 0))


def replace(file):
    file.with_name("other").write_bytes(file.read_bytes())
    os.replace(file.with_name("other"), file)


def cut(file):
    os.truncate(file, file.stat().st_size - 5)


def empty(file):
    os.truncate(file, 0)


@pytest.mark.parametrize("change", [append, touch, replace, cut, empty, os.unlink])
@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_a_file_that_changes(tmp_path, change, suffix):
    file = tmp_path / f"a.{suffix}"
    rows = 20_000  # more than one read's worth
    content = f"{LINE}\n" * rows if suffix == "jsonl" else "question,answer\n" + "12+5?,17\n" * rows
    file.write_text(content)
    read = 0
    with pytest.raises(DataError) as caught:
        for _ in RowSource(file):
            read += 1
            if read == 3:
                change(file)
    message = str(caught.value)
    assert message.startswith(f"{file}: the file ") and "while it was read" in message and "\n" not in message
    assert ("bytes before" in message) == (change in (append, cut, empty))


def test_a_file_that_may_not_be_read(tmp_path):
    if os.geteuid() == 0:
        pytest.skip("root may read all files")
    file = tmp_path / "a.jsonl"
    file.write_text(LINE)
    file.chmod(0)
    with pytest.raises(DataError, match="cannot be read .Permission denied"):
        list(RowSource(file))


def test_csv_goes_on_behind_a_broken_row(tmp_path):
    file = tmp_path / "a.csv"
    file.write_bytes(b'a,b\n1,2\n"x"y,3\n\xe9,4\n5\n6,"long\nvalue"\n7,8,9\n' + b"10," + b"z" * 200_000 + b"\n")
    found = [(number, getattr(row, "reason", row)) for number, row in csv_rows(file)]
    assert found == [
        (2, {"a": "1", "b": "2"}),
        (3, "broken_csv"),
        (4, "not_utf8"),
        (5, "broken_csv"),
        (6, {"a": "6", "b": "long\nvalue"}),
        (8, "broken_csv"),
        (9, {"a": "10", "b": "z" * 200_000}),
    ]
    with pytest.raises(DataError, match=r"a\.csv line 9: the line has more than 1000 bytes"):
        list(csv_rows(file, 1000))
