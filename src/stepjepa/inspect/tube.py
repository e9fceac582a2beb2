"""What the semantic tube combines, in words: the vectors of each pair and the tokens that they cover.

Everything is read from the `Tube` of the example (`forest.tube`). A displacement ``h[39] - h[20]`` covers the tokens
21 to 39.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stepjepa.forest.tube import Combination, Tube

# mode -> what its sources and its targets are called
SIDES = {
    "span": ("T - P", "P"),
    "three_index": ("r to t", "s to r"),
    "e2e": ("user", "answer"),
    "mean": ("user", "answer"),
    "curvature": ("before", "behind"),
}
DRAWN = ("span", "three_index")


@dataclass(frozen=True)
class Term:
    """``coefficient * h[index]``, and the text of the token there."""

    index: int
    text: str
    coefficient: float


@dataclass(frozen=True)
class Vector:
    """A combination of trunk states.

    Attributes:
        name: see `SIDES`; T is the sum of both sides of a span's pair.
        terms: by index.
        covered: [start, stop) of the token stretches that it covers.
    """

    name: str
    terms: tuple[Term, ...]
    covered: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class TubeRecord:
    """One pair of vectors; all indices count along the row.

    Attributes:
        example: which example of the row.
        number: from 1, within the example.
        mode: see `SIDES`.
        weight: of the pair in the loss.
        source, target: the two vectors that are compared.
        whole: T for a span, else None.
        ends: the states that bound what was drawn: s and t, for three_index s, r and t; else none.
    """

    example: int
    number: int
    mode: str
    weight: float
    source: Vector
    target: Vector
    whole: Vector | None
    ends: tuple[tuple[str, Term], ...]


def tube_records(example: int, tube: Tube, mode: str, start: int, texts: Sequence[str]) -> tuple[TubeRecord, ...]:
    """The pairs of one example.

    Args:
        example: its number in the row.
        mode: the tube's.
        start: where its trunk begins in the row.
        texts: of the row's tokens.
    """
    records = []
    for pair, weight in enumerate(tube.weight.tolist()):
        source, target = (_vector(name, _terms(side, pair, start), texts) for name, side in _sides(tube, mode))
        whole, ends = None, []
        if mode == "span":
            both = ((term.index, term.coefficient) for term in source.terms + target.terms)
            whole = _vector("T", both, texts)
        if mode in DRAWN and target.terms:
            ends = [("s", target.terms[0]), ("t", target.terms[-1])]
        if mode == "three_index" and source.terms and ends:
            ends[1:] = [("r", target.terms[-1]), ("t", source.terms[-1])]
        records.append(TubeRecord(example, pair + 1, mode, weight, source, target, whole, tuple(ends)))
    return tuple(records)


def _sides(tube: Tube, mode: str) -> list[tuple[str, Combination]]:
    return list(zip(SIDES[mode], (tube.source, tube.target), strict=True))


def _terms(side: Combination, pair: int, start: int) -> list[tuple[int, float]]:
    own = side.pair == pair
    return list(zip((side.position[own] + start).tolist(), side.coefficient[own].tolist(), strict=True))


def _vector(name: str, terms: Iterable[tuple[int, float]], texts: Sequence[str]) -> Vector:
    total: dict[int, float] = defaultdict(float)
    for index, coefficient in terms:
        total[index] += coefficient
    kept = tuple(Term(index, texts[index], total[index]) for index in sorted(total) if total[index])
    return Vector(name, kept, _covered(kept))


def _covered(terms: Sequence[Term]) -> tuple[tuple[int, int], ...]:
    """For a mean the runs of its tokens; for displacements the tokens from behind each start to its end."""
    if all(term.coefficient > 0 for term in terms):
        indices = [term.index for term in terms]
        starts = [index for index in indices if index - 1 not in indices]
        stops = [index + 1 for index in indices if index + 1 not in indices]
        return tuple(zip(starts, stops, strict=True))
    edges = [(term.index, term.coefficient) for term in terms]
    if [sign for _, sign in edges] != [-1, 1] * (len(edges) // 2):
        return ()
    return tuple((low + 1, high + 1) for (low, _), (high, _) in zip(edges[::2], edges[1::2], strict=True))
