"""What the page shows of a run's log: curves as the lines, ticks and numbers that its template draws (SVG), and signs of
collapse.

Drawn here and not with matplotlib: the colours follow the page's theme and paper, a pointer and the arrow keys read the
values, and a report needs no extra to be installed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, takewhile
from statistics import fmean
from typing import Any

from stepjepa.modeling.card import NO_RESULT, logged_collapse
from stepjepa.report.reading import Run, number
from stepjepa.training.options import GRADIENT_COSINE, LAYER_COSINE
from stepjepa.utils.text import scaled

WIDTH, HEIGHT = 440, 270
LEFT, RIGHT, TOP, BOTTOM = 58, 418, 12, 226  # where the lines of a chart are
FRAME = {"width": WIDTH, "height": HEIGHT, "left": LEFT, "right": RIGHT, "top": TOP, "bottom": BOTTOM}
LOSSES = (("lm_loss", "LM loss (nats per labelled token)"), ("jepa_loss", "JEPA loss"))
SIGNS = (
    ("cosine_similarity", "cosine of source and target"),
    ("target_std", "spread of the targets (target_std)"),
    ("effective_rank", "effective rank of the targets"),
)
_REGULARIZER = "regularizer"
_BY_LAYER = "cosine of the gradients by layer, mean over the run"
MOST_POINTS = 400  # of a line
MOST_ROWS = 24  # of the table below a chart
COLOURS = 7  # classes ``c0``, ``c1``, .. of the page's style
DASHES = ("", "7 4", "2 3", "10 3 2 3", "12 5", "1 4", "6 2 1 2 1 2")
Point = tuple[float, float]  # step, value
PointsOf = Callable[[str], list[Point]]  # from a key of the log


@dataclass(frozen=True)
class Line:
    """One run in one quantity.

    Attributes:
        kind: "training" or "evaluation".
        points: (step, value, x, y), in the order of the steps.
        colour, dashes: see `look`.
    """

    name: str
    kind: str
    points: list[tuple[float, float, float, float]]
    colour: int
    dashes: str

    @property
    def path(self) -> str:
        """The line in SVG."""
        return "M" + "L".join(f"{x:.1f} {y:.1f}" for *_, x, y in self.points)

    @property
    def marks(self) -> list[Point]:
        """Places of the points, where they are marked."""
        marked = self.kind == "evaluation" or len(self.points) == 1
        return [(x, y) for *_, x, y in self.points] if marked else []


@dataclass(frozen=True)
class Chart:
    """One quantity of all runs over the optimizer steps.

    Attributes:
        key: of the log.
        logarithmic: whether the value's axis is.
        x_ticks, y_ticks: (position, label).
        thinned: whether lines have more points than are drawn.
        axis: what the points are counted in.
    """

    key: str
    title: str
    logarithmic: bool
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    lines: list[Line]
    thinned: bool
    axis: str

    @property
    def description(self) -> str:
        """The chart as text, for readers who do not see it."""
        return "; ".join(
            f"{line.name} ({line.kind}): "
            + ", ".join(f"{short(value)} at {self.axis} {at:g}" for at, value, *_ in (line.points[0], line.points[-1]))
            for line in self.lines
        )

    def table(self) -> tuple[list[str], list[list[str]], int]:
        """Heads, rows of cells, and how many rows there would be; at most `MOST_ROWS` rows, taken evenly."""
        values = [{step: short(value) for step, value, *_ in line.points} for line in self.lines]
        steps = sorted({step for line in values for step in line})
        count = min(len(steps), MOST_ROWS)
        picked = [steps[round(at * (len(steps) - 1) / max(count - 1, 1))] for at in range(count)]
        heads = [f"{line.name} (evaluation)" if line.kind == "evaluation" else line.name for line in self.lines]
        return [self.axis, *heads], [[f"{at:g}", *(line.get(at, "") for line in values)] for at in picked], len(steps)

    def readout(self) -> list[dict[str, Any]]:
        """What a pointer or the arrow keys read: of every line its name, and step, value, x and y of its points."""
        return [{"name": line.name, "kind": line.kind, "points": line.points} for line in self.lines]


def look(index: int) -> tuple[int, str]:
    """Number of the colour and dashes of series `index`; 49 of them differ, the first 7 in both."""
    return index % COLOURS, DASHES[(index + index // COLOURS) % len(DASHES)]


def history_points(history: Iterable[Mapping[str, Any]], key: str) -> list[Point]:
    """(step, value) of a key in a log, where both are finite numbers; the last value of a step, steps in order."""
    found = {}
    for entry in history:
        step, value = number(entry, "step"), number(entry, key)
        if step is not None and value is not None:
            found[step] = value
    return sorted(found.items())


def mean_points(histories: Iterable[Iterable[Mapping[str, Any]]], key: str) -> list[Point]:
    """The mean over the logs that have `key`, at the steps that all of them have."""
    logs = [dict(points) for history in histories if (points := history_points(history, key))]
    steps = sorted(set.intersection(*map(set, logs))) if logs else []
    return [(step, sum(log[step] for log in logs) / len(logs)) for step in steps]


def make_charts(runs: Sequence[tuple[str, PointsOf]], quantities: Iterable[tuple[str, str]]) -> list[Chart]:
    """A chart for each quantity (key, title) that one of the runs (name, key -> points) has logged, evaluations in it."""
    charts = []
    for key, title in quantities:
        kinds = {"evaluation": key} if key.startswith("eval_") else {"training": key, "evaluation": f"eval_{key}"}
        series = [(run, kind, points_of(own)) for run, (_, points_of) in enumerate(runs) for kind, own in kinds.items()]
        if any(points for *_, points in series):
            charts.append(make_chart(key, title, [(run, runs[run][0], kind, points) for run, kind, points in series]))
    return charts


def make_chart(key: str, title: str, series: Sequence[tuple[int, str, str, list[Point]]], axis: str = "step") -> Chart:
    """A chart of the series that have points; of an LM loss logarithmic, where that can be.

    Args:
        series: (number of the run, its name, "training" or "evaluation", points); one has points at least.
    """
    drawn = [(run, name, kind, thin(points)) for run, name, kind, points in series if points]
    steps, values = zip(*(point for *_, points in drawn for point in points), strict=True)
    first, last, low, high = min(steps), max(steps), min(values), max(values)
    logarithmic = key.endswith("lm_loss") and low > 0 and high > 3 * low
    first, last = (first, last) if first < last else (first - 1, first + 1)
    if logarithmic:
        low, high = low / 1.1, high * 1.1
    else:  # a little beyond the values, and to 0 rather than below it
        room = (high - low) * 0.05 or max(abs(high) * 0.05, 1e-9)
        low, high = low - room if low < 0 or low - room > 0 else 0.0, high + room
    scale = math.log if logarithmic else float

    def x_of(step: float) -> float:
        return round(LEFT + (step - first) / (last - first) * (RIGHT - LEFT), 1)

    def y_of(value: float) -> float:
        return round(BOTTOM + (scale(value) - scale(low)) / (scale(high) - scale(low)) * (TOP - BOTTOM), 1)

    def line(run: int, name: str, kind: str, points: list[Point]) -> Line:
        return Line(name, kind, [(step, value, x_of(step), y_of(value)) for step, value in points], *look(run))

    y_ticks = (log_ticks if logarithmic else ticks)(low, high)
    return Chart(
        key,
        title,
        logarithmic,
        [
            (x_of(at), f"{at / 1000:g}k" if at >= 10_000 and at % 100 == 0 else f"{at:g}")
            for at in ticks(first, last, 5)
        ],
        [(y_of(at), short(at)) for at in y_ticks],
        [line(*one) for one in drawn],
        any(len(points) > MOST_POINTS for *_, points in series),
        axis,
    )


def ticks(low: float, high: float, count: int = 6) -> list[float]:
    """Round numbers from `low` to `high`, `count` of them at most."""
    rough = (high - low) / max(count - 1, 1)
    power = 10 ** math.floor(math.log10(rough))
    step = next(step * power for step in (1, 2, 5, 10) if step * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(at * step, 12) for at in range(first, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 of every power of ten between the ends; the powers alone, or some of them, where that is much."""
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


