"""The one table of other spellings: flags of the method's first scripts -> fields of ours."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from stepjepa.cli.parser import Alias
from stepjepa.training.options import JEPAOptions, RunOptions


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


def notes(explicit: Collection[str], run: RunOptions, options: JEPAOptions) -> list[str]:
    """One line for everything that was asked for and does not mean what it meant in the published scripts."""
    lines = []
    if run.additive_mask:
        lines.append("--additive_mask: not needed; the packed forward computes the same numbers in one row")
    if options.objective == "llm_jepa" and "last_token" in explicit and "views" not in explicit and options.uses_pairs:
        lines.append("--last_token: views are read in context; the published form is --views standalone")
    if "jepa_ratio" in explicit and not run.additive_mask and options.jepa_ratio < 1:
        lines.append("--jepa_ratio: taken at its word; the published script ignores it without --additive_mask")
    return lines
