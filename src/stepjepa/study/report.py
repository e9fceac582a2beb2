"""What a study writes when it ends: results.jsonl, the tables, the figures, and the verdicts in words."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stepjepa.errors import DataError
from stepjepa.study.records import Record, arm_series, records_of
from stepjepa.study.run import Outcome
from stepjepa.study.spec import Block, Study
from stepjepa.study.table import Table
from stepjepa.study.verdicts import block_table
from stepjepa.utils.files import write_whole

Tables = dict[tuple[str, str], Table]


def write_report(outcome: Outcome) -> list[str]:
    """Write everything into the study's folder; what it comes to, in lines for a terminal."""
    study, folder, records = outcome.study, outcome.study.output_dir, records_of(outcome)
    lines = "".join(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n" for record in records)
    _write(folder / "results.jsonl", lines)
    tables = study_tables(study, records)
    _write(folder / "table.md", markdown(outcome, records, tables))
    _write(folder / "table.csv", _csv(tables))
    _write(folder / "table.json", _json(tables, study, records))
    figures = draw(study, tables)
    said = [*verdict_lines(study, tables), *missing_lines(outcome, records)]
    names = ["results.jsonl", "table.md", "table.csv", "table.json", *figures]
    return [*said, "", f"written to {folder}: {', '.join(names)}"]


def study_tables(study: Study, records: Sequence[Record]) -> Tables:
    """(block, metric) -> table, the first metric's first."""
    tables: Tables = {}
    for block in study.blocks:
        series = arm_series(block, records)
        for metric in block.metrics:
            tables[block.name, metric.name] = block_table(block, series, metric, study.alpha)
    return tables


def markdown(outcome: Outcome, records: Sequence[Record], tables: Tables) -> str:
    """``table.md``."""
    study = outcome.study
    parts = [f"# {study.title}", *([study.shows] if study.shows else [])]
    for block in study.blocks:
        if block.name:
            parts.append(f"## {block.name}")
        parts += [table.markdown().rstrip() for (name, _), table in tables.items() if name == block.name]
        parts += list(_choices(outcome, block))
    parts.append(
        "`arm+shuffled` and `arm+random` are the arm with the targets of other examples and with one random vector; "
        "`arm+same_flop` is the arm trained for fewer steps, at the baseline's FLOPs: its difference from the baseline is "
        "the arm's difference at equal compute. Values are those of the test split, FLOPs and seconds those of training."
    )
    missing = missing_lines(outcome, records)
    if missing:
        parts.append("\n".join(["**Runs that are missing**", "", *(f"- {line.strip()}" for line in missing[1:])]))
    notes = [*study.notes, *outcome.notes]
    if notes:
        parts.append("\n".join(["**Notes**", "", *(f"- {note}" for note in notes)]))
    return "\n\n".join(parts) + "\n"


def verdict_lines(study: Study, tables: Tables) -> Iterator[str]:
    """What may be said of every arm, in words."""
    for (block, metric), table in tables.items():
        direction = "higher" if table.higher_is_better else "lower"
        yield f"{f'{block}, ' if block else ''}{metric} ({direction} is better), against {table.baseline}:"
        for arm in table.arms:
            if arm.verdict is None:
                continue
            yield f"  {arm.name}: {arm.verdict}"
            for what, found in (("equal examples", arm.examples), ("equal compute", arm.compute)):
                if found is not None and found.result.mean is not None:
                    result = found.result
                    ends = "" if result.low is None else f" [{result.low:+.4g}, {result.high:+.4g}]"
                    yield f"    at {what}: {result.mean:+.4g}{ends}, n = {result.n} seeds"


def missing_lines(outcome: Outcome, records: Sequence[Record]) -> list[str]:
    """A heading and a line for every run without a result and why; nothing where all are there."""
    lines = []
    for item, record in zip(outcome.items, records, strict=True):
        if record["status"] != "finished":
            lines.append(f"  {item.run.name}: {record['error'] or 'not run'}")
    for block in outcome.study.blocks:
        for arm in block.arms:
            if len(arm.cells) > 1 and outcome.state.choice(block.name, arm.name) is None:
                place = f"{block.name}/" if block.name else ""
                lines.append(
                    f"  {place}{arm.name}: nothing was chosen on the validation split, so its test split was not looked at"
                    + (f", and {', '.join(arm.variants)} not run" if arm.variants else "")
                )
    return ["runs that are missing:", *lines] if lines else []


def draw(study: Study, tables: Tables) -> list[str]:
    """``study.png`` and ``.svg`` of the first metric, ``study_METRIC`` of the others: differences with their intervals."""
    from stepjepa.analysis.plots import forest_figure
    from stepjepa.analysis.style import save_figure

    names: list[str] = []
    metrics = list(dict.fromkeys(metric for _, metric in tables))
    for metric in metrics:
        found = {block: table for (block, name), table in tables.items() if name == metric}
        differences = [
            (f"{block}: {arm}" if block else arm, made)
            for block, table in found.items()
            for arm, made in table.differences()
        ]
        stem = "study" if metric == metrics[0] else f"study_{re.sub(r'[^A-Za-z0-9_-]+', '_', metric)}"
        try:
            figure = forest_figure(
                differences, metric, title=study.title, higher_is_better=next(iter(found.values())).higher_is_better
            )
        except DataError:  # nothing to draw: no pair of runs yet
            continue
        for suffix in (".png", ".svg"):
            save_figure(figure, study.output_dir / f"{stem}{suffix}")
            names.append(f"{stem}{suffix}")
    return names


def _choices(outcome: Outcome, block: Block) -> Iterator[str]:
    for arm in block.arms:
        choice = outcome.state.choice(block.name, arm.name)
        if choice is None:
            continue
        means = ", ".join(
            f"{cell}: {'-' if mean is None else format(mean, '.5g')}" for cell, mean in choice["means"].items()
        )
        yield (
            f"`{arm.name}`: {choice['words']}. Validation means: {means}. Chosen {choice['at']}, before its test split was "
            "scored."
        )


def _csv(tables: Tables) -> str:
    """All tables below each other, with the block and the metric in front."""
    text, writer = io.StringIO(), None
    for (block, metric), table in tables.items():
        for line in csv.DictReader(io.StringIO(table.csv())):
            row = {"block": block, "metric": metric, **line}
            if writer is None:
                writer = csv.DictWriter(text, list(row), lineterminator="\n")
                writer.writeheader()
            writer.writerow(row)
    return text.getvalue()


def _json(tables: Tables, study: Study, records: Sequence[Record]) -> str:
    whole: dict[str, Any] = {
        "title": study.title,
        "tables": [{"block": block, **asdict(table)} for (block, _), table in tables.items()],
        "missing": [record for record in records if record["status"] != "finished"],
    }
    return json.dumps(whole, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _write(path: Path, text: str) -> None:
    write_whole(path, [text.encode()])
