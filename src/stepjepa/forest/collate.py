"""Collation turns a batch of examples into tensors, in the data loader's workers. The masks are built later, on the device.

Shapes: B examples, R rows, T tokens per row, S view rows, T' tokens per view row, N labelled positions, P pairs, M terms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from stepjepa.data.types import ISOLATED, TRUNK, Batch, Example, Read, Rows, StateReads
from stepjepa.forest.layout import (
    Forest,
    attention_costs,
    build_forest,
    build_inline,
    label_indices,
    plan_rows,
    row_lengths,
    rows_cost,
    segment_row,
    target_segments,
)

PADDING = -1


@dataclass(frozen=True)
class _Collator:
    """The fields that both collators have, see `ForestCollator`."""

    predictor_ids: tuple[int, ...]
    pad_token_id: int
    _: KW_ONLY
    separate_targets: bool = False
    shuffle_targets: bool = False
    aligned_targets: bool = False
    every_pass: bool = False

    def _batch(
        self,
        rows: Rows,
        label_positions: Sequence[np.ndarray],
        label_ids: Sequence[np.ndarray],
        sources: Placed,
        targets: Placed,
        replayed: int,
    ) -> Batch:
        """The batch of these rows, with the pairs of its examples.

        Args:
            label_positions, label_ids: those of each example.
            sources, targets: the examples of each side; separate targets list only examples with pairs.
            replayed: number of replayed examples, which come last and are shuffled among themselves.
        """
        counts = [len(example.pairs) for example, _ in sources]
        current = len(counts) - replayed
        replayed_counts = counts[current:]
        replayed_pairs = sum(replayed_counts)
        order = None
        if self.shuffle_targets:
            order = shuffled_order(counts[:current], self.aligned_targets)
            # Without another example, all pairs are dropped.
            if order is None:
                sources, targets, replayed_pairs = (), (), 0
            elif replayed:
                order_replayed = shuffled_order(replayed_counts, self.aligned_targets)
                assert order_replayed is not None, "two or more are replayed"
                order = np.concatenate([order, len(order) + order_replayed])

        pairs = [(pair, begins) for example, begins in sources for pair in example.pairs]
        source_reads = [(pair.source, begins) for pair, begins in pairs]
        target_reads = []
        for example, begins in targets:
            target_reads += [(pair.target, begins) for pair in example.pairs]
        if order is not None:
            target_reads = [target_reads[index] for index in order.tolist()]
        # Weights of 1 and a single group, the usual case, need no tensors.
        weight_P = [pair.weight for pair, _ in pairs]
        group_P = [pair.group for pair, _ in pairs]
        weights = groups = None
        if any(weight != 1.0 for weight in weight_P):
            weights = torch.tensor(weight_P, dtype=torch.float32)
        if any(group_P):
            groups = torch.tensor(group_P)
        return Batch(
            rows,
            flat(label_positions),
            flat(label_ids),
            state_reads(source_reads),
            state_reads(target_reads),
            weights,
            groups,
            replayed=replayed_pairs,
        )


@dataclass(frozen=True)
class ForestCollator(_Collator):
    """Packs the forests of a batch into rows, for the `packed` and `inline` forwards; a call returns the `Batch`.

    Attributes:
        predictor_ids: see `layout.build_forest`.
        pad_token_id: fills the rows; a padding token sees only itself, and no token sees it.
        pad_to_multiple_of: row lengths are rounded up to a multiple of this.
        segmented: the model can attend by segments (`modeling.masks`); a batch for which this is cheaper becomes one row
            without padding, with `Rows.forests`.
        one_row: every batch becomes such a row, whatever the cost.
        max_row_length: see `layout.plan_rows`.
        inline: put the predictors and the isolated view into the sequence itself (`layout.build_inline`).
        separate_targets: the targets need no gradient and get separate rows, `target_rows`.
        shuffle_targets: each source gets the target of another example (`shuffled_order`); pairs are dropped if there is
            no other example.
        aligned_targets: choose the target with the same index in the other example.
        every_pass: even for a batch without pairs, call the backbone for the targets, on one token, because processes that
            share weights must make the same calls.
    """

    pad_to_multiple_of: int = 8
    max_row_length: int | None = None
    segmented: bool = False
    one_row: bool = False
    inline: bool = False

    def __call__(self, examples: Sequence[Example]) -> Batch:
        """See the class."""
        examples, replayed = with_replayed(examples, self.shuffle_targets, whole=self.inline)
        # An inline sequence has room for the views of one pair.
        if self.inline:
            examples = [example.with_pairs(example.pairs[:1]) for example in examples]
        separate = self.separate_targets and any(target_segments(example) for example in examples)
        build = build_inline if self.inline else partial(build_forest, targets=not separate)
        forests = [build(example, self.predictor_ids) for example in examples]
        rows, starts = self.lay_out(forests)
        sources = targets = places(forests, starts)

        # Targets without a gradient have a separate forward pass, and therefore separate rows.
        target_rows = None
        if separate:
            with_pairs = [example for example in examples if example.pairs]
            target_forests = [
                build_forest(example, self.predictor_ids, trunk=False) for example in with_pairs
            ]
            target_rows, target_starts = self.lay_out(target_forests)
            targets = places(target_forests, target_starts)

        # A forest begins with its trunk, which has the labels.
        labels = []
        for forest, start in zip(forests, starts, strict=True):
            labels.append(forest.label_positions + start)
        label_ids = [forest.label_ids for forest in forests]
        batch = self._batch(rows, labels, label_ids, sources, targets, replayed)

        # The forward computes the last MLP at these positions only.
        of_targets = batch.targets.positions
        read = [batch.label_positions, batch.sources.positions]
        if target_rows is None:
            read.append(of_targets)
        else:
            target_rows = replace(target_rows, read_positions=of_targets.unique())
        read_positions = torch.cat(read).unique()
        rows = replace(rows, read_positions=read_positions)

        # One padding token stands in for the missing targets, so that this process makes the same calls as the others.
        idle = self.every_pass and self.separate_targets and not separate
        if idle:
            padding = np.array([self.pad_token_id], np.int32)
            token = build_forest(Example(padding, ()), ())
            target_rows, _ = self.lay_out([token])
        return replace(batch, rows=rows, target_rows=target_rows, idle=idle)

    def lay_out(self, forests: Sequence[Forest]) -> tuple[Rows, np.ndarray]:
        """Choose the rows (R, T) and `pack` the forests into them; for attention by segments one row (1, T) without padding,
        with the forests' spans in `Rows.forests` (B, 2)."""
        lengths = [len(forest) for forest in forests]
        rows = plan_rows(lengths, self.max_row_length)
        one_row = self.one_row
        if self.segmented and not one_row:
            cost = sum(map(segmented_cost, forests))
            one_row = cost < rows_cost(rows, lengths)
        if not one_row:
            return self.pack(forests, rows)
        without_padding = replace(self, pad_to_multiple_of=1)
        packed, starts = without_padding.pack(forests, [range(len(forests))])
        spans = np.stack([starts, starts + lengths], axis=1)
        return replace(packed, forests=torch.from_numpy(spans)), starts

    def pack(
        self, forests: Sequence[Forest], rows: Sequence[Sequence[int]]
    ) -> tuple[Rows, np.ndarray]:
        """Lay the forests out in the given rows; `rows` holds every index into `forests` once.

        Returns:
            The rows, and the start of each forest in their flattened states, (B,).
        """
        lengths = [len(forest) for forest in forests]
        width = max(row_lengths(rows, lengths))
        width += -width % self.pad_to_multiple_of
        shape = (len(rows), width)
        # Each padding token is a separate segment of an example that does not exist, so it sees only itself.
        padding: dict[str, int | np.ndarray] = {
            "input_ids": self.pad_token_id,
            "position_ids": 0,
            "segment": np.arange(1, width + 1),
            "order": 0,
            "attach": ISOLATED,
        }
        # A padding token is the only one of its segment, so a floor of 0 hides nothing from it.
        if self.inline:
            padding["floor"] = 0
        fields = {}
        for name, fill in padding.items():
            fields[name] = np.full(shape, fill, np.int64)
        example = np.full(shape, PADDING, np.int64)
        starts = np.zeros(len(forests), np.int64)
        for row, members in enumerate(rows):
            start = 0
            for index in members:
                forest = forests[index]
                stop = start + lengths[index]
                span = slice(start, stop)
                example[row, span] = index
                for name, field in fields.items():
                    values = getattr(forest, name)
                    # A forest without an isolated view has no floor.
                    field[row, span] = 0 if values is None else values
                starts[index] = row * width + start
                start = stop
        fields["example"] = example
        tensors = {name: torch.from_numpy(field) for name, field in fields.items()}
        return Rows(**tensors), starts


