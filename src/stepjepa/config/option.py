"""An option: a field of a dataclass, with everything that the library knows about it in its metadata.

`option` declares one. `options_of` reads the options of a dataclass; flags, YAML files, help texts, the reference pages, the
checks of values (`check_fields`), notes on options without effect (`unread_options`), the guard of resumed runs and the
identity of studies are all derived from it.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast, get_type_hints

from stepjepa.config.gone import replacement
from stepjepa.config.values import (
    BadValue,
    choices_of,
    convert,
    describe,
    did_you_mean,
    is_class,
    named_by_file,
    show,
    union_members,
)
from stepjepa.errors import ConfigError

MISSING = dataclasses.MISSING
# What an option needs: the accepted values of another one; True and False stand for any value that is true or false.
Needs = Mapping[str, "bool | tuple[str, ...]"]
# The option that carries further ones, and the dataclass of those that a value brings.
Brings = tuple[str, Callable[[str], "type | None"]]
T = TypeVar("T")
_known: dict[type, dict[str, Option]] = {}
_NUMBERS: dict[Any, str] = {int: "whole number", float: "finite number"}
_TESTS = {"at_least": operator.ge, "at_most": operator.le, "above": operator.gt, "below": operator.lt}


@dataclasses.dataclass(frozen=True)
class Option:
    """What is known of one field of an option dataclass, transformers' own included.

    Attributes:
        help: one sentence, or a few.
        group: the heading that it stands under in the help.
        aliases: other spellings of flag and YAML key.
        choices: named values, where the type does not list them.
        own: besides those it takes ``file.py:Name`` and ``package.module:Name``.
        folder: besides those it takes the folder or Hub id of a model, with a slash in it.
        brings: for such a value, the option that carries further ones by name, and a function from the value to the
            dataclass of these.
        needs: other options of the same run, and the values of them without which this one has no effect.
        resume: a run may be resumed with another value.
        identity: it decides the numbers of a run, so runs that differ in it cannot share a table.
        secret: its value must not reach a file or a message. Default: the name ends in ``_token``, as in transformers.
        dumped: it is written to ``resolved.yaml``.
        at_least, at_most, above, below: bounds of a number, or of each number of a list.
        name, hint, default: of the field; the type is resolved.
        bare: the value of the flag written without one, MISSING if it needs one.
    """

    help: str = ""
    group: str | None = None
    aliases: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    own: bool = False
    folder: bool = False
    brings: Brings | None = None
    needs: Needs = dataclasses.field(default_factory=dict)
    resume: bool = False
    identity: bool = True
    secret: bool | None = None
    dumped: bool = True
    at_least: float | None = None
    at_most: float | None = None
    above: float | None = None
    below: float | None = None
    name: str = ""
    hint: object = None
    default: Any = None
    bare: Any = None

    @classmethod
    def of(cls, field: dataclasses.Field[Any], hint: type) -> Option:
        """The option for a field, whose type is `hint`."""
        meta = field.metadata
        if isinstance(meta.get("const"), bool):  # --flag alone means True, so the word true must mean it too
            hint = hint | bool  # type: ignore[assignment]
        own = meta.get("option")
        if own is None:  # a field of transformers
            own = cls(str(meta.get("help", "")).replace("%%", "%"), choices=tuple(meta.get("choices", ())))
        bare = True if bool in union_members(hint) else MISSING
        return dataclasses.replace(
            own,
            name=field.name,
            hint=hint,
            default=field.default if field.default_factory is MISSING else field.default_factory(),
            bare=own.bare or meta.get("const", bare),
            secret=field.name.endswith("_token") if own.secret is None else own.secret,
        )

    @property
    def bounds(self) -> dict[str, float]:
        """Those that it has, by name."""
        bounds = {name: getattr(self, name) for name in _TESTS}
        return {name: bound for name, bound in bounds.items() if bound is not None}

    @property
    def kinds(self) -> list[Any]:
        """The alternatives of its type, None aside."""
        return [member for member in union_members(self.hint) if member is not type(None)]

    @property
    def many(self) -> bool:
        """Whether several values may follow the flag."""
        return any(is_class(kind, list) for kind in self.kinds)

    @property
    def boolean(self) -> bool:
        """Whether it may be written without a value, and switched off by ``--no_name``."""
        return bool in self.kinds

    @property
    def named(self) -> list[str]:
        """The values that have a name: those of the metadata, or of the type."""
        if self.choices:
            return list(self.choices)
        choices = [choice for kind in self.kinds for choice in choices_of(kind) or ()]
        return [choice for choice in choices if isinstance(choice, str)]

    @property
    def expects(self) -> str:
        """What its value must be, for an error message."""
        if not self.choices:
            return describe(self.hint)
        further = ", or file.py:Name of your own" if self.own else ""
        if self.folder:
            further = ", or the folder of a model (./NAME)"
        return f"one of {', '.join(self.choices)}{further}"

    def read(self, given: object) -> object:
        """The field's value for what was written; BadValue if it does not fit."""
        gone = replacement(self.name, given)
        if gone:
            raise BadValue(f"{given} is gone; {gone}")
        value = convert(self.hint, given, keep=self.default if isinstance(self.default, str) else None)
        if self.choices and value is not None and not self._names(value, self.choices):
            near = did_you_mean(str(value), self.choices)
            raise BadValue(f"expected {self.expects}, got {show(given)}{near}")
        if isinstance(value, (int, float)):
            self._check_bounds(value)
        return value

    def _names(self, value: object, known: Sequence[str]) -> bool:
        """Whether a value is a known one or, where it may be, the user's own."""
        if self.folder and isinstance(value, str) and "/" in value:
            return True
        return value in known or (self.own and named_by_file(value))

    def fits(self, given: object) -> bool:
        """Whether `read` takes it."""
        try:
            self.read(given)
        except BadValue:
            return False
        return True

    def check(self, value: object) -> None:
        """Check a value that Python code may have given: named values, and numbers in their bounds.

        Raises:
            ConfigError: it cannot be used; the message names the option.
        """
        kinds = self.kinds
        if value is None and kinds != list(union_members(self.hint)):
            return
        items = list(value) if isinstance(value, (list, tuple)) else [value]
        for item in items:
            gone = replacement(self.name, item)
            if gone:
                raise ConfigError(f"{self.name}={item} is gone; {gone}")
        if len(kinds) == 1:
            self._check_named(value)
        if kinds == [bool] and isinstance(value, str):  # "false" would be true
            raise ConfigError(f"{self.name} is {value!r}; it must be true or false")
        for kind in kinds:
            item_kind: Any = next(iter(getattr(kind, "__args__", ())), None)
            if not is_class(kind, list) or item_kind not in _NUMBERS:
                continue
            if not value or not isinstance(value, (list, tuple)):
                raise ConfigError(f"{self.name} is {value!r}; it must be a list of {_NUMBERS[item_kind]}s")
            for item in value:
                self._check_number(item, item_kind)
        if kinds and set(kinds) <= set(_NUMBERS):
            self._check_number(value, float if float in kinds else int)

    def _check_named(self, value: object) -> None:
        known = self.named if self.own or self.folder or not self.choices else []
        if not known or self._names(value, known):
            return
        further = ", or the folder of a model (./NAME)" if self.folder else ""
        if self.own:
            further = f", or file.py:Name of your own{did_you_mean(str(value), known, '{}')}"
        raise ConfigError(f"{self.name} is {value!r}; known: {', '.join(known)}{further}")

    def _check_number(self, value: Any, kind: type) -> None:
        wanted = (int, float) if kind is float else int
        if isinstance(value, bool) or not isinstance(value, wanted) or not math.isfinite(value):
            needs = f"a {_NUMBERS[kind]} {self._range}".rstrip()
            raise ConfigError(f"{self.name} is {value!r}; it must be {needs}")
        self._check_bounds(value)

    def _check_bounds(self, value: float) -> None:
        if not all(_TESTS[name](value, bound) for name, bound in self.bounds.items()):
            raise ConfigError(f"{self.name} is {value}; it must be {self._range}")

    @property
    def _range(self) -> str:
        """The bounds in words: ``above 0 and below 1``."""
        return " and ".join(f"{name.replace('_', ' ')} {bound:.12g}" for name, bound in self.bounds.items())

    def metavar(self) -> str:
        """What follows the flag in the help: ``INT``, ``TEXT``, ``{a,b}``."""
        if self.choices:
            further = ["FILE:NAME"] if self.own else ["FOLDER"] if self.folder else []
            return "{" + ",".join([*self.choices, *further]) + "}"
        return _metavar(self.kinds)

    def help_text(self, aliases: Sequence[str]) -> str:
        """The description with other spellings and the default, escaped for argparse."""
        notes = []
        if aliases:
            spellings = [f"--{alias}" for alias in aliases]
            notes.append(f"also {', '.join(spellings)}")
        default = self.default
        if isinstance(default, Enum):
            default = default.value
        if default is not None and default not in ("", [], {}):
            blank = isinstance(default, str) and (default.strip() != default or not default.isprintable())
            shown = repr(default) if blank else default
            notes.append(f"default: {shown}")
        text = f"{self.help} ({'; '.join(notes)})" if notes else self.help
        return text.strip().replace("%", "%%")


