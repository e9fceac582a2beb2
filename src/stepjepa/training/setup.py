"""What happens once before training: LoRA, predictor rows and head, the choice of forward, the collator."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from stepjepa.data.types import Batch, Example
from stepjepa.errors import ConfigError
from stepjepa.forest.collate import ForestCollator, TwoPassCollator
from stepjepa.modeling.extras import add_extras, release
from stepjepa.modeling.forward import attach_forest_forward, causal_lm, detach_forest_forward, known_layers
from stepjepa.modeling.load import add_lora, check_lora, own_configs
from stepjepa.modeling.masks import SEGMENTS, use_sdpa
from stepjepa.modeling.parts import text_config
from stepjepa.modeling.predictors import PredictorRows, known_predictors, vocabulary_size
from stepjepa.modeling.trial import choose_forward, freeze_unreached
from stepjepa.objectives.base import Objective, objective_of
from stepjepa.training.options import JEPAOptions

logger = logging.getLogger("stepjepa")
Collator = Callable[[list[Example]], Batch]


@dataclass(frozen=True)
class ModelSetup:
    """What was done to the model.

    Attributes:
        vocabulary: V of the LM softmax, rows of the model's embedding.
        predictor_ids: V .. V+K-1, ids of <|predictor_1|> .. <|predictor_K|> (of the first alone where it is repeated).
        forward: ``packed``, ``two_pass`` or ``inline``.
        objective: of the run.
    """

    vocabulary: int
    predictor_ids: list[int]
    forward: str
    objective: Objective


def set_up_model(
    model: Any, options: JEPAOptions, seed: int, device: str, peft_config: Any = None, tokenizer: Any = None
) -> tuple[Any, ModelSetup]:
    """Add LoRA, predictor rows and head, choose the forward, and teach the model to take batches.

    What an earlier trainer had added to the model is dropped. Predictor rows begin as copies of the vocabulary's where the
    tokenizer already knows predictor tokens (a model that was written with ``--keep_predictors``).

    Returns:
        The model (with `peft_config` a PEFT model around a copy that shares the weights' memory) and what was done.

    Raises:
        ConfigError: the forward that was asked for cannot be had.
    """
    reset_model(model)
    if peft_config is not None:
        if hasattr(model, "get_base_model"):
            raise ConfigError("the model is already a PEFT model; leave out peft_config, or give the base model")
        model = add_lora(model, peft_config, seed)
    elif hasattr(model, "get_base_model"):
        check_lora(model.peft_config[model.active_adapter])
    inner: Any = causal_lm(model)
    own_configs(inner)
    vocabulary, rows, objective = vocabulary_size(inner), None, objective_of(options)
    if objective.predictors:
        count = objective.groups * (1 if options.same_predictor else objective.predictors)
        rows = PredictorRows.drawn(inner, count, seed, known_predictors(tokenizer, vocabulary, count))
        if inner is not model:
            rows = rows.float()  # as PEFT keeps its own weights: small steps are lost in a shorter dtype
    if objective.makes_pairs:
        width = inner.get_output_embeddings().weight.shape[1]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            modules = objective.modules(width, vocabulary)
        add_extras(inner, rows, options.predictor_head, seed, modules)
        if objective.layer is not None:
            known_layers(inner, objective.layer)
    attach_forest_forward(model, vocabulary, objective)
    predictor_ids = [] if rows is None else rows.ids
    ids = placed_predictors(predictor_ids, options, objective.groups)
    forward = choose_forward(model, asked_forward(options), vocabulary, device, ids)
    frozen = freeze_unreached(model, ids)
    if frozen:
        parts = list(dict.fromkeys(".".join(name.split(".")[:2]) for name in frozen))
        logger.warning("%d parameters that no loss reaches are frozen, in %s", len(frozen), ", ".join(parts[:3]))
    return model, ModelSetup(vocabulary, predictor_ids, forward, objective)


def reset_model(model: Any) -> None:
    """Take off a model what an earlier trainer has attached to it; its weights stay trained."""
    inner: Any = causal_lm(model)
    release(inner)
    detach_forest_forward(inner)
    if text_config(inner.config)._attn_implementation == SEGMENTS:
        use_sdpa(inner)


def asked_forward(options: JEPAOptions) -> str:
    """The form that the options ask for; without pairs `inline` has nothing to put in line."""
    return "packed" if options.forward == "inline" and not options.uses_pairs else options.forward


def placed_predictors(ids: Sequence[int], options: JEPAOptions, groups: int = 1) -> tuple[int, ...]:
    """The ids of the K predictors of every group in the order in which they stand behind a source."""
    placed: list[int] = []
    for group in range(groups):
        own = list(ids[group * len(ids) // groups : (group + 1) * len(ids) // groups])
        own *= options.predictors or 0 if options.same_predictor else 1
        placed += own[::-1] if options.predictor_order == "descending" else own
    return tuple(placed)


def make_collator(setup: ModelSetup, options: JEPAOptions, pad_id: int, attention: str, device: str) -> Collator:
    """The collator of a run. Rows are padded to what the kernels like: nothing on CPU, 8 on a GPU, 128 for flex."""
    objective = setup.objective
    ids = placed_predictors(setup.predictor_ids, options, objective.groups)
    shared = {
        "separate_targets": objective.separate_targets,
        "shuffle_targets": objective.makes_pairs and options.control == "shuffled",
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
