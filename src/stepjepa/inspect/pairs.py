"""The pairs of a row: where their views stand and where they are read.

Shapes: L tokens of one forest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepjepa.data.examples import Example
from stepjepa.data.views import Pair
from stepjepa.forest.layout import Forest


@dataclass(frozen=True)
class Readout:
    """A token of the row: its index and its text."""

    index: int
    text: str


@dataclass(frozen=True)
class PairRecord:
    """One pair; all indices count along the row.

    Attributes:
        example: which example of the row.
        number: from 1, within the example.
        source_end: last token of the source view: on the trunk, or where it is encoded apart, in its own segment.
        source: the token whose state stands for the source view.
        target: the token whose state stands for the target view.
        source_segment: [start, stop) of the source's own segment; None where it is read on the trunk or in a branch.
        original: [start, stop) of the target view on the trunk; None where it is encoded apart, with tokens of its own.
        copy: [start, stop) of the tokens that are isolated; `original` itself in the `inline` form.
        apart: the source view does not stand on the trunk.
    """

    example: int
    number: int
    source_end: Readout
    source: Readout
    target: Readout
    source_segment: tuple[int, int] | None
    original: tuple[int, int] | None
    copy: tuple[int, int]
    apart: bool


def pair_records(
    number: int, example: Example, forest: Forest, start: int, texts: Sequence[str], predictor: np.ndarray
) -> list[PairRecord]:
    """The pairs of one example.

    Args:
        number: of the example in the row.
        forest: the example laid out.
        start: where it begins in the row.
        texts: of the row's tokens.
        predictor: (L,) bool, the forest's predictor tokens.
    """
    length = len(example.input_ids)
    place = np.flatnonzero(~predictor[: forest.trunk_length])  # of each token of the trunk

    def readout(index: int) -> Readout:
        return Readout(start + index, texts[start + index])

    records = []
    # The inline form has the first pair only.
    read = zip(example.pairs, forest.source_readouts.tolist(), forest.target_readouts.tolist(), strict=False)
    for count, (pair, source, target) in enumerate(read, 1):
        segment = next((p for p in forest.parts if p.kind == "source" and p.start <= source < p.stop), None)
        apart = pair.source_start >= length
        end = segment.stop - 1 if apart and segment else int(place[pair.source_end])
        copy = start + target - (pair.target_readout - pair.target_start)
        on_trunk = _original(example, pair)
        original = (
            None if on_trunk is None else (start + int(place[on_trunk[0]]), start + int(place[on_trunk[1] - 1]) + 1)
        )
        records.append(
            PairRecord(
                example=number,
                number=count,
                source_end=readout(end),
                source=readout(source),
                target=readout(target),
                source_segment=(start + segment.start, start + segment.stop) if segment else None,
                original=original,
                copy=(copy, copy + pair.target_end - pair.target_start),
                apart=apart,
            )
        )
    return records


def _original(example: Example, pair: Pair) -> tuple[int, int] | None:
    """[start, stop) of a target view on the trunk. One that is encoded apart stands there too if its tokens are those
    behind the source (`split`)."""
    length = len(example.input_ids)
    if pair.target_start < length:
        return pair.target_start, pair.target_end
    first = pair.source_end + 1
    stop = first + pair.target_end - pair.target_start
    view = example.views[pair.target_start - length : pair.target_end - length]
    same = pair.source_start < length and np.array_equal(example.input_ids[first:stop], view)
    return (first, stop) if same else None
