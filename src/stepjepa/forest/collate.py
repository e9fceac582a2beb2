"""Collation: a batch of examples to integer tensors, in the data loader's workers.

Nothing but integers leaves the worker; masks are built from them on the batch's device.

Shapes: B examples, R rows, T tokens a row, N labelled positions, P pairs, M positions that are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from stepjepa.data.examples import Example
from stepjepa.forest.controls import shuffled_order
from stepjepa.forest.layout import Forest, build_forest, build_inline, build_targets
from stepjepa.forest.packing import DEFAULT_ATTENTION_LENGTH, plan_rows, rows_cost
from stepjepa.forest.segments import attention_costs
from stepjepa.forest.visibility import ISOLATED

Batch = dict[str, torch.Tensor]
PADDING = -1
_READ = ("label_positions", "source_readouts", "target_readouts")


@dataclass(frozen=True)
class ForestCollator:
    """Packs the forests of a batch into rows (the `packed` forward, and `inline`).

    Attributes:
        predictor_ids: ids of the K predictor tokens in the order in which they stand behind a source.
        pad_token_id: fills the rows; padding sees itself only and nothing sees it.
        pad_to_multiple_of: row lengths are rounded up to this.
        segmented: the model can attend by segments (`forest.segments`), so a batch for which that is cheaper comes as
            one row without padding, with `forests`.
        attention_length, max_row_length: see `packing.plan_rows`.
        inline: predictors and isolated view stand in the sequence itself (`layout.build_inline`).
        separate_targets: the targets, which need no gradient, come as rows of their own: every key of a packed batch
            once more with ``target_`` in front, and `target_readouts` counts in those rows. Absent without a pair.
        shuffle_targets: each source gets the target of another example (`controls`); pairs that find none are left out.

    Called with a list of examples it returns

        ================== ========= ==============================================================
        input_ids          (R, T)    int64
        position_ids       (R, T)    int64
        example            (R, T)    int64, which example of the batch; -1 for padding
        segment            (R, T)    int64, 0 = trunk
        order              (R, T)    int64, index inside the segment
        attach             (R, T)    int64, see `visibility.visible`
        floor              (R, T)    int64, the same; only for `inline`
        label_positions    (N,)      int64, indices into the flattened (R * T) states
        label_ids          (N,)      int64, the token that each of these must predict
        source_readouts    (P,)      int64, indices into the flattened states
        target_readouts    (P,)      int64
        read_positions     (M,)      int64, all of the above, each once
        forests            (B, 2)    int64, start and end in the one row; only for attention by segments
        ================== ========= ==============================================================

    Examples with `tube` (the semantic tube) add the fields of `combination_fields`.
    """

    predictor_ids: tuple[int, ...]
    pad_token_id: int
    pad_to_multiple_of: int = 8
    attention_length: float = DEFAULT_ATTENTION_LENGTH
    max_row_length: int | None = None
    segmented: bool = False
    inline: bool = False
    separate_targets: bool = False
    shuffle_targets: bool = False

    def __call__(self, examples: Sequence[Example]) -> Batch:
        """See the class."""
        if self.inline:
            examples = [example._replace(pairs=example.pairs[:1]) for example in examples]
        build = build_inline if self.inline else build_forest
        batch = self.lay_out([build(example, self.predictor_ids, not self.separate_targets) for example in examples])
        starts = batch.pop("starts").tolist()
        if self.separate_targets:
            targets = [build_targets(example, self.predictor_ids) for example in examples if example.pairs]
            rows = self.lay_out(targets) if targets else {"target_readouts": torch.zeros(0, dtype=torch.int64)}
            batch["target_readouts"] = rows.pop("target_readouts")
            unused = ("label_positions", "label_ids", "source_readouts", "starts")
            batch |= {f"target_{name}": value for name, value in rows.items() if name not in unused}
        batch = targets_in_order(batch, [len(example.pairs) for example in examples], self.shuffle_targets)
        tube = combination_fields(examples, starts, self.shuffle_targets)
        if tube:
            read = (batch["read_positions"], tube["tube_source_positions"], tube["tube_target_positions"])
            tube["read_positions"] = torch.cat(read).unique()
        return batch | tube

    def lay_out(self, forests: Sequence[Forest]) -> Batch:
        """Choose the rows and lay the forests into them."""
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
        """Lay the forests into the given rows; `rows` holds indices into `forests`, each once.

        Beside the fields of the class it returns ``starts`` (B,), where each forest begins in the flattened states.
        """
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
        floor = np.zeros(shape, np.int64)
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
                if forest.floor is not None:  # `inline` alone
                    floor[row, span] = forest.floor
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
            "label_positions": flat([forest.label_positions + start for forest, start in placed]),
            "label_ids": flat([forest.label_ids for forest in forests]),
            "source_readouts": flat([forest.source_readouts + start for forest, start in placed]),
            "target_readouts": flat([forest.target_readouts + start for forest, start in placed]),
            "starts": torch.from_numpy(starts),
        }
        if self.inline:  # padding is alone in its segment, so its floor of 0 hides nothing from it
            batch["floor"] = torch.from_numpy(floor)
        return batch | {"read_positions": torch.cat([batch[name] for name in _READ]).unique()}


def segmented_cost(forest: Forest) -> float:
    """Cost of a forest under attention by segments, in tokens, comparable to that of `packing.plan_rows`."""
    edges = np.flatnonzero(np.diff(forest.segment, prepend=-1, append=-1))
    return len(forest) + min(attention_costs(np.diff(edges).tolist(), forest.attach[edges[:-1]].tolist()))


def targets_in_order(batch: Batch, counts: Sequence[int], shuffle: bool) -> Batch:
    """With `shuffle`, give each source the target of another example; `counts` are the pairs of each example."""
    if not shuffle or not sum(counts) or not len(batch["target_readouts"]):
        return batch
    order = shuffled_order(counts)
    kept = slice(0, 0) if order is None else torch.from_numpy(order)
    sources = batch["source_readouts"][:0] if order is None else batch["source_readouts"]
    return batch | {"source_readouts": sources, "target_readouts": batch["target_readouts"][kept]}


def combination_fields(examples: Sequence[Example], starts: Sequence[int], shuffle: bool = False) -> Batch:
    """The terms of the vectors that are combined from trunk states (`forest.tube`), for a batch; {} where there are none.

        ======================== ===== =========================================================================
        tube_source_positions    (M,)  int64, indices into the flattened states
        tube_source_coefficients (M,)  float32
        tube_source_pairs        (M,)  int64, the vector that the term adds to
        tube_target_...                the same for the targets
        tube_weights             (P,)  float32, weight of each pair
        tube_target_order        (P,)  int64, only with `shuffle`: the target that each source gets
        ======================== ===== =========================================================================

    Args:
        starts: where each example's trunk begins in the flattened states.
    """
    if all(example.tube is None for example in examples):
        return {}
    tubes = [(example.tube, start) for example, start in zip(examples, starts, strict=True) if example.tube is not None]
    counts = [len(tube.weight) for tube, _ in tubes]
    first = np.cumsum([0, *counts]).tolist()
    order = shuffled_order(counts) if shuffle else None
    alone = shuffle and order is None
    batch = {
        "tube_weights": torch.from_numpy(np.concatenate([tube.weight for tube, _ in tubes])[: 0 if alone else None])
    }
    for side in ("source", "target"):
        terms = [(getattr(tube, side), start, pair) for (tube, start), pair in zip(tubes, first, strict=False)]
        if alone:
            terms = []
        batch[f"tube_{side}_positions"] = flat([term.position + start for term, start, _ in terms])
        batch[f"tube_{side}_pairs"] = flat([term.pair + pair for term, _, pair in terms])
        coefficients = [term.coefficient for term, _, _ in terms] or [np.zeros(0, np.float32)]
        batch[f"tube_{side}_coefficients"] = torch.from_numpy(np.concatenate(coefficients))
    return batch if order is None else batch | {"tube_target_order": torch.from_numpy(order)}


def sub_batch(batch: Batch, prefix: str) -> Batch:
    """The rows of their own inside a batch: the fields whose names begin with `prefix`, without it.

    ``target_`` gives the targets of `separate_targets`, their readouts as ``readouts``; ``view_`` the views of the two-pass
    form. Empty where there are none.
    """
    return {name.removeprefix(prefix): value for name, value in batch.items() if name.startswith(prefix)}


def flat(pieces: Sequence[np.ndarray]) -> torch.Tensor:
    """Integer arrays (N,) of any lengths one after the other, int64."""
    return torch.from_numpy(np.concatenate(pieces).astype(np.int64) if pieces else np.zeros(0, np.int64))
