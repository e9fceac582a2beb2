"""What training draws: the order of examples, what is random about them, and streams.

All of it is a pure function of the seed, the data and how often a row was seen before: not of the rank, the worker, the
batch or a resume. The order of a stream also depends on the number of processes that it began with. No torch, but for the
loader of a stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from stepjepa.config.option import Names
from stepjepa.data.options import ReadingOptions
from stepjepa.data.streaming import ExampleStream, Streamed, StreamStart
from stepjepa.data.types import Example
from stepjepa.errors import ConfigError
from stepjepa.objectives.base import Objective
from stepjepa.utils.files import read_json, write_json

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

    from stepjepa.training.config import JEPAConfig

_NAME = Names(ReadingOptions)
FILLER = -1
# What random numbers are for; objectives have numbers of their own (`Objective.stream`).
_ORDER, _RATIO, _MIXED, _WINDOW = 0, 1, 4, 5
_KEPT_STARTS = 64
_STREAM = "stream_{}.json"


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
    stands for nothing."""

    epoch: int
    row: int


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
        window: examples of an optimizer step over all processes; with `lengths`.

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
    ):
        self.mixture = Mixture((mixture,), (mixture,)) if isinstance(mixture, int) else mixture
        self.size, self.seed, self.shuffle, self.epoch = sum(self.mixture.counts), seed, shuffle, 0
        self.padded = self.size + -self.size % max(multiple, 1)
        self.lengths, self.window = lengths, window

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
                for number in np.unique(passes):
                    permuted = generator(self.seed, int(number), source, _MIXED).permutation(size)
                    rows = np.where(passes == number, permuted[rows], rows)
            parts.append((passes, rows + offset, (np.arange(count) + 0.5) / count))
            offset += size
        passes, rows, share = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        if self.shuffle:
            return passes, rows, generator(self.seed, epoch, 0, _ORDER).permutation(self.size)
        return passes, rows, np.argsort(share, kind="stable")  # evenly mixed


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
        epoch, row = draw
        return self._filler if row == FILLER else self._draw(self.store[row], epoch, row)


class StreamedExamples:
    """What `DrawnExamples` is for a stream: micro-batches without end, shuffled window by window.

    The rows are dealt out into as many shares as the run had processes when it began. Each share gives its part of every
    optimizer step, and a process reads the shares that its own examples of the step are from: which examples a step has, and
    in which order, stays when a run is resumed on another number of processes.

    Args:
        stream: the examples.
        draw: what is random about them.
        args: of the run: the size of a window, the order in it, this process and the number of them.
    """

    def __init__(self, stream: ExampleStream, draw: ExampleDraw, args: JEPAConfig):
        self.stream, self.draw, self.args = stream, draw, args
        self._seen, self._shares = 0, args.world_size
        # Of each share: steps before a window -> where the window begins.
        self._resumed: dict[int, tuple[int, StreamStart]] = {}
        self._starts: dict[int, dict[int, StreamStart]] = {}

    def batches(self, size: int) -> Iterator[list[Example] | None]:
        """Micro-batches of `size` examples; None for those that the resumed run has trained on.

        Raises:
            ConfigError: a stream that Ray encodes was begun on more processes.
        """
        seen, accumulation, process = self._seen, self.args.gradient_accumulation_steps, self.args.process_index
        own = size * accumulation  # examples of a step
        each = own * self.args.world_size // self._shares
        shares = range(process * own // each, ((process + 1) * own - 1) // each + 1)
        if len(shares) > 1 and self.stream.engine == "ray":  # each would hold its part of the cluster for good
            raise ConfigError(
                f"--{_NAME.engine} ray encodes a stream on as many processes as began the run ({self._shares}); resume with "
                f"as many, or with --{_NAME.engine} processes"
            )
        skipped = process * own - shares.start * each  # of the first share, which other processes take
        self._starts.clear()
        for number, parts in enumerate(zip(*(self._steps(share, each) for share in shares), strict=True), 1):
            if number <= seen:
                yield from [None] * accumulation
                continue
            examples = [
                self.draw(one.example, one.passes, one.row, one.source)
                for one in [one for part in parts for one in part][skipped : skipped + own]
            ]
            yield from (examples[first : first + size] for first in range(0, own, size))

    def _steps(self, share: int, size: int) -> Iterator[list[Streamed]]:
        """What a share gives to every optimizer step: `size` examples, nothing before the window where it resumes."""
        number, start = self._resumed.get(share, (0, None))
        yield from [[]] * number
        starts = self._starts[share] = {}
        window_size = -(-self.args.shuffle_buffer // size) * size
        for begin, window in self.stream.part(share, self._shares).windows(window_size, start, size):
            starts[number] = begin
            while len(starts) > _KEPT_STARTS:
                del starts[min(starts)]
            window = self._ordered(window, share, begin.window, size)
            for first in range(0, len(window), size):
                number += 1
                yield window[first : first + size]

    def _ordered(self, window: list[Streamed], share: int, number: int, step: int) -> list[Streamed]:
        """The examples of a share's window, `step` of them an optimizer step, in the order of training."""
        strategy = self.args.train_sampling_strategy
        if strategy == "sequential":
            return window
        order = generator(self.draw.seed, number, share, _WINDOW).permutation(len(window)).tolist()
        if strategy == "group_by_length":
            groups = [order[first : first + step] for first in range(0, len(order), step)]
            order = [i for group in groups for i in sorted(group, key=lambda i: -len(window[i].example.trunk))]
        return [window[index] for index in order]

    def loader(self, size: int, collator: Callable[[list[Example]], Any]) -> DataLoader:
        """Collated micro-batches of `size` examples, those of this process; None for those to pass over."""
        from torch.utils.data import DataLoader, IterableDataset

        class Batches(IterableDataset):
            """For a loader without batching of its own."""

            def __iter__(_) -> Iterator[list[Example] | None]:
                return self.batches(size)

        def collate(examples: list[Example] | None) -> Any:
            return None if examples is None else collator(examples)

        return DataLoader(Batches(), batch_size=None, collate_fn=collate)

    # Where a run resumes

    def save(self, folder: str | Path, steps: int) -> None:
        """Write where the shares are after so many optimizer steps, those whose first example this process takes."""
        for share, starts in self._starts.items():
            if share * self.args.world_size // self._shares == self.args.process_index:
                first = max(number for number in starts if number <= steps)
                record = {"shares": self._shares, "first_step": first, "start": list(starts[first])}
                write_json(Path(folder) / _STREAM.format(share), record, indent=None)

    def resume(self, folder: str | Path | None, steps: int = 0) -> None:
        """Begin after so many optimizer steps of the run that wrote the checkpoint `folder`; None begins at the first."""
        self._seen, self._shares, self._resumed = steps, self.args.world_size, {}
        if folder is not None:
            self._shares = read_json(Path(folder) / _STREAM.format(0))["shares"]
            records = [read_json(Path(folder) / _STREAM.format(share)) for share in range(self._shares)]
            self._resumed = {
                n: (one["first_step"], StreamStart.of_record(one["start"])) for n, one in enumerate(records)
            }
