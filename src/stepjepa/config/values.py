"""From what the user wrote to the value that it stands for: typed values, and classes and functions of one's own by name.

Flags and YAML go through the one function `convert`, so both accept and refuse the same things. What was
written arrives in one of these forms:

    str       a word of the command line, or a plain YAML scalar as it stands in the file
    Quoted    a YAML scalar in quotes: never read as none or as true/false where text is possible
    None      an empty or null YAML value
    list      several words, or a YAML list, of these forms
    dict      a YAML mapping with its values already built
"""

from __future__ import annotations

import difflib
import hashlib
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
from stepjepa.utils.files import parse_json
from stepjepa.utils.text import lone_surrogate

_TRUE = {"true", "yes", "t", "y", "1"}
_FALSE = {"false", "no", "f", "n", "0"}
_NONE = {"none", "null"}
_INFINITY = {".inf": "inf", "+.inf": "inf", "-.inf": "-inf"}
_WORDS = {bool: "true or false", int: "a whole number", float: "a number", dict: "a JSON object", str: "text"}
_ALIKE, _ALIKE_WITHOUT_BREAKS = 0.6, 0.95  # of two names, from 0 to 1
_LARGEST = 2**63 - 1  # what the machine counts with


class Quoted(str):
    """Text that stood in quotes."""


class BadValue(ValueError):
    """The value does not fit. The message says what was expected and what was given, not where."""


class _Mismatch(Exception):
    """This alternative of a type does not accept the value; another may."""


