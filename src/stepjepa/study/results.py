"""What a study writes when it ends: a record for each run, the tables, the figures, and the verdicts."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from stepjepa.errors import DataError
from stepjepa.study.compare import ArmRuns
from stepjepa.study.launch import Item, Outcome
from stepjepa.study.spec import SAME_FLOP, Arm, Block, Study, Values
from stepjepa.study.table import Table, study_table
from stepjepa.utils.files import write_whole

Tables = dict[tuple[str, str], Table]
_FOOTNOTE = (
    "`arm+shuffled` and `arm+random` are the arm with the targets of other examples and with one random vector; "
    "`arm+same_flop` is the arm trained for fewer steps, at the baseline's FLOPs: its difference from the baseline is "
    "the arm's difference at equal compute. Values are those of the test split, FLOPs and seconds those of training."
)


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """A line of ``results.jsonl``.

    Attributes:
        control: ``none``, ``shuffled`` or ``random``.
        compute: at what the run is equal to the baseline, ``equal examples`` or ``equal compute``.
        cell: the tuned values; `chosen` says whether the validation split chose them, or nothing was to be chosen.
        settings: what differs from the base.
        metrics: split -> metric -> value; None for a value that is no number.
        model: the folder of the weights, None where there are none.
        status: ``finished``, ``failed`` or ``not run``; `error` says why.
    """

    block: str
    arm: str
    control: str
    compute: str
    seed: int
    cell: Values
    chosen: bool
    settings: Values
    metrics: Mapping[str, Mapping[str, float | None]]
    flops: float | None
    train_seconds: float | None
    steps: int | None
    model: str | None
    status: str
    error: str | None

    @property
    def variant(self) -> str:
        """The arm's variant, "" for the arm itself."""
        return SAME_FLOP if self.compute == "equal compute" else self.control.replace("none", "")


def records_of(outcome: Outcome) -> list[RunRecord]:
    """The record of every run, finished or not, in the study's order."""
    return [_record(item, outcome) for item in outcome.items]


def _record(item: Item, outcome: Outcome) -> RunRecord:
    run, trained = item.run, item.folder.done("train") or {}
    scored = {split: item.folder.done(split) for split in ("select", "test")}
    choice = outcome.state.choice(run.block.name, run.arm.name)
    fixed = bool(run.variant) or not run.arm.tuned
    return RunRecord(
        block=run.block.name,
        arm=run.arm.name,
        control=run.control,
        compute=run.compute,
        seed=run.seed,
        cell=run.cell,
        chosen=fixed or (choice is not None and choice["cell"] == run.cell),
        settings=run.changes,
        metrics={split: record["metrics"] for split, record in scored.items() if record is not None},
        flops=trained.get("flops"),
        train_seconds=trained.get("train_seconds"),
        steps=trained.get("steps"),
        model=str(item.folder.model) if item.folder.has_weights else None,
        status="failed" if item.error is not None else "not run" if item.todo else "finished",
        error=item.error,
    )


def study_tables(study: Study, records: Sequence[RunRecord]) -> Tables:
    """(block, metric) -> table, the first metric's first. Rows are in the study's order, each arm before its variants."""
    tables: Tables = {}
    for block in study.blocks:
        others = [arm for arm in block.arms if arm.name != block.baseline]
        arms = [runs for arm in (block.arm(block.baseline), *others) for runs in _arm_runs(block, arm, records)]
        for metric in block.metrics:
            tables[block.name, metric.name] = study_table(
                arms, metric.name, baseline=block.baseline, higher_is_better=metric.higher_is_better, alpha=study.alpha
            )
    return tables


def _arm_runs(block: Block, arm: Arm, records: Sequence[RunRecord]) -> Iterator[ArmRuns]:
    """An arm and its variants, the baseline alone, on the test split.

    A run that failed is there without a value, so that its arm is not treated as if the run had never been begun.
    """
    rows = {"": arm.name} if arm.name == block.baseline else arm.rows
    for variant, row in rows.items():
        own = [r for r in records if (r.block, r.arm, r.variant) == (block.name, arm.name, variant) and r.chosen]
        tested = [r for r in own if "test" in r.metrics or r.status == "failed"]
        yield ArmRuns(
            row,
            {m.name: {r.seed: r.metrics.get("test", {}).get(m.name) for r in tested} for m in block.metrics},
            control=None if variant else rows.get("shuffled", arm.control_arm),
            random=None if variant else rows.get("random"),
            same_flop=None if variant else rows.get(SAME_FLOP),
            needs_control=arm.jepa or arm.control_arm is not None,
            flops={r.seed: r.flops for r in own if r.flops},
            seconds={r.seed: r.train_seconds for r in own if r.train_seconds is not None},
        )


