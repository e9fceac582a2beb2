"""The ``# /// script`` header of each example names what it imports, for ``uv run``."""

import ast
import re
import sys
from pathlib import Path

import pytest

tomllib = pytest.importorskip("tomllib", reason="needs Python 3.11")
ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))
# What comes with the package of another name.
OF_STEPJEPA = {"stepjepa", "torch", "numpy", "tokenizers"}  # the last with transformers


def header(path):
    (block,) = re.findall(
        r"(?m)^# /// script$\s(?P<content>(?:^#(?:| .*)$\s)+)^# ///$", path.read_text(encoding="utf-8")
    )
    return tomllib.loads("".join(line[2:] for line in block.splitlines(keepends=True)))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_it_names_all_that_is_imported(path):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    read = header(path)
    assert read["requires-python"] == project["requires-python"]
    assert (path.parent / read["tool"]["uv"]["sources"]["stepjepa"]["path"] / "pyproject.toml").is_file()
    named = set(OF_STEPJEPA)
    for one in read["dependencies"]:
        name, _, extra = one.rstrip("]").partition("[")
        wanted = project["optional-dependencies"][extra] if extra else [name]
        named |= {re.split(r"\W", requirement)[0] for requirement in wanted}
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in imported} - sys.stdlib_module_names <= named
