"""What training draws: the order of examples, and what is random about them.

All of it is a pure function of the seed, the data and how often a row was seen before: not of the rank, the worker, the
batch or a resume. No torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from stepjepa.data.types import Example
from stepjepa.objectives.base import Objective

FILLER = -1
# What random numbers are for; objectives have numbers of their own (`Objective.stream`).
_ORDER, _RATIO, _MIXED, WINDOW, _REPLAY = 0, 1, 4, 5, 7


def generator(seed: int, epoch: int, row: int, what: int, source: int = 0) -> np.random.Generator:
    """Random numbers of one row of one data set in one epoch, counter-based: no state is carried from row to row."""
    key = np.array([seed % 2**64, epoch], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=[0, source, what, row]))


def keeps_pairs(seed: int, epoch: int, row: int, ratio: float, source: int = 0) -> bool:
    """Whether a row's pairs are trained on in an epoch: true for a share `ratio` of the rows."""
    return ratio >= 1 or bool(generator(seed, epoch, row, _RATIO, source).random() < ratio)


@dataclass(frozen=True)
class ExampleDraw:
    """Samples what is random about an example: whether its pairs are kept, and what its objective samples.

    Attributes:
        objective: of the run.
        seed: of the run.
        jepa_ratio: share of the examples whose pairs are kept.
    """

    objective: Objective
    seed: int
    jepa_ratio: float = 1.0

    def __call__(self, example: Example, epoch: int, row: int, source: int = 0) -> Example:
        """The example as it is trained on for the `epoch`-th time, counted from 0."""
        if not example.view_pairs:
            return example
        if not keeps_pairs(self.seed, epoch, row, self.jepa_ratio, source):
            return example.plain()
        if not self.objective.draws:
            return example
        return self.objective.draw(example, generator(self.seed, epoch, row, self.objective.stream, source))


class Draw(NamedTuple):
    """One example: a row, and how often it was drawn before (the epoch, where an epoch is every row once). Row `FILLER`
    stands for nothing. `replayed`: the example whose pairs are trained again with it."""

    epoch: int
    row: int
    replayed: Draw | None = None


class Mixture(NamedTuple):
    """How much of which data set makes an epoch.

    Attributes:
        sizes: rows of each data set; they are numbered through.
        counts: examples of each in an epoch. A data set with more rows continues in the next epoch where it stopped in this
            one; one with fewer is drawn several times.
    """

    sizes: tuple[int, ...]
    counts: tuple[int, ...]

    @classmethod
    def weighted(cls, sizes: Sequence[int], weights: Sequence[float], stopping_strategy: str) -> Mixture:
        """Examples in the proportion of `weights`, until every row of the first data set was drawn (``first_exhausted``)
        or of the last (``all_exhausted``)."""
        whole = [size / weight for size, weight in zip(sizes, weights, strict=True)]
        length = min(whole) if stopping_strategy == "first_exhausted" else max(whole)
        return cls(tuple(sizes), tuple(max(1, round(length * weight)) for weight in weights))


