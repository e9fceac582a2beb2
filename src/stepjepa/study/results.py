"""What a study writes when it ends: a record for each run, the tables, the figures, and the verdicts."""

from __future__ import annotations

import csv
import io
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from stepjepa.study.compare import CONFIDENCE, ArmRuns, ComparedArm, Comparison, Kind, compare_arms
from stepjepa.study.records import CIRCUMSTANCES, Item, run_identity
from stepjepa.study.spec import SAME_FLOP, SPLITS, Block, Study, Values
from stepjepa.utils.files import json_bytes, write_whole
from stepjepa.utils.text import scaled, written

if TYPE_CHECKING:
    from stepjepa.study.run import StudyRun

# Kind of comparison, title of its column, title of its corrected p-value's.
KINDS: tuple[tuple[Kind, str, str], ...] = (
    ("examples", "difference at equal examples", "p (t, Holm)"),
    ("compute", "difference at equal compute", "p at equal compute (t, Holm)"),
    ("control", "difference from shuffled control", "p from shuffled control (t, Holm)"),
    ("random", "difference from random control", "p from random control (t, Holm)"),
)
_RESULT = ("n", "mean", "sd", "low", "high", "t_p", "wilcoxon_p", "effect_size")
_FOOTNOTE = (
    "`arm+shuffled` and `arm+random` are the arm with the targets of other examples and with one random vector; "
    f"`arm+{SAME_FLOP}` is the arm trained for fewer steps, at the baseline's FLOPs: its difference from the baseline is "
    "the arm's difference at equal compute. Values are those of the test split, FLOPs and seconds those of training."
)


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """A line of ``results.jsonl``.

    Attributes:
        run, identity, code: its name, what it must share with a study that counts it, and the versions that it was made by.
        at: when each stage was done: ``train``, ``select``, ``test``.
        control: ``none``, ``shuffled`` or ``random``.
        compute: at what the run is equal to the baseline, ``equal examples`` or ``equal compute``.
        cell: the tuned values; `chosen` says whether the validation split chose them, or nothing was to be chosen.
        settings: what differs from the base.
        metrics: split -> metric -> value; None for a value that is no number.
        history: the evaluations on the way: ``step``, ``examples``, ``total_flos`` and ``eval_`` metrics by name.
        losses: the losses of training and the gradient norm, as often as they were logged.
        diverged: what was not finite in a run that broke, None for others.
        machine, dtype, commit: of its training (`stepjepa.study.records.CIRCUMSTANCES`), None where they are not known.
        model: the folder of the weights, None where there are none.
        status: ``finished``, ``failed`` or ``not run``; `error` says why.
    """

    run: str = ""
    identity: str = ""
    code: Values = field(default_factory=dict)
    at: Mapping[str, str] = field(default_factory=dict)
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
    history: Sequence[Mapping[str, float]] = ()
    losses: Sequence[Mapping[str, float]] = ()
    diverged: str | None = None
    machine: str | None = None
    dtype: str | None = None
    commit: str | None = None
    model: str | None
    status: str
    error: str | None

    @property
    def variant(self) -> str:
        """The arm's variant, "" for the arm itself."""
        return SAME_FLOP if self.compute == "equal compute" else self.control.replace("none", "")


