"""Examples in a few flat arrays, so that a data loader's workers share the memory instead of copying objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from stepjepa.data.types import Example, Pair, Read, Segment, Span, Term

__all__ = ["Example", "ExampleStore"]

_NONE = -1  # in an array, for None


class ExampleStore(Sequence):
    """Examples one after the other.

    Attributes:
        lengths: (E,) int64, tokens of each trunk.
    """

    # name -> (columns, dtype); each of them once more as ``.._edges`` (E + 1,) int64, where every example begins in it.
    TABLES = {
        "ids": (0, np.int32),
        "labels": (2, np.int32),
        "segment_ids": (0, np.int32),
        "segments": (7, np.int32),  # vocabulary tokens, attach, position, group, slots, slot, origin
        "pairs": (5, np.int32),  # terms of the source, terms of the target, their layers, horizon
        "weights": (0, np.float32),
        "terms": (2, np.int32),  # segment, token
        "coefficients": (0, np.float64),
        "view_spans": (4, np.int32),
    }
    ARRAYS = (*TABLES, *(f"{name}_edges" for name in TABLES))

    def __init__(self, examples: Sequence[Example]):
        rows = [_tables(example) for example in examples]
        arrays: dict[str, np.ndarray] = {}
        for name, (columns, dtype) in self.TABLES.items():
            parts = [np.asarray(row[name], dtype).reshape(-1, *([columns] * bool(columns))) for row in rows]
            arrays[name] = np.concatenate(parts) if parts else np.zeros((0, columns) if columns else 0, dtype)
            arrays[f"{name}_edges"] = _edges([len(part) for part in parts])
        self._set(arrays)

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
        arrays = {name: np.concatenate([part[name] for part in parts]) for name in cls.TABLES}
        for name in cls.TABLES:
            arrays[f"{name}_edges"] = _edges(np.concatenate([np.diff(part[f"{name}_edges"]) for part in parts]))
        return cls.of_arrays(arrays)

    def _set(self, arrays: Mapping[str, np.ndarray]) -> None:
        self._arrays = {name: arrays[name] for name in self.ARRAYS}
        self.lengths = np.diff(self._arrays["ids_edges"])

    def arrays(self) -> dict[str, np.ndarray]:
        """All that the store is made of, by the names in `ARRAYS`."""
        return dict(self._arrays)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Example:  # type: ignore[override]
        index = range(len(self))[index]

        def own(name: str) -> np.ndarray:
            edges = self._arrays[f"{name}_edges"]
            return self._arrays[name][edges[index] : edges[index + 1]]

        labels = tuple(Span(*span) for span in own("labels").tolist())
        views = tuple((Span(a, b), Span(c, d)) for a, b, c, d in own("view_spans").tolist())
        pairs = own("pairs").tolist()
        if not pairs:
            return Example(own("ids"), labels, view_spans=views)
        segments, start, tokens = [], 0, own("segment_ids")
        for length, attach, position, group, slots, slot, origin in own("segments").tolist():
            ids = tokens[start : start + length]
            segments.append(Segment(ids, attach, position, group, slots, slot, None if origin == _NONE else origin))
            start += length
        terms = zip(own("terms").tolist(), own("coefficients").tolist(), strict=True)
        read = (Term(segment, token, coefficient) for (segment, token), coefficient in terms)
        found = []
        for (sources, targets, layer, target_layer, horizon), weight in zip(
            pairs, own("weights").tolist(), strict=True
        ):
            source, target = (
                Read(tuple(next(read) for _ in range(count)), None if at == _NONE else at)
                for count, at in ((sources, layer), (targets, target_layer))
            )
            found.append(Pair(source, target, weight, horizon))
        return Example(own("ids"), labels, tuple(segments), tuple(found), views)

    @property
    def num_pairs(self) -> int:
        """Pairs in all examples, those included that are drawn every epoch, as `Example.view_pairs` counts them."""
        return len(self._arrays["pairs"]) + len(self._arrays["view_spans"])


def _tables(example: Example) -> dict[str, Any]:
    """The rows of one example in each of the store's tables."""
    pairs = example.pairs
    terms = [term for pair in pairs for read in pair[:2] for term in read.terms]
    return {
        "ids": example.trunk,
        "labels": example.labels,
        "segment_ids": np.concatenate([s.ids for s in example.segments]) if example.segments else (),
        "segments": [
            (len(s.ids), s.attach, s.position, s.group, s.slots, s.slot, _NONE if s.origin is None else s.origin)
            for s in example.segments
        ],
        "pairs": [(len(pair.source.terms), len(pair.target.terms), *_layers(pair), pair.horizon) for pair in pairs],
        "weights": [pair.weight for pair in pairs],
        "terms": [term[:2] for term in terms],
        "coefficients": [term.coefficient for term in terms],
        "view_spans": [(*source, *target) for source, target in example.view_spans],
    }


def _layers(pair: Pair) -> Iterable[int]:
    return (_NONE if read.layer is None else read.layer for read in pair[:2])


def _edges(counts: Any) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64)
