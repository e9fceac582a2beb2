"""The arms of the benchmark: each a real trainer, driven a few optimizer steps at a time over the same rows."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from doubled import DoubledCollator, DoubledTrainer, make_examples, predictor_tokenizer
from transformers import DataCollatorForSeq2Seq, Trainer, TrainingArguments
from workload import OBJECTIVES, Workload

from stepjepa import JEPAConfig, JEPATrainer
from stepjepa.modeling.load import ATTENTION_ASKED, load_model
from stepjepa.modeling.lora import lora_config

ARMS = ("regular", "jepa", "jepa_sdpa", "jepa_checkpointed", "two_pass", "doubled", "trl_default", "trl_best")


@dataclass(frozen=True)
class Work:
    """What an arm did in some seconds: examples, their chat tokens, and the positions that the model computed; and the peak
    of the GPU's memory meanwhile over what was held before, in MiB."""

    seconds: float
    steps: int
    examples: int
    tokens: int
    positions: int
    peak_mib: float | None


class Arm:
    """A trainer whose optimizer steps can be run a few at a time, in turns with other arms.

    A step is what the Trainer's own loop does with accumulation 1: take a batch from the trainer's data loader
    (collation included), `training_step` (forward, loss, backward), clip, AdamW, zero the gradients. Tokenisation lies
    before, the log behind.

    Args:
        name: one of `ARMS`.
        trainer: its data loader must give the rows in order.
        lengths: (rows,) chat tokens of each row.
        steps: optimizer steps of one round.

    Attributes:
        clock: what `Work.seconds` is read from. `time.process_time` counts the processor's time for all threads together,
            which a busy machine disturbs less; with one thread it is the time of a quiet machine.
    """

    clock = staticmethod(time.perf_counter)

    def __init__(self, name: str, trainer: Trainer, lengths: np.ndarray, steps: int):
        self.name, self.trainer, self.lengths, self.steps = name, trainer, lengths, steps
        args = trainer.args
        self.batch_size = args.per_device_train_batch_size
        if args.gradient_checkpointing:  # `Trainer.train` would do this
            _checkpoint(trainer.model, args)
        trainer.current_gradient_accumulation_steps = 1
        trainer.create_optimizer()
        self._loader = trainer.get_train_dataloader()
        self._batches: Iterator[Any] = iter(self._loader)
        self._row = 0

    def run(self, steps: int | None = None) -> Work:
        """Run `steps` optimizer steps (a round's if None) and say what was done."""
        steps = self.steps if steps is None else steps
        tokens = positions = 0
        cuda = self.trainer.args.device.type == "cuda"
        if cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated() if cuda else 0
        start = self.clock()
        for _ in range(steps):
            positions += self._step()
            tokens += int(self.lengths[self._row : self._row + self.batch_size].sum())
            self._row = (self._row + self.batch_size) % len(self.lengths)
        if cuda:
            torch.cuda.synchronize()
        seconds = self.clock() - start
        peak = (torch.cuda.max_memory_allocated() - held) / 2**20 if cuda else None
        return Work(seconds, steps, steps * self.batch_size, tokens, positions, peak)

    def _step(self) -> int:
        trainer = self.trainer
        batches, items = trainer.get_batch_samples(self._batches, 1, trainer.args.device)
        if not batches:
            self._batches = iter(self._loader)
            batches, items = trainer.get_batch_samples(self._batches, 1, trainer.args.device)
        batch = batches[0]
        positions = _positions(batch)
        with trainer.accelerator.autocast():  # which `Trainer.train` would wrap around the model
            trainer.training_step(trainer.model, batch, items)
        trainer.accelerator.clip_grad_norm_(trainer.model.parameters(), trainer.args.max_grad_norm)
        trainer.optimizer.step()
        trainer.model.zero_grad()
        return positions


def _positions(batch: Any) -> int:
    """Positions of all rows of a batch: our own, or a mapping of tensors."""
    if hasattr(batch, "every_rows"):
        return sum(rows.input_ids.numel() for rows in batch.every_rows)
    return sum(value.numel() for key, value in batch.items() if key.endswith("input_ids"))


def _checkpoint(model: Any, args: TrainingArguments) -> None:
    if hasattr(model, "activation_checkpointing_enable"):  # the newer name
        model.activation_checkpointing_enable()
    else:
        model.gradient_checkpointing_enable(args.gradient_checkpointing_kwargs)


def build_arm(name: str, workload: Workload, folder: str, batch_size: int, steps: int) -> Arm:
    """Build one arm with a model of its own (the same weights for all).

    Args:
        name: one of `ARMS`.
        workload: rows and tokenizer.
        folder: where trainers may write; nothing is written.
        batch_size: examples of an optimizer step.
        steps: optimizer steps of a round.
    """
    if name == "doubled":
        steps = 1  # so slow that a round of it is one step
    common = common_arguments(folder, batch_size, workload.gpu, workload.dtype)
    model = _model(workload)
    if name == "doubled":
        trainer = _doubled(workload, model, common)
    elif name.startswith("trl_"):
        trainer = _trl(workload, model, common, name)
    elif name == "transformers":
        trainer = _transformers(workload, model, common)
    else:
        return library_arm(name, method_of(name, workload), workload, folder, batch_size, steps)
    return Arm(name, trainer, chat_lengths(workload), steps)


def library_arm(name: str, method: dict[str, Any], workload: Workload, folder: str, batch_size: int, steps: int) -> Arm:
    """An arm of this library with the given options of `JEPAConfig`; the rest as in `build_arm`."""
    model = _model(workload, asked=name == "jepa_sdpa" or workload.attention is not None)
    common = common_arguments(folder, batch_size, workload.gpu, workload.dtype)
    config = JEPAConfig(max_length=workload.max_length, **method, **common)
    rows = [{"messages": chat} for chat in workload.chats]
    trainer = JEPATrainer(
        model, config, train_dataset=rows, processing_class=workload.tokenizer, peft_config=_adapter(workload)
    )
    if config.torch_compile:  # which `Trainer.train` would do
        trainer.model = trainer.accelerator.prepare(trainer.model)
    return Arm(name, trainer, chat_lengths(workload), steps)


