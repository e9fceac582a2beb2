"""Turns the visibility rule into a form that a model takes: a mask for each kind of layer, or attention by segments.

Under a dense mask, attention over a row of T tokens costs T x T, whichever pairs are visible. In attention by segments,
every trunk and every isolated target attends causally to itself, and a branch attends to its trunk and itself under its
rows of the mask; a short forest attends in one call under a small mask. The length of the row then costs nothing, so a
batch can be one row without padding. This is an attention implementation registered with transformers, for models on CPU.
Its plan travels with the mask, a placeholder of four dimensions that models pass to their layers unchanged. On a GPU,
FlexAttention skips the blocks of a row that no query sees. With both, a call without a plan or a block mask (generation,
other code) is ordinary `sdpa`.

Shapes: R rows, H heads, T tokens per row, D width of a head, S tokens of a segment.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._functorch import config as functorch
from torch.compiler import config as compiler
from torch.nn.attention.flex_attention import BlockMask
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.integrations.flex_attention import flex_attention_forward
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from stepjepa.config.option import Names
from stepjepa.data.types import ISOLATED, Rows
from stepjepa.forest.layout import attention_costs
from stepjepa.forest.visibility import (
    BLOCK_SIZE,
    additive_mask,
    block_mask,
    dense_mask,
    packed_fields,
)
from stepjepa.modeling.options import ModelOptions
from stepjepa.modeling.parts import (
    compute_dtype,
    text_config,
)

AttentionMask = Tensor | BlockMask | dict[str, Tensor | BlockMask]
_NAME = Names(ModelOptions)
SEGMENTS, FLEX = OWN = ("stepjepa_segments", "stepjepa_flex_attention")
_WINDOW = "sliding_window"
# How many compiled forms of FlexAttention to keep, one for each kind of layer, dtype and shape, with and without gradient.
_FORMS = 64


def masks_unsupported(model: PreTrainedModel) -> str | None:
    """Why a model cannot take the forest's mask, as far as its configuration shows; None if it shows no reason."""
    config = text_config(model.config)
    # Layers of other kinds, such as state spaces, mix tokens without such a mask.
    kinds = set(getattr(config, "layer_types", None) or ())
    kinds -= {"full_attention", "sliding_attention"}
    if kinds:
        return f"it has {', '.join(sorted(kinds))} layers"
    if config._attn_implementation not in ("sdpa", "eager", "flex_attention"):
        return (
            f"{config._attn_implementation} takes no mask (use --{_NAME.attn_implementation} sdpa)"
        )
    if getattr(config, "attention_types", None):
        return "its local attention uses token indices in the row instead of position ids"
    if getattr(config, "alibi", False) or config.model_type in ("bloom", "mpt"):
        return "its ALiBi attention takes no position ids"
    return None


def attention_masks(model: PreTrainedModel, rows: Rows) -> AttentionMask:
    """The `attention_mask` of a model for packed rows.

    * all layers alike: one mask (with the window if every layer has one, as in Mistral);
    * hybrid models: ``{"full_attention": ..., "sliding_attention": ...}``.

    ``sdpa`` and ``eager`` get an additive mask in the dtype of the scores, ``flex_attention`` a block mask, and a batch laid
    out for attention by segments its plan. A mask is (R, 1, T, T).
    """
    config = text_config(model.config)
    window = getattr(config, _WINDOW, None)

    def build(length: int | None) -> Tensor | BlockMask:
        if rows.forests is not None:
            # transformers takes a mask of four dimensions as complete and does not build another.
            mask = torch.ones(1, 1, 1, 1, dtype=torch.bool).as_subclass(PlanMask)
            mask.plan = segment_plan(rows, length)
            return mask
        if is_flex(config._attn_implementation):
            return block_mask(rows, length)
        # Given a boolean mask, sdpa would keep an additive copy for every layer.
        return additive_mask(rows, compute_dtype(model), length)

    layers = set(getattr(config, "layer_types", None) or ())
    if not layers:
        return build(window)
    if "sliding_attention" not in layers:
        return build(None)
    return {"full_attention": build(None), "sliding_attention": build(window)}


