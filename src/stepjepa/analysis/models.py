"""Models on disk with what training added to them (predictor tokens, head), as `analyze` reads views with them."""

from __future__ import annotations

import gc
import logging
import os
import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers

from stepjepa.analysis import states
from stepjepa.analysis.options import AnalyzeOptions
from stepjepa.analysis.prediction import walks_of
from stepjepa.analysis.states import FINAL, Pairs, States, Walks
from stepjepa.config.option import Names, options_of
from stepjepa.config.values import named_by_file
from stepjepa.data.options import ColumnOptions, TemplateOptions
from stepjepa.data.sources import RowSource
from stepjepa.data.steps import StepSplitter, make_splitter
from stepjepa.errors import ConfigError, DataError
from stepjepa.evaluation.models import TrainingRecord, read_record, softmax_size
from stepjepa.forest.collate import TwoPassCollator
from stepjepa.generation.local import Place, find_model, load_place, load_place_tokenizer
from stepjepa.modeling.extras import PREDICTORS_FILE, attach_saved, known_predictors, predictor_names, trained_extras
from stepjepa.modeling.forward import causal_lm, known_layers
from stepjepa.modeling.load import max_positions
from stepjepa.modeling.parts import vocabulary_size
from stepjepa.objectives.base import objective_of, trained_pairs
from stepjepa.training.datasets import chat_tokenizer, make_renderer, settings_for
from stepjepa.training.options import ExampleOptions, JEPAOptions, method_of
from stepjepa.training.setup import placed_predictors
from stepjepa.utils.files import remove_tree, write_json
from stepjepa.utils.terminal import Bar, show_log
from stepjepa.utils.text import labels_of, slug

ABOUT = "analysis.json"
_NAME = Names(JEPAOptions, AnalyzeOptions)
# Of a run's own options these are about its files; its tokenizer brings its template.
_OF_FILES = {*options_of(ColumnOptions), _NAME.chat_template, _NAME.strict_data}
# Options that say which views there are. `load_analyzed` takes those of the predictors from each model's own run.
_VIEWS = {*options_of(ExampleOptions)} & {*options_of(AnalyzeOptions)} - _OF_FILES
_VIEWS -= {_NAME.predictors, _NAME.predictor_order, _NAME.same_predictor, _NAME.readout_layer}
# Those that are read whatever the objective.
_CHATS = {_NAME.plain, _NAME.chat_template_kwargs, _NAME.system_prompt, _NAME.max_length}
# One of these that is given decides for the others.
_TOGETHER = (
    {_NAME.horizon, _NAME.multi_horizon},
    {_NAME.plain, _NAME.chat_template, _NAME.chat_template_kwargs},
    {_NAME.step_splitter, _NAME.step_separator},
    {_NAME.last_token, _NAME.readout},
)


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


def load_analyzed(place: Place, method: JEPAOptions, options: AnalyzeOptions) -> AnalyzedModel:
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
    own, extras, read = record.settings, trained_extras(inner), objective_of(method).groups
    grouped = len(extras.groups) > 1
    if grouped:
        if not set(read) <= set(extras.groups):
            known = ", ".join(map(str, extras.groups))
            raise ConfigError(
                f"{place.name}: has predictors of its own for each of the horizons {known}; give one with --{_NAME.horizon}"
            )
        extras.keep_groups(read)
    order: Any = options.predictor_order or own.get("predictor_order") or method.predictor_order
    same = bool(own.get("same_predictor") if options.same_predictor is None else options.same_predictor)
    layer = own.get("readout_layer") if options.readout_layer is None else options.readout_layer
    count, ids = _find_predictors(model, tokenizer, place, record, options.predictors, same)
    method = replace(method, predictors=count, same_predictor=same, predictor_order=order, readout_layer=layer)
    ids = ids if grouped else [*ids] * len(read)  # one group serves all horizons
    alone = "the mean of their tokens" if method.readout == "mean" else "their last token"
    where = f"sources at the last of {count} predictors" if count else f"sources at {alone}"
    where = "sources at their predictor" if count == 1 else where
    trained = own.get("predictors") if trained_pairs(own) else None
    return AnalyzedModel(
        place,
        record,
        model,
        tokenizer,
        method,
        placed_predictors(ids, method, len(read)),
        head,
        f"{kind}; {where}{f', after the {head} head' if head else ''}",
        0 if count else int((trained if options.predictors is None else options.predictors) or 0),
    )


