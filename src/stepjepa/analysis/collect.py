"""Run the models of an analysis, each once, and keep their states in its folder."""

from __future__ import annotations

import gc
import logging
import os
import shutil
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from stepjepa.analysis.models import AnalyzedModel, as_trained, load_analyzed, view_notes
from stepjepa.analysis.options import AnalyzeOptions
from stepjepa.analysis.pairs import Pairs, every_step, read_pairs
from stepjepa.analysis.prediction import walks_of
from stepjepa.analysis.states import (
    FINAL,
    States,
    Walks,
    check_alike,
    collect_states,
    layers_of,
    load_states,
    read_states,
    save_states,
)
from stepjepa.config.option import Names, options_of
from stepjepa.data.sources import RowSource
from stepjepa.data.steps import StepSplitter, make_splitter
from stepjepa.errors import DataError
from stepjepa.evaluation.questions import read_record
from stepjepa.forest.collate import collator_for
from stepjepa.generation.place import Place, find_model
from stepjepa.modeling.forward import causal_lm
from stepjepa.modeling.load import max_positions
from stepjepa.objectives.base import objective_of
from stepjepa.training.datasets import make_renderer, settings_for
from stepjepa.training.options import ExampleOptions, JEPAOptions, method_of
from stepjepa.utils.files import remove_tree, write_json
from stepjepa.utils.terminal import Bar, show_log
from stepjepa.utils.text import labels_of, slug

ABOUT = "analysis.json"
_NAME = Names(JEPAOptions, AnalyzeOptions)
_TRUNK_ONLY = -2  # no layer: the predictor head belongs to sources, not to states on the trunk


@dataclass(frozen=True)
class Reading:
    """How the views of all models are read.

    Attributes:
        layers: that are read; None for all.
        splitter: of the steps, where the training has settled ``step_splitter=auto``.
    """

    options: AnalyzeOptions
    method: JEPAOptions
    rows: RowSource
    layers: list[int] | None
    splitter: StepSplitter | None


@dataclass(frozen=True)
class Collected:
    """States by the models' labels, the base's label, and the record of the collection (`ABOUT`)."""

    states: Mapping[str, States]
    base: str | None
    about: dict[str, Any]


def collect_all(
    options: AnalyzeOptions, given: Collection[str], folder: Path, stale: Sequence[Path], bar: Bar
) -> Collected:
    """Run the models, the base first and each once, and leave their states in the folder, all or none.

    Args:
        given: options that the user has set; the others are as in training.
        stale: files of an earlier analysis, which are removed once all states are collected.
    """
    show_log(logging.WARNING)
    names = [name for name in (options.base_model, *(options.models or ())) if name is not None]
    places = [find_model(name) for name in dict.fromkeys(names)]
    labels = labels_of([place.name for place in places])
    base = None if options.base_model is None else labels[0]
    reading = _reading(options, given, places if base is None else places[1:], bar)
    temporary, existed = folder / ".new-states", folder.is_dir()
    states, inputs = dict[str, States](), list[dict[str, Any]]()
    try:
        remove_tree(temporary)
        temporary.mkdir(parents=True)
        for label, place in zip(labels, places, strict=True):
            path = temporary / f"states-{slug(label)}.safetensors"
            inputs.append(_collect(label, place, reading, path, bar, first=not states))
            states[label] = load_states(path)
            check_alike(states, base if base in states else None)
        about = {
            "version": 1,
            **{name: getattr(options, name) for name in (_NAME.file, _NAME.max_examples)},
            "views": {
                name: getattr(reading.method, name) for name in options_of(ExampleOptions) if hasattr(options, name)
            },
            "inputs": inputs,
            "base": base,
        }
        for file in stale:
            file.unlink()
        for one in inputs:
            os.replace(temporary / one["states"], folder / one["states"])
        write_json(folder / ABOUT, about)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if not existed:
            with suppress(OSError):  # something is in it
                folder.rmdir()
    return Collected(states, base, about)


def _reading(options: AnalyzeOptions, given: Collection[str], places: Sequence[Place], bar: Bar) -> Reading:
    options, trained = as_trained(options, given, places)
    method = replace(method_of(options), same_predictor=bool(options.same_predictor))
    splitter = None
    if trained is not None:
        bar.say(
            f"views    as in the training of {trained.name}, where not given: --{_NAME.objective} {method.objective}"
        )
        settled = read_record(trained).splitter  # what its step_splitter=auto was
        if settled and method.step_splitter == "auto":
            splitter = make_splitter(settled, method.step_separator)
    if objective_of(method).sampled:
        bar.say(f"note     --{_NAME.step_pairs} random: all pairs are read, of which training samples one an epoch")
    layers = None if options.layers in (None, ["all"]) else [int(layer) for layer in options.layers or ()]
    return Reading(options, method, RowSource(options.file, options.dataset_split), layers, splitter)


def _collect(label: str, place: Place, reading: Reading, path: Path, bar: Bar, first: bool) -> dict[str, Any]:
    """Write the states of one model to a file; what is recorded of it. The data are described with the first model."""
    options = reading.options
    model = load_analyzed(place, reading.method, options)
    layers = layers_of(model.model, reading.layers)
    pairs = _pairs(model, model.method, reading)
    bar.say(f"{label}: {model.description}")
    for line in view_notes(model, reading.method, options.predictors):
        bar.say(f"  {line}")
    for line in _data_lines(pairs) if first else ():
        bar.say(f"  {line}")
    bar.start(label, len(pairs.examples), 0)
    states = collect_states(
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
        states = replace(states, walks=_walks(model, reading, bar))
    save_states(states, path)
    entry = {
        "label": label,
        "model": place.name,
        "states": path.name,
        "predictors": model.method.predictors,
        "head": model.head,
    }
    del model, states  # before the next one is loaded
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return entry


def _pairs(model: AnalyzedModel, method: JEPAOptions, reading: Reading) -> Pairs:
    settings = settings_for(reading.rows, method, max_positions(causal_lm(model.model)), reading.splitter)
    renderer = make_renderer(model.tokenizer, method)
    return read_pairs(reading.rows, model.tokenizer, renderer, settings, reading.options.max_examples)


def _walks(model: AnalyzedModel, reading: Reading, bar: Bar) -> Walks:
    """The states behind the steps of a data set's answers, as a model has them in its chats."""
    try:
        examples, places = walks_of(_pairs(model, every_step(model.method).options, reading))
    except DataError as error:
        raise DataError(f"--{_NAME.prediction_horizon}: {error}") from None
    bar.start(f"{model.place.name}, steps", len(examples), 0)
    views = read_states(
        model.model,
        model.place.name,
        collator_for("two_pass", (), model.tokenizer.pad_token_id or 0),
        examples,
        layers=(FINAL,),
        batch_size=reading.options.batch_size,
        advance=bar.step,
        head_layer=_TRUNK_ONLY,
    )
    return Walks(views[0, 0], places)


def _data_lines(pairs: Pairs) -> list[str]:
    """How many pairs there are and what was left out."""
    report = pairs.report
    line = f"{len(pairs.examples):,} pairs of {report.rows_read:,} rows"
    skipped, without = report.rows_skipped.total(), report.examples_without_pairs.total()
    if skipped:
        line = f"{line}; {skipped:,} rows skipped"
    if without:
        line = f"{line}; {without:,} without a pair"
    return [line, *report.steps.lines()]
