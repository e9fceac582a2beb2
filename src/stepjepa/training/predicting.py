"""The predicted and the true ids of labelled tokens, for ``compute_metrics`` and ``predict`` of the Trainer's interface.

Shapes: B examples of a batch, N labelled tokens of it, L those of the example that has most, E examples of a data set.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from stepjepa.data.types import Batch

IGNORED = -100  # fills the rows of both rectangles


class Predictions:
    """Collects predicted and true ids, batch by batch, in the order of the data set."""

    def __init__(self) -> None:
        self._rows: list[tuple[np.ndarray, np.ndarray]] = []

    def add(self, batch: Batch, predicted_N: torch.Tensor, size: int, accelerator: Any) -> None:
        """Add a batch of every process. Every process must call it.

        Args:
            batch: a collator's, of this process.
            predicted_N: (N,) int64, the most likely next token at each labelled position.
            size: B, the same on every process.
        """
        examples = examples_of_labels(batch)
        width = int(accelerator.gather(torch.bincount(examples, minlength=size).max()[None]).max())
        both = torch.full((2, size, width), IGNORED, dtype=torch.int64, device=predicted_N.device)
        counts = torch.bincount(examples, minlength=size)
        columns = torch.arange(len(examples), device=examples.device) - (counts.cumsum(0) - counts)[examples]
        both[0, examples, columns], both[1, examples, columns] = predicted_N, batch.label_ids
        gathered = accelerator.gather(both.transpose(0, 1).contiguous()).cpu().numpy()  # (processes * B, 2, L)
        self._rows += [(row[0], row[1]) for row in gathered]

    def rectangles(self, size: int) -> tuple[np.ndarray, np.ndarray]:
        """Predicted and true ids, (E, L) int64 each, of the first `size` examples; `IGNORED` where a row has no more."""
        rows = self._rows[:size]
        width = max((int((labels != IGNORED).sum()) for _, labels in rows), default=0)
        found = np.full((2, len(rows), width), IGNORED, np.int64)
        for number, pair in enumerate(rows):
            for side, ids in enumerate(pair):
                found[side, number, : min(width, len(ids))] = ids[:width]
        return found[0], found[1]


def examples_of_labels(batch: Batch) -> torch.Tensor:
    """(N,) int64, the number in the batch of the example that each labelled token is of."""
    if batch.rows.example is not None:
        return batch.rows.example.flatten()[batch.label_positions]
    return batch.label_positions // batch.rows.input_ids.shape[1]
