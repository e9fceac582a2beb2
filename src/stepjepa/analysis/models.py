"""Models on disk with what training added to them (predictor tokens, head), as `analyze` reads views with them."""

from __future__ import annotations

import gc
import logging
import os
import shutil
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedTokenizerBase

from stepjepa.analysis import states
from stepjepa.analysis.options import OF_PREDICTORS, READING, AnalyzeOptions, EnergyOptions
from stepjepa.analysis.prediction import walks_of
from stepjepa.analysis.states import FINAL, States, Walks
from stepjepa.config.option import Names, options_of
from stepjepa.config.values import named_by_file
from stepjepa.data.chat import ChatRenderer
from stepjepa.data.encode import EncodeOptions, PlacedRow, make_encoder, read_chat
from stepjepa.data.options import ColumnOptions, TemplateOptions
from stepjepa.data.report import DataReport
from stepjepa.data.sources import RowSource
from stepjepa.data.steps import TOTAL_COLUMN, StepSplitter, make_splitter
from stepjepa.data.tokens import encode_texts, kept_predictors, token_span
from stepjepa.data.types import Example
from stepjepa.errors import ConfigError, DataError
from stepjepa.evaluation.models import TrainingRecord, read_record, softmax_size
from stepjepa.evaluation.questions import SolutionSet
from stepjepa.forest.collate import TwoPassCollator
from stepjepa.generation.local import Place, find_model, load_place, load_place_tokenizer
from stepjepa.modeling.extras import PREDICTORS_FILE, attach_saved, known_predictors, predictor_names, trained_extras
from stepjepa.modeling.forward import attach_forest_forward, causal_lm, known_layers
from stepjepa.modeling.load import max_positions
from stepjepa.modeling.parts import text_config, vocabulary_size
from stepjepa.modeling.trial import choose_forward
from stepjepa.objectives.base import objective_of, trained_pairs
from stepjepa.objectives.step_jepa import StepJEPA, StepJEPAOptions
from stepjepa.training.encoding import chat_tokenizer, make_renderer, settings_for
from stepjepa.training.options import ExampleOptions, JEPAOptions, method_of
from stepjepa.training.setup import Collator, ModelSetup, make_collator, placed_predictors
from stepjepa.utils.files import write_json
from stepjepa.utils.terminal import Bar, show_log
from stepjepa.utils.text import labels_of, slug

ABOUT = "analysis.json"
_NAME = Names(JEPAOptions, EnergyOptions, AnalyzeOptions)
# Not as the run had them: they are about its own files, and its tokenizer brings its template.
_OF_FILES = {*options_of(ColumnOptions), _NAME.plain, _NAME.chat_template}


