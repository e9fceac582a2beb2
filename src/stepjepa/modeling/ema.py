"""The EMA target encoder: an exponential moving average of the trained weights, which encodes the targets.

``shadow <- m * shadow + (1 - m) * weight`` after every optimizer step, with m from `start` to `end` along half a cosine
over the training (BYOL, arXiv:2006.07733, Section 3.2; I-JEPA, arXiv:2301.08243). Only weights that are trained have a
shadow: under LoRA that is the adapter and the predictor rows, and the frozen weights serve both encoders.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from stepjepa.modeling.heads import is_head_weight, is_objective_weight

_NAME = "_stepjepa_target_encoder"


def momentum_at(done: float, start: float, end: float) -> float:
    """``end - (end - start) * (cos(pi * done) + 1) / 2`` for the share `done` in [0, 1] of the training."""
    return end - (end - start) * (math.cos(math.pi * min(max(done, 0.0), 1.0)) + 1) / 2


class TargetEncoder:
    """Shadows of a model's trained weights.

    Args:
        inner: the causal LM; its predictor head and its objective's modules, which targets do not pass, have no shadow.
    """

    def __init__(self, inner: Any):
        self._weights = {
            name: parameter
            for name, parameter in inner.named_parameters()
            if parameter.requires_grad and not is_head_weight(name) and not is_objective_weight(name)
        }
        # In float32: a step of 1 - m is lost in a shorter dtype.
        self.shadow = {name: parameter.detach().float().clone() for name, parameter in self._weights.items()}

    @torch.no_grad()
    def update(self, momentum: float) -> None:
        """Move the shadows towards the weights."""
        for name, weight in self._weights.items():
            self.shadow[name].lerp_(weight.detach().to(self.shadow[name]), 1 - momentum)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Within this context the model computes with the shadows. Only for passes without a graph, and before those with
        one: what a graph has saved must not change under it."""
        own = {name: weight.data for name, weight in self._weights.items()}
        try:
            for name, weight in self._weights.items():
                weight.data = self.shadow[name].to(weight.dtype)
            torch.clear_autocast_cache()  # autocast keeps its copies by tensor object, whatever data that holds
            yield
        finally:
            for name, weight in self._weights.items():
                weight.data = own[name]
            torch.clear_autocast_cache()


def add_target_encoder(inner: Any) -> TargetEncoder:
    """Give a causal LM an EMA target encoder; call it when it is known which weights are trained and where they lie."""
    encoder = TargetEncoder(inner)
    object.__setattr__(inner, _NAME, encoder)
    return encoder


def target_encoder(inner: Any) -> TargetEncoder | None:
    """The EMA target encoder of a causal LM, None where it has none."""
    return inner.__dict__.get(_NAME)


def drop_target_encoder(inner: Any) -> None:
    """Take the EMA target encoder off a causal LM."""
    inner.__dict__.pop(_NAME, None)
