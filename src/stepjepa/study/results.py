"""What a study writes when it ends: a record for each run, the tables, and the verdicts.

``table.json`` holds the tables with every number; `table_cells` is how a report shows them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from stepjepa.config.option import Values
from stepjepa.evaluation.statistics import CONFIDENCE, ArmVerdict, share
from stepjepa.study.compare import ArmRuns, ComparedArm, Kind, Solved, compare_arms
from stepjepa.study.records import Item, RunRecord, State, record_of
from stepjepa.study.spec import SAME_FLOP, Block, MetricSpec, Study
from stepjepa.utils.files import Record, json_line, write_json, write_whole
from stepjepa.utils.text import scaled, written

# Kind of comparison -> the titles of its column and of the column with its corrected p-value.
KINDS: dict[Kind, tuple[str, str]] = {
    "examples": ("difference at equal examples", "p (t, Holm)"),
    "compute": ("difference at equal compute", "p at equal compute (t, Holm)"),
    "control": ("difference from shuffled control", "p from shuffled control (t, Holm)"),
    "random": ("difference from random control", "p from random control (t, Holm)"),
}
_LEVEL = f"{100 * CONFIDENCE:g} %"


@dataclass(frozen=True)
class Table:
    """The results of all arms on one metric.

    Attributes:
        alpha: level of the verdicts, after Holm's correction.
        solved: see `Study`; None where it is not counted in this metric.
    """

    metric: str
    higher_is_better: bool
    baseline: str
    alpha: float
    arms: tuple[ComparedArm, ...]
    solved: float | None = None

    def record(self) -> Record:
        """The table for JSON. Each arm has an entry for every kind of comparison, None if it was not made."""
        record = asdict(self)
        for arm in record["arms"]:
            comparisons = arm.pop("comparisons")
            for kind in KINDS:
                arm[kind] = comparisons.get(kind)
        return record


Tables = dict[tuple[str, str], Table]


def table_cells(record: Values) -> dict[str, list[str]]:
    """Column title -> one cell per arm, for a table in the form of `Table.record`; empty columns are left out."""
    arms = record["arms"]
    summaries = [arm["summary"] for arm in arms]
    columns = {
        "arm": [arm["name"] for arm in arms],
        "seeds": [str(one["n"]) for one in summaries],
        "mean": [written(one["estimate"], ".4g") for one in summaries],
        "sd": [written(one["sd"], ".3g") for one in summaries],
        f"{_LEVEL} interval": [interval_text(one, ".4g") for one in summaries],
    }
    # Tables from version 0.2 lack this entry.
    if record.get("solved") is not None:
        side = "at least" if record["higher_is_better"] else "at most"
        bound = f"{side} {record['solved']:g}"
        columns[f"solved, {bound} [{_LEVEL}]"] = [_solved_cell(arm["solved"]) for arm in arms]
    for kind, (title, p_title) in KINDS.items():
        comparisons = [arm[kind] for arm in arms]
        columns[f"{title} [{_LEVEL}]"] = [_difference_cell(one) for one in comparisons]
        corrected = [one and one["holm_p"] for one in comparisons]
        columns[p_title] = ["" if p is None else p_text(p) for p in corrected]
    columns["FLOPs"] = [scaled(arm["flops"]) for arm in arms]
    columns["seconds"] = [written(arm["seconds"], ".4g") for arm in arms]
    columns["verdict"] = [_verdict_cell(arm) for arm in arms]
    return {
        title: cells
        for title, cells in columns.items()
        if any(cell not in ("", "-") for cell in cells)
    }


def table_title(record: Values) -> str:
    """``gsm8k (higher is better)``, after the name of the block if the study has several."""
    block = f"{record['block']}, " if record.get("block") else ""
    direction = "higher" if record["higher_is_better"] else "lower"
    return f"{block}{record['metric']} ({direction} is better)"


def p_text(p: float) -> str:
    """A p-value with three decimals; "<0.001" if it is smaller."""
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def interval_text(ends: Values, form: str) -> str:
    """``[low, high]``, "-" if an end is None."""
    low, high = ends["low"], ends["high"]
    return "-" if low is None or high is None else f"[{low:{form}}, {high:{form}}]"


def _difference_cell(comparison: Values | None) -> str:
    if comparison is None:
        return ""
    result = comparison["result"]
    mean = written(result["mean"], "+.4g")
    return mean if result["low"] is None else f"{mean} {interval_text(result, '+.4g')}"


def _solved_cell(solved: Values) -> str:
    return f"{solved['solved']} of {solved['runs']} {interval_text(solved, '.2f')}"


def _verdict_cell(arm: Values) -> str:
    return str(ArmVerdict(**arm["verdict"]) if arm["verdict"] else arm["role"])


def study_tables(study: Study, records: Sequence[RunRecord]) -> Tables:
    """(block, metric) -> table, in the order of the study's metrics. Each arm is followed by its variants."""
    tables: Tables = {}
    for block in study.blocks:
        by_row = _runs_by_row(block, records)
        arms = list(_arm_runs(block, by_row))
        for metric in block.metrics:
            higher = metric.higher_is_better
            rows = compare_arms(
                arms,
                metric.name,
                baseline=block.baseline,
                higher_is_better=higher,
                alpha=study.alpha,
            )
            solved = study.solved if metric is block.metrics[0] else None
            if solved is not None:
                rows = [
                    replace(row, solved=_solved(_tested(by_row[row.name]), metric, solved))
                    for row in rows
                ]
            tables[block.name, metric.name] = Table(
                metric.name, higher, block.baseline, study.alpha, tuple(rows), solved
            )
    return tables