def option(default: T, help: str, group: str | None = None, **about: Any) -> T:
    """A dataclass field that is an option; `about` are further attributes of `Option`."""
    value: Any = {"default_factory": default.copy} if isinstance(default, list) else {"default": default}
    metadata = {"option": Option(help, group, **about)}
    return dataclasses.field(metadata=metadata, **value)  # type: ignore[no-any-return]


def options_of(dataclass: type) -> dict[str, Option]:
    """The options of a dataclass by name: all its fields that can be set."""
    if dataclass not in _known:
        hints = get_type_hints(dataclass)
        fields = [field for field in dataclasses.fields(cast(Any, dataclass)) if field.init]
        _known[dataclass] = {field.name: Option.of(field, hints[field.name]) for field in fields}
    return _known[dataclass]


class Topic:
    """Base of the dataclasses of one topic. The options of a run are all topics in one."""

    if TYPE_CHECKING:
        objective: Any  # of the run, which a check may ask for
        predictors: Any

    def fill_in(self) -> None:
        """Replace what is None by what follows from other options."""

    def check(self) -> None:
        """Check the options of the topic together.

        Raises:
            ConfigError: values that cannot be used; the message names the options.
        """


class Names:
    """The options of dataclasses as attributes, for messages: ``name.lbd`` is ``"lbd"``, and what is no option fails.

    A test reads the source and tries every name that is used.
    """

    def __init__(self, *dataclass_types: Any):
        vars(self).update({one.name: one.name for dtype in dataclass_types for one in dataclasses.fields(dtype)})

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> str: ...


