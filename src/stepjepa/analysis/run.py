"""`analyze`: run models over the pairs of a data set, keep their states, measure and draw them, all in one folder."""

from __future__ import annotations

import gc
import logging
import os
import re
import shutil
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from stepjepa.analysis import plots
from stepjepa.analysis.models import AnalyzedModel, as_trained, load_analyzed, view_notes
from stepjepa.analysis.numbers import compare
from stepjepa.analysis.options import AnalysisResult, AnalyzeOptions
from stepjepa.analysis.prediction import MOST_HORIZONS, walks_of
from stepjepa.analysis.states import (
    FINAL,
    Pairs,
    States,
    Walks,
    check_alike,
    collect_states,
    every_step,
    layers_of,
    load_states,
    read_pairs,
    read_states,
    save_states,
)
from stepjepa.config.option import Names, options_of
from stepjepa.data.sources import RowSource
from stepjepa.data.steps import StepSplitter, make_splitter
from stepjepa.errors import ConfigError, DataError
from stepjepa.evaluation.questions import read_record
from stepjepa.forest.collate import collator_for
from stepjepa.generation.place import Place, find_model
from stepjepa.modeling.forward import causal_lm
from stepjepa.modeling.load import max_positions
from stepjepa.objectives.base import objective_of
from stepjepa.training.datasets import make_renderer, settings_for
from stepjepa.training.options import ExampleOptions, JEPAOptions, method_of
from stepjepa.training.run_folder import RunFolder
from stepjepa.utils.failures import library
from stepjepa.utils.files import check_writable, read_object, remove_tree, write_json
from stepjepa.utils.terminal import Bar, show_log
from stepjepa.utils.text import PAGE, folded, labels_of, slug

NUMBERS, ABOUT = "numbers.json", "analysis.json"
_FIGURES = "spectrum|cosine|retrieval|rank_source|rank_target|steps|pca-.+|tsne-.+"  # steps: of version 0.2
# Files of an earlier analysis that one of saved states writes again, and that any other one writes besides.
_MEASURED = rf"numbers\.(?:json|csv)|(?:{_FIGURES})\.(?:png|svg)"
_COLLECTED = rf"states-.+\.safetensors|{re.escape(ABOUT)}"
_TRUNK_ONLY = -2  # no layer: the predictor head belongs to sources, not to states on the trunk
_NAME = Names(AnalyzeOptions, JEPAOptions)


@dataclass(frozen=True)
class Collected:
    """States by the models' labels, the base's label, and the record of the collection (`ABOUT`)."""

    states: Mapping[str, States]
    base: str | None
    about: dict[str, Any]


def analyze(options: AnalyzeOptions, given: Collection[str]) -> AnalysisResult:
    """Measure where source and target views are in models: ``stepjepa analyze``.

    Args:
        given: options that the user has set; the others are as in the models' training.

    Raises:
        ConfigError, DataError: what cannot be used; what an earlier analysis has written is unchanged then.
    """
    options.check()
    for name in ("matplotlib", "sklearn"):
        library(name, "analysis")  # before the work, which would be lost
    folder = _folder(options)
    pattern = _MEASURED if options.from_states else f"{_MEASURED}|{_COLLECTED}"
    earlier = _earlier_files(folder, pattern, options.overwrite_output_dir)
    with Bar() as bar:
        if options.from_states:
            collected = _saved_states(options.from_states, options.base_model)
        else:
            collected = _Collection(options, given, bar).into(folder, earlier)
            earlier = []  # they are gone by now
        states = collected.states
        bar.start("numbers", sum(len(one.layers) for one in states.values()), 0)
        horizon = options.prediction_horizon or MOST_HORIZONS
        comparison = compare(states, collected.base, lambda label: bar.advance(1, label), horizon)

        # Nothing can fail any more: the earlier files make room.
        folder.mkdir(parents=True, exist_ok=True)
        for file in earlier:
            file.unlink()
        record = {**collected.about, **asdict(comparison)}
        write_json(folder / NUMBERS, record)
        figures = list(plots.comparison_figures(comparison, states, options.coordinates or ["pca"], options.seed))
        bar.start("figures", len(figures), 0)
        files = []
        for name, draw in figures:
            files.append(folder / f"{name}.{options.figure_format}")
            plots.save_figure(draw(), files[-1])
            bar.advance(1)
    kept = "states-*.safetensors, " if any(folder.glob("states-*")) else ""
    lines = [str(comparison), "", f"written to {folder}: {kept}{NUMBERS}"]
    lines += folded([f"figures: {', '.join(path.name for path in files)}"], PAGE)
    return AnalysisResult(record, tuple(files), tuple(lines))


