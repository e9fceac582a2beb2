"""Attention segment by segment: the visibility rule without a dense mask, for CPU.

A dense mask makes attention over a row of T tokens cost T x T, whoever sees whom. Here every trunk and every isolated target
attends causally to itself, and a branch to its trunk and itself through the few rows of the rule's mask that it needs. A
row then costs nothing for its length, so a whole batch can be one row without any padding.

Shapes: R rows, H heads, T tokens a row, D width of a head, S tokens of a segment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from stepjepa.forest.dense import dense_mask
from stepjepa.forest.visibility import ISOLATED


@dataclass(frozen=True)
class Segment:
    """One trunk, branch or target.

    Attributes:
        length: S.
        keys: (first, stop) of the keys that it may see, counted in its forest.
        mask: (S, stop - first) bool; None where it is causal over exactly its own tokens.
    """

    length: int
    keys: tuple[int, int]
    mask: torch.Tensor | None


@dataclass(frozen=True)
class SegmentPlan:
    """All forests of a batch in the order of their places.

    Attributes:
        forests: the segments of each forest, in order.
        sizes: lengths that cut the flattened (R * T) positions into padding and forests, in turns.
    """

    forests: tuple[tuple[Segment, ...], ...]
    sizes: tuple[int, ...]


def segment_plan(batch: Mapping[str, torch.Tensor], window: int | None = None) -> SegmentPlan:
    """Where the forests of a batch stand and what their segments see.

    Args:
        batch: as `ForestCollator` gives it; ``forests`` (B, 2) holds start and end of each.
        window: sliding-window length of the layer, None for full attention.
    """
    fields = ("example", "segment", "order", "attach", "position_ids")
    flat = {name: batch[name].flatten() for name in fields}
    forests, sizes, end = [], [], 0
    for start, stop in sorted(batch["forests"].tolist()):
        forests.append(_segments({name: value[start:stop] for name, value in flat.items()}, window))
        sizes += [start - end, stop - start]
        end = stop
    return SegmentPlan(tuple(forests), (*sizes, batch["input_ids"].numel() - end))


def _segments(fields: Mapping[str, torch.Tensor], window: int | None) -> tuple[Segment, ...]:
    """The segments of one forest; `fields` are its own (L,) integers."""
    lengths = fields["segment"].unique_consecutive(return_counts=True)[1].tolist()
    attaches = fields["attach"].tolist()
    segments, start, mask = [], 0, None
    for length in lengths:
        stop = start + length
        own = attaches[start] == ISOLATED
        if own and (window is None or length <= window):
            segments.append(Segment(length, (start, stop), None))
        else:
            if mask is None:
                mask = dense_mask({name: value[None] for name, value in fields.items()}, window)[0, 0]
            first = start if own else 0
            segments.append(Segment(length, (first, stop), mask[start:stop, first:stop]))
        start = stop
    return tuple(segments)


def segmented_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    plan: SegmentPlan,
    dropout: float = 0.0,
    scale: float | None = None,
) -> torch.Tensor:
    """Scaled dot-product attention under the visibility rule, (R, H, T, D) as the inputs; padding gets zeros.

    Equal to dense attention with `dense.dense_mask` up to rounding; a token's result depends on its own forest alone.
    """
    rows, heads, tokens, width = query.shape
    # One split with one gradient for all forests; slices would each make a gradient of the whole row.
    queries, keys, values = (
        part.transpose(0, 1).reshape(1, heads, rows * tokens, -1).split(plan.sizes, dim=2)
        for part in (query, key, value)
    )
    outputs = []
    for number, size in enumerate(plan.sizes):
        if number % 2 == 0:
            if size:
                outputs.append(query.new_zeros(1, heads, size, values[0].shape[-1]))
            continue
        segments = plan.forests[number // 2]
        parts = queries[number].split([segment.length for segment in segments], dim=2)
        for part, segment in zip(parts, segments, strict=True):
            first, stop = segment.keys
            outputs.append(
                F.scaled_dot_product_attention(
                    part,
                    keys[number][:, :, first:stop],
                    values[number][:, :, first:stop],
                    attn_mask=segment.mask,
                    dropout_p=dropout,
                    is_causal=segment.mask is None,
                    scale=scale,
                )
            )
    return torch.cat(outputs, dim=2).reshape(heads, rows, tokens, -1).transpose(0, 1)
