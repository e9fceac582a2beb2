"""The statistics of evaluations and studies (docs/statistics.md): intervals, paired tests, and what may be concluded.

All functions take plain numbers. ``None`` stands for what cannot be computed, such as the spread of one value; nothing is
NaN and nothing warns. Every test is two-sided, every interval a 95 % interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev
from typing import Literal, NamedTuple

import numpy as np

from stepjepa.errors import library

CONFIDENCE = 0.95
# So many questions must one model alone answer right before McNemar's exact test can give p < 0.05.
LEAST_RIGHT = 6
# What a claim may lack.
NO_CONTROL, NO_COMPUTE = "no shuffled control was run", "not compared at equal compute"
# Digits of the larger value to which differences are taken: 0.60 - 0.55 and 0.55 - 0.50 are one difference.
_DIGITS = 12


class Interval(NamedTuple):
    """An estimate and the ends of its interval; None where there is none."""

    value: float | None
    low: float | None
    high: float | None

    def percent(self, sign: str = "", unit: str = "%") -> str:
        """``61.0 % (57.9 to 64.0)``; of a difference with "+" and "points", ``+2.5 points (-4.8 to +9.7)``."""
        if self.value is None:
            return "none"
        middle = f"{100 * self.value:{sign}.1f} {unit}"
        if self.low is None or self.high is None:
            return middle
        return f"{middle} ({100 * self.low:{sign}.1f} to {100 * self.high:{sign}.1f})"


def share(successes: int, n: int) -> Interval:
    """A share with its Wilson score interval (Wilson 1927), which never leaves [0, 1]; nothing of n = 0."""
    return Interval(*_wilson(successes, n)) if n else Interval(None, None, None)


def _wilson(successes: int, n: int) -> tuple[float, float, float]:
    from scipy import stats

    low, high = stats.binomtest(successes, n).proportion_ci(CONFIDENCE, method="wilson")
    return successes / n, float(low), float(high)


def mean(values: Sequence[float]) -> Interval:
    """A mean with Student's t interval, ``mean +- t * sd / sqrt(n)`` with n - 1 degrees of freedom.

    Fewer than two values, or values that are not all finite, have no interval. Equal values have a point.
    """
    if not values:
        return Interval(None, None, None)
    equal = min(values) == max(values)  # their mean may be rounded
    middle = float(values[0]) if equal else fmean(values)
    if len(values) < 2 or not math.isfinite(middle):
        return Interval(middle, None, None)
    from scipy import stats

    quantile = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1))
    half = quantile * stdev(values) / math.sqrt(len(values))
    return Interval(middle, middle - half, middle + half)


def normal(value: float, error: float | None) -> Interval:
    """An estimate with the normal interval of its standard error; none without one."""
    if error is None:
        return Interval(value, None, None)
    half = NormalDist().inv_cdf((1 + CONFIDENCE) / 2) * error
    return Interval(value, value - half, value + half)


def paired_counts(a: Sequence[bool], b: Sequence[bool]) -> tuple[int, int, int, int]:
    """How many questions both models, only a, only b, or neither answered right.

    Raises:
        ValueError: the two are not of one length.
    """
    pairs = list(zip(a, b, strict=True))
    both, only_a, only_b = (pairs.count(kind) for kind in ((True, True), (True, False), (False, True)))
    return both, only_a, only_b, len(pairs) - both - only_a - only_b


def accuracy_difference(both: int, only_a: int, only_b: int, neither: int) -> Interval:
    """Accuracy of b less that of a, the baseline, on the same questions, with the interval of Newcombe's method 10
    (Statistics in Medicine 17, 2635-2650, 1998): the two Wilson intervals, put together with the correlation of the answers.

    Args:
        both, only_a, only_b, neither: questions that both models, one of them, or none answered right.
    """
    n = both + only_a + only_b + neither
    if n == 0:
        return Interval(None, None, None)
    right_a, right_b = both + only_a, both + only_b
    value_a, low_a, high_a = _wilson(right_a, n)
    value_b, low_b, high_b = _wilson(right_b, n)

    # phi, the correlation of the answers
    margins = right_a * (n - right_a) * right_b * (n - right_b)
    agreement: float = both * neither - only_a * only_b
    if agreement > 0:
        agreement = max(agreement - n / 2, 0.0)  # the correction for continuity
    phi = agreement / math.sqrt(margins) if margins else 0.0

    def joined(one: float, other: float) -> float:
        return math.sqrt(max(one**2 - 2 * phi * one * other + other**2, 0.0))

    difference = (only_b - only_a) / n
    low = difference - joined(value_b - low_b, high_a - value_a)
    high = difference + joined(high_b - value_b, value_a - low_a)
    return Interval(difference, max(-1.0, low), min(1.0, high))


def mcnemar_p(only_a: int, only_b: int) -> float:
    """P-value, two-sided, of McNemar's exact test: whether the questions that one model alone answered right are as often
    a's as b's. 1 where there are none."""
    from scipy import stats

    return float(stats.binomtest(only_a, only_a + only_b).pvalue) if only_a + only_b else 1.0


@dataclass(frozen=True)
class Summary:
    """The mean (`estimate`) of `n` values, the ends of its interval, and the standard deviation (n - 1)."""

    n: int
    estimate: float | None
    low: float | None
    high: float | None
    sd: float | None


def summary(values: Sequence[float]) -> Summary:
    """Mean, interval and spread of (n,) finite values, one for each seed."""
    interval = mean(values)
    sd = stdev(values) if len(values) > 1 else None
    return Summary(len(values), interval.value, interval.low, interval.high, sd)


@dataclass(frozen=True)
class PairedDifference:
    """Values less their baselines, seed by seed.

    Attributes:
        mean, sd, low, high: of the differences, with a t interval; all but the mean need two pairs.
        t_p: paired t test. 1 where all differences are zero; None below two pairs, and where all differences are the
            same other number: then there is no spread to measure the mean against.
        wilcoxon_p: signed-rank test, exact up to 50 pairs without ties and 13 with; zeros are left out. 1 where all
            differences are zero, None below two pairs. Below six pairs it cannot be under 0.05.
        effect_size: Cohen's d_z, mean / sd; 0 where all differences are zero, None where there is no spread.
    """

    n: int
    mean: float | None
    sd: float | None
    low: float | None
    high: float | None
    t_p: float | None = None
    wilcoxon_p: float | None = None
    effect_size: float | None = None


def paired_difference(values: Sequence[float], baseline: Sequence[float]) -> PairedDifference:
    """How an arm differs from its baseline under the same seeds.

    Args:
        values, baseline: (n,) finite numbers, the same seeds in the same order.
    """
    from scipy import stats

    pairs = np.array(list(zip(values, baseline, strict=True)), dtype=np.float64).reshape(-1, 2)
    differences = pairs[:, 0] - pairs[:, 1]
    scale = np.abs(pairs).max(initial=0.0)
    if scale > 0:
        decimals = _DIGITS - math.ceil(math.log10(scale))
        differences = np.round(differences, min(decimals, 300))
    middle = summary(differences.tolist())
    t_p = wilcoxon_p = effect_size = None
    if middle.estimate is not None and middle.sd is not None:
        nonzero = differences[differences != 0]  # so that SciPy uses the exact distribution of the rest
        wilcoxon_p = float(stats.wilcoxon(nonzero).pvalue) if len(nonzero) else 1.0
        if middle.sd > 0:
            t_p = float(stats.ttest_1samp(differences, 0.0).pvalue)
            effect_size = middle.estimate / middle.sd
        elif middle.estimate == 0:
            t_p, effect_size = 1.0, 0.0
    return PairedDifference(middle.n, middle.estimate, middle.sd, middle.low, middle.high, t_p, wilcoxon_p, effect_size)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down correction (Holm 1979): the family-wise error stays at alpha, whatever the tests' dependence.

    Args:
        p_values: one per test. None is a test that was not made; it stays None and does not count.
    """
    known = [p for p in p_values if p is not None]
    if not known:
        return list(p_values)
    multitest = library("statsmodels.stats.multitest", "study")
    corrected = iter(multitest.multipletests(known, method="holm")[1])
    return [None if p is None else float(next(corrected)) for p in p_values]


