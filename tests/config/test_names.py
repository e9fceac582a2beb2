"""Names of options in messages are attributes of `Names`, and each of them is an option."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src"


def used(path: Path) -> list[tuple[str, str]]:
    """(variable, attribute) wherever a module-level `Names(...)` is asked."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    made = {
        node.targets[0].id
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.Call)
        if getattr(node.value.func, "id", "") == "Names"
    }
    found = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name))
    return [(node.value.id, node.attr) for node in found if node.value.id in made]


def test_every_name_in_a_message_is_an_option():
    # A plugin needs the package that it is for.
    files = [path for path in sorted(SOURCE.rglob("*.py")) if path.parent.name != "integrations"]
    modules = {path: names for path in files if (names := used(path))}
    assert len(modules) > 5
    for path, names in modules.items():
        module = importlib.import_module(".".join(path.relative_to(SOURCE).with_suffix("").parts))
        for variable, attribute in names:
            assert getattr(getattr(module, variable), attribute) == attribute, path