def _folder(options: AnalyzeOptions) -> Path:
    if options.output_dir or options.from_states:
        return Path(str(options.output_dir or options.from_states)).expanduser()
    file = Path(str(options.file))
    return Path(f"analysis-{slug(file.stem if file.exists() else str(file))}")


def _earlier_files(folder: Path, pattern: str, overwrite: bool) -> list[Path]:
    """What an earlier analysis has written, of the files that are written again; that must be asked for."""
    flag = f"--{_NAME.output_dir} {folder}"
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{flag}: is a file; give a folder")
    if RunFolder(folder).holds_model:
        raise ConfigError(
            f"{flag}: holds a run or a model, which the analysis would seem to change; give another folder, such as "
            f"{folder / 'analysis'}"
        )
    check_writable(folder)
    files = [path for path in sorted(folder.glob("*")) if path.is_file() and re.fullmatch(pattern, path.name)]
    if files and not overwrite:
        remedy = f"give another folder, or replace it with --{_NAME.overwrite_output_dir}"
        raise ConfigError(f"{flag}: {files[0].name} is there already; {remedy}")
    return files


def _saved_states(name: str, base: str | None) -> Collected:
    """The states in a folder, in the order in which they were collected; `base`: label or name of another base model."""
    folder, flag = Path(name).expanduser(), f"--{_NAME.from_states} {name}"
    if not folder.is_dir():
        raise ConfigError(f"{flag}: no such folder")
    paths = sorted(folder.glob("states-*.safetensors"))
    if not paths:
        raise ConfigError(f"{flag}: holds no states (states-*.safetensors); run stepjepa analyze FILE first")
    about = read_object(folder / ABOUT)
    labels = {}
    for one in about.get("inputs", ()):
        labels[one["states"]] = one["label"]
    order = list(labels)
    paths.sort(key=lambda path: order.index(path.name) if path.name in labels else len(order))
    states, names = dict[str, States](), dict[str, str]()
    for path in paths:
        label = labels.get(path.name, path.stem.removeprefix("states-"))
        states[label] = load_states(path)
        names[label] = names[states[label].model] = label
    if base is not None and base not in names:
        raise ConfigError(f"--{_NAME.base_model} {base}: no states of it in {name}; there are: {', '.join(states)}")
    label_of_base = names.get(str(base or about.get("base")))
    return Collected(states, label_of_base, {**about, "base": label_of_base})


