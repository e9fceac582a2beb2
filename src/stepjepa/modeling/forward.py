"""The forward of a batch: one call of the model that returns the parts of the loss and the states of both views.

`attach_forest_forward` lets a Hugging Face causal LM take a `Batch`. The call still goes through the module and its wrappers
(DDP, FSDP, autocast, PEFT), the backbone returns only its last hidden state, and logits are computed at labelled positions
only. A call without a batch, such as those of `generate`, runs the model's own forward.

Shapes: B examples, R rows, T tokens, D width, N labelled positions, P pairs, V vocabulary.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from stepjepa.data.types import LM, Batch, ForestOutput, LossPart, Rows, StateReads
from stepjepa.errors import ConfigError
from stepjepa.losses.distances import combine
from stepjepa.modeling.extras import encoding_model, trained_extras, with_predictors
from stepjepa.modeling.masks import AttentionMask, attention_masks
from stepjepa.modeling.parts import (
    backbone,
    causal_lm,
    decoder_layers,
    forward_as,
    output_head,
    own_forward,
)
from stepjepa.objectives.base import ModelView, Objective

# FSDP and DDP search the return value of a forward for tensors.
torch.export.register_dataclass(ForestOutput)


def loss_view(model: PreTrainedModel, vocabulary: int) -> ModelView:
    """The parts of the model that a loss may use."""

    def logits(states_ND: Tensor, detach: bool = False) -> Tensor:
        # If the weights need no gradient while the logits are computed, only the states get one.
        trained = [
            parameter for parameter in model.parameters() if detach and parameter.requires_grad
        ]
        for parameter in trained:
            parameter.requires_grad_(False)
        try:
            return output_head(model, vocabulary).logits(model, states_ND)
        finally:
            for parameter in trained:
                parameter.requires_grad_(True)

    return ModelView(
        trained_extras(model).objective,
        vocabulary,
        model.get_input_embeddings(),
        logits,
    )


def attach_forest_forward(
    model: nn.Module,
    vocabulary: int,
    objective: Objective | None = None,
    noise: float | None = None,
) -> None:
    """Let ``model(batch=..., step=...)`` take a `Batch` and return a `ForestOutput`.

    With a step, the parts of the objective's loss are computed along with the LM loss; without a step, the states are
    returned as they are read. `predict_ids` and `token_sums` request the fields `predicted_ids` and `token_sums`. The
    model's `forward` is replaced; `vocabulary` is V, the size of its softmax. In training mode, the embeddings of the chats
    get the noise of `noisy_chats` with the alpha `noise`.
    """
    inner: Any = causal_lm(model)
    original = own_forward(inner)
    # This tests the model once and keeps the result. It does so now because the model must not be wrapped or sharded yet.
    output_head(inner, vocabulary)

    def forward(self: Any, *args: Any, batch: Batch | None = None, **kwargs: Any) -> Any:
        # `self` and not `inner`: a copy of the model must run its own forward.
        if batch is None:
            return own_forward(self)(*args, **kwargs)
        return _forest_forward(self, vocabulary, objective, noise, batch, **kwargs)

    vars(inner)["_own_forward"] = original
    inner.forward = types.MethodType(forward, inner)


def detach_forest_forward(inner: PreTrainedModel) -> None:
    """Restore the forward that a causal LM had before `attach_forest_forward`."""
    original = vars(inner).pop("_own_forward", None)
    if original is None:
        return
    del inner.forward
    # Another library had replaced this model's forward before.
    if original != inner.forward:
        inner.forward = original


def _forest_forward(
    model: PreTrainedModel,
    vocabulary: int,
    objective: Objective | None,
    noise: float | None,
    batch: Batch,
    step: int | None = None,
    predict_ids: bool = False,
    token_sums: bool = False,
    **unused: Any,
) -> ForestOutput:
    # `unused`: PEFT passes the arguments of the model's own forward too, all None.
    # Before any pass with a graph: an EMA encoder swaps the weights in place.
    separate = separate_targets(model, batch)
    sides = [batch.sources, batch.targets] if separate is None else [batch.sources]
    layers = {layer for side in sides for layer in side.layers}
    # (R * T, D) for each layer; the states of the view rows of `two_pass` follow those of the chats.
    with noisy_chats(model, batch.rows, noise) if noise and model.training else nullcontext():
        by_layer = layer_states(model, batch.rows, layers)
    if batch.views is not None:
        views = layer_states(model, batch.views, layers)
        by_layer = {layer: torch.cat([states, views[layer]]) for layer, states in by_layer.items()}
    states = by_layer[None]
    if layers != {None} or any(side.vectors is not None for side in sides):
        predicting = states.index_select(0, batch.label_positions)
        vectors = [read_layers(by_layer, side) for side in sides]
    else:
        # One gather for all reads, so that the backward pass scatters once.
        parts = [batch.label_positions, *(side.positions for side in sides)]
        sizes = [len(part) for part in parts]
        predicting, *vectors = states.index_select(0, torch.cat(parts)).split(sizes)
    source, target = vectors[0], vectors[1] if separate is None else separate

    # The LM loss is complete here; the objective adds its parts below.
    predictor, head = trained_extras(model).head, output_head(model, vocabulary)
    sums = head.loss_sum(model, predicting, batch.label_ids, token_sums=token_sums)
    lm_sum = sums[0] if token_sums else sums
    lm_weight = 1.0 if objective is None else objective.options.gamma
    output = ForestOutput(
        {LM: LossPart(lm_sum, batch.label_ids.numel(), lm_weight)},
        source if predictor is None else predictor(source, batch.groups),
        target,
        head.most_likely(model, predicting) if predict_ids else None,
        sums[1:].detach() if token_sums else None,
    )
    if objective is not None and step is not None:
        view = loss_view(model, vocabulary)
        output.source_states = objective.source_states(output, batch, view)
        output.target_states = objective.target_states(output)
        output.parts.update(objective.loss(output, batch, view, step))
    return output


@contextmanager
def noisy_chats(model: PreTrainedModel, rows: Rows, alpha: float) -> Iterator[None]:
    """Within this context the embeddings of the rows' chats get the noise of NEFTune (arXiv:2310.05914): uniform in
    +- alpha / sqrt(L * D) on the L tokens of a chat. Predictors, isolated views and padding get no noise."""
    chats_RT, on_chat_RT = rows.example, rows.filled
    # Without packing, each row is a chat.
    if chats_RT is None:
        chats_RT = torch.arange(len(on_chat_RT), device=on_chat_RT.device)[:, None].expand_as(
            on_chat_RT
        )
    if rows.segment is not None:
        on_chat_RT = on_chat_RT & (rows.segment == 0)
    # In the `inline` form, only the isolated target has a floor above 0.
    if rows.floor is not None:
        on_chat_RT = on_chat_RT & (rows.floor == 0)
    # Padding has example -1; its length is arbitrary, since it gets no noise. Picking out the chats' positions with a mask
    # would wait for the device.
    chats_RT = chats_RT.clamp(min=0)
    lengths_L = chats_RT.new_zeros(chats_RT.numel())
    lengths_L = lengths_L.index_add(0, chats_RT.flatten(), on_chat_RT.flatten().long())
    lengths_RT = lengths_L[chats_RT]

    def add_noise(module: nn.Module, arguments: Any, output_RTD: Tensor) -> Tensor:
        bounds_RT = alpha / (lengths_RT * output_RTD.shape[-1]).sqrt() * on_chat_RT
        noise_RTD = torch.empty_like(output_RTD).uniform_(-1, 1)
        return output_RTD + noise_RTD * bounds_RT[..., None].to(output_RTD.dtype)

    with model.get_input_embeddings().register_forward_hook(add_noise):
        yield


def separate_targets(model: PreTrainedModel, batch: Batch) -> Tensor | None:
    """Target vectors (P, D) from separate rows, without a graph; None if the batch has no such rows.

    The target encoder computes them if the model has one, else the model itself; D is the width of the encoder.
    """
    if batch.target_rows is None:
        return None
    with torch.no_grad(), encoding_model(model) as encoder:
        # Also for a batch without pairs: sharded weights need the same calls in every process.
        by_layer = layer_states(encoder, batch.target_rows, batch.targets.layers)
        return None if batch.idle else read_layers(by_layer, batch.targets)


def read_layers(by_layer: Mapping[int | None, Tensor], reads: StateReads) -> Tensor:
    """Read the vectors (P, D) of one side from the states (R * T, D) of its layers."""
    layers = [by_layer[layer] for layer in reads.layers]
    if reads.layer_of is None:
        return read_vectors(layers[0], reads)
    # Positions in the concatenated states of all layers.
    positions = reads.positions + reads.layer_of * len(layers[0])
    return read_vectors(torch.cat(layers), replace(reads, positions=positions))


def read_vectors(states_TD: Tensor, reads: StateReads) -> Tensor:
    """Read the vectors (P, D) of one side: single states, or weighted sums of states in float32."""
    if reads.vectors is None or reads.coefficients is None:
        return states_TD.index_select(0, reads.positions)
    return combine(states_TD, reads.positions, reads.coefficients, reads.vectors, reads.count)


# Calls of the backbone


def layer_states(
    model: PreTrainedModel, rows: Rows, layers: Iterable[int | None]
) -> dict[int | None, Tensor]:
    """The states (R * T, D) of one call of the backbone, by layer; the key None (after the final norm) is always
    included."""
    mask: AttentionMask | None = rows.attention_mask
    if mask is None:
        mask = attention_masks(model, rows)
    # Hooks keep only the requested layers, unlike `output_hidden_states`.
    kept: dict[int, list[Tensor]] = {}
    with ExitStack() as stack:
        for layer in layers:
            if layer is not None:
                kept[layer] = stack.enter_context(hidden_states(model, layer))
        output = run_backbone(model, rows.input_ids, mask, rows.position_ids, rows.read_positions)
    states: dict[int | None, Tensor] = {None: output[0].flatten(0, 1)}
    for layer, (states_RTD,) in kept.items():
        states[layer] = states_RTD.flatten(0, 1)
    return states


@contextmanager
def hidden_states(model: PreTrainedModel, layer: int) -> Iterator[list[Tensor]]:
    """Within this context the states (R, T, D) after a layer (see `Read`) are put into the list that is yielded.

    Raises:
        ConfigError: the model has no such layer, or no known list of layers.
    """
    kept: list[Tensor] = []
    layers, layer = known_layers(model, layer)

    def keep(tensor: Any) -> None:
        # Gradient checkpointing runs the layer again in the backward pass.
        if not kept:
            kept.append(tensor if isinstance(tensor, Tensor) else tensor[0])

    # States after layer i are the input of layer i + 1, which holds for the embeddings too. The last layer has no successor.
    if layer == len(layers):
        handle = layers[-1].register_forward_hook(lambda module, arguments, output: keep(output))
    else:
        handle = layers[layer].register_forward_pre_hook(
            lambda module, arguments, named: keep(
                arguments[0] if arguments else named["hidden_states"]
            ),
            with_kwargs=True,
        )
    with handle:
        yield kept


def known_layers(model: PreTrainedModel, layer: int) -> tuple[nn.ModuleList, int]:
    """The decoder's layers, and how many of them (0: the embeddings) come before the states of `layer` (see `Read`).

    Raises:
        ConfigError: there are fewer layers, or they cannot be found.
    """
    layers = decoder_layers(backbone(model))
    if layers is None:
        raise ConfigError(
            f"no states can be read after layer {layer}: the model's layers cannot be found; use the last layer"
        )
    count = len(layers)
    # There are count + 1 places, and a negative layer counts from the end.
    place = layer if layer >= 0 else 1 + count + layer
    if not 0 <= place <= count:
        raise ConfigError(
            f"no states can be read after layer {layer}: the model has layers 0 to {count}"
        )
    return layers, place


def run_backbone(
    model: PreTrainedModel,
    ids_RT: Tensor,
    mask: AttentionMask | None,
    positions_RT: Tensor,
    read_N: Tensor | None = None,
    **kwargs: Any,
) -> BaseModelOutput:
    """The output of the backbone of a causal LM for ids (R, T), which may include predictor tokens; its first entry is the
    states after the final norm, (R, T, D).

    With `read_N` (distinct positions) only the states at these positions are complete, see `trimmed`.
    """
    part = backbone(model)
    # Bloom, with ALiBi, takes none.
    if "position_ids" in inspect.signature(type(part).forward).parameters:
        kwargs["position_ids"] = positions_RT
    with (
        nullcontext() if read_N is None else trimmed(part, read_N),
        with_predictors(model, ids_RT) as known_ids,
    ):
        return part(input_ids=known_ids, attention_mask=mask, use_cache=False, **kwargs)


def last_mlp(backbone: nn.Module) -> nn.Module | None:
    """The MLP (or mixture of experts) of the last decoder layer; None if it has no known name, or if gradient checkpointing
    runs the layer again in the backward pass, with other shapes."""
    layers = decoder_layers(backbone)
    if layers is None:
        return None
    last: Any = layers[-1]
    checkpointed = any(
        getattr(module, "gradient_checkpointing", False) for module in (backbone, last)
    )
    # FSDP's wrapper for gradient checkpointing has this attribute.
    return (
        None
        if checkpointed or hasattr(last, "_checkpoint_wrapped_module")
        else getattr(last, "mlp", None)
    )


@contextmanager
def trimmed(backbone: nn.Module, read_N: Tensor) -> Iterator[None]:
    """Within this context the last MLP computes only rows `read_N` of the flattened (R * T) positions; others get zeros.

    After the last attention no position depends on another, and only states that predict a label or represent a view are
    read. This saves a part of a layer if prompts are not labelled, and does not change the states that are read.

    Args:
        read_N: (N,) int64, distinct positions.
    """
    mlp = last_mlp(backbone)
    if mlp is None:
        yield
        return
    original = mlp.forward

    def forward(hidden_RTD: Tensor, *args: Any, **kwargs: Any) -> Any:
        shape = hidden_RTD.shape[:2]
        hidden_LD = hidden_RTD.flatten(0, 1)
        read_1ND = hidden_LD.index_select(0, read_N)[None]
        output = original(read_1ND, *args, **kwargs)
        # A mixture of experts may return more than states; then it runs again on all positions.
        if not isinstance(output, Tensor):
            return original(hidden_RTD, *args, **kwargs)
        zeros_LD = output.new_zeros(len(hidden_LD), output.shape[-1])
        output_LD = zeros_LD.index_copy(0, read_N, output[0])
        return output_LD.unflatten(0, shape)

    with forward_as(mlp, forward):
        yield