class TwoPassCollator(_Collator):
    """Lays a batch out for the `two_pass` forward: plain padded rows for the LM loss, and one row per segment for the states
    of the views. It needs only an ordinary right-padding mask, so it works for every causal architecture.

    `rows` (B, T) are the chats. `views` (S, T') has one row per segment: the part of the trunk that it sees, then its
    own tokens. For the fields see `ForestCollator`.
    """

    def __call__(self, examples: Sequence[Example]) -> Batch:
        """See the class."""
        examples, replayed = with_replayed(examples, self.shuffle_targets)
        trunks = [(example.trunk, 0) for example in examples]
        rows = self._pad(trunks)
        width = rows.input_ids.shape[1]
        label_positions, label_ids = [], []
        for row, example in enumerate(examples):
            positions, ids = label_indices(example)
            label_positions.append(row * width + positions)
            label_ids.append(ids)

        # The segments as (example, number): those of targets without a gradient have separate rows.
        views, targets = [], []
        for number, example in enumerate(examples):
            of_targets = target_segments(example) if self.separate_targets else []
            targets += [(number, segment) for segment in of_targets]
            every = range(1, 1 + len(example.segments))
            views += [(number, segment) for segment in every if segment not in of_targets]

        # Starts of the segments in the flattened states: first the trunks in `rows`, then the views in `view_rows`. The
        # states of separate targets are counted from 0; without segments, targets are states of the trunk in `rows`.
        starts = [{TRUNK: row * width} for row in range(len(examples))]
        target_starts = [{} for _ in examples] if targets else starts
        view_rows = self._rows(examples, views, starts, rows.input_ids.numel())
        target_rows = None
        if self.separate_targets:
            target_rows = self._rows(examples, targets, target_starts, 0)

        batch = self._batch(
            rows,
            label_positions,
            label_ids,
            list(zip(examples, starts, strict=True)),
            list(zip(examples, target_starts, strict=True)),
            replayed,
        )
        idle = self.every_pass and self.separate_targets and not targets
        return replace(batch, views=view_rows, target_rows=target_rows, idle=idle)

    def _rows(
        self,
        examples: Sequence[Example],
        segments: Sequence[tuple[int, int]],
        starts: list[dict[int, int]],
        first: int,
    ) -> Rows | None:
        """The rows of the given segments (example, number); without any, None, or one token if `every_pass` is set.

        Writes the start of each segment's own tokens, counted from `first`, into `starts`."""
        if not segments:
            token = np.array([self.pad_token_id])
            return self._pad([(token, 0)]) if self.every_pass else None
        rows = []
        for index, number in segments:
            rows.append(segment_row(examples[index], number, self.predictor_ids))
        padded = self._pad(rows)
        width = padded.input_ids.shape[1]
        for row, (index, number) in enumerate(segments):
            segment = examples[index].segments[number - 1]
            # The row repeats the part of the trunk that the segment sees; an isolated one has attach -1 and repeats none.
            seen_of_trunk = segment.attach + 1
            starts[index][number] = first + row * width + seen_of_trunk
        return padded

    def _pad(self, rows: Sequence[tuple[np.ndarray, int]]) -> Rows:
        """Pad rows of (token ids, first position) on the right."""
        longest = max(len(ids) for ids, _ in rows)
        shape = (len(rows), longest)
        input_ids = np.full(shape, self.pad_token_id, np.int64)
        positions = np.zeros(shape, np.int64)
        mask = np.zeros(shape, np.int64)
        for row, (ids, first) in enumerate(rows):
            length = len(ids)
            input_ids[row, :length] = ids
            positions[row, :length] = np.arange(first, first + length)
            mask[row, :length] = 1
        return Rows(
            torch.from_numpy(input_ids), torch.from_numpy(positions), torch.from_numpy(mask)
        )


