"""The forwards: one call of the model that returns the LM loss and the states of both views.

`attach_forest_forward` teaches a Hugging Face causal LM to take a collated batch. The call still goes through the module
(and through whatever wraps it: DDP, FSDP, autocast, PEFT), the backbone returns only its last hidden state, and logits
exist at labelled positions only. A call without a batch's own keys, such as `generate` makes, runs the model's own forward.

Shapes: B examples, R rows, T tokens, D width, N labelled positions, P pairs, V vocabulary.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from transformers.modeling_outputs import ModelOutput

from stepjepa.errors import ConfigError
from stepjepa.forest.collate import Batch, sub_batch
from stepjepa.losses.tube import combine
from stepjepa.modeling.configs import text_config
from stepjepa.modeling.ema import target_encoder
from stepjepa.modeling.extras import predictor_head, with_predictors
from stepjepa.modeling.logits import output_head
from stepjepa.modeling.masks import attention_masks
from stepjepa.modeling.parts import backbone, causal_lm, own_forward
from stepjepa.modeling.trim import decoder_layers, trimmed
from stepjepa.modeling.windows import heeds_window


@dataclass
class ForestOutput(ModelOutput):
    """What one forward returns.

    Attributes:
        lm_loss_sum: () float32, cross-entropy summed over the N labelled positions.
        source_states: (P, D), the states that stand for the source views, behind the predictor head if there is one.
        target_states: (P, D), the states that stand for the target views.
        predicted_ids: (N,) int64, the most likely token after each labelled position; only with ``predict_ids=True``.
    """

    lm_loss_sum: torch.Tensor | None = None
    source_states: torch.Tensor | None = None
    target_states: torch.Tensor | None = None
    predicted_ids: torch.Tensor | None = None


def attach_forest_forward(model: torch.nn.Module, vocabulary: int, tube_layer: int | None = None) -> None:
    """Let ``model(**batch)`` take the batches of `ForestCollator` and `TwoPassCollator` and return a `ForestOutput`.

    Args:
        model: a Hugging Face causal LM, bare or inside PEFT. Changed in place: its `forward` learns the new keys.
        vocabulary: V, entries of the LM softmax.
        tube_layer: which hidden states the semantic tube combines: those behind layer 1, 2, ... (0: the embeddings);
            None for the last ones, behind the final norm.
    """
    inner: Any = causal_lm(model)
    own = own_forward(inner)
    output_head(inner, vocabulary), heeds_window(inner)  # found now, before anything wraps or shards the model

    def forward(
        self: Any, *args: Any, label_positions: torch.Tensor | None = None, predict_ids: bool = False, **kwargs: Any
    ) -> Any:
        if label_positions is None:
            return own_forward(self)(*args, **kwargs)  # of this object: a copy of the model has its own
        return _forest_forward(
            self, vocabulary, tube_layer, {**kwargs, "label_positions": label_positions}, predict_ids
        )

    inner._own_forward = own
    inner.forward = types.MethodType(forward, inner)


def detach_forest_forward(model: torch.nn.Module) -> None:
    """Undo `attach_forest_forward`; nothing where it was not called."""
    inner: Any = causal_lm(model)
    own_forward = vars(inner).pop("_own_forward", None)
    if own_forward is None:
        return
    del inner.forward
    if getattr(own_forward, "__func__", None) is not type(inner).forward:  # something else had replaced it before
        inner.forward = own_forward


def _forest_forward(
    model: Any, vocabulary: int, tube_layer: int | None, batch: Batch, predict_ids: bool
) -> ForestOutput:
    # Before anything with a graph: an EMA encoder changes the weights in place and back.
    apart = targets_apart(model, batch)
    layer = tube_layer if "tube_weights" in batch else None
    with hidden_states(model, layer) as layer_states:
        states = row_states(model, batch)  # (R * T, D)
    labels, sources, targets = (batch[name] for name in ("label_positions", "source_readouts", "target_readouts"))
    if "view_input_ids" in batch:
        views = row_states(model, sub_batch(batch, "view_"))  # (S * T', D)
        predicting, source = states.index_select(0, labels), views.index_select(0, sources)
        target = views.index_select(0, targets) if apart is None else apart
    else:
        # One gather for everything that is read, so that the backward pass scatters once.
        read = [labels, sources, targets] if apart is None else [labels, sources]
        predicting, source, *rest = states.index_select(0, torch.cat(read)).split([len(part) for part in read])
        target = rest[0] if apart is None else apart
    if "tube_weights" in batch:
        source, target = tube_vectors(layer_states[0].flatten(0, 1) if layer_states else states, batch)
    predictor = predictor_head(model)
    head = output_head(model, vocabulary)
    return ForestOutput(
        lm_loss_sum=head.loss_sum(model, predicting, batch["label_ids"]),
        source_states=source if predictor is None else predictor(source),
        target_states=target,
        predicted_ids=head.most_likely(model, predicting) if predict_ids else None,
    )


def row_states(model: Any, rows: Batch) -> torch.Tensor:
    """Last hidden states (R * T, D) of packed or padded rows."""
    mask = rows.get("attention_mask")
    if mask is None:
        mask = attention_masks(rows, text_config(model.config), model.dtype, heeds_window(model))
    return last_states(model, rows["input_ids"], mask, rows["position_ids"], rows.get("read_positions"))


def targets_apart(model: Any, batch: Batch) -> torch.Tensor | None:
    """States (P, D) of targets that come as rows of their own, without a graph; None where they are not apart.

    They come from the EMA target encoder where the model has one, else from the model itself.
    """
    encoder = target_encoder(model)
    if "target_input_ids" not in batch:
        return None
    with torch.no_grad(), nullcontext() if encoder is None else encoder.in_place():
        states = row_states(model, sub_batch(batch, "target_"))
    return states.index_select(0, batch["target_readouts"])


def tube_vectors(states_TD: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Source and target vectors (P, D) float32 of the semantic tube."""
    pairs = len(batch["tube_weights"])

    def side(name: str) -> torch.Tensor:
        fields = (batch[f"tube_{name}_{part}"] for part in ("positions", "coefficients", "pairs"))
        position, coefficient, pair = fields
        return combine(states_TD, position, coefficient, pair, pairs)

    source, target = side("source"), side("target")
    order = batch.get("tube_target_order")
    return source, target if order is None else target.index_select(0, order)


