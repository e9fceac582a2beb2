"""Running the notebooks of `examples/`, and reading what they put out.

``python tests/support/notebooks.py examples/NAME.ipynb`` runs one in full, in a folder of its own, and stores its outputs.
"""

import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

REASON = "the notebook is run with nbclient, nbformat and ipykernel (extra dev)"
nbformat = pytest.importorskip("nbformat", reason=REASON)
nbclient = pytest.importorskip("nbclient", reason=REASON)
pytest.importorskip("ipykernel", reason=REASON)

METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
ABSOLUTE = re.compile(r"(?:^|[\s\"'(=:,\[])(?:~?/[\w.-]+/|[A-Za-z]:\\|file:/)", re.MULTILINE)


def execute(notebook: Any, folder: Path, script: Path | None = None) -> None:
    """Run all cells in `folder`, next to a copy of the script; their outputs are afterwards in `notebook`."""
    if script is not None:
        shutil.copy(script, folder)
    where = {"metadata": {"path": str(folder)}}
    nbclient.NotebookClient(
        notebook, timeout=900, kernel_name="python3", resources=where, record_timing=False, coalesce_streams=True
    ).execute()
    for cell in code_cells(notebook):  # bitsandbytes says so on every CPU, where it is installed
        cell.outputs = [
            one for one in cell.outputs if not one.get("text", "").startswith("Failed to load CPU gemm_4bit")
        ]


def execute_with(notebook: Any, parameters: str, folder: Path, monkeypatch: Any, script: Path | None = None) -> None:
    """Run it from clean cells with other values of the same parameters."""
    (cell,) = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    names = re.compile(r"^(\w+) = ", re.MULTILINE)
    assert names.findall(cell.source) == names.findall(parameters)
    cell.source = parameters
    for cell in code_cells(notebook):
        cell.outputs, cell.execution_count = [], None
    monkeypatch.setenv("IPYTHONDIR", str(folder / "ipython"))  # no profile and no history of the user's
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(folder / "jupyter"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    execute(notebook, folder, script)


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


def store(path: Path) -> None:
    """Run a whole notebook and write its outputs into the file."""
    notebook = nbformat.read(path, as_version=4)
    script = path.with_suffix(".py")
    with tempfile.TemporaryDirectory() as folder:
        execute(notebook, Path(folder), script if script.is_file() else None)
    notebook.metadata = nbformat.from_dict(METADATA)
    nbformat.write(notebook, path)


if __name__ == "__main__":
    store(Path(sys.argv[1]))
