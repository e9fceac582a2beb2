"""An option: a field of a dataclass, with everything that the library knows about it in its metadata.

`option` declares an option, and `options_of` returns the options of a dataclass. Flags, YAML files, help texts, the
reference pages, the checks of values (`check_fields`), notes on options without effect (`unread_options`), the check of
settings on resume and the identity of studies are all derived from this metadata.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_type_hints

from stepjepa.config.gone import replacement
from stepjepa.config.values import (
    BadValue,
    choices_of,
    convert,
    did_you_mean,
    is_class,
    named_by_file,
    placeholder,
    union_members,
)
from stepjepa.errors import ConfigError

MISSING = dataclasses.MISSING
# Values of options, by name.
Values = Mapping[str, Any]
# What an option needs: the name of another option -> the values with which the need is met. True and False stand for any
# truthy or falsy value.
Needs = Mapping[str, "bool | tuple[str, ...]"]
# The option that stores the options of a user's class, and a function from its name to the dataclass that declares them.
Brings = tuple[str, Callable[[str], "type | None"]]
T = TypeVar("T")
_NUMBERS: dict[Any, str] = {int: "whole number", float: "finite number"}
# The attributes of `Option` that bound a number, with the comparison that must hold.
_COMPARISONS = {
    "at_least": operator.ge,
    "at_most": operator.le,
    "above": operator.gt,
    "below": operator.lt,
}
# Maximum length of the list of choices in a help placeholder, in characters.
_LONGEST_CHOICES = 100


@dataclasses.dataclass(frozen=True)
class Option:
    """What the library knows about one field of an option dataclass, including the dataclasses of transformers.

    Attributes:
        help: one sentence, or a few.
        group: the heading in the help.
        aliases: other spellings of the flag and the YAML key.
        choices: named values, if the type does not list them.
        own: whether ``file.py:Name`` and ``package.module:Name`` are also accepted.
        folder: whether the folder or Hub id of a model, which contains a slash, is also accepted.
        brings: the option that stores the further options of a user's class by name, and a function from the name of the
            class to the dataclass of these options.
        needs: other options of the same run, with the values that they must have for this option to have an effect.
        resume: whether a run may be resumed with another value.
        identity: whether it affects the numbers of a run, so that runs that differ in it cannot share a table.
        secret: whether its value must be kept out of files and messages. Default: whether the name ends in ``_token``, as
            in transformers.
        dumped: whether it is written to ``resolved.yaml``.
        at_least, at_most, above, below: bounds of a number, or of each number in a list.
        name, hint, default: those of the field; `hint` is the resolved type.
        bare: the value that the flag sets when it is written without one; MISSING if a value is required.
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
        """Build the option of a dataclass field with the resolved type `hint`."""
        meta = field.metadata
        # In transformers' metadata, a boolean const means that --flag without a value is True; the word true is then valid.
        if isinstance(meta.get("const"), bool):
            hint = hint | bool  # type: ignore[assignment]
        declared = meta.get("option")
        # transformers declares its fields with plain metadata, in which help texts are escaped for argparse.
        if declared is None:
            declared = cls(
                str(meta.get("help", "")).replace("%%", "%"), choices=tuple(meta.get("choices", ()))
            )
        bare = True if bool in union_members(hint) else MISSING
        return dataclasses.replace(
            declared,
            name=field.name,
            hint=hint,
            default=field.default if field.default_factory is MISSING else field.default_factory(),
            bare=declared.bare or meta.get("const", bare),
            secret=field.name.endswith("_token") if declared.secret is None else declared.secret,
        )

    @property
    def bounds(self) -> dict[str, float]:
        """The bounds that are set, by name."""
        bounds = {name: getattr(self, name) for name in _COMPARISONS}
        return {name: bound for name, bound in bounds.items() if bound is not None}

    @property
    def kinds(self) -> list[Any]:
        """The alternatives of its type, except None."""
        return [member for member in union_members(self.hint) if member is not type(None)]

    @property
    def many(self) -> bool:
        """Whether several values may follow the flag."""
        return any(is_class(kind, list) for kind in self.kinds)

    @property
    def boolean(self) -> bool:
        """Whether the flag may be written without a value, and switched off by ``--no_name``."""
        return bool in self.kinds

    @property
    def named(self) -> list[str]:
        """The named values: those of the metadata, or of the type."""
        if self.choices:
            return list(self.choices)
        choices = [choice for kind in self.kinds for choice in choices_of(kind) or ()]
        return [choice for choice in choices if isinstance(choice, str)]

    def read(self, written: object) -> object:
        """Convert what the user wrote into the field's value; BadValue or ConfigError if it does not fit."""
        # A removed value is answered before the types refuse it.
        self._refuse_removed(written)
        value = convert(
            self.hint, written, keep=self.default if isinstance(self.default, str) else None
        )
        self.check(value)
        return value

    def _refuse_removed(self, value: object) -> None:
        for item in value if isinstance(value, (list, tuple)) else [value]:
            gone = replacement(self.name, item)
            if gone:
                raise ConfigError(f"{self.name}={item} was removed; {gone}")

    def fits(self, written: object) -> bool:
        """Whether `read` accepts the value."""
        try:
            self.read(written)
        except (BadValue, ConfigError):
            return False
        return True

    def check(self, value: object) -> None:
        """Check a value from the command line, a file or Python code: named values, and numbers within their bounds.

        Raises:
            ConfigError: the value cannot be used; the message names the option.
        """
        kinds = self.kinds
        # `kinds` lacks None, so the two differ exactly where None is allowed.
        if value is None and kinds != list(union_members(self.hint)):
            return
        self._refuse_removed(value)
        if len(kinds) == 1 or self.choices:
            self._check_named(value)
        # In a condition, the text "false" would count as true.
        if kinds == [bool] and isinstance(value, str):
            raise ConfigError(f"{self.name} is {value!r}; it must be true or false")
        # Only lists of numbers are checked item by item.
        for kind in kinds:
            item_kind: Any = next(iter(getattr(kind, "__args__", ())), None)
            if not is_class(kind, list):
                continue
            if item_kind not in _NUMBERS:
                # The characters of a text would count as the items.
                if isinstance(value, str) and len(kinds) == 1:
                    raise ConfigError(f"{self.name} is {value!r}; it must be a list: [{value!r}]")
                continue
            if not value or not isinstance(value, (list, tuple)):
                raise ConfigError(
                    f"{self.name} is {value!r}; it must be a list of {_NUMBERS[item_kind]}s"
                )
            for item in value:
                self._check_number(item, item_kind)
        if kinds and set(kinds) <= set(_NUMBERS):
            self._check_number(value, float if float in kinds else int)

    def _check_named(self, value: object) -> None:
        known, further = self.named, ""
        is_folder = self.folder and isinstance(value, str) and "/" in value
        is_own = self.own and named_by_file(value)
        if not known or value in known or is_folder or is_own:
            return
        # What the option accepts besides the named values.
        if self.folder:
            further = ", or the folder of a model (./NAME)"
        elif self.own:
            further = ", or your own file.py:Name"
        near = did_you_mean(str(value), known, "{}")
        raise ConfigError(f"{self.name} is {value!r}; known: {', '.join(known)}{further}{near}")

    def _check_number(self, value: Any, kind: type) -> None:
        wanted = (int, float) if kind is float else int
        # True is an int in Python, but a user who writes it does not mean a number.
        fits = isinstance(value, wanted) and not isinstance(value, bool)
        # transformers takes an infinite value for some of its own options, such as max_grad_norm.
        fits = fits and (self.group is None or math.isfinite(value))
        ranges = []
        for name, bound in self.bounds.items():
            fits = fits and _COMPARISONS[name](value, bound)
            ranges.append(f" {name.replace('_', ' ')} {bound:.12g}")
        if not fits:
            needs = _NUMBERS[kind] + " and".join(ranges)
            raise ConfigError(f"{self.name} is {value!r}; it must be a {needs}")

    def metavar(self) -> str:
        """The placeholder after the flag in the help: ``INT``, ``TEXT``, ``{a,b}``."""
        if self.choices:
            further = ["FILE:NAME"] if self.own else ["FOLDER"] if self.folder else []
            names = ",".join(self.choices)
            # The help of such an option explains each of its values.
            if len(names) > _LONGEST_CHOICES:
                names = "NAME"
            return "{" + ",".join([names, *further]) + "}"
        return placeholder(self.kinds)

    def help_text(self, aliases: Sequence[str]) -> str:
        """The help with the other spellings and the default, escaped for argparse."""
        notes = []
        if aliases:
            spellings = [f"--{alias}" for alias in aliases]
            notes.append(f"also {', '.join(spellings)}")
        default = self.default
        if isinstance(default, Enum):
            default = default.value
        if default is not None and default not in ("", [], {}):
            notes.append(f"default: {default}")
        text = f"{self.help} ({'; '.join(notes)})" if notes else self.help
        return text.strip().replace("%", "%%")


