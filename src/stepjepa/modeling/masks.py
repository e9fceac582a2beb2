"""The attention mask in the form that a model takes: one tensor, or one for each kind of layer."""

from __future__ import annotations

from typing import Any

import torch

from stepjepa.data.types import Rows
from stepjepa.forest.masks import additive_mask, block_mask, dense_mask
from stepjepa.forest.segments import segment_plan
from stepjepa.modeling.segments import plan_mask

_KNOWN_LAYERS = {"full_attention", "sliding_attention"}


def unsupported_layers(config: Any) -> set[str]:
    """Kinds of layers that the forest's mask cannot describe (linear attention, chunked attention, ...)."""
    return set(getattr(config, "layer_types", None) or ()) - _KNOWN_LAYERS


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
        windows: whether the model heeds the `sliding_window` of its configuration (`windows.heeds_window`).
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
