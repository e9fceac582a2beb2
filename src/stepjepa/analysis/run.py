"""`analyze`: run models over the pairs of a data set, measure and draw their states, and write everything to one folder."""

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
    every_step,
    layers_of,
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
from stepjepa.generation.place import Place, find_model, load_place, load_place_tokenizer
from stepjepa.inspect.figure import save_figure
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
from stepjepa.utils.text import labels_of, slug

NUMBERS = "numbers.json"
# Files that an analysis writes, or that version 0.2 wrote.
_OWN_FILES = re.compile(
    r"states-.+\.safetensors|numbers\.(json|csv)|analysis\.json|"
    r"(spectrum|cosine|layers|retrieval|rank_source|rank_target|steps|pca(-.+)?|tsne-.+)\.(png|svg)"
)
_NAME = Names(AnalyzeOptions, JEPAOptions)
# Options that decide which views there are. `load_analyzed` takes the predictor options from each model's own run.
_VIEWS = {*options_of(ExampleOptions)} & {*options_of(AnalyzeOptions)}
# Columns and `strict_data` concern a run's own data files, and its tokenizer already has its template.
_VIEWS -= {*options_of(ColumnOptions), _NAME.chat_template, _NAME.strict_data, _NAME.predictors}
# Those that matter for every objective.
_CHATS = {_NAME.plain, _NAME.chat_template_kwargs, _NAME.system_prompt, _NAME.max_length}
# If the user sets an option of a group, none of the group is taken from the run.
_TOGETHER = (
    {_NAME.horizon, _NAME.multi_horizon},
    {_NAME.plain, _NAME.chat_template, _NAME.chat_template_kwargs},
    {_NAME.step_splitter, _NAME.step_separator},
    {_NAME.last_token, _NAME.readout},
)


def analyze(options: AnalyzeOptions, given: Collection[str]) -> AnalysisResult:
    """Measure the states of source and target views in models: ``stepjepa analyze``.

    Args:
        given: names of the options that the user has set; the others are as in the models' training.

    Raises:
        ConfigError, DataError: an option, a model or the data cannot be used; an earlier analysis is then unchanged.
    """
    options.check()
    library("matplotlib", "analysis")  # checked before the work, which would be lost
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

    # All results are known, so the files of an earlier analysis can be removed.
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
        save_figure(figure, files[-1])
    names = ", ".join(path.name for path in files)
    lines = [str(comparison), "", f"written to {folder}: states-*.safetensors, {NUMBERS}, {names}"]
    return AnalysisResult(record, tuple(files), tuple(lines))


def _folder(options: AnalyzeOptions) -> Path:
    if options.output_dir:
        return Path(options.output_dir).expanduser()
    file = Path(str(options.file))
    return Path(f"analysis-{slug(file.stem if file.exists() else str(file))}")


def _earlier_files(folder: Path, overwrite: bool) -> list[Path]:
    """The files of an earlier analysis. Raises ConfigError: they must not be replaced."""
    flag = f"--{_NAME.output_dir} {folder}"
    if RunFolder(folder).holds_model:
        raise ConfigError(
            f"{flag}: contains a run or a model, which an analysis must not change; give another folder, such as "
            f"{folder / 'analysis'}"
        )
    check_writable(folder)
    files = [
        path
        for path in sorted(folder.glob("*"))
        if path.is_file() and _OWN_FILES.fullmatch(path.name)
    ]
    if files and not overwrite:
        remedy = (
            f"give another folder, or set --{_NAME.overwrite_output_dir} to replace the analysis"
        )
        raise ConfigError(f"{flag}: {files[0].name} already exists; {remedy}")
    return files