Collator = ForestCollator | TwoPassCollator


def segmented_cost(forest: Forest) -> float:
    """Cost of a forest under attention by segments, in tokens, comparable to `layout.rows_cost`."""
    # Indices at which the segment number changes, with both ends: the differences are the segments' lengths.
    changes = np.diff(forest.segment, prepend=-1, append=-1)
    edges = np.flatnonzero(changes)
    lengths = np.diff(edges)
    attached = forest.attach[edges[:-1]]
    return len(forest) + min(attention_costs(lengths.tolist(), attached.tolist()))


def shuffled_order(counts: Sequence[int], aligned: bool = False) -> np.ndarray | None:
    """For each pair of a batch, the pair of another example whose target it gets (``--control shuffled``).

    The targets are shifted by the largest number of pairs of an example, so each is used once, whatever the order of the
    batch (which changes with the epoch). If one example has more than half of all pairs, this is impossible, and targets of
    the other examples are used more than once. With `aligned`, each pair gets the target with the same index in the
    next example that has pairs, modulo that example's number of pairs.

    Returns:
        (P,) int64; None if fewer than two examples have a pair.
    """
    owner_P = np.repeat(np.arange(len(counts)), counts)
    with_pairs = np.flatnonzero(counts)
    if len(with_pairs) < 2:
        return None
    total = len(owner_P)
    if aligned:
        first_pair = np.cumsum([0, *counts])
        pieces = []
        for example, following in zip(with_pairs, np.roll(with_pairs, -1), strict=True):
            place = np.arange(counts[example]) % counts[following]
            pieces.append(first_pair[following] + place)
        return np.concatenate(pieces)
    # The pairs of an example are consecutive, so a shift by `most` leaves the example. If `most` is at most half of
    # all pairs, the shift does not reach the same example again from the other end.
    most = max(counts)
    if 2 * most <= total:
        return (np.arange(total) + most) % total
    order_P = np.zeros(total, np.int64)
    for example in with_pairs:
        pairs_of_others = np.flatnonzero(owner_P != example)
        pairs = np.flatnonzero(owner_P == example)
        order_P[pairs] = pairs_of_others[pairs % len(pairs_of_others)]
    return order_P


