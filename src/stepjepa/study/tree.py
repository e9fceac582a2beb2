"""A study's YAML file as a tree in which every value knows its file and line, and the recipes, which are such files.

Scalars stay as they are written, in the forms that `stepjepa.config.values` converts: the field that a value is for decides
what it means, as for a flag.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import yaml

from stepjepa.config.values import BadValue, Quoted, convert, nearest, show
from stepjepa.errors import ConfigError
from stepjepa.utils.files import parse_json

RECIPES = Path(__file__).parents[1] / "recipes"
_NULL = ("", "~", "null", "Null", "NULL")
_BOOL = {"True": True, "TRUE": True, "False": False, "FALSE": False}


class Node(NamedTuple):
    """A value of the file.

    Attributes:
        given: text (`Quoted` where it was in quotes), None, a list of nodes, or a dict of names to nodes.
        where: ``study.yaml:7``.
    """

    given: Any
    where: str


def open_study(name: str) -> tuple[str, Node]:
    """A study's name and tree, from a file or from a recipe.

    Raises:
        ConfigError: it is neither, or no readable YAML file with a mapping at its top.
    """
    path, recipes = Path(name).expanduser(), recipe_files()
    if not path.is_file() and name not in recipes:
        siblings = [str(entry) for entry in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
        close = nearest(name, [*recipes, *siblings])
        raise ConfigError(
            f"{name}: no such file or recipe; did you mean {close!r}? (stepjepa study --list shows the recipes)"
        )
    path = path if path.is_file() else recipes[name]
    try:
        root = parse_tree(path.read_text(encoding="utf-8-sig"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as a UTF-8 text file ({error})") from None
    return path.stem, Node(mapping(root, "study"), root.where)


def recipe_files() -> dict[str, Path]:
    """Name -> file of the studies that come with the library, sorted."""
    return {path.stem: path for path in sorted(RECIPES.glob("*.yaml"))}


def recipe_lines() -> list[str]:
    """Every recipe: its name, where its experiment was published, and what it should show."""
    lines = []
    for name in recipe_files():
        tree = open_study(name)[1].given
        lines += [name, *(f"    {tree[key].given}" for key in ("source", "shows") if key in tree)]
    return lines


def parse_tree(text: str, name: str, numbered: bool = True) -> Node:
    """The tree of a YAML text.

    Args:
        name: of the file, for messages.
        numbered: whether messages name lines.

    Raises:
        ConfigError: no valid YAML, or a key that occurs twice.
    """

    def where(node: yaml.Node) -> str:
        return f"{name}:{node.start_mark.line + 1}" if numbered else name

    def read(node: yaml.Node) -> Node:
        if isinstance(node, yaml.SequenceNode):
            return Node([read(child) for child in node.value], where(node))
        if isinstance(node, yaml.ScalarNode):
            plain = node.style is None
            return Node(
                None if plain and node.value in _NULL else node.value if plain else Quoted(node.value), where(node)
            )
        children: dict[str, Node] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise ConfigError(f"{where(key)}: expected a name as the key")
            if key.value in children:
                raise ConfigError(f"{where(key)}: the key {key.value!r} occurs twice; keep one of them")
            children[key.value] = Node(read(value).given, where(key))  # says more than the line of its first item
        return Node(children, where(node))

    try:
        root = yaml.compose(text, yaml.BaseLoader)
        return Node(None, f"{name}:1" if numbered else name) if root is None else read(root)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark and numbered else ""
        raise ConfigError(f"{name}{line}: not valid YAML: {getattr(error, 'problem', None) or error}") from None
    except RecursionError:
        raise ConfigError(f"{name}: a list or mapping that contains itself") from None


def merged(under: Node, over: Node) -> Node:
    """`under` with `over` on top: mappings are merged key by key, everything else is replaced."""
    if not (isinstance(under.given, dict) and isinstance(over.given, dict)):
        return over
    both = dict(under.given)
    for name, node in over.given.items():
        both[name] = merged(both[name], node) if name in both else node
    return Node(both, over.where)


def set_value(root: Node, assignment: str, mini: bool = False) -> Node:
    """`root` with one value set, as in ``base.max_steps=20``.

    Args:
        mini: the section mini is read; the value is set there, where the study has that section.

    Raises:
        ConfigError: it is not of the form ``key.key=value``, or no run would read the value: the section mini is not read,
            or a block has its own value.
    """
    path, equals, text = assignment.partition("=")
    names = path.split(".")
    if not equals or not all(names):
        raise ConfigError(f"--set {assignment}: expected key.key=value, as in base.max_steps=20")
    if names[0] == "mini" and not mini:
        raise ConfigError(f"--set {assignment}: the section mini is read with --mini only")
    if mini and "mini" in root.given and names[0] != "mini":
        names.insert(0, "mini")
    inner = names[names[0] == "mini" :]
    for block, own in mapping(_at(root, [*names[: len(names) - len(inner)], "blocks"]), "blocks").items():
        if inner[0] != "blocks" and _at(own, inner).where:
            raise ConfigError(
                f"--set {assignment}: the block {block} has its own value; write blocks.{block}.{'.'.join(inner)}=..."
            )
    return _with(root, names, parse_tree(text, f"--set {assignment}", numbered=False))


def _at(node: Node, names: Sequence[str]) -> Node:
    """What is below a node; an empty node with no place where there is nothing."""
    for name in names:
        if not (isinstance(node.given, dict) and name in node.given):
            return Node(None, "")
        node = node.given[name]
    return node


def _with(root: Node, names: Sequence[str], value: Node) -> Node:
    if not names:
        return value
    children = dict(root.given) if isinstance(root.given, dict) else {}
    children[names[0]] = _with(children.get(names[0], Node({}, value.where)), names[1:], value)
    return Node(children, root.where)


def typed(node: Node) -> Any:
    """The Python value where no field says what type it has: numbers, true, false and null as YAML 1.2 has them."""
    given = node.given
    if isinstance(given, dict):
        return {name: typed(child) for name, child in given.items()}
    if isinstance(given, list):
        return [typed(child) for child in given]
    if given is None or isinstance(given, Quoted):
        return None if given is None else str(given)
    for read in (_BOOL.__getitem__, parse_json, float):
        try:
            value = read(given)
        except (KeyError, ValueError):
            continue
        if isinstance(value, (bool, int, float)) and (read is not float or given[0] in "+-.0123456789"):
            return value
    return given


def written(node: Node) -> Any:
    """What `convert` takes: scalars as they are written, mappings with built values."""
    if isinstance(node.given, list):
        return [written(child) for child in node.given]
    return typed(node) if isinstance(node.given, dict) else node.given


def mapping(node: Node | None, what: str) -> dict[str, Node]:
    """The children of a node that must be a mapping; no node, and an empty value, is an empty one.

    Raises:
        ConfigError: it is none.
    """
    if node is None or node.given is None:
        return {}
    if not isinstance(node.given, dict):
        raise ConfigError(f"{node.where}: {what}: expected a mapping of names to values, got {show(written(node))}")
    return node.given


def listed(node: Node, what: str) -> list[Node]:
    """The items of a node that must be a list; a single value is a list of one.

    Raises:
        ConfigError: it is a mapping or empty.
    """
    if not node.given or isinstance(node.given, dict):
        got = "an empty list" if node.given == [] else show(written(node))
        raise ConfigError(f"{node.where}: {what}: expected a list, got {got}")
    return node.given if isinstance(node.given, list) else [node]


def check_keys(section: Mapping[str, Node], known: Sequence[str], what: str = "") -> None:
    """Refuse unknown keys.

    Raises:
        ConfigError: there is one; the message names the nearest known one.
    """
    for key, node in section.items():
        if key not in known:
            place = f"{node.where}: {what}" if what else node.where
            raise ConfigError(f"{place}: unknown key {key!r}; did you mean {nearest(key, known)!r}?")


def field_values(dtype: type, section: Mapping[str, Node], what: str = "") -> dict[str, Any]:
    """The fields of a dataclass that a mapping sets, converted to their types; null leaves the default.

    A field's metadata may give ``least``, its smallest value.

    Args:
        what: the section's name, where its keys must all be fields; "" passes over other keys.

    Raises:
        ConfigError: a value that does not fit, or an unknown key.
    """
    if what:
        check_keys(section, [field.name for field in fields(dtype)], what)
    hints, values = get_type_hints(dtype), dict[str, Any]()
    for field in fields(dtype):
        node = section.get(field.name)
        if node is None or node.given is None:
            continue
        try:
            value = values[field.name] = convert(hints[field.name], written(node))
        except BadValue as error:
            raise ConfigError(f"{node.where}: {field.name}: {error}") from None
        least = field.metadata.get("least")
        if least is not None and value < least:
            raise ConfigError(f"{node.where}: {field.name} is {value}; it must be at least {least}")
    return values
