"""Figures, drawn from saved arrays and numbers and returned as matplotlib figures (extra ``analysis``); `save_figure`.

They are drawn without pyplot, so nothing global is changed and no window opens. They are 8 inches wide: at 800 pixels their
smallest letters are 12 pixels high. Lines differ in colour, in dashes and in markers.

Shapes: N pairs, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from stepjepa.analysis.geometry import (
    GeometryNumbers,
    aligned_cosines,
    check_views,
    shuffled_cosines,
    singular_values,
)
from stepjepa.analysis.numbers import GeometryComparison
from stepjepa.analysis.states import FINAL, States
from stepjepa.errors import ConfigError
from stepjepa.inspect.figure import COLOURS, WIDTH, series_style
from stepjepa.inspect.figure import save_figure as save_figure  # of every figure
from stepjepa.utils.failures import library
from stepjepa.utils.text import slug

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DASHES = ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)), (0, (1, 3)), (0, (8, 3)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
GREY = "#6b6b6b"
SPECTRUM_FLOOR = 1e-8  # singular values below this share of the largest are rounding
# t-SNE starts from so many principal components, which takes noise and time away (van der Maaten and Hinton 2008).
COMPONENTS = 50
METHOD_TITLES = {"pca": "PCA", "tsne": "t-SNE"}
Drawing = Callable[[], Any]  # gives a matplotlib figure


def look(index: int) -> dict[str, Any]:
    """What tells series number `index` from the others: 49 of them differ, the first 7 in all three."""
    colour, shape = series_style(index)
    return {"color": COLOURS[colour].light, "linestyle": DASHES[shape], "marker": MARKERS[shape]}


def new_figure(
    rows: int = 1, columns: int = 1, *, height: float, title: str = "", **options: Any
) -> tuple[Figure, list[Any]]:
    """A figure of `WIDTH` x `height` inches and its axes, row by row, with a light grid and without a box.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    figure = library("matplotlib.figure", "analysis").Figure(figsize=(WIDTH, height), layout="constrained", dpi=100)
    figure.get_layout_engine().set(h_pad=0.07)
    axes = figure.subplots(rows, columns, squeeze=False, **options).ravel().tolist()
    for axis in axes:
        axis.grid(alpha=0.3, linewidth=0.6)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=9)
    if title:
        figure.suptitle(title, fontsize=12)
    return figure, axes


def draw_lines(axis: Axes, lines: Mapping[str, Sequence[tuple[float, float]]], marks: int = 0) -> None:
    """A line of (x, y) for each name, told apart by its `look`; of long ones `marks` points are marked, 0 for all."""
    for i, (name, points) in enumerate(lines.items()):
        every = max(1, len(points) // marks) if marks else 1
        xs = [x for x, _ in points]
        ys = [y for _, y in points]
        axis.plot(xs, ys, label=name, linewidth=1.8, markersize=5, markevery=(i % every, every), **look(i))


def legend_below(figure: Figure, axis: Axes) -> None:
    """One legend for all panels, under them, in as many columns as fit."""
    handles, labels = axis.get_legend_handles_labels()
    columns = max(1, min(len(labels), int(110 / (max(map(len, labels), default=1) + 8))))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=10)


def spectrum_figure(spectra: Mapping[str, np.ndarray], title: str = "Singular values of source - target") -> Figure:
    """Singular values (S,) of several models, largest first, on a logarithmic axis."""
    figure, (axis,) = new_figure(height=4.5, title=title)
    drawn = {name: list(enumerate(np.where(values > 0, values, np.nan), 1)) for name, values in spectra.items()}
    draw_lines(axis, drawn, marks=8)
    top = max(float(values.max()) for values in spectra.values())
    if top > 0:
        axis.set_yscale("log")
        axis.set_ylim(bottom=max(SPECTRUM_FLOOR * top, axis.get_ylim()[0]))
    axis.set_xlabel("rank of the singular value")
    axis.set_ylabel("singular value")
    legend_below(figure, axis)
    return figure


