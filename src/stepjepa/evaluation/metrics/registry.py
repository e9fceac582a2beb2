"""The metrics by name."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
from typing import Any, NamedTuple

from stepjepa.errors import ConfigError
from stepjepa.evaluation.metrics.base import Metric

__all__ = ["METRICS", "MODEL_METRICS", "MetricEntry", "make_metric"]


class MetricEntry(NamedTuple):
    """Where a metric lives: ``module:class`` in this package, and what it is in a few words."""

    target: str
    help: str


METRICS = {
    "gsm8k": MetricEntry("final:FinalAnswer", "final answer, as a number: \\boxed{}, ####, last number"),
    "math": MetricEntry("maths:MathAnswer", "final answer, as mathematics (math-verify)"),
    "exact": MetricEntry("text:Exact", "the text is the reference"),
    "prefix": MetricEntry("text:Prefix", "the text begins with the reference (published startswith)"),
    "regex_equivalence": MetricEntry("regexes:RegexEquivalence", "the regular expressions match the same lines"),
    "sql_execution": MetricEntry("sql:SqlExecution", "the queries return the same rows (SQLite)"),
    "multiple_choice": MetricEntry("choice:MultipleChoice", "the letter of the option"),
    "rouge": MetricEntry("text:Rouge", "ROUGE F measure (rouge-score)"),
    "bleu": MetricEntry("text:Bleu", "BLEU (sacrebleu)"),
}
# Read off the model's own probabilities, so not from a generated text.
MODEL_METRICS = {"answer_nll": "negative log-likelihood of the reference answer, per token"}


def make_metric(name: str, **options: Any) -> Metric:
    """A metric by its name.

    Args:
        name: a key of `METRICS`, or ``module:function`` for a function of the user's own,
            ``f(generated: str, reference: str, row: dict) -> bool | float``.
        options: the attributes of the metric's class, such as ``reference_column``.

    Raises:
        ConfigError: no such metric or option, a value that cannot be used, a package that is not installed.
    """
    if name in METRICS:
        module, _, kind = METRICS[name].target.partition(":")
        found: type[Metric] = getattr(importlib.import_module(f"stepjepa.evaluation.metrics.{module}"), kind)
    elif name in MODEL_METRICS:
        raise ConfigError(f"the metric {name} needs the model, not generated text; the evaluation computes it itself")
    elif ":" in name:
        from stepjepa.evaluation.metrics.custom import CustomMetric

        found, options = CustomMetric, {**options, "target": name}
    else:
        raise ConfigError(f"unknown metric {name!r}; {_nearest(name, [*METRICS, *MODEL_METRICS])}, or module:function")
    known = [one.name for one in dataclasses.fields(found) if one.init]  # type: ignore[arg-type]
    for option in options:
        if option not in known:
            raise ConfigError(f"the metric {name} has no option {option!r}; {_nearest(option, known)}")
    return found(**options)


def _nearest(name: str, known: list[str]) -> str:
    longer = [one for one in known if name and one.startswith(name.lower())]
    close = longer[0] if longer else difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.0)[0]
    return f"did you mean {close!r}? Known: {', '.join(known)}"
