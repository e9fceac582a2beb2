"""`JEPAConfig`: the method's options on top of `transformers.TrainingArguments`.

Options and arguments of `transformers.Trainer` either work as they do there, or are refused with a one-line error before
anything is written.
"""

from __future__ import annotations

import functools
import json
import math
import os
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
import transformers
from accelerate.utils import parse_flag_from_env

from stepjepa.config.option import Names, option, options_of, public_values
from stepjepa.config.spellings import by_our_names
from stepjepa.config.values import did_you_mean
from stepjepa.config.yaml_file import representable
from stepjepa.errors import ConfigError, said
from stepjepa.objectives.base import objective_of
from stepjepa.training.options import JEPAOptions, TrainerOptions

T = TypeVar("T")
# Upper bound of every number: the largest seed that all generators accept.
_MOST = 2**32 - 1
_TRAINER = "options of transformers.TrainingArguments"
# Known keys of `fsdp_config`. transformers ignores other keys, so a typo would go unnoticed.
_FSDP = (
    "version",
    "reshard_after_forward",
    "cpu_offload",
    "activation_checkpointing",
    "cpu_ram_efficient_loading",
    "state_dict_type",
    "auto_wrap_policy",
    "transformer_layer_cls_to_wrap",
    "min_num_params",
    "xla",
    "xla_fsdp_v2",
    "xla_fsdp_settings",
    "xla_fsdp_grad_ckpt",
    "forward_prefetch",
    "backward_prefetch",
    "use_orig_params",
    "sync_module_states",
    "limit_all_gathers",
)
# Prefixes of inherited options that do not affect the trained weights, so a resumed run may change them.
_BESIDES_TRAINING = (
    "log_",
    "logging_",
    "save_",
    "eval_",
    "hub_",
    "push_to_hub",
    "trackio_",
    "project",
    "run_name",
    "do_",
    "include_",
    "prediction_loss_only",
    "per_device_eval_",
    "batch_eval_",
    "metric_for_",
    "greater_is_",
    "label_names",
    "load_best_",
    "dataloader_p",
    "dataloader_m",
    "dataloader_in_",
    "skip_memory_",
    "ddp_timeout",
    "use_cpu",
    "restore_callback_",
    "enable_jit_",
    "torch_empty_",
    "debug",
    "remove_unused_",
    "average_tokens_",
)


def _by_our_names(config: type[T]) -> type[T]:
    """Let the constructor of `config` accept the other spellings of its options, as the command line does."""
    # This wraps the constructor that `@dataclass` generates, so it must be the outer decorator.
    construct: Any = config.__init__

    @functools.wraps(construct)
    def __init__(self: T, *args: Any, **options: Any) -> None:
        construct(self, *args, **by_our_names(options, config))

    config.__init__ = __init__  # type: ignore[method-assign, assignment]
    return config