class EpochSampler:
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
            nor do losses and gradients, which are divided by the counts of the optimizer step.
        window: examples of an optimizer step over all processes; with `lengths` or `replay_ratio`.
        replay_ratio: share of the examples that replay the pairs of one from an earlier optimizer step of the run.
        replay_current: from the same optimizer step instead, where an earlier one is there.

    Attributes:
        epoch: whose examples are drawn next; the trainer sets it.
    """

    def __init__(
        self,
        mixture: Mixture | int,
        multiple: int,
        seed: int,
        shuffle: bool = True,
        lengths: np.ndarray | None = None,
        window: int = 1,
        replay_ratio: float = 0.0,
        replay_current: bool = False,
    ):
        self.mixture = Mixture((mixture,), (mixture,)) if isinstance(mixture, int) else mixture
        self.size = sum(self.mixture.counts)
        self.padded = self.size + -self.size % max(multiple, 1)
        self.seed = seed
        self.shuffle = shuffle
        self.lengths = lengths
        self.window = window
        self.replay_ratio = replay_ratio
        self.replay_current = replay_current
        self.epoch = 0
        self._orders: dict[int, np.ndarray] = {}  # (2, size), passes and rows of an epoch's examples

    def __len__(self) -> int:
        return self.padded

    def __iter__(self) -> Iterator[Draw]:
        epoch = self.epoch
        passes, rows, order = self._examples(epoch)
        if self.lengths is not None:
            windows = np.arange(self.size) // self.window
            lengths = self.lengths[rows[order]]
            longest_first = np.lexsort((-lengths, windows))  # so that memory shows at once
            order = order[longest_first]
        replayed = self._replayed(epoch)
        for place, index in enumerate(order.tolist()):
            yield Draw(int(passes[index]), int(rows[index]), replayed.get(place))
        for _ in range(self.padded - self.size):
            yield Draw(epoch, FILLER)

    def _replayed(self, epoch: int) -> dict[int, Draw]:
        """What is replayed in an epoch, by the place of the example that brings it along.

        The n examples that a run has drawn before an optimizer step are numbered through, and each of the step's examples
        takes one of these numbers at random.
        """
        replayed: dict[int, Draw] = {}
        if not self.replay_ratio:
            return replayed
        random = generator(self.seed, epoch, 0, _REPLAY)
        chance_S, choice_S = random.random((2, self.size))
        for place in np.flatnonzero(chance_S < self.replay_ratio).tolist():
            step_begin = place // self.window * self.window
            before = epoch * self.size + step_begin
            if not before:  # the first step of the run
                continue
            if self.replay_current:
                examples = min(self.window, self.size - step_begin)
                number = before + int(choice_S[place] * examples)
            else:
                number = int(choice_S[place] * before)
            replayed[place] = self._numbered(number)
        return replayed

    def _numbered(self, number: int) -> Draw:
        """The example of this number in the run, before those of an optimizer step are put in order of length."""
        epoch, place = divmod(number, self.size)
        if epoch not in self._orders:
            passes, rows, order = self._examples(epoch)
            examples = np.stack([passes, rows])[:, order]
            self._orders[epoch] = examples.astype(np.int32)
        row_pass, row = self._orders[epoch][:, place].tolist()
        return Draw(row_pass, row)

    def _examples(self, epoch: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Passes and rows of the examples of an epoch, (size,) each, and their order, (size,) indices."""
        all_passes, all_rows, all_shares = [], [], []
        offset = 0
        for source, (size, count) in enumerate(zip(*self.mixture, strict=True)):
            # A data set is drawn pass by pass, in an epoch `count` of its `size` rows.
            drawn = np.arange(epoch * count, (epoch + 1) * count)
            passes = drawn // size
            rows = drawn % size
            if self.shuffle and count != size:
                for number in np.unique(passes):
                    permuted = generator(self.seed, int(number), source, _MIXED).permutation(size)
                    rows = np.where(passes == number, permuted[rows], rows)
            all_passes.append(passes)
            all_rows.append(rows + offset)
            all_shares.append((np.arange(count) + 0.5) / count)
            offset += size
        if self.shuffle:
            order = generator(self.seed, epoch, 0, _ORDER).permutation(self.size)
        else:
            order = np.argsort(np.concatenate(all_shares), kind="stable")  # evenly mixed
        return np.concatenate(all_passes), np.concatenate(all_rows), order


class DrawnExamples:
    """Examples by `Draw`, with what is random about them.

    Args:
        store: the examples, of several data sets one after the other.
        objective, seed, jepa_ratio: see `ExampleDraw`.
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
        return sum(self.mixture.counts)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each of the E examples, (E,) int64."""
        stores: list[Any] = getattr(self.store, "datasets", [self.store])
        return np.concatenate([store.lengths for store in stores])

    def __getitem__(self, draw: Draw) -> Example:
        epoch, row, replayed = draw
        if row == FILLER:
            return self._filler
        example = self._draw(self.store[row], epoch, row)
        if replayed is None:
            return example
        earlier = self[replayed]
        return example._replace(replayed=earlier) if earlier.pairs else example
