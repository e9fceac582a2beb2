"""Tokenised examples: what the forest is built from, kept in a few flat arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from stepjepa.data.tokens import TokenSpan
from stepjepa.data.views import Pair

NO_VIEWS = np.zeros(0, np.int32)


class Example(NamedTuple):
    """One tokenised chat or text.

    Attributes:
        input_ids: (T,) int32, the trunk: the chat as the template writes it.
        label_spans: token spans that the LM loss is computed on (`data.labels`).
        pairs: source/target pairs; empty trains as plain language modelling.
        views: int32, tokens of the views that are encoded apart from the trunk, one view after the other. Pairs address
            them by T, T + 1, ...; a negative entry ``-1 - j`` stands for predictor j in the order of the run.
        tube: linear combinations of trunk states in place of pairs (`forest.tube.Tube`), drawn with the example.
    """

    input_ids: np.ndarray
    label_spans: tuple[TokenSpan, ...]
    pairs: tuple[Pair, ...] = ()
    views: np.ndarray = NO_VIEWS
    tube: Any = None


class ExampleStore(Sequence):
    """Examples in flat arrays, so that a data loader's workers share the memory instead of copying objects."""

    ARRAYS = ("ids", "views", "spans", "pairs", "id_edges", "view_edges", "span_edges", "pair_edges")

    def __init__(self, examples: Sequence[Example]):
        ids = np.concatenate([e.input_ids for e in examples]) if examples else np.zeros(0, np.int32)
        self._set(
            {
                "ids": ids,
                "views": np.concatenate([e.views for e in examples]) if examples else NO_VIEWS,
                "spans": np.array([s for e in examples for s in e.label_spans], dtype=np.int32).reshape(-1, 2),
                "pairs": np.array([p for e in examples for p in e.pairs], np.int32).reshape(-1, len(Pair._fields)),
                "id_edges": _edges([len(example.input_ids) for example in examples]),
                "view_edges": _edges([len(example.views) for example in examples]),
                "span_edges": _edges([len(example.label_spans) for example in examples]),
                "pair_edges": _edges([len(example.pairs) for example in examples]),
            }
        )

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, np.ndarray]) -> ExampleStore:
        """A store on what `arrays` gave, of the same shapes, also memory-mapped."""
        store = cls.__new__(cls)
        store._set(arrays)
        return store

    @classmethod
    def joined(cls, stores: Sequence[ExampleStore]) -> ExampleStore:
        """One store of the examples of several, in their order."""
        parts = [store.arrays() for store in stores]
        arrays = {name: np.concatenate([part[name] for part in parts]) for name in cls.ARRAYS[:4]}
        for name in cls.ARRAYS[4:]:
            arrays[name] = _edges(np.concatenate([np.diff(part[name]) for part in parts]))
        return cls.of_arrays(arrays)

    def _set(self, arrays: Mapping[str, np.ndarray]) -> None:
        self._ids, self._views, self._spans, self._pairs = (arrays[name] for name in self.ARRAYS[:4])
        self._id_edges, self._view_edges, self._span_edges, self._pair_edges = (arrays[n] for n in self.ARRAYS[4:])
        self.lengths = np.diff(self._id_edges)

    def arrays(self) -> dict[str, np.ndarray]:
        """All that the store is made of, by the names in `ARRAYS`, E examples one after the other.

        ``ids`` (T,) and ``views`` (V,) tokens, ``spans`` (S, 2), ``pairs`` (P, 6), all int32; ``..._edges`` (E + 1,) int64,
        where each example begins in them.
        """
        return {name: getattr(self, f"_{name}") for name in self.ARRAYS}

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Example:  # type: ignore[override]
        index = range(len(self))[index]
        spans = self._spans[self._span_edges[index] : self._span_edges[index + 1]].tolist()
        pairs = self._pairs[self._pair_edges[index] : self._pair_edges[index + 1]].tolist()
        ids = self._ids[self._id_edges[index] : self._id_edges[index + 1]]
        views = self._views[self._view_edges[index] : self._view_edges[index + 1]]
        return Example(ids, tuple((a, b) for a, b in spans), tuple(Pair(*pair) for pair in pairs), views)

    @property
    def num_pairs(self) -> int:
        """Pairs in all examples."""
        return len(self._pairs)


def _edges(counts: Any) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64)
