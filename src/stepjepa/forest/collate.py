"""Collation: a batch of examples to integer tensors, in the data loader's workers.

Nothing but integers leaves the worker; masks are built from them on the batch's device.

Shapes: B examples, R rows, T tokens a row, N labelled positions, P pairs, S view rows (two-pass form).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from stepjepa.data.examples import Example
from stepjepa.forest.layout import Forest, build_forest, label_indices
from stepjepa.forest.packing import DEFAULT_ATTENTION_LENGTH, plan_rows, rows_cost
from stepjepa.forest.segments import attention_costs
from stepjepa.forest.visibility import ISOLATED

Batch = dict[str, torch.Tensor]
PADDING = -1


@dataclass(frozen=True)
class ForestCollator:
    """Packs the forests of a batch into rows (the `packed` forward).

    Attributes:
        predictor_ids: ids of the K predictor tokens in the order in which they stand behind a source.
        pad_token_id: fills the rows; padding sees itself only and nothing sees it.
        pad_to_multiple_of: row lengths are rounded up to this.
        segmented: the model can attend by segments (`forest.segments`), so a batch for which that is cheaper comes as
            one row without padding, with `forests`.
        attention_length, max_row_length: see `packing.plan_rows`.

    Called with a list of examples it returns

    ================== ========= ==============================================================
    input_ids          (R, T)    int64
    position_ids       (R, T)    int64
    example            (R, T)    int64, which example of the batch; -1 for padding
    segment            (R, T)    int64, 0 = trunk
    order              (R, T)    int64, index inside the segment
    attach             (R, T)    int64, see `visibility.visible`
    label_positions    (N,)      int64, indices into the flattened (R * T) states
    label_ids          (N,)      int64, the token that each of these must predict
    source_readouts    (P,)      int64, indices into the flattened states
    target_readouts    (P,)      int64
    read_positions     (M,)      int64, all of the above, each once
    forests            (B, 2)    int64, start and end in the one row; only for attention by segments
    ================== ========= ==============================================================
    """

    predictor_ids: tuple[int, ...]
    pad_token_id: int
    pad_to_multiple_of: int = 8
    attention_length: float = DEFAULT_ATTENTION_LENGTH
    max_row_length: int | None = None
    segmented: bool = False

    def __call__(self, examples: Sequence[Example]) -> Batch:
        """See the class."""
        forests = [build_forest(example, self.predictor_ids) for example in examples]
        lengths = [len(forest) for forest in forests]
        rows = plan_rows(lengths, self.attention_length, self.max_row_length)
        if self.segmented and sum(map(segmented_cost, forests)) < rows_cost(rows, lengths, self.attention_length):
            return self.pack_one_row(forests)
        return self.pack(forests, rows)

    def pack_one_row(self, forests: Sequence[Forest]) -> Batch:
        """The whole batch in one row without padding, with the places of its forests for attention by segments."""
        batch = replace(self, pad_to_multiple_of=1).pack(forests, [range(len(forests))])
        ends = np.cumsum([len(forest) for forest in forests])
        batch["forests"] = torch.from_numpy(np.stack([np.concatenate([[0], ends[:-1]]), ends], axis=1))
        return batch

    def pack(self, forests: Sequence[Forest], rows: Sequence[Sequence[int]]) -> Batch:
        """Lay the forests into the given rows; `rows` holds indices into `forests`, each once."""
        width = max(sum(len(forests[index]) for index in row) for row in rows)
        width += -width % self.pad_to_multiple_of
        shape = (len(rows), width)
        input_ids = np.full(shape, self.pad_token_id, np.int64)
        position_ids = np.zeros(shape, np.int64)
        # Each padding token is a segment of its own in an example that does not exist, so it sees itself only.
        example = np.full(shape, PADDING, np.int64)
        segment = np.broadcast_to(np.arange(1, width + 1), shape).copy()
        order = np.zeros(shape, np.int64)
        attach = np.full(shape, ISOLATED, np.int64)
        starts = np.zeros(len(forests), np.int64)  # where each forest begins in the flattened states
        for row, members in enumerate(rows):
            start = 0
            for index in members:
                forest = forests[index]
                span = slice(start, start + len(forest))
                input_ids[row, span] = forest.input_ids
                position_ids[row, span] = forest.position_ids
                example[row, span] = index
                segment[row, span] = forest.segment
                order[row, span] = forest.order
                attach[row, span] = forest.attach
                starts[index] = row * width + start
                start += len(forest)
        # Labels and pairs keep the batch's order, whatever the rows are.
        placed = list(zip(forests, starts, strict=True))
        batch = {
            "input_ids": torch.from_numpy(input_ids),
            "position_ids": torch.from_numpy(position_ids),
            "example": torch.from_numpy(example),
            "segment": torch.from_numpy(segment),
            "order": torch.from_numpy(order),
            "attach": torch.from_numpy(attach),
            "label_positions": _flat([forest.label_positions + start for forest, start in placed]),
            "label_ids": _flat([forest.label_ids for forest in forests]),
            "source_readouts": _flat([forest.source_readouts + start for forest, start in placed]),
            "target_readouts": _flat([forest.target_readouts + start for forest, start in placed]),
        }
        read = [batch[name] for name in ("label_positions", "source_readouts", "target_readouts")]
        return batch | {"read_positions": torch.cat(read).unique()}


@dataclass(frozen=True)
class TwoPassCollator:
    """Plain padded rows for the LM loss, and one row a view for the readouts (the `two_pass` forward).

    No mask beyond ordinary right padding is needed, so this form serves every causal architecture. Positions of a target
    go on behind the predictors, as in the forest.

    ==================== ========= ==============================================================
    input_ids            (B, T)    int64, one example a row
    attention_mask       (B, T)    int64, 1 = token, 0 = padding
    position_ids         (B, T)    int64
    view_input_ids       (S, T')   int64, sources (trunk up to the source's end, then K predictors), then targets
    view_attention_mask  (S, T')   int64
    view_position_ids    (S, T')   int64
    label_positions      (N,)      int64, indices into the flattened (B * T) states
    label_ids            (N,)      int64
    source_readouts      (P,)      int64, indices into the flattened (S * T') states
    target_readouts      (P,)      int64
    ==================== ========= ==============================================================
    """

    predictor_ids: tuple[int, ...]
    pad_token_id: int

    def __call__(self, examples: Sequence[Example]) -> Batch:
        """See the class."""
        ids, mask, positions = self._pad([(np.asarray(e.input_ids), 0) for e in examples])
        label_positions, labels = [], []
        for row, example in enumerate(examples):
            position, label = label_indices(example)
            label_positions.append(position + row * ids.shape[1])
            labels.append(label)
        count = len(self.predictor_ids)
        sources: list[tuple[np.ndarray, int]] = []
        targets: list[tuple[np.ndarray, int]] = []
        source_readouts, target_readouts = [], []
        for example in examples:
            trunk = np.asarray(example.input_ids)
            for pair in example.pairs:
                stop = pair.source_end + 1 if count else max(pair.source_end, pair.source_readout) + 1
                sources.append((np.concatenate([trunk[:stop], np.asarray(self.predictor_ids, trunk.dtype)]), 0))
                targets.append((trunk[pair.target_start : pair.target_end], pair.source_end + 1 + count))
                source_readouts.append(stop + count - 1 if count else pair.source_readout)
                target_readouts.append(pair.target_readout - pair.target_start)
        batch = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
        batch |= {"label_positions": _flat(label_positions), "label_ids": _flat(labels)}
        if sources:
            ids, mask, positions = self._pad(sources + targets)
            batch |= {"view_input_ids": ids, "view_attention_mask": mask, "view_position_ids": positions}
            starts = np.arange(2 * len(sources)) * ids.shape[1]
            source_readouts = list(starts[: len(sources)] + source_readouts)
            target_readouts = list(starts[len(sources) :] + target_readouts)
        batch["source_readouts"] = torch.tensor(np.array(source_readouts, dtype=np.int64))
        batch["target_readouts"] = torch.tensor(np.array(target_readouts, dtype=np.int64))
        return batch

    def _pad(self, sequences: Sequence[tuple[np.ndarray, int]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        width = max(len(ids) for ids, _ in sequences)
        shape = (len(sequences), width)
        input_ids = np.full(shape, self.pad_token_id, np.int64)
        mask = np.zeros(shape, np.int64)
        positions = np.zeros(shape, np.int64)
        for row, (ids, first) in enumerate(sequences):
            input_ids[row, : len(ids)] = ids
            mask[row, : len(ids)] = 1
            positions[row, : len(ids)] = np.arange(first, first + len(ids))
        return torch.from_numpy(input_ids), torch.from_numpy(mask), torch.from_numpy(positions)


def segmented_cost(forest: Forest) -> float:
    """Cost of a forest under attention by segments, in tokens, comparable to that of `packing.plan_rows`."""
    edges = np.flatnonzero(np.diff(forest.segment, prepend=-1, append=-1))
    return len(forest) + min(attention_costs(np.diff(edges).tolist(), forest.attach[edges[:-1]].tolist()))


def _flat(pieces: Sequence[np.ndarray]) -> torch.Tensor:
    return torch.from_numpy(np.concatenate(pieces).astype(np.int64) if pieces else np.zeros(0, np.int64))
