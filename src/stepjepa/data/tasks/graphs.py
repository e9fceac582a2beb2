"""Paths in small graphs, one word a node: the question lists the edges, then start and goal; the answer is the path after
the start, one step a node.

    user       C A | B F | B C | F G : B G     (path-star: B is the centre of two arms)
    assistant  F G
"""

from __future__ import annotations

import random
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any, ClassVar

from stepjepa.config.option import Names, option
from stepjepa.data.tasks import GROUP, Row, Task
from stepjepa.errors import ConfigError

Edge = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class _Paths(Task):
    path_length: int = option(5, "Nodes of the path, start and goal among them.", GROUP, at_least=3)

    def _ask(self, rng: random.Random, edges: list[Edge], path: list[str]) -> Row:
        """The row of a graph whose edges are listed in any order, with its path."""
        listed = " | ".join(" ".join(edge) for edge in rng.sample(edges, len(edges)))
        return self.chat(f"{listed} : {path[0]} {path[-1]}", path[1:], " ".join(path[1:]))

    @classmethod
    def instance(cls, row: Mapping[str, Any]) -> Hashable:
        """The edges, in any order and written either way, with start and goal."""
        edges, start, goal = _parsed(row)
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


def _parsed(row: Mapping[str, Any]) -> tuple[list[Edge], str, str]:
    """Edges, start and goal of a question."""
    listed, _, asked = row["question"].partition(" : ")
    start, goal = asked.split()
    return [(one, other) for one, other in (pair.split() for pair in listed.split(" | "))], start, goal


def _answers(row: Mapping[str, Any]) -> list[list[str]]:
    """The shortest paths, without the start."""
    edges, start, goal = _parsed(row)
    length = len(row["messages"][-1]["content"].split())
    return [path[1:] for path in _shortest(edges, start, length) if path[-1] == goal]


def _shortest(edges: list[Edge], start: str, length: int) -> list[list[str]]:
    """All shortest paths from a node to those that are `length` edges away."""
    paths, both, seen = [[start]], [*edges, *(edge[::-1] for edge in edges)], {start}
    for _ in range(length):
        paths = [[*path, other] for path in paths for one, other in both if one == path[-1] and other not in seen]
        seen |= {path[-1] for path in paths}
    return paths