class _Collection:
    """Collects the states of the models of an analysis, with the same views for all models.

    Args:
        given: names of the options that the user has set; the others are as in the models' training.
        bar: shows the progress.

    Attributes:
        places: label -> model.
        views: values of the options that decide which views there are.
    """

    def __init__(self, options: AnalyzeOptions, given: Collection[str], bar: Bar):
        places = [find_model(name) for name in dict.fromkeys(options.models or ())]
        self.places = dict(zip(labels_of([place.name for place in places]), places, strict=True))
        self._bar = bar
        self._rows = RowSource(options.file, options.dataset_split)
        self._splitter = None
        self._options, trained = as_trained(options, given, places)
        checked = self._options
        if trained is not None and checked.front_pred and checked.predictors is None:
            # Each model is read with the predictors of its own training; `front_pred` is refused without any.
            checked = replace(checked, predictors=trained.settings.get(_NAME.predictors))
        self._method = method_of(checked)
        if trained is not None:
            how = f"--{_NAME.objective} {self._method.objective}"
            bar.say(f"views    as in the training of {trained.name}, unless given: {how}")
            # What step_splitter=auto meant for the training data.
            settled = read_record(trained).steps.splitter
            if settled and self._method.step_splitter == "auto":
                self._splitter = make_splitter(settled, self._method.step_separator)
        if objective_of(self._method).draws:
            bar.say(
                f"note     --{_NAME.step_pairs} random: all pairs are read; training samples one per example and epoch"
            )
        self.views = {}
        for name in options_of(ExampleOptions):
            if hasattr(self._options, name):
                self.views[name] = getattr(self._method, name)

    def collect(self, label: str, place: Place, first: bool) -> tuple[States, dict[str, Any]]:
        """The states of one model, and its entry in the record. The data report is printed only with the first model."""
        options, bar = self._options, self._bar
        model = load_analyzed(place, self._method, options)
        pairs = self._pairs(model, model.method)
        bar.say(f"{label}: {model.description}")
        for line in [*view_notes(model, self._method), *(pairs.report.lines() if first else ())]:
            bar.say(f"  {line}")
        bar.begin(label, len(pairs.examples))
        layers = layers_of(model.model, options.layers)
        views = read_states(
            model.model,
            place.name,
            pairs.examples,
            layers,
            predictor_ids=model.predictor_ids,
            pad_token_id=model.tokenizer.pad_token_id or 0,
            batch_size=options.batch_size,
            advance=bar.step,
            head_layer=model.layer,
        )
        states = States(place.name, pairs.file, layers, pairs.rows, *views)
        if options.prediction_horizon is not None:
            states = replace(states, walks=self._walks(model))
        about = {
            "label": label,
            "model": place.name,
            "predictors": model.method.predictors,
            "head": model.head,
        }
        del model  # frees the memory for the next model
        gc.collect()
        # Does nothing without a GPU.
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
        """A model's states after the steps of the answers of a data set."""
        examples, places = walks_of(self._pairs(model, every_step(model.method)))
        self._bar.begin(f"{model.place.name}, steps", len(examples))
        views = read_states(
            model.model,
            model.place.name,
            examples,
            pad_token_id=model.tokenizer.pad_token_id or 0,
            batch_size=self._options.batch_size,
            advance=self._bar.step,
            # The predictor head is for sources, not for states on the trunk.
            head_layer=None,
        )
        return Walks(views[0, 0], places)


# Models on disk, with the predictor tokens and the head that training added


@dataclass(frozen=True)
class AnalyzedModel:
    """A loaded model, on its device.

    Attributes:
        method: how its views are read; `predictors` is 0 if its folder does not contain enough of them.
        predictor_ids: ids of the predictors in their order after a source, for every group that is read.
        head: kind of its predictor head; None if it has none.
        description: its kind, its number of predictors, and its head.
    """

    place: Place
    model: Any
    tokenizer: Any
    method: JEPAOptions
    predictor_ids: tuple[int, ...]
    head: str | None
    description: str

    @property
    def layer(self) -> int:
        """The layer (see `States`) that its views were read from in training."""
        layer = objective_of(self.method).layer
        return FINAL if layer is None else known_layers(causal_lm(self.model), layer)[1]


