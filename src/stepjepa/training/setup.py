"""What happens once before training: LoRA, predictor rows and head, the choice of forward, the collator."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from stepjepa.data.examples import Example
from stepjepa.data.views import Pair
from stepjepa.errors import ConfigError
from stepjepa.forest.collate import Batch, ForestCollator
from stepjepa.forest.layout import build_forest
from stepjepa.forest.two_pass import TwoPassCollator
from stepjepa.modeling.configs import text_config
from stepjepa.modeling.extras import add_extras, release
from stepjepa.modeling.forward import attach_forest_forward, causal_lm, detach_forest_forward, known_layers
from stepjepa.modeling.load import add_lora, check_lora, masks_unsupported, own_configs
from stepjepa.modeling.predictors import PredictorRows, known_predictors, vocabulary_size
from stepjepa.modeling.segments import SEGMENTS, use_sdpa, use_segments
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
    """

    vocabulary: int
    predictor_ids: list[int]
    forward: str


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
    vocabulary, rows = vocabulary_size(inner), None
    if options.uses_pairs and options.predictors:
        count = 1 if options.same_predictor else options.predictors
        rows = PredictorRows.drawn(inner, count, seed, known_predictors(tokenizer, vocabulary, count))
        if inner is not model:
            rows = rows.float()  # as PEFT keeps its own weights: small steps are lost in a shorter dtype
    if options.uses_pairs:
        add_extras(inner, rows, options.predictor_head, seed)
        if options.tube_layer is not None and options.objective == "semantic_tube":
            known_layers(inner, options.tube_layer)
    attach_forest_forward(model, vocabulary, options.tube_layer)
    forward = choose_forward(model, options, vocabulary, device)
    return model, ModelSetup(vocabulary, [] if rows is None else rows.ids, forward)


def reset_model(model: Any) -> None:
    """Take off a model what an earlier trainer has attached to it; its weights stay trained."""
    inner: Any = causal_lm(model)
    release(inner)
    detach_forest_forward(inner)
    if text_config(inner.config)._attn_implementation == SEGMENTS:
        use_sdpa(inner)


def choose_forward(model: Any, options: JEPAOptions, vocabulary: int, device: str) -> str:
    """``packed`` where the model takes the forest's mask, found out by a trial of a few tokens; else ``two_pass``.

    Raises:
        ConfigError: the form that the options ask for cannot serve the model.
    """
    if options.forward == "two_pass":
        return "two_pass"
    inner: Any = causal_lm(model)
    if inner.config._attn_implementation == "flex_attention" and device == "cpu":
        raise ConfigError("--attn_implementation flex_attention has no backward on CPU; use sdpa")
    reason = masks_unsupported(inner)
    inline = options.forward == "inline" and options.uses_pairs
    if reason is None and inner.config._attn_implementation == "sdpa" and device == "cpu" and not inline:
        use_segments(inner)
        if trial(model, vocabulary, segmented=True) is None:
            return "packed"
        use_sdpa(inner)
    reason = reason or trial(model, vocabulary)
    if reason is None:
        return "inline" if inline else "packed"
    name = type(inner).__name__
    if options.forward in ("packed", "inline"):
        raise ConfigError(f"forward={options.forward} cannot serve {name}: {reason}; use --forward two_pass")
    logger.warning("%s: forward two_pass, because %s", name, reason)
    return "two_pass"


def trial(model: Any, vocabulary: int, segmented: bool = False, tolerance: float = 1e-2) -> str | None:
    """Run two tiny made-up examples through the forwards; None if they agree, else what went wrong.

    The tolerance is relative to the size of the states; in a short dtype it is eight times the dtype's rounding.
    """
    inner: Any = causal_lm(model)
    device = inner.get_input_embeddings().weight.device
    tolerance = max(tolerance, 8 * torch.finfo(inner.dtype).eps)
    if device.type == "meta" or inner.config._attn_implementation == "flex_attention":
        return None
    ids = (np.arange(7, dtype=np.int32) * 7 + 5) % vocabulary
    examples = [
        Example(ids, ((3, 7),), (Pair(2, 2, 3, 6, 5),)),
        Example(ids[::-1].copy(), ((2, 7),), (Pair(3, 3, 4, 7, 6),)),
    ]
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            collator = ForestCollator((), 0)
            batches = [TwoPassCollator((), 0)(examples), collator(examples)]
            if segmented:
                batches.append(collator.pack_one_row([build_forest(example, ()) for example in examples]))
            reference, *others = (model(**{key: value.to(device) for key, value in b.items()}) for b in batches)
    except Exception as error:
        return f"it does not take the mask ({(str(error).splitlines() or [type(error).__name__])[0]})"
    finally:
        model.train(was_training)
    for name in ("source_states", "target_states", "lm_loss_sum"):
        for packed in others:
            difference = (packed[name] - reference[name]).abs().max()
            if not difference <= tolerance * reference[name].abs().max().clamp(min=1e-3):
                return "its attention does not follow the mask"
    return None


def make_collator(setup: ModelSetup, options: JEPAOptions, pad_id: int, attention: str, device: str) -> Collator:
    """The collator of a run. Rows are padded to what the kernels like: nothing on CPU, 8 on a GPU, 128 for flex."""
    ids = list(setup.predictor_ids)
    if options.same_predictor:
        ids = ids * (options.predictors or 0)
    if options.predictor_order == "descending":
        ids.reverse()
    shared = {
        "separate_targets": options.separate_targets,
        "shuffle_targets": options.uses_pairs and options.control == "shuffled",
    }
    if setup.forward == "two_pass":
        return TwoPassCollator(tuple(ids), pad_id, **shared)
    multiple = 128 if attention == "flex_attention" else 1 if device == "cpu" else 8
    segmented = attention == SEGMENTS and options.max_row_length is None
    return ForestCollator(
        tuple(ids),
        pad_id,
        multiple,
        max_row_length=options.max_row_length,
        segmented=segmented,
        inline=setup.forward == "inline",
        **shared,
    )
