"""Leaving out what nobody reads: the last layer's MLP at positions whose final state is used by no loss.

Behind the last attention every position goes its own way, and only the states that predict a label or stand for a view are
read. The MLP of the last layer is therefore run on those positions alone. It saves its share of a layer wherever prompts are
not labelled, and changes no number that is read.

Shapes: R rows, T tokens, D width, N positions that are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def decoder_layers(backbone: Any) -> torch.nn.ModuleList | None:
    """The decoder's layers in order; None where they go by no known name."""
    for owner in (backbone, getattr(backbone, "language_model", None)):
        for name in ("layers", "h", "blocks"):
            layers = getattr(owner, name, None)
            if isinstance(layers, torch.nn.ModuleList) and len(layers):
                return layers
    return None


def last_mlp(backbone: Any) -> Any:
    """The MLP (or mixture of experts) of the last decoder layer; None where it has no such name, or where the layer is run
    again in the backward pass (gradient checkpointing), which would not find the same shapes."""
    layers = decoder_layers(backbone)
    if layers is None:
        return None
    last: Any = layers[-1]
    again = any(getattr(module, "gradient_checkpointing", False) for module in (backbone, last))
    return None if again or hasattr(last, "_checkpoint_wrapped_module") else getattr(last, "mlp", None)


@contextmanager
def trimmed(backbone: Any, read_N: torch.Tensor) -> Iterator[None]:
    """Within this context the last MLP computes the rows `read_N` of the flattened (R * T) positions; others get zeros.

    Args:
        backbone: the decoder of a causal LM.
        read_N: (N,) int64, each position once.
    """
    mlp = last_mlp(backbone)
    if mlp is None:
        yield
        return
    own, patched_before = mlp.forward, "forward" in vars(mlp)

    def forward(hidden_RTD: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        flat = hidden_RTD.flatten(0, 1)
        rows = own(flat.index_select(0, read_N)[None], *args, **kwargs)
        if not isinstance(rows, torch.Tensor):
            return own(hidden_RTD, *args, **kwargs)
        zeros = rows.new_zeros(flat.shape[0], rows.shape[-1])
        return zeros.index_copy(0, read_N, rows[0]).unflatten(0, hidden_RTD.shape[:2])

    mlp.forward = forward
    try:
        yield
    finally:
        if patched_before:
            mlp.forward = own
        else:
            del mlp.forward
