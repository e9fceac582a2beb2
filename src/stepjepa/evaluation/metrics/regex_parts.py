"""The parts that a regular expression is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Union

Ranges = tuple[tuple[int, int], ...]  # code points, both ends included, sorted, apart from each other

LAST = 0x10FFFF
EVERY: Ranges = ((0, LAST),)
WORD: Ranges = ((48, 57), (65, 90), (95, 95), (97, 122))


@dataclass(frozen=True)
class Chars:
    """One character out of a set; an empty set matches nothing."""

    ranges: Ranges


@dataclass(frozen=True)
class Boundary:
    """A place between characters: of a word, inside or outside of one, at the begin or the end of the text."""

    kind: Literal["word", "no word", "begin", "end"]


@dataclass(frozen=True)
class Joined:
    """One part after the other; none is the empty text."""

    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Either:
    """Any of the parts."""

    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Intersection:
    """All parts at once."""

    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Complement:
    """Whatever the part does not match."""

    part: Part


@dataclass(frozen=True)
class Repeat:
    """`low` to `high` times, without upper bound where `high` is None."""

    part: Part
    low: int
    high: int | None


Part = Union[Chars, Boundary, Joined, Either, Intersection, Complement, Repeat]  # noqa: UP007


@dataclass(frozen=True)
class Pattern:
    """A parsed pattern.

    Attributes:
        part: the whole of it.
        named: characters that are written out in it, alone or as a range.
    """

    part: Part
    named: Ranges


def merged(ranges: list[tuple[int, int]]) -> Ranges:
    """Ranges sorted, and those that touch as one."""
    found: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if found and low <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(high, found[-1][1]))
        else:
            found.append((low, high))
    return tuple(found)


def others(ranges: Ranges) -> Ranges:
    """The characters that are not in a set."""
    starts = [0, *(high + 1 for _, high in ranges)]
    ends = [*(low - 1 for low, _ in ranges), LAST]
    return tuple((low, high) for low, high in zip(starts, ends, strict=True) if low <= high)
