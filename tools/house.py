"""Measure the house and hold it to its record; `make lint` runs `python tools/house.py`.

`tools/house.json` has for every figure its recorded value (`now`), its `target` and the `direction`. A figure that is worse
than both fails: figures move towards their targets, and stay there. `tools/figures.py` defines what is counted.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from figures import measure

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "tools" / "house.json"


def worse(value: float, bound: float, direction: str) -> bool:
    """Whether a value lies on the wrong side of a bound; `direction` is ``at most`` or ``at least``."""
    return value > bound if direction == "at most" else value < bound


def failures(record: Mapping[str, Any], values: Mapping[str, float], strict: bool = False) -> list[str]:
    """A line for every figure that is worse than its record and its target; with `strict`, worse than its target."""
    lines = []
    for name, value in values.items():
        now, target, direction = (record[name][key] for key in ("now", "target", "direction"))
        if worse(value, target, direction) and (strict or worse(value, now, direction)):
            bound = f"the target is {direction} {target:g}" if strict else f"recorded is {now:g} ({value - now:+g})"
            lines.append(f"{name} is {value:g}, {bound}; see: python tools/house.py --where {name}")
    return lines


def improved(record: Mapping[str, Any], values: Mapping[str, float]) -> dict[str, Any]:
    """The record with the values that are better than theirs."""
    better = {
        name: value for name, value in values.items() if worse(record[name]["now"], value, record[name]["direction"])
    }
    return {name: {**entry, "now": better.get(name, entry["now"])} for name, entry in record.items()}


def table(record: Mapping[str, Any], values: Mapping[str, float]) -> str:
    """One row a figure: measured, recorded, target."""
    rows = [("figure", "measured", "recorded", "target", "")]
    for name, entry in record.items():
        measured = f"{values[name]:,}" if name in values else "-"
        mark = "" if name not in values or worse(values[name], entry["target"], entry["direction"]) else "reached"
        rows.append((name, measured, f"{entry['now']:,}", f"{entry['direction']} {entry['target']:,}", mark))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def main(argv: list[str] | None = None) -> int:
    """Exit status 1 where a figure fails."""
    parser = argparse.ArgumentParser(description="Measure the house and hold it to tools/house.json.")
    parser.add_argument("--strict", action="store_true", help="hold every figure to its target")
    parser.add_argument("--update", action="store_true", help="write better figures into the record; never worse ones")
    parser.add_argument("--where", metavar="FIGURE", help="list what a figure is made of, and stop")
    options = parser.parse_args(argv)
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    if options.where and options.where not in record:
        parser.error(f"--where {options.where}: the figures are {', '.join(record)}")
    figures = measure(ROOT)
    if options.where:
        print("\n".join(figures[options.where].parts))
        return 0
    values = {name: figure.value for name, figure in figures.items()}
    print(table(record, values))
    failed = failures(record, values, options.strict)
    better = improved(record, values)
    if failed:
        print(*failed, sep="\n", file=sys.stderr)
        return 1
    if better != record and options.update:
        lines = [f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in better.items()]
        RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
        print("The better figures are recorded.")
    elif better != record:
        changed = [name for name in record if better[name] != record[name]]
        print(f"Better than recorded: {', '.join(changed)}. Record it: python tools/house.py --update")
    return 0


if __name__ == "__main__":
    sys.exit(main())
