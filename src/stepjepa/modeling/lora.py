"""LoRA: what of PEFT can be trained and exported here, the rows of tokens that an adapter trains along, quantised bases.

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
from transformers import BitsAndBytesConfig

from stepjepa.config.option import Names
from stepjepa.config.values import nearest
from stepjepa.data.tokens import answer_end, template_marks
from stepjepa.errors import ConfigError, library, said
from stepjepa.modeling.options import LoRAOptions
from stepjepa.modeling.parts import causal_lm, embedding_rows, idle_layers, name_of, plain_module, vocabulary_size
from stepjepa.utils.text import escaped

if TYPE_CHECKING:
    from peft import LoraConfig, PeftConfig, PeftModel
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

logger = logging.getLogger("stepjepa")
_NAME = Names(LoRAOptions)
_TOKENS = f"--{_NAME.train_tokens}"
_UNTRAINED = 0.05  # distance at which two rows count as equal, in the unit of `untrained_rows`
# What a `LoraConfig` may ask for that a merged model, or an adapter on the base as it came, cannot hold.
_NOT_EXPORTED = {
    "modules_to_save": f"it trains copies of modules; for rows of tokens use trainable_token_indices ({_TOKENS})",
    "lora_bias": "most linear layers have no bias that it could be merged into",
    "layer_replication": "the trained model would have more layers than its base",
    "target_parameters": "it adapts parameters that are no linear layers",
    "alora_invocation_tokens": "the adapter would be on for a part of the text only",
}
_CHANGING_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")  # values of `init_lora_weights`


def check_lora(peft_config: PeftConfig, advice: str = "") -> None:
    """Refuse an adapter of a kind that cannot be trained or exported here; the message ends with `advice`.

    Raises:
        ConfigError: it is no LoRA, or a LoRA that changes more than it can be exported with.
    """
    kind = getattr(peft_config.peft_type, "value", peft_config.peft_type)
    if kind != "LORA":
        raise ConfigError(f"peft_config is of kind {kind}, and only LoRA is trained here: give a LoraConfig")
    for name, reason in _NOT_EXPORTED.items():
        if getattr(peft_config, name, None):
            raise ConfigError(f"LoRA with {name} cannot be exported: {reason}{advice}")
    start = str(getattr(peft_config, "init_lora_weights", True))
    if start.startswith(_CHANGING_BASE):
        raise ConfigError(
            f"LoRA with init_lora_weights={start} cannot be exported: it changes the base's own weights{advice}"
        )


def check_trainable(model: torch.nn.Module) -> None:
    """Refuse a model of which nothing would be trained, or whose adapter is not inside a `PeftModel`.

    Raises:
        ConfigError: there is no trainable weight, or transformers has loaded the adapter.
    """
    injected = getattr(model, "_hf_peft_config_loaded", False)  # by AutoModelForCausalLM.from_pretrained(adapter)
    if any(parameter.requires_grad for parameter in model.parameters()) and not injected:
        return
    if injected or hasattr(model, "get_base_model"):
        raise ConfigError(
            "the model's adapter is frozen; load it with PeftModel.from_pretrained(base, folder, is_trainable=True)"
        )
    raise ConfigError("every weight of the model is frozen (requires_grad is False), so nothing would be trained")


def warn_of_untrained(
    model: torch.nn.Module, tokenizer: PreTrainedTokenizerBase, template_kwargs: Mapping[str, Any] | None
) -> None:
    """Warn where the token that ends an answer has a row that its base model never trained, and the adapter leaves it so."""
    inner = causal_lm(model)
    end = answer_end(tokenizer, template_kwargs)
    marks = dict.fromkeys([end, *template_marks(tokenizer, template_kwargs)])
    known = [index for index in marks if index is not None and index < vocabulary_size(inner)]
    untrained = untrained_rows(inner, known)
    if end not in untrained:
        return
    names = tokenizer.convert_ids_to_tokens(untrained)
    logger.warning(
        "the base model has never trained the embedding of %s, and LoRA does not change it, so the model hardly learns to "
        "end an answer; give %s %s (in Python LoraConfig(trainable_token_indices=%s))",
        *(escaped(str(tokenizer.convert_ids_to_tokens(end))), _TOKENS),
        *(escaped(shlex.join(names)), token_rows(inner, tokenizer, names)),
    )


def token_rows(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, names: Sequence[str]
) -> dict[str, list[int]] | None:
    """The rows of tokens in the form of PEFT's ``trainable_token_indices``: of the embedding, and of an output head that
    does not share its weights. None without names.

    Raises:
        ConfigError: the tokenizer has no such token.
    """
    if not names:
        return None
    known = tokenizer.get_vocab()
    for name in names:
        if name not in known:
            near = nearest(name, tokenizer.get_added_vocab())
            raise ConfigError(f"{_TOKENS}: the tokenizer has no token {name!r}; did you mean {near!r}?")
    ids = sorted({known[name] for name in names})
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    shared = head is None or plain_module(head).weight is plain_module(embedding).weight
    parts = [embedding] if shared else [embedding, head]
    return {name_of(model, part): ids for part in parts}


def untrained_rows(model: PreTrainedModel, ids: Sequence[int]) -> list[int]:
    """Those of the tokens `ids` whose row in the embedding or the output head was never trained, and is not by the adapter:
    near zero, near the mean of all rows (where resizing puts new ones), or equal to the row of another token.

    Distances are in units of the median distance of a row from the mean.
    """
    untrained = set[int]()
    for part in (model.get_input_embeddings(), model.get_output_embeddings()):
        weight_VD = None if part is None else plain_module(part).weight.detach()
        if weight_VD is None or weight_VD.is_meta or hasattr(part, "lora_A"):
            continue
        adapter: Any = getattr(part, "token_adapter", None)
        trained = () if adapter is None else adapter.token_indices[adapter.active_adapters[0]]
        mean_D = weight_VD.mean(0, dtype=torch.float32)
        unit = _distances(weight_VD, mean_D).median()
        for index in set(ids).difference(trained):
            row_D = weight_VD[index].float()
            others_V = _distances(weight_VD, row_D)
            others_V[index] = row_D.norm()
            nearest_one = torch.minimum(others_V.min(), (row_D - mean_D).norm())
            if nearest_one < _UNTRAINED * unit:
                untrained.add(index)
    return [index for index in ids if index in untrained]


def _distances(weight_VD: torch.Tensor, point_D: torch.Tensor) -> torch.Tensor:
    """(V,) float32 distances of rows from a point, without a copy of all rows."""
    return torch.cat([(chunk.float() - point_D).norm(dim=1) for chunk in weight_VD.split(2**14)])


def add_lora(model: PreTrainedModel, peft_config: LoraConfig, seed: int = 0) -> PeftModel:
    """Wrap the model with PEFT. What is wrapped is a copy that shares the weights' memory: `model` and `peft_config` stay as
    they are, but that a quantised model is prepared for it.

    An adapter on ``all-linear`` layers leaves out the parts that plain text does not use, such as a vision tower.

    `seed` draws its first weights; the global generators stay as they are.

    Raises:
        ConfigError: LoRA of a kind that cannot be exported, or on the embedding, or that PEFT refuses.
    """
    from peft import get_peft_model

    check_lora(peft_config)
    model = prepared(model) if getattr(model, "is_quantized", False) else model
    targets, name = peft_config.target_modules, name_of(model, model.get_input_embeddings()).rpartition(".")[2]
    if not isinstance(targets, str) and name in (targets or ()):
        raise ConfigError(f"--{_NAME.lora_target_modules}: {name} is the embedding; LoRA is for linear layers")
    peft_config = copy.deepcopy(peft_config)
    if targets == "all-linear" and peft_config.exclude_modules is None:
        peft_config.exclude_modules = idle_layers(model) or None
    memo: dict[int, Any] = {id(buffer): buffer for buffer in model.buffers()}
    for parameter in model.parameters():
        plain = type(parameter) is torch.nn.Parameter  # quantised ones are frozen anyway
        memo[id(parameter)] = torch.nn.Parameter(parameter.detach(), parameter.requires_grad) if plain else parameter
    device = embedding_rows(model).device
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of names in transformers that PEFT asks for
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
    """LoRA on every linear layer but the head; alpha is twice the rank unless given (the published setting). `tokens` are
    trained rows, see `token_rows`."""
    from peft import LoraConfig

    return LoraConfig(
        r=rank,
        lora_alpha=2 * rank if alpha is None else alpha,
        lora_dropout=dropout,
        target_modules="all-linear" if targets in (None, [], ["all-linear"]) else targets,
        trainable_token_indices=tokens,
        task_type="CAUSAL_LM",
    )


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
