"""Draws the figures of an analysis with matplotlib (extra ``analysis``).

Pyplot is not used, so no global state changes and no window opens. Figures are 8 inches wide, so that the smallest letters
are 12 pixels high at a width of 800 pixels. Lines differ in colour, dashes and markers.

Shapes: N pairs, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from stepjepa.analysis.geometry import GeometryNumbers, singular_values
from stepjepa.analysis.numbers import GeometryComparison, ModelGeometry
from stepjepa.analysis.states import FINAL, States
from stepjepa.errors import library
from stepjepa.inspect.figure import COLOURS, WIDTH, series_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DASHES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
# Measures that are drawn by layer.
MEASURES: Mapping[str, Callable[[GeometryNumbers], float]] = {
    "retrieval@1 (%)": lambda numbers: 100 * numbers.pairs.retrieval_at_1,
    "effective rank, source": lambda numbers: numbers.source.effective_rank,
    "effective rank, target": lambda numbers: numbers.target.effective_rank,
}
# Singular values below this share of the largest one are rounding errors.
SPECTRUM_FLOOR = 1e-8


def look(index: int) -> dict[str, Any]:
    """Colour, dashes and marker of series number `index`: 49 series differ, the first 4 in all three."""
    colour, shape = series_style(index)
    return {
        "color": COLOURS[colour].light,
        "linestyle": DASHES[shape % len(DASHES)],
        "marker": MARKERS[shape],
    }


def new_figure(
    rows: int = 1, columns: int = 1, *, height: float, title: str = ""
) -> tuple[Figure, list[Any]]:
    """A figure of `WIDTH` x `height` inches and its axes, row by row, with a light grid and without a box.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    figure = library("matplotlib.figure", "analysis").Figure(
        figsize=(WIDTH, height), layout="constrained", dpi=100
    )
    figure.get_layout_engine().set(h_pad=0.07)
    axes = figure.subplots(rows, columns, squeeze=False, sharex="col").ravel().tolist()
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
    """Draw a single legend for all panels, below them."""
    handles, labels = axis.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", frameon=False, fontsize=10)


def spectrum_figure(spectra: Mapping[str, np.ndarray], title: str) -> Figure:
    """Singular values (S,) of several models, largest first, on a logarithmic axis."""
    figure, (axis,) = new_figure(height=4.5, title=title)
    draw_lines(
        axis, {name: list(enumerate(values, 1)) for name, values in spectra.items()}, marks=8
    )
    top = max(float(values.max()) for values in spectra.values())
    if top > 0:
        # Zeros are left out.
        axis.set_yscale("log", nonpositive="mask")
        axis.set_ylim(bottom=max(SPECTRUM_FLOOR * top, axis.get_ylim()[0]))
    axis.set_xlabel("rank of the singular value")
    axis.set_ylabel("singular value")
    legend_below(figure, axis)
    return figure


def layer_figure(models: Mapping[str, ModelGeometry]) -> Figure:
    """Measures by layer: a panel for each of `MEASURES`, a line for each model; -1, after the final norm, is drawn last."""
    known = {layer for model in models.values() for layer in model.layers}
    layers = sorted(known, key=lambda layer: (layer < 0, layer))
    figure, axes = new_figure(len(MEASURES), height=1.0 + 2.5 * len(MEASURES), title="By layer")
    for axis, (label, measure) in zip(axes, MEASURES.items(), strict=True):
        lines = {}
        for name, model in models.items():
            points = [(layers.index(layer), measure(one)) for layer, one in model.layers.items()]
            lines[name] = sorted(points)
        draw_lines(axis, lines)
        axis.set_ylabel(label)
    last = len(layers) - 1
    # At most 17 tick labels, so that they do not overlap.
    ticks = [*range(0, last, -(-len(layers) // 16)), last]
    names = ["final" if layers[place] == FINAL else str(layers[place]) for place in ticks]
    axes[-1].set_xticks(ticks, names)
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
    yield "layers", layer_figure(comparison.models)