def _runs_by_row(block: Block, records: Sequence[RunRecord]) -> dict[str, list[RunRecord]]:
    """Row of the block's tables -> its runs, without the cells of an arm that were not chosen."""
    names = {(arm.name, variant): row for arm in block.arms for variant, row in arm.rows.items()}
    by_row: dict[str, list[RunRecord]] = defaultdict(list)
    for record in records:
        if record.block == block.name and record.chosen:
            by_row[names[record.arm, record.variant]].append(record)
    return by_row


def _tested(records: Sequence[RunRecord]) -> list[RunRecord]:
    """The runs that were scored or failed. A failed run counts as a run without a value; otherwise, an arm whose runs crash
    would be judged by its other runs only."""
    return [record for record in records if "test" in record.metrics or record.status == "failed"]


def _solved(records: Sequence[RunRecord], metric: MetricSpec, bound: float) -> Solved:
    """How many of an arm's runs reached the bound."""
    solved = sum(
        reaches(record.metrics.get("test", {}).get(metric.name), metric, bound)
        for record in records
    )
    interval = share(solved, len(records))
    return Solved(len(records), solved, interval.low, interval.high)


def reaches(value: float | None, metric: MetricSpec, bound: float) -> bool:
    """Whether a value of a metric is as good as the bound; False if it is missing or not finite."""
    if value is None or not math.isfinite(value):
        return False
    return value >= bound if metric.higher_is_better else value <= bound


def _arm_runs(block: Block, by_row: Mapping[str, Sequence[RunRecord]]) -> Iterator[ArmRuns]:
    """The baseline, then each other arm and its variants, with their values on the test split."""
    for arm in sorted(block.arms, key=lambda arm: arm.name != block.baseline):
        rows = {"": arm.name} if arm.name == block.baseline else arm.rows
        for variant, row in rows.items():
            records = by_row.get(row, ())
            tested = _tested(records)
            metrics = {}
            for metric in block.metrics:
                metrics[metric.name] = {
                    record.seed: record.metrics.get("test", {}).get(metric.name)
                    for record in tested
                }
            runs = ArmRuns(
                row,
                metrics,
                flops={record.seed: record.flops for record in records if record.flops},
                seconds={
                    record.seed: record.train_seconds for record in records if record.train_seconds
                },
            )
            if not variant:
                runs = replace(
                    runs,
                    control=rows.get("shuffled", arm.control_arm),
                    random=rows.get("random"),
                    same_flop=rows.get(SAME_FLOP),
                    needs_control=arm.jepa or arm.control_arm is not None,
                )
            yield runs


# Files and lines


def write_results(
    study: Study, state: State, items: Sequence[Item], notes: Sequence[str]
) -> tuple[Tables, list[str]]:
    """Write the results into the study's folder; return the tables, and lines for a terminal.

    Args:
        items: the runs that could be started so far.
        notes: remarks on the runs.
    """
    records = [record_of(item, state) for item in items]
    tables = study_tables(study, records)
    shown = [{"block": block, **table.record()} for (block, _), table in tables.items()]
    missing = missing_lines(study, state, items)
    result: Record = {
        "title": study.title,
        "shows": study.shows,
        "verdicts": [line for table in shown for line in verdict_lines(table)],
        "tables": shown,
        "choices": [line for block in study.blocks for line in _choice_lines(block, state)],
        "missing": [asdict(record) for record in records if record.status != "finished"],
        "notes": [*study.notes, *notes],
    }
    lines_of_records = (json_line(asdict(record)) for record in records)
    write_whole(study.output_dir / "results.jsonl", lines_of_records)
    write_json(study.output_dir / "table.json", result, indent=1)
    lines = [*result["verdicts"]]
    if missing:
        lines += ["missing runs:", *(f"  {line}" for line in missing)]
    return tables, [*lines, "", f"written to {study.output_dir}: results.jsonl, table.json"]


def _choice_lines(block: Block, state: State) -> Iterator[str]:
    """The cell that the validation split chose for each arm, and the means that decided."""
    for arm in block.arms:
        choice = state.choice(block.name, arm.name)
        if choice is not None:
            means = [f"{cell}: {written(mean, '.5g')}" for cell, mean in choice["means"].items()]
            yield (
                f"{arm.name}: {choice['words']}. Validation means: {', '.join(means)}. Chosen {choice['at']}, before "
                "its test split was scored."
            )


def verdict_lines(table: Values) -> Iterator[str]:
    """The verdict on every arm of a table in the form of `Table.record`, with the differences behind it."""
    yield f"{table_title(table)}, against {table['baseline']}:"
    for arm in table["arms"]:
        if arm["verdict"] is None:
            continue
        yield f"  {arm['name']}: {_verdict_cell(arm)}"
        for kind in ("examples", "compute"):
            comparison = arm[kind]
            if comparison is None or comparison["result"]["mean"] is None:
                continue
            p = comparison["holm_p"]
            corrected = "" if p is None else f", p = {p_text(p)} (Holm)"
            seeds = f"n = {comparison['result']['n']} seeds"
            yield f"    at equal {kind}: {_difference_cell(comparison)}{corrected}, {seeds}"


def missing_lines(study: Study, state: State, items: Sequence[Item]) -> list[str]:
    """A line for every run without a result, with the reason."""
    lines = [f"{item.run.name}: {item.error or 'not run'}" for item in items if item.missing]
    for block in study.blocks:
        for arm in block.arms:
            if arm.tuned and state.choice(block.name, arm.name) is None:
                name = f"{block.name}/{arm.name}" if block.name else arm.name
                lines.append(
                    f"{name}: nothing was chosen on the validation split, so its test split was not scored"
                )
    return lines
