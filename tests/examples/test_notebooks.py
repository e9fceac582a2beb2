"""The notebooks of `examples/` run top to bottom, with few steps; what is stored in them is whole and clean."""

import re
from pathlib import Path

import pytest

from support.notebooks import ABSOLUTE, METADATA, code_cells, execute_with, kinds, nbformat, texts

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SHORT = {
    "nanogpt_jepa": "STEPS = 16\nLAMBDA = 1.0\nK = 2\nSPLIT = 0.4\nSEED = 0",
    "quickstart": "STEPS = 4\nBATCH = 4\nTEST_ROWS = 6\nSEED = 0",
}
CONTROL = re.compile(r"[^\n\t\x20-\x7e\u00a0-\uffff]")


def read(name):
    return nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)


def check(name, notebook, ratio=1.0):
    """No warning, error or bar; losses are those of passes apart, nanoGPT's with JEPA below `ratio` times the baseline's."""
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    found = [kind for cell in cells for kind in kinds(cell)]
    assert {"stdout", "image/png"} <= set(found) <= {"stdout", "image/png", "text/html"}
    assert found.count("image/png") == 2
    written = "\n".join(text for cell in cells for text in texts(cell))
    assert not ABSOLUTE.search(written) and not CONTROL.search(written)
    if name == "quickstart":
        plain, forest = map(float, re.findall(r"LM loss (\d\.\d{6})", written))
        assert plain == pytest.approx(forest, abs=2e-6) and plain > 5  # random weights: about log 512
        return
    pairs = re.findall(r"^(?:JEPA|CE): +packed (\d\.\d{6}), [\w ]+ (\d\.\d{6})$", written, re.MULTILINE)
    assert len(pairs) == 2
    for packed, apart in pairs:
        assert float(packed) == pytest.approx(float(apart), abs=3e-6) and float(packed) > 0
    baseline, jepa = re.findall(r"^(?:baseline|jepa) +\d\.\d+ +(\d\.\d+)", written, re.MULTILINE)
    assert float(jepa) < ratio * float(baseline)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nanogpt_jepa", "quickstart"])
def test_every_cell_runs(name, tmp_path, monkeypatch):
    notebook, script = read(name), EXAMPLES / f"{name}.py"
    execute_with(notebook, SHORT[name], tmp_path, monkeypatch, script if script.is_file() else None)
    check(name, notebook)
    for stored, again in zip(code_cells(read(name)), code_cells(notebook), strict=True):
        assert kinds(stored) == kinds(again), stored.source


@pytest.mark.parametrize("name", SHORT)
def test_the_stored_outputs_are_those_of_a_whole_run_and_hold_nothing_of_its_maker(name):
    stored = read(name)
    check(name, stored, ratio=0.8)
    assert stored.metadata == METADATA and (EXAMPLES / f"{name}.ipynb").stat().st_size < 600_000
    assert all(set(cell.metadata) <= {"tags"} for cell in stored.cells)
    nbformat.validate(stored)
