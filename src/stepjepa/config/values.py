"""Conversion of what the user wrote into typed values, and loading of the user's classes and functions by name.

Flags and YAML both go through the function `convert`, so they accept and refuse the same values. What the user wrote
arrives in one of these forms:

    str       a word of the command line, or a plain YAML scalar as written in the file
    Quoted    a YAML scalar in quotes: never read as none or as true/false if text is possible
    None      an empty or null YAML value
    list      several words, or a YAML list, of these forms
    dict      a YAML mapping, whose values are already Python objects
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import json
import math
import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path, PurePath
from typing import Any, Literal, TypeGuard, Union, get_args, get_origin

from stepjepa.errors import ConfigError, said
from stepjepa.utils.files import digest, parse_json
from stepjepa.utils.text import lone_surrogate

_TRUE = {"true", "yes", "t", "y", "1"}
_FALSE = {"false", "no", "f", "n", "0"}
_NONE = {"none", "null"}
# YAML's spellings of infinity, which Python's float does not know.
_INFINITY = {".inf": "inf", "+.inf": "inf", "-.inf": "-inf"}
# Least similarity of a misspelling, from 0 to 1: enough for two swapped letters in a word of four.
_ALIKE = 0.75
# Torch and NumPy count in int64; a larger number would fail far from the option.
_LARGEST = 2**63 - 1


class Quoted(str):
    """Text that was written in quotes."""


class BadValue(ValueError):
    """The value does not fit. The message says what was expected and what was written, not where."""


class _Mismatch(Exception):
    """This alternative of a type does not accept the value; another one may."""


# Names


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The member of `known` that is most similar to `name`, or None if none is similar; letter case is ignored."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    matches = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=_ALIKE)
    return by_lower[matches[0]] if matches else None


def did_you_mean(name: str, known: Iterable[str], form: str = "{!r}") -> str:
    """The end of a message about an unknown name: ``; did you mean 'lbd'?``, or nothing if no known name is close."""
    near = nearest(name, known)
    return f"; did you mean {form.format(near)}?" if near else ""


# Types


def union_members(hint: object) -> tuple[Any, ...]:
    """The alternatives of a type: the members of a union, or else the type itself."""
    arguments = get_args(hint)
    if get_origin(hint) is Literal and None in arguments:
        # Callers see Literal["a", None] as Literal["a"] | None.
        return Literal[tuple(choice for choice in arguments if choice is not None)], type(None)
    return arguments if get_origin(hint) in (Union, types.UnionType) else (hint,)


def is_class(hint: object, base: type) -> bool:
    """Whether a type, or the unsubscripted form of a generic one, is `base` or derives from it."""
    plain = get_origin(hint) or hint
    return isinstance(plain, type) and issubclass(plain, base)


def choices_of(hint: object) -> list[Any] | None:
    """The named values of a Literal or Enum; None for any other type."""
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return [member.value for member in hint]
    return None


def placeholder(kinds: Iterable[Any]) -> str:
    """What a value of one of these types may be, for the help and for messages: ``INT``, ``TEXT``, ``{a,b}``."""
    # The narrowest kinds are tried first, because an option of several kinds has only one placeholder.
    if bool in kinds:
        return "true|false"
    for kind in kinds:
        choices = choices_of(kind)
        if choices:
            return "{" + ",".join(map(str, choices)) + "}"
    for base, word in ((int, "INT"), (float, "NUMBER"), (dict, "JSON")):
        if any(is_class(kind, base) for kind in kinds):
            return word
    lists = [kind for kind in kinds if is_class(kind, list)]
    return placeholder(union_members(_item_of(lists[0]))) if lists else "TEXT"


def _read_as(hint: object) -> list[Any]:
    """The alternatives of a type that a value may be read as, except None.

    For `Enum | str`, a type that transformers uses, only the Enum's values are accepted as strings.
    """
    members = [member for member in union_members(hint) if member is not type(None)]
    if any(is_class(member, Enum) for member in members):
        return [member for member in members if member is not str]
    return members


def show(written: object) -> str:
    """What the user wrote, for a message."""
    if written is None:
        return "no value"
    if isinstance(written, list):
        return f"the list [{', '.join(map(str, written))}]"
    return "a mapping" if isinstance(written, dict) else repr(str(written))


# Values


def convert(hint: object, written: object, keep: str | None = None) -> object:
    """Convert what the user wrote into a value of type `hint`.

    Args:
        hint: a resolved type hint: bool, int, float, str, a path, Literal, Enum, list, dict, or a union of them. For an
            Enum, and for `Enum | str`, the result is the enumeration's value; other strings are refused.
        written: what the user wrote, in one of the forms in the module's description.
        keep: a word that stays text although it usually means None, such as "none" for a field whose default is "none".

    Raises:
        BadValue: the value does not fit.
    """
    _check_text(written)
    alternatives = union_members(hint)
    union = [member for member in alternatives if member is not type(None)]
    members = _read_as(hint)
    words = [str(choice) for member in members for choice in choices_of(member) or ()]
    # The word none means None, except in quotes or where it is one of the choices.
    if type(None) in alternatives:
        none_words = _NONE - {(keep or "").lower()}
        plain = isinstance(written, str) and not isinstance(written, Quoted)
        if written is None or (
            plain and str(written).lower() in none_words and written not in words
        ):
            return None
    # The narrowest alternative that accepts the text is used: 1e-5 is read as a number rather than as text.
    for member in sorted(members, key=_precision):
        with suppress(_Mismatch):
            return _convert_member(member, written, union)
    near = did_you_mean(written, words) if isinstance(written, str) else ""
    raise BadValue(f"expected {placeholder(members)}, got {show(written)}{near}")


def _check_text(written: object) -> None:
    """Refuse a lone surrogate: it stands for an invalid byte of the command line, and no UTF-8 file can contain it."""
    text = (
        written
        if isinstance(written, str)
        else json.dumps(written, ensure_ascii=False, default=str)
    )
    half = lone_surrogate(text)
    if half is not None:
        raise BadValue(f"expected UTF-8 text, got {half} in {show(written)[:100]}")


def _precision(member: Any) -> int:
    """The rank of a type in the order in which types are tried: types that accept few texts come first."""
    ranks = [
        rank
        for rank, kind in enumerate((bool, int, float, dict, str, PurePath, list), 1)
        if is_class(member, kind)
    ]
    return 0 if choices_of(member) is not None else min(ranks, default=9)


def _convert_member(hint: Any, written: Any, union: list[Any]) -> Any:
    """Convert `written` to `hint`, one of the alternatives in `union`; _Mismatch if it does not fit."""
    if is_class(hint, list):
        if written is None or isinstance(written, dict):
            raise _Mismatch
        items = written if isinstance(written, list) else [written]
        return [convert(_item_of(hint), item) for item in items]
    if is_class(hint, dict):
        return _convert_dict(written, str in union)
    if not isinstance(written, str):
        raise _Mismatch
    # Quotes make "1" or "true" text, but only where the option accepts text.
    plain = str not in union or not isinstance(written, Quoted)
    choices = choices_of(hint)
    if choices is not None:
        for choice in choices:
            # A choice that is True or False may be written in any letter case; in quotes, it is text.
            is_word = isinstance(choice, bool) and plain and str(choice).lower() == written.lower()
            if str(choice) == written or is_word:
                return choice
        raise _Mismatch
    if hint is str:
        return str(written)
    if is_class(hint, PurePath):
        return hint(written)
    if plain and hint is bool:
        return _convert_switch(written, alone=len(union) == 1)
    if plain and hint in (int, float):
        return _convert_number(hint, written)
    raise _Mismatch


def _convert_switch(written: str, alone: bool) -> bool:
    word = written.lower()
    # In a union "1" and "no" belong to the other types.
    if word == "true" or (alone and word in _TRUE):
        return True
    if word == "false" or (alone and word in _FALSE):
        return False
    raise _Mismatch


def _convert_number(kind: Any, written: str) -> Any:
    try:
        number = kind(_INFINITY.get(written.lower(), written) if kind is float else written)
    except ValueError:
        raise _Mismatch from None
    if kind is int and abs(number) > _LARGEST:
        raise BadValue(f"expected a whole number below 2**63, got {show(written)}")
    # NaN is a float in Python, but no option can be set to it.
    if math.isnan(number):
        raise _Mismatch
    return number


def _convert_dict(written: Any, text: bool) -> dict[str, Any]:
    if isinstance(written, str):
        # In a union with str, only text that begins like an object is meant as one.
        if text and not written.lstrip().startswith("{"):
            raise _Mismatch
        try:
            written = parse_json(written)
        except ValueError as error:
            raise BadValue(f"expected a JSON object, got {show(written)} ({error})") from None
    if not isinstance(written, dict):
        raise _Mismatch
    _check_text(written)
    return written


def _item_of(hint: Any) -> Any:
    return (get_args(hint) or (str,))[0]


# The user's classes and functions. Loading one imports its file, which runs its code. A name is therefore loaded only where
# the user gave it: on the command line, in a YAML file or in Python, never because it is recorded in the folder of a run.

Named = type | Callable[..., object]
# Prefix of the modules that are loaded from files, so that none hides an installed module.
_PREFIX = "stepjepa_user_"
# Classes and functions that Python code passed as objects, by name: those of a notebook have no file to load.
_PASSED: dict[str, object] = {}


def named_by_file(name: object) -> TypeGuard[str]:
    """Whether a value names a user's class or function: ``file.py:Name`` or ``package.module:Name``."""
    return (
        isinstance(name, str)
        and re.fullmatch(r"(.*\.py|[A-Za-z_][\w.]*):[A-Za-z_][\w.]*", name) is not None
    )


