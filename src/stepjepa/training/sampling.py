"""The order of training examples, and the randomness in each of them.

Both are pure functions of the seed, the data and how often a row was seen before. They do not depend on the rank, on the
worker, or on whether the run was resumed; length grouping and replay also depend on the examples per step. Importing this
module does not load torch.

Shapes: S examples of an epoch, E examples of the store.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from stepjepa.data.types import Example
from stepjepa.objectives.base import Objective

# The row number of an example that fills up a batch.
FILLER = -1
# Random streams, one per purpose; 2, 3 and 6 belong to objectives (`Objective.stream`).
_ORDER, _RATIO, _MIXED, WINDOW, _REPLAY = 0, 1, 4, 5, 7


def generator(seed: int, epoch: int, row: int, what: int, source: int = 0) -> np.random.Generator:
    """The random generator for one purpose, one row of one data set and one epoch. It is counter-based: no state is carried
    from row to row."""
    # The counter's lowest word is left free, because it counts the numbers drawn from this generator.
    key = np.array([seed % 2**64, epoch], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=[0, source, what, row]))


def keeps_pairs(seed: int, epoch: int, row: int, ratio: float, source: int = 0) -> bool:
    """Whether a row's pairs are trained on in an epoch: true for a share `ratio` of the rows."""
    return ratio >= 1 or bool(generator(seed, epoch, row, _RATIO, source).random() < ratio)


@dataclass(frozen=True)
class ExampleDraw:
    """Samples the random choices of an example: whether its pairs are kept, and those of its objective.

    Attributes:
        objective: of the run.
        seed: of the run.
        jepa_ratio: the share of the examples whose pairs are kept.
    """

    objective: Objective
    seed: int
    jepa_ratio: float = 1.0

    def __call__(self, example: Example, epoch: int, row: int, source: int = 0) -> Example:
        """Sample an example for the `epoch`-th time that it is trained on, counted from 0."""
        if not example.view_pairs:
            return example
        if not keeps_pairs(self.seed, epoch, row, self.jepa_ratio, source):
            return example.plain()
        return self.objective.draw(
            example, generator(self.seed, epoch, row, self.objective.stream, source)
        )


class Draw(NamedTuple):
    """One example of an epoch.

    Attributes:
        epoch: how often the row was drawn before, which is the epoch if every epoch has each row once.
        row: its number in the store, or `FILLER`.
        replayed: the earlier example whose pairs are trained on again along with this one.
    """

    epoch: int
    row: int
    replayed: Draw | None = None


class Mixture(NamedTuple):
    """How many examples of each data set an epoch has.

    Attributes:
        sizes: number of rows of each data set; row numbers continue from one data set to the next.
        counts: number of examples of each data set in an epoch. A data set with more rows continues in the next epoch where
            it stopped in this one; the rows of a smaller data set are drawn several times.
    """

    sizes: tuple[int, ...]
    counts: tuple[int, ...]

    @classmethod
    def weighted(
        cls, sizes: Sequence[int], weights: Sequence[float], stopping_strategy: str
    ) -> Mixture:
        """Mix data sets in proportion to `weights`. An epoch ends when every row of one data set (``first_exhausted``) or of
        all of them (``all_exhausted``) has been drawn."""
        # The length of an epoch at which each data set would be drawn exactly once.
        whole = [size / weight for size, weight in zip(sizes, weights, strict=True)]
        length = min(whole) if stopping_strategy == "first_exhausted" else max(whole)
        return cls(tuple(sizes), tuple(max(1, round(length * weight)) for weight in weights))


