"""The statistics of evaluations and studies (docs/statistics.md): intervals, paired tests, and conclusions.

All functions take plain numbers. ``None`` stands for a value that cannot be computed, such as the spread of one value;
no function returns NaN or warns. Tests are two-sided, and intervals are 95 % intervals.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev
from typing import Literal, NamedTuple

import numpy as np

from stepjepa.errors import library

CONFIDENCE = 0.95
# McNemar's exact test can give p < 0.05 only if at least this many questions are answered right by just one model.
LEAST_RIGHT = 6
# Reasons why a claim is not established.
NO_CONTROL, NO_COMPUTE = "no shuffled control was run", "not compared at equal compute"
# Differences are rounded to this many decimals, so that 0.60 - 0.55 and 0.55 - 0.50 are equal.
_DECIMALS = 12


class Interval(NamedTuple):
    """An estimate and the ends of its interval; None if it cannot be computed."""

    value: float | None = None
    low: float | None = None
    high: float | None = None

    def percent(self, sign: str = "", unit: str = "%") -> str:
        """``61.0 % (57.9 to 64.0)``; for a difference, with "+" and "points", ``+2.5 points (-4.8 to +9.7)``."""
        if self.value is None:
            return "none"
        middle = f"{100 * self.value:{sign}.1f} {unit}"
        if self.low is None or self.high is None:
            return middle
        return f"{middle} ({100 * self.low:{sign}.1f} to {100 * self.high:{sign}.1f})"


def share(successes: int, n: int) -> Interval:
    """A share with its Wilson score interval (Wilson 1927), which never leaves [0, 1]; None for n = 0."""
    return Interval(*_wilson(successes, n)) if n else Interval()


def _wilson(successes: int, n: int) -> tuple[float, float, float]:
    # Imported in the functions, because SciPy is slow to import.
    from scipy import stats

    low, high = stats.binomtest(successes, n).proportion_ci(CONFIDENCE, method="wilson")
    return successes / n, float(low), float(high)


def mean(values: Sequence[float]) -> Interval:
    """A mean with Student's t interval, ``mean +- t * sd / sqrt(n)`` with n - 1 degrees of freedom.

    There is no interval for fewer than two values, or if the mean is not finite. For equal values its width is 0.
    """
    if not values:
        return Interval()
    # The mean of equal values may differ from them by rounding.
    equal = min(values) == max(values)
    middle = float(values[0]) if equal else fmean(values)
    if len(values) < 2 or not math.isfinite(middle):
        return Interval(middle)
    from scipy import stats

    quantile = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1))
    half = quantile * stdev(values) / math.sqrt(len(values))
    return Interval(middle, middle - half, middle + half)


def normal(value: float, error: float | None) -> Interval:
    """An estimate with the normal interval of its standard error; no interval without an error."""
    if error is None:
        return Interval(value)
    half = NormalDist().inv_cdf((1 + CONFIDENCE) / 2) * error
    return Interval(value, value - half, value + half)


class PairedCounts(NamedTuple):
    """Number of questions that both models, only a, only b, or neither answered right."""

    both: int
    only_a: int
    only_b: int
    neither: int


def paired_counts(a: Sequence[bool], b: Sequence[bool]) -> PairedCounts:
    """Count the questions by who answered them right.

    Raises:
        ValueError: a and b differ in length.
    """
    counts = Counter(zip(a, b, strict=True))
    return PairedCounts(
        counts[True, True], counts[True, False], counts[False, True], counts[False, False]
    )


def accuracy_difference(both: int, only_a: int, only_b: int, neither: int) -> Interval:
    """Accuracy of b minus that of the baseline a on the same questions, with the interval of Newcombe's method 10.

    The method combines the two Wilson intervals by the correlation of the answers (Statistics in Medicine 17, 2635-2650,
    1998).

    Args:
        both, only_a, only_b, neither: number of questions that both models, one of them, or neither answered right.
    """
    n = both + only_a + only_b + neither
    if n == 0:
        return Interval()
    right_a, right_b = both + only_a, both + only_b
    value_a, low_a, high_a = _wilson(right_a, n)
    value_b, low_b, high_b = _wilson(right_b, n)

    # phi is the correlation of the answers; 0 if a model answered all questions right or all wrong.
    margins = right_a * (n - right_a) * right_b * (n - right_b)
    agreement: float = both * neither - only_a * only_b
    # The correction for continuity, only for positive correlations, as Newcombe defines it.
    if agreement > 0:
        agreement = max(agreement - n / 2, 0.0)
    phi = agreement / math.sqrt(margins) if margins else 0.0

    def combined(b_arm: float, a_arm: float) -> float:
        # Rounding may make the sum slightly negative.
        return math.sqrt(max(b_arm**2 - 2 * phi * b_arm * a_arm + a_arm**2, 0.0))

    # The low end pairs b's lower arm with a's upper one, the high end the reverse.
    difference = (only_b - only_a) / n
    low = difference - combined(value_b - low_b, high_a - value_a)
    high = difference + combined(high_b - value_b, value_a - low_a)
    return Interval(difference, max(-1.0, low), min(1.0, high))


def mcnemar_p(only_a: int, only_b: int) -> float:
    """Two-sided p-value of McNemar's exact test of the hypothesis that, if only one model answered a question right, a and b
    are equally likely to be that model; 1 if there are no such questions."""
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
    """Mean, interval and standard deviation of (n,) finite values, one for each seed."""
    sd = stdev(values) if len(values) > 1 else None
    return Summary(len(values), *mean(values), sd)


@dataclass(frozen=True)
class PairedDifference:
    """Values minus their baselines, seed by seed.

    Attributes:
        mean, sd, low, high: of the differences, with a t interval; all but the mean need two pairs.
        t_p: p-value of the paired t test. 1 if all differences are zero; None below two pairs, or if all differences are the
            same nonzero number, because there is no spread to compare the mean with.
        wilcoxon_p: p-value of the signed-rank test without zeros, exact up to 50 pairs without ties and 13 with ties. 1 if
            all differences are zero; None below two pairs. With fewer than six pairs it cannot be below 0.05.
        effect_size: Cohen's d_z, mean / sd; 0 if all differences are zero; otherwise None where `t_p` is None.
    """

    n: int
    mean: float | None
    sd: float | None
    low: float | None
    high: float | None
    t_p: float | None
    wilcoxon_p: float | None
    effect_size: float | None


def paired_difference(values: Sequence[float], baseline: Sequence[float]) -> PairedDifference:
    """Compare an arm with its baseline under the same seeds.

    Args:
        values, baseline: (n,) finite numbers, the same seeds in the same order.
    """
    from scipy import stats

    exact = [value - base for value, base in zip(values, baseline, strict=True)]
    # Without rounding, equal differences would count as a tiny spread (a huge t), and ties of the ranks would be missed.
    differences = np.round(exact, _DECIMALS)
    middle = summary(differences.tolist())
    t_p = wilcoxon_p = effect_size = None
    if middle.estimate is not None and middle.sd is not None:
        # SciPy uses the exact distribution only without zeros.
        nonzero = differences[differences != 0]
        wilcoxon_p = float(stats.wilcoxon(nonzero).pvalue) if len(nonzero) else 1.0
        if middle.sd > 0:
            t_p = float(stats.ttest_1samp(differences, 0.0).pvalue)
            effect_size = middle.estimate / middle.sd
        elif middle.estimate == 0:
            t_p, effect_size = 1.0, 0.0
    return PairedDifference(
        middle.n, middle.estimate, middle.sd, middle.low, middle.high, t_p, wilcoxon_p, effect_size
    )


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down correction (Holm 1979): the family-wise error rate is at most alpha under any dependence of the
    tests.

    Args:
        p_values: one per test; a test that was not possible is None, stays None and does not count.
    """
    known = [p for p in p_values if p is not None]
    if not known:
        return list(p_values)
    multitest = library("statsmodels.stats.multitest", "study")
    corrected = iter(multitest.multipletests(known, method="holm")[1])
    return [None if p is None else float(next(corrected)) for p in p_values]


@dataclass(frozen=True)
class ArmVerdict:
    """The conclusion about how an arm was trained, and the reasons that limit it, by the rules of docs/statistics.md.

    "better" requires paired seeds, equal compute, and for methods with targets a control with shuffled targets.
    """

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
    counts: PairedCounts | None = None,
    lower_is_better: bool = False,
) -> str:
    """The conclusion about two models from their answers to the same questions, in words.

    It never says that a training method is better, because each model is one seed.

    Args:
        difference: b minus a.
        a, b: names of the models.
        controlled, equal_compute: whether a control with shuffled targets was run, and b was trained at a's compute.
        counts: for an accuracy.
        lower_is_better: whether the metric is a loss.
    """
    low, high = difference.low, difference.high
    shown = f"no difference between {a} and {b} is shown"
    # With so few right answers no test can show a difference, which does not mean that there is none.
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
