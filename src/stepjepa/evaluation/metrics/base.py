"""What all metrics share: the interface, and where a row says what the answer is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

from stepjepa.errors import ConfigError, DataError

# How a note begins where the metric could not decide, and where the answer is no expression or query at all.
UNDECIDED, INVALID = ("unknown:", "not decided"), ("the answer is no ", "the query fails")


class Verdict(NamedTuple):
    """What a metric finds in one generated text.

    Attributes:
        score: 0 to 1; of an accuracy 0 or 1.
        gold: the reference answer as it was read from the row, None where there is none.
        answer: the answer as it was read from the generated text, None where there is none.
        note: why the score is not 1, or what could not be decided; empty where there is nothing to add.
    """

    score: float
    gold: str | None
    answer: str | None
    note: str = ""


@dataclass(kw_only=True)
class Metric(ABC):
    """Scores generated texts against the answers of their rows.

    A metric may hold a process or a cache: close it, or use it in a ``with``.

    Attributes:
        reference_column: the column with the reference, instead of those where the metric looks by itself.
        name: as `make_metric` takes it.
        kind: an accuracy is 0 or 1 for each row, a score anything between.
        is_custom: whether it is a function of the user's.
        columns: where the reference is looked for, in this order; messages is the last answer of the chat.
    """

    reference_column: str | None = None

    name: ClassVar[str] = ""
    kind: ClassVar[Literal["accuracy", "score"]] = "accuracy"
    is_custom: ClassVar[bool] = False
    columns: ClassVar[tuple[str, ...]] = ("messages", "completion", "code", "answer", "ground_truth")

    @abstractmethod
    def score(self, generated: str, row: Mapping[str, Any]) -> Verdict:
        """Score one text.

        Args:
            generated: what the model wrote, without the prompt and special tokens. Any text at all: it cannot raise.
            row: the row of the data file that was asked.

        Raises:
            DataError: the row holds no reference.
        """

    def corpus_score(self, generated: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> float | None:
        """The score of all texts together, 0 to 1, where the metric defines one that is not the mean of the rows'."""
        return None

    def close(self) -> None:  # noqa: B027 (most metrics start nothing)
        """End what the metric has started."""

    def __enter__(self) -> Metric:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def reference(self, row: Mapping[str, Any]) -> str:
        """The text of the first of the reference's columns that holds one; numbers are written out.

        Raises:
            DataError: none does.
        """
        columns = (self.reference_column,) if self.reference_column else self.columns
        for column in columns:
            value = row.get(column)
            if column == "messages" and isinstance(value, (list, tuple)):
                turns = [turn for turn in value if isinstance(turn, Mapping) and turn.get("role") == "assistant"]
                value = turns[-1].get("content") if turns else None
            if isinstance(value, str) and value.strip():
                return value
            if isinstance(value, (int, float)) and not isinstance(value, bool) and value == value:
                return str(value)
        known = ", ".join(map(str, row)) or "none"
        raise DataError(f"no reference answer in the columns {', '.join(columns)} (columns found: {known})")


def check_positive(name: str, value: float) -> None:
    """Refuse a limit that is no positive number.

    Raises:
        ConfigError: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise ConfigError(f"{name} must be above 0, got {value!r}")


def check_one_of(name: str, value: object, known: Sequence[str]) -> None:
    """Refuse a value that is not a known one.

    Raises:
        ConfigError: it is not.
    """
    if value not in known:
        raise ConfigError(f"{name} must be one of {', '.join(known)}, got {value!r}")
