"""The visibility rule in the form that a model takes: masks, one for each kind of layer, or attention by segments; and what
a model makes of its sliding window.

A dense mask makes attention over a row of T tokens cost T x T, whoever sees whom. By segments every trunk and every
isolated target attends causally to itself, and a branch to its trunk and itself through the few rows of the rule's mask
that it needs; a short forest attends as one under its own small mask. A row then costs nothing for its length, so a batch
can be one row without any padding. This is an attention implementation of transformers, for models on CPU. Its plan travels
with the mask: a placeholder of four dimensions, which models pass through to their layers unchanged. On a GPU
FlexAttention leaves out the blocks of a row that nothing sees. With either, a call without a plan or a block mask
(generation, evaluation by other code) is ordinary `sdpa`.

Shapes: R rows, H heads, T tokens a row, D width of a head, S tokens of a segment.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch._functorch import config as functorch
from torch.compiler import config as compiler
from torch.nn.attention.flex_attention import BlockMask
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig, PreTrainedModel
from transformers.integrations.flex_attention import flex_attention_forward
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from stepjepa.config.option import Names
from stepjepa.data.types import ISOLATED, Rows
from stepjepa.forest.layout import attention_costs
from stepjepa.forest.visibility import BLOCK_SIZE, additive_mask, block_mask, dense_mask, packed_fields
from stepjepa.modeling.options import ModelOptions
from stepjepa.modeling.parts import text_config

AttentionMask = torch.Tensor | BlockMask | dict[str, torch.Tensor | BlockMask]
_NAME = Names(ModelOptions)
SEGMENTS, FLEX = OWN = ("stepjepa_segments", "stepjepa_flex_attention")
_WINDOW = "sliding_window"
_FORMS = 64  # of FlexAttention: kinds of layer, dtypes, shapes, with and without gradient


def masks_unsupported(model: PreTrainedModel) -> str | None:
    """Why a model cannot take the forest's mask; None where nothing is known against it."""
    config = text_config(model.config)
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    if kinds:
        return f"it has layers of kind {', '.join(sorted(kinds))}"
    if config._attn_implementation not in ("sdpa", "eager", "flex_attention"):
        return f"{config._attn_implementation} takes no mask (use --{_NAME.attn_implementation} sdpa)"
    if getattr(config, "attention_types", None):
        return "its local attention counts places in the row instead of positions"
    if getattr(config, "alibi", False) or config.model_type in ("bloom", "mpt"):
        return "its ALiBi attention takes no positions"
    return None


def attention_masks(rows: Rows, config: PreTrainedConfig, dtype: torch.dtype) -> AttentionMask:
    """What to pass as `attention_mask` for packed rows.

    * every layer alike: one mask (windowed where every layer slides, as Mistral's do);
    * hybrid models: ``{"full_attention": ..., "sliding_attention": ...}``.

    ``sdpa`` and ``eager`` get one additive mask in `dtype` (of booleans sdpa would keep a copy in it for every layer),
    ``flex_attention`` a block mask, and a batch laid out for attention by segments its plan. A mask is (R, 1, T, T).

    Args:
        config: the text model's.
        dtype: the dtype of the model's attention scores (`parts.compute_dtype`).
    """
    implementation = config._attn_implementation
    window = getattr(config, "sliding_window", None)

    def build(length: int | None) -> torch.Tensor | BlockMask:
        if rows.forests is not None:
            mask = torch.ones(1, 1, 1, 1, dtype=torch.bool).as_subclass(PlanMask)
            mask.plan = segment_plan(rows, length)
            return mask
        if is_flex(implementation):
            return block_mask(rows, length)
        return additive_mask(rows, dtype, length)

    layers = set(getattr(config, "layer_types", None) or ())
    if not layers:
        return build(window)
    if "sliding_attention" not in layers:
        return build(None)
    return {"full_attention": build(None), "sliding_attention": build(window)}


def is_flex(implementation: str) -> bool:
    """Whether it is FlexAttention, by transformers or with `sdpa` for calls without a block mask."""
    return implementation in (FLEX, "flex_attention")


def forward_only(implementation: str, device: str) -> bool:
    """Whether an attention has no backward pass on a type of device, as FlexAttention has none on CPU."""
    return is_flex(implementation) and device == "cpu"


def row_multiple(implementation: str, device: str) -> int:
    """What the kernels of an attention on a type of device like rows to be padded to."""
    return BLOCK_SIZE if is_flex(implementation) else 1 if device == "cpu" else 8


class PlanMask(torch.Tensor):
    """The placeholder to pass as `attention_mask`, (1, 1, 1, 1), that carries a `SegmentPlan` to the attention layers."""

    plan: SegmentPlan


def attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Attention of one layer as transformers calls it: (R, H, T, D) in, (R, T, H, D) out.

    Raises:
        ValueError: the model asks for something that attention by segments, or FlexAttention, does not know.
    """
    if isinstance(attention_mask, BlockMask):
        kind = query.device.type
        if torch.is_autocast_enabled(kind):  # rotary positions make float32 of queries and keys
            query, key, value = (one.to(torch.get_autocast_dtype(kind)) for one in (query, key, value))
        with _flex_settings(kind):
            return flex_attention_forward(
                module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
            )
    if not isinstance(attention_mask, PlanMask):
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    for name in ("softcap", "s_aux", "position_bias"):
        if kwargs.get(name) is not None:
            raise ValueError(f"attention by segments has no {name}")
    groups = getattr(module, "num_key_value_groups", 1)
    output = segmented_attention(
        query, repeat_kv(key, groups), repeat_kv(value, groups), attention_mask.plan, dropout, scaling
    )
    return output.transpose(1, 2).contiguous(), None


@contextmanager
def _flex_settings(device: str) -> Iterator[None]:
    """Within this context FlexAttention is compiled as training needs it, on a type of device.

    By default torch compiles no ninth form of it, and what it compiles fails in a second backward pass.
    """
    if torch.compiler.is_compiling():  # the model around it
        yield
    elif forward_only(FLEX, device):  # compiling for a trial alone is not worth the time
        with torch.compiler.set_stance("force_eager"):
            yield
    else:
        limit, patch = max(_FORMS, compiler.recompile_limit), cast(Any, compiler).patch
        with patch(recompile_limit=limit), functorch.patch(donated_buffer=False):
            yield


def use_attention(model: PreTrainedModel, implementation: str) -> None:
    """Set the attention of a model's layers: one of `OWN`, which are `sdpa` for calls without their mask, or another."""
    if implementation in OWN:
        AttentionInterface.register(implementation, attention_forward)
        AttentionMaskInterface.register(implementation, sdpa_mask)
    text_config(model.config)._attn_implementation = implementation


@contextmanager
def attention_of(model: PreTrainedModel, implementation: str) -> Iterator[None]:
    """Within this context the layers attend in another way (no other for an empty one)."""
    own = text_config(model.config)._attn_implementation
    use_attention(model, implementation or own)
    try:
        yield
    finally:
        use_attention(model, own)


# Attention by segments


@dataclass(frozen=True)
class AttendedSegment:
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

    forests: tuple[tuple[AttendedSegment, ...], ...]
    sizes: tuple[int, ...]


def segment_plan(rows: Rows, window: int | None = None) -> SegmentPlan:
    """Where the forests of packed rows stand, and what their segments see in a layer with such a sliding window."""
    assert rows.forests is not None
    flat = [value.flatten() for value in (rows.input_ids, rows.position_ids, *packed_fields(rows))]
    forests, sizes = [], []
    end = 0
    for start, stop in sorted(rows.forests.tolist()):
        ids, positions, *fields = (value[None, start:stop] for value in flat)
        forest = Rows(ids, positions, None, *fields)
        forests.append(_segments(forest, window))
        sizes += [start - end, stop - start]
        end = stop
    sizes.append(rows.input_ids.numel() - end)
    return SegmentPlan(tuple(forests), tuple(sizes))


def _segments(forest: Rows, window: int | None) -> tuple[AttendedSegment, ...]:
    """The segments of one forest, (1, L)."""
    _, segment, _, attach = packed_fields(forest)
    _, counts = segment[0].unique_consecutive(return_counts=True)
    lengths = counts.tolist()
    ends = list(accumulate(lengths))
    starts = [0, *ends[:-1]]
    attached = attach[0, starts].tolist()
    apart, together = attention_costs(lengths, attached)
    if together < apart:
        return (AttendedSegment(sum(lengths), False, dense_mask(forest, window)[0, 0]),)
    segments = []
    for start, length, attach_to in zip(starts, lengths, attached, strict=True):
        branch = attach_to != ISOLATED
        mask: torch.Tensor | None = None  # plain causal attention
        if branch or (window is not None and length > window):
            own = slice(start, start + length)
            trunk = slice(0, lengths[0] if branch else 0)
            seen = dense_mask(forest, window, own)[0, 0]
            mask = torch.cat([seen[:, trunk], seen[:, own]], dim=1)
        segments.append(AttendedSegment(length, branch, mask))
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

    Equal to dense attention with `visibility.dense_mask` up to rounding; a token's result depends on its own forest alone.
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


# Sliding windows


@contextmanager
def window_of(model: torch.nn.Module, length: int) -> Iterator[None]:
    """Within this context every sliding window of the model, in configurations and layers, has this length."""
    owners = dict[int, Any]()
    for part in model.modules():
        config = getattr(part, "config", None)
        of_part = [part] if config is None else [part, config, text_config(config)]
        owners |= {id(owner): owner for owner in of_part}
    changed = [(owner, vars(owner)[_WINDOW]) for owner in owners.values() if vars(owner).get(_WINDOW)]
    try:
        for owner, _ in changed:
            setattr(owner, _WINDOW, length)
        yield
    finally:
        for owner, own in changed:
            setattr(owner, _WINDOW, own)
