"""Options of the model that is trained; no torch, so that ``--help`` is quick."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stepjepa.config.option import option

RUN, _LORA, _MODEL = "run", "lora", "model"


@dataclass
class LoRAOptions:
    """An adapter."""

    lora: bool = option(False, "Train a LoRA adapter (and the predictor tokens) instead of all weights.", _LORA)
    lora_rank: int = option(16, "Rank of the adapter.", _LORA, needs={"lora": True}, at_least=1)
    lora_alpha: int | None = option(
        None, "Scale of the adapter. Default: twice the rank.", _LORA, needs={"lora": True}, at_least=1
    )
    lora_dropout: float = option(
        0.1, "Dropout on the adapter's input.", _LORA, needs={"lora": True}, at_least=0, below=1
    )
    lora_target_modules: list[str] | None = option(
        None, "Names of the linear layers to adapt. Default: all but the head.", _LORA, needs={"lora": True}
    )


@dataclass
class LoadingOptions:
    """Which model is loaded, and how."""

    model_name: str | None = option(None, "Hub id or local folder.", _MODEL)
    dtype: Literal["float32", "bfloat16", "float16", "auto"] = option(
        "auto", "Dtype of the weights; auto is what they were saved in.", _MODEL
    )
    attn_implementation: str | None = option(None, "Attention kernel of transformers, such as sdpa or eager.", _MODEL)
    trust_remote_code: bool = option(False, "Run model code that comes with the weights.", _MODEL, resume=True)


@dataclass
class ModelOptions(LoadingOptions):
    """Which model is trained."""

    model_name: str = option("mini", "Hub id, local folder, or a built-in preset (tiny, mini).", _MODEL)
    dtype: Literal["float32", "bfloat16", "float16", "auto"] = option(
        "float32", "Dtype of the weights. Keep float32 and use --bf16 for speed.", _MODEL
    )
    attn_implementation: Literal["sdpa", "eager", "flex_attention"] | None = option(
        None, "Attention kernel. Default: the model's own (sdpa for most).", _MODEL, resume=True
    )
    pretrain: bool = option(False, "Start from random weights of the model's configuration.", _MODEL)
