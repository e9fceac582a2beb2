"""A tiny random model of every causal model type that the installed transformers knows.

A family is a model type of `AutoModelForCausalLM`. Its configuration is made small by the names of its fields; what a family
needs besides stands in `OVERRIDES`.
"""

import dataclasses
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from stepjepa.data.types import Example
from support.models import made_up_examples

VOCABULARY, WINDOW = 100, 6
_WIDTH, _HEADS, _LAYERS = 32, 4, 2

# Field names -> value. Only the fields that a configuration class has are given.
_VALUES: dict[str, Any] = {
    "vocab_size n_vocab vocab_size_per_layer_input": VOCABULARY,
    "hidden_size n_embd d_model dim_model emb_dim embedding_size n_embed hidden_size_global": _WIDTH,
    "num_hidden_layers n_layer n_layers num_layers decoder_layers num_decoder_layers": _LAYERS,
    "num_attention_heads n_head n_heads decoder_attention_heads num_decoder_attention_heads num_heads": _HEADS,
    "encoder_layers encoder_attention_heads num_encoder_layers num_encoder_attention_heads": 2,
    "intermediate_size ffn_dim decoder_ffn_dim encoder_ffn_dim n_inner dff dim_ff": 48,
    "num_key_value_heads num_kv_heads n_kv_heads": 2,
    "head_dim kv_channels attention_head_size v_head_dim qk_nope_head_dim attention_head_dim": 8,
    "qk_rope_head_dim index_head_dim global_head_dim linear_head_dim swa_head_dim": 8,
    "linear_key_head_dim linear_value_head_dim mamba_head_dim hidden_size_per_layer_input": 8,
    "mamba_d_state state_size ssm_state_size router_hidden_size mamba_d_ssm": 16,
    "mamba_n_heads mamba_num_heads linear_num_heads linear_num_key_heads n_groups index_n_heads": 2,
    "linear_num_value_heads kv_n_heads swa_num_attention_heads swa_num_key_value_heads": 2,
    "mamba_chunk_size chunk_size original_max_position_embeddings d_rel": 8,
    "ffn_hidden_size shared_intermediate_size dense_intermediate_size feed_forward_size": 24,
    "moe_intermediate_size shared_expert_intermediate_size expert_ffn_hidden_size": 24,
    "moe_shared_expert_intermediate_size": 24,
    "kv_lora_rank q_lora_rank o_lora_rank": 16,
    "max_position_embeddings n_positions n_ctx": 256,
    "num_experts num_local_experts n_routed_experts moe_num_experts rotary_dim": 4,
    "num_experts_per_tok moe_k moe_topk num_experts_per_token moe_top_k": 2,
    "sliding_window attention_window_size window_size sliding_window_size": WINDOW,
    "n_group topk_group num_expert_groups n_shared_experts num_shared_experts depth": 1,
}
_SMALL: dict[str, Any] = {name: value for names, value in _VALUES.items() for name in names.split()} | {
    "initializer_range": 0.2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "is_decoder": True,
    "tie_word_embeddings": False,
}  # fmt: skip
# Multipliers and caps on the logits whose usual value, 1 or none, would hide that they are forgotten.
_TELLING: dict[str, Any] = {
    "logit_scale": 0.4, "logits_scaling": 3.0, "lm_head_multiplier": 0.4, "final_logit_softcapping": 2.0,
    "logits_soft_cap": 2.0, "output_logit_soft_cap": 2.0, "logits_mup_width_multiplier": 3.0,
}  # fmt: skip
_LINEAR = {"layer_types": ["linear_attention", "full_attention"]}
_NGRAMS = {
    **_LINEAR, "indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": 16,
    "indexer_compress_ratio": 4, "ngram_vocab_size_base": 100, "hc_lowrank": 8,
}  # fmt: skip
_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_SLIDING = {"layer_types": ["sliding_attention", "full_attention"]}
_HALF_LINEAR = (
    "bailing_hybrid", "kimi_linear", "qwen3_5.text_config", "qwen3_5_moe.text_config", "qwen3_5_moe_text", "qwen3_5_text",
    "qwen3_next",
)  # fmt: skip
OVERRIDES: dict[str, dict[str, Any]] = {
    **dict.fromkeys(_HALF_LINEAR, _LINEAR),
    **dict.fromkeys(("qwen4_exp.text_config", "qwen4_exp_text"), _NGRAMS),
    **dict.fromkeys(("zamba", "zamba2"), {"layers_block_type": ["mamba", "hybrid"]}),
    "bamba": {"attn_layer_indices": [1], "mamba_n_heads": 8},
    "blt": {"encoder_hash_byte_group_vocab": 50},
    "cohere_compass_text": {**_SLIDING, "rope_parameters": dict.fromkeys(_SLIDING["layer_types"], _ROPE)},
    "dbrx.attn_config": {"rope_theta": 10000.0, "clip_qkv": 8.0},
    "gemma3n_text": {"num_kv_shared_layers": 0, **_SLIDING},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"], "mamba_n_heads": 8},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "lfm3": {"layer_types": ["conv", "sliding_attention"]},
    "longcat_flash": {"zero_expert_num": 2},
    "mamba2": {"num_heads": 8, "head_dim": 8},
    "recurrent_gemma": {"block_types": ["recurrent", "attention"]},
    "reformer": {
        "axial_pos_embds": False, "attn_layers": ["local", "lsh"], "num_buckets": 2,
        "local_attn_chunk_length": 8, "lsh_attn_chunk_length": 8,
    },
    "roc_bert": {
        "enable_pronunciation": False, "enable_shape": False, "concat_input": False,
        "pronunciation_vocab_size": 9, "shape_vocab_size": 9,
    },
    "xlnet": {"d_inner": 48},
    "xlstm": {"num_heads": 2, "qk_dim_factor": 1.0},
    "xmod": {"default_language": "en_XX"},
    "zaya": {"num_experts_per_tok": 1},
}  # fmt: skip
# Configuration classes that no small values serve, and what else is missing.
NOT_BUILT = {
    "dots3_note": "its text model is `dots3_note_text`",
    "gemma3n": "needs timm; its text model is `gemma3n_text`",
    "gemma4_assistant": "drafts for another model",
    "gemma4_unified_assistant": "drafts for another model",
    **dict.fromkeys(("musicgen", "musicgen_melody"), "its configuration is that of an encoder and a decoder"),
}


