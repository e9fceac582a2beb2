"""Reading and writing YAML option files.

Reading keeps each scalar as the text that stands in the file, with its line, so that the option's type decides what it
means, exactly as for a flag: `learning_rate: 1e-5` is a number, `eval_strategy: no` the word "no". Inside mappings, where
no type says more, YAML 1.2's core rules hold: null, true/false, numbers, and the rest is text.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path, PurePath
from typing import Any

import yaml

from stepjepa.config.option import options_of, public_values
from stepjepa.config.values import Quoted
from stepjepa.errors import ConfigError
from stepjepa.utils.files import write_whole

_NULL, _BOOL, _INT, _FLOAT = (f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float"))
_SCALARS = [
    (_NULL, re.compile(r"(?:~|null|Null|NULL|)\Z"), ["~", "n", "N", ""]),
    (_BOOL, re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z"), list("tTfF")),
    (_INT, re.compile(r"[-+]?(?:0|[1-9][0-9]*)\Z"), list("-+0123456789")),
    (
        _FLOAT,
        re.compile(
            r"(?:[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
            r"|[-+]?[0-9]+[eE][-+]?[0-9]+|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z"
        ),
        list("-+.0123456789"),
    ),
]


class Loader(yaml.SafeLoader):
    """Knows the scalars above only; YAML 1.1's yes/no, dates, octal and base-60 numbers stay text."""

    yaml_implicit_resolvers: dict[str, list[Any]] = {}


class _Dumper(yaml.SafeDumper):
    """Quotes text that this module, or a YAML 1.1 reader, would take for something else."""


for _tag, _pattern, _first in _SCALARS:
    Loader.add_implicit_resolver(_tag, _pattern, _first)
    _Dumper.add_implicit_resolver(_tag, _pattern, _first)
_Dumper.add_implicit_resolver(_NULL, re.compile(r"(?i:none|null)\Z"), list("nN"))


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    style = '"' if any(not character.isprintable() for character in text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


@dataclass(frozen=True)
class Entry:
    """One key of the file. `given` has one of the forms that `stepjepa.config.values` describes."""

    key: str
    given: Any
    line: int  # counted from 1


def read_yaml(path: str | os.PathLike[str]) -> list[Entry]:
    """The top-level keys of a YAML file in their order; an empty file has none.

    Raises:
        ConfigError: if the file is missing, is no valid YAML, is no mapping, or has a key twice.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; --config takes the path of a YAML file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as a UTF-8 text file ({error})") from None
    try:
        loader = Loader(text)
        root = loader.get_single_node()
        if root is None or (root.tag == _NULL and isinstance(root, yaml.ScalarNode)):
            return []
        if not isinstance(root, yaml.MappingNode):
            raise ConfigError(
                f"{path}:{_line(root)}: expected a mapping of option names to values, such as "
                f"'name: value', got {_kind(root)}"
            )
        entries = []
        for key, value in _pairs(root, path):
            loader.construct_object(value, deep=True)  # refuses unknown tags and lists that contain themselves
            entries.append(Entry(key.value, _given(loader, value, path), _line(key)))
        return entries
    except yaml.YAMLError as error:
        raise ConfigError(_syntax_message(path, error)) from None


def write_yaml(values: Mapping[str, Any], path: str | os.PathLike[str], header: str = "") -> None:
    """Write plain values (None, bool, int, float, str, and lists and dicts of them) under their keys.

    The file appears complete or not at all. `header` is put at the top as comment lines.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    comment = "".join(f"# {line}\n" for line in header.splitlines())
    body = yaml.dump(dict(values), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
    write_whole(path, [(comment + body).encode()])


def dump_yaml(instances: Iterable[Any], path: str | os.PathLike[str]) -> None:
    """Write the fields of instances of option dataclasses so that `--config path` gives equal values again.

    Left out are None where that is the default, options with ``dumped=False``, secrets, and values that YAML cannot
    represent. The file is replaced as a whole; its folder is made if need be.
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
    """A value as None, bool, int, float, str, and lists and dicts of them; TypeError where it has no such form."""
    if isinstance(value, Enum):
        return representable(value.value)
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
    raise TypeError(f"{type(value).__name__} has no form in YAML")


def _pairs(node: yaml.MappingNode, path: str | os.PathLike[str]) -> Iterator[tuple[yaml.Node, yaml.Node]]:
    """Keys and values of a mapping, after a check that the keys are plain words and that none comes twice."""
    lines: dict[str, int] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise ConfigError(f"{path}:{_line(key)}: expected an option's name as the key, got {_kind(key)}")
        if key.value in lines:
            raise ConfigError(
                f"{path}:{_line(key)}: the key {key.value!r} stands here and on line {lines[key.value]}; "
                "keep one of them"
            )
        lines[key.value] = _line(key)
        yield key, value


def _given(loader: Loader, node: yaml.Node, path: str | os.PathLike[str]) -> Any:
    if isinstance(node, yaml.MappingNode):
        return {key.value: _plain(loader, value, path) for key, value in _pairs(node, path)}
    if isinstance(node, yaml.SequenceNode):
        return [_given(loader, item, path) for item in node.value]
    quoted = isinstance(node, yaml.ScalarNode) and node.style is not None
    if quoted:
        return Quoted(node.value)
    return None if node.tag == _NULL else node.value


def _plain(loader: Loader, node: yaml.Node, path: str | os.PathLike[str]) -> Any:
    """The Python value of something inside a mapping."""
    if isinstance(node, yaml.MappingNode):
        return {key.value: _plain(loader, value, path) for key, value in _pairs(node, path)}
    if isinstance(node, yaml.SequenceNode):
        return [_plain(loader, item, path) for item in node.value]
    return loader.construct_object(node, deep=True)


def _line(node: yaml.Node) -> int:
    return node.start_mark.line + 1


def _kind(node: yaml.Node) -> str:
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    return "a mapping" if isinstance(node, yaml.MappingNode) else f"the text {node.value!r}"


def _syntax_message(path: str | os.PathLike[str], error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        place = f"{path}:{mark.line + 1}" if mark else f"{path}"
        return f"{place}: not valid YAML: {error.problem or error.context}"
    return f"{path}: not valid YAML: {str(error).splitlines()[0]}"
