"""The forwards: one call of the model that returns the LM loss and the states of both views.

`attach_forest_forward` teaches a Hugging Face causal LM to take a collated batch. The call still goes through the module
(and through whatever wraps it: DDP, FSDP, autocast, PEFT), the backbone returns only its last hidden state, and logits
exist at labelled positions only. A call without a batch's own keys, such as `generate` makes, runs the model's own forward.

Shapes: B examples, R rows, T tokens, D width, N labelled positions, P pairs, V vocabulary.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from transformers.modeling_outputs import ModelOutput

from stepjepa.losses.lm import chunk_rows, chunked_cross_entropy_sum, linear_cross_entropy_sum, scaled_logits
from stepjepa.modeling.configs import text_config
from stepjepa.modeling.masks import attention_masks
from stepjepa.modeling.trim import trimmed


@dataclass
class ForestOutput(ModelOutput):
    """What one forward returns.

    Attributes:
        lm_loss_sum: () float32, cross-entropy summed over the N labelled positions.
        source_states: (P, D), the states that stand for the source views.
        target_states: (P, D), the states that stand for the target views.
    """

    lm_loss_sum: torch.Tensor | None = None
    source_states: torch.Tensor | None = None
    target_states: torch.Tensor | None = None


@dataclass(frozen=True)
class OutputHead:
    """How a causal LM turns states into logits.

    Attributes:
        vocabulary: V, entries of the softmax; predictor tokens lie behind them and never enter.
        scale, softcap: what the model does to its logits.
        plain: the output embedding is one matrix (and a bias) that may be used without calling the module.
    """

    vocabulary: int
    scale: float = 1.0
    softcap: float | None = None
    plain: bool = True

    def loss_sum(self, model: torch.nn.Module, states_ND: torch.Tensor, labels_N: torch.Tensor) -> torch.Tensor:
        """Summed cross-entropy () float32 of `states_ND` against `labels_N`."""
        module = output_module(model)
        if self.plain:
            bias = getattr(module, "bias", None)
            bias = None if bias is None else bias[: self.vocabulary]
            weight = module.weight[: self.vocabulary]
            return linear_cross_entropy_sum(states_ND, weight, labels_N, bias, self.scale, self.softcap)

        def head(states_CD: torch.Tensor) -> torch.Tensor:
            return scaled_logits(module(states_CD)[..., : self.vocabulary], self.scale, self.softcap)

        return chunked_cross_entropy_sum(head, states_ND, labels_N, chunk_rows(self.vocabulary))


def output_module(model: Any) -> Any:
    """The output embedding, out of PEFT's wrapper for trained token rows: those are predictors, behind the softmax."""
    module = model.get_output_embeddings()
    adapter = getattr(module, "token_adapter", None)
    return module if adapter is None else adapter.base_layer


def output_head(model: torch.nn.Module, vocabulary: int) -> OutputHead:
    """The head of `model`, from its configuration and its output embedding."""
    config = text_config(model.config)
    scale = float(getattr(config, "logit_scale", None) or 1.0)
    if getattr(config, "logits_scaling", None):
        scale /= float(config.logits_scaling)
    module = output_module(model)
    return OutputHead(
        vocabulary,
        scale,
        getattr(config, "final_logit_softcapping", None),
        plain=type(module) is torch.nn.Linear,
    )


def causal_lm(model: torch.nn.Module) -> torch.nn.Module:
    """The Hugging Face causal LM inside a PEFT model, or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[operator]


def attach_forest_forward(model: torch.nn.Module, vocabulary: int) -> None:
    """Let ``model(**batch)`` take the batches of `ForestCollator` and `TwoPassCollator` and return a `ForestOutput`.

    Args:
        model: a Hugging Face causal LM, bare or inside PEFT. Changed in place: its `forward` learns the new keys.
        vocabulary: V, entries of the LM softmax (the model's vocabulary without predictor tokens).
    """
    inner: Any = causal_lm(model)
    own_forward = getattr(inner, "_own_forward", None) or inner.forward
    head = output_head(inner, vocabulary)

    def forward(self: Any, *args: Any, label_positions: torch.Tensor | None = None, **kwargs: Any) -> Any:
        if label_positions is None:
            return own_forward(*args, **kwargs)
        return _forest_forward(self, head, label_positions, kwargs)

    inner._own_forward = own_forward
    inner.forward = types.MethodType(forward, inner)


def has_forest_forward(model: torch.nn.Module) -> bool:
    """Whether `attach_forest_forward` was called on the model."""
    return "_own_forward" in vars(causal_lm(model))


def _forest_forward(
    model: Any, head: OutputHead, label_positions: torch.Tensor, batch: Mapping[str, torch.Tensor]
) -> ForestOutput:
    packed = "example" in batch
    if packed:
        mask = attention_masks(batch, text_config(model.config), model.dtype)
    else:
        mask = batch["attention_mask"]
    read = batch["read_positions"] if packed else None
    states = last_states(model, batch["input_ids"], mask, batch["position_ids"], read)  # (R * T, D)
    sources, targets = batch["source_readouts"], batch["target_readouts"]
    if packed or "view_input_ids" not in batch:
        # One gather for everything that is read, so that the backward pass scatters once.
        picked = states.index_select(0, torch.cat([label_positions, sources, targets]))
        predicting, source, target = picked.split([len(label_positions), len(sources), len(targets)])
    else:
        predicting = states.index_select(0, label_positions)
        views = last_states(
            model, batch["view_input_ids"], batch["view_attention_mask"], batch["view_position_ids"]
        )  # (S * T', D)
        source, target = views.index_select(0, sources), views.index_select(0, targets)
    return ForestOutput(
        lm_loss_sum=head.loss_sum(model, predicting, batch["label_ids"]),
        source_states=source,
        target_states=target,
    )


def last_states(
    model: Any, input_ids: torch.Tensor, mask: Any, position_ids: torch.Tensor, read_N: torch.Tensor | None = None
) -> torch.Tensor:
    """Last hidden states after the final norm, (R * T, D), of the backbone of a causal LM.

    With `read_N` (positions, each once) only those rows are right; what nobody reads is not computed to the end.
    """
    backbone = getattr(model, model.base_model_prefix)
    extra = {"position_ids": position_ids} if takes_positions(backbone) else {}
    with nullcontext() if read_N is None else trimmed(backbone, read_N):
        output = backbone(input_ids=input_ids, attention_mask=mask, use_cache=False, **extra)
    return output[0].flatten(0, 1)


def takes_positions(backbone: Any) -> bool:
    """Whether the backbone has a `position_ids` argument (Bloom's ALiBi model has none)."""
    return "position_ids" in inspect.signature(type(backbone).forward).parameters
