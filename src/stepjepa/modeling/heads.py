"""Predictor heads: a small network on the source's state, trained with the model and saved beside it.

The method's own predictor is the model itself with K predictor tokens; a head is what other JEPAs put there (I-JEPA,
arXiv:2301.08243; BYOL, arXiv:2006.07733). It is used in training only and is no part of the exported model.

Shapes: P pairs, D width.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from stepjepa.utils.files import replacing

HEADS = ("none", "linear", "mlp")
HEAD_FILE = "jepa_head.safetensors"
_NAME = "jepa_head"


class PredictorHead(nn.Module):
    """``linear``: a D x D matrix without bias that starts as the identity, so that training starts from no head at all.
    ``mlp``: D -> 2 D -> D with GELU in between, initialised as torch does.

    Takes and returns (P, D) float32.
    """

    def __init__(self, kind: str, width: int, seed: int):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            if kind == "linear":
                linear = nn.Linear(width, width, bias=False)
                nn.init.eye_(linear.weight)
                self.layers = nn.Sequential(linear)
            elif kind == "mlp":
                self.layers = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            else:
                raise ValueError(f"predictor head {kind!r}; known: {', '.join(HEADS)}")

    def forward(self, source_PD: torch.Tensor) -> torch.Tensor:
        """See the class."""
        with torch.autocast(source_PD.device.type, enabled=False):
            return self.layers(source_PD.float())


def add_head(inner: Any, kind: str, seed: int) -> None:
    """Give a causal LM a head (none for ``none``), on its device; it becomes part of its parameters."""
    if kind == "none":
        return
    weight = inner.get_input_embeddings().weight
    head = PredictorHead(kind, inner.get_output_embeddings().weight.shape[1], seed)
    inner.add_module(_NAME, head.to(weight.device))


def predictor_head(inner: Any) -> PredictorHead | None:
    """The head of a causal LM, None where it has none."""
    return getattr(inner, _NAME, None)


def is_head_weight(name: str) -> bool:
    """Whether a name of the model's state dict belongs to the head."""
    return name.startswith(f"{_NAME}.")


def save_tensors(weights: Mapping[str, torch.Tensor], path: Path) -> None:
    """Write tensors of any shape so that a reader finds the old file or the whole new one, never a part."""
    on_cpu = {name: value.detach().cpu().contiguous() for name, value in weights.items()}
    with replacing(path) as temporary:
        save_file(on_cpu, temporary, metadata={"format": "pt"})


def save_head(inner: Any, folder: str | os.PathLike[str]) -> None:
    """Write the head's weights to `HEAD_FILE` in a folder; nothing where there is no head."""
    head = predictor_head(inner)
    if head is not None:
        save_tensors(head.state_dict(), Path(folder) / HEAD_FILE)


def load_head(inner: Any, folder: str | os.PathLike[str]) -> None:
    """Read what `save_head` wrote."""
    head = predictor_head(inner)
    if head is not None:
        head.load_state_dict(load_file(Path(folder) / HEAD_FILE))
