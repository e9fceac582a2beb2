"""`regex_equivalence`: the generated regular expression matches the same texts as the reference.

`syntax` parses, `language` compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, Literal

from stepjepa.evaluation.metrics.regex_equivalence.language import TooMuchWork, difference
from stepjepa.evaluation.metrics.regex_equivalence.syntax import Dialect, NotSupportedError, PatternError, parse
from stepjepa.evaluation.metrics.registry import Metric, Verdict, check_one_of, check_positive

_CACHED = 50_000  # pairs


@dataclass(kw_only=True)
class RegexEquivalence(Metric):
    r"""Compares the languages of two regular expressions, each of which must match a whole line.

    Attributes:
        dialect: nl_rx (with `&` and `~`) or python; see `stepjepa.evaluation.metrics.regex_equivalence.syntax`.
        word_boundary: zero_width reads `\b` as the edge of a word, as NL-RX's sentences mean it; letter reads it as the
            letter b, as the judge of the published functional accuracy (`dk.brics.automaton`) does.
        budget: steps of about a microsecond that a comparison may take; then it counts as different, with a note.
    """

    dialect: Dialect = "nl_rx"
    word_boundary: Literal["zero_width", "letter"] = "zero_width"
    budget: int = 600_000
    _compare: Any = field(init=False, repr=False, compare=False)

    name: ClassVar[str] = "regex_equivalence"

    def __post_init__(self) -> None:
        check_one_of("dialect", self.dialect, ("nl_rx", "python"))
        check_one_of("word_boundary", self.word_boundary, ("zero_width", "letter"))
        check_positive("budget", self.budget)
        self._compare = lru_cache(_CACHED)(self._compared)

    def score(self, generated: str, row: Mapping[str, Any]) -> Verdict:
        """1 where the languages are the same."""
        gold, answer = self.reference(row).strip(), generated.strip()
        if not answer:
            return Verdict(0.0, gold, None, "no answer found")
        note = "" if gold == answer else self._compare(gold, answer)
        return Verdict(float(not note), gold, answer, note)

    def _compared(self, gold: str, answer: str) -> str:
        """Why two patterns differ; empty where they do not."""
        whose = "the reference"
        try:
            first = parse(gold, self.dialect, self.word_boundary)
            whose = "the answer"
            second = parse(answer, self.dialect, self.word_boundary)
            found = difference(first, second, self.budget)
        except NotSupportedError as error:
            return f"unknown: {whose} cannot be compared: {error}"
        except PatternError as error:
            return f"{whose} is no regular expression: {error}"
        except (TooMuchWork, RecursionError):
            return f"unknown: not decided in {self.budget} steps"
        if found is None:
            return ""
        return f"only {'the reference' if found.in_first else 'the answer'} matches {found.text!r}"