def load_analyzed(place: Place, method: JEPAOptions, options: AnalyzeOptions) -> AnalyzedModel:
    """Load a model with its predictors and head.

    Args:
        method: how views are read; the order of the predictors and the layer of the head are those of the model's own run.

    Raises:
        ConfigError: the model cannot be loaded, or has separate predictors for other horizons.
    """
    with quiet():
        tokenizer = chat_tokenizer(load_place_tokenizer(place, options.trust_remote_code), method)
        loading: Any = options  # has the options that loading reads
        model, kind = load_place(place, tokenizer, loading)
    inner = causal_lm(model)
    head = None if place.folder is None else attach_saved(inner, place.folder)
    own, extras, groups = place.settings, trained_extras(inner), objective_of(method).groups
    if extras.head is not None and extras.head.target_width != embedding_rows(inner).shape[1]:
        head = extras.head = None  # it predicts the states of another model
    grouped = len(extras.groups) > 1
    if grouped and groups != extras.groups:
        known = " ".join(map(str, extras.groups))
        raise ConfigError(
            f"{place.name}: has separate predictors for its horizons; give --{_NAME.multi_horizon} {known}"
        )

    # Saved with the model (`attach_saved`), else kept in its vocabulary.
    if extras.predictors is not None:
        known_ids = list(extras.predictors.ids)
    else:
        kept = kept_predictors(tokenizer)
        known_ids = [kept[name] for name in predictor_names(len(kept)) if name in kept]
    size = len(known_ids) // len(extras.groups)
    count = options.predictors
    if count is None and trained_pairs(own):
        count = own.get(_NAME.predictors)
    if count is None:
        count = size
    same = bool(own.get(_NAME.same_predictor))
    rows = min(count, 1) if same else count
    missing = ""
    if rows > size:
        missing = f"; its {count} predictors are not in {PREDICTORS_FILE}"
        count = rows = 0
    description = f"{kind}; {count or 'no'} predictors, {head or 'no'} head{missing}"
    saved = range(len(extras.groups))
    ids = [known_ids[group * size + row] for group in saved for row in range(rows)]
    method = replace(
        method,
        predictors=count,
        same_predictor=same,
        predictor_order=own.get(_NAME.predictor_order) or method.predictor_order,
        readout_layer=own.get(_NAME.readout_layer),
    )
    if not grouped:  # one group serves all horizons
        ids = ids * len(groups)
    placed = placed_predictors(ids, method, len(groups))
    return AnalyzedModel(place, model, tokenizer, method, placed, head, description)


def as_trained(
    options: AnalyzeOptions, given: Collection[str], places: Sequence[Place]
) -> tuple[AnalyzeOptions, Place | None]:
    """Complete the options with those of the run of a model: the first trained on pairs, else the first with a record.

    Options that are `given` stay. All options of the views are taken if the objective is that of the run, else only the
    options that matter for every objective.

    Returns:
        The options, and the model of the run; None if no model has a record.

    Raises:
        ConfigError: the run's objective is a class of the user's own, which may only run if the user names it.
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
            f"{place.name} was trained with an objective class of your own, which runs only if you name it; "
            f"give --{_NAME.objective} {objective}, or another objective"
        )
    elif trained_pairs(own) and objective in options_of(AnalyzeOptions)[_NAME.objective].named:
        names = _VIEWS
    settled = {*given, *(() if options.objective_options is None else (_NAME.objective_options,))}
    for group in _TOGETHER:
        settled |= group if settled & group else set()
    return replace(options, **{name: own[name] for name in names - settled if name in own}), place


def view_notes(model: AnalyzedModel, method: JEPAOptions) -> Iterator[str]:
    """Differences between these states and those that the model was trained on."""
    own = model.place.settings
    # The model's tokenizer has the template of its training.
    names = [
        name
        for name in (_NAME.system_prompt, *options_of(TemplateOptions))
        if name != _NAME.chat_template
    ]
    if trained_pairs(own):
        names += [_NAME.objective, _NAME.views, _NAME.step_pairs, _NAME.last_token, _NAME.readout]
    for name in names:
        if name in own and own[name] != getattr(method, name):
            yield f"it was trained with --{name} {own[name]}, but is read with {getattr(method, name)}"


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress warnings of transformers within this context."""
    before = transformers.utils.logging.get_verbosity()
    transformers.utils.logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers.utils.logging.set_verbosity(before)
