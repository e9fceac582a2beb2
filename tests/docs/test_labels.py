"""The tables of docs/labels_or_jepa.md are those of the records, which are runs of the recipe."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepjepa.study.reading import read_study
from stepjepa.study.spec import all_runs
from stepjepa.study.tree import open_study

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(scope="module")
def generator(generator_of):
    return generator_of("make_labels")


def test_the_page_has_the_tables_of_the_records(generator):
    page = (DOCS / "labels_or_jepa.md").read_text(encoding="utf-8")
    assert generator["filled"](page) == page and page.count("| 2, published method |") > 4


def test_the_records_are_runs_of_the_recipe(generator):
    name, tree = open_study("labels_or_jepa")
    known = {run.name for run in all_runs(read_study(tree, name))}
    recorded = [record["run"] for block in generator["BLOCKS"] for record in generator["records_of"](block)]
    assert recorded and set(recorded) <= known
    assert {arm for block in generator["BLOCKS"] for arm in generator["choices"](block)} <= set(generator["ARMS"])
