"""The two-pass form: plain padded rows for the LM loss, and one row a view for the readouts.

No mask beyond ordinary right padding is needed, so this form serves every causal architecture.

Shapes: B examples, T tokens a row, N labelled positions, P pairs, S view rows, T' tokens a view row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from stepjepa.data.examples import Example
from stepjepa.forest.collate import Batch, combination_fields, flat, targets_in_order
from stepjepa.forest.layout import all_tokens, label_indices, target_position

Row = tuple[np.ndarray, int]  # token ids, first position


@dataclass(frozen=True)
class TwoPassCollator:
    """Lays a batch out for the `two_pass` forward.

    Positions of a target are those of the forest (`forest.layout`). `separate_targets` and `shuffle_targets` as in
    `ForestCollator`.

        ===================== ========= =============================================================
        input_ids             (B, T)    int64, one example a row
        attention_mask        (B, T)    int64, 1 = token, 0 = padding
        position_ids          (B, T)    int64
        view_input_ids        (S, T')   int64, sources (trunk up to the source's end, then K predictors), then targets
        view_attention_mask   (S, T')   int64
        view_position_ids     (S, T')   int64
        label_positions       (N,)      int64, indices into the flattened (B * T) states
        label_ids             (N,)      int64
        source_readouts       (P,)      int64, indices into the flattened (S * T') states
        target_readouts       (P,)      int64, the same; with `separate_targets` into those of the rows ``target_*``
        ===================== ========= =============================================================
    """

    predictor_ids: tuple[int, ...]
    pad_token_id: int
    separate_targets: bool = False
    shuffle_targets: bool = False

    def __call__(self, examples: Sequence[Example]) -> Batch:
        """See the class."""
        batch = self._pad([(np.asarray(e.input_ids), 0) for e in examples])
        width = batch["input_ids"].shape[1]
        labels = [label_indices(example) for example in examples]
        batch["label_positions"] = flat([position + row * width for row, (position, _) in enumerate(labels)])
        batch["label_ids"] = flat([ids for _, ids in labels])
        sources, targets, source_readouts, target_readouts = self._views(examples)
        views = sources if self.separate_targets else sources + targets
        if views:
            padded = self._pad(views)
            batch |= {f"view_{name}": value for name, value in padded.items()}
            starts = np.arange(len(views)) * padded["input_ids"].shape[1]
            source_readouts = starts[: len(sources)] + source_readouts
            if not self.separate_targets:
                target_readouts = starts[len(sources) :] + target_readouts
        if self.separate_targets and targets:
            padded = self._pad(targets)
            batch |= {f"target_{name}": value for name, value in padded.items()}
            target_readouts = np.arange(len(targets)) * padded["input_ids"].shape[1] + target_readouts
        batch["source_readouts"], batch["target_readouts"] = flat([source_readouts]), flat([target_readouts])
        batch = targets_in_order(batch, [len(e.pairs) for e in examples], self.shuffle_targets)
        starts = np.arange(len(examples)) * width
        return batch | combination_fields(examples, starts.tolist(), self.shuffle_targets)

    def _views(self, examples: Sequence[Example]) -> tuple[list[Row], list[Row], np.ndarray, np.ndarray]:
        """Rows of all sources and all targets, and where each is read, counted from the start of its row."""
        count = len(self.predictor_ids)
        sources: list[Row] = []
        targets: list[Row] = []
        readouts: list[tuple[int, int]] = []
        for example in examples:
            tokens, length = all_tokens(example, self.predictor_ids), len(example.input_ids)
            for pair in example.pairs:
                if pair.source_start >= length:
                    source = tokens[pair.source_start : pair.source_end + 1]
                    read = pair.source_readout - pair.source_start
                elif count:
                    source = np.concatenate([tokens[: pair.source_end + 1], np.array(self.predictor_ids, np.int32)])
                    read = len(source) - 1
                else:
                    source = tokens[: max(pair.source_end, pair.source_readout) + 1]
                    read = pair.source_readout
                sources.append((source, 0))
                position = target_position(example, pair.target_start, count)
                targets.append((tokens[pair.target_start : pair.target_end], position))
                readouts.append((read, pair.target_readout - pair.target_start))
        both = np.array(readouts, dtype=np.int64).reshape(-1, 2)
        return sources, targets, both[:, 0], both[:, 1]

    def _pad(self, rows: Sequence[Row]) -> Batch:
        width = max(len(ids) for ids, _ in rows)
        shape = (len(rows), width)
        input_ids = np.full(shape, self.pad_token_id, np.int64)
        mask = np.zeros(shape, np.int64)
        positions = np.zeros(shape, np.int64)
        for row, (ids, first) in enumerate(rows):
            input_ids[row, : len(ids)] = ids
            mask[row, : len(ids)] = 1
            positions[row, : len(ids)] = np.arange(first, first + len(ids))
        names = ("input_ids", "attention_mask", "position_ids")
        return {name: torch.from_numpy(value) for name, value in zip(names, (input_ids, mask, positions), strict=True)}
