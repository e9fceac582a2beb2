"""The rows of the two-pass form as a forest: every row a segment of its own, so that one picture shows them all.

    ```
    segment   0                1                          2               3          4
    row       the chat         source 1                   source 2        target 1   target 2
              [a b c d e f]    [a b c] <p1><p2>           ...             [d e]      ...
    ```

What `forest.two_pass` hands to the model is read, none of it is laid out anew. Loads torch when it is called.

Shapes: L tokens of all rows, P pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stepjepa.data.examples import Example
from stepjepa.forest.layout import Forest, Part
from stepjepa.forest.visibility import ISOLATED, TRUNK


def two_pass_rows(example: Example, predictor_ids: Sequence[int]) -> Forest:
    """The rows of one example without padding, one after the other, L tokens in all.

    Causal attention inside a row is what `visibility.visible` says of isolated segments.
    """
    from stepjepa.forest.two_pass import TwoPassCollator

    batch = TwoPassCollator(tuple(predictor_ids), 0)([example])
    rows = _rows(batch, "") + _rows(batch, "view_")
    edges = np.cumsum([0, *(len(ids) for ids, _ in rows)]).tolist()
    count = len(example.pairs)
    sides = [("source", pair) for pair in range(count)] + [("target", pair) for pair in range(count)]
    parts = [Part(kind, pair, *edges[row : row + 2]) for row, (kind, pair) in enumerate(sides, 1)]
    segment = np.repeat(np.arange(len(rows), dtype=np.int32) + TRUNK, np.diff(edges))
    return Forest(
        input_ids=np.concatenate([ids for ids, _ in rows]),
        position_ids=np.concatenate([positions for _, positions in rows]),
        segment=segment,
        order=np.concatenate([np.arange(len(ids), dtype=np.int32) for ids, _ in rows]),
        attach=np.full(len(segment), ISOLATED, np.int32),
        label_positions=batch["label_positions"].numpy(),
        label_ids=batch["label_ids"].numpy(),
        source_readouts=_readouts(batch, "source_readouts", edges),
        target_readouts=_readouts(batch, "target_readouts", edges),
        trunk_length=edges[1],
        parts=tuple(parts),
    )


def _rows(batch: Any, prefix: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """(ids, positions) of each row without its padding; none where the batch has no such rows."""
    if f"{prefix}input_ids" not in batch:
        return []
    ids, mask, positions = (
        batch[f"{prefix}{name}"].numpy() for name in ("input_ids", "attention_mask", "position_ids")
    )
    return [(row[kept == 1], place[kept == 1]) for row, kept, place in zip(ids, mask, positions, strict=True)]


def _readouts(batch: Any, name: str, edges: Sequence[int]) -> np.ndarray:
    """Indices into the padded view rows as places in the rows that stand one after the other, (P,)."""
    width = batch["view_input_ids"].shape[1] if "view_input_ids" in batch else 1
    row, column = np.divmod(batch[name].numpy(), width)
    return np.asarray(edges, np.int64)[row + 1] + column
