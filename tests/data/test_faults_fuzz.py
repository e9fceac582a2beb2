"""Hundreds of damaged files through `stepjepa prepare`: exit status 0 or 2, one line of error, a complete file or none."""

import json
import random

import pytest

from stepjepa.cli.main import main
from stepjepa.data.steps import make_splitter

FILES = 240  # a fixed seed each
TEACHER = (
    "<think>\nFirst, I halve {0}.\n\nThat gives {1}.\n</think>\n\n**Step 1:** Halve {0}, which gives {1}.\n\n"
    "**Step 2:** Add both:\n\n\\[ {0} + {1} = {2} \\]\n\n\\boxed{{{2}}}",
    "First, note that she sold {0} clips.\n\nThen she sold {1} more of them.\n\nSo the answer is \\boxed{{{2}}}.",
    "1. Halve {0} to get {1} clips.\n2. Add {0} and {1} to get {2}.\n\n```\n{0} + {1}\n\n{2}\n```\n\\boxed{{{2}}}",
)
GSM8K = "In May she sold {0}/2 = <<{0}/2={1}>>{1} clips.\nIn all she sold {0}+{1} = <<{0}+{1}={2}>>{2} clips.\n#### {2}"
COLUMNS = {
    "gsm8k": ("question", "answer"),
    "teacher": ("question", "deepseek_response"),
    "columns": ("problem", "solution"),
}
WRONG = [
    None, 7, -1.5, True, "", " ", [], ["a"], {}, {"a": [None]}, "\ud800", "a" * 3000, "\\boxed{", "<think>", "####",
    "```\n\n", "$$ a \n\n", "</think>", "\u2028\x85", "\x00", "||", "1.\n2.\n3.", "**", float("inf"), 10**40,
]  # fmt: skip
BYTES = [
    b"\xef\xbb\xbf", b"\xff\xfe", b"\x00", b'"', b"{", b"}", b"\n", b"\r\n", b"\r", b",", b"\\", b"[", b"\xe9", b"||",
    b"#### ", b"null", b"\xed\xa0\x80", b"<think>", b"\\ud800", b"1e999", b"[" * 2000, b"9" * 5000, b"NaN", b"\n\n\n",
]  # fmt: skip
FLAGS = [
    "--strict_data", "--dedup", "--keep_thinking", "--drop_short", "--require_correct", "--min_steps 1",
    "--valid_ratio 0.4", "--min_step_length 0", "--system_prompt none", "--overwrite",
]  # fmt: skip
SPLITTER_FLAGS = [f"--step_splitter {name}" for name in ("separator", "lines", "numbered")]
SPLITTER = make_splitter("separator")


def damaged_rows(form, rng):
    """Rows of a format; in half of the files with values of other types, missing columns, rows that are no objects."""
    damage = rng.random() < 0.5
    for index in range(6):
        numbers = (2 * index + 2, index + 1, 3 * index + 3)
        question, answer = COLUMNS[form]
        text = GSM8K if form == "gsm8k" else TEACHER[index % len(TEACHER)]
        row = {question: f"She sold {numbers[0]} clips. How many?", answer: text.format(*numbers)}
        if form != "gsm8k":
            row |= {"ground_truth": str(numbers[2]), "answer": f"#### {numbers[2]}"}
        draw = rng.random() if damage else 0
        if draw > 0.9:
            row = rng.choice([*WRONG, [row], {"messages": []}])
        elif draw > 0.8:
            del row[rng.choice(list(row))]
        elif draw > 0.5:
            row[rng.choice(list(row))] = rng.choice(WRONG)
        yield json.dumps(row, ensure_ascii=rng.random() < 0.5) + "\n"


def damaged(data, rng):
    """Up to four accidents, one after the other."""
    for _ in range(rng.randrange(5)):
        place, end = sorted(rng.randrange(len(data) + 1) for _ in range(2))
        rows = data.split(b"\n")
        data = rng.choice([
            data[:end],
            data[:place] + data[min(end, place + 40) :],
            data[:place] + rng.choice(BYTES) + data[place:],
            data[:place] + bytes([rng.randrange(256)]) + data[place + 1 :],
            data[:place] + data[place:end] + data[place:],
            rng.choice([data.replace(b"\n", b"\r\n"), data.rstrip(b"\n"), b"\xef\xbb\xbf" + data, b"\n" + data]),
            b"\n".join(rng.sample(rows, len(rows))),
            data[:place] + bytes(min(end - place, 64)) + data[end:],
        ])  # fmt: skip
    return data


def assert_whole(path, least_steps):
    """Every line is a row, its steps are its answer, and training would find the same ones; how many rows there are."""
    data = path.read_bytes()
    assert data == b"" or data.endswith(b"\n")
    rows = [json.loads(line) for line in data.decode("utf-8").split("\n")[:-1]]
    for row in rows:
        assert list(row) == ["question", "answer", "ground_truth", "steps", "total_steps", "messages"]
        assert isinstance(row["question"], str) and row["question"].strip() and isinstance(row["answer"], str)
        assert row["ground_truth"] is None or isinstance(row["ground_truth"], str)
        user, assistant = row["messages"][-2:]
        content = assistant["content"]
        assert user == {"role": "user", "content": row["question"]} and assistant["role"] == "assistant"
        assert content == "\n\n".join(row["steps"]) and len(row["steps"]) == row["total_steps"] >= least_steps
        assert [content[start:end].strip() for start, end in SPLITTER.spans(content)] == row["steps"]
    return len(rows)


def run_one(seed, folder, capsys):
    rng = random.Random(seed)
    form = rng.choice(list(COLUMNS))
    file = folder / f"{seed}.{rng.choice(['jsonl', 'jsonl', 'json', 'csv'])}"
    file.write_bytes(damaged("".join(damaged_rows(form, rng)).encode("utf-8", "replace"), rng))
    words = [flag for flag in FLAGS if rng.random() < 0.12]
    words += [f"--format {form}"] * (rng.random() < 0.4)
    words += ["--question_column problem --response_column solution"] * (form == "columns")
    words += [rng.choice(SPLITTER_FLAGS)] * (rng.random() < 0.3)
    out = folder / str(seed) / "out.jsonl"
    status = main(["prepare", str(file), "--output_file", str(out), *" ".join(words).split()])
    printed, error = capsys.readouterr()
    assert "Traceback" not in error
    written = sorted(out.parent.iterdir()) if out.parent.is_dir() else []
    if status == 2:
        assert written == [] and printed == "" and error.count("\n") == 1
        assert error.startswith("stepjepa prepare: error: ")
        return status
    assert status == 0 and error == ""
    report = json.loads((out.parent / "out.report.json").read_text())
    kept = sum(assert_whole(path, 1 if "--min_steps 1" in words else 2) for path in written if path.suffix == ".jsonl")
    assert report["rows_read"] == report["rows_kept"] + sum(report["rows_skipped"].values())
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
