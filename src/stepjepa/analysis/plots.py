"""Figures, drawn from saved arrays and numbers and returned as matplotlib figures (extra ``analysis``); `save_figure`.

They are drawn without pyplot, so nothing global is changed and no window opens. They are 8 inches wide: at 800 pixels their
smallest letters are 12 pixels high. Lines differ in colour, in dashes and in markers.

Shapes: N pairs, D width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from stepjepa.analysis.geometry import aligned_cosines, check_views, shuffled_cosines, singular_values
from stepjepa.analysis.numbers import GeometryComparison
from stepjepa.analysis.states import FINAL, States
from stepjepa.inspect.figure import COLOURS, WIDTH, series_style
from stepjepa.inspect.figure import save_figure as save_figure  # of every figure
from stepjepa.utils.failures import library

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DASHES = ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)), (0, (1, 3)), (0, (8, 3)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
GREY = "#6b6b6b"
SPECTRUM_FLOOR = 1e-8  # singular values below this share of the largest are rounding
Views = Mapping[str, tuple[np.ndarray, np.ndarray]]  # label of a model -> source and target states


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
    low = float(every.min())
    high = float(every.max())
    room = 1e-3 if high - low <= 1e-6 else 0.0  # cosines that are all one have a histogram too
    bins = np.linspace(low - room, high + room, 101)
    for axis, (name, (matched, shuffled)) in zip(axes, cosines.items(), strict=True):
        for i, (label, values) in enumerate((("matched pairs", matched), ("shuffled pairs", shuffled))):
            axis.hist(
                values,
                bins,
                weights=np.full(len(values), 100 / len(values)),
                histtype="step",
                label=label,
                color=COLOURS[i].light,
                linestyle=DASHES[i],
                linewidth=1.6,
            )
        means = f"mean {matched.mean():.4f} matched and {shuffled.mean():.4f} shuffled"
        axis.set_title(f"{name}: {means}", fontsize=10, loc="left")
        axis.set_ylabel("pairs (%)")
    axes[-1].set_xlabel("cosine")
    legend_below(figure, axes[0])
    return figure


def layer_figure(panels: Mapping[str, Mapping[str, Mapping[int, float]]]) -> Figure:
    """Numbers by layer, a panel for each and a line per model.

    Args:
        panels: name of the number, with its unit -> model -> layer -> number; -1, after the final norm, comes last.
    """
    known = set[int]()
    for panel in panels.values():
        known.update(*panel.values())
    layers = sorted(known, key=lambda layer: (layer < 0, layer))
    figure, axes = new_figure(len(panels), height=1.0 + 2.5 * len(panels), title="By layer", sharex=True)
    for axis, (label, panel) in zip(axes, panels.items(), strict=True):
        lines = {}
        for name, line in panel.items():
            lines[name] = [(place, line[layer]) for place, layer in enumerate(layers) if layer in line]
        draw_lines(axis, lines)
        axis.set_ylabel(label)
    last = len(layers) - 1
    ticks = [*range(0, last, -(-len(layers) // 16)), last]  # so that the numbers do not touch
    names = {-1: "final", 0: "emb."}
    labels = [names.get(layers[place], str(layers[place])) for place in ticks]
    axes[-1].set_xticks(ticks, labels)
    axes[-1].set_xlabel("layer")
    legend_below(figure, axes[0])
    return figure


def principal_plane(source: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Both views (N, D) in the plane of their first two principal components: (N, 2) each, and the axes' shares of the
    variance, (2,).

    Raises:
        DataError: the arrays are no pair of views.
    """
    check_views(source, target)
    states = np.concatenate([source, target]).astype(np.float64)
    centred = states - states.mean(axis=0)
    left, singular, _ = np.linalg.svd(centred, full_matrices=False)
    width = min(2, len(singular))  # states of one dimension lie on a line
    points = np.zeros((len(states), 2))
    points[:, :width] = left[:, :width] * singular[:width]
    variances = np.square(singular)
    shares = np.zeros(2)
    shares[:width] = variances[:width] / (variances.sum() or 1.0)
    n = len(source)
    return points[:n], points[n:], shares


def pca_figure(views: Views, title: str = "PCA of both views") -> Figure:
    """Both views of several models, each model in the plane of its own principal components."""
    figure, axes = new_figure(len(views), height=1.0 + 4.5 * len(views), title=title)
    for axis, (name, (source, target)) in zip(axes, views.items(), strict=True):
        *points, shares = principal_plane(source, target)
        first, second = 100 * shares
        for i, label in enumerate(("source", "target")):
            colour = COLOURS[i].light
            axis.scatter(
                *points[i].T,
                s=26 if len(source) <= 300 else 8,
                alpha=0.6,
                marker=MARKERS[i],
                label=label,
                facecolors="none" if i else colour,  # hollow, so that one view does not hide the other
                edgecolors=colour,
                rasterized=True,
            )
        axis.set_title(name, fontsize=10, loc="left")
        axis.set_xlabel(f"component 1 ({first:.1f} % of variance)")
        axis.set_ylabel(f"component 2 ({second:.1f} % of variance)")
        axis.set_aspect("equal", adjustable="datalim")
    legend_below(figure, axes[0])
    return figure


def comparison_figures(comparison: GeometryComparison, states: Mapping[str, States]) -> Iterator[tuple[str, Figure]]:
    """Name and figure of everything that there are numbers for."""
    where = "final" if comparison.layer == FINAL else f"layer {comparison.layer}"
    views = {label: one.layer(comparison.layer) for label, one in states.items()}
    spectra = {label: singular_values(source - target) for label, (source, target) in views.items()}
    yield "spectrum", spectrum_figure(spectra, f"Singular values of source - target ({where})")
    cosines = {label: (aligned_cosines(*both), shuffled_cosines(*both)) for label, both in views.items()}
    yield "cosine", cosine_figure(cosines, f"Cosine of source and target ({where})")
    yield "pca", pca_figure(views, f"PCA of both views ({where})")
    if all(len(one.layers) == 1 for one in states.values()):
        return
    panels: dict[str, dict[str, dict[int, float]]] = {}
    for label, one in comparison.models.items():
        for layer, numbers in one.layers.items():
            shown = {
                "retrieval@1 (%)": 100 * numbers.pairs.retrieval_at_1,
                "effective rank, source": numbers.source.effective_rank,
                "effective rank, target": numbers.target.effective_rank,
            }
            for name, value in shown.items():
                panels.setdefault(name, {}).setdefault(label, {})[layer] = value
    yield "layers", layer_figure(panels)
