"""Arrays have shapes, errors are named, and no docstring names what is not there; ruff sees that there is one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src" / "stepjepa"
FILES = [f for f in sorted(SOURCE.rglob("*.py")) if not (f.name.startswith("_") and not f.name.startswith("__"))]
# Methods of argparse's own, which say there what they do.
OVERRIDES = {"StrictParser.print_help", "StrictParser.error"}
ARRAYS = re.compile(r"\b(Tensor|ndarray)\b")
# "(P, D)", "(N,)", "(R * T)", "()"; words for what has no letters; or the collator whose docstring has the table.
LETTER = r"(?:\d+|[A-Z]\w?'?)"
SHAPE = re.compile(
    rf"(?<![\w`])\((?:{LETTER},|{LETTER}(?:\s*[,*+]\s*{LETTER})+,?)?\)|scalar|[Aa]ny shape|same shape|broadcast|[Cc]ollator"
)
ERRORS = {"ConfigError", "DataError", "ValueError", "TypeError", "RuntimeError", "OSError", "StepJepaError"}
# A paper's formula lives in these.
FORMULAS = (
    "losses/*.py",
    "analysis/geometry.py",
    "analysis/linear.py",
)
NOT_FROM_A_PAPER = {"__init__.py", "gather.py", "lm.py", "l2.py", "mse.py"}


def public(node: ast.Module | ast.ClassDef, outer: str = "", about: str = "") -> Iterator[tuple[str, ast.AST, str]]:
    """Dotted name, node, and the docstrings around it, of every public class, function, method and property."""
    for item in node.body:
        if isinstance(item, ast.ClassDef | ast.FunctionDef) and not item.name.startswith("_"):
            yield outer + item.name, item, about
            if isinstance(item, ast.ClassDef):
                yield from public(item, f"{outer}{item.name}.", ast.get_docstring(item) or "")


def functions(file: Path) -> Iterator[tuple[str, ast.FunctionDef, str, str]]:
    for name, node, about in public(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef):
            yield name, node, ast.get_docstring(node) or "", about


def arguments(node: ast.FunctionDef) -> list[ast.arg]:
    a = node.args
    return [*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, (a.vararg, a.kwarg))]


def raised(node: ast.AST) -> Iterator[str]:
    """Names of the errors that a function raises itself, not in functions inside it and not to catch them again."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.Lambda | ast.Try):
            if isinstance(child, ast.Try):
                for part in (*child.handlers, *child.orelse, *child.finalbody):
                    yield from raised(part)
            continue
        if isinstance(child, ast.Raise) and isinstance(child.exc, ast.Call) and isinstance(child.exc.func, ast.Name):
            yield child.exc.func.id
        yield from raised(child)


def described(doc: str, section: str) -> list[str]:
    """The names that a section of a docstring describes: "a, b: both" gives a and b."""
    found = re.search(rf"^{section}:\n((?:    .*\n|\n)+)", doc + "\n", re.MULTILINE)
    heads = re.findall(r"^    (\*{0,2}\w+(?:, \*{0,2}\w+)*):", found[1], re.MULTILINE) if found else []
    return [name.strip(" *") for head in heads for name in head.split(",")]


def ids(file: Path) -> str:
    return str(file.relative_to(SOURCE))


@pytest.mark.parametrize("file", FILES, ids=ids)
def test_arrays_have_shapes(file):
    bad = []
    for name, node, doc, about in functions(file):
        hints = " ".join(ast.unparse(x) for x in [*(a.annotation for a in arguments(node)), node.returns] if x)
        if ARRAYS.search(hints) and not SHAPE.search(doc + about):
            bad.append(name)
    assert not bad, f"{bad}: say the shapes of the arrays, like (P, D), or what describes them"


@pytest.mark.parametrize("file", [file for file in FILES if file.parent.name != "cli"], ids=ids)  # `main` prints those
def test_errors_are_named(file):
    bad = [
        f"{name}: {error}"
        for name, node, doc, about in functions(file)
        for error in sorted(ERRORS & set(raised(node)))
        if error not in doc + about and name not in OVERRIDES
    ]
    assert not bad, bad


@pytest.mark.parametrize("file", FILES, ids=ids)
def test_what_is_described_is_there(file):
    bad = []
    for name, node, _ in public(ast.parse(file.read_text(encoding="utf-8"))):
        doc = ast.get_docstring(node) or ""
        inits = [n for n in getattr(node, "body", []) if isinstance(n, ast.FunctionDef) and n.name == "__init__"]
        for function in [node] if isinstance(node, ast.FunctionDef) else inits:
            known = {argument.arg for argument in arguments(function)}
            bad += [f"{name}: {one}" for one in described(doc, "Args") if one not in known]
    assert not bad, bad


@pytest.mark.parametrize("file", [f for pattern in FORMULAS for f in SOURCE.glob(pattern)], ids=ids)
def test_formulas_name_their_source(file):
    assert file.name in NOT_FROM_A_PAPER or re.search(r"arXiv:\d{4}\.\d{5}", file.read_text(encoding="utf-8"))
