"""What `prepare` writes, counts and says, from good and damaged sources; every file is complete or not there."""

import contextlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time

import pytest

from stepjepa.data.options import SYSTEM_PROMPT
from stepjepa.data.prepare import PrepareOptions, prepare
from stepjepa.data.prepare_rows import Converter
from stepjepa.errors import ConfigError, DataError
from stepjepa.utils.parallel import mapped
from support.rows import gsm8k, lines, write

LINE = json.dumps(gsm8k(4)).encode() + b"\n"
HALF = b'{"question": "\\ud83d", "answer": "a\\nb\\n#### 1"}\n'


def run(folder, rows, name="out.jsonl", **changes):
    source = folder / "raw.jsonl"
    if isinstance(rows, bytes):
        source.write_bytes(rows)
    else:
        write(source, rows)
    return prepare(PrepareOptions(output_file=str(folder / name), **{"overwrite": True, **changes}), source)


def contents(folder):
    """File -> bytes of what is visible; of the report the counts, without the paths."""
    found = {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.name.startswith("out")}
    if "out.report.json" in found:
        report = json.loads(found["out.report.json"])
        paths = ("options", "files", "source", "next_command")
        found["out.report.json"] = {key: report[key] for key in report if key not in paths}
    return found


def hidden(folder):
    return sorted(path.name for path in folder.iterdir() if path.name[0] == ".")


def test_a_row(tmp_path):
    run(tmp_path, [gsm8k(4, " What is 4 and 1? ")])
    assert (tmp_path / "out.jsonl").read_text() == (
        '{"question": "What is 4 and 1?", "answer": "He has 4 of them.\\nWith one more 4+1=<<4+1=5>>5.\\n#### 5", '
        '"ground_truth": "5", "steps": ["He has 4 of them.", "With one more 4+1=5.\\n\\\\boxed{5}"], "total_steps": 2, '
        f'"messages": [{{"role": "system", "content": {json.dumps(SYSTEM_PROMPT)}}}, '
        '{"role": "user", "content": "What is 4 and 1?"}, '
        '{"role": "assistant", "content": "He has 4 of them.\\n\\nWith one more 4+1=5.\\n\\\\boxed{5}"}]}\n'
    )
    run(tmp_path, [gsm8k(4, "a\u2028b\x85c\u2029d\x0be")])
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 1  # but where a reader would see a line's end
    assert lines(tmp_path / "out.jsonl")[0]["question"] == "a\u2028b\x85c\u2029d\x0be"


def test_only_correct_responses(tmp_path):
    def teacher(response, **columns):
        return {"question": "q", "deepseek_response": f"{response}\n\nThat is all there is to it.", **columns}

    rows = [
        teacher("So the answer is clearly 1,200.", ground_truth="1200"),
        teacher("So the answer is clearly \\boxed{\\$1200.00}.", ground_truth="#### 1,200"),
        teacher("So the answer is clearly \\boxed{7}.", ground_truth=8),
        teacher("So the answer is clearly \\boxed{8}.", ground_truth=8.0),
        teacher("So the answer is clearly \\boxed{9}.", answer="one\n#### 9"),
        teacher("So the answer is clearly \\boxed{9}."),
    ]
    report = run(tmp_path, rows, require_correct=True)
    assert report.rows_skipped == {"wrong_answer": 1, "no_ground_truth": 1}
    assert "raw.jsonl line 3: the response ends in '7', but the ground truth" in report.first_skipped["wrong_answer"]
    assert [row["ground_truth"] for row in lines(tmp_path / "out.jsonl")] == ["1200", "1,200", "8.0", "9"]
    run(tmp_path, rows)
    assert [row["ground_truth"] for row in lines(tmp_path / "out.jsonl")] == ["1200", "1,200", "8", "8.0", "9", "9"]


def test_dedup_keeps_the_first_that_can_be_kept(tmp_path):
    rows = [gsm8k(0, steps=" "), gsm8k(0, "What IS\u3000 0 and 1?"), gsm8k(1, "what is 0 and 1? "), gsm8k(2)]
    report = run(tmp_path, rows, dedup=True)
    assert report.rows_skipped == {"too_few_steps": 1, "duplicate": 1}
    assert [row["ground_truth"] for row in lines(tmp_path / "out.jsonl")] == ["1", "3"]
    assert run(tmp_path, rows, dedup=True, strict_data=True).rows_kept == 2  # what was asked for is no fault


