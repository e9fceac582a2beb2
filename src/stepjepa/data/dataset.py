"""A data set's examples in a few flat arrays, which a data loader's workers share instead of copying objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from stepjepa.data.types import Example, Pair, Read, Segment, Span, Term

_NONE = -1  # in an array, for None
_EMPTY = Example(np.zeros(0, np.int32), ())


class ExampleStore(Sequence):
    """Examples one after the other.

    Attributes:
        arrays: all that the store is made of, by the names in `ARRAYS`.
        lengths: (E,) int64, tokens of each trunk.
    """

    # name -> (columns, dtype); each of them once more as ``.._edges`` (E + 1,) int64, where every example begins in it.
    TABLES = {
        "ids": (0, np.int32),
        "labels": (2, np.int32),
        "segment_ids": (0, np.int32),
        "segments": (7, np.int32),  # vocabulary tokens, attach, position, group, slots, slot, origin
        "pairs": (6, np.int32),  # terms of the source, terms of the target, their layers, horizon, group
        "weights": (0, np.float32),
        "terms": (3, np.int32),  # segment, token, tokens
        "coefficients": (0, np.float64),
        "view_spans": (4, np.int32),
    }
    ARRAYS = (*TABLES, *(f"{name}_edges" for name in TABLES))

    def __init__(self, arrays: Mapping[str, np.ndarray]):
        self.arrays = {name: arrays[name] for name in self.ARRAYS}
        self.lengths = np.diff(self.arrays["ids_edges"])

    @classmethod
    def of(cls, examples: Iterable[Example]) -> ExampleStore:
        """A store of these examples."""
        arrays: dict[str, np.ndarray] = {}
        tables: Iterable[Sequence[Any]] = zip(_numbers(_EMPTY), *map(_numbers, examples), strict=True)
        for (name, (columns, dtype)), parts in zip(cls.TABLES.items(), tables, strict=True):
            edges = np.cumsum(list(map(len, parts)))
            if isinstance(parts[0], np.ndarray):
                table = np.concatenate(parts, dtype=dtype)
            else:
                table = np.fromiter(chain.from_iterable(parts), dtype, int(edges[-1]))
            arrays[name] = table.reshape(-1, *([columns] * bool(columns)))
            arrays[f"{name}_edges"] = edges // (columns or 1)
        return cls(arrays)

    @classmethod
    def joined(cls, stores: Sequence[ExampleStore]) -> ExampleStore:
        """One store of the examples of several, in their order."""
        parts = [store.arrays for store in stores]
        arrays = {name: np.concatenate([part[name] for part in parts]) for name in cls.TABLES}
        for name in cls.TABLES:
            counts = [np.diff(part[f"{name}_edges"]) for part in parts]
            arrays[f"{name}_edges"] = np.cumsum(np.concatenate([[0], *counts]), dtype=np.int64)
        return cls(arrays)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Example:  # type: ignore[override]
        index = range(len(self))[index]

        def own(name: str) -> np.ndarray:
            edges = self.arrays[f"{name}_edges"]
            return self.arrays[name][edges[index] : edges[index + 1]]

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
        numbers = zip(own("terms").tolist(), own("coefficients").tolist(), strict=True)
        terms = (Term(segment, token, coefficient, tokens) for (segment, token, tokens), coefficient in numbers)

        def read(count: int, layer: int) -> Read:
            return Read(tuple(next(terms) for _ in range(count)), None if layer == _NONE else layer)

        found = [
            Pair(read(sources, layer), read(targets, target_layer), weight, *further)
            for (sources, targets, layer, target_layer, *further), weight in zip(
                pairs, own("weights").tolist(), strict=True
            )
        ]
        return Example(own("ids"), labels, tuple(segments), tuple(found), views)


def _numbers(example: Example) -> tuple[Iterable[Any], ...]:
    """What one example adds to each of the store's tables, in their order."""
    trunk, labels, segments, pairs, view_spans = example
    reads = [read for pair in pairs for read in pair[:2]]
    terms = [term for read in reads for term in read.terms]
    layers = [_NONE if read.layer is None else read.layer for read in reads]
    rows = [(len(s.ids), *s[1:-1], _NONE if s.origin is None else s.origin) for s in segments]
    counts = [
        (len(pair.source.terms), len(pair.target.terms), *layers[2 * number : 2 * number + 2], *pair[3:])
        for number, pair in enumerate(pairs)
    ]
    return (
        trunk,
        list(chain.from_iterable(labels)),
        np.concatenate([trunk[:0], *[s.ids for s in segments]]),
        list(chain.from_iterable(rows)),
        list(chain.from_iterable(counts)),
        [pair.weight for pair in pairs],
        [number for term in terms for number in (term.segment, term.token, term.tokens)],
        [term.coefficient for term in terms],
        [number for views in view_spans for span in views for number in span],
    )
