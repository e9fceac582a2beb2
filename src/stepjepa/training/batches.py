"""The order of examples: a pure function of seed and epoch, the same over resumes and over any number of processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from transformers import TrainerCallback

from stepjepa.data.types import Example
from stepjepa.objectives.base import Objective
from stepjepa.training.draws import MIXED, ORDER, ExampleDraw, generator

FILLER = -1


class Draw(NamedTuple):
    """One example: a row, and how often it was drawn before (the epoch, where an epoch is every row once). Row `FILLER`
    stands for nothing."""

    epoch: int
    row: int


class Mixture(NamedTuple):
    """How much of which data set makes an epoch.

    Attributes:
        sizes: rows of each data set; they are numbered through.
        counts: examples of each in an epoch. A data set with more rows goes on in the next epoch where it stopped in this
            one; one with fewer is drawn several times.
    """

    sizes: tuple[int, ...]
    counts: tuple[int, ...]

    @classmethod
    def weighted(cls, sizes: Sequence[int], weights: Sequence[float], stopping_strategy: str) -> Mixture:
        """Examples in the proportion of `weights`, until the first data set was drawn whole (``first_exhausted``) or until
        the last was (``all_exhausted``)."""
        whole = [size / weight for size, weight in zip(sizes, weights, strict=True)]
        length = min(whole) if stopping_strategy == "first_exhausted" else max(whole)
        return cls(tuple(sizes), tuple(max(1, round(length * weight)) for weight in weights))

    @property
    def epoch_size(self) -> int:
        """Examples of an epoch."""
        return sum(self.counts)


class EpochSampler(torch.utils.data.Sampler[Draw]):
    """Draws the examples of an epoch in an order given by (seed, epoch).

    The last global batch of an epoch is filled up with `FILLER`, which has no labels and no pairs, so that every process
    gets as many batches and no example is seen twice; the losses divide by the labels and pairs that are really there.

    Args:
        mixture: the examples of an epoch; a number of rows for every row once.
        multiple: examples of one micro-batch over all processes; 1 for no filling.
        seed: of the order.
        shuffle: False keeps the rows' order.
        lengths: (rows,) tokens of each row. Where given, the examples of an optimizer step are put in order of length, so
            that those of one micro-batch are alike and little of it is padding. Which examples a step sees does not change,
            nor do losses and gradients, which are divided by the counts of the whole step.
        window: examples of an optimizer step over all processes; with `lengths`.
    """

    def __init__(
        self,
        mixture: Mixture | int,
        multiple: int,
        seed: int,
        shuffle: bool = True,
        lengths: np.ndarray | None = None,
        window: int = 1,
    ):
        self.mixture = Mixture((mixture,), (mixture,)) if isinstance(mixture, int) else mixture
        self.size, self.seed, self.shuffle, self.epoch = self.mixture.epoch_size, seed, shuffle, 0
        self.padded = self.size + -self.size % max(multiple, 1)
        self.lengths, self.window = lengths, window

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch; called by the trainer before each one."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.padded

    def __iter__(self) -> Iterator[Draw]:
        epoch = self.epoch
        passes, rows, order = self._examples(epoch)
        if self.lengths is not None:
            windows = np.arange(self.size) // self.window
            order = order[np.lexsort((-self.lengths[rows[order]], windows))]  # longest first: memory shows at once
        for index in order.tolist():
            yield Draw(int(passes[index]), int(rows[index]))
        for _ in range(self.padded - self.size):
            yield Draw(epoch, FILLER)

    def _examples(self, epoch: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Passes and rows of the examples of an epoch, (size,) each, and their order, (size,) indices."""
        parts, offset = [], 0
        for source, (size, count) in enumerate(zip(*self.mixture, strict=True)):
            drawn = np.arange(epoch * count, (epoch + 1) * count)
            passes, rows = drawn // size, drawn % size
            if self.shuffle and count != size:
                rows = rows.copy()
                for number in np.unique(passes):
                    chosen = passes == number
                    permuted = generator(self.seed, int(number), source, MIXED).permutation(size)
                    rows[chosen] = permuted[rows[chosen]]
            parts.append((passes, rows + offset, (np.arange(count) + 0.5) / count))
            offset += size
        passes, rows, place = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        if self.shuffle:
            return passes, rows, generator(self.seed, epoch, 0, ORDER).permutation(self.size)
        return passes, rows, np.argsort(place, kind="stable")  # evenly mixed


class DrawnExamples(torch.utils.data.Dataset):
    """Examples by `Draw`, with what is random about them.

    Args:
        store: the examples.
        objective: of the run.
        seed: of the draws.
        jepa_ratio: share of rows whose pairs are kept.
        filler_id: a token id for rows that stand for nothing.
        mixture: how many examples of which data set make an epoch; None for every row once.
    """

    def __init__(
        self,
        store: Sequence[Example],
        objective: Objective,
        seed: int,
        jepa_ratio: float = 1.0,
        filler_id: int = 0,
        mixture: Mixture | None = None,
    ):
        self.store = store
        self.mixture = mixture or Mixture((len(store),), (len(store),))
        self._draw = ExampleDraw(objective, seed, jepa_ratio)
        self._filler = Example(np.array([filler_id], dtype=np.int32), ())

    def __len__(self) -> int:
        """Examples of an epoch."""
        return self.mixture.epoch_size

    def __getitem__(self, draw: Draw) -> Example:
        epoch, row = draw
        return self._filler if row == FILLER else self._draw(self.store[row], epoch, row)


class EpochCallback(TrainerCallback):
    """Tells the sampler the epoch before its first batch is drawn, whatever loaders are wrapped around it."""

    def __init__(self, sampler: EpochSampler):
        self.sampler = sampler

    def on_epoch_begin(self, args, state, control, **kwargs):
        """See `TrainerCallback`."""
        self.sampler.set_epoch(int((state.epoch or 0) + 1e-9))
