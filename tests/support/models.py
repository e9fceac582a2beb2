"""Tiny random models of every supported architecture, and made-up examples for them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
from transformers import AutoModelForCausalLM

from stepjepa.data.types import Example, Span
from stepjepa.modeling.extras import PredictorRows
from stepjepa.objectives.pairs import PairBuilder

TRAINED_VOCABULARY, VOCABULARY = 96, 100
_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_LLAMA_LIKE = {**_SIZES, "num_key_value_heads": 2}
_HYBRID = {"head_dim": 8, "sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]}
_GPT2 = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256}
_NO_DROPOUT = {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}

# name -> (configuration class, its arguments, attention implementations that take the mask)
ARCHITECTURES: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "llama": ("LlamaConfig", _LLAMA_LIKE, ("sdpa", "eager")),
    "qwen2": ("Qwen2Config", _LLAMA_LIKE, ("sdpa",)),
    "qwen3": ("Qwen3Config", {**_LLAMA_LIKE, "head_dim": 8}, ("sdpa",)),
    "mistral_sliding": ("MistralConfig", {**_LLAMA_LIKE, "sliding_window": 6}, ("sdpa", "eager")),
    "gemma3_sliding": ("Gemma3TextConfig", {**_LLAMA_LIKE, **_HYBRID}, ("sdpa", "eager")),
    "gemma2": ("Gemma2Config", {**_LLAMA_LIKE, **_HYBRID}, ("eager",)),
    "olmo2": ("Olmo2Config", _LLAMA_LIKE, ("sdpa",)),
    "phi3": ("Phi3Config", _LLAMA_LIKE, ("sdpa",)),
    "gpt_neox": ("GPTNeoXConfig", _SIZES, ("sdpa",)),
    "gpt2": ("GPT2Config", {**_GPT2, **_NO_DROPOUT}, ("sdpa", "eager")),
    "mixtral": ("MixtralConfig", {**_LLAMA_LIKE, "num_local_experts": 4}, ("sdpa",)),
    "granite_scaled_logits": ("GraniteConfig", {**_LLAMA_LIKE, "logits_scaling": 3.0}, ("sdpa",)),
    "cohere_scaled_logits": ("CohereConfig", {**_LLAMA_LIKE, "logit_scale": 0.3}, ("sdpa",)),
    "phi_biased_head": ("PhiConfig", _LLAMA_LIKE, ("sdpa",)),
}


def tiny_model(name: str, attention: str = "sdpa", seed: int = 0, **changes: Any) -> Any:
    """A model of two layers and width 32 with random weights, float32, no dropout, in evaluation mode."""
    kind, arguments, _ = ARCHITECTURES[name]
    config = getattr(transformers, kind)(**{**arguments, **changes})
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=torch.float32)
    return model.eval()


class Views(NamedTuple):
    """A pair on the trunk: the source ends with token `source_end`, the target is [target_start, target_end)."""

    source_end: int
    target_start: int
    target_end: int


def paired(ids: Any, labels: Any, views: Sequence[Views] = (), predictors: int = 0, **how: Any) -> Example:
    """An example of these tokens, with branches of so many predictors, read as the builder's arguments `how` say."""
    ids = np.asarray(ids, np.int32)
    builder = PairBuilder(ids, predictors, **how)
    for source_end, start, stop in views:
        builder.pair(Span(0, source_end + 1), Span(start, stop))
    found = builder.found("")
    return Example(ids, tuple(Span(*span) for span in labels), found.segments, found.pairs)


def made_up_example(length: int, views: Sequence[Views], seed: int = 0, predictors: int = 0, **how: Any) -> Example:
    """Random tokens; the last two thirds are labelled."""
    ids = np.random.default_rng(seed).integers(3, TRAINED_VOCABULARY, length).astype(np.int32)
    return paired(ids, ((length // 3, length),), views, predictors, **how)


def made_up_examples(predictors: int = 0, **how: Any) -> list[Example]:
    """Four examples: two pairs (one after the other), none, one, one."""
    views: list[list[Views]] = [[Views(8, 9, 14), Views(13, 14, 20)], [], [Views(11, 15, 25)], [Views(3, 5, 9)]]
    lengths = enumerate(zip((20, 15, 31, 9), views, strict=True), 1)
    return [made_up_example(length, own, seed, predictors, **how) for seed, (length, own) in lengths]


def add_to_vocabulary(model: Any, count: int, seed: int) -> list[int]:
    """Write new predictor rows into a model's vocabulary, as ``--keep_predictors`` does at export; their ids."""
    rows = PredictorRows.drawn(model, count, seed)
    model.resize_token_embeddings(rows.first + count, mean_resizing=False)
    with torch.no_grad():
        model.get_input_embeddings().weight[rows.first :] = rows.weight
        output = model.get_output_embeddings()
        if output.weight is not model.get_input_embeddings().weight:
            output.weight[rows.first :] = 0
    return rows.ids


def spread(model: Any) -> Any:
    """The model with large weights, which spread the logits, so that rounding cannot turn one argmax into another."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


# Token ids of prompts of several lengths.
PROMPTS = [[5, 6, 7], [8], [9, 10, 11, 12, 13, 14, 15, 16], [17, 18], [3, 3, 3, 3, 3], [20, 21, 22]]
