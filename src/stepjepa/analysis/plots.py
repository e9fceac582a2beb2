"""Draws the figures of an analysis with matplotlib (extra ``analysis``).

Pyplot is not used, so no global state changes and no window opens. Figures are 8 inches wide, so that the smallest letters
are 12 pixels high at a width of 800 pixels. Lines differ in colour, dashes and markers.

Shapes: N pairs, D width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from stepjepa.analysis.geometry import singular_values
from stepjepa.analysis.numbers import GeometryComparison
from stepjepa.analysis.states import FINAL, States
from stepjepa.errors import library
from stepjepa.inspect.figure import COLOURS, WIDTH, series_style
from stepjepa.inspect.figure import (
    save_figure as save_figure,
)  # re-exported: it saves every figure of an analysis

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DASHES = ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)), (0, (1, 3)), (0, (8, 3)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
# Singular values below this share of the largest one are rounding errors.
SPECTRUM_FLOOR = 1e-8


def look(index: int) -> dict[str, Any]:
    """Colour, dashes and marker of series number `index`: 49 series differ, the first 7 in all three."""
    colour, shape = series_style(index)
    return {"color": COLOURS[colour].light, "linestyle": DASHES[shape], "marker": MARKERS[shape]}


def new_figure(
    rows: int = 1, columns: int = 1, *, height: float, title: str = "", **options: Any
) -> tuple[Figure, list[Any]]:
    """A figure of `WIDTH` x `height` inches and its axes, row by row, with a light grid and without a box.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    figure = library("matplotlib.figure", "analysis").Figure(
        figsize=(WIDTH, height), layout="constrained", dpi=100
    )
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


def draw_lines(
    axis: Axes, lines: Mapping[str, Sequence[tuple[float, float]]], marks: int = 0
) -> None:
    """Draw a line of (x, y) points per name, in its `look`, with about `marks` markers; if 0, every point has a marker."""
    for i, (name, points) in enumerate(lines.items()):
        every = max(1, len(points) // marks) if marks else 1
        xs = [x for x, _ in points]
        ys = [y for _, y in points]
        axis.plot(
            xs, ys, label=name, linewidth=1.8, markersize=5, markevery=(i % every, every), **look(i)
        )


def legend_below(figure: Figure, axis: Axes) -> None:
    """Draw a single legend for all panels, below them, in as many columns as fit."""
    handles, labels = axis.get_legend_handles_labels()
    columns = max(1, min(len(labels), int(110 / (max(map(len, labels), default=1) + 8))))
    figure.legend(
        handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=10
    )


def spectrum_figure(
    spectra: Mapping[str, np.ndarray], title: str = "Singular values of source - target"
) -> Figure:
    """Singular values (S,) of several models, largest first, on a logarithmic axis."""
    figure, (axis,) = new_figure(height=4.5, title=title)
    drawn = {
        name: list(enumerate(np.where(values > 0, values, np.nan), 1))
        for name, values in spectra.items()
    }
    draw_lines(axis, drawn, marks=8)
    top = max(float(values.max()) for values in spectra.values())
    if top > 0:
        axis.set_yscale("log")
        axis.set_ylim(bottom=max(SPECTRUM_FLOOR * top, axis.get_ylim()[0]))
    axis.set_xlabel("rank of the singular value")
    axis.set_ylabel("singular value")
    legend_below(figure, axis)
    return figure


def layer_figure(panels: Mapping[str, Mapping[str, Mapping[int, float]]]) -> Figure:
    """Measures by layer: a panel for each measure, a line for each model.

    Args:
        panels: name of the measure with its unit -> model -> layer -> value; -1, after the final norm, is drawn last.
    """
    known = set[int]()
    for panel in panels.values():
        known.update(*panel.values())
    layers = sorted(known, key=lambda layer: (layer < 0, layer))
    figure, axes = new_figure(
        len(panels), height=1.0 + 2.5 * len(panels), title="By layer", sharex=True
    )
    for axis, (label, panel) in zip(axes, panels.items(), strict=True):
        lines = {}
        for name, line in panel.items():
            lines[name] = [
                (place, line[layer]) for place, layer in enumerate(layers) if layer in line
            ]
        draw_lines(axis, lines)
        axis.set_ylabel(label)
    last = len(layers) - 1
    # At most 17 tick labels, so that they do not overlap.
    ticks = [*range(0, last, -(-len(layers) // 16)), last]
    names = {-1: "final", 0: "emb."}
    labels = [names.get(layers[place], str(layers[place])) for place in ticks]
    axes[-1].set_xticks(ticks, labels)
    axes[-1].set_xlabel("layer")
    legend_below(figure, axes[0])
    return figure


def comparison_figures(
    comparison: GeometryComparison, states: Mapping[str, States]
) -> Iterator[tuple[str, Figure]]:
    """Yield names and figures: the spectrum, and the measures by layer if there are several layers."""
    where = "final" if comparison.layer == FINAL else f"layer {comparison.layer}"
    spectra = {}
    for label, of_model in states.items():
        source, target = of_model.layer(comparison.layer)
        spectra[label] = singular_values(source - target)
    yield "spectrum", spectrum_figure(spectra, f"Singular values of source - target ({where})")
    if all(len(of_model.layers) == 1 for of_model in states.values()):
        return
    panels: dict[str, dict[str, dict[int, float]]] = {}
    for label, model in comparison.models.items():
        for layer, numbers in model.layers.items():
            shown = {
                "retrieval@1 (%)": 100 * numbers.pairs.retrieval_at_1,
                "effective rank, source": numbers.source.effective_rank,
                "effective rank, target": numbers.target.effective_rank,
            }
            for name, value in shown.items():
                panels.setdefault(name, {}).setdefault(label, {})[layer] = value
    yield "layers", layer_figure(panels)
