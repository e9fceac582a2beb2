"""Pages of ``stepjepa inspect``: made-up rows on them, and reading them back."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from stepjepa.data.types import Example
from stepjepa.inspect.html import FormRows, Variant, page_data, page_html, write_page
from stepjepa.inspect.record import RowRecord
from support.models import Views, paired
from support.records import row_record


def read_page(path: Path) -> dict[str, Any]:
    """The data inside a page, as a browser finds it."""
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text())[1])


def seen_matrix(row: dict[str, Any]) -> np.ndarray:
    """(L, L) bool, from the runs that a page holds."""
    matrix = np.zeros((len(row["seen"]), len(row["seen"])), bool)
    for query, runs in enumerate(row["seen"]):
        for start, stop in zip(runs[::2], runs[1::2], strict=True):
            matrix[query, start:stop] = True
    return matrix


def stepped_example(length: int, pairs: int, predictors: int = 2) -> Example:
    """A trunk of `length` tokens, the last two thirds labelled, with `pairs` pairs of steps of equal length."""
    start = length // 3
    edges = np.linspace(start, length, pairs + 2).astype(int).tolist()
    views = [Views(a - 1, a, b) for a, b in zip(edges[1:-1], edges[2:], strict=True)]
    return paired(np.arange(length) % 97, ((start, length),), views, predictors)


def records(example: Example, texts: Any, forms=("packed", "two_pass")) -> dict[str, RowRecord]:
    return {form: row_record([example], 2, texts, vocabulary=97, forward=form) for form in forms}


def write_rows(path: Path, rows: dict[str, RowRecord], title: str = "a row") -> Path:
    """A page of one record a form."""
    missing = {form: "this form is left out" for form in ("packed", "two_pass", "inline") if form not in rows}
    variant = Variant(2, "packed", {form: FormRows([record]) for form, record in rows.items()}, missing)
    write_page(page_html(page_data(title, [variant], ["a note"])), path)
    return path
