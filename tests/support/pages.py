"""Pages: made-up rows on those of ``stepjepa inspect``, and reading any page back."""

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np

from stepjepa.data.types import Example
from stepjepa.inspect.html import page_data, page_html, write_page
from stepjepa.inspect.record import RowRecord
from support.models import Views, paired
from support.reports import page_data as page_data_of


def read_page(path: Path) -> dict[str, Any]:
    """The data inside a page, as a browser finds it."""
    return page_data_of(path.read_text())


class Reader(HTMLParser):
    """Tables by their region's label, texts of sections by id, of scripts and styles in order, and all elements."""

    def __init__(self, page: str):
        super().__init__()
        self.tables, self.sections, self.elements = {}, {}, []
        self.code = {"script": [], "style": []}
        self.table = self.section = self.open = None
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.elements.append((tag, attrs))
        self.open = self.code.get(tag)
        if self.open is not None:
            self.open.append("")
        if tag == "section":
            self.section = self.sections.setdefault(attrs.get("id"), [])
        if attrs.get("role") == "region":
            self.table = self.tables.setdefault(attrs["aria-label"], [])
        if self.table is not None and tag == "tr":
            self.table.append([])
        if self.table is not None and tag in ("td", "th"):
            self.table[-1].append("")

    def handle_endtag(self, tag):
        self.open = None
        self.section = None if tag == "section" else self.section
        self.table = None if tag == "table" else self.table

    def handle_data(self, data):
        if self.open is not None:
            self.open[-1] += data
        if self.section is not None:
            self.section.append(data)
        if self.table and self.table[-1]:
            self.table[-1][-1] += data

    def text(self, section):
        return " ".join("".join(self.sections[section]).split())

    def rows(self, label):
        return [[" ".join(cell.split()) for cell in row] for row in self.tables[label]]


def stepped_example(length: int, pairs: int, predictors: int = 2) -> Example:
    """A trunk of `length` tokens, the last two thirds labelled, with `pairs` pairs of steps of equal length."""
    start = length // 3
    edges = np.linspace(start, length, pairs + 2).astype(int).tolist()
    views = [Views(a - 1, a, b) for a, b in zip(edges[1:-1], edges[2:], strict=True)]
    return paired(np.arange(length) % 97, ((start, length),), views, predictors)


def page_of(record: RowRecord, title: str = "a row", notes=("a note",)) -> str:
    return page_html(page_data(title, record, notes))


def write_row(path: Path, record: RowRecord, title: str = "a row") -> Path:
    """A page of a record."""
    write_page(page_of(record, title), path)
    return path
