"""Models on disk with what training added to them (predictor tokens, head), as `analyze` reads views with them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import transformers

from stepjepa.analysis.options import AnalyzeOptions
from stepjepa.analysis.states import FINAL
from stepjepa.config.option import Names, options_of
from stepjepa.config.values import named_by_file
from stepjepa.data.options import ColumnOptions, TemplateOptions
from stepjepa.data.tokens import kept_predictors
from stepjepa.errors import ConfigError
from stepjepa.generation.place import Place, load_place, load_place_tokenizer
from stepjepa.modeling.extras import PREDICTORS_FILE, attach_saved, placed_predictors, predictor_names, trained_extras
from stepjepa.modeling.forward import causal_lm, known_layers
from stepjepa.modeling.parts import embedding_rows
from stepjepa.objectives.base import objective_of, trained_pairs
from stepjepa.training.datasets import chat_tokenizer
from stepjepa.training.options import ExampleOptions, JEPAOptions

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
        method: how it is read; its predictors are those that the folder holds, 0 where it has none.
        predictor_ids: (K,) in their order after a source, of every group that is read.
        head: kind of its predictor head, None without one.
        description: what it is, and where sources are read.
        lacking: predictors that are asked for, or that it was trained with, and that its folder does not hold.
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
        method: how views are read; what `options` leave open of the predictors is as the model's own run had it.

    Raises:
        ConfigError: it cannot be loaded.
    """
    with quiet():
        tokenizer = chat_tokenizer(load_place_tokenizer(place, options.trust_remote_code), method)
        loading: Any = options  # it has the options that loading reads
        model, kind = load_place(place, tokenizer, loading)
    inner = causal_lm(model)
    head = None if place.folder is None else attach_saved(inner, place.folder, options.head)
    own, extras, groups = place.settings, trained_extras(inner), objective_of(method).groups
    if extras.head is not None and extras.head.target_width != embedding_rows(inner).shape[1]:
        head = extras.head = None  # it leads to the states of another model
    grouped = len(extras.groups) > 1
    if grouped:
        if not set(groups) <= set(extras.groups):
            known = ", ".join(map(str, extras.groups))
            raise ConfigError(
                f"{place.name}: has predictors of its own for each of the horizons {known}; give one with --{_NAME.horizon}"
            )
        extras.keep_groups(groups)

    # How it is read: as asked, else as its own run had it.
    def as_asked(name: str) -> Any:
        value = getattr(options, name)
        return own.get(name) if value is None else value

    wanted = options.predictors
    if wanted is None and trained_pairs(own):
        wanted = own.get(_NAME.predictors)
    same = bool(as_asked(_NAME.same_predictor))
    count, ids = _find_predictors(model, tokenizer, wanted, same)
    method = replace(
        method,
        predictors=count,
        same_predictor=same,
        predictor_order=as_asked(_NAME.predictor_order) or method.predictor_order,
        readout_layer=as_asked(_NAME.readout_layer),
    )
    if not grouped:  # one group serves all horizons
        ids = [*ids] * len(groups)
    placed = placed_predictors(ids, method, len(groups))
    lacking = 0 if count else int(wanted or 0)
    description = f"{kind}; {_where_sources_are_read(method, head)}"
    return AnalyzedModel(place, model, tokenizer, method, placed, head, description, lacking)


def _where_sources_are_read(method: JEPAOptions, head: str | None) -> str:
    if method.predictors == 1:
        where = "their predictor"
    elif method.predictors:
        where = f"the last of {method.predictors} predictors"
    else:
        where = "the mean of their tokens" if method.readout == "mean" else "their last token"
    return f"sources at {where}{f', after the {head} head' if head else ''}"


def _find_predictors(model: Any, tokenizer: Any, wanted: int | None, same: bool) -> tuple[int, Sequence[int]]:
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
    return count, [index for group in range(groups) for index in ids[group * size : group * size + need]]


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
    own = model.place.settings
    if model.lacking:
        trained = "" if asked else f", with which it was trained ({PREDICTORS_FILE} is missing)"
        yield f"it does not hold {model.lacking} predictor tokens{trained}"
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
