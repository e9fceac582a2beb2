"""``stepjepa prepare`` through the entry point, on all of GSM8K."""

import json

import pytest

from stepjepa.cli.main import main
from stepjepa.data.steps import make_splitter
from support.rows import lines


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
