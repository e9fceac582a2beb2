"""What the interface of `transformers.Trainer` takes is kept, or refused in one line before anything is written."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from transformers import Trainer, get_scheduler

from stepjepa.config.option import options_of
from stepjepa.errors import ConfigError
from stepjepa.training.config import JEPAConfig

_REFUSED = {
    "data_collator": "batches are laid out by the objective",
    "compute_loss_func": "the loss is gamma * LM + lbd * JEPA (jepa_loss, lbd and gamma choose it)",
    "preprocess_logits_for_metrics": "compute_metrics gets the most likely ids, not logits",
    "model_init": "give the model, or its name",
}


def check_arguments(given: dict[str, Any]) -> None:
    """Refuse arguments of `Trainer` that a `JEPATrainer` would ignore.

    Raises:
        ConfigError: such an argument is given.
    """
    for name, reason in _REFUSED.items():
        if given.get(name) is not None:
            raise ConfigError(f"JEPATrainer takes no {name}: {reason}; leave it out")


def check_optimizer(args: JEPAConfig, model: Any) -> None:
    """Refuse an optimizer or a schedule that cannot be made.

    Raises:
        ConfigError: a library or an option of it is missing.
    """
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    schedule: Any = {
        "num_warmup_steps": 0,
        "num_training_steps": 1,
        "scheduler_specific_kwargs": args.lr_scheduler_kwargs,
    }
    for name, make in (
        ("optim", lambda: Trainer.get_optimizer_cls_and_kwargs(args, model)),
        ("lr_scheduler_type", lambda: get_scheduler(args.lr_scheduler_type, optimizer, **schedule)),
    ):
        try:
            make()
        except (ImportError, ValueError, TypeError) as error:
            value = getattr(getattr(args, name), "value", getattr(args, name))
            raise ConfigError(f"{name} is {value}, which cannot be made: {' '.join(str(error).split())}") from error


def full_config(args: transformers.TrainingArguments | None) -> JEPAConfig:
    """The configuration of a run; a plain `TrainingArguments` gives its values, and the method has its defaults."""
    if args is None:
        return JEPAConfig()
    if isinstance(args, JEPAConfig):
        return args
    own = options_of(JEPAConfig)
    given = {name: getattr(args, name) for name in options_of(transformers.TrainingArguments)}
    for name in [name for name in given if name.startswith("gradient_checkpointing")]:
        del given[name]  # an old name, of what activation_checkpointing holds
    if not args.push_to_hub:
        del given["hub_strategy"]
    return JEPAConfig(**{name: value for name, value in given.items() if value != own[name].default})
