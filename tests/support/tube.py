"""The pairs of the semantic tube as arrays, for tests that type them out."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from stepjepa.data.types import Pair, Read, Span
from stepjepa.objectives.semantic_tube import TubeOptions, draw_pairs, pairs_of_spans


class Side(NamedTuple):
    """``vector[pair] += coefficient * h[position]``."""

    position: np.ndarray
    coefficient: np.ndarray
    pair: np.ndarray


class Tube(NamedTuple):
    source: Side
    target: Side
    weight: np.ndarray


def tube_options(**values: Any) -> TubeOptions:
    """The ``tube_`` options of a run."""
    return TubeOptions(**{f"tube_{name}": value for name, value in values.items()})


def tube_of(pairs: Sequence[Pair]) -> Tube:
    def side(reads: Sequence[Read]) -> Side:
        terms = [
            (term.token + further, term.coefficient, pair)
            for pair, read in enumerate(reads)
            for term in read.terms
            for further in range(term.tokens)
        ]
        position, coefficient, pair = zip(*terms, strict=True) if terms else ((), (), ())
        return Side(np.array(position, np.int32), np.array(coefficient, np.float32), np.array(pair, np.int32))

    weight = np.array([pair.weight for pair in pairs], np.float32)
    return Tube(side([pair.source for pair in pairs]), side([pair.target for pair in pairs]), weight)


def tube_of_spans(user: Any, answer: Any, spans: Sequence[Sequence[int]], options: Any) -> Tube:
    return tube_of(pairs_of_spans(Span(*user), Span(*answer), spans, options))


def draw_tube(user: Any, answer: Any, options: Any, rng: np.random.Generator) -> Tube | None:
    pairs = draw_pairs(Span(*user), Span(*answer), options, rng)
    return tube_of(pairs) if pairs else None
