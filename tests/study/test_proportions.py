"""Shares and paired answers, against published tables, SciPy and statsmodels, and by simulation."""

from __future__ import annotations

import numpy as np
import pytest

from stepjepa.errors import DataError
from stepjepa.study.proportions import mcnemar, proportion_interval

stats = pytest.importorskip("scipy.stats")
pytest.importorskip("statsmodels")
pytestmark = pytest.mark.filterwarnings("error")


def answers(both, only_a, only_b, neither):
    a = [True] * (both + only_a) + [False] * (only_b + neither)
    b = [True] * both + [False] * only_a + [True] * only_b + [False] * neither
    return a, b


def test_wilson_by_hand():
    """0 of 10: 0 and z^2 / (n + z^2), z = 1.959964."""
    interval = proportion_interval(0, 10)
    assert (interval.estimate, interval.low) == (0.0, 0.0)
    assert interval.high == pytest.approx(3.841459 / 13.841459, abs=1e-6)
    assert proportion_interval(0, 0).estimate is None


@pytest.mark.parametrize(("successes", "n"), [(1, 3), (57, 100), (1319, 1319), (300, 1000)])
def test_wilson_agrees_with_scipy(successes, n):
    reference = stats.binomtest(successes, n).proportion_ci(0.9, method="wilson")
    interval = proportion_interval(successes, n, 0.9)
    assert (interval.low, interval.high) == pytest.approx((reference.low, reference.high))


def test_wilson_covers_at_its_rate():
    """Exact coverage, averaged over shares from .05 to .95, for 100 questions."""
    intervals = [proportion_interval(k, 100) for k in range(101)]
    shares = np.linspace(0.05, 0.95, 181)
    inside = np.array([[i.low <= share <= i.high for i in intervals] for share in shares])
    coverage = (inside * stats.binom.pmf(np.arange(101), 100, shares[:, None])).sum(axis=1)
    assert coverage.mean() == pytest.approx(0.95, abs=0.01)
    assert coverage.min() > 0.90


@pytest.mark.parametrize(("successes", "n"), [(3, 2), (-1, 2)])
def test_shares_that_cannot_be(successes, n):
    with pytest.raises(DataError, match="is no proportion"):
        proportion_interval(successes, n)


@pytest.mark.parametrize(
    ("table", "difference", "low", "high"),
    [
        # Newcombe (1998), method 10; Fagerland, Lydersen and Laake (2017), chapter 8, two examples.
        ((36, 12, 2, 0), 0.2, 0.0569, 0.3404),
        ((1, 1, 7, 12), -0.2857, -0.5069, -0.0256),
        ((59, 6, 16, 80), -0.0621, -0.1186, -0.0046),
    ],
)
def test_published_intervals_of_paired_differences(table, difference, low, high):
    result = mcnemar(*answers(*table))
    assert (result.both, result.only_a, result.only_b, result.neither) == table
    assert (result.difference, result.low, result.high) == pytest.approx((difference, low, high), abs=5e-5)


@pytest.mark.parametrize("table", [(40, 3, 9, 48), (0, 0, 1, 0), (900, 60, 40, 319), (5, 5, 5, 5)])
def test_mcnemar_is_the_binomial_test(table):
    result = mcnemar(*answers(*table))
    assert result.p == pytest.approx(stats.binomtest(table[1], table[1] + table[2]).pvalue)
    mirrored = mcnemar(*reversed(answers(*table)))
    assert mirrored.p == pytest.approx(result.p)
    assert (-mirrored.high, -mirrored.low) == pytest.approx((result.low, result.high))


def test_models_that_never_differ():
    same = mcnemar(*answers(5, 0, 0, 3))
    assert (same.p, same.difference) == (1.0, 0.0)
    assert same.low < 0 < same.high  # eight questions prove no equality
    all_right = mcnemar(*answers(8, 0, 0, 0))
    assert (all_right.p, all_right.difference) == (1.0, 0.0)
    empty = mcnemar([], [])
    assert (empty.n, empty.difference, empty.low, empty.p) == (0, None, None, 1.0)


def test_the_interval_stays_between_minus_one_and_one():
    extreme = mcnemar(*answers(0, 2, 0, 0))
    assert extreme.difference == 1.0
    assert extreme.high == 1.0 and extreme.low > -1


def test_paired_intervals_cover_at_their_rate():
    """3,000 pairs of correlated models on 60 questions, true difference 0.1 (SE of the share 0.004)."""
    tables = np.random.default_rng(0).multinomial(60, [0.5, 0.2, 0.1, 0.2], size=3000)
    results = [mcnemar(*answers(*table)) for table in tables]
    covered = np.mean([result.low <= 0.1 <= result.high for result in results])
    assert covered == pytest.approx(0.95, abs=0.02)


def test_mcnemar_holds_its_level():
    """The exact test rejects at most at its level (here about .03, for it is discrete)."""
    tables = np.random.default_rng(1).multinomial(80, [0.4, 0.15, 0.15, 0.3], size=2000)
    rejected = np.mean([mcnemar(*answers(*table)).p < 0.05 for table in tables])
    assert 0.01 < rejected < 0.05


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ([True], [True, False], "1 answers against 2"),
        ([0.5], [True], "correct_a must be a list of true and false"),
        ([[True]], [[True]], "correct_a"),
    ],
)
def test_answers_that_cannot_be_paired(a, b, message):
    with pytest.raises(DataError, match=message):
        mcnemar(a, b)
