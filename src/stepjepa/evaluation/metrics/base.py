"""The interface of metrics, those that there are, and functions of the user's own as metrics."""

from __future__ import annotations

import importlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

from stepjepa.config.gone import replacement
from stepjepa.config.option import check_fields, option, options_of
from stepjepa.config.values import did_you_mean, load_named
from stepjepa.data.blocks import answer_of
from stepjepa.data.columns import column_value, listed_columns
from stepjepa.data.options import text_of
from stepjepa.errors import ConfigError, DataError

OPTIONS = "metric"  # the group of a metric's options
# Likelihoods of the reference: of all its tokens, of those without the end of turn, and of the end of turn alone.
NLL, CONTENT_NLL, END_NLL = "answer_nll", "content_nll", "end_nll"
METRICS = {  # where each is in this package, ``module:class``
    "gsm8k": "answers:FinalAnswer",
    "math": "answers:MathAnswer",
    "exact": "answers:Exact",
    "prefix": "answers:Prefix",
    "contains": "answers:Contains",
    "stopped": "answers:Stopped",
    "text_after": "answers:TextAfter",
    "regex_equivalence": "regex_equivalence:RegexEquivalence",
    "sql_execution": "sql:SqlExecution",
    "multiple_choice": "answers:MultipleChoice",
    "task": "answers:TaskAnswer",
    "first_step": "answers:FirstStep",
}
MODEL_METRICS = (NLL, CONTENT_NLL, END_NLL)  # read off the model's own probabilities, so not from a generated text


def model_metrics(names: Sequence[str] | None) -> list[str]:
    """Those of these metrics that are read off the model's own probabilities."""
    return [name for name in names or () if name in MODEL_METRICS]


class Judgement(NamedTuple):
    """A metric's judgement of one generated text.

    Attributes:
        score: 0 to 1; of an accuracy 0 or 1; of a count any number, NaN for a text that the metric says nothing about.
        gold: the reference answer as it was read from the row, None where there is none.
        answer: the answer as it was read from the generated text, None where there is none.
        note: why the score is not 1, or what could not be decided; empty where there is nothing to add.
        undecided: why the score says little: ``unknown`` where the metric could not decide, ``invalid`` where the answer is
            no expression or query at all; None for all others.
    """

    score: float
    gold: str | None
    answer: str | None
    note: str = ""
    undecided: Literal["unknown", "invalid"] | None = None


def verdict(right: bool, gold: str, answer: str | None, note: str) -> Judgement:
    """Of an answer that is right or wrong; `note` says why it is wrong."""
    return Judgement(float(right), gold, answer, "" if right else note)


@dataclass(kw_only=True)
class Metric(ABC):
    """Scores generated texts against the answers of their rows.

    A metric may hold a process or a cache: close it, or use it in a ``with``.

    Attributes:
        name: as `make_metric` takes it.
        kind: an accuracy is 0 or 1 for each row, a score anything between, a count any number or NaN.
        higher_is_better: the direction, for studies.
        is_custom: whether it is a function of the user's.
        columns: where the reference is looked for, in this order; messages is the last answer of the chat.
    """

    reference_column: str | None = option(None, "Column with the reference, instead of those in `columns`.", OPTIONS)
    _worker: Any = field(default=None, init=False, repr=False)  # see `metrics.worker`

    name: ClassVar[str] = ""
    kind: ClassVar[Literal["accuracy", "score", "count"]] = "accuracy"
    higher_is_better: ClassVar[bool] = True
    is_custom: ClassVar[bool] = False
    columns: ClassVar[tuple[str, ...]] = ("messages", "completion", "code", "answer", "ground_truth")

    def __post_init__(self) -> None:
        check_fields(self)

    @abstractmethod
    def score(self, generated: str, row: Mapping[str, Any]) -> Judgement:
        """Score one text.

        Args:
            generated: what the model wrote, without the prompt and special tokens. Any text at all: it cannot raise.
            row: the row of the data file that was asked.

        Raises:
            DataError: the row holds no reference.
        """

    def score_response(self, generated: str, row: Mapping[str, Any], stopped: bool) -> Judgement:
        """Score a response; `stopped`: the model ended it by itself. Most metrics score the text alone."""
        return self.score(generated, row)

    def close(self) -> None:
        """End the process that the metric has started, if any."""
        if self._worker is not None:
            self._worker.close()

    def pair(self, generated: str, row: Mapping[str, Any]) -> tuple[str, str]:
        """The reference and the generated text, without thinking and white space around them; errors as `reference`."""
        return self.reference(row).strip(), answer_of(generated).strip()

    def __enter__(self) -> Metric:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def reference(self, row: Mapping[str, Any]) -> str:
        """The text of the first of the reference's columns that holds one, without its thinking; numbers are written out.

        Raises:
            DataError: none does.
        """
        columns = (self.reference_column,) if self.reference_column else self.columns
        for column in columns:
            value: Any = column_value(row, column)
            if column == "messages" and isinstance(value, (list, tuple)):
                turns = [turn for turn in value if isinstance(turn, Mapping) and turn.get("role") == "assistant"]
                value = turns[-1].get("content") if turns else None
            text = answer_of(text_of(value))
            if text.strip():
                return text
        known = listed_columns(row)
        raise DataError(f"no reference answer in the columns {', '.join(columns)} (columns found: {known})")


