"""Options of the model to train or export. Imports no torch, so that ``--help`` is fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stepjepa.config.option import option

# Headings of the options in the help.
RUN, _LORA, _MODEL = "run", "lora", "model"
_WITH_LORA = {"lora": True}


@dataclass
class LoRAOptions:
    """The adapter to train, and the quantisation of its base."""

    lora: bool = option(
        False, "Train a LoRA adapter (and the predictor tokens) instead of all weights.", _LORA
    )
    lora_rank: int = option(16, "Rank of the adapter.", _LORA, needs=_WITH_LORA, at_least=1)
    lora_alpha: int | None = option(
        None,
        "Scale of the adapter. Default: twice the rank.",
        _LORA,
        needs=_WITH_LORA,
        at_least=1,
    )
    lora_dropout: float = option(
        0.1, "Dropout on the adapter's input.", _LORA, needs=_WITH_LORA, at_least=0, below=1
    )
    lora_target_modules: list[str] | None = option(
        None,
        "Names of the linear layers to adapt. Default: all but the head.",
        _LORA,
        needs=_WITH_LORA,
    )
    train_tokens: list[str] | None = option(
        None,
        "Tokens whose rows in the embedding and the output head are trained along with the adapter, such as an end of turn "
        "that the base model never saw.",
        _LORA,
        needs=_WITH_LORA,
    )
    load_in_4bit: bool = option(
        False,
        "Load the base model in 4 bits (nf4, double quantisation) under the adapter; needs bitsandbytes.",
        _LORA,
    )
    load_in_8bit: bool = option(
        False, "Load the base model in 8 bits under the adapter; needs bitsandbytes.", _LORA
    )


@dataclass
class LoadingOptions:
    """The model to load, and how to load it."""

    model_name: str | None = option(None, "Hub id, local folder, or GGUF file.", _MODEL)
    dtype: Literal["float32", "bfloat16", "float16", "auto"] = option(
        "auto", "Dtype of the weights; auto keeps the saved one.", _MODEL
    )
    attn_implementation: str | None = option(
        None, "Attention kernel of transformers, such as sdpa or eager.", _MODEL
    )
    trust_remote_code: bool = option(
        False, "Run model code that comes with the weights.", _MODEL, resume=True
    )


@dataclass
class ModelOptions(LoadingOptions):
    """The model to train."""

    model_name: str = option(
        "mini", "Hub id, local folder, GGUF file, or a built-in preset (micro, tiny, mini).", _MODEL
    )
    dtype: Literal["float32", "bfloat16", "float16", "auto"] = option(
        "float32", "Dtype of the weights. Keep float32 and use --bf16 for speed.", _MODEL
    )
    attn_implementation: Literal["sdpa", "eager", "flex_attention"] | None = option(
        None,
        "Attention kernel. Default: the fastest that is exact (flex_attention on CUDA).",
        _MODEL,
        resume=True,
    )
    use_kernels: bool = option(
        False,
        "Let transformers replace layers by kernels from the Hub; needs the package kernels.",
        _MODEL,
        resume=True,
    )
    pretrain: bool = option(
        False, "Start from random weights, with the model's configuration.", _MODEL
    )


@dataclass
class ExportOptions:
    """The input and the output of ``stepjepa export``."""

    checkpoint: str | None = option(
        None,
        "A run's checkpoint, or the folder of an adapter; usually written without --checkpoint.",
        "input",
    )
    base_model: str | None = option(
        None,
        "For an adapter, the folder or Hub id of its base model. Default: the one it names.",
        "input",
    )
    trust_remote_code: bool = option(False, "Run model code that comes with the weights.", "input")
    output_dir: str | None = option(
        None, "The folder to write; usually written without --output_dir.", "output"
    )
    merge_lora: bool | None = option(
        None,
        "Write LoRA merged into the model (true) or as an adapter (false). Default: as in its run.",
        "output",
    )
    keep_predictors: bool = option(
        False, "Write the predictor tokens into the vocabulary and tokenizer.", "output"
    )
    overwrite_output_dir: bool = option(False, "Write into a folder that is not empty.", "output")
