"""The data sets of a run as examples: one of them or several, stored or streamed, to train or to evaluate on. No torch,
but for the loader of a stream."""

from __future__ import annotations

import copy
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
from stepjepa.training.options import JEPAOptions, TrainerOptions
from stepjepa.training.sampling import WINDOW, DrawnExamples, ExampleDraw, Mixture, generator
from stepjepa.utils.files import read_json, write_json

if TYPE_CHECKING:
    from torch.utils.data import DataLoader
    from transformers import PreTrainedTokenizerBase

    from stepjepa.training.config import JEPAConfig

_NAME = Names(JEPAOptions, TrainerOptions)
_KEPT_STARTS = 64  # windows of a stream, of which a checkpoint takes one
_STREAM = "stream_{}.json"


def settings_for(
    rows: Iterable[tuple[int, Any]],
    options: JEPAOptions,
    positions: int | None = None,
    splitter: StepSplitter | None = None,
    vocabulary: int | None = None,
) -> EncodeOptions:
    """How the rows of one data set become examples; with ``step_splitter=auto`` its first rows settle the splitter.

    Args:
        rows: of the data set, with their numbers; none where nothing is to be settled on them.
        options: of the run.
        positions: positions that the model has, None for rotary ones.
        splitter: the one that ``auto`` was settled on before, on the data set that this one is read like.
        vocabulary: see `EncodeOptions`.

    Raises:
        ConfigError, DataError: as `rules_for`.
    """
    if not find_objective(options.objective)(options).needs_steps:
        splitter = splitter or make_splitter("separator")  # nobody asks for steps
    objective, length = objective_of(options), options.max_length
    if positions is not None:
        inserted = options.predictors or 0 if options.forward == "inline" and objective.makes_pairs else 0
        length = min(length, positions - inserted)
    return EncodeOptions.of(
        options,
        objective=objective if objective.makes_pairs else None,
        rules=rules_for(
            rows, options.step_splitter, options.step_separator, options.steps_column, options.columns, splitter
        ),
        max_positions=positions,
        max_length=length,
        vocabulary=vocabulary,
    )


def chat_tokenizer(tokenizer: PreTrainedTokenizerBase, options: JEPAOptions) -> PreTrainedTokenizerBase:
    """The tokenizer with the template that the options ask for, see `data.template.with_template`."""
    return with_template(tokenizer, options.chat_template, options.plain)


def make_renderer(tokenizer: PreTrainedTokenizerBase, options: JEPAOptions) -> ChatRenderer | None:
    """The renderer of a run, with the `chat_tokenizer`; None for a tokenizer without a chat template."""
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
    """Examples of a data set under the options of a run.

    Args:
        positions, splitter, vocabulary: see `settings_for`.

    Raises:
        DataError: nothing that can be trained on, or no pair at all for a JEPA objective.
    """
    rows = source if isinstance(source, RowSource) else RowSource(source)
    settings = settings_for(rows, options, positions, splitter, vocabulary)
    tokenizer = chat_tokenizer(tokenizer, options)
    renderer = make_renderer(tokenizer, options)
    store, report = encode_dataset(rows, tokenizer, renderer, settings, options.dataset_num_proc)
    if settings.objective and not report.pairs:
        raise without_pairs(options, report, "no example has")
    return store, report


def without_pairs(options: JEPAOptions, report: DataReport, what: str) -> DataError:
    """The error for data of which `what` (``no example has``) a pair."""
    plain = f"--{_NAME.objective} regular"
    counts = report.examples_without_pairs.most_common()
    reasons = "; ".join(f"{count:,}: {reason_words(reason)}" for reason, count in counts)
    if "horizon_beyond_answer" in report.examples_without_pairs:
        horizons = ", ".join(map(str, options.horizons))
        advice = f"no answer has a step that far on: lower the horizon (now {horizons})"
    elif "view_refused" in report.examples_without_pairs:
        advice = f"use --{_NAME.views} in_context, or a chat template that can write a message alone"
    elif report.first_without_target:
        first = report.first_without_target
        advice = f"name a column that holds text with --{_NAME.jepa_target_column} (first: {first})"
    elif find_objective(options.objective)(options).needs_steps:
        other = f"--{_NAME.objective} llm_jepa, which needs no steps"
        advice = f"check --{_NAME.step_splitter} and --{_NAME.step_separator}, or train with {other}, or with {plain}"
    else:
        advice = f"raise --{_NAME.max_length}, or train with {plain}"
    return DataError(f"{report.source}: {what} a pair for {options.objective} ({reasons}); {advice}")


class Sources(NamedTuple):
    """Several data sets that are trained on together."""

    sources: Sequence[object]


