"""The model of ``stepjepa score``: its predictors, its head, how it reads steps, and what it makes of solutions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from stepjepa.analysis.energies import EncodedSolution, Readings, collect_readings
from stepjepa.cli.predictors import Predictors, find_predictors, quiet
from stepjepa.cli.score import TAKEN
from stepjepa.data.steps import StepSplitter, make_splitter
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
from stepjepa.modeling.configs import text_config
from stepjepa.modeling.extras import PREDICTORS_FILE, attach_saved
from stepjepa.modeling.forward import attach_forest_forward, causal_lm
from stepjepa.modeling.trial import choose_forward
from stepjepa.objectives.base import objective_of
from stepjepa.training.encoding import chat_tokenizer
from stepjepa.training.options import JEPAOptions
from stepjepa.training.setup import ModelSetup, make_collator
from stepjepa.utils.failures import saying_out_of_memory
from stepjepa.utils.progress import Bar

# Not as the run had them: they are about its own files, and its tokenizer brings its template.
_OF_FILES = {"source_column", "target_column", "choice_column", "plain", "chat_template"}


@dataclass(frozen=True)
class Scorer:
    """A model that is ready to read solutions.

    Attributes:
        method: how steps and views are read.
        vocabulary: V of the LM softmax.
        words: what the model is, and where sources are read.
        splitter: the one that the run's ``step_splitter=auto`` was settled on, None where another is asked for.
    """

    place: Place
    record: TrainingRecord
    method: JEPAOptions
    model: Any
    tokenizer: Any
    predictors: Predictors
    vocabulary: int
    words: str
    splitter: StepSplitter | None


def load_scorer(options: Any) -> Scorer:
    """The model with its predictors, head and forward, as training would have them.

    Raises:
        ConfigError: it cannot be loaded, or lacks the predictors with which it was trained.
    """
    place = find_model(str(options.model_name))
    record = read_record(place)
    method = chosen_method(options, record)
    with quiet():
        tokenizer = chat_tokenizer(load_place_tokenizer(place, options.trust_remote_code), method)
        loading = EvaluateOptions(
            dtype=options.dtype,
            attn_implementation=options.attn_implementation,
            trust_remote_code=options.trust_remote_code,
        )
        model, words = load_place(place, tokenizer, loading)
    head = None if place.folder is None else attach_saved(causal_lm(model), place.folder, options.head)
    asked = options.predictors, options.predictor_order, options.same_predictor
    predictors = find_predictors(model, tokenizer, place, record, *asked, method.predictor_order)
    trained = record.settings.get("objective") not in (None, "regular") and record.settings.get("lbd")
    wanted = options.predictors
    if wanted is None and trained:
        wanted = record.settings.get("predictors")
    if wanted and not predictors.count:
        raise ConfigError(
            f"--model_name {place.name}: energies are to be read at {wanted} predictor tokens, which its folder does not "
            f"hold ({PREDICTORS_FILE} is missing); give the run's folder, or read sources at their last token with "
            "--predictors 0"
        )
    method = replace(method, predictors=predictors.count, predictor_order=predictors.order)  # type: ignore[arg-type]
    vocabulary = softmax_size(causal_lm(model), tokenizer, place, record)
    splitter = None
    if options.step_splitter is None and record.settings.get("step_splitter") == "auto" and record.splitter:
        splitter = make_splitter(record.splitter, method.step_separator)
    words = f"{words}; {predictors.in_words(head)}"
    return Scorer(place, record, method, model, tokenizer, predictors, vocabulary, words, splitter)


def chosen_method(options: Any, record: TrainingRecord) -> JEPAOptions:
    """Every pair of steps, read as the options say, else as the run did.

    Raises:
        ConfigError: a value that cannot be used.
    """
    own = record.settings
    values = {name: own[name] for name in TAKEN if own.get(name) is not None and name not in _OF_FILES}
    if own.get("multi_horizon"):
        values["horizon"] = min(own["multi_horizon"])
    values |= {name: getattr(options, name) for name in TAKEN if getattr(options, name) is not None}
    if values.get("jepa_loss") == "infonce":
        values["jepa_loss"] = "cosine"  # InfoNCE's own value depends on the batch; what it compares are cosines
    if options.chat_template or options.plain:
        values["chat_template_kwargs"] = options.chat_template_kwargs
    method = JEPAOptions(**{**values, "objective": "step_jepa", "step_pairs": "all", "target_grad": True})
    method.check()
    return method


def scorer_notes(scorer: Scorer) -> list[str]:
    """Where the energy is not what the model was trained on."""
    own, lines = scorer.record.settings, list[str]()
    if own and own.get("objective") != "step_jepa":
        lines.append(f"it was trained with --objective {own.get('objective')}; no step predicted the next one there")
    elif own and not own.get("lbd"):
        lines.append("it was trained with --lbd 0; no step predicted the next one there")
    elif own.get("step_pairs") == "first":
        lines.append("it was trained with --step_pairs first: only step 1 -> step 2; all pairs are read here")
    if own.get("target_encoder") == "ema":
        lines.append("it was trained with an EMA target encoder; targets are encoded by the model itself here")
    return lines


def read(options: Any, scorer: Scorer, encoded: Sequence[EncodedSolution], bar: Bar) -> Readings:
    """The model's states and likelihoods."""
    model, method = scorer.model, scorer.method
    device = next(model.parameters()).device.type
    attach_forest_forward(model, scorer.vocabulary)
    forward = choose_forward(model, "auto", scorer.vocabulary, device, scorer.predictors.ids)
    attention = text_config(causal_lm(model).config)._attn_implementation
    setup = ModelSetup(scorer.vocabulary, [], forward, objective_of(method))
    collator: Any = make_collator(setup, method, scorer.tokenizer.pad_token_id or 0, attention, device)
    collator = replace(collator, predictor_ids=scorer.predictors.ids)
    bar.begin("energies", len(encoded), 0)
    size = options.batch_size
    with saying_out_of_memory(f"out of memory with {size} solutions at once; lower --batch_size"):
        examples = [one.example for one in encoded]
        return collect_readings(model, collator, examples, scorer.vocabulary, size, bar.step)
