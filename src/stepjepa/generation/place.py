"""Finds a model by its name, reads the records of its training, and loads it as a generator."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from stepjepa.config.option import Names
from stepjepa.data.report import recorded_ending
from stepjepa.data.tokens import Prompter
from stepjepa.errors import ConfigError, saying_out_of_memory
from stepjepa.generation.drafting import Drafter
from stepjepa.generation.local import LocalGenerator, VllmGenerator
from stepjepa.generation.options import GeneratorOptions
from stepjepa.generation.output import Generator
from stepjepa.modeling.export import export_problem
from stepjepa.modeling.extras import PREDICTORS_FILE, attach_saved
from stepjepa.modeling.forward import loss_view
from stepjepa.modeling.load import (
    GGUF_SUFFIX,
    check_local,
    is_preset,
    load_adapter,
    load_model,
    load_tokenizer,
)
from stepjepa.modeling.lora import quantization
from stepjepa.modeling.parts import causal_lm, embedding_rows
from stepjepa.objectives.base import built_in, drafting_objective
from stepjepa.utils.files import Record, read_object

_NAME = Names(GeneratorOptions)
MODEL = f"--{_NAME.model_name}"
_ADAPTER = "adapter_config.json"


@dataclass(frozen=True)
class Place:
    """Where a model is.

    Attributes:
        name: the name that the user gave.
        folder: the local folder; None for a Hub id or a GGUF file.
        base: for an adapter, the Hub id or folder of its base model; else None.
    """

    name: str
    folder: Path | None
    base: str | None = None

    def record(self, name: str) -> Record:
        """A record of training, by its file name; for a checkpoint it is read from the run's folder.

        Empty if it is missing or cannot be read.
        """
        folder = self.folder
        if folder is None:
            return {}
        # A folder with a run.json is a run, whatever its name.
        is_checkpoint = folder.resolve().name.startswith("checkpoint-")
        if is_checkpoint and not (folder / "run.json").exists():
            folder = folder.resolve().parent
        return read_object(folder / name)

    @property
    def settings(self) -> Record:
        """The recorded options of training; empty if there are none."""
        settings = self.record("run.json").get("settings")
        return settings if isinstance(settings, dict) else {}

    @property
    def trained_ending(self) -> str | None:
        """See `data.report.recorded_ending`."""
        return recorded_ending(self.record("data_report.json"))

    def prompter(self, tokenizer: PreTrainedTokenizerBase, options: GeneratorOptions) -> Prompter:
        """Make the prompter of the model from the options; where an option is not set, it is as in training."""
        kwargs = options.chat_template_kwargs
        # The arguments used in training are for the template of training; another template may not know them.
        if kwargs is None and not options.chat_template and not options.plain:
            kwargs = self.settings.get(_NAME.chat_template_kwargs)
        form = options.chat_template, options.plain, kwargs, options.prompt_from
        return Prompter(tokenizer, *form, self.trained_ending)


def find_model(name: str) -> Place:
    """Find the model that `name` stands for. Raises ConfigError: it cannot be a model."""
    where = f"{MODEL} {name}"
    if is_preset(name):
        raise ConfigError(
            f"{where}: a preset has random weights; name a trained model, a folder or a Hub id"
        )
    folder = Path(os.path.expanduser(name))
    if folder.is_file():
        if folder.suffix != GGUF_SUFFIX:
            raise ConfigError(f"{where}: is a file; give the model's folder, or a GGUF file")
        return Place(name, None)
    if not folder.is_dir():
        # A Hub id has at most one slash, so any other name is a path with a typo.
        if folder.is_absolute() or name.startswith((".", "~")) or len(folder.parts) > 2:
            raise ConfigError(f"{where}: no such folder")
        check_local(name)
        return Place(name, None)
    problem = export_problem(folder)
    if problem is not None:
        raise ConfigError(
            f"{where}: {problem}; finish the run (--resume_from_checkpoint true), or give a checkpoint"
        )
    if (folder / _ADAPTER).is_file():
        return _adapter_place(name, folder)
    if not (folder / "config.json").is_file():
        # By length first: checkpoint-900 comes before checkpoint-1000.
        checkpoints = sorted(
            folder.glob("checkpoint-*"), key=lambda path: (len(path.name), path.name)
        )
        hint = f"; the run has not ended: use {checkpoints[-1]}" if checkpoints else ""
        raise ConfigError(
            f"{where}: no model in this folder (neither config.json nor {_ADAPTER}){hint}"
        )
    return Place(name, folder)


def _adapter_place(name: str, folder: Path) -> Place:
    adapter = read_object(folder / _ADAPTER)
    base = str(adapter.get("base_model_name_or_path") or "")
    if not base:
        raise ConfigError(f"{MODEL} {name}: {_ADAPTER} names no base model; merge the adapter")
    # A relative path may be relative to the current folder, as PEFT reads it, or to the adapter's folder.
    nearby = folder / base
    if nearby.is_dir() and not Path(base).is_dir():
        base = str(nearby)
    return Place(name, folder, base)


def load_place_tokenizer(place: Place, trust_remote_code: bool) -> PreTrainedTokenizerBase:
    """Load the tokenizer in the model's folder, or the base's tokenizer for an adapter without one.

    Raises:
        ConfigError: the tokenizer cannot be loaded.
    """
    # The progress bars of transformers would mix with ours. The tokenizer is loaded before anything else.
    disable_progress_bar()
    folder = place.folder
    has_own = folder is None or place.base is None or (folder / "tokenizer_config.json").is_file()
    return load_tokenizer(
        place.name if has_own else str(place.base), trust_remote_code=trust_remote_code
    )


def load_place(
    place: Place,
    tokenizer: PreTrainedTokenizerBase,
    options: GeneratorOptions,
    no_lora: bool = False,
) -> tuple[nn.Module, str]:
    """Load the model, on the GPU if there is one, and describe it in a phrase; `no_lora` loads only an adapter's base.

    Raises:
        ConfigError: the model cannot be loaded, or does not fit.
    """
    name, kind = place.base or place.name, ""
    model: Any = load_model(
        name,
        tokenizer,
        dtype=options.dtype,
        attn_implementation=options.attn_implementation,
        trust_remote_code=options.trust_remote_code,
        quantized=quantization(place.settings),
    )
    if place.base is not None and no_lora:
        kind = f"only the base {name}; "
    elif place.base is not None:
        model = load_adapter(model, str(place.folder), f"{MODEL} {place.name}", name)
        kind = f"adapter on {name}; "
    model.eval()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    advice = f"use a smaller --{_NAME.dtype} or another --{_NAME.backend}"
    with saying_out_of_memory(f"{MODEL} {place.name}: does not fit on this GPU; {advice}"):
        model.to(device)
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    return model, f"{kind}{model.num_parameters():,} parameters, {dtype} on {device}"


def load_drafter(place: Place, model: nn.Module, count: int) -> Drafter:
    """Load the heads in the model's folder into the model, and return a drafter of `count` tokens at a time.

    Raises:
        ConfigError: there are no heads, or they belong to another model.
    """
    folder, inner, objective = place.folder, causal_lm(model), drafting_objective(place.settings)
    if folder is None or objective is None or not (folder / PREDICTORS_FILE).is_file():
        names = " or ".join(name for name, kind in built_in().items() if kind.drafts)
        raise ConfigError(
            f"--{_NAME.draft_tokens}: {place.name} has no heads that draft; give the folder of a run or a checkpoint with "
            f"objective {names} (stepjepa export leaves the heads out)"
        )
    vocabulary, width = embedding_rows(inner).shape
    attach_saved(inner, folder, objective.modules(width, vocabulary))
    drafter = Drafter(inner, objective, loss_view(inner, vocabulary), count)
    # An architecture whose cache cannot be cropped would give wrong answers without an error.
    drafter.check()
    return drafter


def load_generator(
    place: Place, prompter: Prompter, options: GeneratorOptions, no_lora: bool = False
) -> tuple[Generator, str]:
    """Load the generator of a model, and describe it in a phrase. Raises ConfigError: the model cannot be loaded."""
    if options.backend == "vllm":
        if place.base is not None and not no_lora:
            merge = f"merge the adapter (stepjepa export {place.name} OUT --merge_lora true)"
            raise ConfigError(
                f"--{_NAME.backend} vllm does not load adapters: {merge}, or generate with transformers"
            )
        return VllmGenerator(place.base or place.name, prompter, options), "vLLM"
    model, description = load_place(place, prompter.tokenizer, options, no_lora)
    size = options.questions_per_batch
    drafter = None
    if options.draft_tokens is not None:
        drafter = load_drafter(place, model, options.draft_tokens)
    local = LocalGenerator(model, prompter, options.max_new_tokens, options.top_p, size, drafter)
    return local, f"{description}, batches of {size}"
