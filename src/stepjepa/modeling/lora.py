"""LoRA: which adapters of PEFT can be trained and exported, token rows that an adapter trains too, and quantised bases.

Shapes: V vocabulary, D width.
"""

from __future__ import annotations

import copy
import logging
import shlex
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import BitsAndBytesConfig

from stepjepa.config.option import Names, Values
from stepjepa.config.values import did_you_mean
from stepjepa.data.tokens import answer_end, usable_renderer
from stepjepa.errors import ConfigError, library, said
from stepjepa.modeling.options import LoRAOptions
from stepjepa.modeling.parts import (
    causal_lm,
    embedding_rows,
    idle_layers,
    name_of,
    plain_module,
    vocabulary_size,
)
from stepjepa.utils.text import escaped

if TYPE_CHECKING:
    from peft import LoraConfig, PeftConfig, PeftModel
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

logger = logging.getLogger("stepjepa")
_NAME = Names(LoRAOptions)
_TOKENS = f"--{_NAME.train_tokens}"
# Two rows closer than this count as equal, in the unit of `is_untrained`.
_UNTRAINED = 0.05
# Features of a `LoraConfig` that neither a merged model nor an adapter on the unchanged base can represent.
_NOT_EXPORTED = {
    "modules_to_save": f"it trains copies of modules; for rows of tokens use trainable_token_indices ({_TOKENS})",
    "lora_bias": "most linear layers have no bias that it could be merged into",
    "layer_replication": "the trained model would have more layers than its base",
    "target_parameters": "it adapts parameters that are not linear layers",
    "alora_invocation_tokens": "the adapter would be active for only part of the text",
}
# Values of `init_lora_weights` that modify the base.
_CHANGING_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")


def check_lora(peft_config: PeftConfig, advice: str = "") -> None:
    """Refuse an adapter that cannot be trained or exported; the message ends with `advice`.

    Raises:
        ConfigError: the adapter is not a LoRA, or has a feature that cannot be exported.
    """
    # Equal to a string, whether it is an enum of PEFT or a string in a configuration that the user built.
    if peft_config.peft_type != "LORA":
        kind = type(peft_config).__name__
        raise ConfigError(
            f"peft_config is a {kind}, but only LoRA can be trained; give a LoraConfig"
        )
    for name, reason in _NOT_EXPORTED.items():
        if getattr(peft_config, name, None):
            raise ConfigError(f"LoRA with {name} cannot be exported: {reason}{advice}")
    start = str(getattr(peft_config, "init_lora_weights", True))
    if start.startswith(_CHANGING_BASE):
        raise ConfigError(
            f"LoRA with init_lora_weights={start} cannot be exported: it changes the base's own weights{advice}"
        )


def check_trainable(model: torch.nn.Module) -> None:
    """Refuse a model that has no trainable weights, or whose adapter is not inside a `PeftModel`.

    Raises:
        ConfigError: every weight is frozen, or transformers has loaded the adapter.
    """
    # Set by AutoModelForCausalLM.from_pretrained(adapter), which puts the adapter's layers into the plain model.
    injected = getattr(model, "_hf_peft_config_loaded", False)
    if any(parameter.requires_grad for parameter in model.parameters()) and not injected:
        return
    if injected or hasattr(model, "get_base_model"):
        raise ConfigError(
            "the model's adapter is frozen; load it with PeftModel.from_pretrained(base, folder, is_trainable=True)"
        )
    raise ConfigError(
        "every weight of the model is frozen (requires_grad is False); set requires_grad=True on the weights to train"
    )


def warn_of_untrained(
    model: torch.nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    template_kwargs: Mapping[str, Any] | None,
) -> None:
    """Warn if the row of the token that ends an answer was not trained in the base model and is not trained by the
    adapter."""
    inner = causal_lm(model)
    end = answer_end(tokenizer, usable_renderer(tokenizer, template_kwargs))
    if end is None or end >= vocabulary_size(inner) or not is_untrained(inner, end):
        return
    name = str(tokenizer.convert_ids_to_tokens(end))
    logger.warning(
        "the embedding of %s was never trained in the base model, and LoRA does not change it, so the model can hardly "
        "learn to end an answer; give %s %s (in Python LoraConfig(trainable_token_indices=%s))",
        escaped(name),
        _TOKENS,
        escaped(shlex.quote(name)),
        token_rows(inner, tokenizer, [name]),
    )


def token_rows(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, names: Sequence[str]
) -> dict[str, list[int]] | None:
    """The rows of tokens as PEFT's ``trainable_token_indices``: of the embedding, and of an output head that does not share
    its weights. None without names.

    Raises:
        ConfigError: the tokenizer has no such token.
    """
    if not names:
        return None
    known = tokenizer.get_vocab()
    for name in names:
        if name not in known:
            near = did_you_mean(name, tokenizer.get_added_vocab())
            raise ConfigError(f"{_TOKENS}: the tokenizer has no token {name!r}{near}")
    ids = sorted({known[name] for name in names})
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    shared = head is None or plain_module(head).weight is plain_module(embedding).weight
    parts = [embedding] if shared else [embedding, head]
    return {name_of(model, part): ids for part in parts}


