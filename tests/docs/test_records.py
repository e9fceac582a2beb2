"""The tables of the pages of results are those of the records beside them, which are runs of the recipes."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from stepjepa.study.reading import read_study
from stepjepa.study.spec import SAME_FLOP, all_runs
from stepjepa.study.tree import open_study

for package in ("scipy.stats", "statsmodels", "matplotlib"):
    pytest.importorskip(package)

DOCS = Path(__file__).resolve().parents[2] / "docs"
STUDIES = sorted(path.stem for path in (DOCS / "evidence").glob("*.jsonl"))


def runs_of(name):
    found, tree = open_study(name)
    return list(all_runs(read_study(tree, found)))


@pytest.mark.parametrize(
    ("page", "text", "times"),
    [
        pytest.param("evidence", "<!-- table ", 1, marks=pytest.mark.long),
        ("labels_or_jepa", "| 2, published method |", 5),
        ("planning", "| `multi_token` |", 7),
    ],
)
def test_a_page_has_the_tables_of_the_records(script, page, text, times):
    content = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    name = page.partition("_")[0]
    assert script(f"make_{name}").filled(content) == content and content.count(text) >= times


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_has_its_tables_and_no_run_of_its_recipe_is_left_out(name):
    assert f"<!-- table {name} " in (DOCS / "evidence.md").read_text(encoding="utf-8")
    lines = (DOCS / "evidence" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    kinds = {"": ("none", "equal examples"), SAME_FLOP: ("none", "equal compute")}
    kinds |= {control: (control, "equal examples") for control in ("shuffled", "random")}
    wanted = Counter((run.arm.name, *kinds[run.variant], run.seed) for run in runs_of(name))
    assert Counter((r["arm"], r["control"], r["compute"], r["seed"]) for r in records) == wanted
    assert all(r["status"] == "finished" and r["metrics"] for r in records)


def without_choice(name):
    """A run of a test seed has the rate that the runs of seed 11 chose, which the recipe alone does not know."""
    return name if name.endswith("seed 11") else re.sub(r"=\S+", "", name)


def test_records_are_runs_of_their_recipe(script):
    labels, planning = script("make_labels"), script("make_planning")
    recorded = {without_choice(record["run"]) for block in labels.BLOCKS for record in labels.records_of(block)}
    assert recorded and recorded <= {without_choice(run.name) for run in runs_of("labels_or_jepa")}
    assert {arm for block in labels.BLOCKS for arm in labels.choices(block)} <= set(labels.ARMS)
    assert {row["run"] for row in planning.records_of("grid")} <= {run.name for run in runs_of("planning_grid")}
    assert {row["run"] for row in planning.records_of("terms")} == {run.name for run in runs_of("planning_terms")}


def test_the_sign_flip_test_is_exact(script):
    sign_flip = script("make_planning").sign_flip
    assert sign_flip([0.5] * 12) == sign_flip([-0.5] * 12) == 2 / 2**12
    assert sign_flip([3.0, -1.0, 2.0]) == 4 / 8  # as far from 0, or farther, of the means of eight signs
