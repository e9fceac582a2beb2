"""The quickstart notebook runs top to bottom, and what is stored in it is whole and clean."""

import copy
import re
from pathlib import Path
from typing import Any

import pytest

from support.notebooks import ABSOLUTE, METADATA, code_cells, execute_with, kinds, nbformat, texts

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "quickstart.ipynb"
SHORT = "STEPS = 4\nBATCH = 4\nTEST_ROWS = 6\nSEED = 0"
FIGURES = 2  # the curves, the cosines
CONTROL = re.compile(r"[^\n\t\x20-\x7e\u00a0-\uffff]")


def check_outputs(notebook: Any) -> None:
    """What holds for the outputs of any run of the whole notebook."""
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    found = [kind for cell in cells for kind in kinds(cell)]
    assert set(found) == {"stdout", "image/png", "text/html"}  # no warning, no error, no bar
    assert found.count("image/png") == FIGURES
    written = [text for cell in cells for text in texts(cell)]
    for text in written:
        assert not ABSOLUTE.search(text), text
        assert not CONTROL.search(text), text
    (both,) = [text for text in written if text.startswith("plain fine-tuning")]
    plain, forest = map(float, re.findall(r"LM loss (\d\.\d{6})", both))
    assert plain == pytest.approx(forest, abs=2e-6) and plain > 5  # random weights: about log 512


@pytest.fixture
def stored():
    return nbformat.read(NOTEBOOK, as_version=4)


@pytest.mark.long
def test_it_runs_with_few_steps(stored, tmp_path, monkeypatch):
    notebook = copy.deepcopy(stored)
    execute_with(notebook, SHORT, tmp_path, monkeypatch)
    check_outputs(notebook)
    for cell, again in zip(code_cells(stored), code_cells(notebook), strict=True):
        assert kinds(cell) == kinds(again), cell.source
    folder = tmp_path / "runs" / "quickstart"
    for name in ("row.html", "regular/model.safetensors", "step_jepa/model.safetensors"):
        assert (folder / name).stat().st_size > 2_000
    assert len((folder / "train.jsonl").read_text(encoding="utf-8").splitlines()) == 16
    assert len((folder / "regular.jsonl").read_text(encoding="utf-8").splitlines()) == 6


def test_the_file_is_small_and_holds_the_outputs_and_nothing_of_its_maker(stored):
    check_outputs(stored)
    assert NOTEBOOK.stat().st_size < 600_000
    assert stored.metadata == METADATA
    assert all(set(cell.metadata) <= {"tags"} for cell in stored.cells)
    nbformat.validate(stored)