def short(value: float) -> str:
    """Four digits that count."""
    return f"{value:.4g}"


def loss_quantities(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """(key, title) of the losses, of the regularizer, and of whatever the evaluations while training have scored."""
    keys = dict.fromkeys(key for run in runs for entry in run.history for key in entry)
    own = {f"eval_{key}" for key, _ in (*LOSSES, *SIGNS)} | {"eval_loss", f"eval_{_REGULARIZER}"}
    scored = [key for key in keys if key.startswith("eval_") and key not in own and not key.endswith(NO_RESULT)]
    titles = [(key, f"{key.removeprefix('eval_')} of the evaluations while training") for key in scored]
    more = [(_REGULARIZER, _REGULARIZER), (GRADIENT_COSINE, "cosine of the gradients of both losses")]
    return [*LOSSES, *(one for one in more if one[0] in keys), *titles]


def layer_charts(runs: Sequence[tuple[str, PointsOf]]) -> list[Chart]:
    """The mean over the run of the cosine of the gradients, by layer; none where it was not logged."""
    series = []
    for run, (name, points_of) in enumerate(runs):
        layers = takewhile(bool, (points_of(f"{LAYER_COSINE}{layer}") for layer in count()))
        means = [(float(layer), fmean(value for _, value in points)) for layer, points in enumerate(layers)]
        series.append((run, name, "training", means))
    drawn = any(points for *_, points in series)
    return [make_chart(f"{LAYER_COSINE}mean", _BY_LAYER, series, "layer")] if drawn else []


@dataclass(frozen=True)
class LoggedSigns:
    """What a log says of the targets: (key, first value, last value), the step of the last entry, the signs of collapse in
    it, whether they amount to collapse, and whether the targets are one vector because the run is a control."""

    rows: list[tuple[str, float, float]]
    step: float
    texts: list[str]
    collapsed: bool
    by_design: bool


def logged_signs(run: Run) -> LoggedSigns | None:
    """The signs of collapse in a log, None where no targets were logged."""
    logged = {key: points for key, _ in SIGNS if (points := history_points(run.history, key))}
    if not logged:
        return None
    last = {key: points[-1][1] for key, points in logged.items()}
    if pairs := history_points(run.history, "num_pairs"):
        last["num_pairs"] = pairs[-1][1]
    by_design = run.settings.get("control") == "random"
    texts, low = ([], False) if by_design else logged_collapse(last)
    rows = [(key, points[0][1], points[-1][1]) for key, points in logged.items()]
    return LoggedSigns(rows, max(points[-1][0] for points in logged.values()), texts, low, by_design)


def arm_signs(groups: Mapping[str, Sequence[Run]]) -> Iterator[tuple[str, LoggedSigns]]:
    """Of every arm the signs of one run, one with signs where there is any, and how many runs have them."""
    for arm, runs in groups.items():
        logged = [one for run in runs if (one := logged_signs(run))]
        shown = sorted((one for one in logged if one.texts), key=lambda one: not one.collapsed)
        if logged:
            yield f"{arm} ({len(shown)} of {len(logged)} runs)" if shown else arm, (shown or logged)[0]


def cost_rows(runs: Sequence[Run]) -> Iterator[list[str]]:
    """Of each run: steps, training time, examples and tokens per second, FLOPs, time of generating answers."""
    for run in runs:
        steps = [step for entry in run.history if (step := number(entry, "step")) is not None]
        speeds = [speed for _, speed in history_points(run.history, "tokens_per_second")]
        logged = [
            number(flops) or 0 for entry in run.history for key, flops in entry.items() if key.startswith("flops_")
        ]
        spent = [number(one.result, "generation", "seconds") or 0 for one in run.evaluations.values()]
        rates = number(run.metrics, "train_samples_per_second"), fmean(speeds) if speeds else None
        yield [
            run.label,
            f"{max(steps):,.0f}" if steps else "-",
            duration(number(run.metrics, "train_runtime")),
            *("-" if rate is None else f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}" for rate in rates),
            scaled(number(run.metrics, "total_flos") or sum(logged) or None),
            duration(sum(spent) or None),
        ]


def duration(seconds: float | None) -> str:
    """``42.1 s``, ``12 min 5 s``, ``3 h 20 min``."""
    if seconds is None or seconds < 60:
        return "-" if seconds is None else f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60:,} h {minutes % 60} min"
