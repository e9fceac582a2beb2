"""The setup before training: tokenizer, LoRA, predictor rows and head, choice of the forward, collator, number of steps."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from stepjepa.config.option import Names
from stepjepa.data.dataset import ExampleStore
from stepjepa.data.report import DataReport
from stepjepa.data.sources import texts_of
from stepjepa.data.types import Batch, Example
from stepjepa.errors import ConfigError
from stepjepa.forest.collate import ForestCollator, TwoPassCollator
from stepjepa.modeling.extras import (
    PredictorRows,
    add_extras,
    known_predictors,
    placed_predictors,
    predictor_names,
    release,
    set_target_encoder,
)
from stepjepa.modeling.forward import (
    attach_forest_forward,
    causal_lm,
    detach_forest_forward,
    known_layers,
)
from stepjepa.modeling.load import is_preset, load_model, load_tokenizer, max_positions, own_configs
from stepjepa.modeling.lora import add_lora, check_lora, check_trainable, warn_of_untrained
from stepjepa.modeling.masks import OWN, SEGMENTS, attention_in, row_multiple, use_attention
from stepjepa.modeling.parts import embedding_rows, text_config, vocabulary_size
from stepjepa.modeling.trial import choose_forward, freeze_unreached
from stepjepa.objectives.base import Objective, objective_of
from stepjepa.objectives.options import TARGET_ENCODERS
from stepjepa.training.config import JEPAConfig
from stepjepa.training.datasets import Sources, StreamedExamples
from stepjepa.training.options import JEPAOptions
from stepjepa.training.sampling import DrawnExamples
from stepjepa.utils.files import digest, model_parts

if TYPE_CHECKING:
    from peft import LoraConfig, PeftModel
    from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainingArguments

logger = logging.getLogger("stepjepa")
_NAME = Names(JEPAConfig)
Collator = Callable[[list[Example]], Batch]
# Attributes on the causal LM: its `ModelSetup`, and its attention implementation before the setup.
_SETUP, _ATTENTION = "_stepjepa_setup", "_stepjepa_attention_before"


@dataclass(frozen=True)
class ModelSetup:
    """How a model was set up.

    Attributes:
        vocabulary: V, the number of rows of the model's embedding, over which the LM softmax is taken.
        predictor_ids: V .. V+K-1, the ids of <|predictor_1|> .. <|predictor_K|> (only the first if it is repeated), and V+K,
            the id of the mask token, if views are masked.
        forward: ``packed``, ``two_pass`` or ``inline``.
        objective: the objective of the run.
        frozen: names of the parameters that were frozen because no loss reaches them.
    """

    vocabulary: int
    predictor_ids: list[int]
    forward: str
    objective: Objective
    frozen: tuple[str, ...] = ()


def setup_of(model: nn.Module) -> ModelSetup:
    """The setup that `set_up_model` gave a model.

    Raises:
        ConfigError: the model was not set up.
    """
    setup = vars(causal_lm(model)).get(_SETUP)
    if setup is None:
        raise ConfigError(
            "the model does not take batches yet; attach an objective to it with stepjepa.parts.attach"
        )
    return setup  # type: ignore[no-any-return]


def detach_setup(model: nn.Module) -> None:
    """Undo `set_up_model`, except for the trained weights. Forward, attention and the parameters that require gradients are
    restored; predictor rows, head and target encoder are removed; the model keeps the equal copy of its configuration."""
    inner = causal_lm(model)
    release(inner)
    detach_forest_forward(inner)
    attention = vars(inner).pop(_ATTENTION, None)
    if attention is not None:
        use_attention(inner, attention)
    setup: ModelSetup | None = vars(inner).pop(_SETUP, None)
    for name, parameter in model.named_parameters():
        if setup is not None and name in setup.frozen:
            parameter.requires_grad_(True)


def set_up_model(
    model: PreTrainedModel | PeftModel,
    options: JEPAOptions,
    seed: int,
    device: str,
    peft_config: LoraConfig | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> tuple[Any, ModelSetup]:
    """Add LoRA, predictor rows and head, choose the forward, and let the model take batches.

    The setup of an earlier trainer is removed, but the model's weights stay trained. If the tokenizer already has predictor
    tokens (as in a model written with ``--keep_predictors``), the predictor rows start as copies of their embeddings.

    Returns:
        The model (with `peft_config`, a PEFT model around a copy that shares the memory of the weights) and its setup.

    Raises:
        ConfigError: the model cannot compute the requested forward.
    """
    inner: Any = causal_lm(model)
    detach_setup(model)
    # A model constructed from the configuration of a model in training already has this library's attention.
    if attention_in(inner) in OWN:
        use_attention(inner, "sdpa")
    if peft_config is not None:
        if hasattr(model, "get_base_model"):
            raise ConfigError(
                "the model is already a PEFT model; leave out peft_config, or pass the base model"
            )
        model = add_lora(inner, peft_config, seed)
    elif hasattr(model, "get_base_model"):
        adapter: Any = model.peft_config[str(model.active_adapter)]
        check_lora(adapter)
    check_trainable(model)
    inner = causal_lm(model)
    if inner is not model and tokenizer is not None:
        warn_of_untrained(model, tokenizer, options.chat_template_kwargs)
    # Other models may share these configuration objects, and the setup and the Trainer write to them.
    own_configs(inner)
    vars(inner)[_ATTENTION] = attention_in(inner)
    # Rows, head and modules depend only on the seed, not on the state of the global generator.
    vocabulary, rows, objective, encoder = vocabulary_size(inner), None, objective_of(options), None
    # Commands that only lay out examples have no head, so the options are checked here.
    if len(objective.groups) > 1 and not objective.predictors and options.predictor_head == "none":
        raise ConfigError(
            f"{_NAME.predictors}=0 predicts {len(objective.groups)} horizons from one state; set {_NAME.predictors} or "
            f"{_NAME.predictor_head}, so that each horizon has its own"
        )
    if objective.learned_tokens:
        names = predictor_names(objective.learned_tokens, objective.groups)
        rows = PredictorRows.drawn(
            inner, len(names), seed, known_predictors(tokenizer, vocabulary, names)
        )
        # float32 like PEFT's own weights, because a dtype of lower precision loses small updates.
        if inner is not model:
            rows = rows.float()
    if objective.makes_pairs:
        width = inner.get_output_embeddings().weight.shape[1]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            modules = objective.modules(width, vocabulary)
        encoder = separate_encoder(options, inner, tokenizer)
        target_width = width if encoder is None else encoder.get_output_embeddings().weight.shape[1]
        head = options.predictor_head
        # A distance needs two states of the same width.
        if target_width != width and head == "none":
            head = "linear"
            logger.warning(
                "the states of %s have %d dimensions, so a linear head maps to them",
                options.target_encoder,
                target_width,
            )
        add_extras(inner, rows, head, seed, modules, objective.groups, target_width)
        # Called only to raise an error if one of the models does not have a layer.
        for model_read in (inner, encoder):
            for layer in objective.layers:
                if layer is not None and model_read is not None:
                    known_layers(model_read, layer)
    # NEFTune is part of this forward: the Trainer's version scales by the length of a packed row, and would change targets.
    attach_forest_forward(
        model, vocabulary, objective, getattr(options, "neftune_noise_alpha", None)
    )
    predictor_ids = [] if rows is None else rows.ids
    ids = placed_predictors(predictor_ids, options, len(objective.groups))
    # Without pairs, nothing is inserted into a chat, and `inline` is `packed`.
    requested = (
        "packed" if options.forward == "inline" and not objective.makes_pairs else options.forward
    )
    # A compiled model needs constant shapes, and thus dense rows.
    compiled = bool(getattr(options, "torch_compile", False))
    forward = choose_forward(model, requested, vocabulary, device, ids, keep=compiled)
    if encoder is not None:
        encoder_forward = "two_pass" if forward == "two_pass" else "packed"
        choose_forward(encoder, encoder_forward, vocabulary_size(encoder), device, keep=compiled)
        set_target_encoder(inner, encoder)
    # Distributed processes would wait for the gradients of parameters that no text reaches.
    frozen = freeze_unreached(model)
    if frozen:
        logger.warning(
            "%d parameters that no loss reaches are frozen, such as %s", len(frozen), frozen[0]
        )
    setup = ModelSetup(vocabulary, predictor_ids, forward, objective, tuple(frozen))
    vars(inner)[_SETUP] = setup
    return model, setup


def separate_encoder(
    options: JEPAOptions, inner: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None
) -> PreTrainedModel | None:
    """The separate model that encodes the targets, in the dtype and on the device of the trained causal LM; None if the
    trained model, or a copy of its weights, encodes them.

    Raises:
        ConfigError: the separate model cannot be loaded, or has other token ids or fewer positions.
    """
    name = options.target_encoder
    if name in TARGET_ENCODERS:
        return None
    try:
        encoder_tokenizer = load_tokenizer(name)
        encoder = load_model(name, encoder_tokenizer, dtype=str(inner.dtype).removeprefix("torch."))
    except ConfigError as error:
        raise ConfigError(f"{_NAME.target_encoder}: {error}") from error
    # The encoder gets the token ids of the trained model. It may have more tokens, but every token of the trained model must
    # have the same id in both.
    known, used = encoder_tokenizer.get_vocab(), {} if tokenizer is None else tokenizer.get_vocab()
    if not used.items() <= known.items():
        raise ConfigError(
            f"{_NAME.target_encoder} {name}: has a different tokenizer; give a model with the tokenizer of the trained model"
        )
    # Numbers of learned positions of both models; None, as with rotary positions, means no limit.
    positions, limit = max_positions(encoder), max_positions(inner)
    if positions is not None and (limit is None or limit > positions):
        raise ConfigError(
            f"{_NAME.target_encoder} {name}: has {positions} learned positions, fewer than the trained model; give another"
        )
    encoder.to(embedding_rows(inner).device)  # type: ignore[arg-type]
    attach_forest_forward(encoder, vocabulary_size(encoder))
    return encoder


def target_fingerprint(options: JEPAOptions) -> dict[str, str]:
    """The digest of a target encoder in a local folder, under its name in messages; empty without such an encoder."""
    folder = Path(options.target_encoder)
    if options.target_encoder in TARGET_ENCODERS or not folder.is_dir():
        return {}
    return {"weights of the target encoder": digest(model_parts(folder))}


def warn_beyond_positions(
    model: PreTrainedModel, reports: Mapping[str, DataReport], options: JEPAOptions
) -> None:
    """Warn of rows with more tokens than a rotary model was trained for."""
    # For learned positions, rows were already truncated when they were encoded.
    config: Any = text_config(model.config)
    rope = getattr(config, "rope_parameters", None) or {}
    made_for = getattr(config, "max_position_embeddings", None) or 0
    # Some configurations give the extended length only as a factor of the original length.
    made_for = max(
        made_for, rope.get("factor", 1) * rope.get("original_max_position_embeddings", 0)
    )
    for report in reports.values():
        longest = options.max_length if options.streaming else report.token_length.get("max", 0)
        if made_for and longest > made_for:
            logger.warning(
                "%s: rows have up to %d tokens, but the model was trained for %d positions (max_position_embeddings), so it "
                "handles later tokens badly; give --%s %d, or a model with more positions",
                *(report.source, longest, made_for, _NAME.max_length, made_for),
            )


def make_collator(
    setup: ModelSetup, options: JEPAOptions, pad_id: int, attention: str, device: str
) -> Collator:
    """The collator of a run."""
    objective = setup.objective
    ids = placed_predictors(setup.predictor_ids, options, len(objective.groups))
    collator: TwoPassCollator | ForestCollator = TwoPassCollator(ids, pad_id)
    if setup.forward != "two_pass":
        collator = ForestCollator(
            ids,
            pad_id,
            row_multiple(attention, device),
            max_row_length=options.max_row_length,
            segmented=attention == SEGMENTS and options.max_row_length is None,
            inline=setup.forward == "inline",
        )
    return replace(
        collator,
        separate_targets=objective.separate_targets,
        shuffle_targets=objective.shuffle_targets,
        aligned_targets=objective.aligned_targets,
    )


def tokenizer_for(
    name: str, train_dataset: object, options: JEPAOptions
) -> tuple[PreTrainedTokenizerBase, object]:
    """The tokenizer of a model; the tokenizer of a preset is trained on the training data.

    Returns:
        The tokenizer and the training data. An iterator, which can be read only once, becomes a list.

    Raises:
        ConfigError: a preset has no rows to train a tokenizer on, or the tokenizer cannot be loaded.
    """
    if not is_preset(name):
        return load_tokenizer(name), train_dataset
    if train_dataset is None or isinstance(
        train_dataset, (DrawnExamples, StreamedExamples, ExampleStore)
    ):
        raise ConfigError(
            f"the tokenizer of {name} is trained on rows; pass them as train_dataset, or pass a processing_class"
        )
    if isinstance(train_dataset, Iterator):
        train_dataset = list(train_dataset)
    sources = train_dataset.sources if isinstance(train_dataset, Sources) else [train_dataset]
    return load_tokenizer(name, texts_of(sources, options.columns)), train_dataset


def planned_steps(args: TrainingArguments, examples: int | None, processes: int) -> int:
    """Number of optimizer steps of a run, as `transformers.Trainer` counts them; `examples` is the number per epoch, None
    for a stream.

    Raises:
        ConfigError: see `epoch_batches`.
    """
    if examples is None:
        return args.max_steps
    batches = epoch_batches(args, examples, processes)
    if args.max_steps > 0:
        return args.max_steps
    return math.ceil(
        args.num_train_epochs * max(1, math.ceil(batches / args.gradient_accumulation_steps))
    )


def epoch_batches(args: TrainingArguments, examples: int, processes: int) -> int:
    """Number of micro-batches of an epoch on each process.

    Raises:
        ConfigError: there is none, because the only batch is incomplete and therefore dropped.
    """
    rounded = math.floor if args.dataloader_drop_last else math.ceil
    size = args.per_device_train_batch_size * processes
    batches = rounded(examples / size)
    if not batches:
        raise ConfigError(
            f"--{_NAME.dataloader_drop_last} drops all {examples} examples, which do not fill a batch of {size}; leave it "
            f"out, or lower --{_NAME.per_device_train_batch_size}"
        )
    return batches
