"""The table of other spellings: flags of the method's first scripts -> our options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepjepa.config.option import options_of
from stepjepa.config.parser import Alias
from stepjepa.config.values import BadValue


def _debug(value: str) -> dict[str, Any]:
    """``--debug 5`` was a level of chatter; `TrainingArguments` has a ``--debug`` of its own, which takes words."""
    if value.lstrip("-").isdigit():
        return {"debug_level": value}
    return {"debug": value}


def _linear(value: str) -> dict[str, Any]:
    """``--linear random_span`` and its siblings chose the semantic tube and its mode in one."""
    modes = {"random_span": "span", "e2e": "e2e", "mean": "mean", "curvature": "curvature"}
    if value not in modes:
        raise ValueError(f"expected one of {', '.join(modes)}, got {value!r}")
    return {"objective": "semantic_tube", "tube_mode": modes[value]}


PUBLISHED: dict[str, Alias] = {
    "batch_size": "per_device_train_batch_size",
    "grad_accum": "gradient_accumulation_steps",
    "num_epochs": "num_train_epochs",
    "finetune_seed": "seed",
    "jepa_loss_type": "jepa_loss",
    "lambda": "lbd",
    "step_jepa": ("objective", "step_jepa"),
    "regular": ("objective", "regular"),
    "jepa_l2": ("jepa_loss", "l2"),
    "jepa_mse": ("jepa_loss", "mse"),
    "infonce": ("jepa_loss", "infonce"),
    "train_all": ("labels", "all"),
    "jepa_split": "split_ratio",
    "jepa_k": "predictors",
    "jepa_lambda": "lbd",
    "linear": _linear,
    "linear_predictor": ("predictor_head", "linear"),
    "random_span_draw_both": ("tube_sampler", "draw_both"),
    "random_span_uniform": ("tube_sampler", "uniform"),
    "random_span_zero": ("tube_sampler", "zero"),
    "random_span_times": "tube_times",
    "random_span_max_length": "tube_max_length",
    "random_span_all": ("tube_content", "whole"),
    "random_span_e2e": ("tube_content", "with_markup"),
    "length_adjustment": "tube_length_adjustment",
    "debug": _debug,
}

# What the functions of the table set.
_SETS = {"linear": ("objective", "tube_mode"), "debug": ("debug", "debug_level")}


def published(*dataclass_types: Any, but: Mapping[str, Alias] | None = None) -> dict[str, Alias]:
    """The spellings that lead to options of these dataclasses, to values that they may have; and those of `but`."""
    known = {name: one for dtype in dataclass_types for name, one in options_of(dtype).items()}
    found: dict[str, Alias] = {}
    for name, target in PUBLISHED.items():
        if isinstance(target, str):
            fits = target in known
        elif isinstance(target, tuple):
            fits = target[0] in known
            try:
                fits = fits and known[target[0]].read(target[1]) is not None
            except BadValue:
                fits = False
        else:
            fits = all(field in known for field in _SETS[name])
        if fits:
            found[name] = target
    return found | dict(but or {})
