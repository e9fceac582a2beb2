"""Training on a data set that is never read whole (``--streaming``): micro-batches without end, and where to go on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from stepjepa.data.streaming import ExampleStream, Streamed, StreamStart
from stepjepa.data.types import Example
from stepjepa.errors import ConfigError
from stepjepa.objectives.base import objective_of
from stepjepa.training.draws import WINDOW, ExampleDraw, generator
from stepjepa.training.encoding import without_pairs
from stepjepa.training.options import JEPAOptions
from stepjepa.utils.files import read_json, write_whole

_KEPT_STARTS = 64


class StreamedExamples(torch.utils.data.IterableDataset):
    """What `DrawnExamples` is for a stream: the examples of this process, shuffled window by window, with what is random
    about them. Both depend on the seed, the data and the number of processes alone.

    Args:
        stream: this process's examples.
        options: of the run.
        seed: of order and draws.
        jepa_ratio: share of the examples whose pairs are kept.
        process, processes: of the run.
    """

    def __init__(
        self, stream: ExampleStream, options: JEPAOptions, seed: int, jepa_ratio: float, process: int, processes: int
    ):
        self.stream, self.options, self.seed = stream, options, seed
        self.process, self.processes = process, processes
        self._draw = ExampleDraw(objective_of(options), seed, jepa_ratio)
        self._starts: dict[int, StreamStart] = {}  # first micro-batch of a window -> where it begins
        self._resumed: tuple[int, int, StreamStart] | None = (
            None  # micro-batches to pass over, the window's first, its start
        )

    def __iter__(self) -> Iterator[Example]:
        raise TypeError("a stream gives micro-batches; see StreamedExamples.batches")

    def batches(self, size: int, step: int = 1, strategy: str = "random") -> Iterator[list[Example] | None]:
        """Micro-batches of `size` examples without end; None for those that the run to go on from has trained on.

        Args:
            step: micro-batches of an optimizer step; with ``group_by_length`` its examples are put in order of length.
            strategy: ``random``, ``sequential`` or ``group_by_length``.
        """
        seen, number, start = self._resumed or (0, 0, None)
        yield from [None] * number
        per_window = -(-self.options.shuffle_buffer // (size * step)) * step
        for begin, window in self.stream.windows(per_window * size, start):
            self._check(begin)
            self._starts[number] = begin
            while len(self._starts) > _KEPT_STARTS:
                del self._starts[min(self._starts)]
            window = self._ordered(window, begin.window, size * step, strategy)
            for first in range(0, len(window), size):
                examples = window[first : first + size]
                number += 1
                if number <= seen:
                    yield None
                else:
                    yield [self._draw(one.example, one.passes, one.row, one.source) for one in examples]

    def _ordered(self, window: list[Streamed], number: int, step: int, strategy: str) -> list[Streamed]:
        if strategy == "sequential":
            return window
        order = generator(self.seed, number, self.process, WINDOW).permutation(len(window)).tolist()
        if strategy == "group_by_length":
            groups = [order[first : first + step] for first in range(0, len(order), step)]
            order = [i for group in groups for i in sorted(group, key=lambda i: -len(window[i].example.trunk))]
        return [window[index] for index in order]

    def _check(self, begin: StreamStart) -> None:
        """Refuse data without a single pair, as soon as a window of it was read."""
        reports = self.stream.reports
        if self.options.uses_pairs and not any(report.pairs for report in reports):
            seen = max(reports, key=lambda report: report.examples)
            raise without_pairs(self.options, seen, f"none of the first {seen.examples} examples has")

    # Where a run goes on

    def save(self, folder: str | Path, batches: int) -> None:
        """Write where this process's stream stands after so many micro-batches."""
        first = max(number for number in self._starts if number <= batches)
        record = {"processes": self.processes, "first_batch": first, "start": list(self._starts[first])}
        write_whole(self._path(folder), [json.dumps(record).encode()])

    def go_on(self, folder: str | Path, batches: int) -> None:
        """Begin behind so many micro-batches of the run that wrote the checkpoint `folder`.

        Raises:
            ConfigError: it had another number of processes, or did not stream.
        """
        try:
            record = read_json(self._path(folder))
        except (OSError, ValueError):
            raise ConfigError(
                f"resume_from_checkpoint: {folder} does not say where process {self.process} stood in its stream; it is the "
                "checkpoint of a run without --streaming, or of one with fewer processes"
            ) from None
        if record["processes"] != self.processes:
            raise ConfigError(
                f"resume_from_checkpoint: {folder} was written by {record['processes']} processes, not {self.processes}; "
                "a stream goes on with as many"
            )
        self._resumed = batches, record["first_batch"], StreamStart.of_record(record["start"])

    def start_over(self) -> None:
        """Begin at the first micro-batch."""
        self._resumed, self._starts = None, {}

    def _path(self, folder: str | Path) -> Path:
        return Path(folder) / f"stream_{self.process}.json"


class StreamedBatches(torch.utils.data.IterableDataset):
    """Collated micro-batches of a stream, for a loader without batching of its own."""

    def __init__(self, dataset: StreamedExamples, collator: Callable[[list[Example]], Any], **settings: Any):
        self.dataset, self.collator, self.settings = dataset, collator, settings

    def __iter__(self) -> Iterator[Any]:
        for examples in self.dataset.batches(**self.settings):
            yield None if examples is None else self.collator(examples)


def stream_loader(
    dataset: StreamedExamples, collator: Callable[[list[Example]], Any], args: Any, batch_size: int
) -> Any:
    """The loader of a run's micro-batches of `batch_size` examples."""
    settings = {"size": batch_size, "step": args.gradient_accumulation_steps}
    batches = StreamedBatches(dataset, collator, strategy=args.train_sampling_strategy, **settings)
    return torch.utils.data.DataLoader(batches, batch_size=None)