def family_names() -> list[str]:
    """The causal model types that a tiny configuration can build, in order."""
    return sorted({kind.model_type for kind in MODEL_FOR_CAUSAL_LM_MAPPING} - set(NOT_BUILT))


def _fields(kind: Any) -> set[str]:
    return {field.name for field in dataclasses.fields(kind)}


def _small(kind: Any, family: str) -> Any:
    """A tiny configuration of a class, its sub-configurations included."""
    names = _fields(kind)
    values = {name: value for name, value in {**_SMALL, **_TELLING}.items() if name in names}
    values |= {name: 0.0 for name in names if "dropout" in name or "pdrop" in name and family != "mpt.attn_config"}
    if "kv_lora_rank" in names:  # latent attention has no groups of queries
        values["num_key_value_heads"] = _HEADS
    inner = getattr(kind, "sub_configs", {})
    usual = kind() if inner else None
    for name in inner:
        if getattr(usual, name, None) is not None:
            values[name] = _small(type(getattr(usual, name)), f"{family}.{name}").to_dict()
    return kind(**{**values, **OVERRIDES.get(family, {})})


def family_config(family: str, **changes: Any) -> Any:
    """A tiny configuration of a family."""
    config = _small(CONFIG_MAPPING[family], family)
    for name, value in changes.items():
        setattr(config, name, value)
    return config


def family_model(family: str, attention: str | None = None, seed: int = 0) -> Any:
    """A model of a family with wide random weights, float32, in evaluation mode: flat logits would hide faults."""
    given = {"dtype": torch.float32} | ({} if attention is None else {"attn_implementation": attention})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(family_config(family), **given)
    return model.eval()


def examples_with(predictors: int) -> list[Example]:
    """Longer than the window; one without a pair."""
    return made_up_examples(predictors)[:3]


EXAMPLES = examples_with(0)


def own_loss(model: Any, example: Example) -> torch.Tensor:
    """Summed cross-entropy of an example by a model's own logits, (); one plain chat."""
    ids = torch.from_numpy(example.trunk.astype(np.int64))
    logits = model(input_ids=ids[None], use_cache=False).logits[0, :, :VOCABULARY]
    (start, stop), *_ = example.labels
    return F.cross_entropy(logits[start - 1 : stop - 1], ids[start:stop], reduction="sum")


@torch.no_grad()
def own_losses(model: Any) -> list[float]:
    """`own_loss` of each of `EXAMPLES`."""
    return [float(own_loss(model, example)) for example in EXAMPLES]
