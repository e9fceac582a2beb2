"""Floating point operations of a training step, from the shapes of a collated batch alone, by kind of token.

What is counted is what `torch.utils.flop_counter` counts: matrix products, 2 FLOPs a multiply-add, and the scores and values
of attention, forward and backward (`cost` says how often each). Embeddings, norms, softmax, activations, the losses and the
optimizer are not.

A query pays for every key of its call: for all T tokens of its row under a dense mask (causality, windows and padding save
nothing; FlexAttention skips blocks, so for it this is an upper bound), for the keys of its segment where a batch attends by
segments. Of a mixture of experts the router counts, and the experts that a token is sent to.

Shapes: R rows, T tokens a row, L = R * T, B examples.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from stepjepa.data.types import ISOLATED, TRUNK, Batch, Rows
from stepjepa.forest.masks import packed_fields
from stepjepa.forest.segments import segment_plan
from stepjepa.modeling.cost import ModelCost

__all__ = ["KINDS", "ModelCost", "batch_flops", "batch_tokens"]

# "head" is the LM head at labelled positions and the predictor head, if there is one, at the sources.
KINDS = ("trunk", "branch", "target", "head", "padding")
_TRUNK, _BRANCH, _TARGET, _, _PADDING = range(len(KINDS))


def batch_flops(batch: Batch, cost: ModelCost) -> dict[str, float]:
    """FLOPs of forward and backward on one batch, by `KINDS`.

    A token counts as ``trunk`` (segment 0), as ``branch`` where its segment sees the trunk or holds a source's readout, else
    as ``target`` or ``padding``. An `inline` sequence is all trunk. In the two-pass form a source's row is ``branch``, the
    beginning of the trunk that it repeats included.

    Args:
        batch: of either collator. Only a forward pass runs on its `target_rows`.
    """
    flops = dict.fromkeys(KINDS, 0.0)
    for rows in _passes(batch):
        read = rows.kinds if rows.read is None or not cost.trims or cost.checkpointing else rows.kinds[rows.read]
        keys = torch.bincount(rows.kinds, rows.keys.double(), minlength=len(KINDS)).tolist()
        for kind, name in enumerate(KINDS):
            count, reads = int((rows.kinds == kind).sum()), int((read == kind).sum())
            flops[name] += cost.tokens(count, reads, keys[kind], rows.gradient)
    flops["head"] += cost.heads(len(batch.label_positions), batch.pairs, cost.head_chunk)
    return flops


def batch_tokens(batch: Batch) -> dict[str, int]:
    """Positions of a batch by `KINDS` (as `batch_flops` has them, without ``head``), in all calls of the backbone."""
    counts = sum(torch.bincount(rows.kinds, minlength=len(KINDS)) for rows in _passes(batch))
    named = dict(zip(KINDS, torch.as_tensor(counts).tolist(), strict=True))
    return {name: count for name, count in named.items() if name != "head"}


class _Rows(NamedTuple):
    """One call of the backbone.

    Attributes:
        kinds, keys: (L,) int64, of each token the kind and the number of keys that its query is given.
        read: int64, the tokens that the last MLP runs on where it is trimmed; None for all.
        gradient: whether there is a backward pass.
    """

    kinds: torch.Tensor
    keys: torch.Tensor
    read: torch.Tensor | None
    gradient: bool


def _passes(batch: Batch) -> Iterator[_Rows]:
    """The calls of the backbone on one batch, as `modeling.forward` makes them."""
    if batch.rows.example is not None:
        yield _packed(batch.rows, _kinds(batch), True)
    else:
        yield _padded(batch.rows, torch.full_like(batch.rows.input_ids, _TRUNK), True)
    if batch.views is not None:
        kinds = torch.full_like(batch.views.input_ids, _TARGET)
        kinds[: batch.branches] = _BRANCH
        yield _padded(batch.views, kinds, True)
    if batch.target_rows is not None:
        kinds = torch.full_like(batch.target_rows.input_ids, _TARGET)
        lay = _padded if batch.target_rows.example is None else _packed
        yield lay(batch.target_rows, kinds, False)


def _kinds(batch: Batch) -> torch.Tensor:
    """(R, T) int64, the kind of each token that is no padding."""
    example, segment, _, attach = packed_fields(batch.rows)
    # Sources of their own see no trunk either; what is read of them tells them from targets.
    name = segment + example * (segment.max() + 1)
    apart = torch.isin(name, name.flatten()[batch.sources.positions])
    branch = (segment != TRUNK) & ((attach != ISOLATED) | apart)
    return torch.where(branch, _BRANCH, torch.where(segment == TRUNK, _TRUNK, _TARGET))


def _packed(rows: Rows, kinds: torch.Tensor, gradient: bool) -> _Rows:
    kinds = torch.where(rows.filled, kinds, _PADDING)
    keys = torch.full_like(kinds, kinds.shape[1])
    if rows.forests is not None:
        keys = torch.zeros_like(kinds)
        places, forests = keys.view(-1), sorted(rows.forests.tolist())
        for (begin, _), segments in zip(forests, segment_plan(rows).forests, strict=True):
            for segment in segments:
                seen = segment.length + segment.branch * segments[0].length
                places[begin : begin + segment.length] = seen
                begin += segment.length
    return _Rows(kinds.flatten(), keys.flatten(), rows.read_positions, gradient)


def _padded(rows: Rows, kinds: torch.Tensor, gradient: bool) -> _Rows:
    kinds = torch.where(rows.filled, kinds, _PADDING).flatten()
    return _Rows(kinds, torch.full_like(kinds, rows.input_ids.shape[1]), None, gradient)
