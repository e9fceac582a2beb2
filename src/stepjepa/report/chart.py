"""Curves of the log as the lines, ticks and numbers that the page's template draws (SVG).

Drawn here and not with matplotlib: the colours follow the page's theme and paper, a pointer and the arrow keys read the
values, and a report needs no extra to be installed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stepjepa.report.files import number
from stepjepa.report.palette import look

WIDTH, HEIGHT = 440, 270
LEFT, RIGHT, TOP, BOTTOM = 58, 22, 12, 44
MOST_POINTS = 400  # of a line
MOST_ROWS = 24  # of the table below a chart
Point = tuple[float, float]  # step, value


@dataclass(frozen=True)
class Line:
    """One run in one quantity.

    Attributes:
        name: of the run.
        kind: "training" or "evaluation".
        points: (step, value), in the order of the steps.
        colour, dashes: see `palette.look`.
        path: of SVG.
        marks: places of the points, where they are marked.
    """

    name: str
    kind: str
    points: list[Point]
    colour: int
    dashes: str
    path: str
    marks: list[Point]


@dataclass(frozen=True)
class Chart:
    """One quantity of all runs over the optimizer steps.

    Attributes:
        key: of the log, or what stands for it.
        title: in words.
        logarithmic: whether the value's axis is.
        x_ticks, y_ticks: (place, label).
        lines: of all runs.
        thinned: whether lines have more points than are drawn.
    """

    key: str
    title: str
    logarithmic: bool
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    lines: list[Line]
    thinned: bool

    @property
    def description(self) -> str:
        """The chart in words, for who does not see it."""
        ends = [
            f"{line.name} ({line.kind}): {short(line.points[0][1])} at step {line.points[0][0]:g}, "
            f"{short(line.points[-1][1])} at step {line.points[-1][0]:g}"
            for line in self.lines
        ]
        return "; ".join(ends)

    def table(self) -> tuple[list[str], list[list[str]], int]:
        """Heads, rows of cells, and how many rows there would be; at most `MOST_ROWS` rows, taken evenly."""
        values = [dict(line.points) for line in self.lines]
        steps = sorted({step for line in values for step in line})
        picked = [steps[round(at)] for at in spread(len(steps), MOST_ROWS)]
        rows = [[f"{step:g}", *(short(line[step]) if step in line else "" for line in values)] for step in picked]
        names = [f"{line.name} (evaluation)" if line.kind == "evaluation" else line.name for line in self.lines]
        return ["step", *names], rows, len(steps)

    def readout(self) -> list[dict[str, Any]]:
        """What a pointer or the arrow keys read: of every line its name, and step, value, x and y of its points."""
        place = self._places()
        return [
            {"name": line.name, "kind": line.kind, "points": [[*point, *place(point)] for point in line.points]}
            for line in self.lines
        ]

    def _places(self) -> Callable[[Point], Point]:
        return placing([line.points for line in self.lines], self.logarithmic)


def history_points(history: Iterable[Mapping[str, Any]], key: str) -> list[Point]:
    """(step, value) of a key in a log, where both are finite numbers; the last value of a step, steps in order."""
    found = {}
    for entry in history:
        step, value = number(entry.get("step")), number(entry.get(key))
        if step is not None and value is not None:
            found[step] = value
    return sorted(found.items())


def mean_points(several: Sequence[list[Point]]) -> list[Point]:
    """The mean at the steps that all have."""
    tables = [dict(points) for points in several]
    steps = sorted(set.intersection(*map(set, tables))) if tables else []
    return [(step, sum(table[step] for table in tables) / len(tables)) for step in steps]


def make_chart(
    key: str, title: str, series: Sequence[tuple[int, str, str, list[Point]]], logarithmic: bool = False
) -> Chart | None:
    """A chart of the series that have points; None where none has.

    Args:
        series: (number of the run, its name, "training" or "evaluation", points).
        logarithmic: wanted; a linear axis is taken where a value is not positive.
    """
    drawn = [(run, name, kind, thin(points)) for run, name, kind, points in series if points]
    if not drawn:
        return None
    lines = [points for *_, points in drawn]
    values = [value for points in lines for _, value in points]
    logarithmic = logarithmic and min(values) > 0 and max(values) > 3 * min(values)
    place = placing(lines, logarithmic)
    made = []
    for run, name, kind, points in drawn:
        colour, dashes = look(run)
        places = [place(point) for point in points]
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        marked = kind == "evaluation" or len(places) == 1
        made.append(Line(name, kind, points, colour, dashes, path, places if marked else []))
    steps = [step for points in lines for step, _ in points]
    low, high = limits(values, logarithmic)
    y_values = log_ticks(low, high) if logarithmic else ticks(low, high)
    return Chart(
        key,
        title,
        logarithmic,
        [(place((step, low))[0], thousands(step)) for step in ticks(*_wide(min(steps), max(steps)), 5)],
        [(place((steps[0], value))[1], short(value)) for value in y_values],
        made,
        any(len(points) > MOST_POINTS for *_, points in series),
    )


def placing(lines: Sequence[Sequence[Point]], logarithmic: bool) -> Callable[[Point], Point]:
    """From (step, value) to (x, y) in the picture."""
    values = [value for points in lines for _, value in points]
    first, last = _wide(min(s for points in lines for s, _ in points), max(s for points in lines for s, _ in points))
    scale = math.log if logarithmic else float
    low, high = (scale(end) for end in limits(values, logarithmic))

    def place(point: Point) -> Point:
        across = (point[0] - first) / (last - first)
        up = (scale(point[1]) - low) / (high - low)
        return round(LEFT + across * (WIDTH - LEFT - RIGHT), 1), round(
            HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM), 1
        )

    return place


def limits(values: Sequence[float], logarithmic: bool) -> tuple[float, float]:
    """Ends of the value's axis: a little beyond the values."""
    low, high = min(values), max(values)
    if logarithmic:
        return low / 1.1, high * 1.1
    room = (high - low) * 0.05 or max(abs(high) * 0.05, 1e-9)
    return low - room if low < 0 or low - room > 0 else 0.0, high + room


