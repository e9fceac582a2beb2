"""The charts of the page: lines, ticks and values, which the page's template draws as SVG.

Unlike images by matplotlib, these charts follow the theme of the page, show their values on hover and with the arrow keys,
and need no extra package.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import Any

from stepjepa.inspect.figure import series_style
from stepjepa.modeling.card import NO_RESULT
from stepjepa.report.reading import ReportedRun

# The rectangle of a chart's lines; the rest is for the tick labels and the title of the axis.
LEFT, RIGHT, TOP, BOTTOM = 58, 418, 12, 226
FRAME = {
    "width": 440,
    "height": 270,
    "left": LEFT,
    "right": RIGHT,
    "top": TOP,
    "bottom": BOTTOM,
}
QUANTITIES = {
    "lm_loss": "LM loss (nats per labelled token)",
    "jepa_loss": "JEPA loss",
    "cosine_similarity": "cosine of source and target",
    "target_std": "spread of the targets (target_std)",
    "effective_rank": "effective rank of the targets",
    "regularizer": "regularizer",
}
# A line is 360 pixels wide, so more points would not be visible, and would only enlarge the page.
MOST_POINTS = 400
DASHES = ("", "7 4", "2 3", "10 3 2 3", "12 5", "1 4", "6 2 1 2 1 2")
# (step, value)
Point = tuple[float, float]


@dataclass(frozen=True)
class Line:
    """One quantity of one run.

    Attributes:
        kind: "training" or "evaluation".
        points: (step, value, x, y), in the order of the steps.
        colour: number of the colour in the style of the page (classes ``c0``, ``c1``, ...).
        dashes: the stroke-dasharray of SVG.
    """

    name: str
    kind: str
    points: list[tuple[float, float, float, float]]
    colour: int
    dashes: str

    @property
    def path(self) -> str:
        """The path data of the line in SVG."""
        return "M" + "L".join(f"{x:.1f} {y:.1f}" for _, _, x, y in self.points)

    @property
    def marks(self) -> list[Point]:
        """(x, y) of the points with a mark: evaluations, which are few, and the single point of a training line."""
        if self.kind == "training" and len(self.points) > 1:
            return []
        return [(x, y) for _, _, x, y in self.points]


@dataclass(frozen=True)
class Chart:
    """One quantity of all runs over the optimizer steps.

    Attributes:
        key: key of the quantity in the log.
        x_ticks, y_ticks: (position, label).
    """

    key: str
    title: str
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    lines: list[Line]


def history_points(history: Iterable[Mapping[str, Any]], key: str) -> list[Point]:
    """(step, value) of a key in a log, sorted by step, with the last finite value of every step."""
    points = {}
    for entry in history:
        value = entry.get(key)
        if isinstance(value, (int, float)) and math.isfinite(value):
            points[entry["step"]] = value
    return sorted(points.items())


def mean_points(histories: Iterable[Iterable[Mapping[str, Any]]], key: str) -> list[Point]:
    """The mean over the logs that contain `key`, at the steps that they share."""
    logs = [dict(points) for history in histories if (points := history_points(history, key))]
    if not logs:
        return []
    # A mean over a changing set of runs would show jumps that no run has.
    steps = set.intersection(*map(set, logs))
    return [(step, sum(log[step] for log in logs) / len(logs)) for step in sorted(steps)]


def quantities(groups: Iterable[Sequence[ReportedRun]]) -> dict[str, str]:
    """Key -> title of every logged quantity: losses, collapse diagnostics, and metrics of evaluations during training."""
    titles = dict(QUANTITIES)
    entries = (entry for runs in groups for run in runs for entry in run.history)
    for key in dict.fromkeys(chain.from_iterable(entries)):
        name = key.removeprefix("eval_")
        if key != name and name != "loss" and not key.endswith(NO_RESULT):
            titles.setdefault(name, name)
    return titles


def make_charts(groups: Mapping[str, Sequence[ReportedRun]]) -> Iterator[Chart]:
    """A chart for each quantity that any run logged, in training or evaluation.

    Args:
        groups: name of a line -> the runs whose mean it shows.
    """
    for key, title in quantities(groups.values()).items():
        series = []
        for index, (name, runs) in enumerate(groups.items()):
            for kind, log_key in (("training", key), ("evaluation", f"eval_{key}")):
                points = mean_points([run.history for run in runs], log_key)
                if points:
                    series.append((index, name, kind, points))
        if series:
            yield make_chart(key, title, series)


def make_chart(key: str, title: str, series: Sequence[tuple[int, str, str, list[Point]]]) -> Chart:
    """Lay out a chart.

    Args:
        series: (number of the run, its name, "training" or "evaluation", points); at least one, each with a point.
    """
    steps = [step for *_, points in series for step, _ in points]
    values = [value for *_, points in series for _, value in points]
    first, last = min(steps), max(steps)
    if first == last:
        first, last = first - 1, last + 1
    # The axis extends a little beyond the values, but not below 0 if no value is negative.
    low, high = min(values), max(values)
    room = (high - low) * 0.05 or max(abs(high) * 0.05, 1e-9)
    low = 0.0 if 0 <= low <= room else low - room
    high += room

    def x_of(step: float) -> float:
        return round(LEFT + (step - first) / (last - first) * (RIGHT - LEFT), 1)

    def y_of(value: float) -> float:
        return round(BOTTOM + (value - low) / (high - low) * (TOP - BOTTOM), 1)

    lines = []
    for index, name, kind, points in series:
        places = [(step, value, x_of(step), y_of(value)) for step, value in thin(points)]
        colour, dashes = series_style(index)
        lines.append(Line(name, kind, places, colour, DASHES[dashes]))
    x_ticks = [(x_of(step), f"{step:g}") for step in ticks(first, last, 5)]
    y_ticks = [(y_of(value), f"{value:.4g}") for value in ticks(low, high)]
    return Chart(key, title, x_ticks, y_ticks, lines)


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """At most `most` round numbers (1, 2 or 5 times a power of ten apart) between `low` and `high`."""
    rough = (high - low) / (most - 1)
    power = 10 ** math.floor(math.log10(rough))
    # The tolerances keep a tick that rounding errors would put just outside.
    step = next(step * power for step in (1, 2, 5, 10) if step * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def thin(points: list[Point]) -> list[Point]:
    """At most `MOST_POINTS` points: the ends, and the lowest and highest value of each stretch, which keeps every spike."""
    if len(points) <= MOST_POINTS:
        return points
    size = math.ceil(2 * len(points) / (MOST_POINTS - 2))
    kept = {points[0], points[-1]}
    for start in range(0, len(points), size):
        stretch = points[start : start + size]
        kept |= {min(stretch, key=itemgetter(1)), max(stretch, key=itemgetter(1))}
    return sorted(kept)