@dataclass(kw_only=True)
class CustomMetric(Metric):
    """Calls ``f(generated: str, reference: str, row: dict) -> bool | float``.

    Attributes:
        target: ``module:function``, or ``path/to/file.py:function``, as `load_named` takes them; a file is run for every
            metric, because in a notebook it may have changed.
    """

    target: str

    kind = "score"
    is_custom = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.name = self.target  # type: ignore[misc]
        function = load_named(self.target, OPTIONS, [*METRICS, *MODEL_METRICS], again=True)
        if not callable(function):
            raise ConfigError(f"{OPTIONS} {self.target} is no function")
        self._function: Callable[[str, str, dict[str, Any]], Any] = function

    def score(self, generated: str, row: Mapping[str, Any]) -> Judgement:
        """What the function returns: True and False are 1 and 0.

        Raises:
            DataError: the function failed, or returned no number from 0 to 1.
        """
        try:
            gold = self.reference(row).strip()
        except DataError:  # the function may look elsewhere, unless the column was named
            if self.reference_column is not None:
                raise
            gold = ""
        try:
            returned = self._function(generated, gold, dict(row))
        except Exception as error:
            raise DataError(f"metric {self.target}: {type(error).__name__}: {error}") from error
        try:
            value = math.nan if isinstance(returned, str) else float(returned)
        except (TypeError, ValueError):
            value = math.nan
        if not 0 <= value <= 1:
            raise DataError(
                f"metric {self.target} must return a bool or a number from 0 to 1, it returned {returned!r}"
            )
        return Judgement(value, gold, generated.strip())


def make_metric(name: str, **options: Any) -> Metric:
    """A metric by its name.

    Args:
        name: a key of `METRICS`, or ``module:function`` for a function of the user's own,
            ``f(generated: str, reference: str, row: dict) -> bool | float``.
        options: the attributes of the metric's class, such as ``reference_column``.

    Raises:
        ConfigError: no such metric or option, a value that cannot be used, a package that is not installed.
    """
    if name in MODEL_METRICS:
        raise ConfigError(f"the metric {name} needs the model, not generated text; the evaluation computes it itself")
    return make_metrics([name], options)[0]


def metric_class(name: str) -> type[Metric]:
    """The class of a metric in `METRICS`."""
    module, _, attribute = METRICS[name].partition(":")
    return getattr(importlib.import_module(f"stepjepa.evaluation.metrics.{module}"), attribute)


def make_metrics(names: Sequence[str], options: Mapping[str, Any] | None = None) -> list[Metric]:
    """The metrics of these names that read a generated text; a ConfigError as from `make_metric`.

    Args:
        options: of the metrics; each takes those that it has.
    """
    options, known, made = options or {}, set[str](), list[Metric]()
    for name in dict.fromkeys(names):
        if name in MODEL_METRICS:
            continue
        gone = replacement("metric", name)
        if gone:
            raise ConfigError(f"metric {name}: {gone}")
        kind = metric_class(name) if name in METRICS else CustomMetric
        takes = set(options_of(kind)) - {"target"}
        given = {key: value for key, value in options.items() if key in takes}
        made.append(CustomMetric(target=name, **given) if kind is CustomMetric else kind(**given))
        known |= takes
    for key in options:
        if key not in known:
            hint = f"{did_you_mean(key, known)} (known: {', '.join(sorted(known))})" if known else ""
            raise ConfigError(f"no option {key!r} of {', '.join(names)}{hint}")
    return made
