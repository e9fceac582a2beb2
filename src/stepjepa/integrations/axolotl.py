"""A plugin for Axolotl that adds a JEPA objective to the LM loss.

    plugins: [stepjepa.integrations.axolotl.JEPAPlugin]
    jepa: {objective: step_jepa, predictors: 2, lbd: 0.1}

Axolotl loads the data sets and maps their fields and roles; `stepjepa.parts` tokenises the chats, lays them out and computes
the loss. Optimizer, schedule, adapters, checkpoints and reporting are Axolotl's. Written for Axolotl 0.19.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from axolotl.common.datasets import TrainDatasetMeta
from axolotl.core.trainers import AxolotlTrainer
from axolotl.integrations.base import BasePlugin
from axolotl.loaders import load_tokenizer
from axolotl.loaders.utils import load_model_config
from axolotl.prompt_strategies.chat_template import ChatTemplateStrategy
from axolotl.prompt_strategies.chat_template import load as load_strategy
from axolotl.utils.data.shared import (
    create_train_validation_split,
    datasets_with_name_generator,
    load_dataset_with_config,
    merge_datasets,
)
from axolotl.utils.dict import DictDefault, remove_none_values
from axolotl.utils.distributed import is_main_process
from datasets import Dataset, DatasetDict, Features, Value
from peft import PeftModel
from pydantic import BaseModel
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainerCallback,
)
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, TrainOutput

from stepjepa import parts
from stepjepa.config.option import Names
from stepjepa.data.columns import CHAT_COLUMNS, TOOLS
from stepjepa.data.types import LM, Batch, Example
from stepjepa.errors import ConfigError, StepJepaError
from stepjepa.modeling.extras import begin_targets, save_extras, save_predictors
from stepjepa.modeling.parts import causal_lm
from stepjepa.objectives.base import objective_of
from stepjepa.training.checkpoints import LoadedCheckpoints
from stepjepa.training.metrics import LossMeter
from stepjepa.training.options import LoopOptions
from stepjepa.training.sampling import Draw
from stepjepa.utils.terminal import say

_NAME = Names(LoopOptions)
# Keys of Axolotl's configuration that cannot be combined with the objective if their value is true.
_REFUSED = (
    "activation_offloading batch_flattening chunked_cross_entropy cut_cross_entropy dataset_exact_deduplication "
    "dataset_shard_num deepspeed do_bench_eval do_causal_lm_eval eot_tokens eval_sample_packing eval_sequence_len "
    "fix_untrained_tokens flash_attn_cross_entropy flash_attn_fuse_mlp flash_optimum fsdp fsdp_config generate_samples "
    "group_by_length include_tokens_per_second is_multimodal liger_fused_linear_cross_entropy neftune_noise_alpha "
    "pretraining_dataset process_reward_model push_dataset_to_hub qat relora reward_model rl sample_packing streaming "
    "tiled_mlp torch_compile train_on_inputs trainer_cls use_eaft use_pose"
).split()
# Keys that can be combined with the objective only if they have one of these values.
_ALLOWED: dict[str, tuple[object, ...]] = {
    "attn_implementation": ("sdpa", "eager", "flex_attention"),
    "context_parallel_size": (1,),
    "excess_length_strategy": ("drop", "truncate"),
    "tensor_parallel_size": (1,),
}


class JEPAArgs(BaseModel):
    """The key that the plugin adds to Axolotl's configuration: the options of `stepjepa.parts.Encoder`, by name."""

    jepa: dict[str, Any] | None = None


@contextmanager
def _or_exit() -> Iterator[None]:
    """For a mistake of the user, end the process with one line instead of a traceback."""
    try:
        yield
    except StepJepaError as error:
        raise SystemExit(f"stepjepa: {error}") from None


# Data


