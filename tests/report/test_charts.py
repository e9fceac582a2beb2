"""Curves: which points of a log are drawn, also of a long one."""

from stepjepa.report.charts import MOST_POINTS, history_points, make_chart, thin


def test_points_are_finite_and_in_order():
    history = [
        {"step": 2, "lm_loss": 1.5}, {"step": 1, "lm_loss": 2}, {"step": 3, "lm_loss": float("nan")},
        {"step": 5, "lm_loss": None}, {"step": 6}, {"step": 2, "lm_loss": 1.25},
    ]  # fmt: skip
    assert history_points(history, "lm_loss") == [(1, 2), (2, 1.25)]


def test_a_spike_in_a_long_log_is_not_lost():
    points = [(step, 1.0) for step in range(10_000)]
    points[4321], points[8765] = (4321, 9.0), (8765, -3.0)
    thinned = thin(points)
    assert len(thinned) <= MOST_POINTS and {(0, 1.0), (4321, 9.0), (8765, -3.0), (9999, 1.0)} <= set(thinned)
    assert thinned == sorted(thinned)
    (line,) = make_chart("k", "K", [(0, "a", "training", points)]).lines
    assert [point[:2] for point in line.points] == thinned