def option(default: T, help: str, group: str | None = None, **about: Any) -> T:
    """Declare a dataclass field that is an option; `about` holds further attributes of `Option`."""
    value: Any = (
        {"default_factory": default.copy} if isinstance(default, list) else {"default": default}
    )
    metadata = {"option": Option(help, group, **about)}
    return dataclasses.field(metadata=metadata, **value)  # type: ignore[no-any-return]


def options_of(*dataclass_types: type) -> dict[str, Option]:
    """The options of dataclasses by name: all fields that their constructors accept."""
    options = dict[str, Option]()
    for dataclass in dataclass_types:
        options |= _options_of(dataclass)
    return options


# Cached, because resolving type hints is slow, and the parser, the checks and the records all need the options.
@cache
def _options_of(dataclass: type) -> dict[str, Option]:
    hints = get_type_hints(dataclass)
    fields = [field for field in dataclasses.fields(cast(Any, dataclass)) if field.init]
    return {field.name: Option.of(field, hints[field.name]) for field in fields}


class Topic:
    """Base class of the dataclasses that hold the options of one topic. The options of a run inherit from all topics."""

    if TYPE_CHECKING:
        # Options of the run that the checks of other topics may read.
        objective: Any
        predictors: Any

    def fill_in(self) -> None:
        """Replace None by the values that follow from other options."""

    def check(self) -> None:
        """Check the options of the topic together.

        Raises:
            ConfigError: values that cannot be used; the message names the options.
        """