@cache
def _drawn(name: str, tokenizer: Any, dtype: str, device: str) -> Any:
    with torch.device(device):
        return load_model(name, tokenizer, pretrain=True, dtype=dtype)


def _model(workload: Workload, asked: bool = False) -> Any:
    """A model with the weights of all arms, which attends by `sdpa`, as if that were asked for or as it comes."""
    device = "cuda" if workload.gpu else "cpu"
    model = copy.deepcopy(_drawn(workload.model, workload.tokenizer, workload.dtype, device))
    if workload.attention is not None:
        model.set_attn_implementation(workload.attention)
    object.__setattr__(model, ATTENTION_ASKED, asked)
    return model


def _adapter(workload: Workload) -> Any:
    return lora_config(rank=16, dropout=0.0) if workload.lora else None


def common_arguments(folder: str, batch_size: int, gpu: bool = False, dtype: str = "float32") -> dict[str, Any]:
    """Training arguments that all arms share: the weights' dtype on CPU; on a GPU bfloat16, of float32 by autocast."""
    return {
        "output_dir": folder,
        "per_device_train_batch_size": batch_size,
        "train_sampling_strategy": "sequential",
        "learning_rate": 1e-4,
        "max_grad_norm": 1.0,
        "max_steps": 10**6,
        "use_cpu": not gpu,
        "bf16": gpu and dtype == "float32",
        "dataloader_pin_memory": gpu,
        "report_to": "none",
        "save_strategy": "no",
        "eval_strategy": "no",
        "disable_tqdm": True,
    }


def chat_lengths(workload: Workload) -> np.ndarray:
    """Tokens of each chat, (rows,) int64."""
    texts = [workload.tokenizer.apply_chat_template(chat, tokenize=False) for chat in workload.chats]
    return np.array([len(ids) for ids in workload.tokenizer(texts, add_special_tokens=False)["input_ids"]])


def method_of(name: str, workload: Workload) -> dict[str, Any]:
    """Options of `JEPAConfig` for one of this library's arms."""
    method: dict[str, Any] = {"objective": "regular"} if name == "regular" else dict(OBJECTIVES[workload.name])
    method["forward"] = "two_pass" if name == "two_pass" else "packed"
    method["gradient_checkpointing"] = name == "jepa_checkpointed"
    return method


def _doubled(workload: Workload, model: Any, common: dict[str, Any]) -> Trainer:
    """The published doubled row; see `doubled`."""
    tokenizer, predictors = predictor_tokenizer(workload.tokenizer, OBJECTIVES[workload.name]["predictors"])
    model.resize_token_embeddings(max(len(tokenizer), model.config.vocab_size), mean_resizing=False)
    return DoubledTrainer(
        model=model,
        args=TrainingArguments(remove_unused_columns=False, **common),
        train_dataset=make_examples(workload, tokenizer, predictors),
        data_collator=DoubledCollator(tokenizer.pad_token_id),
    )


def _trl(workload: Workload, model: Any, common: dict[str, Any], name: str) -> Trainer:
    """TRL's `SFTTrainer` on the same chats: plain fine-tuning.

    `trl_default`: its defaults but for float32 (chats of 1,024 tokens at most, padded to the longest of the batch,
    gradient checkpointing, loss on all tokens). `trl_best`: no checkpointing, and the loss on the answer only.
    `trl_flat`: the same, and a batch is one row without padding, for FlashAttention where it is installed.
    """
    from datasets import Dataset, disable_progress_bars
    from trl import SFTConfig, SFTTrainer

    disable_progress_bars()
    if name == "trl_flat" and workload.gpu and find_spec("flash_attn"):
        model.set_attn_implementation("flash_attention_2")
    # Without padding TRL takes no length, and no chat here is longer.
    common["max_length"] = None if name == "trl_flat" else workload.max_length
    if name != "trl_default":
        common["padding_free"] = name == "trl_flat"
        rows = [{"prompt": chat[:-1], "completion": chat[-1:]} for chat in workload.chats]
        config = SFTConfig(gradient_checkpointing=False, completion_only_loss=True, **common)
    else:
        rows = [{"messages": chat} for chat in workload.chats]
        config = SFTConfig(**common)
    torch.manual_seed(0)
    return SFTTrainer(
        model=model,
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=workload.tokenizer,
        peft_config=_adapter(workload),
    )


def _transformers(workload: Workload, model: Any, common: dict[str, Any]) -> Trainer:
    """The Trainer of transformers, in the place of `trl_best` where TRL is not installed: the same padded batches."""
    if workload.lora:
        from peft import get_peft_model

        model = get_peft_model(model, _adapter(workload))
    tokenizer, rows = workload.tokenizer, []
    for chat in workload.chats:
        texts = [
            tokenizer.apply_chat_template(chat[:-1], tokenize=False, add_generation_prompt=True),
            tokenizer.apply_chat_template(chat, tokenize=False),
        ]
        prompt, ids = tokenizer(texts, add_special_tokens=False)["input_ids"]
        ids = ids[: workload.max_length]
        labels = [-100] * min(len(prompt), len(ids)) + ids[len(prompt) :]
        rows.append({"input_ids": ids, "labels": labels})
    return Trainer(
        model=model,
        args=TrainingArguments(**common),
        train_dataset=rows,
        data_collator=DataCollatorForSeq2Seq(tokenizer),
    )
