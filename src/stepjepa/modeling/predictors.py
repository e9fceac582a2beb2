"""Predictor tokens: K vocabulary entries behind the model's own, trained with the model and taken out again at the end."""

from __future__ import annotations

from typing import Any

import torch


def predictor_names(count: int) -> list[str]:
    """``<|predictor_1|>`` .. ``<|predictor_K|>``."""
    return [f"<|predictor_{number}|>" for number in range(1, count + 1)]


def vocabulary_size(model: Any) -> int:
    """Rows of the model's input embedding: the V of the LM softmax as long as no predictor was added."""
    return int(model.get_input_embeddings().weight.shape[0])


def known_predictors(tokenizer: Any, vocabulary: int, count: int) -> list[int]:
    """Ids of ``<|predictor_1|>`` .. that a tokenizer already knows and that have a row in the model's embedding.

    Returns:
        `count` ids, or none where one of them is missing.
    """
    known = {} if tokenizer is None else tokenizer.get_added_vocab()
    ids = [known.get(name, vocabulary) for name in predictor_names(count)]
    return ids if all(index < vocabulary for index in ids) else []


def add_predictors(model: Any, count: int, seed: int) -> list[int]:
    """Append `count` rows to the embeddings and return their ids, in the order 1 .. K.

    The rows are drawn from the distribution of the rows that are there, dimension by dimension, with a generator of
    their own: neither the global random state nor any existing weight changes. They stand behind every existing row
    (padded vocabularies included), so the LM softmax can leave them out by a slice.
    """
    if not count:
        return []
    size = vocabulary_size(model)
    with torch.random.fork_rng(devices=[]):
        model.resize_token_embeddings(size + count, mean_resizing=False)
    weight = model.get_input_embeddings().weight
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        known = weight[:size].float()
        noise = torch.randn(count, weight.shape[1], generator=generator).to(weight.device)
        weight[size:] = (known.mean(0) + known.std(0) * noise).to(weight.dtype)
        output = model.get_output_embeddings()
        if output is not None and output.weight is not weight:
            output.weight[size:] = 0
            if getattr(output, "bias", None) is not None:
                output.bias[size:] = 0
    return list(range(size, size + count))


def embedding_name(model: Any) -> str:
    """Name of the input embedding module as PEFT addresses it (``embed_tokens``, ``wte``, ...).

    Raises:
        ValueError: the model has none among its modules.
    """
    embedding = model.get_input_embeddings()
    for name, module in model.named_modules():
        if module is embedding:
            return name.rsplit(".", 1)[-1]
    raise ValueError("the model's input embedding is none of its modules")
