"""From a study to its runs: arms x controls x compute x hyper-parameters x seeds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepjepa.study.spec import SAME_FLOP, Arm, Block, Study, Values

# Between an arm's name and its variant's; no arm's name holds it.
MARK = "+"


@dataclass(frozen=True)
class Run:
    """One model to be trained and scored.

    Attributes:
        block, arm: names.
        variant: empty, ``shuffled``, ``random`` or ``same_flop``.
        cell: the tuned hyper-parameters.
        settings: all fields of ``stepjepa train`` that the study sets, but for the data and where things are written.
    """

    block: str
    arm: str
    variant: str
    cell: Values
    seed: int
    settings: Values

    @property
    def row(self) -> str:
        """The row of the table that it belongs to."""
        return row_name(self.arm, self.variant)

    @property
    def group(self) -> str:
        """Block, row and cell: all that is equal for all seeds."""
        return "/".join(part for part in (self.block, self.row, cell_name(self.cell)) if part)

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"{self.group} seed {self.seed}"

    @property
    def folder(self) -> Path:
        """Below the study's output_dir."""
        parts = [self.block, self.row, cell_name(self.cell), f"seed-{self.seed}"]
        return Path("runs", *(part for part in parts if part))

    @property
    def control(self) -> str:
        """The option `control` of the run: ``none``, ``shuffled`` or ``random``."""
        return self.variant if self.variant not in ("", SAME_FLOP) else "none"

    @property
    def compute(self) -> str:
        """At what it is equal to the baseline."""
        return "equal compute" if self.variant == SAME_FLOP else "equal examples"


def row_name(arm: str, variant: str) -> str:
    """``step_jepa+shuffled``."""
    return f"{arm}{MARK}{variant}" if variant else arm


def cell_name(cell: Values) -> str:
    """``learning_rate=0.001,lbd=0.5``, a folder's name."""
    return ",".join(f"{name}={_word(value)}" for name, value in cell.items())


def arm_runs(block: Block, arm: Arm) -> list[Run]:
    """The runs that the validation split chooses among: cells x seeds."""
    return [_run(block, arm, "", cell, seed) for cell in arm.cells for seed in block.seeds]


def variant_runs(block: Block, arm: Arm, variant: str, cell: Values) -> list[Run]:
    """A control, or the arm at equal compute, with the chosen cell: it differs from the arm in that one thing."""
    return [_run(block, arm, variant, cell, seed) for seed in block.seeds]


def all_runs(study: Study) -> Iterator[Run]:
    """Every run there may be; variants of tuned arms stand with their first cell until one is chosen."""
    for block in study.blocks:
        for arm in block.arms:
            yield from arm_runs(block, arm)
            for variant in arm.variants:
                yield from variant_runs(block, arm, variant, arm.cells[0])


def changes(run: Run, block: Block) -> dict[str, Any]:
    """What a run has that the base does not say, but for its seed."""
    absent = object()
    return {
        name: value
        for name, value in run.settings.items()
        if name != "seed" and (name in run.cell or block.base.get(name, absent) != value)
    }


def count_in_words(runs: Sequence[Run]) -> str:
    """``6 runs`` or ``1 run``."""
    return f"{len(runs)} run{'' if len(runs) == 1 else 's'}"


def _run(block: Block, arm: Arm, variant: str, cell: Values, seed: int) -> Run:
    settings = {**block.base, **arm.settings, **cell, "seed": seed}
    if variant:
        settings |= {SAME_FLOP: True} if variant == SAME_FLOP else {"control": variant}
    # A run may start from what another study's run of the same seed has left.
    settings = {k: v.replace("{seed}", str(seed)) if isinstance(v, str) else v for k, v in settings.items()}
    return Run(block.name, arm.name, variant, dict(cell), seed, settings)


def _word(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "-".join(map(_word, value))
    return re.sub(r"[^\w.-]", "_", f"{value:g}" if isinstance(value, float) else str(value))
