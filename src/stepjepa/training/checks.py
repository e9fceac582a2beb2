"""What options may hold: values, defaults that depend on others, and combinations that make no sense."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

from stepjepa.data.fields import check_at_least
from stepjepa.errors import ConfigError
from stepjepa.forest.tube import TubeOptions

if TYPE_CHECKING:
    from stepjepa.training.options import JEPAOptions

# Options that only these objectives read; for others they are named in a warning (`without_effect`).
_READ_BY = {
    "step_pairs horizon multi_horizon step_splitter step_separator steps_column": ("step_jepa",),
    "views front_pred reverse_pred": ("llm_jepa",),
    "split_ratio": ("split",),
    "predictors predictor_order same_predictor last_token target_encoder ema_momentum ema_momentum_end": (
        "llm_jepa",
        "step_jepa",
        "split",
    ),
    "lbd lbd_warmup_ratio lbd_schedule jepa_loss infonce_temperature infonce_symmetric regularizer regularizer_weight "
    "vicreg_covariance sigreg_directions predictor_head target_grad control jepa_ratio same_flop loss_scale": (
        "llm_jepa",
        "step_jepa",
        "split",
        "semantic_tube",
    ),
    "tube_mode tube_sampler tube_max_length tube_times tube_length_adjustment tube_content tube_layer": (
        "semantic_tube",
    ),
}


# Options that need another one to have an effect: names, whether it is there, and what it is.
_NEEDS: tuple[tuple[str, Callable[[Any], Any], str], ...] = (
    ("ema_momentum ema_momentum_end", lambda o: o.target_encoder == "ema", "--target_encoder ema"),
    ("infonce_temperature infonce_symmetric", lambda o: o.jepa_loss == "infonce", "--jepa_loss infonce"),
    ("regularizer_weight", lambda o: o.regularizer != "none", "--regularizer"),
    ("vicreg_covariance", lambda o: o.regularizer == "vicreg", "--regularizer vicreg"),
    ("sigreg_directions", lambda o: o.regularizer == "sigreg", "--regularizer sigreg"),
    ("same_predictor predictor_order keep_predictors", lambda o: o.predictors, "--predictors"),
    ("shuffle_buffer", lambda o: o.streaming, "--streaming"),
    ("stopping_strategy", lambda o: o.mixing_weights and not o.streaming, "--mixing_weights, or with --streaming"),
    ("data_cache", lambda o: not o.streaming, "a pass over the data; it is streamed"),
    ("steps_column", lambda o: o.step_splitter in ("list", "auto"), "--step_splitter list or auto"),
    (
        "step_separator",
        lambda o: o.step_splitter in ("auto", "separator", "regex"),
        "--step_splitter separator or regex",
    ),
)


def not_read(objective: str) -> frozenset[str]:
    """The options that runs of an objective do not read, whatever they hold."""
    return frozenset(name for names, readers in _READ_BY.items() if objective not in readers for name in names.split())


def check_options(options: JEPAOptions) -> None:
    """See `JEPAOptions.check`."""
    _check_choices(options)
    _check_types(options)
    _fill_in(options)
    _check_numbers(options)
    _check_combinations(options)
    _check_data(options)


def without_effect(options: JEPAOptions, given: Iterable[str]) -> list[str]:
    """A line for every option of `given` that has a value of its own and that the run does not read."""
    plain = _method_type()(objective=options.objective)
    check_options(plain)
    given = {name for name in given if hasattr(plain, name) and getattr(options, name) != getattr(plain, name)}
    lines: list[str] = []
    for names, objectives in _READ_BY.items():
        unread = [name for name in names.split() if name in given and options.objective not in objectives]
        lines += [f"--{name} has no effect with objective {options.objective}" for name in unread]
    for names, there, what in _NEEDS:
        unread = [name for name in names.split() if name in given and not there(options)]
        lines += [f"--{name} has no effect without {what}" for name in unread if f"--{name} has" not in " ".join(lines)]
    if options.objective != "regular" and options.lbd == 0 and "lbd" in given:
        lines.append("--lbd 0: no pair is made, and the run trains exactly like objective regular")
    if options.control == "random" and options.target_encoder == "ema":
        lines.append("--target_encoder ema has no effect with --control random: no target is used")
    return lines


def tube_options(options: JEPAOptions) -> TubeOptions:
    """How spans are drawn.

    Raises:
        ConfigError: as `TubeOptions`.
    """
    return TubeOptions(
        options.tube_mode,
        options.tube_sampler,
        options.tube_max_length,
        options.tube_times,
        options.tube_length_adjustment,
    )


def _check_choices(options: JEPAOptions) -> None:
    for name, hint in get_type_hints(type(options)).items():
        if name not in _method_fields():
            continue
        members = get_args(hint) if get_origin(hint) is not None and type(None) in get_args(hint) else (hint,)
        known = [value for member in members for value in get_args(member) if isinstance(value, str)]
        value = getattr(options, name)
        if known and value not in known and not (value is None and type(None) in members):
            raise ConfigError(f"{name} is {value!r}; known: {', '.join(known)}")


def _method_type() -> Any:
    from stepjepa.training.options import JEPAOptions

    return JEPAOptions


def _method_fields() -> Any:
    return _method_type().__dataclass_fields__


def _fill_in(options: JEPAOptions) -> None:
    if options.predictors is None:
        options.predictors = {"step_jepa": 2, "split": 1}.get(options.objective, 0)
    if options.predictor_order is None:
        options.predictor_order = "descending" if options.objective == "llm_jepa" else "ascending"
    if options.views is None:
        options.views = "standalone" if options.front_pred or options.reverse_pred else "in_context"
    if options.labels is None:
        options.labels = "all" if options.objective == "split" else "assistant"
    if options.step_splitter == "auto" and options.step_separator != _method_fields()["step_separator"].default:
        options.step_splitter = "separator"  # who names a separator wants to split there
    if options.target_grad is None:
        options.target_grad = options.objective != "split" and options.target_encoder == "self"
    if options.regularizer_weight is None:
        options.regularizer_weight = 0.05 if options.regularizer == "sigreg" else 1.0
    if options.jepa_ratio < 0:
        options.jepa_ratio = 1.0  # the published scripts write -1 for "off"


def _check_types(options: JEPAOptions) -> None:
    """Numbers are numbers, and finite; what Python code gives is not converted as flags are."""
    for name, hint in get_type_hints(type(options)).items():
        if name not in _method_fields():
            continue
        value, kinds = getattr(options, name), set(get_args(hint) or (hint,))
        if value is None or isinstance(value, bool) or not kinds & {int, float}:
            continue
        wanted = (int, float) if float in kinds else int
        if not isinstance(value, wanted) or not math.isfinite(value):
            kind = "a finite number" if float in kinds else "a whole number"
            raise ConfigError(f"{name} is {value!r}; it must be {kind}")
    horizons = options.multi_horizon
    if horizons is not None and not (isinstance(horizons, (list, tuple)) and all(type(h) is int for h in horizons)):
        raise ConfigError(f"multi_horizon is {horizons!r}; it must be a list of whole numbers")


def _check_numbers(options: JEPAOptions) -> None:
    assert options.predictors is not None and options.regularizer_weight is not None
    if options.predictors < 0:
        raise ConfigError(f"predictors is {options.predictors}; the number of predictor tokens cannot be negative")
    if options.predictors > 100:
        raise ConfigError(f"predictors is {options.predictors}; more than 100 predictor tokens is surely a mistake")
    if options.lbd < 0 or options.gamma < 0:
        raise ConfigError(f"lbd is {options.lbd} and gamma is {options.gamma}; loss weights cannot be negative")
    if options.jepa_ratio > 1:
        raise ConfigError(f"jepa_ratio is {options.jepa_ratio}; it is a share of the examples, between 0 and 1")
    if options.infonce_temperature <= 0:
        raise ConfigError(f"infonce_temperature is {options.infonce_temperature}; it must be positive")
    if options.last_token is not None and options.last_token >= 0:
        raise ConfigError(f"last_token is {options.last_token}; it counts from the end: -1, -2, ...")
    if options.max_length < 2:
        raise ConfigError(f"max_length is {options.max_length}; a chat needs at least 2 tokens")
    if options.max_row_length is not None and options.max_row_length < 1:
        raise ConfigError(f"max_row_length is {options.max_row_length}; a row has at least one token")
    if not 0 <= options.lbd_warmup_ratio <= 1:
        raise ConfigError(f"lbd_warmup_ratio is {options.lbd_warmup_ratio}; it is a share of the run, between 0 and 1")
    for name in ("ema_momentum", "ema_momentum_end"):
        if not 0 <= getattr(options, name) <= 1:
            raise ConfigError(f"{name} is {getattr(options, name)}; a momentum lies between 0 and 1")
    if options.regularizer_weight < 0 or options.vicreg_covariance < 0:
        raise ConfigError("regularizer_weight and vicreg_covariance cannot be negative")
    if options.sigreg_directions < 1:
        raise ConfigError(f"sigreg_directions is {options.sigreg_directions}; at least one is needed")
    if not 0 < options.split_ratio < 1:
        raise ConfigError(f"split_ratio is {options.split_ratio}; it is the source's share, between 0 and 1")
    if min(options.horizons) < 1 or len(set(options.horizons)) < len(options.horizons):
        raise ConfigError(f"horizons are {list(options.horizons)}; give different numbers of steps from 1 on")


def _check_combinations(options: JEPAOptions) -> None:
    if options.views == "standalone" and options.objective != "llm_jepa":
        raise ConfigError(
            f"views=standalone renders whole messages alone, and {options.objective} has no such views; use it with "
            "objective llm_jepa"
        )
    for name in ("front_pred", "reverse_pred"):
        if getattr(options, name) and options.views == "in_context":
            raise ConfigError(
                f"{name} needs views=standalone: on the chat itself the answer stands behind the question"
            )
    if options.front_pred and not options.predictors:
        raise ConfigError(
            "front_pred puts predictors in front of the content, and predictors is 0; give --predictors 1"
        )
    if options.horizon != 1 and options.multi_horizon:
        raise ConfigError("horizon and multi_horizon are both set; give one of them")
    if (options.source_column is None) != (options.target_column is None):
        raise ConfigError("source_column and target_column go together; give both")
    if options.choice_column is not None and options.target_column is None:
        raise ConfigError("choice_column picks a text of target_column; give source_column and target_column too")
    if options.plain and options.chat_template:
        raise ConfigError("plain means no chat template, and chat_template gives one; leave one of them out")
    if options.target_encoder == "ema" and options.target_grad:
        raise ConfigError("target_encoder=ema takes no gradient; leave target_grad out or set it to false")
    if options.control == "random" and options.jepa_loss == "infonce" and options.uses_pairs:
        raise ConfigError("control=random gives every source the same target, so infonce has nothing to tell apart; use "
                          "control=shuffled")  # fmt: skip
    if options.forward == "inline" and options.uses_pairs:
        several = options.step_pairs == "all" or len(options.horizons) > 1
        if options.objective not in ("step_jepa", "llm_jepa") or options.views == "standalone":
            raise ConfigError(
                "forward=inline isolates a view inside the chat: objective step_jepa or llm_jepa in context"
            )
        if options.objective == "step_jepa" and several:
            raise ConfigError(
                "forward=inline holds one pair an example (a second one would see the first one's predictors); use "
                "step_pairs first or random and one horizon, or forward packed"
            )
    if options.objective == "semantic_tube" and options.uses_pairs:
        _check_tube(options)


def _check_data(options: JEPAOptions) -> None:
    check_at_least(options, {"shuffle_buffer": 1, "dataset_num_proc": 1})
    weights = options.mixing_weights
    if weights is not None and not (weights and all(math.isfinite(weight) and weight > 0 for weight in weights)):
        raise ConfigError(f"mixing_weights are {weights}; give a positive number for every train_file")
    if options.streaming and options.same_flop:
        raise ConfigError("same_flop looks at batches before training, and streaming reads none; leave one of them out")
    if options.plain and options.chat_template_kwargs:
        raise ConfigError("plain means no chat template, and chat_template_kwargs are for one; leave one of them out")


def _check_tube(options: JEPAOptions) -> None:
    if options.jepa_loss == "infonce":
        raise ConfigError("jepa_loss=infonce compares views of different examples; semantic_tube compares spans of one")
    if options.tube_mode == "curvature" and options.jepa_loss != "cosine":
        raise ConfigError("tube_mode=curvature has a loss of its own, the turning angle; leave jepa_loss out")
    if options.target_encoder == "ema":
        raise ConfigError("semantic_tube compares states of one pass; target_encoder=ema has no place in it")
    if options.predictors:
        raise ConfigError("semantic_tube has no predictor tokens; leave predictors out")
    if options.tube_times > 1000:
        raise ConfigError(f"tube_times is {options.tube_times}; more than 1000 spans an example is surely a mistake")
    tube_options(options)
    if options.tube_layer is not None and options.tube_layer < 0:
        raise ConfigError(f"tube_layer is {options.tube_layer}; layers are counted from 0, the embeddings")
