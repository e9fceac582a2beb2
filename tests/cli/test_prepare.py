"""``stepjepa prepare`` through the entry point: what it says, and all of GSM8K."""

import json

import pytest

from stepjepa.cli.main import main
from stepjepa.data.steps import make_splitter
from support.rows import gsm8k, lines, write


def test_what_it_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "raw.jsonl", [gsm8k(1), "{", gsm8k(2)])
    assert main(["prepare", "raw.jsonl", "--output_file", "out/train.jsonl"]) == 0
    out, err = capsys.readouterr()
    assert err == "" and out.splitlines() == [
        "Prepared: raw.jsonl",
        "  Format: gsm8k",
        "  Rows: 3 read, 2 kept, 1 skipped",
        "    skipped 1: broken json (first: raw.jsonl line 2: broken JSON (Expecting property name enclosed in double "
        "quotes at character 2); one JSON object per line is expected)",
        "  Steps per row: 2 in 2",
        "  out/train.jsonl: 2 rows",
        "Next: stepjepa train --train_file out/train.jsonl --model_name mini --step_jepa --output_dir runs/train",
    ]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"train.jsonl", "train.report.json"}


def test_gsm8k(shared_dir, tmp_path):
    file, count = shared_dir / "data" / "gsm8k_test.jsonl", 1319
    if not file.is_file():
        pytest.skip(f"no {file}")
    out = tmp_path / "out.jsonl"
    assert main(["prepare", str(file), "--output_file", str(out), "--require_correct"]) == 0
    report = json.loads((tmp_path / "out.report.json").read_text())
    assert report["rows_read"] == count and report["format"] == "gsm8k"
    raw = lines(file)
    stepped = [row for row in raw if len(row["answer"].split("\n####")[0].split("\n")) >= 2]
    assert report["rows_kept"] >= 0.995 * len(stepped)
    splitter = make_splitter("separator")
    for row in lines(out):
        answer = row["messages"][2]["content"]
        assert [answer[start:end].strip() for start, end in splitter.spans(answer)] == row["steps"]
        assert row["steps"][-1].endswith(f"\n\\boxed{{{row['ground_truth']}}}") and "<<" not in answer
