"""The table of a block of a study in one metric."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from stepjepa.study.compare import ArmRuns
from stepjepa.study.grid import row_name
from stepjepa.study.spec import CONTROLS, SAME_FLOP, Block, MetricSpec
from stepjepa.study.table import Table, study_table


def block_table(block: Block, series: Mapping[str, ArmRuns], metric: MetricSpec, alpha: float = 0.05) -> Table:
    """The table of a block in one metric; rows in the study's order, each arm followed by its controls and its run at equal
    compute.

    Args:
        series: row -> runs, see `records.arm_series`.
    """
    arms = [series[block.baseline]]
    for arm in block.arms:
        if arm.name == block.baseline:
            continue
        beside = {variant: row_name(arm.name, variant) for variant in arm.variants}
        shuffled, random = (beside.get(control) for control in CONTROLS)
        links = {"control": shuffled or arm.control_arm, "random": random, "same_flop": beside.get(SAME_FLOP)}
        arms += [replace(series[arm.name], **links), *(series[name] for name in beside.values())]  # type: ignore[arg-type]
    return study_table(
        arms, metric.name, baseline=block.baseline, higher_is_better=metric.higher_is_better, alpha=alpha
    )
