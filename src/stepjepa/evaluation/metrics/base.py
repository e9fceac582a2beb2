"""The interface of metrics, their names, and users' functions as metrics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import Any, ClassVar, Literal, NamedTuple

from stepjepa.config.gone import replacement
from stepjepa.config.option import check_fields, option, options_of
from stepjepa.config.values import did_you_mean, load_named
from stepjepa.data.blocks import answer_of
from stepjepa.data.columns import Row, column_value, listed_columns
from stepjepa.data.options import text_of
from stepjepa.errors import ConfigError, DataError

# Group of the metrics' options in help and messages.
OPTIONS = "metric"
# Likelihoods of the reference: over all its tokens, over all but the end of turn, and over only the end of turn.
NLL, CONTENT_NLL, END_NLL = "answer_nll", "content_nll", "end_nll"
# Name -> ``module:class`` in this package. A string, so that listing the names imports no metric.
METRICS = {
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
# Computed from the model's probabilities and not from a generated text, so they have no class here.
MODEL_METRICS = (NLL, CONTENT_NLL, END_NLL)


def model_metrics(names: Sequence[str] | None) -> list[str]:
    """The names in `MODEL_METRICS`, which need the model's probabilities."""
    return [name for name in names or () if name in MODEL_METRICS]


class Judgement(NamedTuple):
    """A metric's judgement of one generated text.

    Attributes:
        score: 0 to 1; for a count any number, NaN if the metric does not apply to the text.
        gold: the reference answer extracted from the row; None if there is none.
        answer: the answer extracted from the generated text; None if there is none.
        note: why the score is not 1, or what could not be decided; empty if there is nothing to add.
        undecided: ``unknown`` if the metric could not decide, ``invalid`` if the answer is not a valid expression or query;
            None otherwise.
    """

    score: float
    gold: str | None
    answer: str | None
    note: str = ""
    undecided: Literal["unknown", "invalid"] | None = None


def verdict(right: bool, gold: str, answer: str | None, note: str) -> Judgement:
    """The judgement of an answer that is right or wrong; `note` says why it is wrong."""
    return Judgement(float(right), gold, answer, "" if right else note)


@dataclass(kw_only=True)
class Metric(ABC):
    """Scores generated texts against the answers of their rows.

    A metric may own a process: close the metric, or use it in a ``with`` statement.

    Attributes:
        name: name for `make_metric`.
        kind: a ``score`` is a number from 0 to 1 for each row, where 0 and 1 are verdicts; a ``count`` any number or NaN.
        higher_is_better: whether a larger value is better, for studies.
        is_custom: whether the metric is a user's function.
        columns: columns to search for the reference, in this order; ``messages`` means the last answer of the chat.
    """

    reference_column: str | None = option(
        None, "Column with the reference, instead of the metric's own columns.", OPTIONS
    )
    # The process of a metric that computes in one, see `metrics.worker`.
    _worker: Any = field(default=None, init=False, repr=False)

    name: ClassVar[str] = ""
    kind: ClassVar[Literal["score", "count"]] = "score"
    higher_is_better: ClassVar[bool] = True
    is_custom: ClassVar[bool] = False
    columns: ClassVar[tuple[str, ...]] = (
        "messages",
        "completion",
        "code",
        "answer",
        "ground_truth",
    )

    def __post_init__(self) -> None:
        check_fields(self)

    @abstractmethod
    def score(self, generated: str, row: Row) -> Judgement:
        """Score one text.

        Args:
            generated: the response, without the prompt and special tokens. An implementation must accept any text.
            row: the row of the question.

        Raises:
            DataError: the row has no reference.
        """

    def score_response(self, generated: str, row: Row, stopped: bool) -> Judgement:
        """Score a response; `stopped` is whether the model ended it by itself. Most metrics only use the text."""
        return self.score(generated, row)

    def close(self) -> None:
        """End the metric's process, if it started one."""
        if self._worker is not None:
            self._worker.close()

    def pair(self, generated: str, row: Row) -> tuple[str, str]:
        """The reference and the generated text, with thinking and surrounding white space removed. Raises as `reference`
        does."""
        return self.reference(row).strip(), answer_of(generated).strip()

    def __enter__(self) -> Metric:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def reference(self, row: Row) -> str:
        """The text of the first reference column that has text, with thinking removed; numbers are converted to text.

        Raises:
            DataError: no column has a text.
        """
        columns = (self.reference_column,) if self.reference_column else self.columns
        for column in columns:
            value: Any = column_value(row, column)
            # The answer follows the last question, so earlier messages of the assistant are context.
            if column == "messages" and value:
                texts = [turn["content"] for turn in value if turn["role"] == "assistant"]
                value = texts[-1] if texts else None
            text = answer_of(text_of(value))
            if text.strip():
                return text
        known = listed_columns(row)
        raise DataError(
            f"no reference answer in the columns {', '.join(columns)} (columns found: {known})"
        )


