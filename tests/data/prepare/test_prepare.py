"""What `prepare` writes, counts and says; where rows go; that processes change nothing."""

import json
import os
import tracemalloc

import datasets
import pytest

from stepjepa.data.prepare import PrepareOptions, prepare
from stepjepa.data.prepare.options import SYSTEM_PROMPT
from stepjepa.data.prepare.rows import question_key
from stepjepa.errors import ConfigError, DataError
from stepjepa.utils.parallel import mapped


def gsm8k(index, question=None):
    answer = f"He has {index} of them.\nWith one more {index}+1=<<{index}+1={index + 1}>>{index + 1}.\n#### {index + 1}"
    return {"question": question or f"What is {index} and 1?", "answer": answer}


def write(path, rows):
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def run(folder, rows, name="out.jsonl", **changes):
    source = write(folder / "raw.jsonl", rows) if isinstance(rows, list) else rows
    return prepare(PrepareOptions(output_file=str(folder / name), **{"overwrite": True, **changes}), source)


def test_a_row(tmp_path):
    run(tmp_path, [gsm8k(4, " What is 4 and 1? ")])
    assert (tmp_path / "out.jsonl").read_text() == (
        '{"question": "What is 4 and 1?", "answer": "He has 4 of them.\\nWith one more 4+1=<<4+1=5>>5.\\n#### 5", '
        '"ground_truth": "5", "steps": ["He has 4 of them.", "With one more 4+1=5.\\n\\\\boxed{5}"], "total_steps": 2, '
        f'"messages": [{{"role": "system", "content": {json.dumps(SYSTEM_PROMPT)}}}, '
        '{"role": "user", "content": "What is 4 and 1?"}, '
        '{"role": "assistant", "content": "He has 4 of them.\\n\\nWith one more 4+1=5.\\n\\\\boxed{5}"}]}\n'
    )
    run(tmp_path, [gsm8k(4, "What is “4” and 1?")], system_prompt=None)
    (row,) = read(tmp_path / "out.jsonl")
    assert [message["role"] for message in row["messages"]] == ["user", "assistant"]
    assert "“4”" in (tmp_path / "out.jsonl").read_text()  # readable, no escapes
    run(tmp_path, [gsm8k(4, "a\u2028b\x85c\u2029d\x0be")])
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 1  # but where a reader would see a line's end
    assert read(tmp_path / "out.jsonl")[0]["question"] == "a\u2028b\x85c\u2029d\x0be"


def test_every_row_is_counted_once(tmp_path):
    rows = [gsm8k(1), "", "  ", {"question": "q", "answer": "#### 3"}, '{"question": ', {"question": "q"}, gsm8k(2)]
    report = run(tmp_path, [*rows, {"question": None, "answer": "\x1b[2J\n#### 1"}], name="sub/out.jsonl")
    assert (report.rows_read, report.rows_kept) == (6, 2)
    assert report.rows_dropped == {"too_few_steps": 1, "broken_json": 1, "missing_column": 2}
    file = tmp_path / "raw.jsonl"
    assert report.examples["too_few_steps"] == [{"place": f"{file} line 4", "what": "1 step found", "text": "q"}]
    assert [example["place"] for example in report.examples["missing_column"]] == [f"{file} line 6", f"{file} line 8"]
    lines = report.lines()
    assert all(line.isprintable() for line in lines)
    assert lines[:3] == [
        f"Prepared: {file}",
        "  Format: gsm8k (recognised: 3 of the first 5 rows have answers that end in '#### ...')",
        "  Rows: 6 read, 2 kept, 4 dropped",
    ]
    assert lines[4] == f"    dropped 1: too few steps (--min_steps) (first: {file} line 4: 1 step found; q)"
    assert lines[-3] == "  Steps a row: 2 in 2" and lines[-2].startswith("  System prompt: Please solve")
    assert lines[-1:] == [f"  {tmp_path}/sub/out.jsonl: 2 rows"]
    assert str(report).split("\n") == [*lines, f"Next: {report.next_command}"]
    record = json.loads((tmp_path / "sub" / "out.report.json").read_text())
    assert record["rows_dropped"] == report.rows_dropped and record["examples"] == report.examples
    assert record["job"]["options"]["min_steps"] == 2


def test_many_examples_are_not_all_listed(tmp_path):
    report = run(tmp_path, [gsm8k(1), *[{"question": f"q{n}", "answer": "#### 1"} for n in range(99)]])
    assert report.rows_dropped == {"too_few_steps": 99} and len(report.examples["too_few_steps"]) == 20