def ticks(low: float, high: float, count: int = 6) -> list[float]:
    """Round numbers from `low` to `high`, `count` of them at most."""
    rough = (high - low) / max(count - 1, 1)
    power = 10 ** math.floor(math.log10(rough))
    step = next(step * power for step in (1, 2, 5, 10) if step * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(at * step, 12) for at in range(first, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 of every power of ten between the ends; the powers alone where that is much."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1, 2, 5), (1,)):
        found = [step * 10.0**power for power in powers for step in steps if low <= step * 10.0**power <= high]
        if len(found) <= 8:
            break
    return found[:: -(-len(found) // 8)] if len(found) > 8 else found


def thin(points: list[Point]) -> list[Point]:
    """At most `MOST_POINTS`: the ends, and of each stretch the smallest and the largest, so that no spike is lost."""
    if len(points) <= MOST_POINTS:
        return points
    stretches = (MOST_POINTS - 2) // 2
    kept = {points[0], points[-1]}
    for at in range(stretches):
        stretch = points[at * len(points) // stretches : (at + 1) * len(points) // stretches]
        kept |= {min(stretch, key=lambda point: point[1]), max(stretch, key=lambda point: point[1])}
    return sorted(kept)


def spread(count: int, most: int) -> list[float]:
    """At most `most` places among `count`, the first and the last among them."""
    return [at * (count - 1) / (most - 1) for at in range(most)] if count > most else list(range(count))


def short(value: float) -> str:
    """Four digits that count."""
    return f"{value:.4g}"


def thousands(step: float) -> str:
    """A step on an axis: ``12k``."""
    return f"{step / 1000:g}k" if step >= 10_000 and step % 100 == 0 else f"{step:g}"


def _wide(first: float, last: float) -> tuple[float, float]:
    """Ends of the steps' axis, which are not the same."""
    return (first, last) if last > first else (first - 1, first + 1)