def check_fields(options: object, dataclass: type | None = None) -> None:
    """Check every option of `options` (those of `dataclass`, one of its bases, if given) by its type and bounds.

    Raises:
        ConfigError: a value that cannot be used; the message names the option.
    """
    for one in options_of(dataclass or type(options)).values():
        one.check(getattr(options, one.name))


def public_values(options: object) -> dict[str, Any]:
    """The options by name, without secrets: neither its own, nor those that a class of one's own has brought."""
    known = options_of(type(options)).values()
    values = {one.name: getattr(options, one.name) for one in known if not one.secret}
    for one in known:
        if one.brings is None:
            continue
        carrier, dataclass_of = one.brings
        brought = dataclass_of(values[one.name]) if values.get(carrier) else None
        if brought is not None:
            secret = {name for name, further in options_of(brought).items() if further.secret}
            values[carrier] = {name: value for name, value in values[carrier].items() if name not in secret}
    return values


class Unread(NamedTuple):
    """An option that was given and that the run does not read; `reason` begins with "with" or "without"."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"--{self.name} has no effect {self.reason}"


def unread_options(options: object, given: Iterable[str]) -> list[Unread]:
    """Those of the options `given` that lack what they need, in the order of the fields."""
    given = set(given)
    unread = []
    for one in options_of(type(options)).values():
        lacking = [_lack(options, other, wanted) for other, wanted in one.needs.items()]
        lacking = list(filter(None, lacking))
        if one.name in given and lacking:
            unread.append(Unread(one.name, lacking[0]))
    return unread


def _lack(options: object, name: str, wanted: bool | tuple[str, ...]) -> str:
    """What an option lacks that needs another one, empty where it has it."""
    value = getattr(options, name)
    if isinstance(wanted, tuple):
        return "" if value in wanted else f"without --{name} {' or '.join(wanted)}"
    if bool(value) == wanted:
        return ""
    return f"without --{name}" if wanted else f"with --{name}"


def _metavar(kinds: Iterable[Any]) -> str:
    if bool in kinds:
        return "true|false"
    for kind in kinds:
        choices = choices_of(kind)
        if choices:
            return "{" + ",".join(map(str, choices)) + "}"
    for base, word in ((int, "INT"), (float, "NUMBER"), (dict, "JSON")):
        if any(is_class(kind, base) for kind in kinds):
            return word
    items = [item for kind in kinds if is_class(kind, list) for item in getattr(kind, "__args__", ())]
    return _metavar(union_members(items[0])) if items else "TEXT"
