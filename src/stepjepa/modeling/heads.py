"""Predictor heads: a small network on the source's state, trained with the model.

The method's own predictor is the model itself with K predictor tokens; a head is what other JEPAs put there (I-JEPA,
arXiv:2301.08243; BYOL, arXiv:2006.07733). It is used in training only and is no part of the exported model.

Shapes: P pairs, D width.
"""

from __future__ import annotations

import torch
from torch import nn

HEADS = ("none", "linear", "mlp")
EXTRAS = "jepa"  # the submodule of a causal LM that holds what training adds, see `extras.TrainedExtras`


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


def is_head_weight(name: str) -> bool:
    """Whether a name among a causal LM's parameters belongs to its predictor head (`extras.TrainedExtras.head`)."""
    return name.startswith(f"{EXTRAS}.head.")


def is_objective_weight(name: str) -> bool:
    """Whether a name among a model's parameters belongs to the modules of its objective
    (`extras.TrainedExtras.objective`)."""
    return f"{EXTRAS}.objective." in name