def test_limits_on_steps(tmp_path):
    rows = [{"question": f"q{n}", "answer": "a step\n" * n + "#### 1"} for n in range(1, 6)]
    assert run(tmp_path, rows, min_steps=1).rows_kept == 5
    report = run(tmp_path, rows, min_steps=3, max_steps=4)
    assert [row["total_steps"] for row in read(tmp_path / "out.jsonl")] == [3, 4]
    assert report.rows_dropped == {"too_few_steps": 2, "too_many_steps": 1}


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
    assert report.rows_dropped == {"wrong_answer": 1, "no_ground_truth": 1}
    assert report.examples["wrong_answer"][0]["what"] == "the response ends in '7', the ground truth is '8'"
    assert [row["ground_truth"] for row in read(tmp_path / "out.jsonl")] == ["1200", "1,200", "8.0", "9"]
    run(tmp_path, rows)
    assert [row["ground_truth"] for row in read(tmp_path / "out.jsonl")] == ["1200", "1,200", "8", "8.0", "9", "9"]


def test_dedup_keeps_the_first_that_can_be_kept(tmp_path):
    rows = [
        {**gsm8k(0), "answer": "#### 1"},
        gsm8k(0, "What IS\u3000 0 and 1?"),
        gsm8k(1, "what is 0 and 1? "),
        gsm8k(2),
    ]
    rows[0]["question"] = "What is 0 and 1?"
    report = run(tmp_path, rows, dedup=True)
    assert report.rows_dropped == {"too_few_steps": 1, "duplicate": 1}
    assert [row["ground_truth"] for row in read(tmp_path / "out.jsonl")] == ["1", "3"]
    assert question_key("ﬁve Ａpples") == question_key("Five apples") != question_key("Five pears")


def test_validation_rows(tmp_path):
    rows = [gsm8k(n) for n in range(400)]
    report = run(tmp_path, rows, valid_ratio=0.25)
    train, valid = read(tmp_path / "out.jsonl"), read(tmp_path / "out.valid.jsonl")
    assert 70 < len(valid) < 130 and len(train) + len(valid) == 400
    assert report.files == {str(tmp_path / "out.jsonl"): len(train), str(tmp_path / "out.valid.jsonl"): len(valid)}
    # A question stays on its side whatever else there is, and in all its spellings.
    (tmp_path / "other").mkdir()
    again = [{**row, "question": row["question"].upper()} for row in rows[::-3]] + [gsm8k(n) for n in range(400, 500)]
    run(tmp_path / "other", again, valid_ratio=0.25)
    sides = {row["question"].lower() for row in valid}
    other = {row["question"].lower() for row in read(tmp_path / "other" / "out.valid.jsonl")}
    assert other & {row["question"].lower() for row in rows[::-3]} == sides & {
        row["question"].lower() for row in rows[::-3]
    }
    # A smaller share is a part of the larger one.
    run(tmp_path / "other", rows, valid_ratio=0.1)
    smaller = {row["question"] for row in read(tmp_path / "other" / "out.valid.jsonl")}
    assert smaller and smaller < {row["question"] for row in valid}


@pytest.mark.parametrize(
    "changes", [{}, {"dedup": True, "valid_ratio": 0.3}, {"max_examples": 120}, {"strict_data": True}]
)
def test_processes_change_nothing(tmp_path, monkeypatch, changes):
    monkeypatch.setattr("stepjepa.data.prepare._BLOCK_ROWS", 7)
    rows = [gsm8k(n, f"What is {n % 90} and 1?") for n in range(200)]
    if not changes.get("strict_data"):
        rows[5::11] = [{"question": "q", "answer": "no"}] * len(rows[5::11])
    results = []
    for processes in (1, 3):
        folder = tmp_path / str(processes)
        folder.mkdir()
        source = write(tmp_path / "raw.jsonl", rows)
        before = source.stat()
        os.utime(source, ns=(before.st_atime_ns, 10**18))
        report = run(folder, source, num_proc=processes, **changes)
        files = {path.name: path.read_bytes() for path in folder.glob("*.jsonl")}
        results.append((files, {**report.to_dict(), "files": None}))
    assert results[0] == results[1]


def test_a_worker_that_dies_is_an_error():
    with pytest.raises(DataError, match="a worker process was killed"):
        list(mapped(os._exit, iter([3] * 9), 2, "num_proc"))


def test_max_examples(tmp_path):
    rows = [gsm8k(1), "broken", gsm8k(2), gsm8k(3)]
    report = run(tmp_path, rows, max_examples=2)
    assert (report.rows_read, report.rows_kept, report.stopped_early) == (3, 2, True)
    assert "  Stopped at max_examples; the rows after it were not read" in report.lines()
    assert not run(tmp_path, rows, max_examples=9).stopped_early