@dataclass(frozen=True)
class Table:
    """Arms in one metric.

    Attributes:
        alpha: level of the verdicts, after Holm's correction.
    """

    metric: str
    higher_is_better: bool
    baseline: str
    alpha: float
    arms: tuple[ComparedArm, ...]
    confidence: float = CONFIDENCE

    @classmethod
    def of(cls, arms: Sequence[ArmRuns], metric: str, baseline: str, higher_is_better: bool, alpha: float) -> Table:
        """The arms of a study compared in one metric: see `compare_arms`."""
        rows = compare_arms(arms, metric, baseline=baseline, higher_is_better=higher_is_better, alpha=alpha)
        return cls(metric, higher_is_better, baseline, alpha, tuple(rows))

    def markdown(self) -> str:
        """A heading line, the table, and what its columns mean. Columns that no arm fills are left out."""
        level, rows = f"{100 * self.confidence:g} %", self.arms
        places = _places([arm.summary.estimate for arm in rows], digits=4)
        form = f".{places}f"
        columns: dict[str, list[str]] = {
            "arm": [_cell(arm.name) for arm in rows],
            "seeds": [str(arm.summary.n) for arm in rows],
            "mean": [written(arm.summary.estimate, form) for arm in rows],
            "sd": [written(arm.summary.sd, form) for arm in rows],
            f"{level} interval": [interval_text(arm.summary.low, arm.summary.high, form) for arm in rows],
        }
        for kind, title, p_title in KINDS:
            made = [arm.comparisons.get(kind) for arm in rows]
            most = max(places, _places([c.result.mean for c in made if c], digits=2))
            columns[f"{title} [{level}]"] = [_difference(c, f"+.{most}f") for c in made]
            if kind == "examples":
                columns["p (t)"] = [p_text(c.result.t_p) if c else "" for c in made]
                columns["p (Wilcoxon)"] = [p_text(c.result.wilcoxon_p) if c else "" for c in made]
            columns[p_title] = [p_text(c.holm_p) if c and c.holm_p is not None else "" for c in made]
        columns["FLOPs"] = [scaled(arm.flops) for arm in rows]
        columns["seconds"] = [written(arm.seconds, ".4g") for arm in rows]
        columns["verdict"] = [_cell(str(arm.verdict or arm.role)) for arm in rows]
        columns = {title: cells for title, cells in columns.items() if any(cell not in ("", "-") for cell in cells)}
        lines = [" | ".join(columns), *(" | ".join(cells) for cells in zip(*columns.values(), strict=True))]
        head, *rest = [f"| {line} |" for line in lines]
        legend = (
            f"Differences are paired by seed, against `{self.baseline}` where nothing else is said. p (t): paired t test; "
            "p (Wilcoxon): signed-rank test; Holm: corrected over the arms. "
            f"A verdict of better needs p (t, Holm) < {self.alpha:g} against the baseline, against the arm's controls, "
            "and at equal compute."
        )
        title = f"**{_cell(self.metric)}** ({'higher' if self.higher_is_better else 'lower'} is better)"
        return "\n".join([title, "", head, "|" + "---|" * len(columns), *rest, "", legend]) + "\n"

    def rows(self) -> list[dict[str, Any]]:
        """A flat record of every arm, for CSV: column -> value, None where there is none."""
        rows = []
        for arm in self.arms:
            one, verdict = arm.summary, arm.verdict
            row: dict[str, Any] = {
                "arm": arm.name,
                "role": arm.role,
                "seeds": " ".join(map(str, arm.seeds)),
                "n": one.n,
            }
            row |= {"mean": one.estimate, "sd": one.sd, "low": one.low, "high": one.high}
            for kind, *_ in KINDS:
                made = arm.comparisons.get(kind)
                row |= {f"{kind}_{name}": getattr(made.result, name) if made else None for name in _RESULT}
                row |= {f"{kind}_{name}": getattr(made, name) if made else None for name in ("holm_p", "against")}
            row |= {"flops": arm.flops, "seconds": arm.seconds, "verdict": verdict.label if verdict else None}
            rows.append({**row, "reasons": "; ".join(verdict.reasons) if verdict else None})
        return rows

    def record(self) -> dict[str, Any]:
        """The complete table, for JSON: each arm has its comparisons under their kinds, None where there is none."""
        record = asdict(self)
        for arm in record["arms"]:
            made = arm.pop("comparisons")
            arm.update((kind, made.get(kind)) for kind, *_ in KINDS)
        return record

    def differences(self) -> list[tuple[str, dict[str, tuple[float, float | None, float | None]]]]:
        """(arm, title of the comparison -> (mean difference, low, high)) of all arms but the baseline, for a figure."""
        drawn = []
        for arm in self.arms:
            results = {title: arm.comparisons[kind].result for kind, title, _ in KINDS if kind in arm.comparisons}
            made = {title: (r.mean, r.low, r.high) for title, r in results.items() if r.mean is not None}
            drawn += [(arm.name, made)] if made else []
        return drawn


