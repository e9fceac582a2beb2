"""The order of examples: a pure function of seed and epoch, the same over resumes and over any number of processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from transformers import TrainerCallback

from stepjepa.data.examples import Example, ExampleStore
from stepjepa.data.tokens import TokenSpan
from stepjepa.data.views import Pair
from stepjepa.forest.tube import TubeOptions, draw_tube, joined
from stepjepa.training.checks import tube_options
from stepjepa.training.options import JEPAOptions

FILLER = -1


class Draw(NamedTuple):
    """One example of one epoch; row `FILLER` stands for nothing."""

    epoch: int
    row: int


class EpochSampler(torch.utils.data.Sampler[Draw]):
    """Draws every row once an epoch in an order given by (seed, epoch).

    The last global batch of an epoch is filled up with `FILLER`, which has no labels and no pairs, so that every process
    gets as many batches and no example is seen twice; the losses divide by the labels and pairs that are really there.

    Args:
        size: rows.
        multiple: examples of one micro-batch over all processes; 1 for no filling.
        seed: of the order.
        shuffle: False keeps the rows' order.
        lengths: (size,) tokens of each row. Where given, the examples of an optimizer step are put in order of length, so
            that those of one micro-batch are alike and little of it is padding. Which examples a step sees does not change,
            nor do losses and gradients, which are divided by the counts of the whole step.
        window: examples of an optimizer step over all processes; with `lengths`.
    """

    def __init__(
        self,
        size: int,
        multiple: int,
        seed: int,
        shuffle: bool = True,
        lengths: np.ndarray | None = None,
        window: int = 1,
    ):
        self.size, self.seed, self.shuffle, self.epoch = size, seed, shuffle, 0
        self.padded = size + -size % max(multiple, 1)
        self.lengths, self.window = lengths, window

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch; called by the trainer before each one."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.padded

    def __iter__(self) -> Iterator[Draw]:
        epoch = self.epoch
        order = np.arange(self.size)
        if self.shuffle:
            order = np.random.Generator(np.random.Philox(key=_key(self.seed, epoch))).permutation(self.size)
        if self.lengths is not None:
            windows = np.arange(self.size) // self.window
            order = order[np.lexsort((-self.lengths[order], windows))]  # longest first, so that memory shows at once
        for row in order.tolist():
            yield Draw(epoch, row)
        for _ in range(self.padded - self.size):
            yield Draw(epoch, FILLER)


class DrawnExamples(torch.utils.data.Dataset):
    """Examples by `Draw`, with everything about them that is random: pairs left out (`jepa_ratio`), one pair of several
    (`step_pairs` random), spans (semantic tube).

    Each depends on (seed, epoch, row) alone: not on the rank, the worker, the batch or a resume.

    Args:
        store: the examples.
        options: of the run.
        seed: of the draws.
        jepa_ratio: share of rows whose pairs are kept.
        filler_id: a token id for rows that stand for nothing.
    """

    def __init__(
        self, store: ExampleStore, options: JEPAOptions, seed: int, jepa_ratio: float = 1.0, filler_id: int = 0
    ):
        self.store, self.seed, self.jepa_ratio = store, seed, jepa_ratio
        self._one_pair = options.objective == "step_jepa" and options.step_pairs == "random"
        self._content = options.tube_content
        self._tube: TubeOptions | None = None
        if options.objective == "semantic_tube" and options.uses_pairs:
            self._tube = tube_options(options)
        self._filler = Example(np.array([filler_id], dtype=np.int32), ())

    def __len__(self) -> int:
        return len(self.store)

    def __getitem__(self, draw: Draw) -> Example:
        epoch, row = draw
        if row == FILLER:
            return self._filler
        example = self.store[row]
        if example.pairs and not keeps_pairs(self.seed, epoch, row, self.jepa_ratio):
            return example._replace(pairs=())
        if self._one_pair and len(example.pairs) > 1:
            chosen = generator(self.seed, epoch, row, _PAIR).integers(len(example.pairs))
            return example._replace(pairs=(example.pairs[int(chosen)],))
        if self._tube is not None:
            rng = generator(self.seed, epoch, row, _SPANS)
            tubes = [draw_tube(*tube_spans(pair, self._content), self._tube, rng) for pair in example.pairs]
            return example._replace(pairs=(), tube=joined([tube for tube in tubes if tube is not None]))
        return example


def tube_spans(pair: Pair, content: str) -> tuple[TokenSpan, TokenSpan]:
    """Token spans of the user's content and the answer's; with ``with_markup`` the answer begins where the user's content
    ends, with ``whole`` the user's begins behind the first token."""
    start = 1 if content == "whole" else pair.source_start
    stop = pair.source_end + 1
    return (start, stop), (stop if content == "with_markup" else pair.target_start, pair.target_end)


def keeps_pairs(seed: int, epoch: int, row: int, ratio: float) -> bool:
    """Whether a row's pairs are trained on in an epoch: true for a share `ratio` of the rows."""
    return ratio >= 1 or bool(generator(seed, epoch, row, _RATIO).random() < ratio)


_RATIO, _SPANS, _PAIR = 1, 2, 3  # what is drawn; the order of an epoch is drawn with 0


def generator(seed: int, epoch: int, row: int, what: int) -> np.random.Generator:
    """Random numbers of one row in one epoch, counter-based: no state is carried from row to row."""
    return np.random.Generator(np.random.Philox(key=_key(seed, epoch), counter=[0, 0, what, row]))


def _key(seed: int, epoch: int) -> np.ndarray:
    return np.array([seed % 2**64, epoch], dtype=np.uint64)


class EpochCallback(TrainerCallback):
    """Tells the sampler the epoch before its first batch is drawn, whatever loaders are wrapped around it."""

    def __init__(self, sampler: EpochSampler):
        self.sampler = sampler

    def on_epoch_begin(self, args, state, control, **kwargs):
        """See `TrainerCallback`."""
        self.sampler.set_epoch(int((state.epoch or 0) + 1e-9))