# Names


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The member of `known` that `name` is a slip of; None where there is none. Capitals do not count.

    A name with a word more, less or other than `name` has another meaning, however many letters they share:
    ``warmup_ratio`` is no slip of ``lbd_warmup_ratio``.
    """
    spelt = {one.lower(): one for one in known}
    matches = difflib.get_close_matches(name.lower(), spelt, n=20, cutoff=_ALIKE)
    return next((spelt[match] for match in matches if _is_slip(name.lower(), match)), None)


def did_you_mean(name: str, known: Iterable[str], form: str = "{!r}") -> str:
    """The end of a message about an unknown name: ``; did you mean 'lbd'?``, or nothing where no known name is near."""
    near = nearest(name, known)
    return f"; did you mean {form.format(near)}?" if near else ""


def _is_slip(name: str, known: str) -> bool:
    """Whether both have the same words, but for some letters; or the same letters, but for the breaks between words."""
    words, others = re.split(r"[\W_]+", name), re.split(r"[\W_]+", known)
    if len(words) == len(others):
        pairs = zip(words, others, strict=True)
        return all(_alike(word, other, _ALIKE) or other.startswith(word) for word, other in pairs)
    return _alike("".join(words), "".join(others), _ALIKE_WITHOUT_BREAKS)


def _alike(one: str, other: str, least: float) -> bool:
    similar = difflib.SequenceMatcher(None, one, other).ratio()
    return similar >= least and abs(len(one) - len(other)) <= 2


# Types


def union_members(hint: object) -> tuple[Any, ...]:
    """The alternatives of a type: those of a union, with None taken out of a Literal, or the type alone."""
    arguments = get_args(hint)
    if get_origin(hint) in (Union, types.UnionType):
        return tuple(member for argument in arguments for member in union_members(argument))
    if get_origin(hint) is not Literal or None not in arguments:
        return (hint,)
    choices = tuple(choice for choice in arguments if choice is not None)
    if not choices:
        return (type(None),)
    return Literal[choices], type(None)


def is_class(hint: object, base: type) -> bool:
    """Whether a type, or the unsubscripted form of a generic one, is `base` or derives from it."""
    plain = get_origin(hint) or hint
    return isinstance(plain, type) and issubclass(plain, base)


def choices_of(hint: object) -> list[Any] | None:
    """The named values of a Literal or Enum type, or None if the type is another."""
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    return [member.value for member in hint] if isinstance(hint, type) and issubclass(hint, Enum) else None


def describe(hint: object) -> str:
    """What a type expects, in words: "a whole number", "one of a, b, c or none"."""
    members = union_members(hint)
    unnamed: list[object] = [type(None)]
    if any(is_class(member, Enum) for member in members):
        unnamed.append(str)
    words = [_describe_member(member) for member in members if member not in unnamed]
    if type(None) in members:
        words.append("none")
    return " or ".join(dict.fromkeys(words))


def _describe_member(hint: Any) -> str:
    choices = choices_of(hint)
    if choices is not None:
        words = []
        for choice in choices:
            word = str(choice)
            words.append(word.lower() if isinstance(choice, bool) else word)
        return words[0] if len(words) == 1 else f"one of {', '.join(words)}"
    if is_class(hint, list):
        return f"a list ({describe(_item_of(hint))} each)"
    kind = get_origin(hint) or hint
    if kind in _WORDS:
        return _WORDS[kind]
    name = getattr(hint, "__name__", hint)
    return f"{name} (an object that only Python code can give)"


def show(given: object) -> str:
    """What was given, for a message."""
    if given is None:
        return "no value"
    if isinstance(given, list):
        return f"the list [{', '.join(map(str, given))}]"
    return "a mapping" if isinstance(given, dict) else repr(str(given))


# Values


def convert(hint: object, given: object, keep: str | None = None) -> object:
    """The value of type `hint` that `given` stands for.

    Args:
        hint: a resolved type hint: bool, int, float, str, a path, Literal, Enum, list, dict, or a union of them. For
            `Enum | str` the result is the enumeration's value as a string; other strings are refused.
        given: what was written, in one of the forms in the module's description.
        keep: a word that stays text although it is one for None, as "none" for a field whose default is "none".

    Raises:
        BadValue: if it does not fit.
    """
    _check_text(given)
    every = union_members(hint)
    union = [member for member in every if member is not type(None)]
    members = union
    if any(is_class(member, Enum) for member in union):
        members = [member for member in union if member is not str]
    words = [str(choice) for member in members for choice in choices_of(member) or ()]
    if type(None) in every:
        none_words = _NONE - {(keep or "").lower()}
        plain = isinstance(given, str) and not isinstance(given, Quoted)
        if given is None or (plain and str(given).lower() in none_words and given not in words):
            return None
    for member in sorted(members, key=_precision):
        with suppress(_Mismatch):
            return _convert_member(member, given, union)
    near = did_you_mean(given, words) if isinstance(given, str) else ""
    raise BadValue(f"expected {describe(hint)}, got {show(given)}{near}")


def _check_text(given: object) -> None:
    half = lone_surrogate(given if isinstance(given, str) else json.dumps(given, ensure_ascii=False, default=str))
    if half is not None:
        raise BadValue(f"expected UTF-8 text, got {half} in {show(given)[:100]}")


def _precision(member: Any) -> int:
    """Order of trial: what accepts few texts before what accepts many."""
    ranks = [
        rank for rank, kind in enumerate((bool, int, float, dict, str, PurePath, list), 1) if is_class(member, kind)
    ]
    return 0 if choices_of(member) is not None else min(ranks, default=9)


def _convert_member(hint: Any, given: Any, union: list[Any]) -> Any:
    """`given` as `hint`, which is one of the alternatives in `union`."""
    if is_class(hint, list):
        if given is None or isinstance(given, dict):
            raise _Mismatch
        return [convert(_item_of(hint), one) for one in (given if isinstance(given, list) else [given])]
    if is_class(hint, dict):
        return _convert_dict(given, str in union)
    if not isinstance(given, str):
        raise _Mismatch
    plain = str not in union or not isinstance(given, Quoted)
    choices = choices_of(hint)
    if choices is not None:
        return _convert_choice(hint, choices, given, plain, text=str in union)
    if hint is str:
        return str(given)
    if is_class(hint, PurePath):
        return hint(given)
    if plain and hint is bool:
        return _convert_switch(given, alone=len(union) == 1)
    if plain and hint in (int, float):
        return _convert_number(hint, given)
    raise _Mismatch


def _convert_choice(hint: Any, choices: list[Any], given: str, plain: bool, text: bool) -> Any:
    for choice in choices:
        is_word = isinstance(choice, bool) and plain and str(choice).lower() == given.lower()
        if str(choice) == given or is_word:
            return hint(choice) if is_class(hint, Enum) and not text else choice
    raise _Mismatch


def _convert_switch(given: str, alone: bool) -> bool:
    word = given.lower()
    if word == "true" or (alone and word in _TRUE):  # next to other types, "1" and "no" are theirs
        return True
    if word == "false" or (alone and word in _FALSE):
        return False
    raise _Mismatch


def _convert_number(kind: Any, given: str) -> Any:
    try:
        number = kind(_INFINITY.get(given.lower(), given) if kind is float else given)
    except ValueError:
        raise _Mismatch from None
    if kind is int and abs(number) > _LARGEST:
        raise BadValue(f"expected a whole number below 2**63, got {show(given)}")
    if math.isnan(number):
        raise _Mismatch
    return number


def _convert_dict(given: Any, text: bool) -> dict[str, Any]:
    if isinstance(given, str):
        if text and not given.lstrip().startswith("{"):
            raise _Mismatch
        try:
            given = parse_json(given)
        except ValueError as error:
            raise BadValue(f"expected a JSON object, got {show(given)} ({error})") from None
    if not isinstance(given, dict):
        raise _Mismatch
    _check_text(given)
    return given


def _item_of(hint: Any) -> Any:
    return (get_args(hint) or (str,))[0]


# Classes and functions of one's own. Finding one imports its file, which runs its code. So a name is looked up only where a
# user gave it: on the command line, in a YAML file or in Python, never because it is recorded in the folder of a run.

Named = type | Callable[..., object]
_PREFIX = "stepjepa_user_"  # of the modules of files
_GIVEN: dict[str, object] = {}  # what Python code gave, by its name


def named_by_file(name: object) -> TypeGuard[str]:
    """Whether a value is the name of a class or function of one's own: ``file.py:Name`` or ``package.module:Name``."""
    return isinstance(name, str) and re.fullmatch(r"(.*\.py|[A-Za-z_][\w.]*):[A-Za-z_][\w.]*", name) is not None


