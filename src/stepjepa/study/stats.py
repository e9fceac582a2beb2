"""Statistics of runs: intervals, paired tests, corrections, sample sizes (docs/statistics.md).

Pure functions of plain numbers over SciPy and statsmodels (extra ``study``); those of answers that are right or wrong lie
in `stepjepa.evaluation.intervals`. In the results ``None`` stands for what cannot be computed, such as the spread of one
value; nothing is NaN and nothing warns. Every test is two-sided.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepjepa.data.extras import library
from stepjepa.errors import ConfigError, DataError

# Digits of the larger value to which differences are taken: 0.60 - 0.55 and 0.55 - 0.50 are one difference.
DIGITS = 12
MOST_SEEDS = 10_000_000
# A bootstrap holds this many resampled numbers at a time.
_BATCH = 10_000_000


@dataclass(frozen=True)
class Interval:
    """An estimate and the interval around it.

    Attributes:
        n: values it comes from.
        estimate: None for no value.
        low, high: ends of the interval, None where there is none.
        confidence: of the interval.
        method: how the interval was computed.
        sd: standard deviation of the values (n - 1), for means of two values or more.
    """

    n: int
    estimate: float | None
    low: float | None
    high: float | None
    confidence: float
    method: str
    sd: float | None = None


@dataclass(frozen=True)
class PairedDifference:
    """Values less their baselines, seed by seed.

    Attributes:
        n: pairs.
        mean, sd: of the differences; `sd` needs two pairs.
        low, high: t interval of the mean difference; None below two pairs.
        confidence: of the interval.
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
    t_p: float | None
    wilcoxon_p: float | None
    effect_size: float | None


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Mean, standard deviation and Student's t interval: ``mean +- t * sd / sqrt(n)`` with n - 1 degrees of freedom.

    Of equal values the interval is a point: what the formula gives, and no proof that another would be the same.

    Args:
        values: (n,) finite numbers. One has no interval.

    Raises:
        DataError: a value is not a finite number.
        ConfigError: `confidence` is not between 0 and 1.
    """
    array = _numbers(values, "values")
    check_share("confidence", confidence)
    n = len(array)
    mean, sd = _moments(array)
    low = high = None
    if mean is not None and sd is not None:
        half = float(library("scipy.stats", "study").t.ppf((1 + confidence) / 2, n - 1)) * sd / math.sqrt(n)
        low, high = mean - half, mean + half
    return Interval(n, mean, low, high, confidence, "t", sd)


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
    difference = _rounded_difference(a, b)
    interval = mean_interval(difference.tolist(), confidence)
    n, mean, sd = interval.n, interval.estimate, interval.sd
    t_p = wilcoxon_p = effect_size = None
    if n >= 2 and not difference.any():
        t_p, wilcoxon_p, effect_size = 1.0, 1.0, 0.0
    elif n >= 2:
        stats = library("scipy.stats", "study")
        nonzero = difference[difference != 0]  # left out, so that SciPy takes the exact distribution of the rest
        wilcoxon_p = float(stats.wilcoxon(nonzero).pvalue)
        if mean is not None and sd:
            t_p, effect_size = float(stats.ttest_1samp(difference, 0.0).pvalue), mean / sd
    return PairedDifference(n, mean, sd, interval.low, interval.high, confidence, t_p, wilcoxon_p, effect_size)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down correction (Holm 1979): the family-wise error stays at alpha, whatever the tests' dependence.

    Args:
        p_values: one per test. None and NaN are tests that were not made; they come back as None and do not count.
    """
    known = [i for i, p in enumerate(p_values) if p is not None and not math.isnan(p)]
    corrected: list[float | None] = [None] * len(p_values)
    if known:
        multitest = library("statsmodels.stats.multitest", "study")
        adjusted = multitest.multipletests([p_values[i] for i in known], method="holm")[1]
        for i, p in zip(known, adjusted, strict=True):
            corrected[i] = float(p)
    return corrected