class _Collection:
    """The models of an analysis, whose states are collected: how the views of all of them are read.

    Args:
        given: options that the user has set; the others are as in the models' training.
        bar: shows how far it is.
    """

    def __init__(self, options: AnalyzeOptions, given: Collection[str], bar: Bar):
        names = list(options.models or ())
        if options.base_model is not None:
            names.insert(0, options.base_model)
        self._places = [find_model(name) for name in dict.fromkeys(names)]
        self._bar = bar
        self._rows = RowSource(options.file, options.dataset_split)
        self._splitter: StepSplitter | None = None
        self._labels = labels_of([place.name for place in self._places])
        self._base = None if options.base_model is None else self._labels[0]
        rivals = self._places if self._base is None else self._places[1:]
        self._options, trained = as_trained(options, given, rivals)
        self._method = replace(method_of(self._options), same_predictor=bool(self._options.same_predictor))
        if trained is not None:
            self._read_as(trained)
        if objective_of(self._method).sampled:
            bar.say(f"note     --{_NAME.step_pairs} random: all pairs are read, of which training samples one an epoch")

    def _read_as(self, trained: Place) -> None:
        """Say whose views are read, and split the steps as that model's training has settled it."""
        how = f"--{_NAME.objective} {self._method.objective}"
        self._bar.say(f"views    as in the training of {trained.name}, where not given: {how}")
        settled = read_record(trained).splitter  # what its step_splitter=auto was
        if settled and self._method.step_splitter == "auto":
            self._splitter = make_splitter(settled, self._method.step_separator)

    def into(self, folder: Path, earlier: Sequence[Path]) -> Collected:
        """Run the models, the base first and each once, and leave their states in the folder, all or none.

        Args:
            earlier: files of an earlier analysis, which are removed once all states are collected.
        """
        show_log(logging.WARNING)
        temporary, existed = folder / ".new-states", folder.is_dir()
        states, inputs = dict[str, States](), list[dict[str, Any]]()
        try:
            remove_tree(temporary)
            temporary.mkdir(parents=True)
            for label, place in zip(self._labels, self._places, strict=True):
                path = temporary / f"states-{slug(label)}.safetensors"
                inputs.append(self._collect(label, place, path, first=not states))
                states[label] = load_states(path)
                check_alike(states, self._base if self._base in states else None)
            views = [name for name in options_of(ExampleOptions) if hasattr(self._options, name)]
            about: dict[str, Any] = {
                "version": 1,
                **{name: getattr(self._options, name) for name in (_NAME.file, _NAME.max_examples)},
                "views": {name: getattr(self._method, name) for name in views},
                "inputs": inputs,
                "base": self._base,
            }
            for file in earlier:
                file.unlink()
            for one in inputs:
                os.replace(temporary / one["states"], folder / one["states"])
            write_json(folder / ABOUT, about)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
            if not existed:
                with suppress(OSError):  # something is in it
                    folder.rmdir()
        return Collected(states, self._base, about)

    def _collect(self, label: str, place: Place, path: Path, first: bool) -> dict[str, Any]:
        """Write the states of one model to a file; what is recorded of it. The data are described with the first model."""
        options, bar = self._options, self._bar
        model = load_analyzed(place, self._method, options)
        chosen = None if options.layers in (None, ["all"]) else [int(layer) for layer in options.layers or ()]
        layers = layers_of(model.model, chosen)
        pairs = self._pairs(model, model.method)
        bar.say(f"{label}: {model.description}")
        for line in [*view_notes(model, self._method, options.predictors), *(_data_lines(pairs) if first else ())]:
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
            states = replace(states, walks=self._walks(model))
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

    def _pairs(self, model: AnalyzedModel, method: JEPAOptions) -> Pairs:
        settings = settings_for(self._rows, method, max_positions(causal_lm(model.model)), self._splitter)
        renderer = make_renderer(model.tokenizer, method)
        return read_pairs(self._rows, model.tokenizer, renderer, settings, self._options.max_examples)

    def _walks(self, model: AnalyzedModel) -> Walks:
        """The states behind the steps of a data set's answers, as a model has them in its chats."""
        try:
            examples, places = walks_of(self._pairs(model, every_step(model.method).options))
        except DataError as error:
            raise DataError(f"--{_NAME.prediction_horizon}: {error}") from None
        self._bar.start(f"{model.place.name}, steps", len(examples), 0)
        views = read_states(
            model.model,
            model.place.name,
            collator_for("two_pass", (), model.tokenizer.pad_token_id or 0),
            examples,
            layers=(FINAL,),
            batch_size=self._options.batch_size,
            advance=self._bar.step,
            head_layer=_TRUNK_ONLY,
        )
        return Walks(views[0, 0], places)


def _data_lines(pairs: Pairs) -> list[str]:
    """How many pairs there are and what was left out."""
    report = pairs.report
    line = f"{len(pairs.examples):,} pairs of {report.rows_read:,} rows"
    skipped, without = report.rows_skipped.total(), report.examples_without_pairs.total()
    if skipped:
        line += f"; {skipped:,} rows skipped"
    if without:
        line += f"; {without:,} without a pair"
    return [line, *report.steps.lines()]