def _find_predictors(
    model: Any, tokenizer: Any, place: Place, record: TrainingRecord, asked: int | None, same: bool
) -> tuple[int, Sequence[int]]:
    """K and the ids of the predictors that were saved with the model (`extras.attach_saved`), else of those in its
    vocabulary: kept ones, or those that a checkpoint of version 0.1 holds at its end; of several groups all."""
    extras, trained = trained_extras(causal_lm(model)), record.settings.get("predictors")
    saved, groups = extras.predictors, len(extras.groups)
    if saved is not None:
        wanted = int(asked if asked is not None else trained or len(saved.ids) // groups)
        ids = saved.ids
    else:
        rows, added, kept = vocabulary_size(causal_lm(model)), tokenizer.get_added_vocab(), 0
        while added.get(predictor_names(kept + 1)[-1], rows) < rows:
            kept += 1
        after = rows - softmax_size(causal_lm(model), tokenizer, place, record) if not kept else 0
        wanted = int(asked if asked is not None else (trained or kept) if kept or after else 0)
        ids = list(known_predictors(tokenizer, rows, predictor_names(min(wanted, 1) if same else wanted)))
        ids = ids or list(range(rows - after, rows))  # a checkpoint has them after its vocabulary
    need, size = min(wanted, 1) if same else wanted, len(ids) // groups
    own = [index for group in range(groups) for index in ids[group * size : group * size + need]]
    return (wanted, own) if need <= size else (0, ())


def as_trained(
    options: AnalyzeOptions, given: Collection[str], places: Sequence[Place]
) -> tuple[AnalyzeOptions, Place | None]:
    """The options, where they are not `given` as in the run of the first model that was trained on pairs, else of the first
    that has a record; and that model, None where there is no record.

    Raises:
        ConfigError: that run's objective is a class of the user's own, which is not run because a folder names it.
    """
    recorded = [place for place in places if place.settings]
    if not recorded:
        return options, None
    place = next((one for one in recorded if trained_pairs(one.settings)), recorded[0])
    own, names = place.settings, _CHATS
    objective = str(own.get(_NAME.objective))
    if _NAME.objective in given:
        names = _VIEWS if objective == options.objective else _CHATS
    elif named_by_file(objective):
        raise ConfigError(
            f"{place.name} was trained with an objective of your own, whose file is not run because a folder names it; "
            f"give --{_NAME.objective} {objective}, or another one"
        )
    elif trained_pairs(own) and objective in options_of(AnalyzeOptions)[_NAME.objective].named:
        names = _VIEWS
    settled = {*given, *(() if options.objective_options is None else (_NAME.objective_options,))}
    for group in _TOGETHER:
        settled |= group if settled & group else set()
    return replace(options, **{name: own[name] for name in names - settled if name in own}), place


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
    # The model's tokenizer brings the template of its training.
    names = [name for name in (_NAME.system_prompt, *options_of(TemplateOptions)) if name != _NAME.chat_template]
    if trained_pairs(own):
        other = own["objective"] != method.objective
        reading = (_NAME.last_token, _NAME.readout, _NAME.readout_layer, _NAME.jepa_target_column)
        names = [_NAME.objective] if other else [_NAME.views, _NAME.step_pairs, *reading, *names]
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


def collect_all(
    options: AnalyzeOptions, given: Collection[str], folder: Path, stale: Sequence[Path], bar: Bar
) -> tuple[dict[str, States], str | None, dict[str, Any]]:
    """Run the models, the base first and each once, and leave their states in the folder, all or none.

    Args:
        given: options that the user has set; the others are as in training.
        stale: files of an earlier analysis, which are removed once all states are collected.

    Returns:
        States by the models' labels, the base's label, and the record of the collection (`ABOUT`).
    """
    show_log(logging.WARNING)
    named = dict.fromkeys(name for name in (options.base_model, *(options.models or ())) if name is not None)
    places = [find_model(name) for name in named]
    labels = labels_of([place.name for place in places])
    base = labels[0] if options.base_model is not None else None
    options, trained = as_trained(options, given, places[1:] if base is not None else places)
    method = replace(method_of(options), same_predictor=bool(options.same_predictor))
    splitter = None
    if trained is not None:
        bar.say(
            f"views    as in the training of {trained.name}, where not given: --{_NAME.objective} {method.objective}"
        )
        settled = read_record(trained).splitter  # what its step_splitter=auto was
        if settled and method.step_splitter == "auto":
            splitter = make_splitter(settled, method.step_separator)
    rows = RowSource(options.file, options.dataset_split)
    asked = None if options.layers in (None, ["all"]) else [int(layer) for layer in options.layers or ()]
    if objective_of(method).sampled:
        bar.say(f"note     --{_NAME.step_pairs} random: all pairs are read, of which training samples one an epoch")
    new, existed, inputs, found = folder / ".new-states", folder.is_dir(), list[dict[str, Any]](), dict[str, States]()
    try:
        remove_tree(new)
        new.mkdir(parents=True)
        for label, place in zip(labels, places, strict=True):
            model, path = load_analyzed(place, method, options), new / f"states-{slug(label)}.safetensors"
            layers = states.layers_of(model.model, asked)
            renderer, positions = make_renderer(model.tokenizer, model.method), max_positions(causal_lm(model.model))
            settings = settings_for(rows, model.method, positions, splitter)
            pairs = states.read_pairs(rows, model.tokenizer, renderer, settings, options.max_examples)
            bar.say(f"{label}: {model.description}")
            for line in [*view_notes(model, method, options.predictors), *(() if found else _data_lines(pairs))]:
                bar.say(f"  {line}")
            bar.start(label, len(pairs.examples), 0)
            read = states.collect_states(
                model.model,
                place.name,
                pairs,
                layers=layers,
                predictor_ids=model.predictor_ids,
                pad_token_id=model.tokenizer.pad_token_id or 0,
                batch_size=options.batch_size,
                advance=bar.step,
                head_layer=model.layer,
            )
            if options.prediction_horizon is not None:
                read = replace(read, walks=_walks(model, rows, options, splitter, bar))
            states.save_states(read, path)
            found[label] = states.load_states(path)
            states.check_alike(found, base)
            count, head = model.method.predictors, model.head
            inputs.append({"label": label, "model": place.name, "states": path.name, "predictors": count, "head": head})
            del model, read  # before the next one is loaded
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


def _walks(
    model: AnalyzedModel, rows: RowSource, options: AnalyzeOptions, splitter: StepSplitter | None, bar: Bar
) -> Walks:
    """The states behind the steps of a data set's answers, as a model has them in its chats."""
    method = states.every_step(model.method).options
    settings = settings_for(rows, method, max_positions(causal_lm(model.model)), splitter)
    renderer = make_renderer(model.tokenizer, method)
    try:
        examples, places = walks_of(states.read_pairs(rows, model.tokenizer, renderer, settings, options.max_examples))
    except DataError as error:
        raise DataError(f"--{_NAME.prediction_horizon}: {error}") from None
    bar.start(f"{model.place.name}, steps", len(examples), 0)
    views = states.read_states(
        model.model,
        model.place.name,
        TwoPassCollator((), model.tokenizer.pad_token_id or 0),
        examples,
        batch_size=options.batch_size,
        advance=bar.step,
        head_layer=-2,
    )
    return Walks(views[0, 0], places)


def _data_lines(pairs: Pairs) -> list[str]:
    """How many pairs there are and what was left out."""
    report = pairs.report
    skipped, without = sum(report.rows_skipped.values()), sum(report.examples_without_pairs.values())
    line = f"{len(pairs.examples):,} pairs of {report.rows_read:,} rows"
    line += f"; {skipped:,} rows skipped" if skipped else ""
    return [line + (f"; {without:,} without a pair" if without else ""), *report.steps.lines()]
