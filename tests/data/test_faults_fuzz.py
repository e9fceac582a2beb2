"""Hundreds of damaged files through `stepjepa prepare`: exit status 0 or 2, one line of error, a whole file or none."""

import csv
import io
import json
import random

import pytest

from stepjepa.cli.main import main
from stepjepa.data.steps import make_splitter

FILES = 240  # a fixed seed each

QUESTION = "Natalia sold clips to {} of her friends in April, and then half as many in May. How many in all?"
STEPS = ("In May she sold {0}/2 = <<{0}/2={1}>>{1} clips.", "In all she sold {0}+{1} = <<{0}+{1}={2}>>{2} clips.")
TEACHER = (
    "<think>\nFirst, I halve {0}.\n\nThat gives {1}.\n</think>\n\n**Step 1:** Halve {0}, which gives {1}.\n\n"
    "**Step 2:** Add both:\n\n\\[ {0} + {1} = {2} \\]\n\n\\boxed{{{2}}}",
    "First, note that she sold {0} clips.\n\nThen she sold {1} more of them.\n\nSo the answer is \\boxed{{{2}}}.",
    "1. Halve {0} to get {1} clips.\n2. Add {0} and {1} to get {2}.\n\n```\n{0} + {1}\n\n{2}\n```\n\\boxed{{{2}}}",
)
SPLITTER = make_splitter("separator")


def made_rows(form, count=6):
    """Good rows of a format."""
    rows = []
    for index in range(count):
        numbers = (2 * index + 2, index + 1, 3 * index + 3)
        question, steps = QUESTION.format(numbers[0]), [step.format(*numbers) for step in STEPS]
        final = f"#### {numbers[2]}"
        if form == "gsm8k":
            rows.append({"question": question, "answer": "\n".join([*steps, final])})
        else:
            response = TEACHER[index % len(TEACHER)].format(*numbers)
            names = ("question", "deepseek_response") if form == "teacher" else ("problem", "solution")
            rows.append({names[0]: question, names[1]: response, "ground_truth": str(numbers[2]), "answer": final})
    return rows


WRONG = [
    None, 7, -1.5, True, "", " ", [], ["a"], {}, {"a": [None]}, "\ud800", "a" * 3000, "\\boxed{", "<think>", "####",
    "```\n\n", "$$ a \n\n", "</think>", "\u2028\x85", "\x00", "||", "1.\n2.\n3.", "**", float("inf"), 10**40,
]  # fmt: skip


def with_wrong_values(rows, rng):
    """Some values of other types, some columns missing, some rows that are no objects."""
    for row in rows:
        draw = rng.random()
        if not isinstance(row, dict) or draw < 0.5:
            yield row
        elif draw < 0.8:
            yield {**row, rng.choice(list(row)): rng.choice(WRONG)}
        elif draw < 0.9:
            gone = rng.choice(list(row))
            yield {key: value for key, value in row.items() if key != gone}
        else:
            yield rng.choice([*WRONG, [row], {"messages": []}])


def as_bytes(rows, kind, rng):
    if kind == "txt":
        return "".join(f"{row}\n" for row in rows).encode("utf-8", "replace")
    if kind == "csv":
        out = io.StringIO()
        objects = [row for row in rows if isinstance(row, dict)] or [{"a": 1}]
        writer = csv.DictWriter(out, list(objects[0]), extrasaction="ignore", restval="")
        writer.writeheader()
        writer.writerows(objects)
        return out.getvalue().encode("utf-8", "replace")
    return "".join(json.dumps(row, ensure_ascii=rng.random() < 0.5) + "\n" for row in rows).encode("utf-8", "replace")


BYTES = [
    b"\xef\xbb\xbf", b"\xff\xfe", b"\x00", b'"', b"{", b"}", b"\n", b"\r\n", b"\r", b",", b"\\", b"[", b"\xe9", b"||",
    b"#### ", b"null", b"\xed\xa0\x80", b"<think>", b"\\ud800", b"1e999", b"[" * 2000, b"9" * 5000, b"NaN", b"\n\n\n",
]  # fmt: skip