def cosine_figure(
    cosines: Mapping[str, tuple[np.ndarray, np.ndarray]], title: str = "Cosine of source and target"
) -> Figure:
    """Histograms of matched (N,) and of shuffled pairs (M,), a panel per model, all on one axis."""
    figure, axes = new_figure(len(cosines), height=1.0 + 1.9 * len(cosines), title=title, sharex=True)
    every = np.concatenate([values for both in cosines.values() for values in both])
    low, high = float(every.min()), float(every.max())
    room = 1e-3 if high - low <= 1e-6 else 0.0  # cosines that are all one have a histogram too
    bins = np.linspace(low - room, high + room, 101)
    for axis, (name, (matched, shuffled)) in zip(axes, cosines.items(), strict=True):
        for i, (label, values) in enumerate((("matched", matched), ("shuffled", shuffled))):
            shares = np.full(len(values), 100 / len(values))
            colour = COLOURS[i].light
            axis.hist(
                values,
                bins,
                weights=shares,
                histtype="stepfilled",
                alpha=0.35,
                label=f"{label} pairs",
                facecolor=colour,
                edgecolor=colour,
                hatch="////" if i else "",
                linewidth=0,
            )
            axis.hist(values, bins, weights=shares, histtype="step", color=colour, linewidth=1.4)
            axis.axvline(values.mean(), color=colour, linestyle=DASHES[i], linewidth=1.4, label=f"mean, {label}")
        means = f"mean {matched.mean():.4f} matched and {shuffled.mean():.4f} shuffled"
        axis.set_title(f"{name}: {means}", fontsize=10, loc="left")
        axis.set_ylabel("pairs (%)")
    axes[-1].set_xlabel("cosine")
    legend_below(figure, axes[0])
    return figure


