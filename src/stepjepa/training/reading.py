"""The data sets of one run as examples: one of them or several, stored or streamed, to train or to evaluate on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from torch.utils.data import ConcatDataset

from stepjepa.data.dataset import ExampleStore
from stepjepa.data.encode import make_encoder
from stepjepa.data.report import DataReport
from stepjepa.data.sources import RowSource, texts_of
from stepjepa.data.steps import StepSplitter, make_splitter
from stepjepa.data.streaming import ExampleStream, RowStream, Streamed, StreamStart
from stepjepa.errors import ConfigError
from stepjepa.modeling.load import is_preset, load_tokenizer
from stepjepa.objectives.base import objective_of
from stepjepa.training.batches import DrawnExamples, ExampleDraw, Mixture, StreamedExamples
from stepjepa.training.encoding import encode, make_renderer, pair_columns, settings_for, without_pairs
from stepjepa.training.options import JEPAOptions

if TYPE_CHECKING:
    from stepjepa.training.config import JEPAConfig


class Sources(NamedTuple):
    """Several data sets that are trained on together."""

    sources: Sequence[Any]


class PairedStream(ExampleStream):
    """A stream that refuses data without a single pair as soon as one window of it was read."""

    def __init__(self, rows: RowStream, encoders: Sequence[Any], options: JEPAOptions):
        super().__init__(rows, encoders, options.dataset_num_proc)
        self.options = options

    def windows(self, size: int, start: StreamStart | None = None) -> Iterator[tuple[StreamStart, list[Streamed]]]:
        """See `ExampleStream.windows`."""
        for begin, window in super().windows(size, start):
            if self.options.uses_pairs and not any(report.pairs for report in self.reports):
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

    def __init__(self, tokenizer: Any, args: JEPAConfig, positions: int | None):
        self.tokenizer, self.args, self.positions = tokenizer, args, positions
        self.pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
        self.reports: dict[str, DataReport] = {}

    def read_training(self, source: Any) -> Any:
        """Examples to train on: `DrawnExamples`, with ``streaming`` `StreamedExamples`; None of None.

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
                f"mixing_weights has {len(weights)} numbers for {len(several)} data sets; give one for each"
            )
        names = ["train"] if len(several) == 1 else [f"train_{number}" for number in range(1, len(several) + 1)]
        if args.streaming:
            return self._stream(several, names)
        if any(type(one).__name__ == "IterableDataset" for one in several):
            raise ConfigError(
                "the training data is an IterableDataset, which is read while the model trains: set streaming=True and "
                "max_steps"
            )
        stores = [self._store(one, name) for one, name in zip(several, names, strict=True)]
        store: Any = stores[0] if len(stores) == 1 else ConcatDataset(stores)  # type: ignore[arg-type]
        sizes = [len(one) for one in stores]
        mixture = Mixture.weighted(sizes, weights, args.stopping_strategy) if weights else None
        return DrawnExamples(store, objective_of(args), args.seed, args.jepa_ratio, self.pad_id, mixture)

    def read_evaluation(self, source: Any, name: str = "eval") -> Any:
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

    def _store(self, source: Any, name: str, splitter: StepSplitter | None = None) -> ExampleStore:
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
        rows = RowStream(sources, args.mixing_weights, args.process_index, args.world_size)
        stream = PairedStream(rows, encoders, args)
        for name, source, encoder, report in zip(names, sources, encoders, stream.reports, strict=True):
            report.fingerprint, report.steps = source.fingerprint, encoder.new_counts()
            self.reports[name] = report
        return StreamedExamples(stream, ExampleDraw(objective_of(args), args.seed, args.jepa_ratio), args)


def tokenizer_for(name: str, train_dataset: Any, options: JEPAOptions) -> tuple[Any, Any]:
    """The tokenizer that comes with a model; a preset's is trained on the training data.

    Returns:
        It, and the training data, as a list if they could be read but once.

    Raises:
        ConfigError: a preset without rows to train a tokenizer on, or a tokenizer that cannot be loaded.
    """
    if not is_preset(name):
        return load_tokenizer(name), train_dataset
    if train_dataset is None or isinstance(train_dataset, (DrawnExamples, StreamedExamples, ExampleStore)):
        raise ConfigError(
            f"the tokenizer of {name} is trained on rows: give them as train_dataset, or processing_class"
        )
    if isinstance(train_dataset, Iterator):
        train_dataset = list(train_dataset)
    sources = train_dataset.sources if isinstance(train_dataset, Sources) else [train_dataset]
    return load_tokenizer(name, texts_of(sources, pair_columns(options))), train_dataset