class Names:
    """The names of options as attributes, for messages: ``name.lbd`` is ``"lbd"``; any other name raises AttributeError.

    A test reads the source and checks every name in use.
    """

    def __init__(self, *dataclass_types: Any):
        vars(self).update(
            {
                field.name: field.name
                for dtype in dataclass_types
                for field in dataclasses.fields(dtype)
            }
        )

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> str: ...


def check_fields(options: object, dataclass: type | None = None) -> None:
    """Check every option of `options` (only those of its base `dataclass`, if given) against its type and bounds.

    Raises:
        ConfigError: a value cannot be used; the message names the option.
    """
    for option in options_of(dataclass or type(options)).values():
        option.check(getattr(options, option.name))


def public_values(options: object) -> dict[str, Any]:
    """The values by name, without the secrets of the dataclass and of a user's class."""
    known = options_of(type(options)).values()
    values = {option.name: getattr(options, option.name) for option in known if not option.secret}
    # The options of a user's class are in a dict, the value of the option that stores them; its secrets are dropped, too.
    for option in known:
        if option.brings is None:
            continue
        carrier, dataclass_of = option.brings
        brought = dataclass_of(values[option.name]) if values.get(carrier) else None
        if brought is not None:
            secret = {name for name, further in options_of(brought).items() if further.secret}
            values[carrier] = {
                name: value for name, value in values[carrier].items() if name not in secret
            }
    return values


def unread_options(options: object, given: Iterable[str]) -> list[str]:
    """Notes on the options among the names `given` that differ from their defaults and lack what they need, in the order of
    the fields."""
    given = set(given)
    notes = []
    for option in options_of(type(options)).values():
        if option.name not in given or getattr(options, option.name) == option.default:
            continue
        unmet = [_unmet(options, needed, wanted) for needed, wanted in option.needs.items()]
        reason = next(filter(None, unmet), None)
        if reason:
            notes.append(f"--{option.name} has no effect {reason}")
    return notes


def _unmet(options: object, name: str, wanted: bool | tuple[str, ...]) -> str:
    """The unmet need for option `name` in words, as in ``without --lora``; empty if the need is met."""
    value = getattr(options, name)
    if isinstance(wanted, tuple):
        return "" if value in wanted else f"without --{name} {' or '.join(wanted)}"
    if bool(value) == wanted:
        return ""
    return f"without --{name}" if wanted else f"with --{name}"