def test_strict_data(tmp_path):
    filtered = [gsm8k(1), gsm8k(1), {"question": "q", "answer": "#### 1"}]
    assert run(tmp_path, filtered, strict_data=True, dedup=True).rows_kept == 1  # what was asked for is no fault
    (tmp_path / "out.jsonl").unlink()
    with pytest.raises(DataError) as caught:
        run(tmp_path, [*filtered, "{broken", {"question": 3}], strict_data=True)
    assert str(caught.value) == (
        f"{tmp_path}/raw.jsonl line 4: broken JSON (Expecting property name enclosed in double quotes at character 2); one "
        "JSON object per line is expected (--strict_data stops at the first such row)"
    )
    assert not (tmp_path / "out.jsonl").exists()


def test_other_sources(tmp_path):
    rows = [gsm8k(n) for n in range(5)]
    run(tmp_path, rows)
    expected = (tmp_path / "out.jsonl").read_bytes()
    data = datasets.Dataset.from_list(rows)
    data.to_parquet(tmp_path / "raw.parquet")
    (tmp_path / "raw.csv").write_text(
        "question,answer\n" + "".join(f'{row["question"]},"{row["answer"]}"\n' for row in rows)
    )
    write(tmp_path / "raw", rows)
    both = datasets.DatasetDict(test=data, train=data.select([0]))
    sources = [
        rows,
        iter(rows),
        data,
        data.to_iterable_dataset(),
        *(tmp_path / f"raw{end}" for end in (".parquet", ".csv", "")),
    ]
    for source in sources:
        prepare(PrepareOptions(output_file=str(tmp_path / "out.jsonl"), overwrite=True), source)
        assert (tmp_path / "out.jsonl").read_bytes() == expected
    assert prepare(PrepareOptions(output_file=str(tmp_path / "a.jsonl"), dataset_split="test"), both).rows_kept == 5
    report = prepare(PrepareOptions(output_file=str(tmp_path / "b.jsonl")), [*rows, {"question": 3}])
    assert report.examples["not_text"][0]["place"] == "list row 5"


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(tmp_path):
    def peak(count):
        source = write(tmp_path / "raw.jsonl", [gsm8k(n) for n in range(count)])
        tracemalloc.start()
        prepare(PrepareOptions(output_file=str(tmp_path / "out.jsonl"), overwrite=True), source)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(100)
    assert peak(12_000) < peak(3_000) + 2**19


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"output_file": None}, "--output_file must be given"),
        ({"output_file": "out.parquet"}, "rows are written as JSONL, so end it in .jsonl"),
        ({"output_file": "out"}, "rows are written as JSONL"),
        ({"min_steps": 0}, "min_steps is 0; it must be at least 1"),
        ({"max_steps": 1}, "max_steps is 1; it must be at least 2"),
        ({"max_examples": 0}, "max_examples is 0"),
        ({"num_proc": 0}, "num_proc is 0"),
        ({"min_step_length": -1}, "min_step_length is -1"),
        ({"valid_ratio": 1.0}, "valid_ratio is 1.0; it must be at least 0 and below 1"),
        ({"valid_ratio": -0.1}, "valid_ratio is -0.1"),
        ({"step_splitter": "line"}, "known splitters"),
        ({"step_splitter": "separator", "step_separator": ""}, "step_separator is empty"),
        ({"step_splitter": "lines", "format": "implicit_cot"}, "name their steps themselves; leave it out"),
    ],
)
def test_options_that_cannot_be_used(tmp_path, changes, words):
    with pytest.raises(ConfigError) as caught:
        prepare(PrepareOptions(**{"output_file": str(tmp_path / "out.jsonl"), **changes}), [gsm8k(1)])
    assert words in str(caught.value) and list(tmp_path.iterdir()) == []


def test_short_pieces_and_the_system_prompt_are_said(tmp_path):
    long = "A sentence that is long enough."
    rows = [{"question": f"q{i}", "answer": f"First.\n\n{long}\n\nThen.\n\n{long}"} for i in range(2)]
    said = run(tmp_path, [*rows, {"question": "q", "answer": f"a\n\n{long}"}]).lines()
    assert (
        "  Too short for a step: 4 pieces in 2 rows, joined to a neighbour (--min_step_length 21; 1 keeps each as a step)"
        in said
    )
    assert any("1 step found (2 with those below --min_step_length 21)" in line for line in said)
    assert any("asks for \\boxed{}, and no answer has one" in line for line in said)
    boxed = {"question": "b", "answer": f"{long}\n\n{long} \\boxed{{3}}"}
    assert any("only 1 of 3 answers have one" in line for line in run(tmp_path, [*rows, boxed]).lines())
    quiet = run(tmp_path, rows, min_step_length=1, system_prompt=None).lines()
    assert not any("Too short" in line or "prompt" in line for line in quiet)
