"""Intervals by hand and by published examples."""

from __future__ import annotations

import itertools
import math

import pytest

from stepjepa.evaluation.statistics import (
    Interval,
    accuracy_difference,
    conclusion,
    mcnemar_p,
    mean,
    paired_counts,
    share,
)


def test_wilson_by_hand():
    """8 of 10: centre (0.8 + 1.92073 / 10) / 1.384146, half width 1.959964 sqrt(0.016 + 0.00960365) / 1.384146."""
    interval = share(8, 10)
    assert interval.value == 0.8
    assert (interval.low, interval.high) == pytest.approx((0.490162, 0.943318), abs=1e-6)
    assert share(0, 20).low == 0.0 and share(20, 20).high == 1.0
    assert share(0, 0) == (None, None, None)


def test_t_interval_by_hand():
    """Mean 3, sd 1, t(0.975, 4) = 2.776445."""
    interval = mean([3 - math.sqrt(2), 3.0, 3.0, 3.0, 3 + math.sqrt(2)])
    half = 2.776445 / math.sqrt(5)
    assert interval == pytest.approx((3.0, 3 - half, 3 + half), abs=1e-6)
    assert mean([]) == (None, None, None) and mean([0.4]) == (0.4, None, None)
    assert mean([0.5] * 4) == (0.5, 0.5, 0.5)
    assert mean([1.0, math.inf]) == (math.inf, None, None) and mean([math.nan, 1.0])[1:] == (None, None)


def test_paired_differences():
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
    with pytest.raises(ValueError):
        paired_counts([True], [])


def test_mcnemar_by_hand():
    """1 against 9: 2 (1 + 10) / 2^10."""
    assert mcnemar_p(1, 9) == mcnemar_p(9, 1) == pytest.approx(22 / 1024)
    assert mcnemar_p(0, 0) == 1.0 and mcnemar_p(4, 4) == 1.0
    same = accuracy_difference(5, 0, 0, 3)
    assert same.value == 0 and same.low < 0 < same.high, "eight questions prove no equality"


@pytest.mark.parametrize(
    ("difference", "shown"),
    [
        ((0.1, 0.02, 0.2), "On these questions b is ahead of a."),
        ((-0.1, -0.2, -0.02), "On these questions b is behind a."),
        ((0.1, 0.0, 0.2), "On these questions no difference between a and b is shown."),
        ((0.1, None, None), "On these questions no difference between a and b is shown."),
        ((None, None, None), "On these questions no difference between a and b is shown."),
    ],
)
def test_what_may_be_concluded_of_two_models(difference, shown):
    """Of their training nothing, however large the difference; what is there is not said to be missing."""
    said = conclusion(Interval(*difference), "a", "b")
    training = "Whether the training of b helps is not established: one seed of each"
    assert said == f"{shown} {training}; no shuffled control was run; not compared at equal compute."
    said = conclusion(Interval(*difference), "a", "b", controlled=True)
    assert said == f"{shown} {training}; not compared at equal compute."
    assert conclusion(Interval(*difference), "a", "b", True, True) == f"{shown} {training}."


def test_hardly_any_right_answer_is_no_ground_for_a_comparison():
    """Not even where the interval is off zero: with five discordant questions the exact test cannot be below 0.05."""
    for counts in ((0, 0, 0, 200), (0, 0, 5, 5), (1, 0, 3, 196)):
        said = conclusion(accuracy_difference(*counts), "a", "b", True, True, counts=counts)
        right, n = sum(counts[:3]), sum(counts)
        assert said.startswith(
            f"On these questions there are too few right answers to compare: {right} of {n} by a or b."
        )
    assert "b is ahead of a" in conclusion(accuracy_difference(0, 0, 6, 6), "a", "b", counts=(0, 0, 6, 6))
    assert mcnemar_p(0, 5) > 0.05 > mcnemar_p(0, 6)


def test_of_a_likelihood_lower_is_better():
    said = conclusion(Interval(-0.1, -0.2, -0.02), "a", "b", lower_is_better=True)
    assert said.startswith("On these questions b is ahead of a.")


def test_intervals_as_text():
    assert Interval(0.61, 0.579, 0.64).percent() == "61.0 % (57.9 to 64.0)"
    assert Interval(0.5, None, None).percent() == "50.0 %" and Interval(None, None, None).percent() == "none"
    assert Interval(0.025, -0.048, 0.0971).percent("+", "points") == "+2.5 points (-4.8 to +9.7)"
