"""The visibility rule in the form that a model takes: masks, one for each kind of layer, or attention by segments.

`segmented_attention` is an attention implementation of transformers, for models on CPU. Its plan travels with the mask: a
placeholder of four dimensions, which models pass through to their layers unchanged. A call without a plan (generation,
evaluation by other code) is ordinary `sdpa`.

Shapes: R rows, T tokens, H heads, D width of a head.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from stepjepa.data.types import Rows
from stepjepa.forest.masks import additive_mask, block_mask, dense_mask
from stepjepa.forest.segments import SegmentPlan, segment_plan, segmented_attention
from stepjepa.modeling.parts import text_config

SEGMENTS = "stepjepa_segments"


def masks_unsupported(model: Any) -> str | None:
    """Why a model cannot take the forest's mask; None where nothing is known against it."""
    config = text_config(model.config)
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    if kinds:
        return f"it has layers of kind {', '.join(sorted(kinds))}"
    if config._attn_implementation not in ("sdpa", "eager", "flex_attention"):
        return f"{config._attn_implementation} takes no mask (use --attn_implementation sdpa)"
    if getattr(config, "attention_types", None):
        return "its local attention counts places in the row instead of positions"
    if getattr(config, "alibi", False) or config.model_type in ("bloom", "mpt"):
        return "its ALiBi attention takes no positions"
    return None


def attention_masks(rows: Rows, config: Any, dtype: torch.dtype, windows: bool = True) -> Any:
    """What to pass as `attention_mask` for packed rows.

    * every layer alike: one mask (windowed where every layer slides, as Mistral's do);
    * hybrid models: ``{"full_attention": ..., "sliding_attention": ...}``.

    ``sdpa`` gets booleans (True = visible), ``eager`` an additive mask in `dtype`, ``flex_attention`` a block mask,
    and a batch laid out for attention by segments its plan. A mask is (R, 1, T, T).

    Args:
        rows: on the device of the model.
        config: the text model's configuration.
        dtype: the dtype of the model's attention scores.
        windows: whether the model heeds the `sliding_window` of its configuration (`parts.heeds_window`).
    """
    implementation = config._attn_implementation
    window = getattr(config, "sliding_window", None) if windows else None

    def build(length: int | None) -> Any:
        if rows.forests is not None:
            return plan_mask(segment_plan(rows, length))
        if implementation == "flex_attention":
            return block_mask(rows, length)
        mask = dense_mask(rows, length)
        return additive_mask(mask, dtype) if implementation == "eager" else mask

    layers = set(getattr(config, "layer_types", None) or ())
    if not layers:
        return build(window)
    if "sliding_attention" not in layers:
        return build(None)
    return {"full_attention": build(None), "sliding_attention": build(window)}


class PlanMask(torch.Tensor):
    """A (1, 1, 1, 1) tensor that carries a `SegmentPlan` to the attention layers."""

    plan: SegmentPlan


def plan_mask(plan: SegmentPlan) -> torch.Tensor:
    """The placeholder to pass as `attention_mask`: (1, 1, 1, 1), with the plan on it."""
    mask = torch.ones(1, 1, 1, 1, dtype=torch.bool).as_subclass(PlanMask)
    mask.plan = plan
    return mask


def attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of one layer as transformers calls it: (R, H, T, D) in, (R, T, H, D) out.

    Raises:
        ValueError: the model asks for something that attention by segments does not know.
    """
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


def use_segments(model: Any) -> None:
    """Let a model whose attention is `sdpa` attend by segments where a batch is laid out for it."""
    AttentionInterface.register(SEGMENTS, attention_forward)
    AttentionMaskInterface.register(SEGMENTS, sdpa_mask)
    text_config(model.config)._attn_implementation = SEGMENTS


def use_sdpa(model: Any) -> None:
    """Undo `use_segments`."""
    text_config(model.config)._attn_implementation = "sdpa"
