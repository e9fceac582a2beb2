"""The metric that is suggested goes by the answers, not by the system prompt, and no file is ever an error."""

from __future__ import annotations

import json

import pytest

from stepjepa.data.suggest import suggested_metric

SYSTEM = {"role": "system", "content": "put the answer in \\boxed{}"}


def chat(answer):
    return {"messages": [SYSTEM, {"role": "user", "content": "q"}, {"role": "assistant", "content": answer}]}


@pytest.mark.parametrize(
    ("rows", "metric"),
    [
        ([chat("so \\boxed{3}"), chat("then \\boxed{4}"), chat("five")], "gsm8k"),
        ([{"question": "q", "answer": "48/2\n#### 24"}], "gsm8k"),
        ([chat("[a-z]+"), chat("\\boxed{4}")], "exact"),
        ([{"question": "q", "answer": "SELECT 1"}], "exact"),
        ([{"question": "Put it in \\boxed{}: q", "answer": "SELECT 1"}], "exact"),
        ([{"prompt": "q", "response": "#### Heading\nand text"}], "exact"),
        ([{"prompt": "q", "response": "so \\boxed{1}"}], "gsm8k"),
        ([{"messages": None}, [1], {"messages": [3]}], "exact"),
        ([], "exact"),
    ],
)
def test_by_the_answers(tmp_path, rows, metric):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert suggested_metric(file) == metric


def test_what_cannot_be_looked_at(tmp_path):
    (tmp_path / "broken.jsonl").write_text("{\n")
    (tmp_path / "binary.parquet").write_bytes(b"\0\1")
    for name in (None, "openai/gsm8k:main", tmp_path, tmp_path / "none.jsonl", *tmp_path.iterdir()):
        assert suggested_metric(name) == "exact"