@dataclass(frozen=True)
class AnalyzedModel:
    """A model that is loaded, on its device.

    Attributes:
        record: what its folder says of its training.
        method: how it is read; its predictors are those that the folder holds, 0 where it has none.
        predictor_ids: (K,) in their order after a source, of every group that is read.
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

    @property
    def layer(self) -> int:
        """The layer (see `States`) that its views are read from in training."""
        layer = objective_of(self.method).layer
        return FINAL if layer is None else known_layers(causal_lm(self.model), layer)[1]

    def encoding(
        self, rows: RowSource, method: JEPAOptions, splitter: StepSplitter | None = None
    ) -> tuple[PreTrainedTokenizerBase, ChatRenderer | None, EncodeOptions]:
        """What turns rows into examples for it."""
        positions = max_positions(causal_lm(self.model))
        return self.tokenizer, make_renderer(self.tokenizer, method), settings_for(rows, method, positions, splitter)


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
        loading: Any = options  # it has the options that loading reads
        model, kind = load_place(place, tokenizer, loading)
    inner = causal_lm(model)
    head = None if place.folder is None else attach_saved(inner, place.folder, options.head)
    own = record.settings if trained_pairs(record.settings) else {}
    extras, read = trained_extras(inner), objective_of(method).groups
    grouped = len(extras.groups) > 1
    if grouped:
        if not set(read) <= set(extras.groups):
            known = ", ".join(map(str, extras.groups))
            raise ConfigError(
                f"{place.name}: has predictors of its own for each of the horizons {known}; give one with --{_NAME.horizon}"
            )
        extras.keep_groups(read)
    values, ids = _as_run(own, options, OF_PREDICTORS), _predictors_of(inner, tokenizer, place, record)
    groups, size = len(extras.groups), len(ids) // len(extras.groups)
    count = wanted = int(values.get(_NAME.predictors) or (size if options.predictors is None else 0))
    need = min(count, 1) if values.get(_NAME.same_predictor) else count
    if need > size:
        count = need = 0
    method = replace(method, **{**values, _NAME.predictors: count})
    ids = [index for group in range(groups) for index in ids[group * size : group * size + need]]
    placed = placed_predictors(ids if grouped else ids * len(read), method, len(read))  # one group serves all horizons
    where = "the mean of their tokens" if method.readout == "mean" else "their last token"
    if count:
        where = "their predictor" if count == 1 else f"the last of {count} predictors"
    what = f"{kind}; sources at {where}{f', after the {head} head' if head else ''}"
    return AnalyzedModel(place, record, model, tokenizer, method, placed, head, what, wanted - count)


def _as_run(own: Mapping[str, Any], options: AnalyzeOptions | EnergyOptions, names: Sequence[str]) -> dict[str, Any]:
    """The options of reading that are given, else those of a run, where they are not about its own files."""
    given = {name: getattr(options, name) for name in names}
    run = {name: own.get(name) for name in names if name not in _OF_FILES}
    return {name: value for one in (run, given) for name, value in one.items() if value is not None}


def _predictors_of(inner: Any, tokenizer: Any, place: Place, record: TrainingRecord) -> list[int]:
    """The ids of the predictors that were saved with a causal LM (`extras.attach_saved`), of several groups one after the
    other; else of those in its vocabulary: kept ones, or those that a checkpoint of version 0.1 holds at its end."""
    saved, rows = trained_extras(inner).predictors, vocabulary_size(inner)
    if saved is not None:
        return saved.ids
    kept = known_predictors(tokenizer, rows, predictor_names(len(kept_predictors(tokenizer))))
    return kept or list(range(softmax_size(inner, tokenizer, place, record), rows))


def notes(model: AnalyzedModel, *names: str) -> Iterator[str]:
    """Where the views are not those that the model was trained on; `names` are further options to compare."""
    own, method = model.record.settings, model.method
    if model.lacking:
        yield f"it does not hold {model.lacking} predictor tokens (see {PREDICTORS_FILE})"
    if trained_pairs(own):
        if own[_NAME.objective] == method.objective:
            views = (_NAME.views, _NAME.step_pairs, _NAME.last_token, _NAME.readout, _NAME.readout_layer)
            names = (*views, _NAME.jepa_target_column, *names)
        names = (_NAME.objective, _NAME.target_encoder, *names)
    for name in names:
        if name in own and own[name] != getattr(method, name):
            yield f"it was trained with --{name} {own[name]}, and is read with {getattr(method, name)}"


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
    own = place.settings
    values = _as_run(own, options, READING)
    if own.get(_NAME.objective) == StepJEPA.name and options.horizon is None:
        trained = StepJEPAOptions(**{name: own[name] for name in options_of(StepJEPAOptions) if name in own})
        values[_NAME.horizon] = min(trained.horizons)
    if not options.jepa_loss and named_by_file(values.get("jepa_loss")):
        raise ConfigError(
            f"--{_NAME.model_name} {place.name}: was trained with a loss of one's own, whose file is not run because a "
            f"folder names it; give --{_NAME.jepa_loss} {values['jepa_loss']}, or another one"
        )
    if values.get("jepa_loss") == "infonce":
        values["jepa_loss"] = "cosine"  # InfoNCE's own value depends on the batch; what it compares are cosines
    method = replace(JEPAOptions(**values), objective=StepJEPA.name, step_pairs="all", target_grad=True)
    method.check()
    model = load_analyzed(place, method, options)
    if model.lacking:
        raise ConfigError(
            f"--{_NAME.model_name} {place.name}: energies are to be read at {model.lacking} predictor tokens, which its "
            f"folder does not hold ({PREDICTORS_FILE} is missing); give the run's folder, or read sources at their last "
            f"token with --{_NAME.predictors} 0"
        )
    return model


@dataclass(frozen=True)
class EncodedSolution:
    """A solution as training would read it.

    Attributes:
        example: labels and pairs are those of the solution alone, not of answers before it.
        steps: their texts, separators included.
        sources: for each pair of the example, which of the steps is its source.
    """

    example: Example
    steps: tuple[str, ...]
    sources: tuple[int, ...]


def encode_solutions(
    rows: Sequence[PlacedRow], tokenizer: PreTrainedTokenizerBase, renderer: ChatRenderer, options: EncodeOptions
) -> tuple[list[EncodedSolution | None], DataReport]:
    """Chats whose last message is a solution, tokenised and paired; None for one that cannot be, which the report counts.

    Args:
        rows: each with its place; ``messages`` and what `options` need to find steps.
        options: with the objective ``step_jepa`` and one horizon.

    Raises:
        ConfigError: a tokenizer that cannot be used.
    """
    encoded = make_encoder(RowSource([row for _, row in rows]), tokenizer, renderer, options)(rows)
    examples, found = iter(encoded.store), list[EncodedSolution | None]()
    for (_, row), count in zip(rows, encoded.counts, strict=True):
        if not count:
            found.append(None)
            continue
        example, read = next(examples), read_chat(row, renderer, options)
        assert read.steps is not None  # the objective is step_jepa
        text, answer, spans = read.rendered.text, read.rendered.spans[-1], read.steps.spans[-1]
        ((_, last),) = encode_texts(tokenizer, [text])
        starts = [token_span(last, answer.start + start, answer.start + stop)[0] for start, stop in spans]
        labelled = example.labels[-1]
        pairs = [pair for pair in example.pairs if example.sees(pair.source) >= labelled.start]
        # By the target, because a step without a token of its own begins where the next one does.
        targets = [(pair.horizon, view.start) for pair in pairs if (view := example.view_on_trunk(pair.target))]
        sources = tuple(bisect_right(starts, start) - 1 - horizon for horizon, start in targets)
        steps = tuple(text[answer.start + start : answer.start + stop] for start, stop in spans)
        found.append(EncodedSolution(example.with_pairs(pairs)._replace(labels=(labelled,)), steps, sources))
    return found, encoded.report


def encode_all(
    options: EnergyOptions, model: AnalyzedModel, found: SolutionSet
) -> tuple[list[EncodedSolution | None], DataReport]:
    """What training reads in the solutions, None where it cannot. Raises ConfigError or DataError: it can read none."""
    # The chats are made already, whatever the columns were.
    method = replace(model.method, source_column=None, target_column=None, choice_column=None)
    # What a row of predictions says about steps is about another answer.
    kept = () if found.generated else (method.steps_column, method.steps_column.partition(".")[0], TOTAL_COLUMN)
    rows = [{**{k: v for k, v in one.row.items() if k in kept}, "messages": one.chat} for one in found.solutions]
    source = RowSource(rows)
    source.name = found.source
    settled, splitter = model.record.splitter, None  # what the run's step_splitter=auto was
    if options.step_splitter is None and model.record.settings.get("step_splitter") == "auto" and settled:
        splitter = make_splitter(settled, method.step_separator)
    tokenizer, renderer, settings = model.encoding(source, method, splitter)
    if renderer is None:
        raise ConfigError(
            f"the model's tokenizer has no chat template; give --{_NAME.chat_template} FILE, or --{_NAME.plain}"
        )
    placed = [(one.place, row) for one, row in zip(found.solutions, rows, strict=True)]
    encoded, report = encode_solutions(placed, tokenizer, renderer, settings)
    if not any(encoded):
        first = next(iter(report.first_skipped.values()))
        raise DataError(f"none of {len(encoded)} solutions can be read by this model; first: {first}")
    return encoded, report


@contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings of transformers while it loads."""
    before = transformers.utils.logging.get_verbosity()
    transformers.utils.logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers.utils.logging.set_verbosity(before)


