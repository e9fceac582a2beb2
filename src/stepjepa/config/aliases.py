"""What another name than an option's own stands for: the forms that a table of aliases may hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Union


@dataclasses.dataclass(frozen=True)
class Answer:
    """The error for a name that stands for no option here.

    Attributes:
        option: the answer is given where this option exists; everywhere if it is empty.
        text: what to do; ``{option}`` in it is the option's name.
        idle: values, in lower case, that change nothing: a file of settings may hold every default of another version.
    """

    option: str
    text: str
    idle: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.text.format(option=self.option)


@dataclasses.dataclass(frozen=True)
class Share:
    """Another name for an option that counts steps, or takes a share of them below 1. This name takes the share only."""

    option: str


# See `stepjepa.config.parser.StrictParser`.
Alias = Union[str, "tuple[str, str]", Share, "Mapping[str, tuple[tuple[str, str], ...]]", Answer]


def alias_settings(target: Alias) -> list[tuple[str, str | None]]:
    """The fields that another spelling may set, each with the value, None where that is written with it."""
    if isinstance(target, str):
        return [(target, None)]
    if isinstance(target, (Answer, Share)):
        return [(target.option, None)]
    return [target] if isinstance(target, tuple) else [one for settings in target.values() for one in settings]
