"""Intervals, paired tests and Holm's correction by hand, by published examples, and against SciPy."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from stepjepa.evaluation.statistics import (
    Interval,
    accuracy_difference,
    conclusion,
    holm,
    mcnemar_p,
    mean,
    paired_counts,
    paired_difference,
    share,
    summary,
)

pytest.importorskip("statsmodels")
pytestmark = pytest.mark.filterwarnings("error")  # nothing may warn, whatever the numbers


def test_wilson_by_hand():
    """8 of 10: centre (0.8 + 1.92073 / 10) / 1.384146, half width 1.959964 sqrt(0.016 + 0.00960365) / 1.384146."""
    interval = share(8, 10)
    assert interval.value == 0.8
    assert (interval.low, interval.high) == pytest.approx((0.490162, 0.943318), abs=1e-6)
    assert share(0, 20).low == 0.0 and share(20, 20).high == 1.0
    assert share(0, 0) == (None, None, None)


def test_t_interval_by_hand():
    """Mean 3, sd 1, t(0.975, 4) = 2.776445."""
    values = [3 - math.sqrt(2), 3.0, 3.0, 3.0, 3 + math.sqrt(2)]
    half = 2.776445 / math.sqrt(5)
    assert mean(values) == pytest.approx((3.0, 3 - half, 3 + half), abs=1e-6)
    assert mean([]) == (None, None, None) and mean([0.4]) == (0.4, None, None)
    assert mean([0.5] * 4) == (0.5, 0.5, 0.5)
    assert mean([1.0, math.inf]) == (math.inf, None, None) and mean([math.nan, 1.0])[1:] == (None, None)
    spread = summary(values)
    assert (spread.n, spread.estimate, spread.sd) == (5, 3.0, pytest.approx(1.0))
    assert (spread.low, spread.high) == pytest.approx((3 - half, 3 + half), abs=1e-6)
    equal = summary([0.1] * 3)  # their float mean is 0.10000000000000002
    assert (equal.estimate, equal.sd, equal.low, equal.high) == (0.1, 0.0, 0.1, 0.1)


def test_differences_of_paired_shares():
    for table, difference, low, high in (
        # Newcombe (1998), method 10; Fagerland, Lydersen and Laake (2017), chapter 8, two examples.
        ((36, 2, 12, 0), 0.2, 0.0569, 0.3404),
        ((1, 7, 1, 12), -0.2857, -0.5069, -0.0256),
        ((59, 16, 6, 80), -0.0621, -0.1186, -0.0046),
    ):
        assert accuracy_difference(*table) == pytest.approx((difference, low, high), abs=5e-5)
    for table in itertools.product((0, 1, 5), repeat=4):
        interval = accuracy_difference(*table)
        inside = sum(table) and -1 <= interval.low <= interval.value <= interval.high <= 1
        assert inside or interval == (None, None, None), table
    assert paired_counts([True, True, False, False, False], [True, False, True, True, False]) == (1, 1, 2, 1)


def test_mcnemar_by_hand():
    """1 against 9: 2 (1 + 10) / 2^10."""
    assert mcnemar_p(1, 9) == mcnemar_p(9, 1) == pytest.approx(22 / 1024)
    assert mcnemar_p(0, 0) == 1.0 and mcnemar_p(4, 4) == 1.0
    assert mcnemar_p(0, 5) > 0.05 > mcnemar_p(0, 6)
    same = accuracy_difference(5, 0, 0, 3)
    assert same.value == 0 and same.low < 0 < same.high, "eight questions prove no equality"


@pytest.mark.parametrize(
    ("difference", "lower_is_better", "shown"),
    [
        ((0.1, 0.02, 0.2), False, "On these questions b is ahead of a."),
        ((-0.1, -0.2, -0.02), False, "On these questions b is behind a."),
        ((-0.1, -0.2, -0.02), True, "On these questions b is ahead of a."),
        ((0.1, 0.0, 0.2), False, "On these questions no difference between a and b is shown."),
        ((None, None, None), False, "On these questions no difference between a and b is shown."),
    ],
)
def test_what_may_be_concluded_of_two_models(difference, lower_is_better, shown):
    """Of their training nothing, however large the difference; what is there is not said to be missing."""
    training = "Whether the training of b helps is not established: one seed of each"
    for given, lacking in (
        ((), "; no shuffled control was run; not compared at equal compute"),
        ((True,), "; not compared at equal compute"),
        ((True, True), ""),
    ):
        said = conclusion(Interval(*difference), "a", "b", *given, lower_is_better=lower_is_better)
        assert said == f"{shown} {training}{lacking}."


def test_hardly_any_right_answer_is_no_ground_for_a_comparison():
    """Not even where the interval is off zero: with five discordant questions the exact test cannot be below 0.05."""
    for counts in ((0, 0, 0, 200), (0, 0, 5, 5), (1, 0, 3, 196)):
        said = conclusion(accuracy_difference(*counts), "a", "b", True, True, counts=counts)
        right = f"{sum(counts[:3])} of {sum(counts)}"
        assert said.startswith(f"On these questions there are too few right answers to compare: {right} by a or b.")
    assert "b is ahead of a" in conclusion(accuracy_difference(0, 0, 6, 6), "a", "b", counts=(0, 0, 6, 6))


@pytest.mark.parametrize("n", [2, 60])
def test_paired_difference_agrees_with_scipy(n):
    generator = np.random.default_rng(n)
    a = generator.normal(0.6, 0.1, n)
    b = a - generator.normal(0.05, 0.1, n)
    result, reference = paired_difference(a, b), stats.ttest_rel(a, b)
    assert result.t_p == pytest.approx(reference.pvalue)
    assert (result.low, result.high) == pytest.approx(tuple(reference.confidence_interval(0.95)))
    assert result.wilcoxon_p == pytest.approx(stats.wilcoxon(a, b).pvalue)
    assert (result.mean, result.sd) == pytest.approx((np.mean(a - b), np.std(a - b, ddof=1)))
    assert result.effect_size == pytest.approx(result.mean / result.sd)


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
    percent = paired_difference([100 * one for one in a], [100 * one for one in b])
    assert percent.wilcoxon_p == paired_difference(a, b).wilcoxon_p


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
