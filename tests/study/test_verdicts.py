"""The table of a study: differences at equal compute from the arm's shorter run, and two controls."""

from __future__ import annotations

import pytest

from stepjepa.study.compare import ArmRuns
from stepjepa.study.reading import read_study
from stepjepa.study.spec import MetricSpec
from stepjepa.study.stats import paired_difference
from stepjepa.study.tree import parse_tree
from stepjepa.study.verdicts import block_table

pytest.importorskip("scipy.stats")
pytest.importorskip("statsmodels")

SEEDS = range(5)
BASE = [60.0, 55.0, 70.0, 62.0, 58.0]
UP = [5.0, 6.0, 4.0, 5.5, 4.5]
HALF = [2.5, 3.1, 1.9, 2.7, 2.2]
NONE = [1.0, -1.0, 0.5, -0.5, 0.25]
ACCURACY = MetricSpec("accuracy")


@pytest.fixture(scope="module")
def block():
    text = (
        "data: builtin\narms: {regular: {objective: regular}, jepa: {objective: step_jepa}}\nseeds: [0, 1, 2, 3, 4]\n"
        "controls: [shuffled, random]\nequal_compute: true\n"
    )
    return read_study(parse_tree(text, "study.yaml"), "study").blocks[0]


def table(block, **shifts):
    names = {"regular": "regular", "jepa": "jepa", **{v: f"jepa+{v}" for v in ("shuffled", "random", "same_flop")}}
    series = {}
    for key, name in names.items():
        shift = shifts.get(key, [0.0] * 5)
        values = {s: None if shift[s] is None else BASE[s] + shift[s] for s in SEEDS}
        series[name] = ArmRuns(name, {"accuracy": values}, needs_control=key != "regular")
    return {row.name: row for row in block_table(block, series, ACCURACY).arms}


def test_rows_and_their_places(block):
    rows = table(block, jepa=UP, same_flop=HALF)
    assert list(rows) == ["regular", "jepa", "jepa+shuffled", "jepa+random", "jepa+same_flop"]
    assert [row.role for row in rows.values()] == ["baseline", "arm", "control", "control", "at equal compute"]
    assert [row.name for row in rows.values() if row.verdict is not None] == ["jepa"]


def test_equal_compute_is_the_shorter_run_against_the_baseline(block):
    jepa = table(block, jepa=UP, same_flop=HALF, shuffled=NONE)["jepa"]
    assert str(jepa.verdict) == "better"
    short = [base + half for base, half in zip(BASE, HALF, strict=True)]
    by_hand = paired_difference(short, BASE)
    for name in ("mean", "low", "high", "t_p"):
        assert getattr(jepa.compute.result, name) == pytest.approx(getattr(by_hand, name), rel=1e-9)
    assert (jepa.compute.against, jepa.compute.seeds) == ("regular", (0, 1, 2, 3, 4))
    assert jepa.examples.result == paired_difference([b + u for b, u in zip(BASE, UP, strict=True)], BASE)


@pytest.mark.parametrize(
    ("shifts", "said"),
    [
        ({"jepa": UP, "same_flop": HALF, "shuffled": UP}, "its shuffled control is not shown to be behind it"),
        ({"jepa": UP, "same_flop": HALF, "random": UP}, "its random control is not shown to be behind it"),
        ({"jepa": UP, "same_flop": NONE}, "no difference shown at equal compute"),
        ({"jepa": UP, "same_flop": [-u for u in UP]}, "worse at equal compute"),
        ({"jepa": UP, "same_flop": [2.5, None, 1.9, 2.7, 2.2]}, "at equal compute: no value for seed 1"),
        ({"jepa": UP, "same_flop": HALF, "random": [0, 0, None, 0, 0]}, "its random control: no value for seed 2"),
    ],
)
def test_what_is_not_established(block, shifts, said):
    assert str(table(block, **shifts)["jepa"].verdict) == f"not established: better at equal examples; {said}"


def test_an_arm_that_is_not_better_is_not_made_worse_by_its_random_control(block):
    assert str(table(block, jepa=NONE, random=UP)["jepa"].verdict) == "no difference shown"
    assert str(table(block, jepa=[-u for u in UP], random=UP)["jepa"].verdict) == "worse"


def test_lower_may_be_better(block):
    down = [-u for u in UP]
    names = {"regular": 0, "jepa": down, "jepa+shuffled": 0, "jepa+random": 0, "jepa+same_flop": down}
    series = {
        name: ArmRuns(name, {"loss": {s: BASE[s] + (shift[s] if shift else 0) for s in SEEDS}})
        for name, shift in names.items()
    }
    rows = {row.name: row for row in block_table(block, series, MetricSpec("loss", {}, False)).arms}
    assert str(rows["jepa"].verdict) == "better"
    assert rows["jepa+shuffled"].examples.result.t_p == 1.0