@_by_our_names
@dataclass
class JEPAConfig(JEPAOptions, TrainerOptions, transformers.TrainingArguments):  # type: ignore[misc]  # narrower types
    """Arguments of `JEPATrainer`: every field of `TrainingArguments` and of `JEPAOptions`.

    Defaults that differ from `TrainingArguments`: ``learning_rate`` (the published 2e-5, 2e-4 for LoRA on a pretrained
    model, 1e-3 for a model that starts from random weights), ``logging_steps`` (10), ``logging_nan_inf_filter`` (false: a
    loss that is not finite is logged as it is), ``hub_strategy`` (end, the only supported value).

    Other spellings (names from transformers 4 and TRL) are accepted too; see `stepjepa.config.spellings`.

    Raises:
        ConfigError: a value cannot be used.
    """

    train_sampling_strategy: Literal["random", "sequential", "group_by_length"] = option(  # type: ignore[assignment]
        "random", "Order of the training examples.", _TRAINER
    )
    hub_strategy: Literal["end"] = option(  # type: ignore[assignment]
        "end",
        "What --push_to_hub uploads. Only end is supported: the final model, once training has ended.",
        _TRAINER,
        resume=True,
    )
    logging_nan_inf_filter: bool = option(
        False,
        "Leave losses that are not finite out of the logged means (waits for the device at every step).",
        _TRAINER,
        resume=True,
    )
    disable_tqdm: bool | None = option(
        None, "Print plain lines instead of a progress bar.", _TRAINER, resume=True, identity=False
    )
    adam_beta1: float = option(0.9, "Beta1 of Adam.", _TRAINER, at_least=0, below=1)
    adam_beta2: float = option(0.999, "Beta2 of Adam.", _TRAINER, at_least=0, below=1)
    per_device_eval_batch_size: int = option(
        8,
        "Examples per evaluation batch on each device.",
        _TRAINER,
        resume=True,
        at_least=1,
        at_most=2**20,
    )
    dataloader_prefetch_factor: int | None = option(
        None, "Batches that each worker prepares in advance.", _TRAINER, resume=True, at_least=1
    )
    local_rank: int = option(
        -1,
        "Local rank of this process, set by the launcher.",
        _TRAINER,
        resume=True,
        dumped=False,
        at_least=-1,
    )

    def __post_init__(self) -> None:
        self.check()
        self._check_inherited()
        self._check_sizes()
        # Without an accelerator, transformers requires `use_cpu` for several processes (gloo) and for bf16.
        if not torch.accelerator.is_available() and (
            self.bf16 or int(os.environ.get("WORLD_SIZE", "1")) > 1
        ):
            self.use_cpu = True
        try:
            super().__post_init__()
        except (TypeError, OSError, json.JSONDecodeError) as error:
            raise ConfigError(
                f"an option that holds several settings (..._config or ..._kwargs) cannot be read: {said(error)}"
            ) from None
        except (ValueError, ImportError, AttributeError) as error:
            raise ConfigError(said(error)) from None
        self._check_mappings()
        self._check_batch()
        # Rows are chats or packed forests; the Trainer would drop every column that the model's forward does not name.
        self.remove_unused_columns = False
        # Pinned memory is of use only for copies to an accelerator.
        if self.device.type == "cpu":
            self.dataloader_pin_memory = False

    def _check_mappings(self) -> None:
        """Refuse what transformers does not check in the options that hold several settings.

        Raises:
            ConfigError: `fsdp_config` has an unknown key, or the options of gradient checkpointing are no mapping.
        """
        keys = self.fsdp_config if isinstance(self.fsdp_config, dict) else ()
        for key in keys:
            if str(key).removeprefix("fsdp_") not in _FSDP:
                raise ConfigError(
                    f"{_NAME.fsdp_config} has no key {key!r}{did_you_mean(str(key), _FSDP)}"
                )
        # transformers renamed this option, and keeps both names for now.
        for name, value in vars(self).items():
            if name.endswith("_checkpointing_kwargs") and isinstance(value, str):
                raise ConfigError(f"{name} {value[:200]}: is not a JSON object")

    def _check_inherited(self) -> None:
        """Refuse options of `TrainingArguments` that would be ignored.

        Raises:
            ConfigError: such an option is set; the message says what to do instead.
        """
        # Any true value is refused.
        values: dict[str, Any] = {name: getattr(self, name) for name in _UNSUPPORTED}
        # `accelerate launch` turns on DeepSpeed through an environment variable.
        if not self.deepspeed:
            values[_NAME.deepspeed] = (
                parse_flag_from_env("ACCELERATE_USE_DEEPSPEED") and "set by accelerate"
            )
        for name, value in values.items():
            if value:
                raise ConfigError(
                    f"{name} is {value}, which this trainer does not support; {_UNSUPPORTED[name]}"
                )

    def _check_batch(self) -> None:
        """Refuse micro-batches of one example where the loss compares examples.

        Raises:
            ConfigError: the batch is too small.
        """
        sizes = (_NAME.per_device_train_batch_size, _NAME.per_device_eval_batch_size)
        single = [name for name in sizes if getattr(self, name) == 1]
        objective = objective_of(self)
        if not objective.makes_pairs or not single:
            return
        # InfoNCE and regularizers compare the pairs of all processes; targets are shuffled within a micro-batch.
        has_one_pair = self.world_size == 1 and not objective.several_pairs
        needs_more = {
            f"{_NAME.control}=shuffled": self.control == "shuffled",
            f"{_NAME.jepa_loss}=infonce": has_one_pair and self.jepa_loss == "infonce",
            f"{_NAME.regularizer}={self.regularizer}": has_one_pair and self.regularizer != "none",
        }
        for name, is_set in needs_more.items():
            if is_set:
                raise ConfigError(
                    f"{name} compares the examples of a micro-batch, which has only one; raise {single[0]}"
                )

    def _check_sizes(self) -> None:
        """Refuse numbers that are out of range, before the Trainer fails on them.

        Raises:
            ConfigError: a number is out of range, or the run would have no step.
        """
        for name in options_of(transformers.TrainingArguments):
            known, value = options_of(JEPAConfig)[name], getattr(self, name)
            is_number = {int, float}.issuperset(known.kinds)
            # Only options that this library declares have a group and bounds.
            if known.group is not None or is_number:
                known.check(value)
            lowest = -math.inf if known.bounds else 0
            if is_number and value is not None and not lowest <= value <= _MOST:
                raise ConfigError(f"{name} is {value!r}; it must be a number from 0 to {_MOST}")
        epochs = _NAME.num_train_epochs
        steps = _NAME.max_steps
        workers = _NAME.dataloader_num_workers
        # transformers would train for the epochs if the number of steps is 0.
        if self.max_steps == 0 or self.num_train_epochs <= 0 > self.max_steps:
            raise ConfigError(
                f"{epochs}={self.num_train_epochs} and {steps}={self.max_steps} give no step; set one of them to a positive "
                "number, and leave out the other"
            )
        if self.dataloader_persistent_workers and not self.dataloader_num_workers:
            raise ConfigError(
                f"{_NAME.dataloader_persistent_workers} needs worker processes; give {workers} too"
            )
        if self.streaming and self.max_steps < 0:
            raise ConfigError(
                f"streaming does not know the length of an epoch before training; give {steps}"
            )

    def to_dict(self) -> dict[str, Any]:
        """As `TrainingArguments.to_dict`, but ``last_token`` is shown, and ``objective_options`` has no secrets."""
        # transformers hides the value of every option whose name ends in `_token`.
        values, public = super().to_dict(), public_values(self)
        for name in (_NAME.last_token, _NAME.objective_options):
            values[name] = public[name]
        return values


