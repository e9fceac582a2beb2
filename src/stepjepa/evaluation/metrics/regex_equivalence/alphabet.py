"""The characters that two regular expressions tell apart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stepjepa.evaluation.metrics.regex_equivalence.syntax import (
    WORD,
    Chars,
    Complement,
    Either,
    Intersection,
    Joined,
    Part,
    Pattern,
    Ranges,
    Repeat,
    merged,
)

PRINTABLE = (32, 126)
_MOST_WORK = 300_000
BEGIN, IN_WORD, OTHER = 0, 1, 2  # kinds of the character before a place; the first where there is none


class TooMuchWork(Exception):
    """The comparison needs more steps than it may make."""


class Alphabet:
    """Printable ASCII and whatever else the patterns write out; one letter for all characters that no pattern tells apart.

    Attributes:
        size: letters.
        kinds: `IN_WORD` or `OTHER`, of each letter.
        examples: a character of each letter.
    """

    def __init__(self, patterns: Iterable[Pattern]):
        patterns = list(patterns)
        universe = merged([PRINTABLE, *(one for pattern in patterns for one in pattern.named)])
        self._sets: dict[Ranges, int] = {WORD: 0}
        for pattern in patterns:
            for ranges in _sets(pattern.part):
                self._sets.setdefault(ranges, len(self._sets))
        cuts = {bound for ranges in (*self._sets, universe) for low, high in ranges for bound in (low, high + 1)}
        points = [point for point in sorted(cuts) if any(low <= point <= high for low, high in universe)]
        if len(points) * len(self._sets) > _MOST_WORK:
            raise TooMuchWork
        letters: dict[int, int] = {}  # the sets that hold a character, as bits -> a character
        for ranges, bit in self._sets.items():
            inside = _inside(points, ranges)
            for point, holds in zip(points, inside, strict=True):
                letters[point] = letters.get(point, 0) | holds << bit
        # A readable example of each letter: the first letter or digit, else the first printable character.
        found: dict[int, int] = {}
        for point, signature in letters.items():
            if signature not in found or _rank(point) < _rank(found[signature]):
                found[signature] = point
        self.size = len(found)
        self.kinds = [IN_WORD if signature & 1 else OTHER for signature in found]
        self.examples = [chr(point) for point in found.values()]
        self._masks = {
            ranges: sum((signature >> bit & 1) << letter for letter, signature in enumerate(found))
            for ranges, bit in self._sets.items()
        }

    def mask(self, ranges: Ranges) -> int:
        """The letters of a set of characters, as bits."""
        return self._masks[ranges]


def _rank(point: int) -> int:
    return 0 if chr(point).isalnum() else 1 if 32 < point < 127 else 2


def _inside(points: list[int], ranges: Ranges) -> Iterator[bool]:
    place = 0
    for point in points:
        while place < len(ranges) and ranges[place][1] < point:
            place += 1
        yield place < len(ranges) and ranges[place][0] <= point


def _sets(part: Part) -> Iterator[Ranges]:
    if isinstance(part, Chars):
        yield part.ranges
    elif isinstance(part, (Joined, Either, Intersection)):
        for one in part.parts:
            yield from _sets(one)
    elif isinstance(part, (Complement, Repeat)):
        yield from _sets(part.part)