def write_results(outcome: Outcome) -> tuple[Tables, list[str]]:
    """Write everything into the study's folder; the tables, and lines for a terminal."""
    study, folder, records = outcome.study, outcome.study.output_dir, records_of(outcome)
    tables, missing = study_tables(study, records), missing_lines(outcome)
    rows = [{"block": block, "metric": name, **row} for (block, name), table in tables.items() for row in table.rows()]
    whole = {
        "title": study.title,
        "tables": [{"block": block, **table.record()} for (block, _), table in tables.items()],
        "missing": [asdict(record) for record in records if record.status != "finished"],
    }
    lines = io.StringIO()
    writer = csv.DictWriter(lines, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    texts = {
        "results.jsonl": "".join(_json(asdict(record)) for record in records),
        "table.md": _markdown(outcome, tables, missing),
        "table.csv": lines.getvalue(),
        "table.json": _json(whole, indent=1),
    }
    for name, text in texts.items():
        write_whole(folder / name, [text.encode()])
    names = ", ".join([*texts, *_draw(study, tables)])
    return tables, [*_verdict_lines(tables), *missing, "", f"written to {folder}: {names}"]


def _json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent) + "\n"


def _markdown(outcome: Outcome, tables: Tables, missing: Sequence[str]) -> str:
    study = outcome.study
    parts = [part for part in (f"# {study.title}", study.shows) if part]
    for block in study.blocks:
        parts += [f"## {block.name}"] if block.name else []
        parts += [table.markdown().rstrip() for (name, _), table in tables.items() if name == block.name]
        for arm in block.arms:
            choice = outcome.state.choice(block.name, arm.name)
            if choice is not None:
                means = [f"{cell}: {'-' if mean is None else f'{mean:.5g}'}" for cell, mean in choice["means"].items()]
                parts.append(
                    f"`{arm.name}`: {choice['words']}. Validation means: {', '.join(means)}. Chosen {choice['at']}, before "
                    "its test split was scored."
                )
    parts.append(_FOOTNOTE)
    for title, lines in (("Runs that are missing", missing[1:]), ("Notes", [*study.notes, *outcome.notes])):
        if lines:
            parts.append("\n".join([f"**{title}**", "", *(f"- {line.strip()}" for line in lines)]))
    return "\n\n".join(parts) + "\n"


def _verdict_lines(tables: Tables) -> Iterator[str]:
    """What may be said of every arm."""
    for (block, metric), table in tables.items():
        direction = "higher" if table.higher_is_better else "lower"
        yield f"{f'{block}, ' if block else ''}{metric} ({direction} is better), against {table.baseline}:"
        for arm in table.arms:
            if arm.verdict is not None:
                yield f"  {arm.name}: {arm.verdict}"
            for kind, made in arm.comparisons.items() if arm.verdict else ():
                found = made.result
                if kind in ("examples", "compute") and found.mean is not None:
                    ends = "" if found.low is None else f" [{found.low:+.4g}, {found.high:+.4g}]"
                    yield f"    at equal {kind}: {found.mean:+.4g}{ends}, n = {found.n} seeds"


def missing_lines(outcome: Outcome) -> list[str]:
    """A heading and a line for every run without a result and why; nothing where all are there."""
    lines = [f"  {item.run.name}: {item.error or 'not run'}" for item in outcome.failed]
    lines += [
        f"  {f'{block.name}/' if block.name else ''}{arm.name}: nothing was chosen on the validation split, so "
        f"its test split was not looked at{''.join(f', and {name} not run' for name in arm.variants)}"
        for block in outcome.study.blocks
        for arm in block.arms
        if arm.tuned and outcome.state.choice(block.name, arm.name) is None
    ]
    return ["runs that are missing:", *lines] if lines else []


def _draw(study: Study, tables: Tables) -> Iterator[str]:
    """``study.png`` and ``.svg`` of the first metric, ``study_METRIC`` of the others: differences with their intervals."""
    from stepjepa.analysis.plots import forest_figure, save_figure

    higher = {metric: table.higher_is_better for (_, metric), table in tables.items()}
    for number, metric in enumerate(higher):
        rows = [
            (f"{block}: {arm}" if block else arm, made)
            for (block, name), table in tables.items()
            for arm, made in table.differences()
            if name == metric
        ]
        stem = f"study_{re.sub(r'[^A-Za-z0-9_-]+', '_', metric)}" if number else "study"
        try:
            figure = forest_figure(rows, metric, title=study.title, higher_is_better=higher[metric])
        except DataError:  # nothing to draw: no pair of runs yet
            continue
        for suffix in (".png", ".svg"):
            save_figure(figure, study.output_dir / f"{stem}{suffix}")
            yield f"{stem}{suffix}"
