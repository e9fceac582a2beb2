"""A data set's examples in one flat array, which a data loader's workers share instead of copying objects."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence

import numpy as np

from stepjepa.data.types import Example


class ExampleStore(Sequence[Example]):
    """Examples one after the other, each as bytes.

    Attributes:
        records: (bytes,) uint8, all examples.
        edges: (E + 1,) int64, where each begins in them.
        lengths: (E,) int64, tokens of each trunk.
    """

    def __init__(self, records: np.ndarray, edges: np.ndarray, lengths: np.ndarray):
        self.records, self.edges, self.lengths = records, edges, lengths

    @classmethod
    def of(cls, examples: Iterable[Example]) -> ExampleStore:
        """A store of these examples."""
        records: list[bytes] = []
        lengths: list[int] = []
        for example in examples:
            record = pickle.dumps(example, pickle.HIGHEST_PROTOCOL)
            records.append(record)
            lengths.append(len(example.trunk))
        sizes = [0, *map(len, records)]
        edges = np.cumsum(sizes, dtype=np.int64)
        joined = b"".join(records)
        return cls(np.frombuffer(joined, np.uint8), edges, np.array(lengths, np.int64))

    @classmethod
    def joined(cls, stores: Sequence[ExampleStore]) -> ExampleStore:
        """One store of the examples of several, in their order."""
        records = np.concatenate([store.records for store in stores])
        sizes = [np.diff(store.edges) for store in stores]
        edges = np.cumsum(np.concatenate([[0], *sizes]), dtype=np.int64)
        return cls(records, edges, np.concatenate([store.lengths for store in stores]))

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Example:  # type: ignore[override]
        number = range(len(self))[index]
        record = self.records[self.edges[number] : self.edges[number + 1]]
        example: Example = pickle.loads(record.data)
        return example