@dataclass(eq=False)
class EpochSampler:
    """Draws the examples of an epoch in an order given by (seed, epoch).

    The last global batch of an epoch is filled up with `FILLER`, so that every process gets the same number of batches and
    no example is seen twice. A filler has no labels and no pairs, and the losses are divided by the numbers of labels and
    pairs.

    Attributes:
        mixture: the data sets of an epoch.
        multiple: number of examples of one micro-batch over all processes; 1 for no filling.
        seed: the seed of the order.
        shuffle: False keeps the rows of each data set in their order.
        lengths: (E,) number of tokens of each row. If given, the examples of an optimizer step are sorted by length, so that
            the examples of a micro-batch have similar lengths and little padding. The examples of a step do not change, nor
            do losses and gradients, which are divided by the counts of the optimizer step.
        window: number of examples of an optimizer step over all processes; used with `lengths` and `replay_ratio`.
        replay_ratio: share of the examples that also replay the pairs of an example from an earlier optimizer step.
        replay_current: take the pairs from the same optimizer step instead; even so, the first step replays nothing.
        epoch: the epoch to draw next, which the trainer sets.
    """

    mixture: Mixture
    multiple: int
    seed: int
    shuffle: bool = True
    lengths: np.ndarray | None = None
    window: int = 1
    replay_ratio: float = 0.0
    replay_current: bool = False
    epoch: int = 0

    def __post_init__(self) -> None:
        self.size = sum(self.mixture.counts)
        self.padded = self.size + -self.size % max(self.multiple, 1)
        # Passes and rows of the examples of past epochs, (2, S) each, for replay.
        self._orders: dict[int, np.ndarray] = {}

    def __len__(self) -> int:
        return self.padded

    def __iter__(self) -> Iterator[Draw]:
        epoch = self.epoch
        passes, rows, order = self._examples(epoch)
        if self.lengths is not None:
            windows = np.arange(self.size) // self.window
            lengths = self.lengths[rows[order]]
            # Longest first, so that running out of memory happens early.
            longest_first = np.lexsort((-lengths, windows))
            order = order[longest_first]
        replayed = self._replayed(epoch)
        for place, index in enumerate(order.tolist()):
            yield Draw(int(passes[index]), int(rows[index]), replayed.get(place))
        for _ in range(self.padded - self.size):
            yield Draw(epoch, FILLER)

    def _replayed(self, epoch: int) -> dict[int, Draw]:
        """The replayed examples of an epoch, by the position of the example that each is trained with.

        The examples that a run has drawn before an optimizer step have the numbers 0 to n - 1. Each example of the step that
        replays takes one of these numbers at random.
        """
        replayed: dict[int, Draw] = {}
        if not self.replay_ratio:
            return replayed
        random = generator(self.seed, epoch, 0, _REPLAY)
        chance_S, choice_S = random.random((2, self.size))
        for place in np.flatnonzero(chance_S < self.replay_ratio).tolist():
            step_begin = place // self.window * self.window
            before = epoch * self.size + step_begin
            # Nothing was drawn before the first step of the run. `replay_current`, the control, skips it too, for equal
            # compute.
            if not before:
                continue
            if self.replay_current:
                examples = min(self.window, self.size - step_begin)
                number = before + int(choice_S[place] * examples)
            else:
                number = int(choice_S[place] * before)
            replayed[place] = self._numbered(number)
        return replayed

    def _numbered(self, number: int) -> Draw:
        """The example with this number in the order of the run, before the examples of a step are sorted by length."""
        epoch, place = divmod(number, self.size)
        if epoch not in self._orders:
            passes, rows, order = self._examples(epoch)
            examples = np.stack([passes, rows])[:, order]
            self._orders[epoch] = examples.astype(np.int32)
        row_pass, row = self._orders[epoch][:, place].tolist()
        return Draw(row_pass, row)

    def _examples(self, epoch: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Passes and rows of the examples of an epoch, (S,) each, and the indices of their order, (S,)."""
        all_passes, all_rows, all_shares = [], [], []
        offset = 0
        for source, (size, count) in enumerate(zip(*self.mixture, strict=True)):
            # A data set is drawn pass by pass; an epoch takes the next `count` rows, which may span several passes.
            drawn = np.arange(epoch * count, (epoch + 1) * count)
            passes = drawn // size
            rows = drawn % size
            # A pass that does not coincide with an epoch is shuffled by itself. A pass that does is shuffled by the order
            # below.
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
            # Sorted by the share of its data set that an example completes: evenly mixed, with each data set in its own
            # order.
            order = np.argsort(np.concatenate(all_shares), kind="stable")
        return np.concatenate(all_passes), np.concatenate(all_rows), order


class DrawnExamples:
    """The examples of `Draw`s, each sampled for its draw.

    Args:
        store: the examples; several data sets are concatenated.
        objective, seed, jepa_ratio: see `ExampleDraw`.
        filler_id: the token id of a `FILLER`.
        mixture: number of examples of each data set in an epoch; None for each row once.
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
        """Number of examples in an epoch."""
        return sum(self.mixture.counts)

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens of each example, (E,) int64."""
        stores: list[Any] = getattr(self.store, "datasets", [self.store])
        return np.concatenate([store.lengths for store in stores])

    def __getitem__(self, draw: Draw) -> Example:
        epoch, row, replayed = draw
        if row == FILLER:
            return self._filler
        example = self._draw(self.store[row], epoch, row)
        if replayed is None:
            return example
        # Sampled as for its own draw: the same pairs, masks and spans as when it was trained on.
        earlier = self[replayed]
        return example._replace(replayed=earlier) if earlier.pairs else example
