"""A model on disk with what training added to it (predictor tokens, head), as the commands read views with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import transformers

from stepjepa.analysis.collect import Pairs, collect_states, layers_of, read_pairs
from stepjepa.analysis.compare import Saved, check_base, check_map_layers, same_pairs
from stepjepa.analysis.draw import slug
from stepjepa.analysis.options import AnalyzeOptions, EnergyOptions
from stepjepa.analysis.states import save_states
from stepjepa.data.sources import RowSource
from stepjepa.errors import ConfigError
from stepjepa.evaluation.models import (
    Place,
    TrainingRecord,
    load_place,
    load_place_tokenizer,
    read_record,
    softmax_size,
)
from stepjepa.evaluation.options import EvaluateOptions
from stepjepa.modeling.extras import PREDICTORS_FILE, attach_saved, predictor_rows
from stepjepa.modeling.forward import attach_forest_forward, causal_lm
from stepjepa.modeling.load import max_positions
from stepjepa.modeling.parts import text_config
from stepjepa.modeling.predictors import known_predictors, predictor_names, vocabulary_size
from stepjepa.modeling.trial import choose_forward
from stepjepa.objectives.base import objective_of, trained_pairs
from stepjepa.objectives.step_jepa import StepJEPA
from stepjepa.training.encoding import chat_tokenizer, make_renderer, settings_for
from stepjepa.training.options import JEPAOptions, method_of
from stepjepa.training.setup import ModelSetup, make_collator
from stepjepa.utils.failures import saying_out_of_memory
from stepjepa.utils.terminal import Bar
from stepjepa.utils.text import escaped

# What decides how rows and views are read, compared with what a run was trained with.
_VIEWS = ("objective", "views", "step_pairs", "last_token")
_ROWS = ("system_prompt", "plain", "chat_template", "chat_template_kwargs")


@dataclass(frozen=True)
class Predictors:
    """Predictor tokens of one model, after its sources.

    Attributes:
        count: K, 0 where it has none.
        ids: K ids in their order.
        order, same: as `JEPAOptions.predictor_order` and `same_predictor`.
    """

    count: int
    ids: tuple[int, ...]
    order: Any
    same: bool


@dataclass(frozen=True)
class AnalyzedModel:
    """A model that is loaded.

    Attributes:
        record: what its folder says of its training.
        head: kind of its predictor head, None without one.
        description: what it is, and where sources are read.
    """

    place: Place
    record: TrainingRecord
    model: Any
    tokenizer: Any
    predictors: Predictors
    head: str | None
    description: str

    @property
    def trained_predictors(self) -> int | None:
        """K of its training; None where no pair was trained, or nothing is known."""
        own = self.record.settings
        return own.get("predictors") if trained_pairs(own) else None


def load_analyzed(
    place: Place, record: TrainingRecord, method: JEPAOptions, options: AnalyzeOptions | EnergyOptions
) -> AnalyzedModel:
    """A model with its predictors and head on its device.

    Raises:
        ConfigError: it cannot be loaded.
    """
    with quiet():
        tokenizer = chat_tokenizer(load_place_tokenizer(place, options.trust_remote_code), method)
        loading = EvaluateOptions(
            dtype=options.dtype,
            attn_implementation=options.attn_implementation,  # type: ignore[arg-type]
            trust_remote_code=options.trust_remote_code,
        )
        model, kind = load_place(place, tokenizer, loading)
    head = None if place.folder is None else attach_saved(causal_lm(model), place.folder, options.head)
    predictors = _find_predictors(model, tokenizer, place, record, options, method.predictor_order)
    where = "sources at their last token"
    if predictors.count:
        where = f"sources at the last of {predictors.count} predictors"
        where = "sources at their predictor" if predictors.count == 1 else where
    head_text = f", after the {head} head" if head else ""
    return AnalyzedModel(place, record, model, tokenizer, predictors, head, f"{kind}; {where}{head_text}")


def _find_predictors(
    model: Any,
    tokenizer: Any,
    place: Place,
    record: TrainingRecord,
    options: AnalyzeOptions | EnergyOptions,
    usual_order: str | None,
) -> Predictors:
    """Those that were saved with the model (`extras.attach_saved`), else those in its vocabulary: kept ones, or those that
    a checkpoint of version 0.1 holds at its end. What `options` leave open is as the model's own run had it."""
    own, count = record.settings, options.predictors
    same = bool(own.get("same_predictor") if options.same_predictor is None else options.same_predictor)
    order = options.predictor_order or own.get("predictor_order") or usual_order
    saved = predictor_rows(causal_lm(model))
    if saved is not None:
        wanted = int(count if count is not None else own.get("predictors") or len(saved.ids))
        ids = list(saved.ids[: min(wanted, 1) if same else wanted])
        ids = ids if same or len(ids) == wanted else []
    else:
        rows, added, kept = vocabulary_size(causal_lm(model)), tokenizer.get_added_vocab(), 0
        while added.get(predictor_names(kept + 1)[-1], rows) < rows:
            kept += 1
        after = rows - softmax_size(causal_lm(model), tokenizer, place, record) if not kept else 0
        wanted = int(count if count is not None else (own.get("predictors") or kept) if kept or after else 0)
        need = min(wanted, 1) if same else wanted
        ids = list(known_predictors(tokenizer, rows, need))
        if not ids and 0 < need <= after:
            ids = list(range(rows - after, rows - after + need))  # a checkpoint has them after its vocabulary
    if not ids:
        return Predictors(0, (), order, same)
    ids = ids * wanted if same else ids
    return Predictors(wanted, tuple(reversed(ids) if order == "descending" else ids), order, same)


