"""Countdown: make the target of the given numbers, each used once, by + - * / on positive whole numbers.

    user       3 7 2 : 17
    assistant  7 * 2 = 14
               14 + 3 = 17

Several solutions may be right; the row has the first that a search finds.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any, ClassVar

from stepjepa.config.option import option
from stepjepa.data.tasks import GROUP, Row, Task

Numbers = tuple[int, ...]  # ascending


@dataclass(frozen=True, kw_only=True)
class Countdown(Task):
    """Problems that have a solution. With the defaults the answer has two steps."""

    numbers: int = option(3, "Numbers given; a solution has one step less.", GROUP, at_least=2, at_most=5)
    max_number: int = option(10, "Largest number given.", GROUP, at_least=1)
    max_target: int = option(50, "Largest target.", GROUP, at_least=1)

    name: ClassVar[str] = "countdown"
    separator: ClassVar[str] = "\n"

    def row(self, rng: random.Random) -> Row | None:
        """A problem with a target that operations drawn at random reach; None where it is too large."""
        given = rng.choices(range(1, self.max_number + 1), k=self.numbers)
        left = start = tuple(sorted(given))
        while len(left) > 1:
            left = rng.choice(list(_moves(left)))[1]
        if left[0] > self.max_target or not (steps := _solution(start, left[0])):
            return None
        return self.chat(f"{' '.join(map(str, given))} : {left[0]}", steps, str(left[0]))

    @classmethod
    def instance(cls, row: Mapping[str, Any]) -> Hashable:
        """The numbers in any order, with the target."""
        return _parsed(row)

    @classmethod
    def solves(cls, row: Mapping[str, Any], answer: str) -> bool:
        """Whether the steps are right, and use every number once and end with the target; any such steps."""
        return _after(row, answer.split()) == (_parsed(row)[1],)

    @classmethod
    def begins(cls, row: Mapping[str, Any], answer: str) -> bool:
        """Whether the target can be reached after the first step."""
        left = _after(row, answer.split()[:5])
        return left is not None and len(left) < len(_parsed(row)[0]) and _solution(left, _parsed(row)[1]) is not None


def _parsed(row: Mapping[str, Any]) -> tuple[Numbers, int]:
    given, _, target = row["question"].partition(" : ")
    return tuple(sorted(map(int, given.split()))), int(target)


def _moves(left: Numbers) -> Iterator[tuple[str, Numbers]]:
    """Every step from the numbers left, as written, with those left afterwards."""
    for small, large in sorted(set(combinations(left, 2))):
        results = {"+": large + small, "-": large - small, "*": large * small}
        if large % small == 0:
            results["/"] = large // small
        for sign, result in results.items():
            if result > 0:
                rest = Counter(left) - Counter((small, large))
                yield f"{large} {sign} {small} = {result}", tuple(sorted([*rest.elements(), result]))


def _solution(left: Numbers, target: int) -> list[str] | None:
    """The steps to the target, None where there are none."""
    if len(left) == 1:
        return [] if left == (target,) else None
    for step, after in _moves(left):
        rest = _solution(after, target)
        if rest is not None:
            return [step, *rest]
    return None


def _after(row: Mapping[str, Any], words: list[str]) -> Numbers | None:
    """The numbers that are left after steps, None where a step is wrong. `3 + 5` and `5 + 3` are one step."""
    left: Numbers | None = _parsed(row)[0]
    for begin in range(0, len(words), 5):
        step, moves = words[begin : begin + 5], dict(_moves(left or ()))
        turned = [*step[2::-1], *step[3:]] if step[1:2] in (["+"], ["*"]) else step
        left = moves.get(" ".join(step)) or moves.get(" ".join(turned))
    return left
