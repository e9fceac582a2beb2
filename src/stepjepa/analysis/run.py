"""`analyze`: run models over the pairs of a data set, measure and draw their states, and write all of it into one folder."""

from __future__ import annotations

import gc
import logging
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers

from stepjepa.analysis import plots
from stepjepa.analysis.numbers import compare
from stepjepa.analysis.options import AnalysisResult, AnalyzeOptions
from stepjepa.analysis.prediction import walks_of
from stepjepa.analysis.states import (
    FINAL,
    Pairs,
    States,
    Walks,
    collect_states,
    every_step,
    read_pairs,
    read_states,
    save_states,
)
from stepjepa.config.option import Names, options_of
from stepjepa.config.values import named_by_file
from stepjepa.data.options import ColumnOptions, TemplateOptions
from stepjepa.data.sources import RowSource
from stepjepa.data.steps import make_splitter
from stepjepa.data.tokens import kept_predictors
from stepjepa.errors import ConfigError, library
from stepjepa.evaluation.questions import read_record
from stepjepa.forest.collate import collator_for
from stepjepa.generation.place import Place, find_model, load_place, load_place_tokenizer
from stepjepa.modeling.extras import (
    PREDICTORS_FILE,
    attach_saved,
    placed_predictors,
    predictor_names,
    trained_extras,
)
from stepjepa.modeling.forward import causal_lm, known_layers
from stepjepa.modeling.load import max_positions
from stepjepa.modeling.parts import embedding_rows
from stepjepa.objectives.base import objective_of, trained_pairs
from stepjepa.training.datasets import chat_tokenizer, make_renderer, settings_for
from stepjepa.training.options import ExampleOptions, JEPAOptions, method_of
from stepjepa.training.run_folder import RunFolder
from stepjepa.utils.files import check_writable, write_json
from stepjepa.utils.terminal import Bar, show_log
from stepjepa.utils.text import PAGE, folded, labels_of, slug

NUMBERS = "numbers.json"
# Files that an analysis writes, or that one of version 0.2 has written.
_OWN_FILES = re.compile(
    r"states-.+\.safetensors|numbers\.(json|csv)|analysis\.json|"
    r"(spectrum|cosine|layers|retrieval|rank_source|rank_target|steps|pca(-.+)?|tsne-.+)\.(png|svg)"
)
_TRUNK_ONLY = -2  # no layer: the predictor head belongs to sources, not to states on the trunk
_NAME = Names(AnalyzeOptions, JEPAOptions)
# Of a run's own options these are about its files; its tokenizer brings its template.
_OF_FILES = {*options_of(ColumnOptions), _NAME.chat_template, _NAME.strict_data}
# Options that say which views there are. `load_analyzed` takes those of the predictors from each model's own run.
_VIEWS = {*options_of(ExampleOptions)} & {*options_of(AnalyzeOptions)}
_VIEWS -= {*_OF_FILES, _NAME.predictors}
# Those that are read whatever the objective.
_CHATS = {_NAME.plain, _NAME.chat_template_kwargs, _NAME.system_prompt, _NAME.max_length}
# One of these that is given decides for the others.
_TOGETHER = (
    {_NAME.horizon, _NAME.multi_horizon},
    {_NAME.plain, _NAME.chat_template, _NAME.chat_template_kwargs},
    {_NAME.step_splitter, _NAME.step_separator},
    {_NAME.last_token, _NAME.readout},
)


def analyze(options: AnalyzeOptions, given: Collection[str]) -> AnalysisResult:
    """Measure where source and target views are in models: ``stepjepa analyze``.

    Args:
        given: options that the user has set; the others are as in the models' training.

    Raises:
        ConfigError, DataError: what cannot be used; what an earlier analysis has written is unchanged then.
    """
    options.check()
    library("matplotlib", "analysis")  # before the work, which would be lost
    folder = _folder(options)
    earlier = _earlier_files(folder, options.overwrite_output_dir)
    show_log(logging.WARNING)
    with Bar() as bar:
        collection = _Collection(options, given, bar)
        states, inputs = dict[str, States](), list[dict[str, Any]]()
        for label, place in collection.places.items():
            states[label], about = collection.collect(label, place, first=not states)
            inputs.append(about)
        comparison = compare(states, options.prediction_horizon or 0)

    # Nothing can fail any more: the earlier files make room.
    folder.mkdir(parents=True, exist_ok=True)
    for file in earlier:
        file.unlink()
    for label, one in states.items():
        save_states(one, folder / f"states-{slug(label)}.safetensors")
    record = {"version": 1, "views": collection.views, "inputs": inputs, **asdict(comparison)}
    write_json(folder / NUMBERS, record)
    files = []
    for name, figure in plots.comparison_figures(comparison, states):
        files.append(folder / f"{name}.png")
        plots.save_figure(figure, files[-1])
    lines = [str(comparison), "", f"written to {folder}: states-*.safetensors, {NUMBERS}"]
    lines += folded([f"figures: {', '.join(path.name for path in files)}"], PAGE)
    return AnalysisResult(record, tuple(files), tuple(lines))


