"""A study's YAML file as a tree of values (`stepjepa.config.yaml_file`), and the recipes that come with the library.

Every value keeps its file and line until it is checked, so that a message can point at it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stepjepa.config.option import options_of
from stepjepa.config.values import BadValue, did_you_mean
from stepjepa.config.yaml_file import Node, parse_tree, read_tree
from stepjepa.data.sources import near_path
from stepjepa.errors import ConfigError

RECIPES = Path(__file__).parents[1] / "recipes"
# Keys of earlier versions, and "mini" after --set -> what replaces them.
LEFT_KEYS = {
    "processes_per_run": "a run is one process; train under torchrun, and compare with stepjepa report",
    "order": "the first seed of all arms is run first",
    "grid": "write out the arms to compare, or let the validation split choose: tune: {option: [values]}",
    "mini": "with --mini, --set replaces the values of the small study",
}


def open_study(name: str) -> tuple[str, Node]:
    """A study's name and tree, from a file or from a recipe.

    Raises:
        ConfigError: there is no such file or recipe, or it cannot be read or is not a YAML mapping.
    """
    path = Path(name).expanduser()
    if not path.is_file():
        recipes = recipe_files()
        if name not in recipes:
            near = did_you_mean(name, recipes) or near_path(path)
            raise ConfigError(
                f"{name}: no such file or recipe{near} (stepjepa study --list shows the recipes)"
            )
        path = recipes[name]
    root = read_tree(path)
    return path.stem, Node(root.mapping("study"), root.where)


def recipe_files() -> dict[str, Path]:
    """Name -> file of every recipe, sorted by name."""
    return {path.stem: path for path in sorted(RECIPES.glob("*.yaml"))}


def recipe_lines() -> list[str]:
    """Every recipe: its name, the publication of its experiment, and the question that it answers."""
    lines = []
    for name in recipe_files():
        tree = open_study(name)[1].given
        lines += [name, *(f"    {tree[key].given}" for key in ("source", "shows") if key in tree)]
    return lines


def overlaid(under: Node, over: Node, replaced: Sequence[str] = ()) -> Node:
    """`under` with `over` on top: mappings are merged key by key; other values, and those of the keys `replaced`, are
    replaced."""
    if not (isinstance(under.given, dict) and isinstance(over.given, dict)):
        return over
    merged = dict(under.given)
    for name, node in over.given.items():
        merged[name] = (
            overlaid(merged[name], node) if name in merged and name not in replaced else node
        )
    return Node(merged, over.where)


def set_value(root: Node, assignment: str) -> Node:
    """`root` with one value set, as in ``base.max_steps=20``.

    Raises:
        ConfigError: the assignment is not of the form ``key.key=value``, or no run would read the value, because a block
        overrides it.
    """
    path, equals, text = assignment.partition("=")
    names = path.split(".")
    if not equals or not all(names):
        raise ConfigError(f"--set {assignment}: expected key.key=value, as in base.lbd=0.5")
    # A block's own value hides the one at the top of the file.
    blocks = root.given["blocks"].mapping("blocks") if "blocks" in root.given else {}
    for block, own in blocks.items():
        if _has(own, names):
            remedy = f"write blocks.{block}.{path}=..."
            raise ConfigError(f"--set {assignment}: the block {block} has its own value; {remedy}")
    return _with(root, names, parse_tree(text, f"--set {assignment}", numbered=False))


def _has(node: Node, names: Sequence[str]) -> bool:
    """Whether `node` has a descendant at a path of names."""
    for name in names:
        if not isinstance(node.given, dict) or name not in node.given:
            return False
        node = node.given[name]
    return True


def _with(root: Node, names: Sequence[str], value: Node) -> Node:
    if not names:
        return value
    children = dict(root.given) if isinstance(root.given, dict) else {}
    children[names[0]] = _with(children.get(names[0], Node({}, value.where)), names[1:], value)
    return Node(children, root.where)


def check_keys(section: Mapping[str, Node], known: Iterable[str], what: str = "") -> None:
    """Refuse unknown keys.

    Raises:
        ConfigError: a key is unknown; the message names its replacement, or the most similar known key.
    """
    known = list(known)
    for key, node in section.items():
        if key not in known:
            place = f"{node.where}: {what}" if what else node.where
            remedy = f": {LEFT_KEYS[key]}" if key in LEFT_KEYS else did_you_mean(key, known)
            raise ConfigError(f"{place}: unknown key {key!r}{remedy}")


def field_values(dtype: type, section: Mapping[str, Node], what: str = "") -> dict[str, Any]:
    """The fields of a dataclass that a mapping sets, converted and checked against their bounds; null leaves the default.

    Args:
        what: the section's name, if all its keys must be fields; with "", other keys are ignored.

    Raises:
        ConfigError: a value does not fit, or a key is unknown.
    """
    known, values = options_of(dtype), dict[str, Any]()
    if what:
        check_keys(section, known, what)
    for name, node in section.items():
        if name not in known or node.given is None:
            continue
        try:
            values[name] = known[name].read(node.written)
        except (BadValue, ConfigError) as error:
            # The message of a ConfigError already names the field.
            field = "" if isinstance(error, ConfigError) else f"{name}: "
            raise ConfigError(f"{node.where}: {field}{error}") from None
    return values
