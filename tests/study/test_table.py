"""The table of a study in its forms."""

from __future__ import annotations

import pytest

from stepjepa.study.compare import ArmRuns, compare_arms
from stepjepa.study.results import Table, p_text, table_cells

pytest.importorskip("scipy")
pytest.importorskip("statsmodels")

ARMS = [
    ArmRuns("plain", {"accuracy": {0: 60.0, 1: 62.0, 2: 64.0}}, flops={0: 1e15, 1: 3e15}, seconds={0: 80.0}),
    ArmRuns("jepa", {"accuracy": {0: 63.0, 1: 65.0, 2: 68.0}}, control="jepa | shuffled", flops={0: 3e15}),
    ArmRuns("jepa | shuffled", {"accuracy": {0: 60.0, 1: 63.0, 2: 64.5}}),
    ArmRuns("tube", {"accuracy": {0: 61.0}}),
]


def table_of(arms, metric, higher=True):
    rows = compare_arms(arms, metric, baseline="plain", higher_is_better=higher, alpha=0.05)
    return Table(metric, higher, "plain", 0.05, tuple(rows))


@pytest.fixture(scope="module")
def table():
    return table_of(ARMS, "accuracy")


def test_cells(table):
    columns = table_cells(table.record())
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
    assert [p_text(p) for p in (None, 0.00099, 0.001, 1.0)] == ["-", "<0.001", "0.001", "1.000"]