def _folder(options: AnalyzeOptions) -> Path:
    if options.output_dir:
        return Path(options.output_dir).expanduser()
    file = Path(str(options.file))
    return Path(f"analysis-{slug(file.stem if file.exists() else str(file))}")


def _earlier_files(folder: Path, overwrite: bool) -> list[Path]:
    """What an earlier analysis has written; that it is replaced must be asked for."""
    flag = f"--{_NAME.output_dir} {folder}"
    if RunFolder(folder).holds_model:
        raise ConfigError(
            f"{flag}: holds a run or a model, which an analysis must not change; give another folder, such as "
            f"{folder / 'analysis'}"
        )
    check_writable(folder)
    files = [
        path
        for path in sorted(folder.glob("*"))
        if path.is_file() and _OWN_FILES.fullmatch(path.name)
    ]
    if files and not overwrite:
        remedy = f"give another folder, or replace it with --{_NAME.overwrite_output_dir}"
        raise ConfigError(f"{flag}: {files[0].name} exists already; {remedy}")
    return files


class _Collection:
    """The models of an analysis, whose states are collected: how the views of all of them are read.

    Args:
        given: options that the user has set; the others are as in the models' training.
        bar: shows how far it is.

    Attributes:
        places: the models by their labels.
        views: the options that decide which views there are.
    """

    def __init__(self, options: AnalyzeOptions, given: Collection[str], bar: Bar):
        places = [find_model(name) for name in dict.fromkeys(options.models or ())]
        self.places = dict(zip(labels_of([place.name for place in places]), places, strict=True))
        self._bar = bar
        self._rows = RowSource(options.file, options.dataset_split)
        self._splitter = None
        self._options, trained = as_trained(options, given, places)
        self._method = method_of(self._options)
        if trained is not None:
            how = f"--{_NAME.objective} {self._method.objective}"
            bar.say(f"views    as in the training of {trained.name}, where not given: {how}")
            settled = read_record(trained).steps.splitter  # what its step_splitter=auto was
            if settled and self._method.step_splitter == "auto":
                self._splitter = make_splitter(settled, self._method.step_separator)
        if objective_of(self._method).sampled:
            bar.say(
                f"note     --{_NAME.step_pairs} random: all pairs are read; training samples one of them per epoch"
            )
        self.views = {}
        for name in options_of(ExampleOptions):
            if hasattr(self._options, name):
                self.views[name] = getattr(self._method, name)

    def collect(self, label: str, place: Place, first: bool) -> tuple[States, dict[str, Any]]:
        """The states of one model, and what is recorded of it. The data are described with the first model."""
        options, bar = self._options, self._bar
        model = load_analyzed(place, self._method, options)
        pairs = self._pairs(model, model.method)
        bar.say(f"{label}: {model.description}")
        for line in [*view_notes(model, self._method), *(pairs.report.lines() if first else ())]:
            bar.say(f"  {line}")
        bar.begin(label, len(pairs.examples))
        states = collect_states(
            model.model,
            place.name,
            pairs,
            layers=options.layers,
            predictor_ids=model.predictor_ids,
            pad_token_id=model.tokenizer.pad_token_id or 0,
            batch_size=options.batch_size,
            advance=bar.step,
            head_layer=model.layer,
        )
        if options.prediction_horizon is not None:
            states = replace(states, walks=self._walks(model))
        about = {
            "label": label,
            "model": place.name,
            "predictors": model.method.predictors,
            "head": model.head,
        }
        del model  # before the next one is loaded
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return states, about

    def _pairs(self, model: AnalyzedModel, method: JEPAOptions) -> Pairs:
        settings = settings_for(
            self._rows, method, max_positions(causal_lm(model.model)), self._splitter
        )
        renderer = make_renderer(model.tokenizer, method)
        return read_pairs(
            self._rows, model.tokenizer, renderer, settings, self._options.max_examples
        )

    def _walks(self, model: AnalyzedModel) -> Walks:
        """The states behind the steps of a data set's answers, as a model has them in its chats."""
        examples, places = walks_of(self._pairs(model, every_step(model.method).options))
        self._bar.begin(f"{model.place.name}, steps", len(examples))
        views = read_states(
            model.model,
            model.place.name,
            collator_for("two_pass", (), model.tokenizer.pad_token_id or 0),
            examples,
            batch_size=self._options.batch_size,
            advance=self._bar.step,
            head_layer=_TRUNK_ONLY,
        )
        return Walks(views[0, 0], places)