# Examples of a batch, each with the starts of its segments (by number) among all states.
Placed = Sequence[tuple[Example, Mapping[int, int]]]


def places(forests: Sequence[Forest], starts: np.ndarray) -> Placed:
    """The examples of forests that begin at `starts` (B,), with the starts of their segments."""
    placed = []
    for forest, start in zip(forests, starts.tolist(), strict=True):
        begins = {number: start + inside for number, inside in forest.starts.items()}
        placed.append((forest.example, begins))
    return placed


def with_replayed(
    examples: Sequence[Example], shuffled: bool, whole: bool = False
) -> tuple[list[Example], int]:
    """The examples of a batch followed by the examples that they replay, and the number of the latter.

    Args:
        shuffled: sources get the targets of other examples, so a single replayed example is dropped.
        whole: keep the complete trunks of replayed examples, instead of the part that their pairs need.
    """
    replayed = [example.replayed for example in examples if example.replayed is not None]
    if shuffled and len(replayed) < 2:
        replayed = []
    if whole:
        shortened = [example._replace(labels=()) for example in replayed]
    else:
        shortened = [example.without_labels() for example in replayed]
    return [*examples, *shortened], len(shortened)


def state_reads(reads: Sequence[tuple[Read, Mapping[int, int]]]) -> StateReads:
    """Where to read the vectors (P, D) of one side of a batch.

    Args:
        reads: P reads, each with the starts of the segments of its example.
    """
    different = dict.fromkeys(read.layer for read, _ in reads)
    layers = tuple(different) or (None,)
    # One entry per token and vector: its position among all states, the vector that it adds to, its coefficient.
    addresses: list[int] = []
    numbers: list[int] = []
    factors: list[float] = []
    for vector, (read, begins) in enumerate(reads):
        for segment, token, coefficient, tokens in read.terms:
            start = begins[segment] + token
            addresses += range(start, start + tokens)
            numbers += [vector] * tokens
            factors += [coefficient] * tokens
    positions = torch.tensor(addresses, dtype=torch.int64)
    vectors = torch.tensor(numbers, dtype=torch.int64)
    layer_of = None
    if len(layers) > 1:
        layer_P = torch.tensor([layers.index(read.layer) for read, _ in reads])
        layer_of = layer_P[vectors]
    # If every vector is a single state, they are gathered and not summed.
    if all(read.is_state for read, _ in reads):
        return StateReads(positions, count=len(reads), layers=layers, layer_of=layer_of)
    coefficients = torch.tensor(factors, dtype=torch.float32)
    return StateReads(positions, vectors, coefficients, len(reads), layers, layer_of)


def flat(pieces: Sequence[np.ndarray]) -> Tensor:
    """Concatenate integer arrays (N,) of any lengths, as int64."""
    nothing = np.zeros(0, np.int64)
    return torch.from_numpy(np.concatenate([nothing, *pieces]))
