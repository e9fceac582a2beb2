"""The metrics by name."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from stepjepa.errors import ConfigError
from stepjepa.evaluation.metrics.base import Metric

NLL = "answer_nll"


class MetricEntry(NamedTuple):
    """Where a metric lives: ``module:class`` in this package, and a short description."""

    target: str
    help: str


METRICS = {
    "gsm8k": MetricEntry("final:FinalAnswer", "final answer, as a number: \\boxed{}, ####, last number"),
    "math": MetricEntry("maths:MathAnswer", "final answer, as mathematics (math-verify)"),
    "exact": MetricEntry("text:Exact", "the text is the reference"),
    "prefix": MetricEntry("text:Prefix", "the text begins with the reference (published startswith)"),
    "regex_equivalence": MetricEntry(
        "regex_equivalence.metric:RegexEquivalence", "the regular expressions match the same lines"
    ),
    "sql_execution": MetricEntry("sql:SqlExecution", "the queries return the same rows (SQLite)"),
    "multiple_choice": MetricEntry("choice:MultipleChoice", "the letter of the option"),
    "rouge": MetricEntry("text:Rouge", "ROUGE F measure (rouge-score)"),
    "bleu": MetricEntry("text:Bleu", "BLEU (sacrebleu)"),
}
# Read off the model's own probabilities, so not from a generated text.
MODEL_METRICS = {NLL: "negative log-likelihood of the reference answer, per token"}


def make_metric(name: str, **options: Any) -> Metric:
    """A metric by its name.

    Args:
        name: a key of `METRICS`, or ``module:function`` for a function of the user's own,
            ``f(generated: str, reference: str, row: dict) -> bool | float``.
        options: the attributes of the metric's class, such as ``reference_column``.

    Raises:
        ConfigError: no such metric or option, a value that cannot be used, a package that is not installed.
    """
    kind, fixed = _kind(name)
    known = _options(kind)
    for option in options:
        if option not in known:
            raise ConfigError(f"the metric {name} has no option {option!r}; {_nearest(option, known)}")
    return kind(**options, **fixed)


def make_metrics(names: Sequence[str], options: Mapping[str, Any] | None = None) -> list[Metric]:
    """The metrics of these names that read a generated text.

    Args:
        options: of the metrics; each takes those that it has.

    Raises:
        ConfigError: no such metric, an option that none of them has, a package that is not installed.
    """
    options = options or {}
    takes = {name: _options(_kind(name)[0]) for name in dict.fromkeys(names) if name not in MODEL_METRICS}
    known = sorted({one for taken in takes.values() for one in taken})
    for option in options:
        if option not in known:
            hint = f"; {_nearest(option, known)}" if known else ""
            raise ConfigError(f"metric_options: none of the metrics has an option {option!r}{hint}")
    return [
        make_metric(name, **{key: value for key, value in options.items() if key in taken})
        for name, taken in takes.items()
    ]


def _kind(name: str) -> tuple[type[Metric], dict[str, str]]:
    """A metric's class and the arguments that its name gives it."""
    if name in METRICS:
        module, _, kind = METRICS[name].target.partition(":")
        return getattr(importlib.import_module(f"stepjepa.evaluation.metrics.{module}"), kind), {}
    if name in MODEL_METRICS:
        raise ConfigError(f"the metric {name} needs the model, not generated text; the evaluation computes it itself")
    if ":" not in name:
        raise ConfigError(f"unknown metric {name!r}; {_nearest(name, [*METRICS, *MODEL_METRICS])}, or module:function")
    from stepjepa.evaluation.metrics.custom import CustomMetric

    return CustomMetric, {"target": name}


def _options(kind: type[Metric]) -> list[str]:
    return [one.name for one in dataclasses.fields(kind) if one.init and one.name != "target"]


def _nearest(name: str, known: Sequence[str]) -> str:
    longer = [one for one in known if name and one.startswith(name.lower())]
    close = longer[0] if longer else difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.0)[0]
    return f"did you mean {close!r}? Known: {', '.join(known)}"