@dataclass(kw_only=True)
class CustomMetric(Metric):
    """Calls ``f(generated: str, reference: str, row: dict) -> bool | float``.

    Attributes:
        target: ``module:function`` or ``path/to/file.py:function``, see `load_named`.
    """

    target: str

    is_custom = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.name = self.target  # type: ignore[misc]
        # The file is executed again for every metric, because a user of a notebook may have changed it.
        function = load_named(self.target, OPTIONS, [*METRICS, *MODEL_METRICS], again=True)
        if not callable(function):
            raise ConfigError(f"{OPTIONS} {self.target} is not a function")
        self._function: Callable[[str, str, dict[str, Any]], Any] = function

    def score(self, generated: str, row: Row) -> Judgement:
        """The value of the function; True counts as 1 and False as 0.

        Raises:
            DataError: the function failed, or did not return a number from 0 to 1.
        """
        try:
            gold = self.reference(row).strip()
        except DataError:
            # Unless the user named a column, the function may read the reference from the row itself.
            if self.reference_column is not None:
                raise
            gold = ""
        try:
            returned = self._function(generated, gold, dict(row))
            value = float(returned)
        except Exception as error:
            raise DataError(f"metric {self.target}: {type(error).__name__}: {error}") from error
        # float("1") works, but a function that returns text is wrong. NaN fails the comparison.
        if isinstance(returned, str) or not 0 <= value <= 1:
            raise DataError(
                f"metric {self.target} must return a bool or a number from 0 to 1; it returned {returned!r}"
            )
        return Judgement(value, gold, generated.strip())


def make_metric(name: str, **options: Any) -> Metric:
    """Make a metric by its name.

    Args:
        name: a key of `METRICS`, or ``module:function`` for a user's function
            ``f(generated: str, reference: str, row: dict) -> bool | float``.
        options: the attributes of the metric's class, such as ``reference_column``.

    Raises:
        ConfigError: unknown metric or option, a value that cannot be used, or a package that is not installed.
    """
    if name in MODEL_METRICS:
        raise ConfigError(
            f"the metric {name} needs the model, not generated text; use `evaluate_model`"
        )
    return make_metrics([name], options)[0]


def metric_class(name: str) -> type[Metric]:
    """The class of a metric in `METRICS`."""
    return resolve_name(f"stepjepa.evaluation.metrics.{METRICS[name]}")


def make_metrics(names: Sequence[str], options: Mapping[str, Any] | None = None) -> list[Metric]:
    """Make the metrics that score generated texts; names in `MODEL_METRICS` are skipped. Raises as `make_metric` does.

    Args:
        options: options of the metrics; each metric reads the options that it defines.
    """
    options, known, metrics = options or {}, set[str](), list[Metric]()
    for name in dict.fromkeys(names):
        if name in MODEL_METRICS:
            continue
        gone = replacement("metric", name)
        if gone:
            raise ConfigError(f"metric {name}: {gone}")
        kind = metric_class(name) if name in METRICS else CustomMetric
        accepted = set(options_of(kind)) - {"target"}
        arguments = {key: value for key, value in options.items() if key in accepted}
        metrics.append(
            CustomMetric(target=name, **arguments) if kind is CustomMetric else kind(**arguments)
        )
        known |= accepted
    # Several metrics share one set of options, so an option is a mistake only if no metric has it.
    for key in options:
        if key not in known:
            hint = (
                f"{did_you_mean(key, known)} (known: {', '.join(sorted(known))})" if known else ""
            )
            raise ConfigError(f"no option {key!r} of {', '.join(names)}{hint}")
    return metrics
