"""The record of a packed row: what every token is, what is read where, and who sees whom.

Terminal, figure, page and `check` read this record, which `layout` makes of examples. It holds no rule of its own:
`forest.visibility.visible` says who sees whom.

Shapes: L positions of a row, K predictors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from stepjepa.data.types import Rows
from stepjepa.forest.visibility import visible

# The integer fields of a row: the collator's name -> the record's.
FIELDS = {
    "input_ids": "ids",
    "position_ids": "positions",
    "example": "examples",
    "segment": "segments",
    "order": "orders",
    "attach": "attaches",
    "floor": "floors",
}
SAMPLED_TUBES = ("span", "three_index")  # the modes whose spans are sampled every epoch


class Form(NamedTuple):
    """How views are read and computed.

    Attributes:
        predictors: K.
        descending: the predictors' order.
        same: one predictor, K times.
        forward: ``packed``, ``inline`` or ``two_pass``.
    """

    predictors: int = 0
    descending: bool = False
    same: bool = False
    forward: str = "packed"

    def predictor_ids(self, vocabulary: int) -> tuple[int, ...]:
        """K ids in the order of the predictors, counted from `vocabulary`."""
        ids = [vocabulary] * self.predictors if self.same else list(range(vocabulary, vocabulary + self.predictors))
        return tuple(ids[::-1] if self.descending else ids)


class Span(NamedTuple):
    """A named stretch [start, stop) of one example's trunk tokens."""

    name: str
    start: int
    stop: int


@dataclass(frozen=True)
class Readout:
    """A token of the row whose state is read, with the coefficient of the state in its vector."""

    index: int
    text: str
    coefficient: float = 1.0


@dataclass(frozen=True)
class PairRecord:
    """One pair of views; all indices count along the row.

    Attributes:
        example: number of the example in its batch.
        number: from 1, within the example.
        source_end: last token of the source view: on the trunk, or in its own segment.
        source, target: the tokens whose states stand for the views.
        source_segment: [start, stop) of the source's own segment; None where it is read on the trunk or in a branch.
        original: [start, stop) of the target view on the trunk; None where its tokens are not on the trunk.
        copy: [start, stop) of the tokens that are isolated; `original` itself in the `inline` form.
        standalone: the source view is not on the trunk.
    """

    example: int
    number: int
    source_end: Readout
    source: Readout
    target: Readout
    source_segment: tuple[int, int] | None
    original: tuple[int, int] | None
    copy: tuple[int, int]
    standalone: bool


@dataclass(frozen=True)
class Vector:
    """A combination of trunk states.

    Attributes:
        name: such as ``T - P``.
        terms: by index.
        covered: [start, stop) of the token stretches that it covers; ``h[39] - h[20]`` covers the tokens 21 to 39.
    """

    name: str
    terms: tuple[Readout, ...]
    covered: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class TubeRecord:
    """One pair of vectors of the semantic tube; all indices count along the row.

    Attributes:
        example, number: as in `PairRecord`.
        mode: see `objectives.semantic_tube`.
        weight: of the pair in the loss.
        source, target: the two vectors that are compared.
        total: T for a span, else None.
        ends: the states that bound a sampled span: s and t, for three_index s, r and t; else none.
    """

    example: int
    number: int
    mode: str
    weight: float
    source: Vector
    target: Vector
    total: Vector | None
    ends: tuple[tuple[str, Readout], ...]


@dataclass(frozen=True)
class RowRecord:
    """One row of one or several examples.

    Attributes:
        texts: L token texts.
        ids, positions, examples, segments, orders, attaches, floors: (L,) int64, as `ForestCollator` hands them to the model
            (`examples` counts from 0 along the batch; -1 is padding).
        names: L segment names: "trunk: user", "trunk: step 1", "branch 1", "source 1", "target 1"; a segment that serves
            several pairs has the number of the first. "predictors" are those within the trunk (`inline`).
        kinds: L of the keys of `style.KINDS`.
        labelled: (L,) bool, tokens that the LM loss predicts.
        pairs, tube: the pairs in the order of the losses; those of the semantic tube are in `tube`.
        batch: examples of the batch; where there are several, this row may hold some of them.
    """

    texts: tuple[str, ...]
    ids: np.ndarray
    positions: np.ndarray
    examples: np.ndarray
    segments: np.ndarray
    orders: np.ndarray
    attaches: np.ndarray
    floors: np.ndarray
    names: tuple[str, ...]
    kinds: tuple[str, ...]
    labelled: np.ndarray
    pairs: tuple[PairRecord, ...] = ()
    tube: tuple[TubeRecord, ...] = ()
    batch: int = 1

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def visible(self) -> np.ndarray:
        """(L, L) bool, True where the token of the row sees the token of the column."""
        return self.seen_by(slice(None))

    def seen_by(self, queries: slice) -> np.ndarray:
        """The rows `queries` of `visible`, without computing the others."""
        return visible(
            self.examples[queries, None],
            self.examples[None],
            self.segments[queries, None],
            self.segments[None],
            self.orders[queries, None],
            self.orders[None],
            self.attaches[queries, None],
            self.floors[queries, None],
        )

    @cached_property
    def sections(self) -> list[tuple[int, int]]:
        """[start, stop) of every run of tokens that share example, segment and name; padding is one run."""
        segments = np.where(self.examples < 0, -1, self.segments)
        return runs(list(zip(self.examples.tolist(), segments.tolist(), self.names, strict=True)))

    @cached_property
    def readouts(self) -> dict[int, list[tuple[str, PairRecord | TubeRecord]]]:
        """Index of a token -> (what is read there, for which pair), in the order of the pairs."""
        found: dict[int, list[tuple[str, PairRecord | TubeRecord]]] = {}
        for pair in self.pairs:
            found.setdefault(pair.source.index, []).append(("source", pair))
            found.setdefault(pair.target.index, []).append(("target", pair))
        for vectors in self.tube:
            for name, term in vectors.ends:
                found.setdefault(term.index, []).append((name, vectors))
        return found

    def section_name(self, start: int) -> str:
        """The name of the section that begins at `start`, with its example's number where there are several."""
        number = int(self.examples[start])
        return f"{number} {self.names[start]}" if self.batch > 1 and number >= 0 else self.names[start]

    def batch_row(self) -> Rows:
        """The row alone, (1, L); loads torch."""
        import torch

        return Rows(**{name: torch.from_numpy(getattr(self, own).copy())[None] for name, own in FIELDS.items()})


def runs(keys: Sequence[Any]) -> list[tuple[int, int]]:
    """[start, stop) of the runs of equal neighbours."""
    edges = [0, *(i for i in range(1, len(keys)) if keys[i] != keys[i - 1]), len(keys)]
    return list(zip(edges[:-1], edges[1:], strict=True)) if keys else []
