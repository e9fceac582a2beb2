"""Chats of little sums with their right answers, to train on and to ask for, and their files."""

from __future__ import annotations

import json
from pathlib import Path

from support.rows import step_rows

SYSTEM = "Add up."
TRAIN = step_rows(64)
TEST = [
    {**row, "ground_truth": row["messages"][1]["content"].rpartition("The answer is ")[2].rstrip(".")}
    for row in step_rows(12, seed=1)
]


def lines(path):
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").split("\n")[:-1]]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)