def packed_form(model: AnalyzedModel, method: JEPAOptions) -> tuple[int, Any]:
    """Prepare the model for the packed form, or for two_pass where it cannot: V of its LM softmax, and the collator."""
    vocabulary = softmax_size(causal_lm(model.model), model.tokenizer, model.place, model.record)
    device, ids = next(model.model.parameters()).device.type, model.predictors.ids
    attach_forest_forward(model.model, vocabulary)
    forward = choose_forward(model.model, "auto", vocabulary, device, ids)
    setup = ModelSetup(vocabulary, [], forward, objective_of(method))
    attention = text_config(causal_lm(model.model).config)._attn_implementation
    collator: Any = make_collator(setup, method, model.tokenizer.pad_token_id or 0, attention, device)
    return vocabulary, replace(collator, predictor_ids=ids)


def energy_notes(record: TrainingRecord) -> list[str]:
    """Where the energy is not what the model was trained on."""
    own, lines = record.settings, list[str]()
    if own and own.get("objective") != StepJEPA.name:
        lines.append(f"it was trained with --objective {own.get('objective')}; no step predicted the next one there")
    elif own and not own.get("lbd"):
        lines.append("it was trained with --lbd 0; no step predicted the next one there")
    elif own.get("step_pairs") == "first":
        lines.append("it was trained with --step_pairs first: only step 1 -> step 2; all pairs are read here")
    if own.get("target_encoder") == "ema":
        lines.append("it was trained with an EMA target encoder; targets are encoded by the model itself here")
    return lines


