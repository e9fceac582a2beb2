"""Verdicts of a study: what may be called better, what is said to be missing, and the table that shows them."""

import pytest

from stepjepa.evaluation.statistics import holm, paired_difference
from stepjepa.study.compare import ArmRuns, compare_arms
from stepjepa.study.results import Table, p_text, table_cells

pytest.importorskip("scipy")
pytest.importorskip("statsmodels")
pytestmark = pytest.mark.filterwarnings("error")

# Differences from the baseline with means 5, 0, -5 and 1 or so and a spread of about 1: shown or not shown at five seeds.
BASE = [60.0, 55.0, 70.0, 62.0, 58.0]
UP = [5.0, 6.0, 4.0, 5.5, 4.5]
HALF = [2.5, 3.1, 1.9, 2.7, 2.2]
NONE = [1.0, -1.0, 0.5, -0.5, 0.25]
DOWN = [-5.0, -6.0, -4.0, -5.5, -4.5]


def arm(name, shift=(0, 0, 0, 0, 0), seeds=range(5), flops=None, **links):
    values = {seed: BASE[seed] + shift[seed] for seed in seeds}
    return ArmRuns(name, {"accuracy": values}, flops=dict.fromkeys(seeds, flops) if flops else {}, **links)


def compare(*arms, higher_is_better=True, metric="accuracy"):
    every = [arm("plain", flops=100), *arms]
    rows = compare_arms(every, metric, baseline="plain", higher_is_better=higher_is_better, alpha=0.05)
    return {row.name: row for row in rows}


def verdict(*arms, **options):
    return str(compare(*arms, **options)["jepa"].verdict)


FULL = {"control": "shuffled", "same_flop": "short"}
BOTH = {**FULL, "random": "random"}


def test_better_needs_baseline_controls_and_compute():
    arms = arm("jepa", UP, **BOTH), arm("shuffled", NONE), arm("random", NONE), arm("short", HALF)
    rows = compare(*arms)
    assert str(rows["jepa"].verdict) == "better"
    assert [row.role for row in rows.values()] == ["baseline", "arm", "control", "control", "at equal compute"]
    assert rows["shuffled"].verdict is None and not rows["short"].comparisons
    made = rows["jepa"].comparisons
    assert made["examples"].result == paired_difference([b + u for b, u in zip(BASE, UP, strict=True)], BASE)
    assert (made["control"].against, made["random"].against) == ("shuffled", "random")


def test_lower_may_be_better():
    links = [arm("shuffled", NONE), arm("short", DOWN)]
    assert verdict(arm("jepa", DOWN, **FULL), *links, higher_is_better=False) == "better"
    assert verdict(arm("jepa", UP, **FULL), *links, higher_is_better=False) == "worse"
    said = verdict(arm("jepa", NONE, same_flop="short"), arm("short", DOWN))
    assert said == "no difference shown: worse at equal compute"


BETTER = "not established: better at equal examples; "
SHUFFLED = arm("shuffled", NONE)


@pytest.mark.parametrize(
    ("arms", "said"),
    [
        ([arm("jepa", NONE)], "no difference shown"),
        ([arm("jepa", DOWN)], "worse"),
        ([arm("jepa", UP, seeds=[0, 1])], "not established: n=2 seeds in common with plain"),
        ([arm("jepa", seeds=[])], "not established: n=0 seeds in common with plain"),
        ([arm("jepa", [2.0] * 5)], "not established: all 5 differences from plain are equal"),
        ([arm("jepa", UP)], f"{BETTER}no shuffled control was run; not compared at equal compute"),
        ([arm("jepa", UP, control="shuffled"), SHUFFLED], f"{BETTER}not compared at equal compute"),
        ([arm("jepa", UP, needs_control=False)], f"{BETTER}not compared at equal compute"),
        (
            [arm("jepa", UP, **FULL), arm("shuffled", UP), arm("short", HALF)],
            f"{BETTER}against its shuffled control: no difference shown",
        ),
        (
            [arm("jepa", UP, **BOTH), SHUFFLED, arm("random", UP), arm("short", HALF)],
            f"{BETTER}against its random control: no difference shown",
        ),
        ([arm("jepa", UP, **FULL), SHUFFLED, arm("short", NONE)], f"{BETTER}at equal compute: no difference shown"),
        ([arm("jepa", UP, **FULL), SHUFFLED, arm("short", DOWN)], f"{BETTER}at equal compute: worse"),
        (
            [arm("jepa", UP, **FULL), SHUFFLED, arm("short", seeds=[3])],
            f"{BETTER}at equal compute: n=1 seed in common with plain",
        ),
        # An arm that costs as much needs no other comparison of compute.
        ([arm("jepa", UP, flops=101, control="shuffled"), SHUFFLED], "better"),
        ([arm("jepa", UP, flops=103, control="shuffled"), SHUFFLED], f"{BETTER}not compared at equal compute"),
    ],
)
def test_verdicts(arms, said):
    assert verdict(*arms) == said


