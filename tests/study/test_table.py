"""The table of a study in its forms."""

from __future__ import annotations

import json

import pytest

from stepjepa.study.compare import ArmRuns
from stepjepa.study.results import Table, p_text

pytest.importorskip("scipy")
pytest.importorskip("statsmodels")

ARMS = [
    ArmRuns("plain", {"accuracy": {0: 60.0, 1: 62.0, 2: 64.0}}, flops={0: 1e15, 1: 3e15}, seconds={0: 80.0}),
    ArmRuns("jepa", {"accuracy": {0: 63.0, 1: 65.0, 2: 68.0}}, control="jepa | shuffled", flops={0: 3e15}),
    ArmRuns("jepa | shuffled", {"accuracy": {0: 60.0, 1: 63.0, 2: 64.5}}),
    ArmRuns("tube", {"accuracy": {0: 61.0}}),
]


@pytest.fixture(scope="module")
def table():
    return Table.of(ARMS, "accuracy", "plain", True, 0.05)


def cells(line):
    return [cell.strip().replace("\\|", "|") for cell in line.replace("\\|", "\0").strip("|").split("|")]


def test_markdown(table):
    lines = table.markdown().splitlines()
    assert lines[0] == "**accuracy** (higher is better)"
    header, *rows = [cells(line) for line in lines[2:-2] if not line.startswith("|---")]
    assert header == [
        "arm", "seeds", "mean", "sd", "95 % interval", "difference at equal examples [95 %]", "p (t)", "p (Wilcoxon)",
        "p (t, Holm)", "difference from shuffled control [95 %]", "p from shuffled control (t, Holm)", "FLOPs", "seconds",
        "verdict",
    ]  # fmt: skip
    assert {len(row) for row in rows} == {len(header)}
    plain, jepa, shuffled, tube = (dict(zip(header, row, strict=True)) for row in rows)
    assert (plain["mean"], plain["sd"], plain["95 % interval"]) == ("62.00", "2.00", "[57.03, 66.97]")
    assert (plain["FLOPs"], plain["seconds"], plain["verdict"]) == ("2 P", "80", "baseline")
    # Differences 3, 3, 4: mean 10/3, half width 4.302653 * 0.57735 / sqrt(3) = 1.4342, t = 10 with 2 degrees.
    assert jepa["difference at equal examples [95 %]"] == "+3.33 [+1.90, +4.77]"
    assert (jepa["p (t)"], jepa["p (Wilcoxon)"], jepa["p (t, Holm)"]) == ("0.010", "0.250", "0.010")
    assert jepa["verdict"] == "not established: better at equal examples; not compared at equal compute"
    assert (shuffled["verdict"], shuffled["p (t, Holm)"], shuffled["seconds"]) == ("control", "", "-")
    assert (tube["sd"], tube["95 % interval"], tube["p (t)"]) == ("-", "-", "-")
    assert tube["difference at equal examples [95 %]"] == "+1.00 -"
    assert tube["verdict"] == "not established: n=1 seed in common with plain"
    assert "| jepa \\| shuffled |" in table.markdown()
    assert [p_text(p) for p in (None, 0.00099, 0.001, 1.0)] == ["-", "<0.001", "0.001", "1.000"]


def test_small_differences_of_large_values_keep_two_digits():
    arms = [
        ArmRuns("plain", {"loss": {0: 12.0, 1: 12.1, 2: 12.2}}),
        ArmRuns("jepa", {"loss": {0: 12.0003, 1: 12.1004, 2: 12.2003}}),
    ]
    text = Table.of(arms, "loss", "plain", False, 0.05).markdown()
    assert "+0.00033 [" in text and "| 12.10 |" in text and "(lower is better)" in text


def test_rows_record_and_differences_are_the_table(table):
    rows, drawn = table.rows(), dict(table.differences())
    assert [row["arm"] for row in rows] == ["plain", "jepa", "jepa | shuffled", "tube"]
    assert rows[1]["examples_mean"] == table.arms[1].comparisons["examples"].result.mean
    assert (rows[1]["control_against"], rows[1]["seeds"]) == ("jepa | shuffled", "0 1 2")
    assert (rows[1]["compute_mean"], rows[3]["sd"], rows[0]["examples_t_p"]) == (None, None, None)
    assert len({tuple(row) for row in rows}) == 1
    record = json.loads(json.dumps(table.record(), allow_nan=False))
    assert (record["metric"], record["baseline"], record["alpha"]) == ("accuracy", "plain", 0.05)
    jepa = record["arms"][1]
    assert jepa["summary"]["estimate"] == pytest.approx(196 / 3)
    assert jepa["examples"]["result"]["t_p"] == pytest.approx(0.00985, abs=1e-5)
    assert jepa["verdict"]["label"] == "not established" and jepa["compute"] is None
    assert set(drawn) == {"jepa", "jepa | shuffled", "tube"}
    assert set(drawn["jepa"]) == {"difference at equal examples", "difference from shuffled control"}
    assert drawn["tube"]["difference at equal examples"] == (1.0, None, None)
