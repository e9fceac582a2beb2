"""The two-pass form: plain padded rows for the LM loss, and one row a segment for the states of the views.

No mask beyond ordinary right padding is needed, so this form serves every causal architecture.

Shapes: B examples, T tokens a row, S view rows, T' tokens a view row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from stepjepa.data.types import ISOLATED, TRUNK, Batch, Example, Rows
from stepjepa.forest.collate import flat, pair_order, pair_weights, state_reads
from stepjepa.forest.layout import ABSENT, label_indices, read_terms, target_segments

Row = tuple[np.ndarray, int]  # token ids, first position


@dataclass(frozen=True)
class TwoPassCollator:
    """Lays a batch out for the `two_pass` forward.

    `rows` are the chats, (B, T); `views` (S, T') has one row a segment: what it sees of the trunk, then its own tokens.
    Those of the sources come first. `predictor_ids`, `separate_targets` and `shuffle_targets` as in `ForestCollator`.
    """

    predictor_ids: tuple[int, ...]
    pad_token_id: int
    separate_targets: bool = False
    shuffle_targets: bool = False

    def __call__(self, examples: Sequence[Example]) -> Batch:
        """See the class."""
        rows = self._pad([(np.asarray(example.trunk), 0) for example in examples])
        width = rows.input_ids.shape[1]
        labels = [label_indices(example) for example in examples]
        sources = [(i, n) for i, e in enumerate(examples) for n in _source_segments(e)]
        targets = [(i, n) for i, e in enumerate(examples) for n in target_segments(e)]
        views = sources if self.separate_targets else sources + targets
        starts = [[row * width, *([ABSENT] * len(e.segments))] for row, e in enumerate(examples)]
        view_rows = self._rows(examples, views, starts, rows.input_ids.numel())
        target_starts, target_rows = starts, None
        if self.separate_targets:
            target_starts = [[ABSENT] * (1 + len(e.segments)) for e in examples]
            target_rows = self._rows(examples, targets, target_starts, 0)
        order = pair_order([len(example.pairs) for example in examples], self.shuffle_targets)
        pairs = [pair for example in examples for pair in example.pairs]
        source_terms = [
            read_terms([pair.source for pair in e.pairs], begin) for e, begin in zip(examples, starts, strict=True)
        ]
        target_terms = [
            read_terms([pair.target for pair in e.pairs], begin)
            for e, begin in zip(examples, target_starts, strict=True)
        ]
        nought = [0] * len(examples)
        return Batch(
            rows,
            flat([position + row * width for row, (position, _) in enumerate(labels)]),
            flat([ids for _, ids in labels]),
            state_reads(source_terms, nought, [pair.source for pair in pairs], order, False),
            state_reads(target_terms, nought, [pair.target for pair in pairs], order, True),
            pair_weights(examples, order),
            view_rows,
            len(sources),
            target_rows,
        )

    def _rows(
        self, examples: Sequence[Example], views: Sequence[tuple[int, int]], starts: list[list[int]], first: int
    ) -> Rows | None:
        """The rows of segments, given as (example, number), None for none; `starts` gets where their own tokens begin,
        counted from `first`."""
        if not views:
            return None
        padded = self._pad([segment_row(examples[i], number, self.predictor_ids) for i, number in views])
        for row, (i, number) in enumerate(views):
            attach = examples[i].segments[number - 1].attach
            starts[i][number] = first + row * padded.input_ids.shape[1] + attach + 1
        return padded

    def _pad(self, rows: Sequence[Row]) -> Rows:
        width = max(len(ids) for ids, _ in rows)
        shape = (len(rows), width)
        input_ids = np.full(shape, self.pad_token_id, np.int64)
        mask = np.zeros(shape, np.int64)
        positions = np.zeros(shape, np.int64)
        for row, (ids, first) in enumerate(rows):
            input_ids[row, : len(ids)] = ids
            mask[row, : len(ids)] = 1
            positions[row, : len(ids)] = np.arange(first, first + len(ids))
        return Rows(*map(torch.from_numpy, (input_ids, positions, mask)))


def segment_row(example: Example, number: int, predictor_ids: Sequence[int]) -> Row:
    """A segment with what it sees of the trunk in front: ids (T',), and the first position."""
    segment = example.segments[number - 1]
    ids = np.concatenate([np.asarray(example.trunk[: segment.attach + 1], np.int32), segment.tokens(predictor_ids)])
    return ids, segment.position if segment.attach == ISOLATED else 0


def _source_segments(example: Example) -> list[int]:
    """Numbers of the segments that only sources are read from, ascending."""
    numbers = {term.segment for pair in example.pairs for term in pair.source.terms} - {TRUNK}
    return sorted(numbers.difference(target_segments(example)))
