"""From one example to its forest: trunk, predictor branches and isolated targets in one line of tokens.

    ```
                 trunk                             branch     target
    tokens       [user][step 1 \\n\\n][step 2][end]  <p1><p2>   [step 2]
    position      0 ..            p   p+1 ..  T-1   p+1 p+2    p+3 ..
    order         0 ..            p   p+1 ..  T-1   0   1      0 ..
    segment       0 ..                        0     1   1      2 ..
    attach       -1 ..                       -1     p   p     -1 ..
    readouts                                            source      target
    ```

A target that stands at tokens [s, e) of the trunk takes the positions s + K .. e - 1 + K: where it would stand if the
predictors were in the sequence. Views that are encoded apart (`data.apart`) are isolated segments of their own, source
and target alike, with positions from 0. Pairs with the same source share a branch, pairs with the same target its copy.

Shapes: L tokens of the forest, P pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from stepjepa.data.examples import Example
from stepjepa.forest.visibility import ISOLATED, TRUNK


class Part(NamedTuple):
    """A segment behind the trunk: tokens [start, stop) of the forest.

    Attributes:
        kind: ``branch``, ``source`` (a source view apart) or ``target``.
        pair: number of the first pair that it serves, from 0.
    """

    kind: str
    pair: int
    start: int
    stop: int


@dataclass(frozen=True)
class Forest:
    """One example laid out for one forward pass; see the drawing at the top of this file.

    Attributes:
        input_ids, position_ids, segment, order, attach: (L,) int32.
        label_positions: (N,) int32, the positions whose *next* token on the trunk is labelled.
        label_ids: (N,) int32, those next tokens.
        source_readouts, target_readouts: (P,) int32, indices of the states that stand for the views.
        trunk_length: T.
        floor: (L,) int32, see `visibility.visible`; None where it is 0 everywhere.
        parts: what stands behind the trunk, in order.
    """

    input_ids: np.ndarray
    position_ids: np.ndarray
    segment: np.ndarray
    order: np.ndarray
    attach: np.ndarray
    label_positions: np.ndarray
    label_ids: np.ndarray
    source_readouts: np.ndarray
    target_readouts: np.ndarray
    trunk_length: int
    floor: np.ndarray | None = None
    parts: tuple[Part, ...] = ()

    def __len__(self) -> int:
        return len(self.input_ids)


@dataclass
class _Segments:
    """Segments in the order in which they are added, each once."""

    pieces: list[tuple[np.ndarray, int, int]] = field(default_factory=list)  # tokens, first position, attach
    parts: list[Part] = field(default_factory=list)
    end: int = 0
    known: dict[tuple, int] = field(default_factory=dict)

    def add(self, kind: str, key: tuple, pair: int, tokens: np.ndarray, position: int, attach: int) -> int:
        """Where the segment begins; one that is there already (same kind and key) is not added again."""
        name = (kind, *key)
        if name not in self.known:
            self.known[name] = self.end
            self.pieces.append((tokens, position, attach))
            if kind != "trunk":
                self.parts.append(Part(kind, pair, self.end, self.end + len(tokens)))
            self.end += len(tokens)
        return self.known[name]

    def arrays(self, first: int) -> dict[str, np.ndarray]:
        """The integer fields of a `Forest`; segments are counted from `first`."""
        lengths = [len(tokens) for tokens, _, _ in self.pieces]
        order = np.concatenate([np.arange(length, dtype=np.int32) for length in lengths])
        positions, attach = (np.array([piece[number] for piece in self.pieces], np.int32) for number in (1, 2))
        return {
            "input_ids": np.concatenate([tokens for tokens, _, _ in self.pieces]).astype(np.int32),
            "position_ids": order + np.repeat(positions, lengths),
            "segment": np.repeat(np.arange(first, first + len(lengths), dtype=np.int32), lengths),
            "order": order,
            "attach": np.repeat(attach, lengths),
        }


def label_indices(example: Example) -> tuple[np.ndarray, np.ndarray]:
    """(positions that predict, ids to predict), each (N,) int32: the labelled tokens shifted by one."""
    spans = [np.arange(max(start, 1), stop) for start, stop in example.label_spans]
    labelled = np.concatenate(spans) if spans else np.zeros(0, np.int64)
    return (labelled - 1).astype(np.int32), np.asarray(example.input_ids)[labelled].astype(np.int32)


def all_tokens(example: Example, predictor_ids: Sequence[int]) -> np.ndarray:
    """The trunk (T,) and the views apart (V,) with their predictors filled in, as `Pair` counts them: (T + V,) int32."""
    views = np.asarray(example.views, dtype=np.int32)
    if len(views) and predictor_ids:
        views = np.where(views < 0, np.asarray(predictor_ids, np.int32)[-1 - np.minimum(views, -1)], views)
    return np.concatenate([np.asarray(example.input_ids, dtype=np.int32), views])


def target_position(example: Example, start: int, count: int) -> int:
    """Position of the first token of a target that starts at token `start`, with `count` predictors."""
    return 0 if start >= len(example.input_ids) else start + count


def build_forest(example: Example, predictor_ids: Sequence[int], targets: bool = True) -> Forest:
    """Lay out one example.

    Args:
        example: trunk ids, label spans and pairs.
        predictor_ids: token ids of the K predictors in the order in which they stand behind a source; with K = 0 there
            are no branches and a source is read at its own `source_readout` on the trunk.
        targets: False leaves the targets out (`build_targets` lays them out alone).
    """
    tokens = all_tokens(example, predictor_ids)
    length, count = len(example.input_ids), len(predictor_ids)
    predictors = np.asarray(predictor_ids, dtype=np.int32)
    segments = _Segments()
    segments.add("trunk", (), -1, tokens[:length], 0, ISOLATED)
    source_readouts, target_readouts = [], []
    for number, pair in enumerate(example.pairs):
        stop = pair.source_end + 1
        if pair.source_start >= length:
            key = (pair.source_start, stop)
            start = segments.add("source", key, number, tokens[slice(*key)], 0, ISOLATED)
            source_readouts.append(start + pair.source_readout - pair.source_start)
        elif count:
            start = segments.add("branch", (pair.source_end,), number, predictors, stop, pair.source_end)
            source_readouts.append(start + count - 1)
        else:
            source_readouts.append(pair.source_readout)
        if targets:
            target_readouts.append(_add_target(segments, example, number, tokens, count))
    label_positions, label_ids = label_indices(example)
    return Forest(
        **segments.arrays(TRUNK),
        label_positions=label_positions,
        label_ids=label_ids,
        source_readouts=np.asarray(source_readouts, dtype=np.int32),
        target_readouts=np.asarray(target_readouts, dtype=np.int32),
        trunk_length=length,
        parts=tuple(segments.parts),
    )


def build_targets(example: Example, predictor_ids: Sequence[int]) -> Forest:
    """The targets of one example alone, for a forward pass that needs no gradient. The example must have a pair."""
    segments = _Segments()
    tokens = all_tokens(example, predictor_ids)
    readouts = [
        _add_target(segments, example, number, tokens, len(predictor_ids)) for number in range(len(example.pairs))
    ]
    none = np.zeros(0, np.int32)
    return Forest(
        **segments.arrays(TRUNK + 1),
        label_positions=none,
        label_ids=none,
        source_readouts=none,
        target_readouts=np.asarray(readouts, dtype=np.int32),
        trunk_length=0,
        parts=tuple(segments.parts),
    )


def _add_target(segments: _Segments, example: Example, number: int, tokens: np.ndarray, count: int) -> int:
    """Add the target of pair `number`; where its state is read."""
    pair = example.pairs[number]
    key = (pair.target_start, pair.target_end)
    position = target_position(example, pair.target_start, count)
    return (
        segments.add("target", key, number, tokens[slice(*key)], position, ISOLATED)
        + pair.target_readout
        - pair.target_start
    )


def build_inline(example: Example, predictor_ids: Sequence[int], targets: bool = True) -> Forest:
    """One sequence with the predictors behind the first pair's source and its target isolated in place (`inline`).

    Labels move with their tokens: the first token behind the predictors is predicted from the last of them, the predictors
    themselves are no labels. Tokens of the target see the target alone, what stands behind it sees everything.

    Args:
        targets: False leaves out the target's readout (`build_targets` lays the target out alone).
    """
    trunk = np.asarray(example.input_ids, dtype=np.int32)
    pair = example.pairs[0] if example.pairs else None
    stop = len(trunk) if pair is None else pair.source_end + 1
    inserted = np.asarray(predictor_ids if pair is not None else (), dtype=np.int32)

    def place(token: int) -> int:
        return token if token < stop else token + len(inserted)

    length = len(trunk) + len(inserted)
    order, zeros = np.arange(length, dtype=np.int32), np.zeros(length, np.int32)
    floor, sources, readouts = zeros.copy(), [], []
    if pair is not None:
        floor[place(pair.target_start) : place(pair.target_end - 1) + 1] = place(pair.target_start)
        sources.append(stop + len(inserted) - 1 if len(inserted) else pair.source_readout)
        readouts += [place(pair.target_readout)] if targets else []
    label_positions, label_ids = label_indices(example)
    labelled = label_positions + 1
    return Forest(
        input_ids=np.concatenate([trunk[:stop], inserted, trunk[stop:]]),
        position_ids=order,
        segment=zeros,
        order=order,
        attach=np.full(length, ISOLATED, np.int32),
        label_positions=(labelled + len(inserted) * (labelled >= stop) - 1).astype(np.int32),
        label_ids=label_ids,
        source_readouts=np.asarray(sources, dtype=np.int32),
        target_readouts=np.asarray(readouts, dtype=np.int32),
        trunk_length=length,
        floor=floor,
    )
