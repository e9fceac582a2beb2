"""Arrays have shapes, and no docstring names what is not there; ruff sees that there is one."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src" / "stepjepa"
ARRAYS = re.compile(r"\b(Tensor|ndarray)\b")
# "(P, D)", "(N,)", "(R * T)", "()"; words for what has no letters; or the collator whose docstring has the table.
LETTER = r"(?:\d+|[A-Z]\w?'?)"
SHAPE = re.compile(
    rf"(?<![\w`])\((?:{LETTER},|{LETTER}(?:\s*[,*+]\s*{LETTER})+,?)?\)|scalar|[Aa]ny shape|same shape|broadcast|[Cc]ollator"
)


def public(node: ast.Module | ast.ClassDef, outer: str = "", about: str = "") -> Iterator[tuple[str, ast.AST, str]]:
    """Dotted name, node, and the docstring of the class around it, of every public class, function, method and property."""
    for item in node.body:
        if isinstance(item, ast.ClassDef | ast.FunctionDef) and not item.name.startswith("_"):
            yield outer + item.name, item, about
            if isinstance(item, ast.ClassDef):
                yield from public(item, f"{outer}{item.name}.", ast.get_docstring(item) or "")


@cache
def definitions() -> list[tuple[str, str, ast.AST, str]]:
    """File, name, node and docstrings (its own and the class's) of all that is public."""
    files = [f for f in sorted(SOURCE.rglob("*.py")) if not (f.name.startswith("_") and not f.name.startswith("__"))]
    return [
        (str(file.relative_to(SOURCE)), name, node, (ast.get_docstring(node) or "") + about)
        for file in files
        for name, node, about in public(ast.parse(file.read_text(encoding="utf-8")))
    ]


def arguments(node: ast.FunctionDef) -> list[ast.arg]:
    a = node.args
    return [*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, (a.vararg, a.kwarg))]


def test_arrays_have_shapes():
    bad = []
    for file, name, node, doc in definitions():
        if isinstance(node, ast.FunctionDef):
            hints = " ".join(ast.unparse(x) for x in [*(a.annotation for a in arguments(node)), node.returns] if x)
            if ARRAYS.search(hints) and not SHAPE.search(doc):
                bad.append(f"{file}: {name}")
    assert not bad, f"{bad}: say the shapes of the arrays, like (P, D), or what describes them"


def test_what_is_described_is_there():
    bad = []
    for file, name, node, _ in definitions():
        doc = (ast.get_docstring(node) or "") + "\n"
        found = re.search(r"^Args:\n((?:    .*\n|\n)+)", doc, re.MULTILINE)
        heads = re.findall(r"^    (\*{0,2}\w+(?:, \*{0,2}\w+)*):", found[1], re.MULTILINE) if found else []
        described = {one.strip(" *") for head in heads for one in head.split(",")}  # "a, b: both" gives a and b
        inits = [n for n in getattr(node, "body", []) if isinstance(n, ast.FunctionDef) and n.name == "__init__"]
        for function in [node] if isinstance(node, ast.FunctionDef) else inits:
            bad += [f"{file}: {name}: {one}" for one in described - {argument.arg for argument in arguments(function)}]
    assert not bad, bad
