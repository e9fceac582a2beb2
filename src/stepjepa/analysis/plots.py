"""Figures, drawn from saved arrays and numbers and returned as matplotlib figures (extra ``analysis``); `save_figure`.

They are drawn without pyplot, so nothing global is changed and no window opens. They are 8 inches wide: at 800 pixels their
smallest letters are 12 pixels high. Lines differ in colour, in dashes and in markers. Nothing to draw is a `DataError`.

Shapes: N pairs, D width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stepjepa.analysis.geometry import check_views
from stepjepa.errors import ConfigError, DataError
from stepjepa.inspect.figure import COLOURS, WIDTH, series_style
from stepjepa.inspect.figure import save_figure as save_figure  # of every figure
from stepjepa.utils.failures import library

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DASHES = ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)), (0, (1, 3)), (0, (8, 3)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
GREY = "#6b6b6b"
_CHANCE: dict[str, Any] = {"color": GREY, "linewidth": 1.2, "linestyle": (0, (2, 2)), "label": "chance"}

SPECTRUM_FLOOR = 1e-8  # singular values below this share of the largest are rounding
# t-SNE starts from so many principal components, which takes noise and time away (van der Maaten and Hinton 2008).
COMPONENTS = 50
# Figures of ``stepjepa analyze`` by their files' names, but for those of one model each, which are METHOD-MODEL.
TITLES = {
    "spectrum": "Singular values of target minus source",
    "cosine": "Cosines of matched and of shuffled pairs",
    "retrieval": "Targets found from their sources, by layer",
    "rank_source": "Effective rank of the sources, by layer",
    "rank_target": "Effective rank of the targets, by layer",
    "steps": "Pairs by step",
}
METHOD_TITLES = {"pca": "PCA", "tsne": "t-SNE"}

# Mean difference, low and high end of its interval; the ends may be missing.
Estimate = tuple[float, "float | None", "float | None"]


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
    _need(spectra, "spectra")
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
    _need(cosines, "cosines")
    figure, axes = new_figure(len(cosines), height=1.0 + 1.9 * len(cosines), title=title, sharex=True)
    every = np.concatenate([values for both in cosines.values() for values in both])
    low, high = float(every.min()), float(every.max())
    if high - low <= 1e-6:
        low, high = low - 1e-3, high + 1e-3
    bins = np.linspace(low, high, 101)
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
    _need(values, "layers")
    layers = sorted({layer for line in values.values() for layer in line}, key=lambda n: (n < 0, n))
    figure, (axis,) = new_figure(height=4.5, title=title)
    lines = {}
    for name, line in values.items():
        lines[name] = [(place, line[layer]) for place, layer in enumerate(layers) if layer in line]
    draw_lines(axis, lines)
    if chance is not None:
        axis.axhline(chance, **_CHANCE)
    last = len(layers) - 1
    ticks = [*range(0, last, -(-len(layers) // 16)), last]  # so that the numbers do not touch
    names = {-1: "final", 0: "emb."}
    axis.set_xticks(ticks, [names.get(layers[place], str(layers[place])) for place in ticks])
    axis.set_xlabel("layer")
    axis.set_ylabel(label)
    legend_below(figure, axis)
    return figure


def retrieval_figure(values: Mapping[str, Mapping[int, float]], chance: float) -> Figure:
    """Share of targets that are the nearest to their source, by layer, a line per model: see `layer_figure`."""
    percent = {}
    for name, line in values.items():
        percent[name] = {layer: 100 * share for layer, share in line.items()}
    title = "Targets found from their sources"
    figure = layer_figure(percent, "retrieval@1 (%)", title=title, chance=100 * chance)
    shares = [share for line in values.values() for share in line.values()]
    figure.axes[0].set_ylim(*_percent_limits([chance, *shares]))
    return figure


def step_figure(values: Mapping[str, Mapping[int, tuple[float, float]]], chance: Mapping[int, float]) -> Figure:
    """Gap of the cosines and retrieval by target step, a line for each model, among the pairs of each step alone.

    Args:
        values: model -> step -> gap and retrieval@1.
        chance: step -> retrieval of random states.
    """
    figure, (gap_axis, share_axis) = new_figure(1, 2, height=4.0, title="By target step")
    gaps, percent = {}, {}
    for name, steps in values.items():
        gaps[name] = [(step, gap) for step, (gap, _) in steps.items()]
        percent[name] = [(step, 100 * share) for step, (_, share) in steps.items()]
    draw_lines(gap_axis, gaps)
    gap_axis.axhline(0, color=GREY, linewidth=0.8)
    gap_axis.set_title("cosine, matched - shuffled", fontsize=10)
    draw_lines(share_axis, percent)
    share_axis.plot(list(chance), [100 * share for share in chance.values()], **_CHANCE)
    shares = [share for steps in values.values() for _, share in steps.values()]
    share_axis.set_ylim(*_percent_limits([*chance.values(), *shares]))
    share_axis.set_title("retrieval@1 (%)", fontsize=10)
    for axis in (gap_axis, share_axis):
        axis.set_xlabel("target step")
        axis.set_xticks(list(chance)[:: -(-len(chance) // 10)])
    legend_below(figure, share_axis)
    return figure


def _percent_limits(shares: Sequence[float]) -> tuple[float, float]:
    """Ends of an axis in percent: 0 to 100, unless all shares are so small that they would be at its bottom."""
    top = 100.0 if max(shares) > 0.4 else max(125 * max(shares), 1.0)
    return -0.03 * top, 1.03 * top


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


def forest_figure(
    differences: Sequence[tuple[str, Mapping[str, Estimate]]],
    label: str,
    *,
    title: str = "Differences between arms, paired by seed",
    higher_is_better: bool = True,
) -> Figure:
    """Paired differences with their 95 % intervals, a line per arm and comparison, around a line of no difference.

    A hollow mark has no interval: it comes from one seed.

    Args:
        differences: (arm, comparison -> (mean, low, high)), as `stepjepa.study.results.Table.differences` gives them.
        label: of the metric, with its unit.
    """
    _need(differences, "differences")
    kinds = list(dict.fromkeys(kind for _, estimates in differences for kind in estimates))
    lines = sum(len(estimates) for _, estimates in differences)
    figure, (axis,) = new_figure(height=1.7 + 0.26 * lines + 0.2 * len(differences), title=title)
    styles: dict[str, dict[str, Any]] = {}
    for i, kind in enumerate(kinds):
        style = look(i)
        styles[kind] = {"fmt": style["marker"], "color": style["color"], "capsize": 4, "linewidth": 1.8}
        axis.errorbar([], [], xerr=[], label=kind, **styles[kind])
    middles, y = [], 0.0
    for name, estimates in differences:
        middles.append((y + (len(estimates) - 1) / 2, name))
        for kind, (mean, low, high) in estimates.items():
            reach = [[0.0], [0.0]]
            if low is not None and high is not None:
                reach = [[mean - low], [high - mean]]
            face = "white" if low is None else styles[kind]["color"]
            axis.errorbar([mean], [y], xerr=reach, markersize=6, markerfacecolor=face, **styles[kind])
            y += 1
        axis.axhline(y - 0.2, color=GREY, linewidth=0.5, alpha=0.5)
        y += 0.6
    axis.axvline(0, color="black", linewidth=1)
    axis.set_yticks(*zip(*middles, strict=True), fontsize=10)
    axis.set_ylim(y - 0.8, -0.8)  # the first arm on top
    axis.grid(False, axis="y")
    better = "right" if higher_is_better else "left"
    axis.set_xlabel(f"difference in {label}, 95 % interval (better to the {better})")
    legend_below(figure, axis)
    return figure


def _need(values: Any, what: str) -> None:
    if len(values) == 0:
        raise DataError(f"there are no {what} to draw")
