"""What happens once before training: predictor tokens, LoRA, the choice of forward, the collator."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from stepjepa.data.examples import Example
from stepjepa.errors import ConfigError
from stepjepa.forest.collate import Batch, ForestCollator
from stepjepa.forest.two_pass import TwoPassCollator
from stepjepa.modeling.forward import attach_forest_forward, causal_lm, has_forest_forward, known_layers
from stepjepa.modeling.heads import add_head
from stepjepa.modeling.load import add_lora
from stepjepa.modeling.logits import output_head
from stepjepa.modeling.predictors import add_predictors, known_predictors, vocabulary_size
from stepjepa.modeling.segments import SEGMENTS
from stepjepa.modeling.trial import choose_forward, freeze_unreached
from stepjepa.training.options import JEPAOptions

logger = logging.getLogger("stepjepa")
Collator = Callable[[list[Example]], Batch]


@dataclass(frozen=True)
class ModelSetup:
    """What was done to the model.

    Attributes:
        vocabulary: V of the LM softmax; added predictor rows lie behind.
        predictor_ids: ids of <|predictor_1|> .. <|predictor_K|> (of the first alone where it is repeated).
        forward: ``packed``, ``two_pass`` or ``inline``.
    """

    vocabulary: int
    predictor_ids: list[int]
    forward: str

    @property
    def added_ids(self) -> list[int]:
        """Those predictors that did not come with the model; they are taken out of the final one."""
        return [index for index in self.predictor_ids if index >= self.vocabulary]


def set_up_model(
    model: Any, options: JEPAOptions, seed: int, device: str, peft_config: Any = None, tokenizer: Any = None
) -> tuple[Any, ModelSetup]:
    """Add predictor tokens, LoRA and the predictor head, choose the forward, and teach the model to take batches.

    Predictor tokens that the tokenizer and the model already have (a model that was written with ``--keep_predictors``)
    are used as they are, and stay in the vocabulary.

    Returns:
        The model (wrapped by PEFT where asked) and what was done.

    Raises:
        ConfigError: the forward that was asked for cannot be had.
    """
    if has_forest_forward(model):
        raise ConfigError("this model was already set up by a trainer; load it anew for another one")
    vocabulary = vocabulary_size(causal_lm(model))
    output_head(causal_lm(model), vocabulary)  # found before rows are added to the embeddings
    predictor_ids: list[int] = []
    if options.uses_pairs and options.predictors:
        if hasattr(model, "get_base_model"):
            raise ConfigError("the model is already a PEFT model; give the base model and a peft_config")
        count = 1 if options.same_predictor else options.predictors
        predictor_ids = known_predictors(tokenizer, vocabulary, count) or add_predictors(model, count, seed)
    if peft_config is not None:
        model = add_lora(model, peft_config, predictor_ids, seed)
    if options.uses_pairs:
        add_head(causal_lm(model), options.predictor_head, seed)
        if options.tube_layer is not None and options.objective == "semantic_tube":
            known_layers(causal_lm(model), options.tube_layer)
    attach_forest_forward(model, vocabulary, options.tube_layer)
    ids = placed_predictors(predictor_ids, options)
    forward = choose_forward(model, asked_forward(options), vocabulary, device, ids)
    frozen = freeze_unreached(model, ids)
    if frozen:
        parts = list(dict.fromkeys(".".join(name.split(".")[:2]) for name in frozen))
        logger.warning("%d parameters that no loss reaches are frozen, in %s", len(frozen), ", ".join(parts[:3]))
    return model, ModelSetup(vocabulary, predictor_ids, forward)


def asked_forward(options: JEPAOptions) -> str:
    """The form that the options ask for; without pairs `inline` has nothing to put in line."""
    return "packed" if options.forward == "inline" and not options.uses_pairs else options.forward


def placed_predictors(ids: Sequence[int], options: JEPAOptions) -> tuple[int, ...]:
    """The ids of the K predictors in the order in which they stand behind a source."""
    placed = tuple(ids) * (options.predictors or 0 if options.same_predictor else 1)
    return placed[::-1] if options.predictor_order == "descending" else placed


def make_collator(setup: ModelSetup, options: JEPAOptions, pad_id: int, attention: str, device: str) -> Collator:
    """The collator of a run. Rows are padded to what the kernels like: nothing on CPU, 8 on a GPU, 128 for flex."""
    ids = placed_predictors(setup.predictor_ids, options)
    shared = {
        "separate_targets": options.separate_targets,
        "shuffle_targets": options.uses_pairs and options.control == "shuffled",
    }
    if setup.forward == "two_pass":
        return TwoPassCollator(ids, pad_id, **shared)
    multiple = 128 if attention == "flex_attention" else 1 if device == "cpu" else 8
    segmented = attention == SEGMENTS and options.max_row_length is None
    return ForestCollator(
        ids,
        pad_id,
        multiple,
        max_row_length=options.max_row_length,
        segmented=segmented,
        inline=setup.forward == "inline",
        **shared,
    )
