"""`segmented_attention` as an attention implementation of transformers, for models on CPU.

The plan travels with the mask: a placeholder of four dimensions, which models pass through to their layers unchanged. A call
without a plan (generation, evaluation by other code) is ordinary `sdpa`.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from stepjepa.forest.segments import SegmentPlan, segmented_attention
from stepjepa.modeling.configs import text_config

SEGMENTS = "stepjepa_segments"
_UNKNOWN = ("softcap", "s_aux", "position_bias")


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
    for name in _UNKNOWN:
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
    _set(model, SEGMENTS)


def use_sdpa(model: Any) -> None:
    """Undo `use_segments`."""
    _set(model, "sdpa")


def _set(model: Any, implementation: str) -> None:
    text_config(model.config)._attn_implementation = implementation
