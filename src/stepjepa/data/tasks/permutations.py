"""Word problems of the permutations of five letters: which order do the letters have after these permutations?

    user       cabde bcdea cabde        (each word takes the letters a b c d e to this order)
    assistant  cabde abdec dabec        (the order after each, one step each)

A5, the even permutations, is the smallest group whose word problem a transformer of fixed depth is held not to solve in one
pass for all lengths (Merrill, Petty and Sabharwal 2024, arXiv:2404.08819).
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any, ClassVar

from stepjepa.config.option import Names, option
from stepjepa.data.tasks import GROUP, Row, Task
from stepjepa.errors import ConfigError

_LETTERS = "abcde"


@dataclass(frozen=True, kw_only=True)
class _Words(Task):
    length: int = option(12, "Symbols of a word.", GROUP, at_least=1)
    min_length: int | None = option(None, "Fewest symbols; lengths are uniform. Default: all have length.", GROUP)
    symbols: int = option(4, "Different symbols; the first two generate the group.", GROUP, at_least=2)
    every: int = option(1, "The answer has every so many-th order, and the last.", GROUP, at_least=1)

    generators: ClassVar[tuple[str, str]]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_length is not None and not 1 <= self.min_length <= self.length:
            raise ConfigError(f"{_NAME.min_length} is {self.min_length}; it must be 1 to {_NAME.length}, {self.length}")
        if self.symbols > (most := len(group_of(self.generators))):
            raise ConfigError(f"{_NAME.symbols} is {self.symbols}; {self.name} has {most} elements")

    def row(self, rng: random.Random) -> Row:
        """A word with the orders that it goes through."""
        length = rng.randint(self.min_length or self.length, self.length)
        word = rng.choices(group_of(self.generators)[: self.symbols], k=length)
        *orders, last = accumulate(word, _then, initial=_LETTERS)
        return self.chat(" ".join(word), [*orders[self.every :: self.every], last], last)

    @classmethod
    def solves(cls, row: Mapping[str, Any], answer: str) -> bool:
        """Whether the answer ends with the last order."""
        return answer.split()[-1:] == [row["ground_truth"]]


@dataclass(frozen=True, kw_only=True)
class A5(_Words):
    """The 60 even permutations."""

    name: ClassVar[str] = "a5"
    generators: ClassVar[tuple[str, str]] = ("cabde", "bcdea")


@dataclass(frozen=True, kw_only=True)
class S5(_Words):
    """All 120 permutations."""

    name: ClassVar[str] = "s5"
    generators: ClassVar[tuple[str, str]] = ("bacde", "bcdea")


_NAME = Names(_Words)


def _then(order: str, symbol: str) -> str:
    return "".join(order[_LETTERS.index(letter)] for letter in symbol)


@cache
def group_of(generators: tuple[str, str]) -> list[str]:
    """All that two permutations generate, they themselves first and the identity last."""
    found = [*generators]
    for one in found:
        found += [order for symbol in generators if (order := _then(one, symbol)) not in found]
    found.remove(_LETTERS)
    return [*found, _LETTERS]
