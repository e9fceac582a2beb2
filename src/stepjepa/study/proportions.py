"""Statistics of answers that are right or wrong: shares, and two models on the same questions (docs/statistics.md)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepjepa.data.extras import library
from stepjepa.errors import DataError
from stepjepa.study.stats import Interval, check_share


@dataclass(frozen=True)
class McNemar:
    """Two models on the same questions.

    Attributes:
        n: questions.
        both, only_a, only_b, neither: of the two models' answers are right.
        difference: accuracy of a less that of b; None for no question.
        low, high: its interval (Newcombe's method 10).
        confidence: of the interval.
        p: exact McNemar test; 1 where the models differ on no question.
    """

    n: int
    both: int
    only_a: int
    only_b: int
    neither: int
    difference: float | None
    low: float | None
    high: float | None
    confidence: float
    p: float


def proportion_interval(successes: int, n: int, confidence: float = 0.95) -> Interval:
    """A share and its Wilson score interval (Wilson 1927), which is never empty and never leaves [0, 1].

    Raises:
        DataError: not ``0 <= successes <= n``.
        ConfigError: `confidence` is not between 0 and 1.
    """
    check_share("confidence", confidence)
    if not 0 <= successes <= n:
        raise DataError(f"{successes} successes of {n} is no proportion")
    if n == 0:
        return Interval(0, None, None, None, confidence, "Wilson")
    low, high = _wilson(successes, n, confidence)
    return Interval(n, successes / n, low, high, confidence, "Wilson")


def mcnemar(correct_a: Sequence[bool], correct_b: Sequence[bool], confidence: float = 0.95) -> McNemar:
    """Whether two models differ on the same questions.

    The test is McNemar's in its exact binomial form, whatever the count. The interval of the difference is Newcombe's
    method 10 (Statistics in Medicine 17, 2635-2650, 1998): the two Wilson intervals, put together with the answers'
    correlation. It says nothing about other seeds: see docs/statistics.md.

    Args:
        correct_a, correct_b: (n,) whether each question was answered right.

    Raises:
        DataError: the lengths differ, or a value is neither true nor false.
        ConfigError: `confidence` is not between 0 and 1.
    """
    check_share("confidence", confidence)
    a, b = _truths(correct_a, "correct_a"), _truths(correct_b, "correct_b")
    if len(a) != len(b):
        raise DataError(f"{len(a)} answers against {len(b)}: both models must answer the same questions")
    n, both, only_a, only_b = len(a), int((a & b).sum()), int((a & ~b).sum()), int((~a & b).sum())
    neither = n - both - only_a - only_b
    if n == 0:
        return McNemar(0, 0, 0, 0, 0, None, None, None, confidence, 1.0)
    tables = library("statsmodels.stats.contingency_tables", "study")
    p = float(tables.mcnemar([[both, only_a], [only_b, neither]], exact=True).pvalue)
    low, high = _newcombe(both, only_a, only_b, neither, confidence)
    return McNemar(n, both, only_a, only_b, neither, (only_a - only_b) / n, low, high, confidence, p)


def _wilson(successes: int, n: int, confidence: float) -> tuple[float, float]:
    proportion = library("statsmodels.stats.proportion", "study")
    low, high = proportion.proportion_confint(successes, n, alpha=1 - confidence, method="wilson")
    return max(0.0, float(low)), min(1.0, float(high))


def _newcombe(both: int, only_a: int, only_b: int, neither: int, confidence: float) -> tuple[float, float]:
    """Method 10 of Newcombe (1998): square and add, with the correlation's continuity correction."""
    n = both + only_a + only_b + neither
    right_a, right_b = both + only_a, both + only_b
    low_a, high_a = (abs(end - right_a / n) for end in _wilson(right_a, n, confidence))
    low_b, high_b = (abs(end - right_b / n) for end in _wilson(right_b, n, confidence))
    margins = right_a * (n - right_a) * right_b * (n - right_b)
    agreement: float = both * neither - only_a * only_b
    if agreement > 0:
        agreement = max(agreement - n / 2, 0.0)
    phi = agreement / math.sqrt(margins) if margins else 0.0
    difference = (only_a - only_b) / n
    below = math.sqrt(max(low_a**2 - 2 * phi * low_a * high_b + high_b**2, 0.0))
    above = math.sqrt(max(high_a**2 - 2 * phi * high_a * low_b + low_b**2, 0.0))
    return max(-1.0, difference - below), min(1.0, difference + above)


def _truths(values: Sequence[bool], name: str) -> np.ndarray:
    array = np.asarray(values)
    if array.ndim != 1 or not np.isin(array, (0, 1)).all():
        raise DataError(f"{name} must be a list of true and false")
    return array.astype(bool)