def load_named(name: str, option: str, known: Sequence[str], again: bool = False) -> object:
    """What ``file.py:Name`` or ``package.module:Name`` names. Loading it runs that file.

    A module is looked for where Python looks, then in the current folder.

    Args:
        option: that the name was given with; `known`: what else it takes, for the message.
        again: run a file again that was loaded before; in a notebook it may have changed.

    Raises:
        ConfigError: it is neither, or cannot be loaded.
    """
    if name in _GIVEN:
        return _GIVEN[name]
    if not named_by_file(name):
        near = did_you_mean(name, known, "{}")
        raise ConfigError(f"{option} is {name!r}; known: {', '.join(known)}, or file.py:Name of your own{near}")
    source, _, attribute = name.rpartition(":")
    try:
        with _current_folder_too():
            is_file = source.endswith(".py")
            module = _file_module(Path(source), again) if is_file else importlib.import_module(source)
            return getattr(module, attribute)
    except ConfigError:
        raise
    except AttributeError:
        raise ConfigError(f"{option} {name}: {source} has no {attribute}") from None
    except Exception as error:
        raise ConfigError(f"{option} {name}: {source} cannot be loaded ({said(error)})") from error


def given_name(thing: Named) -> str:
    """The name under which `load_named` finds a class or a function that Python code gave."""
    module = sys.modules[thing.__module__]
    file = getattr(module, "__file__", None)
    by_file = file and (thing.__module__.startswith(_PREFIX) or thing.__module__ == "__main__")
    name = f"{file if by_file else thing.__module__}:{thing.__qualname__}"
    _GIVEN[name] = thing
    return name


def source_fingerprint(thing: Named) -> str:
    """A fingerprint of the module that a class or function is in; its name where there is no source."""
    try:
        return hashlib.sha256(inspect.getsource(sys.modules[thing.__module__]).encode()).hexdigest()[:12]
    except (OSError, TypeError):
        return str(thing.__qualname__)


@contextmanager
def _current_folder_too() -> Iterator[None]:
    """Modules are looked for where Python looks, then in the current folder."""
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
    # By its path: files of one name in several folders are several modules.
    name = f"{_PREFIX}{hashlib.sha256(str(path).encode()).hexdigest()[:12]}_{path.stem}"
    if name in sys.modules and not again:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
