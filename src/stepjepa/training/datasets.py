"""The examples of a run's data sets: one or several data sets, stored or streamed, to train or to evaluate on.

Only the loader of a stream and a mixture of data sets load torch.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from stepjepa.config.option import Names
from stepjepa.data.dataset import ExampleStore
from stepjepa.data.encode import EncodeOptions, encode_dataset, make_encoder
from stepjepa.data.report import DataReport, reason_words
from stepjepa.data.sources import RowSource
from stepjepa.data.steps import StepSplitter, make_splitter, rules_for
from stepjepa.data.streaming import ExampleStream, RowStream, Streamed, StreamStart
from stepjepa.data.template import ChatRenderer, with_template
from stepjepa.data.types import Example
from stepjepa.errors import ConfigError, DataError
from stepjepa.objectives.base import find_objective, objective_of
from stepjepa.training.options import JEPAOptions, RunOptions, TrainerOptions
from stepjepa.training.sampling import WINDOW, DrawnExamples, ExampleDraw, Mixture, generator
from stepjepa.utils.files import read_json, write_json

if TYPE_CHECKING:
    from torch.utils.data import DataLoader
    from transformers import PreTrainedTokenizerBase

    from stepjepa.training.config import JEPAConfig

logger = logging.getLogger("stepjepa")
_NAME = Names(JEPAOptions, TrainerOptions)
# One file per process in a checkpoint.
_STREAM = "stream_{}.json"


def settings_for(
    rows: Iterable[tuple[int, Any]],
    options: JEPAOptions,
    positions: int | None = None,
    splitter: StepSplitter | None = None,
    vocabulary: int | None = None,
) -> EncodeOptions:
    """How the rows of one data set become examples; with ``step_splitter=auto``, the first rows decide the splitter.

    Args:
        rows: the rows of the data set, with their numbers; empty if they are not to decide anything.
        options: the options of the run.
        positions: number of learned positions of the model; None if it has none, as with rotary ones.
        splitter: the splitter that ``auto`` chose on another data set, if it is to be used here too.
        vocabulary: see `EncodeOptions`.

    Raises:
        ConfigError, DataError: see `rules_for`.
    """
    # If no steps are needed, any splitter will do, and the rows need not be read to choose it. This uses the objective that
    # the option names, not `objective_of`: with `lbd` 0, the report still has the steps.
    if not find_objective(options.objective)(options).needs_steps:
        splitter = splitter or make_splitter("separator")
    objective, length = objective_of(options), options.max_length
    # With `inline`, the predictors take up positions of the row.
    if positions is not None:
        inserted = (
            options.predictors or 0 if options.forward == "inline" and objective.makes_pairs else 0
        )
        length = min(length, positions - inserted)
    return EncodeOptions.of(
        options,
        objective=objective if objective.makes_pairs else None,
        rules=rules_for(rows, options, options.columns, splitter),
        max_positions=positions,
        max_length=length,
        vocabulary=vocabulary,
    )


def chat_tokenizer(
    tokenizer: PreTrainedTokenizerBase, options: JEPAOptions
) -> PreTrainedTokenizerBase:
    """The tokenizer with the chat template that the options name; see `data.template.with_template`."""
    return with_template(tokenizer, options.chat_template, options.plain)


def make_renderer(tokenizer: PreTrainedTokenizerBase, options: JEPAOptions) -> ChatRenderer | None:
    """The renderer of a run, which uses `chat_tokenizer`; None for a tokenizer without a chat template."""
    tokenizer = chat_tokenizer(tokenizer, options)
    if not tokenizer.chat_template:
        return None
    return ChatRenderer(tokenizer, template_kwargs=options.chat_template_kwargs)


def encode(
    source: object,
    tokenizer: PreTrainedTokenizerBase,
    options: JEPAOptions,
    positions: int | None = None,
    splitter: StepSplitter | None = None,
    vocabulary: int | None = None,
) -> tuple[ExampleStore, DataReport]:
    """Encode a data set with the options of a run, and report on it.

    Args:
        positions, splitter, vocabulary: see `settings_for`.

    Raises:
        DataError: no row can be trained on, or no example has a pair for a JEPA objective.
    """
    rows = RowSource.of(source)
    settings = settings_for(rows, options, positions, splitter, vocabulary)
    tokenizer = chat_tokenizer(tokenizer, options)
    renderer = make_renderer(tokenizer, options)
    store, report = encode_dataset(rows, tokenizer, renderer, settings, options.dataset_num_proc)
    if settings.objective and not report.pairs:
        raise without_pairs(options, report, "no example has")
    return store, report


def without_pairs(options: JEPAOptions, report: DataReport, what: str) -> DataError:
    """The error for data without pairs; `what` begins the sentence (``no example has``)."""
    counts = report.examples_without_pairs.most_common()
    reasons = "; ".join(f"{count:,}: {reason_words(reason)}" for reason, count in counts)
    advice = (
        f"raise --{_NAME.max_length}, give --{_NAME.views} in_context if the template renders no single message, or train "
        f"with --{_NAME.objective} regular"
    )
    if report.first_without_target:
        first = report.first_without_target
        advice = f"give --{_NAME.jepa_target_column} a column that holds text (first row without: {first})"
    elif find_objective(options.objective)(options).needs_steps:
        advice = (
            f"check --{_NAME.step_splitter}, --{_NAME.step_separator} and the horizons {list(options.horizons)}, or train "
            f"with --{_NAME.objective} llm_jepa, which needs no steps"
        )
    return DataError(
        f"{report.source}: {what} a pair for {options.objective} ({reasons}); {advice}"
    )


class Sources(NamedTuple):
    """Several data sets to train on together."""

    sources: Sequence[object]


class StreamedExamples:
    """Endless micro-batches of a stream, shuffled window by window: the counterpart of `DrawnExamples`.

    Each process reads its own share of the rows, so a run must resume with the same number of processes.

    Args:
        stream: the examples.
        draw: samples whatever is random about an example.
        args: the run's configuration, which gives the size and order of a window, the index of this process and the number
            of processes.
    """

    def __init__(self, stream: ExampleStream, draw: ExampleDraw, args: JEPAConfig):
        self.stream, self.draw, self.args = stream, draw, args
        # The reports as they are before any row is read; `resume` starts from them.
        self._unread = copy.deepcopy(stream.reports)
        # Number of optimizer steps before the run was resumed.
        self._done = 0
        # The window to resume in: the number of steps before it, and where it begins.
        self._resumed: tuple[int, StreamStart] = (0, stream.rows.start())
        # The same for the current window, for `save`.
        self._window = self._resumed

    def batches(self, size: int) -> Iterator[list[Example] | None]:
        """Micro-batches of `size` examples; None for those that were trained on before a resume.

        Raises:
            DataError: there is no pair in the first window.
        """
        accumulation = self.args.gradient_accumulation_steps
        # On a resume, the Trainer requests the batches of earlier steps only to skip them, so they need no examples.
        yield from [None] * (self._done * accumulation)
        step_size = size * accumulation
        number, start = self._resumed
        # A window consists of complete steps, so that no step needs two windows.
        window_size = -(-self.args.shuffle_buffer // step_size) * step_size
        for begin, window in self.stream.windows(window_size, start, step_size):
            self._check_pairs()
            self._window = (number, begin)
            window = self._ordered(window, begin.window, step_size)
            for first in range(0, len(window), step_size):
                number += 1
                # These steps of the first window were trained on before the resume.
                if number <= self._done:
                    continue
                step = window[first : first + step_size]
                examples = [
                    self.draw(item.example, item.passes, item.row, item.source) for item in step
                ]
                yield from (examples[at : at + size] for at in range(0, step_size, size))

    def _check_pairs(self) -> None:
        """Refuse data without pairs in the first window.

        Raises:
            DataError: no example of the window has a pair; the message has the reasons.
        """
        reports = self.stream.reports
        if self.draw.objective.makes_pairs and not any(report.pairs for report in reports):
            largest = max(reports, key=lambda report: report.examples)
            raise without_pairs(
                self.args, largest, f"none of the first {largest.examples} examples has"
            )

    def _ordered(self, window: list[Streamed], number: int, step: int) -> list[Streamed]:
        """The examples of a window in the order of training; `step` is the number of examples per optimizer step."""
        strategy = self.args.train_sampling_strategy
        if strategy == "sequential":
            return window
        random = generator(self.draw.seed, number, self.args.process_index, WINDOW)
        window = [window[index] for index in random.permutation(len(window)).tolist()]
        if strategy != "group_by_length":
            return window
        # Sorted only within each step, so that the strategy does not change which examples a step has.
        ordered: list[Streamed] = []
        for first in range(0, len(window), step):
            examples = window[first : first + step]
            ordered += sorted(examples, key=lambda item: -len(item.example.trunk))
        return ordered

    def loader(self, size: int, collator: Callable[[list[Example]], Any]) -> DataLoader:
        """This process's collated micro-batches of `size` examples; None for those to skip. The length is that of the entire
        run, which counts as one epoch."""
        from torch.utils.data import DataLoader, IterableDataset

        class Batches(IterableDataset):
            """Ready-made micro-batches, for a loader that does no batching."""

            def __iter__(_) -> Iterator[list[Example] | None]:
                return self.batches(size)

            def __len__(_) -> int:
                return self.args.max_steps * self.args.gradient_accumulation_steps

        def collate(examples: list[Example] | None) -> Any:
            return None if examples is None else collator(examples)

        return DataLoader(Batches(), batch_size=None, collate_fn=collate)

    # Resuming

    def save(self, folder: Path) -> None:
        """Write this process's position in its share of the stream."""
        # A resumed run reads the current window again and skips its first steps.
        first, start = self._window
        record = {"shares": self.args.world_size, "first_step": first, "start": list(start)}
        write_json(folder / _STREAM.format(self.args.process_index), record, indent=None)

    def resume(self, folder: Path | None, steps: int = 0) -> None:
        """Continue after `steps` optimizer steps of the run that wrote the checkpoint `folder`, with the counts of its
        reports; without a folder, start at the first row.

        Raises:
            ConfigError: the stream of that run is divided among another number of processes, as a run of version 0.2 that
                was itself resumed may have done.
        """
        self._done, self._resumed = steps, (0, self.stream.rows.start())
        # Updated in place, because `ExampleReader.reports` has the same objects.
        for report, unread in zip(self.stream.reports, self._unread, strict=True):
            vars(report).update(vars(copy.deepcopy(unread)))
        if folder is None:
            return
        record = read_json(folder / _STREAM.format(self.args.process_index))
        if record["shares"] != self.args.world_size:
            raise ConfigError(
                f"--{_NAME.resume_from_checkpoint} {folder}: its stream is divided among {record['shares']} processes; "
                "resume with the same number"
            )
        start = StreamStart.of_record(record["start"])
        self._resumed = record["first_step"], start
        for report, counted in zip(self.stream.reports, start.counted, strict=False):
            report.add(DataReport.from_dict(counted))


