"""A model on disk with what training added to it (predictor tokens, head), as `analyze` reads views with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import transformers

from stepjepa.analysis.options import READING, AnalyzeOptions, EnergyOptions
from stepjepa.config.values import named_by_file
from stepjepa.errors import ConfigError
from stepjepa.evaluation.models import (
    Place,
    TrainingRecord,
    find_model,
    load_place,
    load_place_tokenizer,
    read_record,
    softmax_size,
)
from stepjepa.evaluation.options import EvaluateOptions
from stepjepa.modeling.extras import PREDICTORS_FILE, attach_saved, known_predictors, predictor_names, predictor_rows
from stepjepa.modeling.forward import attach_forest_forward, causal_lm
from stepjepa.modeling.parts import text_config, vocabulary_size
from stepjepa.modeling.trial import choose_forward
from stepjepa.objectives.base import objective_of, trained_pairs
from stepjepa.objectives.step_jepa import StepJEPA
from stepjepa.training.encoding import chat_tokenizer
from stepjepa.training.options import JEPAOptions
from stepjepa.training.setup import Collator, ModelSetup, make_collator, placed_predictors

# Not as the run had them: they are about its own files, and its tokenizer brings its template.
_OF_FILES = {"source_column", "target_column", "choice_column", "plain", "chat_template"}


@dataclass(frozen=True)
class AnalyzedModel:
    """A model that is loaded, on its device.

    Attributes:
        record: what its folder says of its training.
        method: how it is read; its predictors are those that the folder holds, 0 where it has none.
        predictor_ids: (K,) in their order after a source.
        head: kind of its predictor head, None without one.
        description: what it is, and where sources are read.
        lacking: predictors that are asked for, or that it was trained with, and that its folder does not hold.
    """

    place: Place
    record: TrainingRecord
    model: Any
    tokenizer: Any
    method: JEPAOptions
    predictor_ids: tuple[int, ...]
    head: str | None
    description: str
    lacking: int


def load_analyzed(place: Place, method: JEPAOptions, options: AnalyzeOptions | EnergyOptions) -> AnalyzedModel:
    """A model with its predictors and head.

    Args:
        method: how views are read; what `options` leave open of the predictors is as the model's own run had it.

    Raises:
        ConfigError: it cannot be loaded.
    """
    record = read_record(place)
    with quiet():
        tokenizer = chat_tokenizer(load_place_tokenizer(place, options.trust_remote_code), method)
        loading = EvaluateOptions(
            dtype=options.dtype,
            attn_implementation=options.attn_implementation,  # type: ignore[arg-type]
            trust_remote_code=options.trust_remote_code,
        )
        model, kind = load_place(place, tokenizer, loading)
    head = None if place.folder is None else attach_saved(causal_lm(model), place.folder, options.head)
    own = record.settings
    order: Any = options.predictor_order or own.get("predictor_order") or method.predictor_order
    method = replace(
        method,
        same_predictor=bool(own.get("same_predictor") if options.same_predictor is None else options.same_predictor),
        predictor_order=order,
    )
    count, ids = _find_predictors(model, tokenizer, place, record, options.predictors, method.same_predictor)
    method = replace(method, predictors=count)
    where = f"sources at the last of {count} predictors" if count else "sources at their last token"
    where = "sources at their predictor" if count == 1 else where
    trained = own.get("predictors") if trained_pairs(own) else None
    return AnalyzedModel(
        place,
        record,
        model,
        tokenizer,
        method,
        placed_predictors(ids, method),
        head,
        f"{kind}; {where}{f', after the {head} head' if head else ''}",
        0 if count else int((trained if options.predictors is None else options.predictors) or 0),
    )


def _find_predictors(
    model: Any, tokenizer: Any, place: Place, record: TrainingRecord, asked: int | None, same: bool
) -> tuple[int, Sequence[int]]:
    """K and the ids of the predictors that were saved with the model (`extras.attach_saved`), else of those in its
    vocabulary: kept ones, or those that a checkpoint of version 0.1 holds at its end."""
    saved, trained = predictor_rows(causal_lm(model)), record.settings.get("predictors")
    if saved is not None:
        wanted = int(asked if asked is not None else trained or len(saved.ids))
        ids = saved.ids
    else:
        rows, added, kept = vocabulary_size(causal_lm(model)), tokenizer.get_added_vocab(), 0
        while added.get(predictor_names(kept + 1)[-1], rows) < rows:
            kept += 1
        after = rows - softmax_size(causal_lm(model), tokenizer, place, record) if not kept else 0
        wanted = int(asked if asked is not None else (trained or kept) if kept or after else 0)
        ids = list(known_predictors(tokenizer, rows, min(wanted, 1) if same else wanted))
        ids = ids or list(range(rows - after, rows))  # a checkpoint has them after its vocabulary
    need = min(wanted, 1) if same else wanted
    return (wanted, ids[:need]) if need <= len(ids) else (0, ())


def collator_of(model: AnalyzedModel) -> tuple[int, Collator]:
    """Prepare a model for the packed form, or for two_pass where it cannot: V of its LM softmax, and the collator."""
    inner: Any = causal_lm(model.model)
    vocabulary = softmax_size(inner, model.tokenizer, model.place, model.record)
    device = next(model.model.parameters()).device.type
    attach_forest_forward(model.model, vocabulary)
    forward = choose_forward(model.model, "auto", vocabulary, device, model.predictor_ids)
    setup = ModelSetup(vocabulary, [], forward, objective_of(model.method))
    attention = text_config(inner.config)._attn_implementation
    collator: Any = make_collator(setup, model.method, model.tokenizer.pad_token_id or 0, attention, device)
    return vocabulary, replace(collator, predictor_ids=model.predictor_ids)


def load_scorer(options: EnergyOptions) -> AnalyzedModel:
    """The model with its predictors and head, which reads steps and views by the options, else as its run; every pair.

    Raises:
        ConfigError: it cannot be loaded, or lacks the predictors with which it was trained; a value that cannot be used.
    """
    place = find_model(str(options.model_name))
    own = read_record(place).settings
    values = {name: own[name] for name in READING if own.get(name) is not None and name not in _OF_FILES}
    if own.get("multi_horizon"):
        values["horizon"] = min(own["multi_horizon"])
    if not options.jepa_loss and named_by_file(values.get("jepa_loss")):
        raise ConfigError(
            f"--model_name {place.name}: was trained with a loss of one's own, whose file is not run because a folder names "
            f"it; give --jepa_loss {values['jepa_loss']}, or another one"
        )
    values |= {name: getattr(options, name) for name in READING if getattr(options, name) is not None}
    if values.get("jepa_loss") == "infonce":
        values["jepa_loss"] = "cosine"  # InfoNCE's own value depends on the batch; what it compares are cosines
    method = JEPAOptions(**{**values, "objective": StepJEPA.name, "step_pairs": "all", "target_grad": True})
    method.check()
    model = load_analyzed(place, method, options)
    if model.lacking:
        raise ConfigError(
            f"--model_name {place.name}: energies are to be read at {model.lacking} predictor tokens, which its folder does "
            f"not hold ({PREDICTORS_FILE} is missing); give the run's folder, or read sources at their last token with "
            "--predictors 0"
        )
    return model


def energy_notes(own: Mapping[str, Any]) -> Iterator[str]:
    """Where the energy is not what the model was trained on."""
    if own and own.get("objective") != StepJEPA.name:
        yield f"it was trained with --objective {own.get('objective')}; no step predicted the next one there"
    elif own and not own.get("lbd"):
        yield "it was trained with --lbd 0; no step predicted the next one there"
    elif own.get("step_pairs") == "first":
        yield "it was trained with --step_pairs first: only step 1 -> step 2; all pairs are read here"
    if own.get("target_encoder") == "ema":
        yield "it was trained with an EMA target encoder; targets are encoded by the model itself here"


def view_notes(model: AnalyzedModel, method: JEPAOptions, asked: int | None) -> Iterator[str]:
    """Where the states are not those that the model was trained on."""
    own = model.record.settings
    if asked and model.lacking:
        yield f"it does not hold {asked} predictor tokens"
    elif model.lacking:
        yield (
            f"it was trained with {model.lacking} predictor tokens, which its folder does not hold "
            f"({PREDICTORS_FILE} is missing)"
        )
    names = ["system_prompt", "plain", "chat_template", "chat_template_kwargs"]
    if trained_pairs(own):
        other = own["objective"] != method.objective
        names = ["objective"] if other else ["views", "step_pairs", "last_token", *names]
    for name in names:
        if name in own and own[name] != getattr(method, name):
            yield f"it was trained with --{name} {own[name]}, and is read with {getattr(method, name)}"


@contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings of transformers while it loads."""
    before = transformers.utils.logging.get_verbosity()
    transformers.utils.logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers.utils.logging.set_verbosity(before)
