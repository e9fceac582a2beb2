"""The metric `regex_equivalence`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal, NamedTuple

from stepjepa.config.option import option
from stepjepa.evaluation.metrics import OPTIONS, Judgement, Metric
from stepjepa.evaluation.metrics import regex_syntax as syntax
from stepjepa.evaluation.metrics.regex_language import TooMuchWork, difference
from stepjepa.evaluation.metrics.regex_syntax import Dialect, WordBoundary

_CACHED = 50_000  # pairs


class _Difference(NamedTuple):
    """Why two patterns differ; see `Judgement`."""

    note: str
    undecided: Literal["unknown", "invalid"] | None = None


_SAME = _Difference("")


@dataclass(kw_only=True)
class RegexEquivalence(Metric):
    r"""Compares the languages of two regular expressions, each of which must match all of a line.

    The judge of the published functional accuracy (`dk.brics.automaton`) reads `\b` as the letter b; NL-RX's sentences mean
    the edge of a word.
    """

    dialect: Dialect = option("nl_rx", "nl_rx (with & and ~) or python; see `regex_syntax`.", OPTIONS)
    word_boundary: WordBoundary = option("zero_width", r"What \b is: the edge of a word, or the letter b.", OPTIONS)
    budget: int = option(
        600_000, "Steps of about a microsecond until a comparison is given up as different.", OPTIONS, at_least=1
    )

    name: ClassVar[str] = "regex_equivalence"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._compare = lru_cache(_CACHED)(self._compared)

    def score(self, generated: str, row: Mapping[str, Any]) -> Judgement:
        """1 where the languages are the same."""
        gold, answer = self.pair(generated, row)
        if not answer:
            return Judgement(0.0, gold, None, "no answer found")
        reason = _SAME if gold == answer else self._compare(gold, answer)
        return Judgement(float(reason is _SAME), gold, answer, *reason)

    def _compared(self, gold: str, answer: str) -> _Difference:
        whose = "the reference"
        try:
            first = syntax.parse(gold, self.dialect, self.word_boundary)
            whose = "the answer"
            second = syntax.parse(answer, self.dialect, self.word_boundary)
            example = difference(first, second, self.budget)
        except syntax.NotSupportedError as error:
            return _Difference(f"unknown: {whose} cannot be compared: {error}", "unknown")
        except syntax.PatternError as error:
            kind: Any = "invalid" if whose == "the answer" else None
            return _Difference(f"{whose} is no regular expression: {error}", kind)
        except (TooMuchWork, RecursionError):
            return _Difference(f"unknown: not decided in {self.budget} steps", "unknown")
        if example is None:
            return _SAME
        text, in_first = example
        return _Difference(f"only {'the reference' if in_first else 'the answer'} matches {text!r}")
