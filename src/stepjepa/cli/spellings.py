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


# Shown by `stepjepa train --help`; `--help_all` shows every field of TrainingArguments (and loads torch for it).
COMMON_TRAINER_FLAGS = {
    "output_dir": "Folder for the model, its records and checkpoints.",
    "num_train_epochs": "Epochs (default 3).",
    "max_steps": "Optimizer steps instead of epochs.",
    "learning_rate": "Default 2e-5; 1e-3 for a model that starts from random weights.",
    "per_device_train_batch_size": "Examples a micro-batch on each device (default 8); also --batch_size.",
    "gradient_accumulation_steps": "Micro-batches an optimizer step (default 1); also --grad_accum.",
    "lr_scheduler_type": "Default linear.",
    "warmup_steps": "Steps (or, below 1, the share of them) of learning-rate warm-up.",
    "max_grad_norm": "Gradient clipping (default 1.0).",
    "weight_decay": "Default 0.",
    "seed": "Seed of initialisation, order and dropout (default 42); also --finetune_seed.",
    "bf16": "Autocast to bfloat16; weights and losses stay float32.",
    "gradient_checkpointing": "Recompute activations in the backward pass to save memory.",
    "logging_steps": "Default 10.",
    "save_strategy": "no, steps (default), epoch or best.",
    "save_steps": "Default 500.",
    "save_total_limit": "Checkpoints kept.",
    "eval_strategy": "no (default), steps or epoch; needs --eval_file.",
    "resume_from_checkpoint": "true goes on from the newest whole checkpoint in output_dir; or a folder.",
    "dataloader_num_workers": "Worker processes that lay out the batches (default 0).",
    "report_to": "none (default), tensorboard, wandb, trackio.",
}