class StreamedExamples:
    """What `DrawnExamples` is for a stream: micro-batches without end, shuffled window by window. Each process reads its own
    share of the rows, so a run is resumed on as many processes as it began on.

    Args:
        stream: the examples.
        draw: what is random about them.
        args: of the run: the size of a window, the order in it, this process and the number of them.
    """

    def __init__(self, stream: ExampleStream, draw: ExampleDraw, args: JEPAConfig):
        self.stream, self.draw, self.args = stream, draw, args
        self._unread = copy.deepcopy(stream.reports)
        self._done = 0  # optimizer steps that the resumed run has trained on
        self._resumed: tuple[int, StreamStart | None] = (0, None)  # steps before a window, and where it begins
        self._starts: dict[int, StreamStart] = {}  # the same of the last windows

    def batches(self, size: int) -> Iterator[list[Example] | None]:
        """Micro-batches of `size` examples; None for those that the resumed run has trained on.

        Raises:
            DataError: not a single pair in the first window.
        """
        accumulation = self.args.gradient_accumulation_steps
        yield from [None] * (self._done * accumulation)
        own = size * accumulation  # examples of a step
        number, start = self._resumed
        self._starts = {}
        share = self.stream.part(self.args.process_index, self.args.world_size)
        window_size = -(-self.args.shuffle_buffer // own) * own
        for begin, window in share.windows(window_size, start, own):
            self._check_pairs()
            self._starts[number] = begin
            while len(self._starts) > _KEPT_STARTS:
                del self._starts[min(self._starts)]
            window = self._ordered(window, begin.window, own)
            for first in range(0, len(window), own):
                number += 1
                if number <= self._done:
                    continue
                step = window[first : first + own]
                examples = [self.draw(one.example, one.passes, one.row, one.source) for one in step]
                yield from (examples[at : at + size] for at in range(0, own, size))

    def _check_pairs(self) -> None:
        """Refuse data whose first window has no pair.

        Raises:
            DataError: see above.
        """
        reports = self.stream.reports
        if self.draw.objective.makes_pairs and not any(report.pairs for report in reports):
            largest = max(reports, key=lambda report: report.examples)
            raise without_pairs(self.args, largest, f"none of the first {largest.examples} examples has")

    def _ordered(self, window: list[Streamed], number: int, step: int) -> list[Streamed]:
        """The examples of a window, `step` of them an optimizer step, in the order of training."""
        strategy = self.args.train_sampling_strategy
        if strategy == "sequential":
            return window
        random = generator(self.draw.seed, number, self.args.process_index, WINDOW)
        window = [window[index] for index in random.permutation(len(window)).tolist()]
        if strategy != "group_by_length":
            return window
        ordered: list[Streamed] = []
        for first in range(0, len(window), step):
            ordered += sorted(window[first : first + step], key=lambda one: -len(one.example.trunk))
        return ordered

    def loader(self, size: int, collator: Callable[[list[Example]], Any]) -> DataLoader:
        """Collated micro-batches of `size` examples, those of this process; None for those to pass over. Its length is that
        of the run: one epoch."""
        from torch.utils.data import DataLoader, IterableDataset

        class Batches(IterableDataset):
            """For a loader without batching of its own."""

            def __iter__(_) -> Iterator[list[Example] | None]:
                return self.batches(size)

            def __len__(_) -> int:
                return self.args.max_steps * self.args.gradient_accumulation_steps

        def collate(examples: list[Example] | None) -> Any:
            return None if examples is None else collator(examples)

        return DataLoader(Batches(), batch_size=None, collate_fn=collate)

    # Where a run resumes

    def save(self, folder: Path, steps: int) -> None:
        """Write where this process's share is after so many optimizer steps."""
        first = max(number for number in self._starts if number <= steps)
        record = {"shares": self.args.world_size, "first_step": first, "start": list(self._starts[first])}
        write_json(folder / _STREAM.format(self.args.process_index), record, indent=None)

    def resume(self, folder: Path | None, steps: int = 0) -> None:
        """Begin after so many optimizer steps of the run that wrote the checkpoint `folder`; None begins at the first. The
        reports count on from those of that run.

        Raises:
            ConfigError: version 0.2 wrote it, in a run that had gone on from another number of processes.
        """
        self._done, self._resumed = steps, (0, None)
        for report, unread in zip(self.stream.reports, self._unread, strict=True):
            vars(report).update(vars(copy.deepcopy(unread)))
        if folder is None:
            return
        record = read_json(folder / _STREAM.format(self.args.process_index))
        if record["shares"] != self.args.world_size:
            raise ConfigError(
                f"--{_NAME.resume_from_checkpoint} {folder}: its stream began on {record['shares']} processes, and is "
                "resumed on as many only"
            )
        start = StreamStart.of_record(record["start"])
        self._resumed = record["first_step"], start
        for report, counted in zip(self.stream.reports, start.counted, strict=False):
            report.add(DataReport.from_dict(counted))


class ExampleReader:
    """Reads the data sets of one run.

    Args:
        tokenizer: the run's tokenizer.
        args: its configuration.
        positions, vocabulary: see `settings_for`.

    Attributes:
        reports: what was read, by the name of the data set: ``train`` (``train_1``, ... of several), ``eval``.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, args: JEPAConfig, positions: int | None, vocabulary: int | None = None
    ):
        self.tokenizer, self.args, self.positions, self.vocabulary = tokenizer, args, positions, vocabulary
        self.pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
        self.reports: dict[str, DataReport] = {}

    def read_training(self, source: object) -> DrawnExamples | StreamedExamples | None:
        """Examples to train on, streamed with ``streaming``; None of None.

        Args:
            source: one data set, `Sources` of several, or examples that were read before.

        Raises:
            ConfigError: weights that do not fit the data sets.
            DataError: as `encode`.
        """
        args = self.args
        if source is None or isinstance(source, (DrawnExamples, StreamedExamples)):
            return source
        several = source.sources if isinstance(source, Sources) else [source]
        weights = args.mixing_weights
        if weights is not None and len(weights) != len(several):
            raise ConfigError(
                f"{_NAME.mixing_weights} has {len(weights)} numbers for {len(several)} data sets; give one for each"
            )
        names = ["train"] if len(several) == 1 else [f"train_{number}" for number in range(1, len(several) + 1)]
        if args.streaming:
            return self._stream(several, names)
        if any(type(one).__name__ == "IterableDataset" for one in several):
            raise ConfigError(
                "the training data is an IterableDataset, which is read while the model trains: set streaming=True and "
                f"{_NAME.max_steps}"
            )
        stores = [self._store(one, name) for one, name in zip(several, names, strict=True)]
        store: Any = stores[0]
        if len(stores) > 1:
            from torch.utils.data import ConcatDataset

            store = ConcatDataset(stores)  # type: ignore[arg-type]
        sizes = [len(one) for one in stores]
        mixture = Mixture.weighted(sizes, weights, args.stopping_strategy) if weights else None
        return DrawnExamples(store, objective_of(args), args.seed, args.jepa_ratio, self.pad_id, mixture)

    def read_evaluation(self, source: object, name: str = "eval") -> DrawnExamples | dict[str, Any] | None:
        """Examples to evaluate on, with all their pairs; a plain dict holds several data sets by name, as
        `transformers.Trainer` takes them."""
        if type(source) is dict:
            return {key: self.read_evaluation(one, f"eval_{key}") for key, one in source.items()}
        if source is None or isinstance(source, DrawnExamples):
            return source
        args = self.args
        splitter = None
        train = self.reports.get("train")
        if train is not None and train.steps.looked and args.step_splitter == "auto":
            # Steps are those that the training data has.
            splitter = make_splitter(train.steps.splitter, args.step_separator)
        store = self._store(source, name, splitter)
        return DrawnExamples(store, objective_of(args), args.seed, filler_id=self.pad_id)

    def _store(self, source: object, name: str, splitter: StepSplitter | None = None) -> ExampleStore:
        if isinstance(source, ExampleStore):
            return source
        store, self.reports[name] = encode(
            source, self.tokenizer, self.args, self.positions, splitter=splitter, vocabulary=self.vocabulary
        )
        return store

    def _stream(self, several: Sequence[Any], names: Sequence[str]) -> StreamedExamples:
        args = self.args
        if any(isinstance(one, ExampleStore) for one in several):
            raise ConfigError("streaming reads rows, and the training data is an ExampleStore; leave streaming out")
        sources = [one if isinstance(one, RowSource) else RowSource(one) for one in several]
        renderer = make_renderer(self.tokenizer, args)
        settings = [settings_for(one, args, self.positions, vocabulary=self.vocabulary) for one in sources]
        encoders = [
            make_encoder(one, self.tokenizer, renderer, own) for one, own in zip(sources, settings, strict=True)
        ]
        rows = RowStream(sources, args.mixing_weights)
        stream = ExampleStream(rows, encoders, args.dataset_num_proc)
        for name, source, encoder, report in zip(names, sources, encoders, stream.reports, strict=True):
            report.fingerprint, report.steps = source.fingerprint, encoder.new_counts()
            self.reports[name] = report
        return StreamedExamples(stream, ExampleDraw(objective_of(args), args.seed, args.jepa_ratio), args)