class EpochExamples(torch.utils.data.Dataset[Example]):
    """The examples of an epoch, in the order of the rows.

    Attributes:
        encoder: the encoder that has read the rows.
        epoch: the epoch, from 0, which the trainer sets.
    """

    # Axolotl drops the columns of a data set that the model does not read; None means that there are none.
    column_names = None

    def __init__(self, encoder: parts.Encoder, rows: Dataset):
        self.encoder, self.epoch = encoder, 0
        self._data = encoder.read(rows)
        if encoder.report is not None:
            say("\n".join(encoder.report.lines()))

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, row: int) -> Example:
        return self._data[Draw(self.epoch, row)]


def check_config(cfg: DictDefault) -> None:
    """Refuse keys that cannot be combined with a JEPA objective.

    Raises:
        ConfigError: the message names the key.
    """
    for key in (*_REFUSED, *_ALLOWED):
        allowed = _ALLOWED.get(key, ())
        if cfg[key] and cfg[key] not in allowed:
            advice = " or ".join(map(str, allowed))
            raise ConfigError(
                f"{key} {cfg[key]!r} cannot be combined with the JEPA plugin; "
                f"{'give ' + advice if advice else 'leave it out'}"
            )


def make_encoder(cfg: DictDefault, tokenizer: PreTrainedTokenizerBase) -> parts.Encoder:
    """Construct the encoder with the options under ``jepa``; defaults for some of them follow from Axolotl's own keys.

    Raises:
        ConfigError: an option cannot be used.
    """
    # Options under `jepa` override these.
    derived = {
        _NAME.max_length: cfg.sequence_len,
        _NAME.drop_longer: cfg.excess_length_strategy != "truncate",
        _NAME.seed: cfg.seed,
        _NAME.dataset_num_proc: cfg.dataset_num_proc,
        _NAME.chat_template_kwargs: cfg.chat_template_kwargs,
    }
    # A model without memory for its weights: the encoder needs only its positions and vocabulary.
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(
            load_model_config(cfg), trust_remote_code=cfg.trust_remote_code
        )
    try:
        return parts.Encoder(
            tokenizer, model, **{**remove_none_values(derived), **(cfg.jepa or {})}
        )
    except ConfigError as error:
        raise ConfigError(f"jepa: {error}") from None


def read_chats(
    cfg: DictDefault, entries: list[DictDefault], split: str, encoder: parts.Encoder
) -> Dataset:
    """Read data sets that the configuration lists as chats, with the roles and fields that their entries name.

    Raises:
        ConfigError: the plugin does not support an entry.
    """
    # Axolotl's own functions load and map the rows, so every format that Axolotl reads works here too.
    data_sets = []
    for entry in datasets_with_name_generator(entries):
        strategy = load_strategy(encoder.tokenizer, cfg, entry)
        check_entry(entry, strategy, encoder.tokenizer)
        loaded = load_dataset_with_config(entry, cfg.hf_use_auth_token)
        if isinstance(loaded, DatasetDict):
            loaded = loaded[entry.split if entry.split in loaded else split]
        names = (encoder.options.steps_column, encoder.options.jepa_target_column)
        kept = [name for name in names if name is not None and name in loaded.column_names]
        # Without types, `map` would cast a text to the type of an earlier column of the same name.
        types = dict.fromkeys((CHAT_COLUMNS[0], TOOLS), Value("string"))
        types |= {name: loaded.features[name] for name in kept}
        as_row = partial(chat_row, strategy=strategy, kept=kept)
        data_sets.append(
            loaded.map(as_row, remove_columns=loaded.column_names, features=Features(types))
        )
    return merge_datasets(data_sets, cfg)


