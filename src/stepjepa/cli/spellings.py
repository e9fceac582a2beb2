"""The one table of other spellings: flags of the method's first scripts -> fields of ours."""

from __future__ import annotations

from typing import Any

from stepjepa.cli.parser import Alias


def _debug(value: str) -> dict[str, Any]:
    """``--debug 5`` was a level of chatter; `TrainingArguments` has a ``--debug`` of its own, which takes words."""
    if value.lstrip("-").isdigit():
        level = int(value)
        return {"log_level": "debug" if level >= 5 else "info" if level >= 1 else "passive"}
    return {"debug": value}


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
    "debug": _debug,
}

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