def collect_all(
    options: AnalyzeOptions, folder: Path, stale: Sequence[Path], bar: Bar
) -> tuple[dict[str, States], str | None, dict[str, Any]]:
    """Run the models, the base first and each once, and leave their states in the folder, all or none.

    Args:
        stale: files of an earlier analysis, which are removed once all states are collected.

    Returns:
        States by the models' labels, the base's label, and the record of the collection (`ABOUT`).
    """
    show_log(logging.WARNING)
    named = dict.fromkeys(name for name in (options.base_model, *(options.models or ())) if name is not None)
    places = [find_model(name) for name in named]
    labels = labels_of([place.name for place in places])
    base = labels[0] if options.base_model is not None else None
    method = replace(method_of(options), same_predictor=bool(options.same_predictor))
    rows = RowSource(options.file, options.dataset_split)
    new, existed, inputs, found = folder / ".new-states", folder.is_dir(), list[dict[str, Any]](), dict[str, States]()
    try:
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
        for label, place in zip(labels, places, strict=True):
            model, path = load_analyzed(place, method, options), new / f"states-{slug(label)}.safetensors"
            states.save_states(_states(model, label, rows, options, bar), path)
            found[label] = states.load_states(path)
            states.check_alike(found, base)
            count, head = model.method.predictors, model.head
            inputs.append({"label": label, "model": place.name, "states": path.name, "predictors": count, "head": head})
            del model  # before the next one is loaded
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        about = {
            "version": 1,
            **{name: getattr(options, name) for name in (_NAME.file, _NAME.max_examples)},
            "views": {name: getattr(method, name) for name in options_of(ExampleOptions) if hasattr(options, name)},
            "inputs": inputs,
            "base": base,
        }
        for file in stale:
            file.unlink()
        for one in inputs:
            os.replace(new / one["states"], folder / one["states"])
        write_json(folder / ABOUT, about)
    finally:
        shutil.rmtree(new, ignore_errors=True)
        if not existed:
            with suppress(OSError):  # something is in it
                folder.rmdir()
    return found, base, about


