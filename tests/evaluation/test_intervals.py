"""Intervals by hand and by published examples."""

from __future__ import annotations

import itertools
import math

import pytest

from stepjepa.evaluation.intervals import mcnemar_p, mean, paired_counts, paired_difference, share


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
        assert paired_difference(*table) == pytest.approx((difference, low, high), abs=5e-5)
    for table in itertools.product((0, 1, 5), repeat=4):
        interval = paired_difference(*table)
        inside = sum(table) and -1 <= interval.low <= interval.value <= interval.high <= 1
        assert inside or interval == (None, None, None), table
    assert paired_counts([True, True, False, False, False], [True, False, True, True, False]) == (1, 1, 2, 1)
    with pytest.raises(ValueError):
        paired_counts([True], [])


def test_mcnemar_by_hand():
    """1 against 9: 2 (1 + 10) / 2^10."""
    assert mcnemar_p(1, 9) == mcnemar_p(9, 1) == pytest.approx(22 / 1024)
    assert mcnemar_p(0, 0) == 1.0 and mcnemar_p(4, 4) == 1.0
    same = paired_difference(5, 0, 0, 3)
    assert same.value == 0 and same.low < 0 < same.high, "eight questions prove no equality"
