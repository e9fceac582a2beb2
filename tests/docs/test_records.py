"""The tables of the pages of results are those of the records beside them, which are runs of the recipes; and the statistics
of docs/planning.md are the ones that its protocol names."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from stepjepa.study.reading import read_study
from stepjepa.study.spec import all_runs
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
    wanted = Counter((run.arm.name, run.control, run.compute, run.seed) for run in runs_of(name))
    assert Counter((r["arm"], r["control"], r["compute"], r["seed"]) for r in records) == wanted
    assert all(r["status"] == "finished" and r["metrics"] for r in records)


def test_records_are_runs_of_their_recipe(script):
    labels, planning = script("make_labels"), script("make_planning")
    recorded = {record["run"] for block in labels.BLOCKS for record in labels.records_of(block)}
    assert recorded and recorded <= {run.name for run in runs_of("labels_or_jepa")}
    assert {arm for block in labels.BLOCKS for arm in labels.choices(block)} <= set(labels.ARMS)
    assert {row["run"] for row in planning.records_of("grid")} <= {run.name for run in runs_of("planning_grid")}


# The planning study


@pytest.fixture(scope="module")
def planning(script):
    return script("make_planning")


def run(arm, seed, accuracy, control="none", flops=4.0, block="star"):
    history = [{"step": n, "examples": 64 * n, "total_flos": n, "eval_task": n * accuracy / 4} for n in (1, 2, 3, 4)]
    named = {"run": f"{block} {arm} {control} {seed}", "block": block, "arm": arm, "control": control, "seed": seed}
    return {**named, "at": {"train": ""}, "metrics": {"test": {"task": accuracy}}, "flops": flops, "history": history}


def test_the_test_has_the_settings_that_the_grid_chose(planning):
    """Of every arm the best one, and of the latent arms the two best ones, the first of which has random targets too."""
    found, tree = open_study("planning")
    blocks = {block.name: block for block in read_study(tree, found).blocks}
    (grid,) = read_study(open_study("planning_grid")[1], "planning_grid").blocks
    for block in blocks.values():
        assert block.base | {"max_steps": 2500} == grid.base and block.evaluation == grid.evaluation
    used = {arm.name: arm.settings for name in ("path_star", "path_star-tokens") for arm in blocks[name].arms}
    means = {}
    for arm, cells in planning.cells_of("grid").items():
        chosen = planning.choice(cells)
        if chosen is None:
            continue
        means[arm] = sum(planning.accuracy(row, "select") for row in cells[chosen])
        if arm in used:
            assert (used[arm]["learning_rate"], used[arm].get("lbd", 0)) == chosen
    latent = sorted(means.keys() - {"regular", "multi_token"}, key=lambda arm: -means[arm])[:2]
    assert len(means) == 7 and latent == [arm.name for arm in blocks["path_star"].arms[1:]]
    assert [arm.name for arm in blocks["path_star-random"].arms] == latent[:1]
    assert [arm.settings for arm in blocks["a5"].arms] == [arm.settings for arm in blocks["path_star"].arms]


def test_a_setting_that_diverged_is_out_and_equal_ones_are_in_order(planning):
    def cells(*rights):
        rows = ([{"metrics": {"select": {"task": right}}} for right in one] for one in rights)
        return dict(zip([(1e-3, 1.0), (2e-3, 1.0), (3e-3, 1.0), (4e-3, 1.0)], rows, strict=False))

    orders = [293 / 300, 292 / 300, 292 / 300], [298 / 300, 289 / 300, 290 / 300]
    for one, other in (orders, orders[::-1]):
        assert planning.choice(cells(one, other, [0.1] * 3, [None, 1.0, 1.0])) == (1e-3, 1.0)
    assert planning.choice(cells([1.0] * 3, [1.0] * 3)) is None


def test_the_sign_flip_test_is_exact(planning):
    assert planning.sign_flip([0.5] * 12) == planning.sign_flip([-0.5] * 12) == 2 / 2**12
    assert planning.sign_flip([3.0, -1.0, 2.0]) == 4 / 8  # as far from 0, or farther, of the means of eight signs


def test_equal_compute_and_the_examples_until_a_share(planning):
    record = run("a", 1, 1.0)
    assert [planning.within(record, flops) for flops in (0.5, 2.5, 9)] == [0.0, 0.5, 1.0]
    assert planning.examples_until(record) == 256 and planning.examples_until(run("a", 1, 0.9)) is None


def test_hypotheses_of_twelve_seeds(planning, monkeypatch):
    rows = [run("a", seed, 1.0, block=task) for seed in range(12) for task in ("star", "a5")]
    rows += [run("a", seed, 0.5, "shuffled", block=task) for seed in range(12) for task in ("star", "a5")]
    rows += [run("regular", seed, 0.5 + seed / 100, block=task) for seed in range(12) for task in ("star", "a5")]
    rows += [run("b", seed, (seed % 2) / 2 + 0.25, control) for seed in range(12) for control in ("none", "shuffled")]
    monkeypatch.setattr(planning, "records_of", lambda name: rows)
    lines = planning.hypotheses_table("test", "a", "b", ["star", "a5"]).splitlines()[2:]
    assert [line.split(" | ")[-1] for line in lines] == [*["yes |"] * 4, "no |", "no |"]
    assert "| `a` - `regular` | +44.5 [" in lines[0] and lines[0].split(" | ")[4:6] == ["0.0005", "0.0029"]
    rows += [run("multi_token", seed, 1.0) for seed in range(12)]
    assert "| `a` | 100.0 [100.0, 100.0] | 0.0 | 12 of 12 | +44.5 [" in planning.arms_table("test", "star")
    rows[0] = {**rows[0], "flops": None, "metrics": {}, "history": []}  # it diverged before any evaluation
    assert "| `a` | 91.7 [75.0, 100.0] |" in planning.arms_table("test", "star")
    assert "| `a` | 91.7 | " in planning.compute_table("test", "star")


def test_the_test_is_shown_once_it_is_complete(planning, monkeypatch):
    runs = runs_of("planning")
    rows = []
    for one in runs:
        variant = one.variant or "none"
        right = 0.5 if variant != "none" or one.arm.name == "regular" else 1.0
        record = run(one.arm.name, one.seed, right, variant, block=one.block.name)
        rows.append({**record, "run": one.name, "at": {"test": ""}, "code": {}})
    monkeypatch.setattr(planning, "records_of", lambda name: rows[1:])
    assert planning.test_tables("planning").startswith(f"{len(runs) - 1} of {len(runs)} runs are done")
    monkeypatch.setattr(planning, "records_of", lambda name: rows)
    text = planning.test_tables("planning")
    assert text.count("| `multi_token` | 100.0") == 4 and text.count("| yes |") == 6 and "+random` | 50.0" in text
    assert "assets/planning_path_star.png" in text and "assets/planning_a5.png" in text