def check_entry(
    entry: DictDefault, strategy: ChatTemplateStrategy, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Refuse an entry of ``datasets`` whose labels or chat template differ from the encoder's.

    Raises:
        ConfigError: the message names the key.
    """
    # Key -> whether its value is what the encoder uses.
    fits = {
        "type": entry.type == "chat_template",
        "chat_template": strategy.prompter.chat_template == tokenizer.chat_template,
        "roles_to_train": strategy.roles_to_train == ["assistant"],
        "train_on_eos": strategy.train_on_eos == "turn",
        "train_on_eot": strategy.train_on_eot == "turn",
        "message_field_training_detail": not entry.message_field_training_detail,
        "shards": not entry.shards,
    }
    for key, fit in fits.items():
        if not fit:
            raise ConfigError(
                f"datasets: {entry.path}: {key} {entry[key]!r} cannot be combined with the JEPA plugin; use type "
                "chat_template with the run's chat template, and train on all assistant turns with their end of turn"
            )


def chat_row(
    row: Mapping[str, Any], strategy: ChatTemplateStrategy, kept: Iterable[str]
) -> dict[str, Any]:
    """A row with the columns that the encoder reads: the chat as Axolotl maps it, the tools, and the columns in `kept`.

    Raises:
        ConfigError: a message of another role, or only a part of a message, is to be trained on.
    """
    row = remove_none_values(row)
    turns = strategy.get_conversation_thread(row)
    for turn in turns:
        foreign = turn.get("training") and turn["role"] != "assistant"
        if foreign or turn.get("training_detail"):
            raise ConfigError(
                "message_field_training: only whole messages of the assistant can be trained on; unmark the others"
            )
    tools = row.get(strategy.prompter.field_tools, [])
    columns = {name: row.get(name) for name in kept}
    # As JSON texts, because a table gives every message the keys of all others, with None.
    columns[CHAT_COLUMNS[0]] = json.dumps(turns)
    columns[TOOLS] = tools if isinstance(tools, str) else json.dumps(tools)
    return columns


# Training


class JEPAEvents(TrainerCallback):
    """Sets the epoch of the examples, updates the target encoder, and saves the predictor rows and head with a
    checkpoint."""

    def __init__(self, examples: EpochExamples):
        self.examples = examples

    def on_epoch_begin(self, args, state, control, **kwargs):
        """See `TrainerCallback`."""
        self.examples.epoch = int(state.epoch or 0)

    def on_optimizer_step(self, args, state, control, model=None, **kwargs):
        """See `TrainerCallback`."""
        # The Trainer counts the step only after this event.
        parts.move_target_encoder(model, (state.global_step + 1) / state.max_steps)

    def on_save(self, args, state, control, model=None, **kwargs):
        """See `TrainerCallback`."""
        save_extras(
            model,
            Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}",
            args.should_save,
        )


class AxolotlJEPATrainer(AxolotlTrainer):
    """Axolotl's trainer with the loss ``gamma * LM + lbd * JEPA``, divided by the counts of the whole optimizer step.

    Args:
        model: Axolotl's model with its adapter, to which the objective is attached here.
        train_dataset: `EpochExamples`.
        arguments: arguments of Axolotl's trainer, in which the collators are replaced.
    """

    def __init__(
        self, model: PreTrainedModel | PeftModel, train_dataset: EpochExamples, **arguments: Any
    ):
        encoder = self.encoder = train_dataset.encoder
        # Before the Trainer wraps the model or creates an optimizer.
        with _or_exit():
            model = parts.attach(model, encoder)
        collate = parts.Collator(encoder, model)
        arguments |= {"data_collator": collate, "eval_data_collator": collate}
        super().__init__(model=model, train_dataset=train_dataset, **arguments)
        # With this, the Trainer does not divide the loss by the number of micro-batches again.
        self.model_accepts_loss_kwargs = True
        self.objective = objective_of(encoder.options)
        self.meter = LossMeter((LM, *self.objective.part_names))
        if self.objective.makes_pairs:
            begin_targets(model, encoder.options.target_encoder)
        self.add_callback(JEPAEvents(train_dataset))

    def train(self, resume_from_checkpoint: str | None = None, **arguments: Any) -> TrainOutput:
        """As `Trainer.train`; a checkpoint also restores the predictor rows, the head and the target encoder."""
        self.add_callback(
            LoadedCheckpoints(Path(resume_from_checkpoint) if resume_from_checkpoint else None)
        )
        return super().train(resume_from_checkpoint=resume_from_checkpoint, **arguments)

    def get_batch_samples(
        self, epoch_iterator: Iterator[Batch], num_batches: int, device: torch.device
    ) -> tuple[list[Batch], dict[str, Tensor]]:
        """The micro-batches of one optimizer step, and the divisors of the parts of their loss, scalars by name."""
        # The Trainer passes the second value on as `num_items_in_batch`; its own value is a single number, the count of
        # labels.
        batches = list(islice(epoch_iterator, num_batches))
        return batches, self.accelerator.reduce(parts.counts(self.encoder, batches))

    def compute_loss(
        self,
        model: nn.Module,
        inputs: Batch,
        num_items_in_batch: dict[str, Tensor] | None = None,
    ) -> Tensor:
        """The loss of one micro-batch, a scalar, divided by the counts of the step or, in an evaluation, by those of the
        micro-batch."""
        step = self.state.global_step
        output = parts.forward(model, inputs, step)
        loss = parts.loss(output, self.encoder.lbd(step, self.state.max_steps), num_items_in_batch)
        if num_items_in_batch is None:
            return loss
        self.meter.add(output, inputs)
        # DDP averages the gradients of the processes, but the counts already include all processes.
        return loss * self.accelerator.num_processes

    def prediction_step(
        self,
        model: nn.Module,
        inputs: Batch,
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[Tensor, None, None]:
        """The loss of one batch, a scalar, without predictions."""
        with torch.no_grad():
            return self.compute_loss(model, self._prepare_inputs(inputs)), None, None

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the parts of the loss, the number of pairs, the speed and the signs of collapse to the training log."""
        if "loss" in logs:
            logs = {
                **logs,
                **self.meter.metrics(self.objective.makes_pairs, self.accelerator),
                **self.meter.speed(),
            }
            self.meter = LossMeter(self.meter.names)
        super().log(logs, start_time)

    def floating_point_ops(self, inputs: Batch) -> float:
        """FLOPs are not counted."""
        return 0.0

    def _prepare_inputs(self, inputs: Batch) -> Batch:
        # The Trainer moves only dicts and lists of tensors, and a `Batch` is neither.
        return inputs.to(self.args.device)


class JEPAPlugin(BasePlugin):
    """Trains with the JEPA objective that the key ``jepa`` of the configuration names."""

    def get_input_args(self) -> str:
        """The name of the class that adds the key ``jepa``."""
        return f"{__name__}.{JEPAArgs.__name__}"

    def load_datasets(self, cfg: DictDefault, preprocess: bool = False) -> TrainDatasetMeta:
        """The examples of the data sets that the configuration names."""
        with _or_exit():
            check_config(cfg)
            encoder = make_encoder(cfg, load_tokenizer(cfg))
            rows, held_out = read_chats(cfg, cfg.datasets, "train", encoder), None
            if cfg.test_datasets:
                held_out = read_chats(cfg, cfg.test_datasets, "test", encoder)
            elif cfg.val_set_size:
                # A number above 1 is a number of rows, any other a share of the rows.
                size = int(cfg.val_set_size) if cfg.val_set_size > 1 else cfg.val_set_size
                rows, held_out = create_train_validation_split(rows, cfg, size)
            evaluated = held_out and EpochExamples(encoder, held_out)
            trained = EpochExamples(encoder, rows)
        steps = math.ceil(len(trained) * cfg.num_epochs / cfg.batch_size)
        return TrainDatasetMeta(trained, evaluated, min(steps, cfg.max_steps or steps))

    def get_trainer_cls(self, cfg: DictDefault) -> type[AxolotlJEPATrainer]:
        """The class of the trainer with the JEPA loss."""
        return AxolotlJEPATrainer

    def post_train(self, cfg: DictDefault, model: nn.Module) -> None:
        """Write the predictor rows and the head next to the model, and detach the objective, so that Axolotl writes a plain
        model."""
        if is_main_process():
            save_predictors(causal_lm(model), cfg.output_dir)
        parts.detach(model)
