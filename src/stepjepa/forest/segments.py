"""Attention segment by segment: the visibility rule without a dense mask, for CPU.

A dense mask makes attention over a row of T tokens cost T x T, whoever sees whom. Here every trunk and every isolated target
attends causally to itself, and a branch to its trunk and itself through the few rows of the rule's mask that it needs; a
short forest attends whole under its own small mask. A row then costs nothing for its length, so a whole batch can be one
row without any padding.

Shapes: R rows, H heads, T tokens a row, D width of a head, S tokens of a segment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from stepjepa.data.types import ISOLATED, Rows
from stepjepa.forest.masks import dense_mask, packed_fields
from stepjepa.forest.packing import DEFAULT_ATTENTION_LENGTH

# What a call of the attention kernel costs beside its scores, forward and backward in every layer, in tokens. Measured
# on CPU with a model of width 256 (docs/performance.md).
CALL_COST = 5


@dataclass(frozen=True)
class Segment:
    """One trunk, branch or target; or a whole short forest, where one call under a mask is cheaper than several.

    Attributes:
        length: S.
        branch: whether it sees its trunk as well as itself.
        mask: (S, S) bool over its own tokens, or (S, t + S) over those of its trunk and its own for a branch; None where
            it is causal over its own tokens.
    """

    length: int
    branch: bool
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


def segment_plan(rows: Rows, window: int | None = None) -> SegmentPlan:
    """Where the forests of a batch stand and what their segments see.

    Args:
        rows: packed ones, with `forests`.
        window: sliding-window length of the layer, None for full attention.
    """
    assert rows.forests is not None
    flat = [value.flatten() for value in (rows.input_ids, rows.position_ids, *packed_fields(rows))]
    forests, sizes, end = [], [], 0
    for start, stop in sorted(rows.forests.tolist()):
        ids, positions, *fields = (value[None, start:stop] for value in flat)
        forests.append(_segments(Rows(ids, positions, None, *fields), window))
        sizes += [start - end, stop - start]
        end = stop
    return SegmentPlan(tuple(forests), (*sizes, rows.input_ids.numel() - end))


def _segments(forest: Rows, window: int | None) -> tuple[Segment, ...]:
    """The segments of one forest, (1, L)."""
    _, segment, _, attach = packed_fields(forest)
    lengths = segment[0].unique_consecutive(return_counts=True)[1].tolist()
    attaches = attach[0].tolist()
    starts = [sum(lengths[:number]) for number in range(len(lengths))]
    branches = [attaches[start] != ISOLATED for start in starts]
    apart, whole = attention_costs(lengths, [attaches[start] for start in starts])
    uncut = window is None or max(lengths) <= window
    if uncut and not any(branches) and apart <= whole:
        return tuple(Segment(length, False, None) for length in lengths)
    seen = dense_mask(forest, window)[0, 0]
    if whole < apart:
        return (Segment(sum(lengths), False, seen),)
    segments = []
    for start, length, branch in zip(starts, lengths, branches, strict=True):
        own = seen[start : start + length, start : start + length]
        if branch:
            own = torch.cat([seen[start : start + length, : lengths[0]], own], dim=1)
        segments.append(Segment(length, branch, own if branch or (window is not None and length > window) else None))
    return tuple(segments)


def attention_costs(lengths: Sequence[int], attached: Sequence[int]) -> tuple[float, float]:
    """What the attention of one forest costs, in tokens (see `packing`): segment by segment, and in one call under a mask.

    Args:
        lengths: tokens of its segments, the trunk first.
        attached: of each segment, up to which trunk token it sees (-1: none).
    """
    seen = (length / 2 if at == ISOLATED else lengths[0] + length for length, at in zip(lengths, attached, strict=True))
    apart = sum(length * keys for length, keys in zip(lengths, seen, strict=True)) / DEFAULT_ATTENTION_LENGTH
    whole = sum(lengths) ** 2 / DEFAULT_ATTENTION_LENGTH
    return apart + CALL_COST * len(lengths), whole + CALL_COST


def segmented_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    plan: SegmentPlan,
    dropout: float = 0.0,
    scale: float | None = None,
) -> torch.Tensor:
    """Scaled dot-product attention under the visibility rule, (R, H, T, D) as the inputs; padding gets zeros.

    Equal to dense attention with `masks.dense_mask` up to rounding; a token's result depends on its own forest alone.
    """
    rows, heads, tokens, _ = query.shape
    # Cut along tokens in the layout that the projections wrote, (R * T, H, D): one split, and so one gradient, for all
    # forests, and no copy into another order of the memory.
    queries, keys, values = (
        part.transpose(1, 2).reshape(1, rows * tokens, heads, -1).split(plan.sizes, dim=1)
        for part in (query, key, value)
    )
    outputs = []
    for number, size in enumerate(plan.sizes):
        if number % 2 == 0:
            if size:
                outputs.append(query.new_zeros(1, size, heads, value.shape[-1]))
            continue
        segments = plan.forests[number // 2]
        lengths = [segment.length for segment in segments]
        parts = zip(*(part[number].split(lengths, dim=1) for part in (queries, keys, values)), strict=True)
        trunk_k = trunk_v = None
        for segment, (q, k, v) in zip(segments, parts, strict=True):
            if trunk_k is None or trunk_v is None:
                trunk_k, trunk_v = k, v
            elif segment.branch:
                k, v = torch.cat([trunk_k, k], dim=1), torch.cat([trunk_v, v], dim=1)
            attended = F.scaled_dot_product_attention(
                q.transpose(1, 2),
                k.transpose(1, 2),
                v.transpose(1, 2),
                attn_mask=segment.mask,
                dropout_p=dropout,
                is_causal=segment.mask is None,
                scale=scale,
            )
            outputs.append(attended.transpose(1, 2))
    return torch.cat(outputs, dim=1).reshape(rows, tokens, heads, -1).transpose(1, 2)