def test_validation_rows(tmp_path):
    rows = [gsm8k(n) for n in range(400)]
    report = run(tmp_path, rows, valid_ratio=0.25)
    train, valid = lines(tmp_path / "out.jsonl"), lines(tmp_path / "out.valid.jsonl")
    assert 70 < len(valid) < 130 and len(train) + len(valid) == 400
    assert report.files == {str(tmp_path / "out.jsonl"): len(train), str(tmp_path / "out.valid.jsonl"): len(valid)}
    # A question stays on its side whatever else there is, and in all its spellings; a smaller share is a part of it.
    (tmp_path / "other").mkdir()
    again = [{**row, "question": row["question"].upper()} for row in rows[::-3]] + [gsm8k(n) for n in range(400, 500)]
    run(tmp_path / "other", again, valid_ratio=0.25)
    asked = {row["question"].lower() for row in rows[::-3]}
    other = {row["question"].lower() for row in lines(tmp_path / "other" / "out.valid.jsonl")}
    assert other & asked == {row["question"].lower() for row in valid} & asked
    run(tmp_path / "other", rows, valid_ratio=0.1)
    smaller = {row["question"] for row in lines(tmp_path / "other" / "out.valid.jsonl")}
    assert smaller and smaller < {row["question"] for row in valid}


def test_processes_change_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("stepjepa.data.prepare._BLOCK_ROWS", 7)
    rows = [json.dumps(gsm8k(n, f"What is {n % 90} and 1?")).encode() + b"\n" for n in range(200)]
    rows[5::10] = [b'{"question": "q", "answer": "no"}\n', b"\xe9\n", HALF, LINE[:-9] + b"\n"] * 5
    found = []
    for processes in (1, 3):
        (folder := tmp_path / str(processes)).mkdir()
        run(folder, b"".join(rows), num_proc=processes, dedup=True, valid_ratio=0.3)
        found.append(contents(folder))
    first = json.loads(json.dumps(found[0]["out.report.json"]).replace("/1/", "/3/"))
    assert {**found[0], "out.report.json": first} == found[1]
    assert set(first["rows_skipped"]) == {"no_final_answer", "not_utf8", "broken_text", "broken_json", "duplicate"}
    with pytest.raises(DataError, match="a worker process was killed"):
        list(mapped(os._exit, iter([3] * 9), 2, "num_proc"))


def test_the_default_prompt_asks_for_a_box_and_only_answers_with_one_get_it(tmp_path):
    long = "A sentence that is long enough."
    rows = [{"question": "a", "answer": f"{long}\n\n{long}"}]
    rows += [{"question": "b", "answer": f"{long}\n\n{long} \\boxed{{3}}"}]
    run(tmp_path, rows)
    assert [row["messages"][0]["role"] for row in lines(tmp_path / "out.jsonl")] == ["user", "system"]
    run(tmp_path, rows, system_prompt="Use \\boxed{}.")
    assert all(row["messages"][0]["content"] == "Use \\boxed{}." for row in lines(tmp_path / "out.jsonl"))


@pytest.mark.parametrize(
    ("line", "reason", "words"),
    [
        (LINE[:-20], "broken_json", "broken JSON (Unterminated string starting at character"),
        (b'{"question": "caf\xe9", "answer": "a"}\n', "not_utf8", "not UTF-8 text (invalid continuation byte)"),
        (b'{"a": ' * 100_000 + b"\n", "broken_json", "nested too deeply"),
        (LINE[:-2] + b', "ground_truth": "\\ud83d"}\n', "broken_text", "the row contains"),
        (b'{"question": "q", "answer": "' + b"\\\\[ " * 400_000 + b'"}\n', "text_too_long", "at most 1,000,000"),
    ],
)
def test_a_bad_row(tmp_path, line, reason, words):
    report = run(tmp_path, b"\xef\xbb\xbf" + LINE + b"\n" + line)
    assert report.rows_skipped == {reason: 1} and report.rows_kept == 1
    what = report.first_skipped[reason]
    assert what.startswith(f"{tmp_path}/raw.jsonl line 3: ") and words in what
    assert len(what) < 2000 and all(line.isprintable() for line in str(report).split("\n"))
    before = contents(tmp_path)
    with pytest.raises(DataError, match=r"raw\.jsonl line 3: [^\n]*$"):
        run(tmp_path, LINE + b"\n" + line, strict_data=True)
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "raw.jsonl: the file or data set is empty; it needs at least one row"),
        (b'[\n{"question": "q"}]', "raw.jsonl: format not recognised (columns found: question)"),
        (LINE.decode().encode("utf-16"), "raw.jsonl line 1: not UTF-8 text (invalid start byte)"),
        (b'{"question": "q", "answer": "#### 1"}\n', "none of 1 rows can be kept; skipped 1: too few steps (first: "),
    ],
)
def test_files_without_a_row(tmp_path, content, words):
    with pytest.raises(DataError, match=re.escape(words)):
        run(tmp_path, content)
    assert contents(tmp_path) == {}


