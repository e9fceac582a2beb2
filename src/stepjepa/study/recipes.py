"""The studies that come with the library: ``src/stepjepa/recipes/*.yaml``."""

from __future__ import annotations

from pathlib import Path

import stepjepa
from stepjepa.config.values import nearest
from stepjepa.errors import ConfigError
from stepjepa.study.tree import Node, read_tree

FOLDER = Path(stepjepa.__file__).parent / "recipes"


def recipe_files() -> dict[str, Path]:
    """Name -> file, sorted."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.yaml"))}


def open_study(name: str) -> tuple[str, Node]:
    """A study's name and tree, of a file or of a recipe.

    Raises:
        ConfigError: it is neither.
    """
    path, recipes = Path(name).expanduser(), recipe_files()
    if path.is_file():
        return path.stem, read_tree(path)
    if name in recipes:
        return name, read_tree(recipes[name])
    beside = [str(entry) for entry in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
    close = nearest(name, [*recipes, *beside])
    raise ConfigError(
        f"{name}: no such file or recipe; did you mean {close!r}? (stepjepa study --list shows the recipes)"
    )


def recipe_lines() -> list[str]:
    """Every recipe: its name, where its experiment was published, and what it should show."""
    lines = []
    for name, path in recipe_files().items():
        tree = read_tree(path).given
        said = {key: str(tree[key].given) for key in ("source", "shows") if key in tree}
        lines += [f"{name}", *(f"    {text}" for text in said.values())]
    return lines
