"""The choice among hyper-parameters, by the validation split alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stepjepa.study.grid import Run, cell_name
from stepjepa.study.results import StudyRunFolder
from stepjepa.study.spec import Arm, Block


def choose_cell(block: Block, arm: Arm, runs: Sequence[tuple[Run, StudyRunFolder]]) -> dict[str, Any]:
    """The cell with the best mean over the seeds; of equal ones the first. A cell that diverged for a seed is out.

    Args:
        runs: all of the arm's, scored on the validation split.

    Returns:
        ``cell`` (None where none has a value), ``metric``, ``rule``, ``means`` and ``values`` (cell -> seed -> value), and
        the choice in ``words``.
    """
    metric, highest = block.select
    values: dict[str, dict[str, float | None]] = {}
    for run, folder in runs:
        record = folder.done("select") or {"metrics": {}}
        values.setdefault(cell_name(run.cell), {})[str(run.seed)] = record["metrics"].get(metric)
    means: dict[str, float | None] = {}
    for name, by_seed in values.items():
        found = [value for value in by_seed.values() if value is not None]
        means[name] = sum(found) / len(found) if len(found) == len(by_seed) else None
    known = [(name, mean) for name, mean in means.items() if mean is not None]
    best = None
    if known:
        name = (max if highest else min)(known, key=lambda pair: pair[1])[0]
        best = next(cell for cell in arm.cells if cell_name(cell) == name)
    return {
        "cell": None if best is None else dict(best),
        "split": "select",
        "metric": metric,
        "rule": "highest" if highest else "lowest",
        "means": means,
        "values": values,
        "words": f"the validation split chose {cell_name(best) if best is not None else 'nothing'} "
        f"({'highest' if highest else 'lowest'} {metric} of {len(means)})",
    }