# Models on disk, with what training added to them (predictor tokens, head)


@dataclass(frozen=True)
class AnalyzedModel:
    """A model that is loaded, on its device.

    Attributes:
        method: how it is read; its predictors are those that the folder holds, 0 where it has none.
        predictor_ids: (K,) in their order after a source, of every group that is read.
        head: kind of its predictor head, None without one.
        description: what it is, and where sources are read.
        lacking: predictors that were asked for, or that it was trained with, and that its folder does not hold.
    """

    place: Place
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
        method: how views are read; the order of the predictors and the layer of the head are those of the model's own run.

    Raises:
        ConfigError: it cannot be loaded.
    """
    with quiet():
        tokenizer = chat_tokenizer(load_place_tokenizer(place, options.trust_remote_code), method)
        loading: Any = options  # it has the options that loading reads
        model, kind = load_place(place, tokenizer, loading)
    inner = causal_lm(model)
    head = None if place.folder is None else attach_saved(inner, place.folder)
    own, extras, groups = place.settings, trained_extras(inner), objective_of(method).groups
    if extras.head is not None and extras.head.target_width != embedding_rows(inner).shape[1]:
        head = extras.head = None  # it leads to the states of another model
    grouped = len(extras.groups) > 1
    if grouped:
        if not set(groups) <= set(extras.groups):
            known = ", ".join(map(str, extras.groups))
            raise ConfigError(
                f"{place.name}: has separate predictors for the horizons {known}; give one with --{_NAME.horizon}"
            )
        extras.keep_groups(groups)

    wanted = options.predictors
    if wanted is None and trained_pairs(own):
        wanted = own.get(_NAME.predictors)
    same = bool(own.get(_NAME.same_predictor))
    count, ids = _find_predictors(model, tokenizer, wanted, same)
    method = replace(
        method,
        predictors=count,
        same_predictor=same,
        predictor_order=own.get(_NAME.predictor_order) or method.predictor_order,
        readout_layer=own.get(_NAME.readout_layer),
    )
    if not grouped:  # one group serves all horizons
        ids = [*ids] * len(groups)
    placed = placed_predictors(ids, method, len(groups))
    lacking = 0 if count else int(wanted or 0)
    description = f"{kind}; {count or 'no'} predictors, {head or 'no'} head"
    return AnalyzedModel(place, model, tokenizer, method, placed, head, description, lacking)


def _find_predictors(
    model: Any, tokenizer: Any, wanted: int | None, same: bool
) -> tuple[int, Sequence[int]]:
    """K and the ids of the predictors that were saved with the model (`extras.attach_saved`), else of those that are kept in
    its vocabulary; of several groups all."""
    extras = trained_extras(causal_lm(model))
    if extras.predictors is not None:
        ids = list(extras.predictors.ids)
    else:
        kept = kept_predictors(tokenizer)
        ids = [kept[name] for name in predictor_names(len(kept)) if name in kept]
    groups = len(extras.groups)
    size = len(ids) // groups
    count = size if wanted is None else wanted
    need = min(count, 1) if same else count
    if need > size:
        return 0, ()
    return count, [
        index for group in range(groups) for index in ids[group * size : group * size + need]
    ]


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
            f"{place.name} was trained with your own objective, whose file is not run because a folder names it; "
            f"give --{_NAME.objective} {objective}, or another one"
        )
    elif trained_pairs(own) and objective in options_of(AnalyzeOptions)[_NAME.objective].named:
        names = _VIEWS
    settled = {*given, *(() if options.objective_options is None else (_NAME.objective_options,))}
    for group in _TOGETHER:
        settled |= group if settled & group else set()
    return replace(options, **{name: own[name] for name in names - settled if name in own}), place


def view_notes(model: AnalyzedModel, method: JEPAOptions) -> Iterator[str]:
    """Where the states are not those that the model was trained on."""
    own = model.place.settings
    if model.lacking:
        yield f"it does not hold {model.lacking} predictor tokens ({PREDICTORS_FILE})"
    # The model's tokenizer brings the template of its training.
    names = [
        name
        for name in (_NAME.system_prompt, *options_of(TemplateOptions))
        if name != _NAME.chat_template
    ]
    if trained_pairs(own):
        names += [_NAME.objective, _NAME.views, _NAME.step_pairs, _NAME.last_token, _NAME.readout]
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