@contextmanager
def hidden_states(model: Any, layer: int | None) -> Iterator[list[torch.Tensor]]:
    """Within this context the states (R, T, D) behind a layer (0: the embeddings) are kept in the list it yields.

    Raises:
        ConfigError: the model has no such layer, or no list of layers.
    """
    kept: list[torch.Tensor] = []
    if layer is None:
        yield kept
        return
    layers = list(known_layers(model, layer))

    def keep(tensor: Any) -> None:
        if not kept:  # gradient checkpointing runs the layer again
            kept.append(tensor if isinstance(tensor, torch.Tensor) else tensor[0])

    if layer == len(layers):
        handle = layers[-1].register_forward_hook(lambda module, arguments, output: keep(output))
    else:  # what a layer is given: behind the embeddings and their positions for the first
        handle = layers[layer].register_forward_pre_hook(
            lambda module, arguments, named: keep(arguments[0] if arguments else named["hidden_states"]),
            with_kwargs=True,
        )
    try:
        yield kept
    finally:
        handle.remove()


def known_layers(model: Any, layer: int) -> torch.nn.ModuleList:
    """The decoder's layers, of which `layer` counts so many (0: the embeddings).

    Raises:
        ConfigError: there are fewer, or they go by no known name.
    """
    layers = decoder_layers(backbone(model))
    if layers is None or not 0 <= layer <= len(layers):
        known = "its layers have no name that is known" if layers is None else f"it has layers 0 to {len(layers)}"
        raise ConfigError(f"tube_layer is {layer}, and of this model {known}")
    return layers


def last_states(
    model: Any, input_ids: torch.Tensor, mask: Any, position_ids: torch.Tensor, read_N: torch.Tensor | None = None
) -> torch.Tensor:
    """Last hidden states after the final norm, (R * T, D), of the backbone of a causal LM; ids of its predictor tokens
    may be among `input_ids`.

    With `read_N` (positions, each once) only those rows are right; what nobody reads is not computed to the end.
    """
    part = backbone(model)
    extra = {"position_ids": position_ids} if takes_positions(part) else {}
    trim = nullcontext() if read_N is None else trimmed(part, read_N)
    with with_predictors(model, input_ids) as known_ids, trim:
        output = part(input_ids=known_ids, attention_mask=mask, use_cache=False, **extra)
    return output[0].flatten(0, 1)


def takes_positions(part: Any) -> bool:
    """Whether a backbone takes `position_ids`, itself or its language model (Bloom's ALiBi model does not)."""
    parameters = inspect.signature(type(part).forward).parameters
    inside = getattr(part, "language_model", None)
    handed_on = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    return "position_ids" in parameters or (handed_on and inside is not None and takes_positions(inside))
