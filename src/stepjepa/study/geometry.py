"""Numbers of the states as metrics of a study: how a model's representations of the test rows lie, beside how it answers.

All arms are read alike: the views that the metric's options name, each at its last token, behind the final norm. Predictor
tokens are no part of that; most models are exported without them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from stepjepa.config.values import nearest
from stepjepa.data.steps import LISTED, make_splitter
from stepjepa.errors import ConfigError
from stepjepa.training.options import JEPAOptions

if TYPE_CHECKING:
    from stepjepa.analysis.numbers import GeometryNumbers

Options = Mapping[str, Any]
# Options of training that say what the views are. Chats and their tokens are as in training.
VIEWS = (
    "objective views reverse_pred step_pairs horizon multi_horizon step_splitter step_separator steps_column split_ratio "
    "source_column target_column choice_column"
).split()


class GeometryMetric(NamedTuple):
    """A number of `GeometryNumbers`.

    Attributes:
        words: what it is.
        higher_is_better: its direction.
        read: the number, None where there are too few pairs for it.
    """

    words: str
    higher_is_better: bool
    read: Callable[[GeometryNumbers], float | None]


def _frobenius(numbers: GeometryNumbers) -> float | None:
    found = numbers.linear_map
    if found is None or found.train_rows <= numbers.width:  # the map goes through every row, whatever the states are
        return None
    return found.train_error * found.train_rows**0.5


GEOMETRY = {
    "cosine_gap": GeometryMetric("cosine of matched less that of shuffled pairs", True, lambda n: n.pairs.gap),
    "retrieval_mrr": GeometryMetric("mean reciprocal rank of the target among all", True, lambda n: n.pairs.mrr),
    "target_rank": GeometryMetric("effective rank of the targets", True, lambda n: n.target.effective_rank),
    "difference_top_100": GeometryMetric(
        "mean of the 100 largest singular values of source - target (LLM-JEPA, Table 14)",
        False,
        lambda n: n.difference_top_100,
    ),
    "map_fitted_error": GeometryMetric(
        "error of the least-squares map on the rows that it was fitted on, a Frobenius norm (LLM-JEPA, Table 14)",
        False,
        _frobenius,
    ),
    "map_r2": GeometryMetric(
        "R^2 of that map on held-out rows", True, lambda n: None if n.linear_map is None else n.linear_map.test_r2
    ),
}


def read_views(name: str, given: Options) -> dict[str, Any]:
    """The options of a metric of `GEOMETRY`, checked: those of training that say which views are compared.

    Args:
        given: name -> value as it is written.

    Raises:
        ConfigError: no objective with pairs of tokens, an unknown option, or a value that cannot be used.
    """
    from stepjepa.config.parser import StrictParser

    options = StrictParser((JEPAOptions,)).options
    views: dict[str, Any] = {}
    for key, value in given.items():
        if key not in VIEWS:
            raise ConfigError(f"{name}: unknown option {key!r}; did you mean {nearest(key, VIEWS)!r}?")
        try:
            views[key] = options[key].read(value)
        except ValueError as error:
            raise ConfigError(f"{name}: {key}: {error}") from None
    if views.get("objective") not in ("llm_jepa", "step_jepa", "split"):
        raise ConfigError(
            f"{name} needs the views that it compares, the same for all arms: {{{name}: {{objective: llm_jepa}}}} (or "
            "step_jepa, split)"
        )
    try:
        method = _method({}, views)
        if method.step_splitter != LISTED:
            make_splitter(method.step_splitter, method.step_separator)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None
    return views


def geometry_scores(
    model: Any,
    tokenizer: Any,
    rows: Any,
    wanted: Mapping[str, Options],
    chat: Options,
    max_examples: int | None = None,
    batch_size: int = 32,
) -> dict[str, float | None]:
    """The metrics of `GEOMETRY` among `wanted`, name -> options; those with the same options are read from the same states.

    Args:
        rows: a `RowSource`.
        chat: options of training that say how rows become chats and chats tokens.
        max_examples: first rows that are read; None for all.
        batch_size: pairs a batch.

    Raises:
        ConfigError, DataError: as `analysis.collect.read_pairs` and `collect_states`.
    """
    from stepjepa.analysis.collect import StatesNotFinite, collect_states, read_pairs
    from stepjepa.analysis.numbers import measure_states
    from stepjepa.analysis.states import FINAL
    from stepjepa.modeling.forward import causal_lm
    from stepjepa.modeling.load import max_positions
    from stepjepa.training.encoding import make_renderer, settings_for

    found: dict[str, float | None] = {}
    for names, given in groups({name: wanted[name] for name in wanted if name in GEOMETRY}):
        method = _method(chat, given)
        settings = settings_for(rows, method, max_positions(causal_lm(model)))
        pairs = read_pairs(rows, tokenizer, make_renderer(tokenizer, method), settings, max_examples)
        pad = tokenizer.pad_token_id or 0
        try:
            states = collect_states(model, "the model", pairs, layers=[FINAL], pad_token_id=pad, batch_size=batch_size)
        except StatesNotFinite:  # it has diverged, as its other metrics say too
            found |= dict.fromkeys(names)
            continue
        numbers = measure_states(*states.layer(FINAL), maps=any(name.startswith("map_") for name in names))
        found |= {name: GEOMETRY[name].read(numbers) for name in names}
    return found


def groups(metrics: Mapping[str, Options]) -> Iterator[tuple[list[str], Options]]:
    """Names that have the same options, and these."""
    left = dict(metrics)
    while left:
        given = next(iter(left.values()))
        names = [name for name, other in left.items() if dict(other) == dict(given)]
        yield names, given
        left = {name: other for name, other in left.items() if name not in names}


def _method(chat: Options, views: Options) -> JEPAOptions:
    method = JEPAOptions(**{**chat, **views, "predictors": 0})
    method.check()
    return method
