"""What the generators of studies' pages share: records, tables in Markdown, and the places of the tables in a page."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stepjepa.study.records import kept_runs

Record = Mapping[str, Any]
_PLACE = re.compile(r"(<!-- (\w+) ?([^\n]*?) -->\n).*?(<!-- end -->)", re.DOTALL)


def records_in(path: Path) -> list[Record]:
    """The runs of a file of records, the last line of each; a line without a finished stage is a run that was cut off."""
    return list(kept_runs(path).values())


def arm_of(record: Record) -> str:
    """The arm, with its control."""
    return str(record["arm"]) if record["control"] == "none" else f"{record['arm']}+{record['control']}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [f"| {' | '.join(line)} |" for line in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]]) + "\n"


def fill(text: str, tables: Mapping[str, Callable[[str], str]]) -> str:
    """A page with its tables written again: at ``<!-- KIND NAMES -->`` what that kind's function gives for them."""
    return _PLACE.sub(lambda match: f"{match[1]}{tables[match[2]](match[3])}{match[4]}", text)
