"""The quickstart notebook runs top to bottom, and what is stored in it is whole and clean.

``python tests/examples/test_quickstart_notebook.py`` runs it in full, in a folder of its own, and stores the new outputs.
"""

import copy
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest

REASON = "the notebook is run with nbclient, nbformat and ipykernel (extra dev)"
nbformat = pytest.importorskip("nbformat", reason=REASON)
nbclient = pytest.importorskip("nbclient", reason=REASON)
pytest.importorskip("ipykernel", reason=REASON)

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "quickstart.ipynb"
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
SHORT = "STEPS = 4\nBATCH = 4\nTEST_ROWS = 6\nSEED = 0"
FIGURES = 5  # the forest, the curves, the cosines, a PCA of each model
ABSOLUTE = re.compile(r"(?:^|[\s\"'(=:,\[])(?:~?/[\w.-]+/|[A-Za-z]:\\|file:/)", re.MULTILINE)
CONTROL = re.compile(r"[^\n\t\x20-\x7e\u00a0-\uffff]")


def execute(notebook: Any, folder: Path) -> None:
    """Run all cells in `folder`; their outputs are afterwards in `notebook`."""
    where = {"metadata": {"path": str(folder)}}
    nbclient.NotebookClient(
        notebook, timeout=900, kernel_name="python3", resources=where, record_timing=False, coalesce_streams=True
    ).execute()
    for cell in code_cells(notebook):  # bitsandbytes says so on every CPU, where it is installed
        cell.outputs = [
            one for one in cell.outputs if not one.get("text", "").startswith("Failed to load CPU gemm_4bit")
        ]


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def kinds(cell: Any) -> list[str]:
    """What a cell has put out: ``stdout``, ``image/png``, ..."""
    return [
        one.name if one.output_type == "stream" else sorted(one.get("data", {"error": ""}))[0] for one in cell.outputs
    ]


def texts(cell: Any) -> list[str]:
    """All that a cell has put out but the figures."""
    return [
        text
        for one in cell.outputs
        for text in ([one.text] if one.output_type == "stream" else one.get("data", {"error": str(one)}).values())
        if not text.startswith("iVBOR")  # a PNG
    ]


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
    (parameters,) = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    names = re.compile(r"^(\w+) = ", re.MULTILINE)
    assert names.findall(parameters.source) == names.findall(SHORT)
    parameters.source = SHORT
    for cell in code_cells(notebook):
        cell.outputs, cell.execution_count = [], None
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))  # no profile and no history of the user's
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "jupyter"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    execute(notebook, tmp_path)
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


def store() -> None:
    """Run the whole notebook and write its outputs into the file."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        execute(notebook, Path(folder))
    notebook.metadata = nbformat.from_dict(METADATA)
    nbformat.write(notebook, NOTEBOOK)


if __name__ == "__main__":
    store()
