"""The tables of docs/evidence.md are those of the records beside it, and the records are those of the recipes."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from stepjepa.study.reading import read_study
from stepjepa.study.spec import all_runs
from stepjepa.study.tree import open_study

pytest.importorskip("scipy.stats")
pytest.importorskip("statsmodels")

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "evidence.md").read_text(encoding="utf-8")
STUDIES = sorted(path.stem for path in (DOCS / "evidence").glob("*.jsonl"))


@pytest.mark.long
def test_the_tables_are_those_of_the_records(generator_of):
    assert generator_of("make_evidence")["filled"](PAGE) == PAGE


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_has_its_tables_and_no_run_of_its_recipe_is_left_out(name):
    assert f"<!-- table {name} " in PAGE
    lines = (DOCS / "evidence" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    found, tree = open_study(name)
    wanted = Counter((run.arm.name, run.control, run.compute, run.seed) for run in all_runs(read_study(tree, found)))
    assert Counter((r["arm"], r["control"], r["compute"], r["seed"]) for r in records) == wanted
    assert all(r["status"] == "finished" and r["metrics"] for r in records)
