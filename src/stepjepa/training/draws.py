"""What is random about one example: pairs left out (`jepa_ratio`), and what its objective draws. Both are pure functions
of the seed, of where the example is, and of how often it was seen before: not of the rank, the worker, the batch or a
    resume.
"""

from __future__ import annotations

import numpy as np

from stepjepa.data.types import Example
from stepjepa.objectives.base import Objective

# What is drawn; objectives have numbers of their own (`Objective.stream`).
ORDER, _RATIO, _, _, MIXED, WINDOW = range(6)


class ExampleDraw:
    """Draws what is random about an example.

    Args:
        objective: of the run.
        seed: of the draws.
        jepa_ratio: share of the examples whose pairs are kept.
    """

    def __init__(self, objective: Objective, seed: int, jepa_ratio: float = 1.0):
        self.objective, self.seed, self.jepa_ratio = objective, seed, jepa_ratio

    def __call__(self, example: Example, epoch: int, row: int, source: int = 0) -> Example:
        """The example as it is trained on for the `epoch`-th time, counted from 0."""
        if not example.view_pairs:
            return example
        if not keeps_pairs(self.seed, epoch, row, self.jepa_ratio, source):
            return example.plain()
        if not self.objective.draws:
            return example
        return self.objective.draw(example, generator(self.seed, epoch, row, self.objective.stream, source))


def keeps_pairs(seed: int, epoch: int, row: int, ratio: float, source: int = 0) -> bool:
    """Whether a row's pairs are trained on in an epoch: true for a share `ratio` of the rows."""
    return ratio >= 1 or bool(generator(seed, epoch, row, _RATIO, source).random() < ratio)


def generator(seed: int, epoch: int, row: int, what: int, source: int = 0) -> np.random.Generator:
    """Random numbers of one row of one data set in one epoch, counter-based: no state is carried from row to row."""
    key = np.array([seed % 2**64, epoch], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=[0, source, what, row]))