@dataclass(frozen=True)
class ArmVerdict:
    """What may be concluded of how an arm was trained, and why not more, by the rules of docs/statistics.md: "better" takes
    paired seeds, a control with shuffled targets where there are targets, and equal compute."""

    label: Literal["better", "worse", "no difference shown", "not established"]
    reasons: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.label}: {'; '.join(self.reasons)}" if self.reasons else self.label


def conclusion(
    difference: Interval,
    a: str,
    b: str,
    controlled: bool = False,
    equal_compute: bool = False,
    *,
    counts: tuple[int, int, int, int] | None = None,
    lower_is_better: bool = False,
) -> str:
    """What may be concluded of two models, b less a, from their answers to the same questions. Of how they were trained
    nothing is, whatever the difference: each is one seed.

    Args:
        controlled, equal_compute: whether there is a control with shuffled targets, and b was trained at a's compute.
        counts: of an accuracy, as `paired_counts` gives them.
    """
    low, high = difference.low, difference.high
    shown = f"no difference between {a} and {b} is shown"
    if counts is not None and sum(counts[:3]) < LEAST_RIGHT:
        right = f"{sum(counts[:3])} of {sum(counts)} by {a} or {b}"
        shown = f"there are too few right answers to compare: {right}"
    elif low is not None and high is not None and not low <= 0 <= high:
        ahead = (low > 0) != lower_is_better
        shown = f"{b} is {'ahead of' if ahead else 'behind'} {a}"
    reasons = ["one seed of each"]
    if not controlled:
        reasons.append(NO_CONTROL)
    if not equal_compute:
        reasons.append(NO_COMPUTE)
    verdict = ArmVerdict("not established", tuple(reasons))
    return f"On these questions {shown}. Whether the training of {b} helps is {verdict}."