def layer_figure(
    values: Mapping[str, Mapping[int, float]], label: str, *, title: str = "", chance: float | None = None
) -> Figure:
    """A number by layer, a line per model: retrieval, a cosine gap, an effective rank.

    Args:
        values: model -> layer -> number; -1, after the final norm, comes last.
        label: of the number, with its unit.
        chance: what random states give; a horizontal line.
    """
    layers = sorted({layer for line in values.values() for layer in line}, key=lambda n: (n < 0, n))
    figure, (axis,) = new_figure(height=4.5, title=title)
    lines = {}
    for name, line in values.items():
        lines[name] = [(place, line[layer]) for place, layer in enumerate(layers) if layer in line]
    draw_lines(axis, lines)
    if chance is not None:
        axis.axhline(chance, color=GREY, linewidth=1.2, linestyle=(0, (2, 2)), label="chance")
    last = len(layers) - 1
    ticks = [*range(0, last, -(-len(layers) // 16)), last]  # so that the numbers do not touch
    names = {-1: "final", 0: "emb."}
    axis.set_xticks(ticks, [names.get(layers[place], str(layers[place])) for place in ticks])
    axis.set_xlabel("layer")
    axis.set_ylabel(label)
    legend_below(figure, axis)
    return figure


@dataclass(frozen=True)
class Coordinates:
    """Points of both views in one plane.

    Attributes:
        source, target: (N, 2) float64, row i of both a pair.
        method: "pca" or "tsne".
        explained: share of the variance on each of the two axes, for PCA only.
    """

    source: np.ndarray
    target: np.ndarray
    method: str
    explained: tuple[float, float] | None = None


def coordinates(source: np.ndarray, target: np.ndarray, method: str = "pca", seed: int = 0) -> Coordinates:
    """The states of both views in one plane, the same for the same seed and the same versions of the libraries.

    Distances on a PCA are distances in two of D directions. On t-SNE only who is near whom means something: neither the
    size of a cluster nor the distance between two of them does.

    Args:
        source, target: (N, D), N >= 2.
        method: "pca", or "tsne" (van der Maaten and Hinton 2008, perplexity 30, less for few rows).

    Raises:
        DataError: the arrays are no pair of views.
        ConfigError: the method is unknown, or scikit-learn is missing.
    """
    if method not in METHOD_TITLES:
        raise ConfigError(f"method is {method!r}; known: {', '.join(METHOD_TITLES)}")
    check_views(source, target)
    states, n = np.concatenate([source, target]).astype(np.float32), len(source)
    points = np.zeros((2 * n, 2))
    explained = (0.0, 0.0) if method == "pca" else None
    if np.ptp(states, axis=0).any():  # else they are one point, which no method can scale
        most = min(2 if method == "pca" else COMPONENTS, *states.shape)
        pca = library("sklearn.decomposition", "analysis").PCA(most, random_state=seed)
        placed = pca.fit_transform(states)
        if method == "pca":
            first, second, *_ = [*map(float, pca.explained_variance_ratio_), 0.0]
            explained = first, second
        else:
            start = "pca" if most >= 2 else "random"
            perplexity = min(30.0, (2 * n - 1) / 3)
            tsne = library("sklearn.manifold", "analysis").TSNE
            placed = tsne(2, perplexity=perplexity, init=start, random_state=seed).fit_transform(placed)
        points[:, : placed.shape[1]] = placed
    return Coordinates(points[:n], points[n:], method, explained)


def scatter_figure(points: Coordinates, title: str = "", max_lines: int = 150) -> Figure:
    """Both views in one plane, with a line between the two of a pair.

    Args:
        points: from `coordinates`.
        max_lines: pairs that are joined, taken evenly from all.
    """
    figure, (axis,) = new_figure(height=6.0, title=title or METHOD_TITLES[points.method])
    n = len(points.source)
    joined = {round(row) for row in np.linspace(0, n - 1, min(n, max_lines))}
    for i in sorted(joined):
        ends = np.stack([points.source[i], points.target[i]])
        axis.plot(ends[:, 0], ends[:, 1], color=GREY, linewidth=0.6, alpha=0.5, zorder=1)
    size, alpha = (26, 0.9) if n <= 300 else (12, 0.6) if n <= 2000 else (5, 0.35)
    for i, (label, view) in enumerate((("source", points.source), ("target", points.target))):
        colour = COLOURS[i].light
        axis.scatter(
            view[:, 0],
            view[:, 1],
            s=size,
            alpha=alpha,
            marker=MARKERS[i],
            label=label,
            linewidths=0.9 if i else 0,
            facecolors="none" if i else colour,  # hollow, so that one view does not hide the other
            edgecolors=colour,
            zorder=2 + i,
            rasterized=n > 2000,
        )
    name = "principal component" if points.method == "pca" else f"{METHOD_TITLES[points.method]} axis"
    for number, set_label in enumerate((axis.set_xlabel, axis.set_ylabel)):
        share = "" if points.explained is None else f" ({100 * points.explained[number]:.1f} % of variance)"
        set_label(f"{name} {number + 1}{share}")
    if points.method == "pca":
        axis.set_aspect("equal", adjustable="datalim")
    legend_below(figure, axis)
    legend: Any = figure.legends[0]
    for handle in legend.legend_handles:
        handle.set_alpha(1)
        handle.set_sizes([40])
    return figure


def comparison_figures(
    comparison: GeometryComparison, states: Mapping[str, States], methods: Sequence[str], seed: int
) -> Iterator[tuple[str, Drawing]]:
    """Name and drawing of every figure that there are numbers for; those of one model each are METHOD-MODEL.

    Args:
        methods: of `coordinates`.
        seed: of the shuffled pairs and of the coordinates.
    """
    where = "final" if comparison.layer == FINAL else f"layer {comparison.layer}"
    views = {label: one.layer(comparison.layer) for label, one in states.items()}

    def spectrum() -> Any:
        spectra = {label: singular_values(source - target) for label, (source, target) in views.items()}
        return spectrum_figure(spectra, f"Singular values of source - target ({where})")

    def cosine() -> Any:
        cosines = {}
        for label, both in views.items():
            cosines[label] = aligned_cosines(*both), shuffled_cosines(*both, seed)
        return cosine_figure(cosines, f"Cosine of source and target ({where})")

    def by_layer(title: str, unit: str, read: Callable[[GeometryNumbers], float], chance: float | None = None) -> Any:
        values = {}
        for label, one in comparison.models.items():
            values[label] = {layer: read(numbers) for layer, numbers in one.layers.items()}
        return layer_figure(values, unit, title=title, chance=chance)

    def scatter(label: str, method: str) -> Any:
        title = f"{METHOD_TITLES[method]}: {label} ({where})"
        return scatter_figure(coordinates(*views[label], method, seed), title)

    yield from (("spectrum", spectrum), ("cosine", cosine))
    if any(len(one.layers) > 1 for one in comparison.models.values()):
        chance = 100 * next(iter(comparison.shown.values())).pairs.chance_at_1
        titles = "Targets found from their sources", "retrieval@1 (%)"
        yield "retrieval", partial(by_layer, *titles, lambda one: 100 * one.pairs.retrieval_at_1, chance)
        for side in ("source", "target"):
            title = f"Effective rank of the {side} states"
            rank = attrgetter(f"{side}.effective_rank")
            yield f"rank_{side}", partial(by_layer, title, "effective rank (of unit rows)", rank)
    for method in dict.fromkeys(methods):
        for label in states:
            yield f"{method}-{slug(label)}", partial(scatter, label, method)
