"""`regex_equivalence`: the generated regular expression matches the same texts as the reference.

`syntax` parses, `language` compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from stepjepa.config.option import option
from stepjepa.evaluation.metrics import OPTIONS, Metric, Verdict
from stepjepa.evaluation.metrics.regex_equivalence import syntax
from stepjepa.evaluation.metrics.regex_equivalence.language import TooMuchWork, difference
from stepjepa.evaluation.metrics.regex_equivalence.syntax import Dialect, WordBoundary

_CACHED = 50_000  # pairs


@dataclass(kw_only=True)
class RegexEquivalence(Metric):
    r"""Compares the languages of two regular expressions, each of which must match all of a line.

    The judge of the published functional accuracy (`dk.brics.automaton`) reads `\b` as the letter b; NL-RX's sentences mean
    the edge of a word.
    """

    dialect: Dialect = option("nl_rx", "nl_rx (with & and ~) or python; see `regex_equivalence.syntax`.", OPTIONS)
    word_boundary: WordBoundary = option("zero_width", r"What \b is: the edge of a word, or the letter b.", OPTIONS)
    budget: int = option(
        600_000, "Steps of about a microsecond until a comparison is given up as different.", OPTIONS, at_least=1
    )

    name: ClassVar[str] = "regex_equivalence"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._compare = lru_cache(_CACHED)(self._compared)

    def score(self, generated: str, row: Mapping[str, Any]) -> Verdict:
        """1 where the languages are the same."""
        gold, answer = self.pair(generated, row)
        if not answer:
            return Verdict(0.0, gold, None, "no answer found")
        note = "" if gold == answer else self._compare(gold, answer)
        return Verdict(float(not note), gold, answer, note)

    def _compared(self, gold: str, answer: str) -> str:
        """Why two patterns differ; empty where they do not."""
        whose = "the reference"
        try:
            first = syntax.parse(gold, self.dialect, self.word_boundary)
            whose = "the answer"
            second = syntax.parse(answer, self.dialect, self.word_boundary)
            found = difference(first, second, self.budget)
        except syntax.NotSupportedError as error:
            return f"unknown: {whose} cannot be compared: {error}"
        except syntax.PatternError as error:
            return f"{whose} is no regular expression: {error}"
        except (TooMuchWork, RecursionError):
            return f"unknown: not decided in {self.budget} steps"
        if found is None:
            return ""
        text, in_first = found
        return f"only {'the reference' if in_first else 'the answer'} matches {text!r}"
