"""What the command line knows of one dataclass field, and how the help shows it."""

from __future__ import annotations

import dataclasses
from enum import Enum
from typing import Any

from stepjepa.cli.values import (
    BadValue,
    choices_of,
    convert,
    describe,
    is_class,
    nearest,
    show,
    union_members,
)
from stepjepa.data.fields import is_secret

MISSING = dataclasses.MISSING


@dataclasses.dataclass(frozen=True)
class Option:
    """One field of an option dataclass.

    Attributes:
        name: the field's name.
        hint: its type, resolved.
        choices: named values from the field's metadata; those of a Literal or Enum are in `hint`.
        bare: the value of the flag written without one, MISSING if it needs one.
        default: the field's default, MISSING if it has none.
        help: the field's description.
        secret: its value must not reach a message.
    """

    name: str
    hint: Any
    choices: tuple[str, ...]
    bare: Any
    default: Any
    help: str
    secret: bool = False

    @classmethod
    def of(cls, field: dataclasses.Field[Any]) -> Option:
        """The option for a field whose `type` is resolved, that is, no string."""
        meta = field.metadata
        default = field.default if field.default_factory is MISSING else field.default_factory()
        hint: Any = field.type
        if isinstance(meta.get("const"), bool):  # --flag alone means True, so the word true must mean it too
            hint = hint | bool
        bare = True if bool in union_members(hint) else MISSING
        return cls(
            name=field.name,
            hint=hint,
            choices=tuple(map(str, meta.get("choices") or ())),
            bare=meta.get("const", bare) if meta.get("nargs") == "?" else bare,
            default=default,
            help=str(meta.get("help") or "").replace("%%", "%").strip(),
            secret=is_secret(field),
        )

    @property
    def many(self) -> bool:
        """Whether several values may follow the flag."""
        return any(is_class(member, list) for member in union_members(self.hint))

    @property
    def boolean(self) -> bool:
        """Whether it may be written without a value, and switched off by ``--no_name``."""
        return bool in union_members(self.hint)

    @property
    def expects(self) -> str:
        """What its value must be, in the words of an error message."""
        return f"one of {', '.join(self.choices)}" if self.choices else describe(self.hint)

    def read(self, given: Any) -> Any:
        """The field's value for what was written; BadValue if it does not fit."""
        value = convert(self.hint, given, keep=self.default if isinstance(self.default, str) else None)
        if self.choices and value is not None and value not in self.choices:
            close = nearest(str(value), self.choices)
            raise BadValue(f"expected {self.expects}, got {show(given)}; did you mean {close!r}?")
        return value

    def metavar(self) -> str:
        """What stands behind the flag in the help: ``INT``, ``TEXT``, ``{a,b}``."""
        return "{" + ",".join(self.choices) + "}" if self.choices else _metavar(self.hint)

    def help_text(self, aliases: list[str]) -> str:
        """The description with other spellings and the default, escaped for argparse."""
        notes = [f"also {', '.join('--' + alias for alias in aliases)}"] if aliases else []
        if self.default is not MISSING and self.default is not None and self.default not in ("", [], {}):
            default = self.default.value if isinstance(self.default, Enum) else self.default
            blank = isinstance(default, str) and (default.strip() != default or not default.isprintable())
            notes.append(f"default: {default!r}" if blank else f"default: {default}")
        if self.default is MISSING and self.hint is not bool:
            notes.append("required")
        return f"{self.help} ({'; '.join(notes)})".strip().replace("%", "%%") if notes else self.help.replace("%", "%%")


def _metavar(hint: Any) -> str:
    members = [member for member in union_members(hint) if member is not type(None)]
    if bool in members:
        return "true|false"
    for member in members:
        choices = choices_of(member)
        if choices:
            return "{" + ",".join(map(str, choices)) + "}"
    for kind, word in ((int, "INT"), (float, "NUMBER"), (dict, "JSON")):
        if any(is_class(member, kind) for member in members):
            return word
    items = [item for member in members if is_class(member, list) for item in getattr(member, "__args__", ())]
    return _metavar(items[0]) if items else "TEXT"
