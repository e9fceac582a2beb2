"""What a model makes of one laid-out row: the states of its tokens, the LM loss of each labelled one, and its attention.

For looking at, not for training: attention is computed eagerly, all of it at once, without gradient.

Shapes: L positions of the row, D width, N labelled positions, H heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from stepjepa.data.types import Rows
from stepjepa.errors import ConfigError
from stepjepa.modeling.configs import text_config
from stepjepa.modeling.extras import add_extras, attach_saved, predictor_rows, with_predictors
from stepjepa.modeling.forward import attach_forest_forward, takes_positions
from stepjepa.modeling.load import load_model, max_positions
from stepjepa.modeling.logits import output_head
from stepjepa.modeling.masks import attention_masks
from stepjepa.modeling.parts import backbone
from stepjepa.modeling.predictors import PredictorRows, known_predictors, vocabulary_size
from stepjepa.modeling.trial import packed_fault
from stepjepa.modeling.windows import heeds_window

MOST_BYTES = 4 * 2**30  # of attention weights that are held at once


@dataclass(frozen=True)
class Probe:
    """A model that looks at rows.

    Attributes:
        model: a causal LM with eager attention, in evaluation mode.
        vocabulary: V, entries of the LM softmax.
        predictor_ids: of ``<|predictor_1|>`` .. in the model.
        known: their rows came with the model; else they were drawn anew.
    """

    model: Any
    vocabulary: int
    predictor_ids: tuple[int, ...]
    known: bool

    @property
    def layers(self) -> int:
        """Layers of the decoder."""
        return int(text_config(self.model.config).num_hidden_layers)

    @property
    def heads(self) -> int:
        """H, heads of a layer."""
        return int(text_config(self.model.config).num_attention_heads)


@dataclass(frozen=True)
class RowNumbers:
    """What a model gave for a row.

    Attributes:
        states: (L, D) float32, last hidden states behind the final norm.
        losses: (N,) float32, cross-entropy of each labelled token, predictor tokens left out of the softmax.
        attention: for each layer (H, L, L) float32, weights of the row's query for the column's key; none where it was not
            asked for.
    """

    states: torch.Tensor
    losses: torch.Tensor
    attention: tuple[torch.Tensor, ...]


def load_probe(name: str, tokenizer: Any, predictors: int, seed: int) -> Probe:
    """Load a model to look at rows with.

    Args:
        name: Hub id, folder or preset.
        tokenizer: of the model.
        predictors: predictor tokens that rows may have; they get the trained rows that lie next to the model or in its
            vocabulary, else new ones.
        seed: of new rows, and of a preset's weights.

    Raises:
        ConfigError: it cannot be loaded, or takes no mask.
    """
    model = load_model(name, tokenizer, seed=seed, attn_implementation="eager")
    vocabulary = vocabulary_size(model)
    attach_saved(model, name)
    rows, known = predictor_rows(model), True
    if rows is None or len(rows.ids) < predictors:
        in_vocabulary = known_predictors(tokenizer, vocabulary, predictors)
        known = bool(in_vocabulary)
        if predictors:
            add_extras(model, PredictorRows.drawn(model, predictors, seed, in_vocabulary))
        rows = predictor_rows(model)
    ids = () if rows is None else tuple(rows.ids[:predictors])
    attach_forest_forward(model, vocabulary)
    reason = packed_fault(model, vocabulary, ids)
    if reason is not None:
        raise ConfigError(f"--model_name {name}: this model cannot be shown a packed row: {reason}; use --no_run_model")
    return Probe(model.eval(), vocabulary, ids, known)


def attention_fits(probe: Probe, length: int, every_layer: bool = True) -> bool:
    """Whether the attention weights of `length` tokens may be held: of every layer, or of one with what comes of it."""
    return 4 * (probe.layers if every_layer else 3) * probe.heads * length**2 <= MOST_BYTES


def row_numbers(
    probe: Probe,
    row: Rows,
    predicting_N: torch.Tensor,
    label_ids_N: torch.Tensor,
    attention: bool = True,
) -> RowNumbers:
    """Run the model over one row under the visibility rule.

    Args:
        row: (1, L), packed.
        predicting_N: positions whose next token is labelled; `label_ids_N`: these tokens.
        attention: whether the weights are wanted.

    Raises:
        ConfigError: the row is too long for the model, or for this machine's memory.
    """
    model, length = probe.model, row.input_ids.shape[1]
    config = text_config(model.config)
    positions = max_positions(model)
    if positions is not None and int(row.position_ids.max()) >= positions:
        raise ConfigError(f"the row has {int(row.position_ids.max()) + 1} positions, and the model has {positions}")
    if not attention_fits(probe, length, every_layer=attention):
        raise ConfigError(f"{length} tokens are too many for attention that is computed at once")
    part = backbone(model)
    extra = {"position_ids": row.position_ids} if takes_positions(part) else {}
    with torch.no_grad(), with_predictors(model, row.input_ids) as known_ids:
        output = part(
            input_ids=known_ids,
            attention_mask=attention_masks(row, config, model.dtype, heeds_window(model)),
            use_cache=False,
            output_attentions=attention,
            **extra,
        )
        states_LD = output[0][0]
        logits_NV = output_head(model, probe.vocabulary).logits(model, states_LD.index_select(0, predicting_N))
        losses_N = F.cross_entropy(logits_NV.float(), label_ids_N, reduction="none")
    weights = tuple(layer[0].float() for layer in output.attentions or () if layer is not None) if attention else ()
    return RowNumbers(states_LD.float(), losses_N, weights)