Tables = dict[tuple[str, str], Table]


def p_text(p: float | None) -> str:
    """A p-value with three decimals, "<0.001" below them and "-" for none."""
    return "-" if p is None else "<0.001" if p < 0.001 else f"{p:.3f}"


def interval_text(low: float | None, high: float | None, form: str) -> str:
    """``[low, high]``, "-" for none."""
    return "-" if low is None or high is None else f"[{low:{form}}, {high:{form}}]"


def _difference(comparison: Comparison | None, form: str) -> str:
    if comparison is None or comparison.result.mean is None:
        return "" if comparison is None else "-"
    result = comparison.result
    return f"{result.mean:{form}} {interval_text(result.low, result.high, form)}"


def _places(values: Sequence[float | None], digits: int) -> int:
    """Decimals that give the largest of `values` so many digits."""
    largest = max((abs(value) for value in values if value), default=1.0)
    return min(max(digits - 1 - math.floor(math.log10(largest)), 0), 12)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


# From runs to tables


def records_of(carried: StudyRun) -> list[RunRecord]:
    """The record of every run, finished or not, in the study's order."""
    return [record_of(carried, item) for item in carried.items]


def record_of(carried: StudyRun, item: Item) -> RunRecord:
    """The record of one run."""
    run, trained, identity = item.run, item.folder.done("train") or {}, carried.state.identity or {}
    choice = carried.state.choice(run.block.name, run.arm.name)
    return RunRecord(
        run=run.name,
        identity=run_identity(run, identity),
        code=identity["code"],
        at={stage: done["at"] for stage in SPLITS if (done := item.folder.done(stage))},
        block=run.block.name,
        arm=run.arm.name,
        control=run.control,
        compute=run.compute,
        seed=run.seed,
        cell=run.cell,
        chosen=not run.only_tunes and bool(run.variant or not run.arm.tuned or (choice and choice["cell"] == run.cell)),
        settings=run.changes,
        metrics={split: done["metrics"] for split in SPLITS[1:] if (done := item.folder.done(split))},
        flops=trained.get("flops"),
        train_seconds=trained.get("train_seconds"),
        steps=trained.get("steps"),
        history=trained.get("history", ()),
        losses=trained.get("losses", ()),
        diverged=trained.get("diverged"),
        **{name: trained.get(name) for name in CIRCUMSTANCES},
        model=str(item.folder.model) if item.folder.has_weights else None,
        status="failed" if item.error is not None else "not run" if item.todo else "finished",
        error=item.error or (f"diverged: {trained['diverged']}" if "diverged" in trained else None),
    )


def study_tables(study: Study, records: Sequence[RunRecord]) -> Tables:
    """(block, metric) -> table, the first metric's first. Rows are in the study's order, each arm before its variants."""
    tables: Tables = {}
    for block in study.blocks:
        arms = list(_arm_runs(block, records))
        for metric in block.metrics:
            name, higher = metric.name, metric.higher_is_better
            tables[block.name, name] = Table.of(arms, name, block.baseline, higher, study.alpha)
    return tables


def _arm_runs(block: Block, records: Sequence[RunRecord]) -> Iterator[ArmRuns]:
    """The baseline alone, then each arm and its variants, on the test split.

    A run that failed is there without a value, so that its arm is not treated as if the run had never been begun.
    """
    by_row = defaultdict[tuple[str, str], list[RunRecord]](list)
    for record in records:
        if record.block == block.name and record.chosen:
            by_row[record.arm, record.variant].append(record)
    for arm in sorted(block.arms, key=lambda arm: arm.name != block.baseline):
        rows = {"": arm.name} if arm.name == block.baseline else arm.rows
        for variant, row in rows.items():
            own = by_row[arm.name, variant]
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


# Files and lines