def is_flex(implementation: str) -> bool:
    """Whether an attention is FlexAttention: that of transformers, or `FLEX`."""
    return implementation in (FLEX, "flex_attention")


def forward_only(implementation: str, device: str) -> bool:
    """Whether an attention lacks a backward pass on a type of device, as FlexAttention does on CPU."""
    return is_flex(implementation) and device == "cpu"


def row_multiple(implementation: str, device: str) -> int:
    """The multiple of tokens to which rows are padded for the kernels of an attention on a type of device."""
    return BLOCK_SIZE if is_flex(implementation) else 1 if device == "cpu" else 8


class PlanMask(Tensor):
    """A placeholder for `attention_mask`, (1, 1, 1, 1), that carries a `SegmentPlan` to the attention layers."""

    plan: SegmentPlan


def attention_forward(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention of one layer as transformers calls it: (R, H, T, D) in, (R, T, H, D) out.

    Raises:
        ValueError: attention by segments, or FlexAttention, lacks a feature that the model needs.
    """
    if isinstance(attention_mask, BlockMask):
        kind = query.device.type
        # Under autocast, rotary positions turn queries and keys into float32, while values keep the lower precision.
        if torch.is_autocast_enabled(kind):
            query, key, value = (
                part.to(torch.get_autocast_dtype(kind)) for part in (query, key, value)
            )
        with _flex_settings(kind):
            return flex_attention_forward(module, query, key, value, attention_mask, **kwargs)
    if not isinstance(attention_mask, PlanMask):
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    # Other features that it lacks are also unknown to `sdpa`, which it replaces.
    if kwargs.get("position_bias") is not None:
        raise ValueError("attention by segments has no position_bias")
    # With grouped queries several query heads share a key and a value head.
    groups = getattr(module, "num_key_value_groups", 1)
    output = segmented_attention(
        query,
        repeat_kv(key, groups),
        repeat_kv(value, groups),
        attention_mask.plan,
        kwargs.get("dropout", 0.0),
        kwargs.get("scaling"),
    )
    return output.transpose(1, 2).contiguous(), None


@contextmanager
def _flex_settings(device: str) -> Iterator[None]:
    """Within this context FlexAttention is compiled as training needs it, on a type of device."""
    # The model around it is being compiled, with its own settings.
    if torch.compiler.is_compiling():
        yield
    # Without a backward pass it serves only the trial, which is not worth the time to compile.
    elif forward_only(FLEX, device):
        with torch.compiler.set_stance("force_eager"):
            yield
    else:
        # By default torch does not compile a ninth form, and donates buffers that a second backward pass needs.
        limit, patch = max(_FORMS, compiler.recompile_limit), cast(Any, compiler).patch
        with patch(recompile_limit=limit), functorch.patch(donated_buffer=False):
            yield


def attention_in(model: PreTrainedModel) -> str:
    """The attention of a model's layers."""
    return text_config(model.config)._attn_implementation  # type: ignore[no-any-return]


def use_attention(model: PreTrainedModel, implementation: str) -> None:
    """Set the attention of a model's layers: one from transformers, or one of `OWN`, which acts as `sdpa` in calls without
    its mask."""
    if implementation in OWN:
        AttentionInterface.register(implementation, attention_forward)
        AttentionMaskInterface.register(implementation, sdpa_mask)
    text_config(model.config)._attn_implementation = implementation


@contextmanager
def attention_of(model: PreTrainedModel, implementation: str) -> Iterator[None]:
    """Within this context the layers use the given attention; an empty name changes nothing."""
    original = attention_in(model)
    use_attention(model, implementation or original)
    try:
        yield
    finally:
        use_attention(model, original)


# Attention by segments


class AttendedSegment(NamedTuple):
    """A trunk, branch or target; or a whole short forest, for which one call under a mask is cheaper than several.

    Attributes:
        length: S.
        branch: whether it sees its trunk as well as itself.
        mask: bool; for a branch (S, t + S), over the t tokens of its trunk and its own tokens, else (S, S), over its own
            tokens; None if it attends causally to its own tokens.
    """

    length: int
    branch: bool
    mask: Tensor | None


# The segments of each forest of a batch, in the order of their positions.
SegmentPlan = tuple[tuple[AttendedSegment, ...], ...]


def segment_plan(rows: Rows, window: int | None = None) -> SegmentPlan:
    """Plan attention by segments for forests in one row without padding, in a layer with sliding window `window`."""
    assert rows.forests is not None
    flat = [value.flatten() for value in (rows.input_ids, rows.position_ids, *packed_fields(rows))]
    plan = []
    # Masks are built for each forest as a separate row (1, L).
    for start, stop in rows.forests.tolist():
        ids, positions, *fields = (value[None, start:stop] for value in flat)
        forest = Rows(ids, positions, None, *fields)
        plan.append(_segments(forest, window))
    return tuple(plan)


def _segments(forest: Rows, window: int | None) -> tuple[AttendedSegment, ...]:
    """The attended segments of one forest, (1, L)."""
    _, segment, _, attach = packed_fields(forest)
    _, counts = segment[0].unique_consecutive(return_counts=True)
    lengths = counts.tolist()
    ends = list(accumulate(lengths))
    starts = [0, *ends[:-1]]
    attached = attach[0, starts].tolist()
    by_segment, together = attention_costs(lengths, attached)
    if together < by_segment:
        return (AttendedSegment(sum(lengths), False, dense_mask(forest, window)[0, 0]),)
    segments = []
    for start, length, attach_to in zip(starts, lengths, attached, strict=True):
        branch = attach_to != ISOLATED
        # Attention without a mask is causal. It is faster, and right unless a segment sees a trunk or exceeds the window.
        mask: Tensor | None = None
        if branch or (window is not None and length > window):
            span = slice(start, start + length)
            trunk = slice(0, lengths[0] if branch else 0)
            seen = dense_mask(forest, window, span)[0, 0]
            mask = torch.cat([seen[:, trunk], seen[:, span]], dim=1)
        segments.append(AttendedSegment(length, branch, mask))
    return tuple(segments)


def segmented_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    plan: SegmentPlan,
    dropout: float = 0.0,
    scale: float | None = None,
) -> Tensor:
    """Scaled dot-product attention under the visibility rule, (1, H, T, D) like the inputs.

    Equal to dense attention with `visibility.dense_mask` up to rounding. A token's result depends only on its forest.
    """
    # Split along tokens in the memory layout of the projections, (1, T, H, D): one split, and thus one gradient, for all
    # segments, without a copy into another layout.
    lengths = [segment.length for forest in plan for segment in forest]
    queries, keys, values = (
        iter(part.transpose(1, 2).split(lengths, dim=1)) for part in (query, key, value)
    )
    outputs = []
    for forest in plan:
        for segment in forest:
            q, k, v = next(queries), next(keys), next(values)
            # The first segment of a forest is the trunk, whose keys and values its branches share.
            if segment is forest[0]:
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
    return torch.cat(outputs, dim=1).transpose(1, 2)


# Sliding windows


@contextmanager
def window_of(model: torch.nn.Module, length: int) -> Iterator[None]:
    """Within this context every sliding window of the model, in configurations and layers, has this length."""
    owners: list[Any] = list(model.modules())
    for module in model.modules():
        config = getattr(module, "config", None)
        if isinstance(config, PreTrainedConfig):
            owners += [config, text_config(config)]
    originals = []
    for owner in owners:
        original = vars(owner).get(_WINDOW)
        # `type` and not `isinstance`: a boolean is not a length. Owners without a window stay without one.
        if type(original) is int and original > 0:
            originals.append((owner, original))
    try:
        for owner, _ in originals:
            setattr(owner, _WINDOW, length)
        yield
    finally:
        for owner, original in originals:
            setattr(owner, _WINDOW, original)