def damaged(data, rng):
    """Up to four accidents, one after the other."""
    for _ in range(rng.randrange(5)):
        place, end = sorted(rng.randrange(len(data) + 1) for _ in range(2))
        lines = data.split(b"\n")
        accidents = [
            data[:end],
            data[:place] + data[min(end, place + 40) :],
            data[:place] + rng.choice(BYTES) + data[place:],
            data[:place] + bytes([rng.randrange(256)]) + data[place + 1 :],
            data[:place] + data[place:end] + data[place:],
            rng.choice([data.replace(b"\n", b"\r\n"), data.rstrip(b"\n"), b"\xef\xbb\xbf" + data, b"\n" + data]),
            b"\n".join(rng.sample(lines, len(lines))),
            data[:place] + bytes(min(end - place, 64)) + data[end:],
        ]
        data = rng.choice(accidents)
    return data


FLAGS = [
    "--strict_data", "--dedup", "--keep_thinking", "--drop_short", "--require_correct", "--min_steps 1",
    "--valid_ratio 0.4", "--max_steps 3", "--max_examples 2", "--calculator_marks keep", "--final_answer keep",
    "--min_step_length 0", "--system_prompt none", "--overwrite",
]  # fmt: skip
SPLITTER_FLAGS = [f"--step_splitter {name}" for name in ("separator", "lines", "numbered", "list")]


def flags_of(form, rng):
    words = [flag for flag in FLAGS if rng.random() < 0.12]
    if rng.random() < 0.4:
        words.append(f"--format {form}")
    if form == "columns":
        words.append("--question_column problem --response_column solution")
    if form in ("teacher", "columns", "gsm8k") and rng.random() < 0.3:
        words.append(rng.choice(SPLITTER_FLAGS))
    return [word for words in words for word in words.split(" ")]


def assert_whole(path, least_steps):
    """Every line is a row, its steps are its answer, and training would find the same ones."""
    data = path.read_bytes()
    assert data == b"" or data.endswith(b"\n")
    rows = [json.loads(line) for line in data.decode("utf-8").split("\n")[:-1]]
    for row in rows:
        assert list(row) == ["question", "answer", "ground_truth", "steps", "total_steps", "messages"]
        assert isinstance(row["question"], str) and row["question"].strip() and isinstance(row["answer"], str)
        assert row["ground_truth"] is None or isinstance(row["ground_truth"], str)
        content = row["messages"][-1]["content"]
        assert row["messages"][-2:] == [
            {"role": "user", "content": row["question"]},
            {"role": "assistant", "content": content},
        ]
        assert content == "\n\n".join(row["steps"]) and len(row["steps"]) == row["total_steps"] >= least_steps
        assert [content[start:end].strip() for start, end in SPLITTER.spans(content)] == row["steps"]
    return len(rows)


def run_one(seed, folder, capsys):
    rng = random.Random(seed)
    form = rng.choice(["gsm8k", "teacher", "columns"])
    kind = rng.choice(["jsonl", "jsonl", "jsonl", "json", "csv"])
    rows = made_rows(form)
    if rng.random() < 0.5:
        rows = list(with_wrong_values(rows, rng))
    file = folder / f"{seed}.{kind}"
    file.write_bytes(damaged(as_bytes(rows, kind, rng), rng))
    out = folder / str(seed) / "out.jsonl"
    flags = flags_of(form, rng)
    status = main(["prepare", str(file), "--output_file", str(out), *flags])
    said, error = capsys.readouterr()
    assert "Traceback" not in error
    written = sorted(out.parent.iterdir()) if out.parent.is_dir() else []
    if status == 2:
        assert written == [] and said == "" and error.count("\n") == 1 and error.startswith("stepjepa prepare: error: ")
        return status
    assert status == 0 and error == ""
    report = json.loads((out.parent / "out.report.json").read_text())
    least = int(flags[flags.index("--min_steps") + 1]) if "--min_steps" in flags else 2
    kept = sum(assert_whole(path, least) for path in written if path.suffix == ".jsonl")
    assert report["rows_read"] == report["rows_kept"] + sum(report["rows_dropped"].values())
    assert kept == report["rows_kept"] == sum(report["files"].values()) > 0
    assert {path.name for path in written} == {name.rpartition("/")[2] for name in report["files"]} | {
        "out.report.json"
    }
    return status


@pytest.mark.slow
def test_damaged_files(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("STEPJEPA_TRACEBACK", raising=False)
    ends = {0: 0, 2: 0}
    for seed in range(FILES):
        try:
            ends[run_one(seed, tmp_path, capsys)] += 1
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
    assert min(ends.values()) > FILES // 20, ends  # both ways of ending are met often
