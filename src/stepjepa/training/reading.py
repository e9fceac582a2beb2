"""From whatever a user gives as a data set to the examples that training draws."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from stepjepa.data.dataset import ExampleStore
from stepjepa.data.encode import make_encoder
from stepjepa.data.report import DataReport
from stepjepa.data.sources import RowSource, texts_of
from stepjepa.data.steps import StepSplitter, make_splitter
from stepjepa.data.streaming import ExampleStream, RowStream
from stepjepa.data.types import Example
from stepjepa.errors import ConfigError
from stepjepa.modeling.load import is_preset, load_tokenizer
from stepjepa.objectives.base import objective_of
from stepjepa.training.batches import DrawnExamples, Mixture
from stepjepa.training.config import JEPAConfig
from stepjepa.training.encoding import chat_tokenizer, encode, make_renderer, pair_columns, settings_for
from stepjepa.training.streaming import StreamedExamples


class Sources(NamedTuple):
    """Several data sets that are trained on together."""

    sources: Sequence[RowSource]


def tokenizer_for(name: str, train_dataset: Any, args: JEPAConfig) -> tuple[Any, Any]:
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
    return load_tokenizer(name, texts_of(sources, pair_columns(args))), train_dataset


class JoinedStores(Sequence):
    """The examples of several stores, one behind the other, without a copy of those that are memory-mapped."""

    def __init__(self, stores: Sequence[ExampleStore]):
        self.stores = stores
        self.lengths = np.concatenate([store.lengths for store in stores])
        self._ends = list(accumulate(map(len, stores)))

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> Example:  # type: ignore[override]
        index = range(len(self))[index]
        which = bisect_right(self._ends, index)
        return self.stores[which][index - (self._ends[which] - len(self.stores[which]))]


class ExampleReader:
    """Reads data sets for one run.

    Args:
        tokenizer: the run's tokenizer.
        args: its configuration.
        positions: positions that the model has, None for rotary ones.

    Attributes:
        reports: a report on every data set that was read, by name.
    """

    def __init__(self, tokenizer: Any, args: JEPAConfig, positions: int | None):
        self.tokenizer, self.args, self.positions = chat_tokenizer(tokenizer, args), args, positions
        self.reports: dict[str, DataReport] = {}

    @property
    def pad_id(self) -> int:
        """Fills rows, and stands in for examples that are none."""
        pad = self.tokenizer.pad_token_id
        return (self.tokenizer.eos_token_id or 0) if pad is None else pad

    def read_training(self, source: Any) -> DrawnExamples | StreamedExamples | None:
        """What is trained on: `Sources`, or anything that `read` takes.

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
        if not args.streaming and any(type(one).__name__ == "IterableDataset" for one in several):
            raise ConfigError(
                "the training data is an IterableDataset, which is read while the model trains: set streaming=True and "
                "max_steps"
            )
        if args.streaming:
            return self._stream([self._rows(one) for one in several])
        if len(several) == 1:
            return self.read(several[0], "train", args.jepa_ratio)
        stores = []
        for number, one in enumerate(several, 1):
            store, self.reports[f"train_{number}"] = encode(one, self.tokenizer, args, self.positions)
            stores.append(store)
        mixture = (
            Mixture.weighted([len(store) for store in stores], weights, args.stopping_strategy) if weights else None
        )
        return DrawnExamples(JoinedStores(stores), objective_of(args), args.seed, args.jepa_ratio, self.pad_id, mixture)

    def read_evaluation(self, source: Any) -> Any:
        """Examples to evaluate on; a plain dict holds several data sets by name, as `transformers.Trainer` takes them."""
        if type(source) is dict:
            return {name: self.read(one, f"eval_{name}") for name, one in source.items()}
        return self.read(source, "eval")

    def read(self, source: Any, name: str, ratio: float = 1.0) -> DrawnExamples | None:
        """Examples of `source` (what `RowSource` takes, an `ExampleStore`, or None), with a share `ratio` of the pairs.

        Raises:
            DataError: as `encode`.
        """
        if source is None or isinstance(source, DrawnExamples):
            return source
        store = source
        if not isinstance(source, ExampleStore):
            splitter = self._settled if name.startswith("eval") else None
            store, self.reports[name] = encode(source, self.tokenizer, self.args, self.positions, splitter=splitter)
        return DrawnExamples(store, objective_of(self.args), self.args.seed, ratio, self.pad_id)

    @property
    def _settled(self) -> StepSplitter | None:
        """The splitter that the training data were settled on, so that other rows are read like them; None where several
        data sets may have settled on several."""
        train = self.reports.get("train")
        if train is None or not train.steps.looked or self.args.step_splitter != "auto":
            return None
        return make_splitter(train.steps.splitter, self.args.step_separator)

    def _rows(self, source: Any) -> RowSource:
        if isinstance(source, ExampleStore):
            raise ConfigError("streaming reads rows, and the training data is an ExampleStore; leave streaming out")
        return source if isinstance(source, RowSource) else RowSource(source)

    def _stream(self, sources: Sequence[RowSource]) -> StreamedExamples:
        args = self.args
        encoders = []
        for source in sources:
            settings = settings_for(source, args, self.positions)
            encoders.append(make_encoder(source, self.tokenizer, make_renderer(self.tokenizer, args), settings))
        rows = RowStream(sources, args.mixing_weights, args.process_index, args.world_size)
        stream = ExampleStream(rows, encoders, args.dataset_num_proc)
        for number, (source, encoder, report) in enumerate(zip(sources, encoders, stream.reports, strict=True), 1):
            report.fingerprint, report.steps = source.fingerprint, encoder.new_counts()
            self.reports["train" if len(sources) == 1 else f"train_{number}"] = report
        return StreamedExamples(stream, args, args.seed, args.jepa_ratio, args.process_index, args.world_size)
