"""The table of a study in its forms, and the tables of a study's records."""

from __future__ import annotations

import json

import pytest

from stepjepa.study.compare import ArmRuns, paired_difference
from stepjepa.study.reading import read_study
from stepjepa.study.results import RunRecord, Table, p_text, study_tables
from stepjepa.study.tree import parse_tree

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


STUDY = """\
data: builtin
arms: {regular: {objective: regular}, jepa: {objective: step_jepa}}
metrics: [answer_nll]
seeds: [0, 1, 2, 3, 4]
controls: [shuffled, random]
equal_compute: true
"""
BASE = [6.0, 5.5, 7.0, 6.2, 5.8]
UP = [-0.50, -0.60, -0.40, -0.55, -0.45]
HALF = [-0.25, -0.31, -0.19, -0.27, -0.22]


def tables_of(study, **changes):
    """The first table where each row's values are the baseline's and these; None is a run that failed."""
    records = []
    for row in ("regular", "jepa", "shuffled", "random", "same_flop"):
        for seed, base in enumerate(BASE):
            change = changes.get(row, [0.0] * 5)[seed]
            records.append(
                RunRecord(
                    block="", arm="regular" if row == "regular" else "jepa", seed=seed, cell={}, chosen=True, settings={},
                    control=row if row in ("shuffled", "random") else "none",
                    compute="equal compute" if row == "same_flop" else "equal examples",
                    metrics={} if change is None else {"test": {"answer_nll": base + change}, "select": {"answer_nll": 1.0}},
                    flops=None, train_seconds=2.0, steps=4, model=None,
                    status="failed" if change is None else "finished", error=None,
                )
            )  # fmt: skip
    return study_tables(study, records)["", "answer_nll"]


@pytest.fixture(scope="module")
def study():
    return read_study(parse_tree(STUDY, "study.yaml"), "study")


def test_the_rows_of_a_study_and_what_they_are_compared_with(study):
    table = tables_of(study, jepa=UP, same_flop=HALF)
    rows = {row.name: row for row in table.arms}
    assert list(rows) == ["regular", "jepa", "jepa+shuffled", "jepa+random", "jepa+same_flop"]
    assert [row.role for row in rows.values()] == ["baseline", "arm", "control", "control", "at equal compute"]
    assert str(rows["jepa"].verdict) == "better" and not table.higher_is_better
    made = rows["jepa"].comparisons
    short = [base + half for base, half in zip(BASE, HALF, strict=True)]
    assert made["compute"].result == paired_difference(short, BASE)
    assert [made[kind].against for kind in ("control", "random")] == ["jepa+shuffled", "jepa+random"]
    assert (rows["jepa"].seconds, rows["jepa"].flops) == (2.0, None)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"same_flop": HALF, "shuffled": UP}, "its shuffled control is not shown to be behind it"),
        ({"same_flop": [-0.25, None, -0.19, -0.27, -0.22]}, "at equal compute: no value for seed 1"),
    ],
)
def test_a_run_that_failed_is_not_passed_over(study, changes, said):
    (arm,) = [arm for arm in tables_of(study, jepa=UP, **changes).arms if arm.role == "arm"]
    assert str(arm.verdict) == f"not established: better at equal examples; {said}"