_NAME = Names(JEPAConfig)
# Options of `TrainingArguments` that would be ignored, and what to do instead.
_UNSUPPORTED = {
    _NAME.label_smoothing_factor: "leave it out",
    _NAME.bf16_full_eval: "leave it out",
    _NAME.fp16_full_eval: "leave it out",
    _NAME.include_for_metrics: "compute_metrics gets only predictions and labels; leave it out",
    _NAME.use_liger_kernel: "it replaces parts of the model; leave it out",
    _NAME.deepspeed: f"shard the weights with {_NAME.fsdp}",
}


def usual_learning_rate(from_scratch: bool, adapter: bool) -> float:
    """The default learning rate for a model that starts from random weights, an adapter, or all weights of a pretrained
    model."""
    if from_scratch:
        return 1e-3
    return 2e-4 if adapter else 2e-5


def fixed_on_resume() -> list[str]:
    """The options of a `JEPAConfig` that a resumed run must share with its checkpoint."""
    fixed = []
    for name, known in options_of(JEPAConfig).items():
        # Inherited options do not declare whether they may change, so their names decide.
        may_change = known.group is None and name.startswith(_BESIDES_TRAINING)
        if not (known.resume or known.secret or may_change):
            fixed.append(name)
    return fixed


# The arguments of a Trainer

# Arguments of `transformers.Trainer` or `trl.SFTTrainer` that cannot be used here, and why or what to do instead.
_REFUSED = {
    "formatting_func": "rows are chats; write them as messages first, with dataset.map",
    "quantization_config": "load the model with it, and pass the model",
    "tokenizer": "pass it as processing_class",
    "data_collator": "the objective lays out the batches; leave it out",
    "compute_loss_func": f"the loss is gamma * LM + lbd * JEPA; set {_NAME.jepa_loss}, lbd and gamma",
    "preprocess_logits_for_metrics": "compute_metrics gets the most likely ids, not logits; leave it out",
    "model_init": "pass the model, or its name",
}


def check_arguments(arguments: dict[str, Any]) -> None:
    """Refuse arguments that a `JEPATrainer` would ignore.

    Raises:
        ConfigError: there is such an argument; the message says what to do instead.
    """
    for name, reason in _REFUSED.items():
        if arguments.get(name) is not None:
            raise ConfigError(f"JEPATrainer does not take {name}: {reason}")


def check_optimizer(args: JEPAConfig, model: transformers.PreTrainedModel) -> None:
    """Refuse an optimizer or a schedule that cannot be constructed.

    Raises:
        ConfigError: its library is not installed, or its options do not fit.
    """
    # Imported here, so that listing the options does not wait for it.
    from transformers import Trainer, get_scheduler

    # Construct both once, before anything is written. The schedule has one step and no warm-up.
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    schedule_options: Any = args.lr_scheduler_kwargs
    try:
        Trainer.get_optimizer_cls_and_kwargs(args, model)
        get_scheduler(args.lr_scheduler_type, optimizer, 0, 1, schedule_options)
    except (ImportError, ValueError, TypeError) as error:
        schedule = f"{_NAME.lr_scheduler_type} {representable(args.lr_scheduler_type)}"
        raise ConfigError(
            f"{_NAME.optim} {representable(args.optim)} or {schedule} cannot be constructed: {said(error)}"
        ) from error
