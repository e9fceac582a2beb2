"""Puzzles whose questions and answers are words with spaces between them: paths in graphs, permutations, Countdown."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, combinations
from typing import Any, ClassVar

from stepjepa.config.option import Names, option
from stepjepa.data.tasks import GROUP, Row, Task
from stepjepa.errors import ConfigError

Edge = tuple[str, str]
Numbers = tuple[int, ...]  # ascending
_LETTERS = "abcde"


@dataclass(frozen=True, kw_only=True)
class _Paths(Task):
    """One word a node: the question lists the edges, then start and goal; the answer is the path after the start, one step a
    node.

        user       C A | B F | B C | F G : B G     (path-star: B is the centre of two arms)
        assistant  F G
    """

    path_length: int = option(5, "Nodes of the path, start and goal among them.", GROUP, at_least=3)

    def _ask(self, rng: random.Random, edges: list[Edge], path: list[str]) -> Row:
        """The row of a graph whose edges are listed in any order, with its path."""
        listed = " | ".join(" ".join(edge) for edge in rng.sample(edges, len(edges)))
        return self.chat(f"{listed} : {path[0]} {path[-1]}", path[1:], " ".join(path[1:]))

    @classmethod
    def instance(cls, row: Mapping[str, Any]) -> Hashable:
        """The edges, in any order and written either way, with start and goal."""
        edges, start, goal = _graph_of(row)
        return frozenset(map(frozenset, edges)), start, goal


@dataclass(frozen=True, kw_only=True)
class PathStar(_Paths):
    """A star of arms of one length that share their first node, the start; the goal is the end of one arm (Bachmann and
    Nagarajan 2024). Only the first step is a decision: each later node can be read off the edges."""

    degree: int = option(2, "Arms of the star.", GROUP, at_least=2)
    nodes: int | None = option(None, "Names that nodes are drawn from. Default: as many as it has.", GROUP, at_least=1)

    name: ClassVar[str] = "path_star"

    def __post_init__(self) -> None:
        super().__post_init__()
        size = self.degree * (self.path_length - 1) + 1
        if (self.nodes or size) < size:
            raise ConfigError(f"{_STAR.nodes} is {self.nodes}; the star has {size}")

    def row(self, rng: random.Random) -> Row:
        """A star."""
        size = self.degree * (self.path_length - 1) + 1
        start, *others = rng.sample(_names(self.nodes or size), size)
        arms = [[start, *others[first :: self.degree]] for first in range(self.degree)]
        return self._ask(rng, [edge for arm in arms for edge in zip(arm, arm[1:], strict=False)], arms[0])


@dataclass(frozen=True, kw_only=True)
class ShortestPath(_Paths):
    """A random graph whose edges lead both ways; the row has the shortest path that comes first in the alphabet."""

    nodes: int = option(9, "Nodes of the graph.", GROUP, at_least=3)
    edges: int = option(12, "Edges of the graph.", GROUP, at_least=2)

    name: ClassVar[str] = "shortest_path"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.edges > (most := self.nodes * (self.nodes - 1) // 2):
            raise ConfigError(f"{_GRAPH.edges} is {self.edges}; {self.nodes} {_GRAPH.nodes} have {most} pairs")

    def row(self, rng: random.Random) -> Row | None:
        """A graph; None where its goal is at that distance from no node."""
        pairs = rng.sample(list(combinations(_names(self.nodes), 2)), self.edges)
        edges = [rng.choice([pair, pair[::-1]]) for pair in pairs]
        goal = rng.choice(edges)[0]
        paths = [path[::-1] for path in _shortest(edges, goal, self.path_length - 1)]
        if not paths:
            return None
        start = rng.choice(sorted({path[0] for path in paths}))
        return self._ask(rng, edges, min(path for path in paths if path[0] == start))

    @classmethod
    def solves(cls, row: Mapping[str, Any], answer: str) -> bool:
        """Whether it is a shortest path, any one."""
        return answer.split() in _answers(row)

    @classmethod
    def begins(cls, row: Mapping[str, Any], answer: str) -> bool:
        """Whether the first node is on a shortest path."""
        return answer.split()[:1] in [path[:1] for path in _answers(row)]


_STAR, _GRAPH = Names(PathStar), Names(ShortestPath)


def _names(n: int) -> list[str]:
    """A to Z, then AA, AB, ..."""
    return [(chr(64 + i // 26) if i >= 26 else "") + chr(65 + i % 26) for i in range(n)]


def _graph_of(row: Mapping[str, Any]) -> tuple[list[Edge], str, str]:
    """Edges, start and goal of a question."""
    listed, _, asked = row["question"].partition(" : ")
    start, goal = asked.split()
    return [(one, other) for one, other in (pair.split() for pair in listed.split(" | "))], start, goal


def _answers(row: Mapping[str, Any]) -> list[list[str]]:
    """The shortest paths, without the start."""
    edges, start, goal = _graph_of(row)
    length = len(row["messages"][-1]["content"].split())
    return [path[1:] for path in _shortest(edges, start, length) if path[-1] == goal]


def _shortest(edges: list[Edge], start: str, length: int) -> list[list[str]]:
    """All shortest paths from a node to those that are `length` edges away."""
    paths, both, seen = [[start]], [*edges, *(edge[::-1] for edge in edges)], {start}
    for _ in range(length):
        paths = [[*path, other] for path in paths for one, other in both if one == path[-1] and other not in seen]
        seen |= {path[-1] for path in paths}
    return paths


@dataclass(frozen=True, kw_only=True)
class _Words(Task):
    """Word problems of the permutations of five letters: which order do the letters have after these permutations?

        user       cabde bcdea cabde        (each word takes the letters a b c d e to this order)
        assistant  cabde abdec dabec        (the order after each, one step each)

    A5, the even permutations, is the smallest group whose word problem a transformer of fixed depth is held not to solve in
    one pass for all lengths (Merrill, Petty and Sabharwal 2024, arXiv:2404.08819).
    """

    length: int = option(12, "Symbols of a word.", GROUP, at_least=1)
    min_length: int | None = option(None, "Fewest symbols; lengths are uniform. Default: all have length.", GROUP)
    symbols: int = option(4, "Different symbols; the first two generate the group.", GROUP, at_least=2)
    every: int = option(1, "The answer has every so many-th order, and the last.", GROUP, at_least=1)

    generators: ClassVar[tuple[str, str]]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_length is not None and not 1 <= self.min_length <= self.length:
            raise ConfigError(f"{_WORD.min_length} is {self.min_length}; it must be 1 to {_WORD.length}, {self.length}")
        if self.symbols > (most := len(group_of(self.generators))):
            raise ConfigError(f"{_WORD.symbols} is {self.symbols}; {self.name} has {most} elements")

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


_WORD = Names(_Words)


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


@dataclass(frozen=True, kw_only=True)
class Countdown(Task):
    """Make the target of the given numbers, each used once, by + - * / on positive whole numbers. With the defaults the
    answer has two steps; the row has the first solution that a search finds, of which there may be several.

        user       3 7 2 : 17
        assistant  7 * 2 = 14
                   14 + 3 = 17
    """

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
        return _numbers_of(row)

    @classmethod
    def solves(cls, row: Mapping[str, Any], answer: str) -> bool:
        """Whether the steps are right, and use every number once and end with the target; any such steps."""
        return _after(row, answer.split()) == (_numbers_of(row)[1],)

    @classmethod
    def begins(cls, row: Mapping[str, Any], answer: str) -> bool:
        """Whether the target can be reached after the first step."""
        (given, target), left = _numbers_of(row), _after(row, answer.split()[:5])
        return left is not None and len(left) < len(given) and _solution(left, target) is not None


def _numbers_of(row: Mapping[str, Any]) -> tuple[Numbers, int]:
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
    left: Numbers | None = _numbers_of(row)[0]
    for begin in range(0, len(words), 5):
        step, moves = words[begin : begin + 5], dict(_moves(left or ()))
        turned = [*step[2::-1], *step[3:]] if step[1:2] in (["+"], ["*"]) else step
        left = moves.get(" ".join(step)) or moves.get(" ".join(turned))
    return left