@pytest.mark.parametrize("lost", [None, float("nan"), float("inf")])
def test_a_run_that_diverged_is_not_passed_over(lost):
    """Four seeds would show it, but the fifth was run as well."""
    values = {**{seed: BASE[seed] + UP[seed] for seed in range(4)}, 4: lost}
    jepa = compare(ArmRuns("jepa", {"accuracy": values}))["jepa"]
    assert str(jepa.verdict) == "not established: no value for seed 4"
    assert jepa.seeds == (0, 1, 2, 3)
    assert (jepa.comparisons["examples"].lost, jepa.comparisons["examples"].result.n) == ((4,), 4)


def test_pairs_go_by_seed_not_by_order():
    values = {4: 62.5, 0: 65.0, 2: 74.0, 9: 1.0}
    jepa = compare(ArmRuns("jepa", {"accuracy": values}))["jepa"]
    examples = jepa.comparisons["examples"]
    assert (examples.seeds, examples.lost) == ((0, 2, 4), ())  # seed 9 was not run by the baseline
    assert examples.result.mean == pytest.approx((5 + 4 + 4.5) / 3)
    assert jepa.summary.n == 4


def test_holm_runs_over_arms_and_not_over_what_they_are_compared_with():
    rows = compare(
        arm("jepa", UP, **FULL), arm("tube", NONE), arm("cosine", DOWN, control="c2"),
        arm("shuffled", NONE), arm("c2", NONE), arm("short", NONE),
    )  # fmt: skip
    arms = [rows[name] for name in ("jepa", "tube", "cosine")]
    made = [row.comparisons["examples"] for row in arms]
    assert [c.holm_p for c in made] == pytest.approx(holm([c.result.t_p for c in made]))
    controls = [rows[name].comparisons["control"] for name in ("jepa", "cosine")]
    assert [c.holm_p for c in controls] == pytest.approx(holm([c.result.t_p for c in controls]))
    compute = rows["jepa"].comparisons["compute"]
    assert compute.holm_p == pytest.approx(compute.result.t_p)
    assert rows["shuffled"].comparisons["examples"].holm_p is None


def test_cells_of_the_table():
    arms = [
        ArmRuns("plain", {"accuracy": {0: 60.0, 1: 62.0, 2: 64.0}}, flops={0: 1e15, 1: 3e15}, seconds={0: 80.0}),
        ArmRuns("jepa", {"accuracy": {0: 63.0, 1: 65.0, 2: 68.0}}, control="jepa | shuffled", flops={0: 3e15}),
        ArmRuns("jepa | shuffled", {"accuracy": {0: 60.0, 1: 63.0, 2: 64.5}}),
        ArmRuns("tube", {"accuracy": {0: 61.0}}),
    ]
    rows = compare_arms(arms, "accuracy", baseline="plain", higher_is_better=True, alpha=0.05)
    columns = table_cells(Table("accuracy", True, "plain", 0.05, tuple(rows)).record())
    header, rows = list(columns), list(zip(*columns.values(), strict=True))
    assert header == [
        "arm", "seeds", "mean", "sd", "95 % interval", "difference at equal examples [95 %]", "p (t, Holm)",
        "difference from shuffled control [95 %]", "p from shuffled control (t, Holm)", "FLOPs", "seconds", "verdict",
    ]  # fmt: skip
    plain, jepa, shuffled, tube = (dict(zip(header, row, strict=True)) for row in rows)
    assert (plain["mean"], plain["sd"], plain["95 % interval"]) == ("62", "2", "[57.03, 66.97]")
    assert (plain["FLOPs"], plain["seconds"], plain["verdict"]) == ("2 P", "80", "baseline")
    # Differences 3, 3, 4: mean 10/3, half width 4.302653 * 0.57735 / sqrt(3) = 1.4342, t = 10 with 2 degrees.
    assert jepa["difference at equal examples [95 %]"] == "+3.333 [+1.899, +4.768]"
    assert jepa["p (t, Holm)"] == "0.010"
    assert jepa["verdict"] == "not established: better at equal examples; not compared at equal compute"
    assert (shuffled["verdict"], shuffled["p (t, Holm)"], shuffled["seconds"]) == ("control", "", "-")
    assert (tube["sd"], tube["95 % interval"], tube["p (t, Holm)"]) == ("-", "-", "")
    assert tube["difference at equal examples [95 %]"] == "+1"
    assert tube["verdict"] == "not established: n=1 seed in common with plain"
    assert [p_text(p) for p in (0.00099, 0.001, 1.0)] == ["<0.001", "0.001", "1.000"]