def is_untrained(model: PreTrainedModel, token: int) -> bool:
    """Whether a token's row in the embedding or the output head was never trained and is not trained by the adapter.

    Such a row is near zero, near the mean of all rows (where resizing puts new ones), or equal to another token's row.
    Distances are in units of the median distance of a row from the mean.
    """
    for part in (model.get_input_embeddings(), model.get_output_embeddings()):
        weight_VD = None if part is None else plain_module(part).weight.detach()
        # A LoRA on the whole matrix trains every row.
        if weight_VD is None or weight_VD.is_meta or hasattr(part, "lora_A"):
            continue
        # PEFT's wrapper for trained token rows.
        adapter: Any = getattr(part, "token_adapter", None)
        if adapter is not None and token in adapter.token_indices[adapter.active_adapters[0]]:
            continue
        mean_D = weight_VD.mean(0, dtype=torch.float32)
        row_D = weight_VD[token].float()
        # The row's distance from itself, 0, is replaced by its distance from zero, so that one minimum covers both.
        distances_V = _distances(weight_VD, row_D)
        distances_V[token] = row_D.norm()
        closest = torch.minimum(distances_V.min(), (row_D - mean_D).norm())
        if closest < _UNTRAINED * _distances(weight_VD, mean_D).median():
            return True
    return False


def _distances(weight_VD: Tensor, point_D: Tensor) -> Tensor:
    """(V,) float32 distances of rows from a point, in chunks: a float32 copy of a large vocabulary takes gigabytes."""
    return torch.cat([(chunk.float() - point_D).norm(dim=1) for chunk in weight_VD.split(2**14)])


def add_lora(model: PreTrainedModel, peft_config: LoraConfig, seed: int = 0) -> PeftModel:
    """Wrap a copy of the model with PEFT; the copy shares the memory of the weights. `model` and `peft_config` are not
    changed, except that a quantised model is prepared for training.

    An adapter on ``all-linear`` layers excludes parts that plain text does not use, such as a vision tower. Its initial
    weights depend only on `seed`; the global generators are restored.

    Raises:
        ConfigError: a LoRA that cannot be exported, that is on the embedding, or that PEFT refuses.
    """
    from peft import get_peft_model

    check_lora(peft_config)
    model = prepared(model) if getattr(model, "is_quantized", False) else model
    targets = peft_config.target_modules
    name = name_of(model, model.get_input_embeddings()).rpartition(".")[2]
    if not isinstance(targets, str) and name in (targets or ()):
        raise ConfigError(
            f"--{_NAME.lora_target_modules}: {name} is the embedding; name only linear layers"
        )
    peft_config = copy.deepcopy(peft_config)
    if targets == "all-linear" and peft_config.exclude_modules is None:
        peft_config.exclude_modules = idle_layers(model) or None
    # With this memo, `deepcopy` shares buffers and copies a parameter as a new object on the same memory, so that freezing
    # the copy does not freeze the caller's model. Quantised parameters, which are frozen anyway, are shared.
    memo: dict[int, Any] = {id(buffer): buffer for buffer in model.buffers()}
    for parameter in model.parameters():
        plain = type(parameter) is torch.nn.Parameter
        memo[id(parameter)] = (
            torch.nn.Parameter(parameter.detach(), parameter.requires_grad) if plain else parameter
        )
    device = embedding_rows(model).device
    try:
        with (
            torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
            warnings.catch_warnings(),
        ):
            # PEFT uses deprecated names of transformers.
            warnings.simplefilter("ignore", FutureWarning)
            torch.manual_seed(seed)
            return get_peft_model(copy.deepcopy(model, memo), peft_config)
    except ValueError as error:
        raise ConfigError(f"LoRA: {said(error)}") from None


def lora_config(
    rank: int,
    alpha: int | None = None,
    dropout: float = 0.1,
    targets: list[str] | None = None,
    tokens: dict[str, list[int]] | None = None,
) -> LoraConfig:
    """LoRA on every linear layer except the head; alpha defaults to twice the rank, the published setting. `tokens` are rows
    to train, see `token_rows`."""
    from peft import LoraConfig

    return LoraConfig(
        r=rank,
        lora_alpha=2 * rank if alpha is None else alpha,
        lora_dropout=dropout,
        target_modules="all-linear" if targets in (None, [], ["all-linear"]) else targets,
        trainable_token_indices=tokens,
        task_type="CAUSAL_LM",
    )


def quantization(settings: Values) -> BitsAndBytesConfig | None:
    """The quantisation of a run's base by its settings (options by name, or those in ``run.json``); None without one.

    Raises:
        ConfigError: bitsandbytes is not installed.
    """
    if not (settings.get("load_in_4bit") or settings.get("load_in_8bit")):
        return None
    library("bitsandbytes", "quant")
    # A threshold for outliers would make a token's states depend on the other tokens of the batch, even later ones.
    if settings.get("load_in_8bit"):
        return BitsAndBytesConfig(load_in_8bit=True, llm_int8_threshold=0.0)
    dtype = (
        torch.bfloat16
        if settings.get("bf16")
        else torch.float16
        if settings.get("fp16")
        else torch.float32
    )
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
    )


def prepared(model: PreTrainedModel) -> PreTrainedModel:
    """Prepare a quantised model for an adapter: freeze it, and convert the parameters that are not quantised to float32.

    Raises:
        ConfigError: no gradient would pass through the model.
    """
    from peft import prepare_model_for_kbit_training

    # bitsandbytes logs at every call that it casts its input.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    modules: Any = model.modules()
    for module in modules:
        # On a CPU with AVX512-BF16, a pass without gradients would repack the weights with another, permanent rounding, and
        # from then on no gradient would pass through the layer.
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
        if getattr(getattr(module, "quant_state", None), "packing_format_for_cpu", False):
            raise ConfigError(
                "the quantised model has run without gradients, after which none pass through it; load it again"
            )
    return prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
