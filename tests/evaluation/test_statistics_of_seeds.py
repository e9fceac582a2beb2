"""Intervals, paired tests and Holm's correction, against SciPy, statsmodels and by hand; and the sizes in the docs."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from stepjepa.evaluation.statistics import holm, paired_difference, summary

stats = pytest.importorskip("scipy.stats")
pytest.importorskip("statsmodels")
pytestmark = pytest.mark.filterwarnings("error")  # nothing may warn, whatever the numbers


def test_summary_by_hand():
    """Mean 3, sd 1, t(0.975, 4) = 2.776445."""
    values = [3 - math.sqrt(2), 3.0, 3.0, 3.0, 3 + math.sqrt(2)]
    interval = summary(values)
    assert (interval.n, interval.estimate) == (5, 3.0)
    assert interval.sd == pytest.approx(1.0)
    assert interval.low == pytest.approx(3 - 2.776445 / math.sqrt(5), abs=1e-6)
    assert interval.high == pytest.approx(3 + 2.776445 / math.sqrt(5), abs=1e-6)
    equal = summary([0.1] * 3)  # their float mean is 0.10000000000000002
    assert (equal.estimate, equal.sd, equal.low, equal.high) == (0.1, 0.0, 0.1, 0.1)


def test_paired_difference_by_hand():
    """Differences 1, 2, 3, 6: mean 3, sd sqrt(14 / 3); all positive, so the signed-rank p is 2 / 2^4."""
    result = paired_difference([11, 22, 33, 46], [10, 20, 30, 40])
    sd = math.sqrt(14 / 3)
    assert (result.n, result.mean) == (4, 3.0)
    assert result.sd == pytest.approx(sd)
    assert result.effect_size == pytest.approx(3 / sd)
    assert result.wilcoxon_p == pytest.approx(2 / 16)
    assert result.low == pytest.approx(3 - 3.182446 * sd / 2, abs=1e-5)


@pytest.mark.parametrize("n", [2, 13, 60])
def test_paired_difference_agrees_with_scipy(n):
    generator = np.random.default_rng(n)
    a = generator.normal(0.6, 0.1, n)
    b = a - generator.normal(0.05, 0.1, n)
    result = paired_difference(a, b)
    reference = stats.ttest_rel(a, b)
    assert result.t_p == pytest.approx(reference.pvalue)
    low, high = reference.confidence_interval(0.95)
    assert (result.low, result.high) == pytest.approx((low, high))
    assert result.wilcoxon_p == pytest.approx(stats.wilcoxon(a, b).pvalue)


def enumerated_signed_rank_p(differences):
    """All 2^n signs, with average ranks for ties and zeros left out."""
    nonzero = np.array([d for d in differences if d])
    ranks = stats.rankdata(np.abs(nonzero))
    centre = ranks.sum() / 2
    seen = abs(ranks[nonzero > 0].sum() - centre)
    sums = [ranks[np.array(signs)].sum() for signs in itertools.product([False, True], repeat=len(nonzero))]
    return np.mean([abs(total - centre) >= seen - 1e-9 for total in sums])


SIXTEEN = [0.0, 0.0, *np.random.default_rng(8).normal(0.5, 1.0, 14).round(3)]  # SciPy alone would approximate here


@pytest.mark.parametrize("differences", [[1, 1, 2, -1, 3], [5, 5, 5, 5, 5, -1], [0, 0, 2, 3, 3, 4, 4], SIXTEEN])
def test_signed_rank_is_exact_with_ties_and_zeros(differences):
    base = [10.0] * len(differences)
    result = paired_difference([b + d for b, d in zip(base, differences, strict=True)], base)
    assert result.wilcoxon_p == pytest.approx(enumerated_signed_rank_p(differences))


def test_ties_that_floats_hide_are_ties():
    """0.60 - 0.55 and 0.55 - 0.50 differ in the last bit; shares of questions are full of such pairs."""
    a, b = [0.60, 0.55, 0.70, 0.30, 0.9], [0.55, 0.50, 0.60, 0.35, 0.8]
    assert paired_difference(a, b).wilcoxon_p == pytest.approx(enumerated_signed_rank_p([1, 1, 2, -1, 2]))
    assert paired_difference([0.1 + 0.2, 0.5], [0.3, 0.5]).t_p == 1.0
    scaled = paired_difference([1e-100 * one for one in a], [1e-100 * one for one in b])
    assert scaled.wilcoxon_p == paired_difference(a, b).wilcoxon_p  # the unit changes nothing


def test_values_are_paired_one_by_one():
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        paired_difference([1.0, 2.0], [1.0])


@pytest.mark.parametrize(
    ("a", "b", "expected"),  # mean, sd, p of the t test, p of the signed-rank test, effect size
    [
        ([0.5, 0.6, 0.7], [0.5, 0.6, 0.7], (0.0, 0.0, 1.0, 1.0, 0.0)),
        ([0.55, 0.65, 0.75], [0.5, 0.6, 0.7], (0.05, 0.0, None, 0.25, None)),  # equal differences have no t test
        ([2.0], [1.5], (0.5, None, None, None, None)),
        ([], [], (None, None, None, None, None)),
    ],
)
def test_what_cannot_be_computed_is_none(a, b, expected):
    found = paired_difference(a, b)
    assert (found.mean, found.sd, found.t_p, found.wilcoxon_p, found.effect_size) == pytest.approx(expected)
    assert found.n == len(a) and (found.low is None) == (len(a) < 2)


def test_holm_by_hand():
    """Sorted .01, .02, .03, .04 times 4, 3, 2, 1: .04, .06, .06 (the largest so far), .06. None is no test."""
    assert holm([0.04, 0.01, None, 0.03, 0.02]) == pytest.approx([0.06, 0.04, None, 0.06, 0.06])
    assert holm([0.6, 0.5]) == [1.0, 1.0] and holm([None]) == [None] and holm([]) == []
