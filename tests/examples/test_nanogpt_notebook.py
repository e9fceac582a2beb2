"""The lesson examples/nanogpt_jepa.ipynb runs top to bottom next to its script; its stored outputs are whole and clean."""

import re
from pathlib import Path

import pytest

from support.notebooks import ABSOLUTE, METADATA, code_cells, execute_with, kinds, nbformat, texts

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "nanogpt_jepa.ipynb"
SHORT = "STEPS = 16\nLAMBDA = 1.0\nK = 2\nSPLIT = 0.4\nSEED = 0"


def check(notebook):
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    shown = [kind for cell in cells for kind in kinds(cell)]
    assert set(shown) == {"stdout", "image/png"} and shown.count("image/png") == 2
    written = "\n".join(text for cell in cells for text in texts(cell))
    assert not ABSOLUTE.search(written)
    pairs = re.findall(r"^(?:JEPA|CE): +packed (\d\.\d{6}), [\w ]+ (\d\.\d{6})$", written, re.MULTILINE)
    assert len(pairs) == 2
    for packed, apart in pairs:
        assert float(packed) == pytest.approx(float(apart), abs=3e-6) and float(packed) > 0
    return [tuple(map(float, line)) for line in re.findall(r"^(?:baseline|jepa) +(\d\.\d+) +(\d\.\d+)", written, re.M)]


@pytest.mark.slow
def test_every_cell_runs(tmp_path, monkeypatch):
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    execute_with(notebook, SHORT, tmp_path, monkeypatch, NOTEBOOK.with_suffix(".py"))
    baseline, jepa = check(notebook)
    assert jepa[1] < baseline[1]


def test_the_stored_outputs_are_those_of_a_whole_run():
    stored = nbformat.read(NOTEBOOK, as_version=4)
    assert stored.metadata == METADATA and NOTEBOOK.stat().st_size < 200_000
    nbformat.validate(stored)
    baseline, jepa = check(stored)
    assert jepa[1] < 0.8 * baseline[1]
