"""The examples of a data set in one flat array, which the workers of a data loader share instead of copying objects."""

from __future__ import annotations

import pickle
from collections.abc import Sequence

import numpy as np

from stepjepa.data.types import Example


class ExampleStore(Sequence[Example]):
    """Examples one after the other, each pickled.

    Attributes:
        records: (bytes,) uint8, all examples.
        edges: (E + 1,) int64, the start of each example in `records`, and the end of the last.
        lengths: (E,) int64, tokens of each trunk.
    """

    def __init__(self, records: np.ndarray, edges: np.ndarray, lengths: np.ndarray):
        self.records, self.edges, self.lengths = records, edges, lengths

    @classmethod
    def of(cls, examples: Sequence[Example]) -> ExampleStore:
        """Store these examples."""
        # Forked workers share a page of memory until one writes to it. Reference counts would write to every page of a list
        # of objects, and so copy it once per worker.
        records = [pickle.dumps(example, pickle.HIGHEST_PROTOCOL) for example in examples]
        lengths = [len(example.trunk) for example in examples]
        sizes = [0, *map(len, records)]
        edges = np.cumsum(sizes, dtype=np.int64)
        joined = b"".join(records)
        return cls(np.frombuffer(joined, np.uint8), edges, np.array(lengths, np.int64))

    @classmethod
    def joined(cls, stores: Sequence[ExampleStore]) -> ExampleStore:
        """Join several stores, in their order."""
        records = np.concatenate([store.records for store in stores])
        sizes = [np.diff(store.edges) for store in stores]
        edges = np.cumsum(np.concatenate([[0], *sizes]), dtype=np.int64)
        return cls(records, edges, np.concatenate([store.lengths for store in stores]))

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Example:  # type: ignore[override]
        number = range(len(self))[index]
        # Safe to unpickle: these bytes never come from a file.
        record = self.records[self.edges[number] : self.edges[number + 1]]
        example: Example = pickle.loads(record.data)
        return example