def bootstrap_interval(
    samples: Sequence[float] | tuple[Sequence[float], ...],
    statistic: Callable[..., Any],
    confidence: float = 0.95,
    resamples: int = 9999,
    seed: int = 0,
    method: str = "BCa",
) -> Interval:
    """Bootstrap interval of any statistic (Efron 1987 for BCa), the same for the same seed.

    Args:
        samples: (n,) numbers, or a tuple of such, which are then resampled together (pairs stay pairs).
        statistic: of as many arrays; with a parameter ``axis`` it is called once for many resamples, which is faster.
        method: "BCa", "percentile" or "basic".

    Returns:
        The interval; its ends are None below two values, and where the resamples do not vary.

    Raises:
        DataError: a value is not a finite number, or the samples differ in length.
        ConfigError: `confidence`, `resamples` or `method` cannot be used.
    """
    check_share("confidence", confidence)
    if method not in ("BCa", "percentile", "basic"):
        raise ConfigError(f"method is {method!r}; known: BCa, percentile, basic")
    if resamples < 1:
        raise ConfigError(f"resamples is {resamples}; it must be at least 1")
    data = tuple(_numbers(sample, "samples") for sample in (samples if isinstance(samples, tuple) else (samples,)))
    n = len(data[0])
    if any(len(sample) != n for sample in data):
        raise DataError(f"samples of {', '.join(str(len(s)) for s in data)} values cannot be resampled together")
    name = f"bootstrap, {method}, {resamples} resamples"
    if n == 0:
        return Interval(0, None, None, None, confidence, name)
    estimate = float(statistic(*data))
    if n == 1:
        return Interval(1, estimate, None, None, confidence, name)
    stats = library("scipy.stats", "study")
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # resamples that do not vary: said by None
        result = stats.bootstrap(
            data,
            statistic,
            paired=len(data) > 1,
            confidence_level=confidence,
            n_resamples=resamples,
            batch=max(1, _BATCH // n),
            method=method,
            rng=np.random.default_rng(seed),
        )
    low, high = (float(end) for end in result.confidence_interval)
    if not (math.isfinite(low) and math.isfinite(high)):
        return Interval(n, estimate, None, None, confidence, name)
    return Interval(n, estimate, low, high, confidence, name)


def power_seeds(sd: float, effect: float, power: float = 0.8, alpha: float = 0.05) -> int:
    """Paired seeds that a two-sided t test needs to show a difference of `effect`.

    Args:
        sd: standard deviation of the paired differences, in the unit of `effect`.
        effect: true mean difference to be shown, of either sign.
        power: probability of showing it.
        alpha: of the test.

    Raises:
        ConfigError: an argument is out of its range, or the number is above ten million.
    """
    check_share("power", power)
    check_share("alpha", alpha)
    if not (math.isfinite(sd) and sd >= 0):
        raise ConfigError(f"sd is {sd}; it must be 0 or more")
    if not math.isfinite(effect) or effect == 0:
        raise ConfigError(f"effect is {effect}; no number of seeds shows a difference of nothing")
    if sd == 0:
        return 2
    test, size = library("statsmodels.stats.power", "study").TTestPower(), abs(effect) / sd
    high = 2
    while test.power(size, high, alpha) < power:
        high *= 2
        if high > MOST_SEEDS:
            raise ConfigError(f"an effect of {effect} under a spread of {sd} needs more than {MOST_SEEDS:,} seeds")
    low = max(2, high // 2)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if test.power(size, middle, alpha) >= power else (middle + 1, high)
    return high


def _moments(array: np.ndarray) -> tuple[float | None, float | None]:
    """Mean and standard deviation (n - 1); exactly 0 for equal values, whose mean may be rounded."""
    if len(array) == 0:
        return None, None
    if np.ptp(array) == 0:
        return float(array[0]), 0.0 if len(array) > 1 else None
    return float(array.mean()), float(array.std(ddof=1))


def _rounded_difference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    scale = max(np.abs(a).max(initial=0.0), np.abs(b).max(initial=0.0))
    if scale == 0:
        return np.zeros_like(a)
    return np.round(a - b, min(DIGITS - math.ceil(math.log10(scale)), 300))


def _numbers(values: Sequence[float], name: str) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1:
        raise DataError(f"{name} must be a list of numbers, not an array of shape {array.shape}")
    bad = np.flatnonzero(~np.isfinite(array))
    if len(bad):
        raise DataError(f"{name}[{bad[0]}] is {array[bad[0]]}; leave such runs out, and say that you did")
    return array


def check_share(name: str, value: float) -> None:
    """Check that a value lies between 0 and 1, both excluded.

    Raises:
        ConfigError: it does not; the message calls it `name`.
    """
    if not 0 < value < 1:
        raise ConfigError(f"{name} is {value}; it must be between 0 and 1")