def _states(model: AnalyzedModel, label: str, rows: RowSource, options: AnalyzeOptions, bar: Bar) -> States:
    """The states of a model, and with a horizon of prediction those behind the steps of all answers."""
    net, name, limit = model.model, model.place.name, options.max_examples
    layers = states.layers_of(net, options.layer_numbers)
    states.check_map_layers(options.map_layers or (), layers, label)
    pairs = states.read_pairs(rows, *model.encoding(rows, model.method), limit)
    bar.say(f"{label}: {model.description}")
    for line in [*notes(model, _NAME.system_prompt, *options_of(TemplateOptions)), *pairs.report.lines()]:
        bar.say(f"  {line}")
    bar.start(label, len(pairs.examples), 0)
    pad, how = model.tokenizer.pad_token_id or 0, dict[str, Any](batch_size=options.batch_size, advance=bar.step)
    how_pairs = {**how, "predictor_ids": model.predictor_ids, "pad_token_id": pad, "head_layer": model.layer}
    found = states.collect_states(net, name, pairs, layers=layers, **how_pairs)
    if options.prediction_horizon is None:
        return found
    try:
        steps = states.read_pairs(rows, *model.encoding(rows, states.every_step(model.method).options), limit)
    except DataError as error:
        raise DataError(f"--{_NAME.prediction_horizon}: {error}") from None
    examples, places = walks_of(steps)
    bar.start(f"{label}, steps", len(examples), 0)
    views, _ = states.read_states(net, name, TwoPassCollator((), pad), examples, head_layer=-2, **how)
    return replace(found, walks=Walks(views[0, 0], places))