class Collector:
    """Runs models one after the other over the same rows; their states go to `folder`."""

    def __init__(self, options: AnalyzeOptions, folder: Path, bar: Bar, base: str | None):
        self.options, self.folder, self.bar, self.base_label = options, folder, bar, base
        self.method = replace(method_of(options), same_predictor=bool(options.same_predictor))
        self.rows = RowSource(options.file, options.dataset_split)
        self.first: tuple[str, Pairs] | None = None
        self.base: tuple[str, int, tuple[int, ...]] | None = None  # label, width and layers

    def collect(self, flag: str, label: str, place: Place) -> tuple[Saved, dict[str, Any]]:
        """States of one model on disk, and what is to be known about them.

        Raises:
            ConfigError: it cannot be loaded, or has no such layers.
            DataError: no pairs, or not those of the first model.
        """
        options, bar = self.options, self.bar
        with naming_flag(flag):
            loaded = load_analyzed(place, read_record(place), self.method, options)
        model, predictors = loaded.model, loaded.predictors
        layers = layers_of(model, options.layer_numbers)
        check_map_layers(options.map_layers or (), layers, label)
        shape = label, int(text_config(model.config).hidden_size), layers
        self.base = self.base or (shape if label == self.base_label else None)
        if self.base is not None:
            check_base(shape, self.base)
        method = replace(
            self.method, predictors=predictors.count, predictor_order=predictors.order, same_predictor=predictors.same
        )
        renderer = make_renderer(loaded.tokenizer, method)
        settings = settings_for(self.rows, method, max_positions(causal_lm(model)))
        pairs = read_pairs(self.rows, loaded.tokenizer, renderer, settings, options.max_examples)
        bar.say(f"{label}: {loaded.description}")
        for line in [*self._notes(loaded), *([] if self.first else _data_lines(pairs))]:
            bar.say(f"  {line}")
        if self.first is None:
            self.first = label, pairs
        else:
            same_pairs(self.first[1], pairs, (self.first[0], label))
        bar.start(label, len(pairs), 0)
        with saying_out_of_memory(
            f"{label}: out of memory with {options.batch_size} pairs at once; lower --batch_size"
        ):
            states = collect_states(
                model,
                place.name,
                pairs,
                layers=layers,
                predictor_ids=predictors.ids,
                pad_token_id=loaded.tokenizer.pad_token_id or 0,
                batch_size=options.batch_size,
                advance=bar.step,
            )
        path = self.folder / f"states-{slug(label)}.safetensors"
        save_states(states, path)
        about = {"label": label, "model": place.name, "states": path.name, "predictors": predictors.count}
        return Saved(label, path), {**about, "head": loaded.head}

    def _notes(self, loaded: AnalyzedModel) -> list[str]:
        """Where the states are not those that the model was trained on."""
        own, lines, asked = loaded.record.settings, list[str](), self.options.predictors
        trained = trained_pairs(own)
        if asked and not loaded.predictors.count:
            lines.append(f"it does not hold {asked} predictor tokens")
        elif loaded.trained_predictors and not loaded.predictors.count and asked is None:
            lines.append(
                f"it was trained with {loaded.trained_predictors} predictor tokens, which its folder does not hold "
                f"({PREDICTORS_FILE} is missing)"
            )
        for name in (*(_VIEWS if trained else ()), *_ROWS):
            if name in own and own[name] != getattr(self.method, name):
                lines.append(f"it was trained with --{name} {own[name]}, and is read with {getattr(self.method, name)}")
                if name == "objective":
                    break
        return lines


def _data_lines(pairs: Pairs) -> list[str]:
    """How many pairs there are and what was left out."""
    report = pairs.report
    skipped, without = sum(report.rows_skipped.values()), sum(report.examples_without_pairs.values())
    line = f"{len(pairs):,} pairs of {report.rows_read:,} rows"
    line += f"; {skipped:,} rows skipped" if skipped else ""
    return [line + (f"; {without:,} without a pair" if without else ""), *report.steps.lines()]


def labels_of(names: Sequence[str]) -> list[str]:
    """Short names: as many last parts of each path as tell it from the others; two for a checkpoint."""
    parts = [
        Path(name).expanduser().resolve().parts if Path(name).expanduser().is_dir() else Path(name).parts
        for name in names
    ]
    counts = [2 if part[-1].startswith("checkpoint-") else 1 for part in parts]
    while True:
        labels = ["/".join(part[-count:]) for part, count in zip(parts, counts, strict=True)]
        slugs = [slug(label).casefold() for label in labels]  # files of a system that knows no case
        alike = [i for i, one in enumerate(slugs) if slugs.count(one) > 1]
        longer = [i for i in alike if counts[i] < len(parts[i])]
        if not longer:
            return [escaped(f"{label}-{i + 1}" if i in alike else label) for i, label in enumerate(labels)]
        for i in longer:
            counts[i] += 1


@contextmanager
def naming_flag(flag: str) -> Iterator[None]:
    """Let messages name the flag that was given here in place of the one of the command that they were written for.

    Raises:
        ConfigError: with the flag's name.
    """
    try:
        yield
    except ConfigError as error:
        text = str(error).replace("--model_name ", f"--{flag} ").replace(" or --backend vllm", "")
        raise ConfigError(text) from None


@contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings of transformers while it loads."""
    before = transformers.utils.logging.get_verbosity()
    transformers.utils.logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers.utils.logging.set_verbosity(before)
