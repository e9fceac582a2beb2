"""One record for each run: the lines of ``results.jsonl``, and the arms' series that the table is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stepjepa.study.compare import ArmRuns
from stepjepa.study.grid import changes, row_name
from stepjepa.study.run import Item, Outcome
from stepjepa.study.spec import CONTROLS, SAME_FLOP, Block

Record = Mapping[str, Any]


def records_of(outcome: Outcome) -> list[dict[str, Any]]:
    """The record of every run, finished or not, in the study's order.

    Its keys: ``block``, ``arm``, ``control`` (none, shuffled, random), ``compute`` (equal examples, equal compute),
    ``seed``, ``cell`` (tuned values), ``chosen`` (by the validation split), ``settings`` (what differs from the base),
    ``metrics`` (split -> metric -> value; null for a value that is no number), ``flops``, ``train_seconds``, ``steps``,
    ``model`` (its folder, null where there are no weights), ``status`` (finished, failed, not run) and ``error``.
    """
    blocks = {block.name: block for block in outcome.study.blocks}
    return [_record(item, blocks[item.run.block], outcome) for item in outcome.items]


def _record(item: Item, block: Block, outcome: Outcome) -> dict[str, Any]:
    run, trained = item.run, item.folder.done("train") or {}
    scored = {split: item.folder.done(split) for split in ("select", "test")}
    status = "failed" if item.error is not None else "not run" if item.open else "finished"
    return {
        "block": run.block,
        "arm": run.arm,
        "control": run.control,
        "compute": run.compute,
        "seed": run.seed,
        "cell": dict(run.cell),
        "chosen": is_chosen(item, block, outcome),
        "settings": changes(run, block),
        "metrics": {split: record["metrics"] for split, record in scored.items() if record is not None},
        "flops": trained.get("flops"),
        "train_seconds": trained.get("train_seconds"),
        "steps": trained.get("steps"),
        "model": str(item.folder.model) if item.folder.has_weights else None,
        "status": status,
        "error": item.error,
    }


def is_chosen(item: Item, block: Block, outcome: Outcome) -> bool:
    """Whether a run has the hyper-parameters that the validation split chose, or had none to be chosen."""
    arm = block.arm(item.run.arm)
    if len(arm.cells) == 1 or item.run.variant:
        return True
    choice = outcome.state.choice(block.name, arm.name)
    return choice is not None and choice["cell"] == dict(item.run.cell)


def arm_series(block: Block, records: Sequence[Record]) -> dict[str, ArmRuns]:
    """Row of the table -> its runs on the test split.

    A run that failed stands there without a value, so that its arm is not spoken of as if it had never been begun.
    """
    series: dict[str, ArmRuns] = {}
    for arm in block.arms:
        for variant in ("", *arm.variants):
            own = [r for r in records if belongs(r, block.name, arm.name, variant) and r["chosen"]]
            metrics: dict[str, dict[int, float | None]] = {metric.name: {} for metric in block.metrics}
            for record in own:
                values = record["metrics"].get("test")
                if values is None and record["status"] != "failed":
                    continue
                for name in metrics:
                    metrics[name][record["seed"]] = (values or {}).get(name)
            series[row_name(arm.name, variant)] = ArmRuns(
                row_name(arm.name, variant),
                metrics,
                needs_control=arm.jepa or arm.control_arm is not None,
                flops={r["seed"]: r["flops"] for r in own if r["flops"]},
                seconds={r["seed"]: r["train_seconds"] for r in own if r["train_seconds"] is not None},
            )
    return series


def belongs(record: Record, block: str, arm: str, variant: str) -> bool:
    """Whether a record is of an arm's run, or of its variant's."""
    control = variant if variant in CONTROLS else "none"
    compute = "equal compute" if variant == SAME_FLOP else "equal examples"
    return (record["block"], record["arm"], record["control"], record["compute"]) == (block, arm, control, compute)