def write_results(carried: StudyRun) -> tuple[Tables, list[str]]:
    """Write everything into the study's folder; the tables, and lines for a terminal."""
    study, folder, records = carried.study, carried.study.output_dir, records_of(carried)
    tables, missing = study_tables(study, records), missing_lines(carried)
    rows = [{"block": block, "metric": name, **row} for (block, name), table in tables.items() for row in table.rows()]
    complete: dict[str, Any] = {
        "title": study.title,
        "verdicts": list(_verdict_lines(tables)),
        "tables": [{"block": block, **table.record()} for (block, _), table in tables.items()],
        "missing": [asdict(record) for record in records if record.status != "finished"],
    }
    lines = io.StringIO()
    writer = csv.DictWriter(lines, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    texts = {
        "results.jsonl": b"".join(json_bytes(asdict(record)) + b"\n" for record in records),
        "table.md": _markdown(carried, tables, missing).encode(),
        "table.csv": lines.getvalue().encode(),
        "table.json": json_bytes(complete, indent=1) + b"\n",
    }
    for name, text in texts.items():
        write_whole(folder / name, [text])
    names = ", ".join([*texts, *_draw(study, tables)])
    return tables, [*complete["verdicts"], *missing, "", f"written to {folder}: {names}"]


def _markdown(carried: StudyRun, tables: Tables, missing: Sequence[str]) -> str:
    study = carried.study
    parts = [f"# {study.title}", *([study.shows] if study.shows else [])]
    for block in study.blocks:
        parts += [f"## {block.name}"] if block.name else []
        parts += [table.markdown().rstrip() for (name, _), table in tables.items() if name == block.name]
        for arm in block.arms:
            choice = carried.state.choice(block.name, arm.name)
            if choice is not None:
                means = [f"{cell}: {'-' if mean is None else f'{mean:.5g}'}" for cell, mean in choice["means"].items()]
                parts.append(
                    f"`{arm.name}`: {choice['words']}. Validation means: {', '.join(means)}. Chosen {choice['at']}, before "
                    "its test split was scored."
                )
    parts.append(_FOOTNOTE)
    for title, lines in (("Runs that are missing", missing[1:]), ("Notes", [*study.notes, *carried.notes])):
        if lines:
            parts.append("\n".join([f"**{title}**", "", *(f"- {line.strip()}" for line in lines)]))
    return "\n\n".join(parts) + "\n"


def _verdict_lines(tables: Tables) -> Iterator[str]:
    """What may be said of every arm."""
    for (block, metric), table in tables.items():
        direction = "higher" if table.higher_is_better else "lower"
        yield f"{f'{block}, ' if block else ''}{metric} ({direction} is better), against {table.baseline}:"
        for arm in (arm for arm in table.arms if arm.verdict is not None):
            yield f"  {arm.name}: {arm.verdict}"
            for kind, made in arm.comparisons.items():
                found = made.result
                if kind in ("examples", "compute") and found.mean is not None:
                    ends = "" if found.low is None else f" [{found.low:+.4g}, {found.high:+.4g}]"
                    corrected = "" if made.holm_p is None else f", p = {p_text(made.holm_p)} (Holm)"
                    yield f"    at equal {kind}: {found.mean:+.4g}{ends}{corrected}, n = {found.n} seeds"


def missing_lines(carried: StudyRun) -> list[str]:
    """A heading and a line for every run without a result and why; nothing where all are there."""
    lines = [f"  {item.run.name}: {item.error or 'not run'}" for item in carried.failed]
    lines += [
        f"  {f'{block.name}/' if block.name else ''}{arm.name}: nothing was chosen on the validation split, so "
        f"its test split was not looked at{''.join(f', and {name} not run' for name in arm.variants)}"
        for block in carried.study.blocks
        for arm in block.arms
        if arm.tuned and carried.state.choice(block.name, arm.name) is None
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
        if not rows:  # no pair of runs yet
            continue
        stem = f"study_{re.sub(r'[^A-Za-z0-9_-]+', '_', metric)}" if number else "study"
        figure = forest_figure(rows, metric, title=study.title, higher_is_better=higher[metric])
        for suffix in (".png", ".svg"):
            save_figure(figure, study.output_dir / f"{stem}{suffix}")
            yield f"{stem}{suffix}"
