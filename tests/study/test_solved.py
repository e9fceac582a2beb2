"""How many seeds solve a task, from the records of the planning study."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from stepjepa.study.reading import read_study
from stepjepa.study.records import RunRecord
from stepjepa.study.results import study_tables, table_cells
from stepjepa.study.tree import open_study

RECORDS = Path(__file__).parents[2] / "docs" / "evidence" / "planning" / "test.jsonl"


def test_the_share_of_seeds_is_that_of_the_page():
    found, tree = open_study("planning")
    study = read_study(tree, found)
    blocks = tuple(replace(block, metrics=block.metrics[:1]) for block in study.blocks if block.name == "path_star")
    study = replace(study, blocks=blocks)
    every = [RunRecord(**json.loads(line)) for line in RECORDS.read_text(encoding="utf-8").splitlines()]
    records = [record for record in every if record.block == "path_star"]
    tables = study_tables(study, records)
    cells = table_cells(tables["path_star", "task"].record())
    solved = dict(zip(cells["arm"], cells["solved, at least 0.95 [95 %]"], strict=True))
    assert solved["next_latent"] == "11 of 12 [0.65, 0.99]" and solved["plan_infonce"].startswith("6 of 12 ")
    assert solved["regular"].startswith("1 of 12 ") and solved["next_latent+shuffled"] == "0 of 12 [0.00, 0.24]"
    # One that failed has not solved it.
    first = next(row for row in records if row.arm == "next_latent" and not row.variant)
    failed = replace(first, metrics={}, history=(), status="failed", error="it diverged")
    table = study_tables(study, [failed if row is first else row for row in records])["path_star", "task"]
    (arm,) = (arm for arm in table.arms if arm.name == "next_latent")
    assert arm.solved is not None and (arm.solved.runs, arm.solved.solved) == (12, 10)
