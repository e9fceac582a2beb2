"""The data sets of a run as examples: one of them or several, stored or streamed, to train or to evaluate on. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from stepjepa.config.option import Names
from stepjepa.data.chat import ChatRenderer, with_template
from stepjepa.data.dataset import cache_key, load_cached, save_cached
from stepjepa.data.encode import EncodeOptions, encode_dataset, make_encoder
from stepjepa.data.report import DataReport
from stepjepa.data.sources import RowSource
from stepjepa.data.steps import StepRules, StepSplitter, make_splitter, rules_for
from stepjepa.data.streaming import ExampleStream, RowStream, StreamStart, Window
from stepjepa.data.types import ExampleStore
from stepjepa.errors import ConfigError, DataError
from stepjepa.objectives.base import find_objective, objective_of
from stepjepa.training.batches import DrawnExamples, ExampleDraw, Mixture, StreamedExamples
from stepjepa.training.options import JEPAOptions, TrainerOptions

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from stepjepa.training.config import JEPAConfig

_NAME = Names(JEPAOptions, TrainerOptions)


def encode_options(options: JEPAOptions, positions: int | None = None, rules: StepRules | None = None) -> EncodeOptions:
    """How rows become examples under `options`.

    Args:
        positions: positions that the model has, None for rotary ones.
        rules: how steps are found, where that was settled on a data set; without them ``auto`` takes a row's own steps and
            decides for every other answer by itself.
    """
    objective = objective_of(options)
    return EncodeOptions.of(
        options,
        objective=objective if objective.makes_pairs else None,
        rules=rules or _step_rules((), options, make_splitter("auto", options.step_separator)),
        max_positions=positions,
    )


def settings_for(
    rows: RowSource, options: JEPAOptions, positions: int | None = None, splitter: StepSplitter | None = None
) -> EncodeOptions:
    """How the rows of one data set become examples; with ``step_splitter=auto`` its first rows settle the splitter.

    Args:
        positions: positions that the model has, None for rotary ones.
        splitter: the one that ``auto`` was settled on before, on the data set that this one is read like.
    """
    settings = encode_options(options, positions, _step_rules(rows, options, splitter))
    if positions is None:
        return settings
    inserted = options.predictors or 0 if options.forward == "inline" and settings.objective else 0
    return replace(settings, max_length=min(settings.max_length, positions - inserted))


def _step_rules(
    rows: Iterable[tuple[int, Any]], options: JEPAOptions, splitter: StepSplitter | None = None
) -> StepRules:
    if not find_objective(options.objective)(options).needs_steps:
        splitter = splitter or make_splitter("separator")  # nobody asks for steps
    return rules_for(
        rows, options.step_splitter, options.step_separator, options.steps_column, options.columns, splitter
    )


def chat_tokenizer(tokenizer: PreTrainedTokenizerBase, options: JEPAOptions) -> PreTrainedTokenizerBase:
    """The tokenizer with the template that the options ask for, see `data.chat.with_template`."""
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
    split: str = "train",
    splitter: StepSplitter | None = None,
) -> tuple[ExampleStore, DataReport]:
    """Examples of a data set under the options of a run.

    Args:
        positions, splitter: see `settings_for`.

    Raises:
        DataError: nothing that can be trained on, or no pair at all for a JEPA objective.
    """
    rows = source if isinstance(source, RowSource) else RowSource(source, split)
    settings = settings_for(rows, options, positions, splitter)
    tokenizer = chat_tokenizer(tokenizer, options)
    key = cache_key(rows, tokenizer, settings) if options.data_cache else None
    cached = load_cached(options.data_cache or "", key) if key else None
    if cached is not None:
        return cached  # only what has pairs was stored
    renderer = make_renderer(tokenizer, options)
    store, report = encode_dataset(rows, tokenizer, renderer, settings, options.dataset_num_proc, options.engine)
    if settings.objective and not report.pairs:
        raise without_pairs(options, report, "no example has")
    if key:
        save_cached(options.data_cache or "", key, store, report)
    return store, report


def without_pairs(options: JEPAOptions, report: DataReport, what: str) -> DataError:
    """The error for data of which `what` (``no example has``) a pair."""
    plain = f"--{_NAME.objective} regular"
    reasons = "; ".join(line.strip() for line in report.lines() if "without a pair" in line)
    if "horizon_beyond_answer" in report.examples_without_pairs:
        horizons = ", ".join(map(str, options.horizons))
        advice = f"no answer has a step that far on: lower the horizon (now {horizons})"
    elif "view_refused" in report.examples_without_pairs:
        advice = f"use --{_NAME.views} in_context, or a chat template that can write a message alone"
    elif report.first_without_target:
        advice = f"name a column that holds text with --{_NAME.jepa_target_column}"
    elif find_objective(options.objective)(options).needs_steps:
        advice = f"check --{_NAME.step_splitter} and --{_NAME.step_separator}, or train with {plain}"
    else:
        advice = f"raise --{_NAME.max_length}, or train with {plain}"
    return DataError(f"{report.source}: {what} a pair for {options.objective} ({reasons}); {advice}")


class Sources(NamedTuple):
    """Several data sets that are trained on together."""

    sources: Sequence[object]


class PairedStream(ExampleStream):
    """A stream that refuses data without a single pair as soon as one window of it was read."""

    def __init__(self, rows: RowStream, encoders: Sequence[Any], options: JEPAOptions):
        super().__init__(rows, encoders, options.dataset_num_proc, options.engine)
        self.options = options

    def windows(self, size: int, start: StreamStart | None = None, step: int = 1) -> Iterator[Window]:
        """See `ExampleStream.windows`."""
        for begin, window in super().windows(size, start, step):
            if objective_of(self.options).makes_pairs and not any(report.pairs for report in self.reports):
                seen = max(self.reports, key=lambda report: report.examples)
                raise without_pairs(self.options, seen, f"none of the first {seen.examples} examples has")
            yield begin, window


class ExampleReader:
    """Reads the data sets of one run.

    Args:
        tokenizer: the run's tokenizer.
        args: its configuration.
        positions: positions that the model has, None for rotary ones.

    Attributes:
        reports: what was read, by the name of the data set: ``train`` (``train_1``, ... of several), ``eval``.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, args: JEPAConfig, positions: int | None):
        self.tokenizer, self.args, self.positions = tokenizer, args, positions
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
        train, splitter = self.reports.get("train"), None
        if train is not None and train.steps.looked and self.args.step_splitter == "auto":
            splitter = make_splitter(train.steps.splitter, self.args.step_separator)  # read like the training data
        store = self._store(source, name, splitter)
        return DrawnExamples(store, objective_of(self.args), self.args.seed, filler_id=self.pad_id)

    def _store(self, source: object, name: str, splitter: StepSplitter | None = None) -> ExampleStore:
        if isinstance(source, ExampleStore):
            return source
        store, self.reports[name] = encode(source, self.tokenizer, self.args, self.positions, splitter=splitter)
        return store

    def _stream(self, several: Sequence[Any], names: Sequence[str]) -> StreamedExamples:
        args = self.args
        if any(isinstance(one, ExampleStore) for one in several):
            raise ConfigError("streaming reads rows, and the training data is an ExampleStore; leave streaming out")
        sources = [one if isinstance(one, RowSource) else RowSource(one) for one in several]
        renderer = make_renderer(self.tokenizer, args)
        encoders = [
            make_encoder(one, self.tokenizer, renderer, settings_for(one, args, self.positions)) for one in sources
        ]
        stream = PairedStream(RowStream(sources, args.mixing_weights), encoders, args)
        for name, source, encoder, report in zip(names, sources, encoders, stream.reports, strict=True):
            report.fingerprint, report.steps = source.fingerprint, encoder.new_counts()
            self.reports[name] = report
        return StreamedExamples(stream, ExampleDraw(objective_of(args), args.seed, args.jepa_ratio), args)
