"""`JEPAConfig`: the method's options on top of `transformers.TrainingArguments`."""

from __future__ import annotations

import copy
import math
import os
from dataclasses import dataclass, field, fields
from typing import Any, get_args, get_type_hints

import torch
import transformers

from stepjepa.data.fields import is_secret
from stepjepa.errors import ConfigError
from stepjepa.training.options import JEPAOptions

_INHERITED = transformers.TrainingArguments.__dataclass_fields__
# What the Trainer's numbers may be; it checks few of them itself, and late.
_MOST = 2**32 - 1  # of any: the largest seed that all generators take
_MOST_ROWS = 2**20  # of a micro-batch: the last one of an epoch is filled up to it
_LEAST = {
    **dict.fromkeys(
        "per_device_train_batch_size per_device_eval_batch_size gradient_accumulation_steps ddp_timeout "
        "dataloader_prefetch_factor eval_accumulation_steps torch_empty_cache_steps ddp_bucket_cap_mb".split(),
        1,
    ),
    **dict.fromkeys(
        "learning_rate seed data_seed logging_steps save_steps eval_steps eval_delay warmup_steps weight_decay "
        "max_grad_norm adam_beta1 adam_beta2 adam_epsilon num_train_epochs save_total_limit dataloader_num_workers "
        "neftune_noise_alpha".split(),
        0,
    ),
    "max_steps": -1,
    "local_rank": -1,
}


@dataclass
class JEPAConfig(JEPAOptions, transformers.TrainingArguments):
    """Arguments of `JEPATrainer`: every field of `TrainingArguments`, and those of `JEPAOptions`.

    Defaults that differ from `TrainingArguments`: ``learning_rate`` 2e-5 (the published one), ``logging_steps`` 10,
    ``report_to`` none, ``logging_nan_inf_filter`` false (a loss that is not finite is logged as what it is),
    ``hub_strategy`` end (the only one).

    Raises:
        ConfigError: a value that cannot be used.
    """

    learning_rate: float = field(default=2e-5, metadata={"help": "Initial learning rate of AdamW."})
    logging_steps: float = field(default=10, metadata={"help": "Log every so many steps (a share if below 1)."})
    hub_strategy: str = field(  # type: ignore[assignment]
        default="end", metadata={"help": "What --push_to_hub uploads: the final model, when training has ended (end)."}
    )
    report_to: None | str | list[str] = field(
        default="none", metadata={"help": "Where logs go: none, tensorboard, wandb, trackio, all."}
    )

    logging_nan_inf_filter: bool = field(
        default=False,
        metadata={"help": "Leave losses that are not finite out of the logged means (waits for every step)."},
    )

    def __post_init__(self) -> None:
        self.check()
        self.check_inherited()
        self.check_sizes()
        if not torch.accelerator.is_available() and (self.bf16 or int(os.environ.get("WORLD_SIZE", "1")) > 1):
            self.use_cpu = True  # without an accelerator, several processes (gloo) and bf16 are had only if told so
        try:
            super().__post_init__()
        except (ValueError, ImportError) as error:
            raise ConfigError(" ".join(str(error).split())) from None
        self.check_batch()
        # Rows are chats or packed forests; there are no model inputs to select among their columns.
        self.remove_unused_columns = False
        if self.device.type == "cpu":
            self.dataloader_pin_memory = False

    def check_inherited(self) -> None:
        """Refuse options of `TrainingArguments` that would be ignored.

        Raises:
            ConfigError: such an option is set.
        """
        ignored = {
            "label_smoothing_factor": self.label_smoothing_factor != 0,
            "bf16_full_eval": self.bf16_full_eval,
            "fp16_full_eval": self.fp16_full_eval,
            "train_sampling_strategy": getattr(self, "train_sampling_strategy", "random")
            not in ("random", "sequential", "group_by_length"),
        }
        strategy = getattr(self.hub_strategy, "value", self.hub_strategy)
        if strategy != "end":
            raise ConfigError(
                f"hub_strategy is {strategy}, and checkpoints are not uploaded; use end: the final model, after training"
            )
        for name, is_set in ignored.items():
            if is_set:
                raise ConfigError(f"{name} is {getattr(self, name)}, which this trainer does not do; leave it out")

    def check_batch(self) -> None:
        """Refuse a batch of one pair for what compares the pairs of a batch.

        Raises:
            ConfigError: InfoNCE without a negative, or shuffled targets without another example.
        """
        single = [
            name for name in ("per_device_train_batch_size", "per_device_eval_batch_size") if getattr(self, name) == 1
        ]
        if not self.uses_pairs or not single:
            return
        if self.control == "shuffled":
            raise ConfigError(
                f"control=shuffled takes targets of other examples of the micro-batch, of one: raise {single[0]}"
            )
        several = self.step_pairs == "all" or (self.step_pairs == "first" and len(self.horizons) > 1)
        if self.world_size > 1 or (self.objective == "step_jepa" and several):
            return
        if self.jepa_loss == "infonce":
            raise ConfigError(
                f"jepa_loss=infonce is 0 where a micro-batch has one pair to choose from: raise {single[0]}"
            )
        if self.regularizer != "none":
            raise ConfigError(
                f"regularizer={self.regularizer} compares pairs, and a micro-batch has one: raise {single[0]}"
            )

    def check_sizes(self) -> None:
        """Refuse numbers that the Trainer would stumble over later.

        Raises:
            ConfigError: a number out of its range.
        """
        hints = get_type_hints(transformers.TrainingArguments)
        for name, hint in hints.items():
            kinds = {hint, *get_args(hint)}
            value, lowest = getattr(self, name, None), _LEAST.get(name, -math.inf)
            most = _MOST_ROWS if name.startswith("per_device_") else _MOST
            if not kinds & {int, float} or name not in _INHERITED or (value is None and type(None) in kinds):
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not lowest <= value <= most:
                wanted = f"a number of {lowest} or more" if name in _LEAST and value != math.inf else "a finite number"
                raise ConfigError(f"{name} is {value!r}; it must be {wanted}, and at most {most}")
        for name in ("adam_beta1", "adam_beta2"):
            if not getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 0 and below 1")
        if self.num_train_epochs <= 0 and self.max_steps < 0:
            raise ConfigError(f"num_train_epochs is {self.num_train_epochs}; give a positive number, or max_steps")
        if self.max_steps == 0:
            raise ConfigError("max_steps is 0; give the number of steps, or leave it out to train num_train_epochs")
        if self.streaming and self.max_steps < 0:
            raise ConfigError("streaming reads no data before it trains, so an epoch has no length: give max_steps")

    def to_dict(self) -> dict[str, Any]:
        """As `TrainingArguments.to_dict`, which hides every name that ends in ``_token`` as if it were a secret."""
        return {**super().to_dict(), "last_token": self.last_token}

    def __getstate__(self) -> dict[str, Any]:
        """Without secrets: ``training_args.bin`` lies in every checkpoint. A copy in memory keeps them."""
        secrets = {one.name: one.default for one in fields(self) if is_secret(one)}
        return {**self.__dict__, **secrets}

    def __copy__(self) -> JEPAConfig:
        made = object.__new__(type(self))
        made.__dict__ |= self.__dict__
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> JEPAConfig:
        made = object.__new__(type(self))
        made.__dict__ |= copy.deepcopy(self.__dict__, memo)
        return made
