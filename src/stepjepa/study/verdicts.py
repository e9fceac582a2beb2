"""The table of a block in one metric: `compare` and `table` with what a study runs beside its arms.

`compare_arms` knows one control for each arm, and equal compute as a baseline that was trained for longer. A study has two
controls, and runs the arm for fewer steps (``same_flop``). Here the one is put in terms of the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from stepjepa.study.compare import ArmRuns, ComparedArm, Verdict, compare_arms
from stepjepa.study.grid import row_name
from stepjepa.study.spec import SAME_FLOP, Block, MetricSpec
from stepjepa.study.table import Table

Rows = dict[str, ComparedArm]
# The role of an arm's run for fewer steps, which `compare` does not know.
AT_EQUAL_COMPUTE = "at equal compute"


def block_table(block: Block, series: Mapping[str, ArmRuns], metric: MetricSpec, alpha: float = 0.05) -> Table:
    """The table of a block in one metric; rows in the study's order, each arm followed by its controls and its run at equal
    compute.

    Args:
        series: row -> runs, see `records.arm_series`.
    """

    def compared(arms: list[ArmRuns]) -> Rows:
        options = {"baseline": block.baseline, "higher_is_better": metric.higher_is_better, "alpha": alpha}
        return {row.name: row for row in compare_arms(arms, metric.name, **options)}  # type: ignore[arg-type]

    baseline = series[block.baseline]
    others = [arm for arm in block.arms if arm.name != block.baseline]
    main, random, short = [baseline], [baseline], [baseline]
    for arm in others:
        runs, control = series[arm.name], arm.control_arm
        if "shuffled" in arm.variants:
            control = row_name(arm.name, "shuffled")
            main.append(series[control])
        if "random" in arm.variants:
            other = series[row_name(arm.name, "random")]
            random += [replace(runs, control=other.name), other]
        reference = None
        if SAME_FLOP in arm.variants:
            short.append(series[row_name(arm.name, SAME_FLOP)])
            reference = _reference(runs, short[-1], baseline)
            main.append(reference)
        main.append(replace(runs, control=control, compute_baseline=reference.name if reference else None))
    rows, by_random, by_compute = compared(main), compared(random), compared(short)
    ordered = [rows[block.baseline]]
    for arm in others:
        row = rows[arm.name]
        if row.compute is not None:
            row = replace(row, compute=replace(row.compute, against=block.baseline))
        if arm.name in by_random:
            row = _with_random(row, by_random[arm.name])
        ordered.append(row)
        for variant in arm.variants:
            name = row_name(arm.name, variant)
            if variant == SAME_FLOP:  # what it comes to stands in its arm's row
                short_row = replace(by_compute[name], examples=None, verdict=None)
                ordered.append(replace(short_row, role=AT_EQUAL_COMPUTE))  # type: ignore[arg-type]
            else:
                ordered.append((rows if variant == "shuffled" else by_random)[name])
    return Table(metric.name, metric.higher_is_better, block.baseline, alpha, 0.95, tuple(ordered))


def _reference(arm: ArmRuns, same_flop: ArmRuns, baseline: ArmRuns) -> ArmRuns:
    """A series R with ``arm - R = same_flop - baseline``, seed by seed.

    Held against it by `compare_arms`, the arm differs by as much as it differs from the baseline at equal compute.
    """
    metrics: dict[str, dict[int, float | None]] = {}
    for name, values in arm.metrics.items():
        short, plain = same_flop.metrics[name], baseline.metrics[name]
        metrics[name] = {}
        for seed in values:
            if seed in short and seed in plain:
                found = [values[seed], short[seed], plain[seed]]
                full, fewer, base = found
                metrics[name][seed] = None if None in found else full - (fewer - base)  # type: ignore[operator]
    return ArmRuns(f"{same_flop.name} against {baseline.name}", metrics)


def _with_random(row: ComparedArm, found: ComparedArm) -> ComparedArm:
    """An arm's row once it was compared with its second control too (`found`): that must be behind the arm as well."""
    if row.control is None:
        row = replace(row, control=found.control)
    assert row.verdict is not None and found.verdict is not None
    missing = [reason for reason in found.verdict.reasons if reason.startswith(("its control", "its shuffled control"))]
    if row.verdict.label != "better" or not missing:
        return row
    said = tuple(reason.replace("shuffled ", "").replace("its control", "its random control") for reason in missing)
    return replace(row, verdict=Verdict("not established", ("better at equal examples", *said)))
