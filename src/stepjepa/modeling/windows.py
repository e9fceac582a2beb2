"""Sliding windows: whether a model heeds the one in its configuration, and making it short enough to show."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from stepjepa.modeling.configs import text_config
from stepjepa.modeling.parts import backbone, unchanged

_FIELD = "sliding_window"
_NAME = "_stepjepa_heeds_window"
_TOKENS = 9


@contextmanager
def window_of(model: torch.nn.Module, length: int) -> Iterator[None]:
    """Within this context every sliding window of the model, in configurations and layers, has this length."""
    configs = {id(part.config): part.config for part in model.modules() if hasattr(part, "config")}
    owners = [*configs.values(), *(text_config(config) for config in configs.values()), *model.modules()]
    changed = {
        id(owner): (owner, vars(owner)[_FIELD])
        for owner in owners
        if type(vars(owner).get(_FIELD)) is int and vars(owner)[_FIELD] > 0
    }
    try:
        for owner, _ in changed.values():
            setattr(owner, _FIELD, length)
        yield
    finally:
        for owner, own in changed.values():
            setattr(owner, _FIELD, own)


def heeds_window(model: Any) -> bool:
    """Whether the `sliding_window` of the configuration changes what the model computes; found once.

    A class that has no windows leaves such an entry in its configuration unread, and so must the masks.
    """
    known = vars(model).get(_NAME)
    if known is None:
        known = _heeds(model)
        object.__setattr__(model, _NAME, known)
    return known


def _heeds(model: Any) -> bool:
    device = model.get_input_embeddings().weight.device
    if not getattr(text_config(model.config), _FIELD, None) or device.type == "meta":
        return True
    part, states = backbone(model), []
    ids = torch.arange(5, 5 + _TOKENS, device=device)[None] % len(model.get_input_embeddings().weight)
    try:
        with torch.no_grad(), unchanged(model):
            for length in (2, 2 * _TOKENS):
                with window_of(model, length):
                    states.append(part(input_ids=ids, use_cache=False)[0].float())
    except Exception:
        return True  # what does not run is found by the start-up trial
    short, wide = states
    return not float((short - wide).norm()) <= 1e-5 * float(wide.norm())