# What is written


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """GSM8K-like rows; some questions come twice, some rows cannot be used."""
    rows = [gsm8k(n, f"How many are {n % 650} and 1?") for n in range(700)]
    rows[::97] = [{**row, "answer": row["answer"].split("\n")[0]} for row in rows[::97]]
    return write(tmp_path_factory.mktemp("raw") / "raw.jsonl", rows)


def options(folder, source, **changes):
    changes = {"dedup": True, "valid_ratio": 0.2, **changes}
    return PrepareOptions(str(source), output_file=str(folder / "out.jsonl"), **changes)


@pytest.fixture(scope="module")
def expected(source, tmp_path_factory):
    folder = tmp_path_factory.mktemp("complete")
    report = prepare(options(folder, source))
    assert report.rows_read == 700 and report.rows_skipped == {"no_final_answer": 8, "duplicate": 48}
    assert hidden(folder) == []
    return contents(folder)


@pytest.mark.long
def test_a_killed_process_leaves_no_part_of_a_file(source, expected, tmp_path):
    words = "--output_file out.jsonl --dedup --valid_ratio 0.2 --num_proc 2".split()
    command = [sys.executable, "-m", "stepjepa", "prepare", source, *words]
    process = subprocess.Popen(command, cwd=tmp_path, start_new_session=True)
    while process.poll() is None and hidden(tmp_path) == []:
        time.sleep(0.001)
    process.kill()
    process.wait(timeout=60)
    seen = contents(tmp_path)
    assert all(seen[name] == expected[name] for name in seen)
    prepare(options(tmp_path, source, overwrite=True))
    assert contents(tmp_path) == expected and hidden(tmp_path) == []


@pytest.mark.parametrize("after", [0, 100_000])
def test_a_full_disk(source, tmp_path, after):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (after, before[1]))
        with pytest.raises(DataError) as caught:
            prepare(options(tmp_path, source))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, old)
    message = str(caught.value)
    assert message.startswith(str(tmp_path)) and "cannot be written (File too large)" in message and "\n" not in message
    assert list(tmp_path.iterdir()) == []


def test_what_ends_early_leaves_the_files_as_they_were(source, expected, tmp_path, monkeypatch):
    def interrupt(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr(Converter, "_prepared", interrupt)
        prepare(options(tmp_path, source))
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "out.valid.jsonl").write_text("mine")
    with pytest.raises(ConfigError, match=r"out\.valid\.jsonl exists already; --overwrite replaces it"):
        prepare(options(tmp_path, source))
    assert hidden(tmp_path) == [] and (tmp_path / "out.valid.jsonl").read_text() == "mine"
    prepare(options(tmp_path, source, overwrite=True))
    assert contents(tmp_path) == expected
    with pytest.raises(DataError, match="none of 700 rows"):
        prepare(options(tmp_path, source, overwrite=True, min_steps=9))
    assert contents(tmp_path) == expected and hidden(tmp_path) == []


def test_names_that_cannot_be_written(source, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be written"):
        prepare(options(tmp_path / "file", source))
    (tmp_path / "out.valid.jsonl").mkdir()
    with pytest.raises(ConfigError, match="is a folder"):
        prepare(options(tmp_path, source))
    with pytest.raises(ConfigError, match="the name must end in .jsonl"):
        run(tmp_path, [gsm8k(1)], "out.parquet")
    raw = tmp_path / "raw.jsonl"
    (tmp_path / "link.jsonl").symlink_to(raw)
    for name in ("raw.jsonl", "link.jsonl"):
        with pytest.raises(ConfigError, match="is the input file"):
            run(tmp_path, [gsm8k(1)], name)
    assert lines(raw) == [gsm8k(1)]
    (tmp_path / "far").mkdir()
    (tmp_path / "out.jsonl").symlink_to(tmp_path / "far" / "real.jsonl")
    run(tmp_path, [gsm8k(1)])  # a link stays one
    assert (tmp_path / "out.jsonl").is_symlink() and (tmp_path / "far" / "real.jsonl").stat().st_size
