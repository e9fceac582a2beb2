"""What predicts the target from the source: K predictor tokens, and an optional head on their last state.

The ids of the tokens are V .. V+K-1, where V is the number of rows of the model's input embedding. Their rows are a module
of their own, trained with the model; the embedding is never resized. In a batch's forward, a hook on the embedding puts
them in where those ids are.

Shapes: R rows of a batch, T tokens, K predictors, D width, P pairs.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from stepjepa.errors import ConfigError


def predictor_names(count: int) -> list[str]:
    """``<|predictor_1|>`` .. ``<|predictor_K|>``."""
    return [f"<|predictor_{number}|>" for number in range(1, count + 1)]


def vocabulary_size(model: Any) -> int:
    """V, rows of the model's input embedding."""
    return int(model.get_input_embeddings().weight.shape[0])


def known_predictors(tokenizer: Any, vocabulary: int, count: int) -> list[int]:
    """Ids of ``<|predictor_1|>`` .. that a tokenizer already knows and that have a row in the model's embedding.

    Returns:
        `count` ids, or none where one of them is missing.
    """
    known = {} if tokenizer is None else tokenizer.get_added_vocab()
    ids = [known.get(name, vocabulary) for name in predictor_names(count)]
    return ids if all(index < vocabulary for index in ids) else []


class PredictorRows(nn.Module):
    """The rows of the predictor tokens.

    Args:
        weight_KD: (K, D), their first values; trained in their dtype.
        first: V, the id of the first one.
    """

    def __init__(self, weight_KD: torch.Tensor, first: int):
        super().__init__()
        self.weight = nn.Parameter(weight_KD)
        self.first = first

    @classmethod
    def drawn(cls, model: Any, count: int, seed: int, known: list[int] | None = None) -> PredictorRows:
        """Rows for a causal LM, on the device and in the dtype of its embedding.

        They follow the distribution of the vocabulary's rows, dimension by dimension, and `seed` alone; or they are copies
        of the vocabulary's rows `known`.

        Raises:
            ConfigError: the model's input embedding is no plain one.
        """
        embedding = model.get_input_embeddings()
        if not isinstance(embedding, nn.Embedding):
            raise ConfigError(
                f"{type(model).__name__}: predictor tokens need a plain input embedding, and this is a "
                f"{type(embedding).__name__}; use predictors=0"
            )
        vocabulary = embedding.weight.detach()
        if known:
            return cls(vocabulary[known].clone(), len(vocabulary))
        noise = torch.randn(count, vocabulary.shape[1], generator=torch.Generator().manual_seed(seed))
        values = vocabulary.float()
        rows = values.mean(0) + values.std(0) * noise.to(vocabulary.device)
        return cls(rows.to(vocabulary.dtype), len(vocabulary))

    @property
    def ids(self) -> list[int]:
        """V .. V+K-1."""
        return list(range(self.first, self.first + len(self.weight)))

    @contextmanager
    def placed(self, embedding: nn.Module, ids_RT: torch.Tensor) -> Iterator[torch.Tensor]:
        """Within this context `embedding` gives the predictors' rows where `ids_RT` has their ids.

        It yields the ids (R, T) to call the model with, which are all in the vocabulary: whatever else reads ids (per-layer
        embeddings, routers) finds known ones. Every call has a gradient for the rows, also one without a predictor, as DDP
        expects it. Nothing waits for the device.

        Raises:
            ConfigError: the model did not call its embedding, so the rows had no effect.
        """
        is_predictor = ids_RT >= self.first
        used: list[bool] = []

        def put_in(module: nn.Module, arguments: Any, output_RTD: torch.Tensor) -> torch.Tensor:
            used.append(True)
            rows_KD = embedded(module, self.weight)
            if output_RTD.device.type == "cpu":
                places = is_predictor.flatten().nonzero().squeeze(1)
                rows = rows_KD.index_select(0, ids_RT.flatten()[places] - self.first).to(output_RTD.dtype)
                return output_RTD.flatten(0, 1).index_copy(0, places, rows).view_as(output_RTD)
            # Elsewhere finding the places would wait for the device. One more row, without a gradient, stands for the
            # tokens of the vocabulary.
            rows_KD = torch.cat([rows_KD, rows_KD.new_zeros(1, rows_KD.shape[1])])
            chosen = torch.where(is_predictor, ids_RT - self.first, len(self.weight))
            rows_RTD = F.embedding(chosen, rows_KD, padding_idx=len(self.weight))
            return torch.where(is_predictor[..., None], rows_RTD.to(output_RTD.dtype), output_RTD)

        handle = embedding.register_forward_hook(put_in)
        try:
            yield ids_RT.clamp(max=self.first - 1)
        finally:
            handle.remove()
        if not used:
            raise ConfigError("the model does not call its input embedding, so it takes no predictor tokens")


def embedded(embedding: nn.Module, weight_KD: torch.Tensor) -> torch.Tensor:
    """What an embedding gives for rows (K, D) as if they were the vocabulary's: Gemma scales them, others have a norm."""
    if type(embedding) is nn.Embedding:
        return weight_KD
    stand_in = copy.copy(embedding)  # shares everything but the rows
    stand_in._parameters = {**embedding._parameters, "weight": weight_KD}  # type: ignore[dict-item]
    stand_in.padding_idx = None  # type: ignore[assignment]
    return stand_in.forward(torch.arange(len(weight_KD), device=weight_KD.device))


class PredictorHead(nn.Module):
    """A small network on the source's state, trained with the model and no part of its export.

    The method's own predictor is the model itself with K predictor tokens; a head is what other JEPAs have there (I-JEPA,
    arXiv:2301.08243; BYOL, arXiv:2006.07733). ``linear``: a D x D matrix without bias that starts as the identity, so that
    training starts from no head at all. ``mlp``: D -> 2 D -> D with GELU in between, initialised as torch does.

    Takes and returns (P, D) float32.
    """

    def __init__(self, kind: str, width: int, seed: int):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            if kind == "linear":
                linear = nn.Linear(width, width, bias=False)
                nn.init.eye_(linear.weight)
                self.layers = nn.Sequential(linear)
            else:
                self.layers = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, source_PD: torch.Tensor) -> torch.Tensor:
        """See the class."""
        with torch.autocast(source_PD.device.type, enabled=False):
            return self.layers(source_PD.float())
