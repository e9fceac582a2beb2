"""What a checkpoint holds beside the model: the predictor head and the EMA target encoder."""

from __future__ import annotations

from typing import Any

from stepjepa.modeling.ema import target_encoder
from stepjepa.modeling.heads import load_head, save_head


def save_extras(inner: Any, folder: str) -> None:
    """Write what the causal LM `inner` has of them."""
    save_head(inner, folder)
    encoder = target_encoder(inner)
    if encoder is not None:
        encoder.save(folder)


def load_extras(inner: Any, folder: str) -> None:
    """Read what `save_extras` wrote."""
    load_head(inner, folder)
    encoder = target_encoder(inner)
    if encoder is not None:
        encoder.load(folder)
