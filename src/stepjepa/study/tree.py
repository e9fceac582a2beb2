"""A YAML file as a tree in which every value knows where it stands, so that messages can name file and line.

Scalars stay as they are written, in the forms that `stepjepa.config.values` converts: the option that a value is for decides
what it means, as for a flag.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from stepjepa.config.values import Quoted, show
from stepjepa.errors import ConfigError
from stepjepa.utils.files import parse_json

_NULL = ("", "~", "null", "Null", "NULL")
_WORDS = {"True": True, "TRUE": True, "False": False, "FALSE": False}


class Node(NamedTuple):
    """A value of the file.

    Attributes:
        given: text (`Quoted` where it stood in quotes), None, a list of nodes, or a mapping of names to nodes.
        where: ``study.yaml:7``.
    """

    given: Any
    where: str

    @property
    def is_mapping(self) -> bool:
        """Whether `given` maps keys to nodes."""
        return isinstance(self.given, dict)


def read_tree(path: str | os.PathLike[str]) -> Node:
    """A YAML file whose top level is a mapping; an empty file is an empty one.

    Raises:
        ConfigError: it cannot be read, is no valid YAML or no mapping, or has a key twice.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; give a study's YAML file, or a recipe's name") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as a UTF-8 text file ({error})") from None
    root = parse_tree(text, str(path))
    if root.given is None:
        return Node({}, root.where)
    if not root.is_mapping:
        raise ConfigError(f"{root.where}: expected a mapping such as 'arms:', got {shown(root)}")
    return root


def parse_tree(text: str, name: str, numbered: bool = True) -> Node:
    """The tree of a YAML text.

    Args:
        name: of the file, for messages.
        numbered: whether lines are named in them.

    Raises:
        ConfigError: no valid YAML, or a key twice.
    """
    try:
        root = yaml.compose(text, yaml.BaseLoader)
        return Node(None, f"{name}:1" if numbered else name) if root is None else _node(root, name, numbered)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        place = f"{name}:{mark.line + 1}" if mark and numbered else name
        problem = getattr(error, "problem", None) or getattr(error, "context", None) or str(error).splitlines()[0]
        raise ConfigError(f"{place}: not valid YAML: {problem}") from None
    except RecursionError:
        raise ConfigError(f"{name}: a list or mapping that contains itself") from None


def merged(under: Node, over: Node) -> Node:
    """`under` with what `over` says put on top: mappings key by key, all else as a whole."""
    if not (under.is_mapping and over.is_mapping):
        return over
    both = dict(under.given)
    for name, node in over.given.items():
        both[name] = merged(both[name], node) if name in both else node
    return Node(both, over.where)


def set_value(root: Node, assignment: str) -> Node:
    """`root` with one value set, as in ``base.max_steps=20``.

    Raises:
        ConfigError: it is not of the form ``key.key=value``.
    """
    path, equals, text = assignment.partition("=")
    names = path.split(".")
    if not equals or not all(names):
        raise ConfigError(f"--set {assignment}: expected key.key=value, as in base.max_steps=20")
    return _with(root, names, parse_tree(text, f"--set {assignment}", numbered=False))


def check_read(root: Node, assignment: str, mini: bool) -> None:
    """Refuse a value that `set_value` has set and that no run would read.

    Args:
        mini: whether the section mini is on top.

    Raises:
        ConfigError: it is in the section mini, which is not asked for, or a block of the study has its own value.
    """
    names = assignment.partition("=")[0].split(".")
    if names[0] == "mini" and not mini:
        raise ConfigError(f"--set {assignment}: the section mini is read with --mini only")
    top = root.given["mini"] if mini and names[0] == "mini" else root
    names = names[names[0] == "mini" :]
    blocks = top.given.get("blocks") if top.is_mapping else None
    for block, own in blocks.given.items() if blocks is not None and blocks.is_mapping else ():
        if names[0] != "blocks" and _has(own, names):
            raise ConfigError(
                f"--set {assignment}: the block {block} has its own value; write blocks.{block}.{'.'.join(names)}=..."
            )


def _has(node: Node, names: list[str]) -> bool:
    return not names or (node.is_mapping and names[0] in node.given and _has(node.given[names[0]], names[1:]))


def _with(root: Node, names: list[str], value: Node) -> Node:
    """`root` with `value` in the place that the names lead to, as a whole."""
    if not names:
        return value
    children = dict(root.given) if root.is_mapping else {}
    children[names[0]] = _with(children.get(names[0], Node({}, value.where)), names[1:], value)
    return Node(children, root.where)


def typed(node: Node) -> Any:
    """The Python value where no option says what type it has: numbers, true, false and null as YAML 1.2 has them."""
    given = node.given
    if isinstance(given, dict):
        return {name: typed(child) for name, child in given.items()}
    if isinstance(given, list):
        return [typed(child) for child in given]
    if given is None or isinstance(given, Quoted):
        return None if given is None else str(given)
    if given in _WORDS:
        return _WORDS[given]
    try:
        value = parse_json(given)
    except ValueError:
        try:
            return float(given) if given[:1] in "+-.0123456789" else given
        except ValueError:
            return given
    return value if isinstance(value, (bool, int, float)) else given


def written(node: Node) -> Any:
    """What `StrictParser` takes for an option's value: scalars as they are written, mappings with built values."""
    if isinstance(node.given, list):
        return [written(child) for child in node.given]
    return typed(node) if node.is_mapping else node.given


def mapping(node: Node, what: str) -> Mapping[str, Node]:
    """The children of a node that must be a mapping; an empty value is an empty one.

    Raises:
        ConfigError: it is none.
    """
    if node.given is None:
        return {}
    if not node.is_mapping:
        raise ConfigError(f"{node.where}: {what}: expected a mapping of names to values, got {shown(node)}")
    return node.given


def listed(node: Node, what: str) -> list[Node]:
    """The items of a node that must be a list; a single value is a list of one.

    Raises:
        ConfigError: it is a mapping or empty.
    """
    if isinstance(node.given, list) and node.given:
        return node.given
    if node.given is None or node.is_mapping or node.given == []:
        raise ConfigError(f"{node.where}: {what}: expected a list, got {shown(node)}")
    return [node]


def shown(node: Node) -> str:
    """What a node holds, for a message."""
    return "an empty list" if node.given == [] else show(written(node))


def _node(node: yaml.Node, name: str, numbered: bool) -> Node:
    where = f"{name}:{node.start_mark.line + 1}" if numbered else name
    if isinstance(node, yaml.SequenceNode):
        return Node([_node(child, name, numbered) for child in node.value], where)
    if isinstance(node, yaml.MappingNode):
        children: dict[str, Node] = {}
        for key, value in node.value:
            place = f"{name}:{key.start_mark.line + 1}" if numbered else name
            if not isinstance(key, yaml.ScalarNode):
                raise ConfigError(f"{place}: expected a name as the key")
            if key.value in children:
                raise ConfigError(f"{place}: the key {key.value!r} stands here twice; keep one of them")
            child = _node(value, name, numbered)
            children[key.value] = Node(child.given, place)  # a key's line says more than that of its first item
        return Node(children, where)
    if not isinstance(node, yaml.ScalarNode) or node.style is not None:
        return Node(Quoted(node.value), where)
    return Node(None if node.value in _NULL else node.value, where)
