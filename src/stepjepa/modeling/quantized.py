"""Bases in 4 and 8 bits by bitsandbytes: how they are loaded, and what the numbers of a run rest on."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch
from transformers import BitsAndBytesConfig, PreTrainedModel

from stepjepa.errors import ConfigError
from stepjepa.utils.failures import library


def quantization(settings: Mapping[str, Any]) -> BitsAndBytesConfig | None:
    """How the base of a run with these settings (its options by name, or those in ``run.json``) is quantised, None if not.

    In 8 bits each token is rounded by itself: with a threshold for outliers its states would depend on the other tokens of
    the batch, those that follow it included.

    Raises:
        ConfigError: bitsandbytes is not installed.
    """
    if not (settings.get("load_in_4bit") or settings.get("load_in_8bit")):
        return None
    library("bitsandbytes", "quant")
    if settings.get("load_in_8bit"):
        return BitsAndBytesConfig(load_in_8bit=True, llm_int8_threshold=0.0)
    dtype = torch.bfloat16 if settings.get("bf16") else torch.float16 if settings.get("fp16") else torch.float32
    return BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=dtype
    )


def prepared(model: PreTrainedModel) -> PreTrainedModel:
    """A quantised model as an adapter is trained on it: frozen, what is not quantised in float32.

    Raises:
        ConfigError: no gradient would go through it.
    """
    from peft import prepare_model_for_kbit_training

    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # at every call it says that it casts its input
    modules: Any = model.modules()
    for module in modules:
        # On a CPU that has AVX512-BF16 a pass without gradients would round the weights again, for good, and from then on no
        # gradient would go through the layer.
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
        if getattr(getattr(module, "quant_state", None), "packing_format_for_cpu", False):
            raise ConfigError("the quantised model has computed without gradients, and so has none; load it again")
    return prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
