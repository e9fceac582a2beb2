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

Shapes: L tokens of the forest, P pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepjepa.data.examples import Example
from stepjepa.forest.visibility import ISOLATED, TRUNK


@dataclass(frozen=True)
class Forest:
    """One example laid out for one forward pass; see the drawing at the top of this file.

    Attributes:
        input_ids, position_ids, segment, order, attach: (L,) int32.
        label_positions: (N,) int32, the positions whose *next* token on the trunk is labelled.
        label_ids: (N,) int32, those next tokens.
        source_readouts, target_readouts: (P,) int32, indices of the states that stand for the views.
        trunk_length: T.
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

    def __len__(self) -> int:
        return len(self.input_ids)


def forest_length(example: Example, predictors: int) -> int:
    """Number of tokens that `build_forest` lays out."""
    extra = sum(predictors + pair.target_end - pair.target_start for pair in example.pairs)
    return len(example.input_ids) + extra


def label_indices(example: Example) -> tuple[np.ndarray, np.ndarray]:
    """(positions that predict, ids to predict), each (N,) int32: the labelled tokens shifted by one."""
    spans = [np.arange(max(start, 1), stop) for start, stop in example.label_spans]
    labelled = np.concatenate(spans) if spans else np.zeros(0, np.int64)
    return (labelled - 1).astype(np.int32), np.asarray(example.input_ids)[labelled].astype(np.int32)


def build_forest(example: Example, predictor_ids: Sequence[int]) -> Forest:
    """Lay out one example.

    Args:
        example: trunk ids, label spans and pairs.
        predictor_ids: token ids of the K predictors in the order in which they stand behind a source; with K = 0 there
            are no branches and a source is read at its own `source_readout` on the trunk.
    """
    trunk = np.asarray(example.input_ids, dtype=np.int32)
    length = len(trunk)
    count = len(predictor_ids)
    steps = np.arange(length, dtype=np.int32)
    ids, positions, orders = [trunk], [steps], [steps]
    segments = [np.full(length, TRUNK, np.int32)]
    attaches = [np.full(length, ISOLATED, np.int32)]
    sources, targets = [], []
    segment, end = TRUNK, length
    for pair in example.pairs:
        if count:
            segment += 1
            order = np.arange(count, dtype=np.int32)
            ids.append(np.asarray(predictor_ids, dtype=np.int32))
            positions.append(pair.source_end + 1 + order)
            orders.append(order)
            segments.append(np.full(count, segment, np.int32))
            attaches.append(np.full(count, pair.source_end, np.int32))
            end += count
            sources.append(end - 1)
        else:
            sources.append(pair.source_readout)
        segment += 1
        width = pair.target_end - pair.target_start
        order = np.arange(width, dtype=np.int32)
        ids.append(trunk[pair.target_start : pair.target_end])
        positions.append(pair.source_end + 1 + count + order)
        orders.append(order)
        segments.append(np.full(width, segment, np.int32))
        attaches.append(np.full(width, ISOLATED, np.int32))
        targets.append(end + pair.target_readout - pair.target_start)
        end += width
    label_positions, label_ids = label_indices(example)
    return Forest(
        input_ids=np.concatenate(ids),
        position_ids=np.concatenate(positions).astype(np.int32),
        segment=np.concatenate(segments),
        order=np.concatenate(orders),
        attach=np.concatenate(attaches),
        label_positions=label_positions,
        label_ids=label_ids,
        source_readouts=np.asarray(sources, dtype=np.int32),
        target_readouts=np.asarray(targets, dtype=np.int32),
        trunk_length=length,
    )
