"""From what the user wrote to the value that a field's type asks for.

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
import json
import math
import re
import types
from collections.abc import Iterable
from contextlib import suppress
from enum import Enum
from pathlib import PurePath
from typing import Any, Literal, TypeGuard, Union, get_args, get_origin

from stepjepa.utils.files import parse_json
from stepjepa.utils.text import lone_surrogate

_TRUE = {"true", "yes", "t", "y", "1"}
_FALSE = {"false", "no", "f", "n", "0"}
_NONE = {"none", "null"}
_INFINITY = {".inf": "inf", "+.inf": "inf", "-.inf": "-inf"}
_ALIKE, _ALIKE_WITHOUT_BREAKS = 0.6, 0.95  # of two names, from 0 to 1
_LARGEST = 2**63 - 1  # what the machine counts with


class Quoted(str):
    """Text that stood in quotes."""


class BadValue(ValueError):
    """The value does not fit. The message says what was expected and what was given, not where."""


class _Mismatch(Exception):
    """This alternative of a type does not accept the value; another may."""


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


def named_by_file(name: object) -> TypeGuard[str]:
    """Whether a value is the name of a class or function of one's own: ``file.py:Name`` or ``package.module:Name``."""
    return isinstance(name, str) and re.fullmatch(r"(.*\.py|[A-Za-z_][\w.]*):[A-Za-z_][\w.]*", name) is not None


def union_members(hint: object) -> tuple[Any, ...]:
    """The alternatives of a type: those of a union, with None taken out of a Literal, or the type alone."""
    if get_origin(hint) in (Union, types.UnionType):
        return tuple(member for arg in get_args(hint) for member in union_members(arg))
    if get_origin(hint) is Literal and None in get_args(hint):
        rest = tuple(choice for choice in get_args(hint) if choice is not None)
        return (Literal[rest], type(None)) if rest else (type(None),)
    return (hint,)


def is_class(hint: object, base: type) -> bool:
    """Whether a type, or the unsubscripted form of a generic one, is `base` or derives from it."""
    plain = get_origin(hint) or hint
    return isinstance(plain, type) and issubclass(plain, base)


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
    members = union = [member for member in every if member is not type(None)]
    if any(is_class(member, Enum) for member in members):
        members = [member for member in members if member is not str]
    words = [str(choice) for member in members for choice in choices_of(member) or ()]
    plain = isinstance(given, str) and not isinstance(given, Quoted)
    empty = plain and str(given).lower() in _NONE - {(keep or "").lower()} and given not in words
    if type(None) in every and (given is None or empty):
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


def describe(hint: object) -> str:
    """What a type expects, in words: "a whole number", "one of a, b, c or none"."""
    members = union_members(hint)
    enums = any(is_class(member, Enum) for member in members)
    words = [_describe_member(m) for m in members if m is not type(None) and not (enums and m is str)]
    if type(None) in members:
        words.append("none")
    return " or ".join(dict.fromkeys(words))


def choices_of(hint: object) -> list[Any] | None:
    """The named values of a Literal or Enum type, or None if the type is another."""
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return [member.value for member in hint]
    return None


def show(given: object) -> str:
    """What was given, for a message."""
    if given is None:
        return "no value"
    if isinstance(given, list):
        return f"the list [{', '.join(map(str, given))}]"
    if isinstance(given, dict):
        return "a mapping"
    return repr(str(given))


def _precision(member: Any) -> int:
    """Order of trial: what accepts few texts before what accepts many."""
    if choices_of(member) is not None:
        return 0
    for rank, kind in enumerate((bool, int, float, dict, str, PurePath, list), start=1):
        if is_class(member, kind):
            return rank
    return 9


def _convert_member(hint: Any, given: Any, union: list[Any]) -> Any:
    """`given` as `hint`, which is one of the alternatives in `union`."""
    text = str in union
    if is_class(hint, list):
        if given is None or isinstance(given, dict):
            raise _Mismatch
        item = (get_args(hint) or (str,))[0]
        return [convert(item, one) for one in (given if isinstance(given, list) else [given])]
    if is_class(hint, dict):
        return _convert_dict(hint, given, text)
    if not isinstance(given, str):
        raise _Mismatch
    plain = not (text and isinstance(given, Quoted))
    choices = choices_of(hint)
    if choices is not None:
        for choice in choices:
            if str(choice) == given or (isinstance(choice, bool) and plain and str(choice).lower() == given.lower()):
                return hint(choice) if is_class(hint, Enum) and not text else choice
        raise _Mismatch
    if hint is str:
        return str(given)
    if is_class(hint, PurePath):
        return hint(given)
    if not plain:
        raise _Mismatch
    if hint is bool:
        word, alone = given.lower(), len(union) == 1  # beside other types, "1" and "no" are theirs
        if word == "true" or (alone and word in _TRUE):
            return True
        if word == "false" or (alone and word in _FALSE):
            return False
    if hint in (int, float):
        return _convert_number(hint, given)
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


def _convert_dict(hint: Any, given: Any, text: bool) -> dict[str, Any]:
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
    item = (*get_args(hint), Any, Any)[1]
    if item in (bool, int, str):
        for key, value in given.items():
            if type(value) is not item:
                raise BadValue(f"expected {describe(item)} for {key!r}, got {value!r}")
    return given


def _describe_member(hint: Any) -> str:
    choices = choices_of(hint)
    if choices is not None:
        words = [str(choice).lower() if isinstance(choice, bool) else str(choice) for choice in choices]
        return words[0] if len(words) == 1 else f"one of {', '.join(words)}"
    if is_class(hint, list):
        return f"a list ({describe((get_args(hint) or (str,))[0])} each)"
    if is_class(hint, dict):
        return "a JSON object"
    if is_class(hint, PurePath):
        return "a path"
    known = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    return known.get(hint) or f"{getattr(hint, '__name__', hint)} (an object that only Python code can give)"
