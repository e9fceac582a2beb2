"""Curves: places, ticks, and what is drawn of long logs."""

import pytest

from stepjepa.report.charts import BOTTOM, LEFT, MOST_POINTS, RIGHT, TOP, history_points, make_chart, thin, ticks


def test_points_are_finite_and_in_order():
    history = [
        {"step": 2, "lm_loss": 1.5}, {"step": 1, "lm_loss": 2}, {"step": 3, "lm_loss": float("nan")},
        {"step": 5, "lm_loss": None}, {"step": 6}, {"step": 2, "lm_loss": 1.25},
    ]  # fmt: skip
    assert history_points(history, "lm_loss") == [(1, 2), (2, 1.25)]


def test_places():
    (line,) = make_chart("k", "K", [(0, "a", "training", [(0, 0.0), (5, 0.5), (10, 1.0)])]).lines
    top = TOP + (0.05 / 1.05) * (BOTTOM - TOP)  # a twentieth of room above the largest value
    assert [point[:2] for point in line.points] == [(0, 0.0), (5, 0.5), (10, 1.0)]
    assert [x for *_, x, _ in line.points] == [LEFT, (LEFT + RIGHT) / 2, RIGHT]
    assert [y for *_, y in line.points] == pytest.approx([BOTTOM, (BOTTOM + top) / 2, top], abs=0.1)
    assert ticks(0, 10) == [0, 2, 4, 6, 8, 10] and ticks(0.013, 0.047, 5) == [0.02, 0.03, 0.04]


def test_a_spike_in_a_long_log_is_not_lost():
    points = [(step, 1.0) for step in range(10_000)]
    points[4321], points[8765] = (4321, 9.0), (8765, -3.0)
    thinned = thin(points)
    assert len(thinned) <= MOST_POINTS and {(0, 1.0), (4321, 9.0), (8765, -3.0), (9999, 1.0)} <= set(thinned)
    assert thinned == sorted(thinned)
    (line,) = make_chart("k", "K", [(0, "a", "training", points)]).lines
    assert [point[:2] for point in line.points] == thinned