def load_named(name: str, option: str, known: Sequence[str], again: bool = False) -> object:
    """Load the class or function ``file.py:Name`` or ``package.module:Name``; this runs the file.

    A module is looked for on Python's path, then in the current folder.

    Args:
        option: the option that has the name as its value, for the message.
        known: the built-in values of the option, for the message.
        again: run the file again even if it was loaded before, because it may have changed while a notebook runs.

    Raises:
        ConfigError: the name has neither form, or cannot be loaded.
    """
    if name in _PASSED:
        return _PASSED[name]
    if not named_by_file(name):
        near = did_you_mean(name, known, "{}")
        raise ConfigError(
            f"{option} is {name!r}; known: {', '.join(known)}, or your own file.py:Name{near}"
        )
    source, _, attribute = name.rpartition(":")
    try:
        with _current_folder_too():
            is_file = source.endswith(".py")
            module = (
                _file_module(Path(source), again) if is_file else importlib.import_module(source)
            )
            return getattr(module, attribute)
    except ConfigError:
        raise
    except AttributeError:
        raise ConfigError(f"{option} {name}: {source} has no {attribute}") from None
    except Exception as error:
        raise ConfigError(f"{option} {name}: {source} cannot be loaded ({said(error)})") from error


def given_name(thing: Named) -> str:
    """The name under which `load_named` returns a class or function that Python code passes as an object."""
    module = sys.modules[thing.__module__]
    file = getattr(module, "__file__", None)
    # Another process cannot import the script by its module's name, but can load its file.
    by_file = file and (thing.__module__.startswith(_PREFIX) or thing.__module__ == "__main__")
    name = f"{file if by_file else thing.__module__}:{thing.__qualname__}"
    _PASSED[name] = thing
    return name


def source_fingerprint(thing: Named) -> str:
    """A fingerprint of the source of a class's or function's module; the name of `thing` if there is no source."""
    try:
        return digest([inspect.getsource(sys.modules[thing.__module__]).encode()])[:12]
    except (OSError, TypeError):
        return str(thing.__qualname__)


@contextmanager
def _current_folder_too() -> Iterator[None]:
    """Within this context, look for modules on Python's path, then in the current folder."""
    folder = str(Path.cwd())
    added = folder not in sys.path
    sys.path += [folder] * added
    try:
        yield
    finally:
        if added and folder in sys.path:
            sys.path.remove(folder)


def _file_module(path: Path, again: bool) -> types.ModuleType:
    """The module of a Python file, loaded once, or `again`."""
    path = path.expanduser().resolve()
    if not path.is_file():
        raise ConfigError(f"{path}: there is no such file")
    # Named by its path, because files of the same name in several folders are different modules.
    name = f"{_PREFIX}{digest([str(path).encode()])[:12]}_{path.stem}"
    if name in sys.modules and not again:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    # Registered before it runs, as an import does: dataclasses look up their module while the class is built.
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    # The next attempt must not get a half-loaded module.
    except BaseException:
        del sys.modules[name]
        raise
    return module