class ExampleReader:
    """Reads the data sets of one run.

    Args:
        tokenizer: the run's tokenizer.
        args: the run's configuration.
        positions, vocabulary: see `settings_for`.

    Attributes:
        reports: the reports on the data that was read, by the name of the data set: ``train`` (or ``train_1``, ...),
            ``eval``.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        args: JEPAConfig,
        positions: int | None,
        vocabulary: int | None = None,
    ):
        self.tokenizer = tokenizer
        self.args = args
        self.positions = positions
        self.vocabulary = vocabulary
        self.pad_id = tokenizer.pad_token_id or 0
        self.reports: dict[str, DataReport] = {}

    def read_training(self, source: object) -> DrawnExamples | StreamedExamples | None:
        """Examples to train on, which are streamed if ``streaming`` is set; None if the source is None.

        Args:
            source: one data set, `Sources`, or examples that have already been read, which are returned unchanged.

        Raises:
            ConfigError: the number of weights is not that of the data sets, or the data does not fit `streaming`.
            DataError: see `encode`.
        """
        args = self.args
        if source is None or isinstance(source, (DrawnExamples, StreamedExamples)):
            return source
        sources = source.sources if isinstance(source, Sources) else [source]
        weights = args.mixing_weights
        if weights is not None and len(weights) != len(sources):
            raise ConfigError(
                f"{_NAME.mixing_weights} has {len(weights)} numbers for {len(sources)} data sets; give one per data set"
            )
        names = (
            ["train"]
            if len(sources) == 1
            else [f"train_{number}" for number in range(1, len(sources) + 1)]
        )
        if args.streaming:
            return self._stream(sources, names)
        # Compared by name, so that `datasets` need not be imported.
        if any(type(rows).__name__ == "IterableDataset" for rows in sources):
            raise ConfigError(
                "the training data is an IterableDataset, which is read during training; set streaming=True and "
                f"{_NAME.max_steps}"
            )
        split = RunOptions.dataset_split
        stores = [self._store(rows, name, split) for rows, name in zip(sources, names, strict=True)]
        store: Any = stores[0]
        if len(stores) > 1:
            from torch.utils.data import ConcatDataset

            store = ConcatDataset(stores)  # type: ignore[arg-type]
        sizes = [len(examples) for examples in stores]
        mixture = Mixture.weighted(sizes, weights, args.stopping_strategy) if weights else None
        return DrawnExamples(
            store, objective_of(args), args.seed, args.jepa_ratio, self.pad_id, mixture
        )

    def read_evaluation(
        self, source: object, name: str = "eval"
    ) -> DrawnExamples | dict[str, Any] | None:
        """Examples to evaluate on, with all their pairs.

        Args:
            source: one data set, or a plain dict of several by name, as for `transformers.Trainer`. Of a data set with
                splits, the one that ``stepjepa train`` evaluates on is read.
            name: the name of its report.
        """
        # A `DatasetDict` is a dict too, and is read as one data set.
        if type(source) is dict:
            return {key: self.read_evaluation(rows, f"eval_{key}") for key, rows in source.items()}
        if source is None or isinstance(source, DrawnExamples):
            return source
        args = self.args
        splitter = None
        train = self.reports.get("train")
        if train is not None and train.steps.splitter and args.step_splitter == "auto":
            # `auto` decides by the training data, so that both data sets are split in the same way.
            splitter = make_splitter(train.steps.splitter, args.step_separator)
        store = self._store(source, name, RunOptions.eval_split, splitter)
        return DrawnExamples(store, objective_of(args), args.seed, filler_id=self.pad_id)

    def read_apart(self, source: object) -> DrawnExamples | dict[str, Any] | None:
        """As `read_evaluation`, for data that is not the run's: skipped rows are logged, and `reports` does not change."""
        reader = copy.copy(self)
        reader.reports = dict(self.reports)
        examples = reader.read_evaluation(source)
        for name, report in reader.reports.items():
            if report is not self.reports.get(name):
                for line in report.skipped_lines():
                    logger.warning("%s: %s", report.source, line)
        return examples

    def _store(
        self, source: object, name: str, split: str, splitter: StepSplitter | None = None
    ) -> ExampleStore:
        if isinstance(source, ExampleStore):
            return source
        store, self.reports[name] = encode(
            RowSource.of(source, split),
            self.tokenizer,
            self.args,
            self.positions,
            splitter=splitter,
            vocabulary=self.vocabulary,
        )
        return store

    def _stream(self, data_sets: Sequence[Any], names: Sequence[str]) -> StreamedExamples:
        args = self.args
        if any(isinstance(data_set, ExampleStore) for data_set in data_sets):
            raise ConfigError(
                "streaming reads rows, but the training data is an ExampleStore; leave out streaming"
            )
        sources = [RowSource.of(data_set) for data_set in data_sets]
        renderer = make_renderer(self.tokenizer, args)
        # One encoder per data set, because their splitters may differ.
        encoders = []
        for source in sources:
            settings = settings_for(source, args, self.positions, vocabulary=self.vocabulary)
            encoders.append(make_encoder(source, self.tokenizer, renderer, settings))
        rows = RowStream(sources, args.mixing_weights, args.process_index, args.world_size)
        stream = ExampleStream(rows, encoders, args.dataset_num_proc)
        # The stream fills the reports while it reads; what is already known is set here.
        for name, source, encoder, report in zip(
            names, sources, encoders, stream.reports, strict=True
        ):
            report.fingerprint, report.steps = source.fingerprint, encoder.new_counts()
            self.reports[name] = report
        draw = ExampleDraw(objective_of(args), args.seed, args.jepa_ratio)
        return StreamedExamples(stream, draw, args)
