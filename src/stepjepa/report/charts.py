"""Curves of the page, as the lines, ticks and numbers that its template draws (SVG).

Drawn here and not with matplotlib: the colours follow the page's theme and paper, a pointer and the arrow keys read the
values, and a report needs no extra to be installed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stepjepa.inspect.figure import series_style
from stepjepa.modeling.card import NO_RESULT
from stepjepa.report.reading import ReportedRun, number

WIDTH, HEIGHT = 440, 270
LEFT, RIGHT, TOP, BOTTOM = 58, 418, 12, 226  # where the lines of a chart are
FRAME = {"width": WIDTH, "height": HEIGHT, "left": LEFT, "right": RIGHT, "top": TOP, "bottom": BOTTOM}
QUANTITIES = {
    "lm_loss": "LM loss (nats per labelled token)",
    "jepa_loss": "JEPA loss",
    "cosine_similarity": "cosine of source and target",
    "target_std": "spread of the targets (target_std)",
    "effective_rank": "effective rank of the targets",
    "regularizer": "regularizer",
}
MOST_POINTS = 400  # of a line
DASHES = ("", "7 4", "2 3", "10 3 2 3", "12 5", "1 4", "6 2 1 2 1 2")
Point = tuple[float, float]  # step, value
PointsOf = Callable[[str], list[Point]]  # from a key of the log


@dataclass(frozen=True)
class Line:
    """One run in one quantity.

    Attributes:
        kind: "training" or "evaluation".
        points: (step, value, x, y), in the order of the steps.
        colour: its number in the page's style (classes ``c0``, ``c1``, ...).
        dashes: as SVG has them.
    """

    name: str
    kind: str
    points: list[tuple[float, float, float, float]]
    colour: int
    dashes: str

    @property
    def path(self) -> str:
        """The line in SVG."""
        return "M" + "L".join(f"{x:.1f} {y:.1f}" for _, _, x, y in self.points)

    @property
    def marks(self) -> list[Point]:
        """Places of the points, where they are marked."""
        if self.kind == "training" and len(self.points) > 1:
            return []
        return [(x, y) for _, _, x, y in self.points]


@dataclass(frozen=True)
class Chart:
    """One quantity of all runs over the optimizer steps.

    Attributes:
        key: of the log.
        x_ticks, y_ticks: (position, label).
    """

    key: str
    title: str
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    lines: list[Line]

    def readout(self) -> list[dict[str, Any]]:
        """What a pointer or the arrow keys read: of every line its name, and step, value, x and y of its points."""
        return [{"name": line.name, "kind": line.kind, "points": line.points} for line in self.lines]


def history_points(history: Iterable[Mapping[str, Any]], key: str) -> list[Point]:
    """(step, value) of a key in a log, where both are finite numbers; the last value of a step, steps in order."""
    points = {}
    for entry in history:
        step, value = number(entry, "step"), number(entry, key)
        if step is not None and value is not None:
            points[step] = value
    return sorted(points.items())


def mean_points(histories: Iterable[Iterable[Mapping[str, Any]]], key: str) -> list[Point]:
    """The mean over the logs that have `key`, at the steps that all of them have."""
    logs = [dict(points) for history in histories if (points := history_points(history, key))]
    if not logs:
        return []
    steps = set.intersection(*map(set, logs))
    return [(step, sum(log[step] for log in logs) / len(logs)) for step in sorted(steps)]


def quantities(runs: Sequence[ReportedRun]) -> dict[str, str]:
    """Key -> title of what the logs hold: losses, signs of collapse, and what the evaluations while training have scored."""
    titles = dict(QUANTITIES)
    known = {"eval_loss", *(f"eval_{key}" for key in QUANTITIES)}
    for run in runs:
        for entry in run.history:
            for key in entry:
                if key.startswith("eval_") and key not in known and not key.endswith(NO_RESULT):
                    titles[key] = f"{key.removeprefix('eval_')} of the evaluations while training"
    return titles


def make_charts(runs: Sequence[tuple[str, PointsOf]], titles: Mapping[str, str]) -> Iterator[Chart]:
    """A chart for each quantity (key -> title) that one of the runs (name, key -> points) has logged, evaluations in it."""
    for key, title in titles.items():
        kinds = {"evaluation": key} if key.startswith("eval_") else {"training": key, "evaluation": f"eval_{key}"}
        series = []
        for index, (name, points_of) in enumerate(runs):
            for kind, own_key in kinds.items():
                points = points_of(own_key)
                if points:
                    series.append((index, name, kind, points))
        if series:
            yield make_chart(key, title, series)


def make_chart(key: str, title: str, series: Sequence[tuple[int, str, str, list[Point]]]) -> Chart:
    """A chart.

    Args:
        series: (number of the run, its name, "training" or "evaluation", points), at least one with at least one point.
    """
    steps = [step for *_, points in series for step, _ in points]
    values = [value for *_, points in series for _, value in points]
    first, last = min(steps), max(steps)
    if first == last:
        first, last = first - 1, last + 1
    # A little beyond the values, and to 0 rather than below it.
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
    """Round numbers from `low` to `high`, `most` of them at most."""
    rough = (high - low) / (most - 1)
    power = 10 ** math.floor(math.log10(rough))
    step = next(step * power for step in (1, 2, 5, 10) if step * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def thin(points: list[Point]) -> list[Point]:
    """At most `MOST_POINTS`: the ends, and of each stretch the smallest and the largest, so that no spike is lost."""
    if len(points) <= MOST_POINTS:
        return points
    stretches = (MOST_POINTS - 2) // 2
    kept = {points[0], points[-1]}
    for index in range(stretches):
        stretch = points[index * len(points) // stretches : (index + 1) * len(points) // stretches]
        kept.add(min(stretch, key=lambda point: point[1]))
        kept.add(max(stretch, key=lambda point: point[1]))
    return sorted(kept)
