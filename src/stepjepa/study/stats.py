"""Statistics of runs: intervals, paired tests, Holm's correction (docs/statistics.md).

Functions of plain numbers over SciPy and statsmodels (extra ``study``). In the results ``None`` is what cannot be computed,
such as the spread of one value; nothing is NaN and nothing warns. Every test is two-sided.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepjepa.errors import ConfigError, DataError
from stepjepa.utils.failures import library

# Digits of the larger value to which differences are taken: 0.60 - 0.55 and 0.55 - 0.50 are one difference.
_DIGITS = 12


@dataclass(frozen=True)
class Interval:
    """A mean of `n` values, the interval around it at its `confidence`, and their standard deviation (n - 1)."""

    n: int
    estimate: float | None
    low: float | None
    high: float | None
    confidence: float
    sd: float | None


@dataclass(frozen=True)
class PairedDifference:
    """Values less their baselines, seed by seed.

    Attributes:
        n: pairs.
        mean, sd, low, high: of the differences, with a t interval at its `confidence`; all but the mean need two pairs.
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
    confidence: float
    t_p: float | None = None
    wilcoxon_p: float | None = None
    effect_size: float | None = None


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Student's t interval of the mean, ``mean +- t * sd / sqrt(n)`` with n - 1 degrees of freedom; a point of equal values.

    Args:
        values: (n,) finite numbers. One has no interval.

    Raises:
        DataError: a value is not a finite number.
        ConfigError: `confidence` is not between 0 and 1.
    """
    array, n = _numbers(values, "values"), len(values)
    check_share("confidence", confidence)
    if n < 2:
        return Interval(n, float(array[0]) if n else None, None, None, confidence, None)
    equal = np.ptp(array) == 0  # their mean may be rounded
    mean, sd = (float(array[0]), 0.0) if equal else (float(array.mean()), float(array.std(ddof=1)))
    half = float(library("scipy.stats", "study").t.ppf((1 + confidence) / 2, n - 1)) * sd / math.sqrt(n)
    return Interval(n, mean, mean - half, mean + half, confidence, sd)


def paired_difference(values: Sequence[float], baseline: Sequence[float], confidence: float = 0.95) -> PairedDifference:
    """What an arm differs by from its baseline under the same seeds.

    Args:
        values, baseline: (n,) finite numbers, the same seeds in the same order.

    Raises:
        DataError: the lengths differ, or a value is not a finite number.
        ConfigError: `confidence` is not between 0 and 1.
    """
    a, b = _numbers(values, "values"), _numbers(baseline, "baseline")
    if len(a) != len(b):
        raise DataError(f"{len(a)} values against {len(b)} of the baseline: pairs need as many of both")
    scale = max(np.abs(a).max(initial=0.0), np.abs(b).max(initial=0.0))
    difference = np.round(a - b, min(_DIGITS - math.ceil(math.log10(scale)), 300)) if scale else a - b
    found = mean_interval(difference.tolist(), confidence)
    mean, sd = found.estimate, found.sd
    t_p = wilcoxon_p = effect_size = None
    if mean is not None and sd is not None:
        stats = library("scipy.stats", "study")
        nonzero = difference[difference != 0]  # so that SciPy takes the exact distribution of the rest
        wilcoxon_p = float(stats.wilcoxon(nonzero).pvalue) if len(nonzero) else 1.0
        if sd:
            t_p, effect_size = float(stats.ttest_1samp(difference, 0.0).pvalue), mean / sd
        elif mean == 0:
            t_p, effect_size = 1.0, 0.0
    return PairedDifference(found.n, mean, sd, found.low, found.high, confidence, t_p, wilcoxon_p, effect_size)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down correction (Holm 1979): the family-wise error stays at alpha, whatever the tests' dependence.

    Args:
        p_values: one per test. None is a test that was not made; it stays None and does not count.
    """
    known = [p for p in p_values if p is not None]
    if not known:
        return list(p_values)
    adjusted = iter(library("statsmodels.stats.multitest", "study").multipletests(known, method="holm")[1])
    return [None if p is None else float(next(adjusted)) for p in p_values]


def check_share(name: str, value: float) -> None:
    """Check that a value is between 0 and 1, both excluded.

    Raises:
        ConfigError: it is not; the message calls it `name`.
    """
    if not 0 < value < 1:
        raise ConfigError(f"{name} is {value}; it must be between 0 and 1")


def _numbers(values: Sequence[float], name: str) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1:
        raise DataError(f"{name} must be a list of numbers, not an array of shape {array.shape}")
    bad = np.flatnonzero(~np.isfinite(array))
    if len(bad):
        raise DataError(f"{name}[{bad[0]}] is {array[bad[0]]}; leave such runs out, and say that you did")
    return array
