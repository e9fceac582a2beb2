"""Reading and writing YAML option files.

Reading keeps each scalar as the text in the file, with its line, so that the option's type decides what it means, exactly
as for a flag: `learning_rate: 1e-5` is a number, `eval_strategy: no` the word "no". Inside mappings, whose values have no
declared type, YAML 1.2's core schema applies: null, true/false and numbers are recognised, and everything else is text.
Studies are read the same way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from enum import Enum
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import yaml

from stepjepa.config.option import Values, options_of, public_values
from stepjepa.config.values import Quoted, show
from stepjepa.errors import ConfigError, said
from stepjepa.utils.files import AnyPath, write_whole

# YAML 1.2's core schema. PyYAML's own rules require a point in floats (1e-5 is text), and read yes and no as booleans.
_FLOAT = (
    r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?[0-9]+[eE][-+]?[0-9]+|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)
_SCALARS = {
    "null": "~|null|Null|NULL|",
    "bool": "true|True|TRUE|false|False|FALSE",
    "int": "[-+]?(?:0|[1-9][0-9]*)",
    "float": _FLOAT,
}


class _Loader(yaml.SafeLoader):
    """A loader that recognises only the scalars above; YAML 1.1's yes/no, dates, octal and base-60 numbers stay text."""

    yaml_implicit_resolvers: dict[str, list[Any]] = {}


class _Dumper(yaml.SafeDumper):
    """A dumper that quotes text which this module, or a YAML 1.1 reader, would read as something else."""


def _add_scalar(loader: Any, kind: str, pattern: str) -> None:
    loader.add_implicit_resolver(f"tag:yaml.org,2002:{kind}", re.compile(rf"(?:{pattern})\Z"), None)


for _kind, _pattern in _SCALARS.items():
    _add_scalar(_Loader, _kind, _pattern)
    _add_scalar(_Dumper, _kind, _pattern)
# `convert` reads the plain words none and null as None, so the text "none" is written in quotes.
_add_scalar(_Dumper, "null", "(?i:none|null)")


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    # Line breaks and control characters need escapes, which only text in double quotes can have.
    style = '"' if any(not character.isprintable() for character in text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


class Node(NamedTuple):
    """A value of a file.

    Attributes:
        given: text (`Quoted` if it is in quotes), None, a list of nodes, or a dict of names to nodes.
        where: file and line of its key, such as ``study.yaml:7``.
        scalar: the Python value of a scalar by YAML's own rules, for places without a type.
    """

    given: Any
    where: str
    scalar: object = None

    def mapping(self, what: str) -> dict[str, Node]:
        """The children by name; an empty value has no children.

        Raises:
            ConfigError: the value is not a mapping.
        """
        if self.given is None:
            return {}
        if not isinstance(self.given, dict):
            raise ConfigError(
                f"{self.where}: {what}: expected a mapping of names to values, got {show(self.written)}"
            )
        return self.given

    def listed(self, what: str) -> list[Node]:
        """The items of a list; a single value is a list of one.

        Raises:
            ConfigError: the value is a mapping or empty.
        """
        if not self.given or isinstance(self.given, dict):
            raise ConfigError(f"{self.where}: {what}: expected a list, got {show(self.written)}")
        return self.given if isinstance(self.given, list) else [self]

    @property
    def written(self) -> object:
        """The value in the form that `Option.read` converts: scalars as text, mappings with Python values."""
        if isinstance(self.given, list):
            return [child.written for child in self.given]
        return self.value if isinstance(self.given, dict) else self.given

    @property
    def value(self) -> object:
        """The Python value, by YAML's own rules."""
        if isinstance(self.given, dict):
            return {name: child.value for name, child in self.given.items()}
        return (
            [child.value for child in self.given] if isinstance(self.given, list) else self.scalar
        )


def read_tree(path: AnyPath) -> Node:
    """Read a YAML file into its tree.

    Raises:
        ConfigError: the file is missing, or `parse_tree` refuses it.
    """
    try:
        # Editors on Windows write a byte order mark, which utf-8-sig drops.
        return parse_tree(Path(path).read_text(encoding="utf-8-sig"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as a UTF-8 text file ({error})") from None


def parse_tree(text: str, name: str, numbered: bool = True) -> Node:
    """Parse a YAML text into its tree.

    Args:
        name: of the file, for messages.
        numbered: whether messages name lines.

    Raises:
        ConfigError: invalid YAML, or a key that occurs twice.
    """

    def where(line: int) -> str:
        return f"{name}:{line + 1}" if numbered else name

    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        if root is None:
            return Node(None, where(0))
        tree = _read(root, root.start_mark.line, loader, where)
        # The result is not used; this call refuses unknown tags of lists and mappings, which the reader ignores.
        loader.construct_document(root)
        return tree
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = where(mark.line) if mark else name
        raise ConfigError(f"{place}: not valid YAML: {error.problem or error.context}") from None
    # `!!int many` raises ValueError, and a file that is nested too deeply RecursionError.
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{name}: not valid YAML: {said(error, lines=1)}") from None


def _read(node: yaml.Node, line: int, loader: _Loader, where: Callable[[int], str]) -> Node:
    """Convert a node of PyYAML with its children; `line` is that of its key, and `where` names a line in messages."""
    place = where(line)
    if isinstance(node, yaml.ScalarNode):
        scalar = loader.construct_object(node)
        plain = None if scalar is None else node.value
        # A plain scalar has no style; quoted and block scalars have one.
        return Node(plain if node.style is None else Quoted(node.value), place, scalar)
    if isinstance(node, yaml.SequenceNode):
        items = [_read(child, child.start_mark.line, loader, where) for child in node.value]
        return Node(items, place)
    children: dict[str, Node] = {}
    for key, value in node.value:
        # The line of the key helps more in a message than the line of the value's first item.
        child = _read(value, key.start_mark.line, loader, where)
        if not isinstance(key, yaml.ScalarNode):
            raise ConfigError(f"{child.where}: expected a name as the key, got a {key.id}")
        if key.value in children:
            first = children[key.value].where
            what = f"the key {key.value!r} occurs twice, first in {first}"
            raise ConfigError(f"{child.where}: {what}; keep one of them")
        children[key.value] = child
    return Node(children, place)


def write_yaml(values: Values, path: AnyPath) -> None:
    """Write plain values (None, bool, int, float, str, and lists and dicts of them) under their keys.

    The write is atomic.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = yaml.dump(dict(values), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
    write_whole(path, [text.encode()])


def dump_yaml(instances: Iterable[Any], path: AnyPath) -> None:
    """Write the fields of instances of option dataclasses so that `--config path` restores equal values.

    It omits None where that is the default, options with ``dumped=False``, secrets, and values that YAML cannot represent.
    The write is atomic; a missing folder is created.
    """
    values: dict[str, Any] = {}
    for instance in instances:
        known = options_of(type(instance))
        for name, value in public_values(instance).items():
            if known[name].dumped and not (value is None and known[name].default is None):
                with suppress(TypeError):
                    values[name] = representable(value)
    write_yaml(values, path)


def representable(value: object) -> object:
    """Convert a value to None, bool, int, float, str, and lists and dicts of them; TypeError if it has no such form."""
    if isinstance(value, Enum):
        return representable(value.value)
    # By exact type: PyYAML's safe dumper refuses subclasses of these.
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, (list, tuple)):
        return [representable(item) for item in value]
    if isinstance(value, dict):
        return {representable(key): representable(item) for key, item in value.items()}
    if hasattr(value, "to_dict"):
        return representable(value.to_dict())
    raise TypeError(f"{type(value).__name__} cannot be written as YAML")
