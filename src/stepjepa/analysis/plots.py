"""Figures, each drawn from saved arrays and numbers and returned as a matplotlib Figure (extra ``analysis``).

`style.save_figure` writes them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stepjepa.analysis.coordinates import Coordinates
from stepjepa.analysis.style import GREY, legend_below, look, new_figure, plain_log_axis, save_figure
from stepjepa.errors import DataError

# Key in the Trainer's log and label of its axis.
LOSS_CURVES = (("lm_loss", "LM loss (nats a token)"), ("jepa_loss", "JEPA loss"))
DEMO_CURVES = (
    ("lm_loss", "LM loss (nats a token)"),
    ("cosine_similarity", "cosine of both views"),
    ("effective_rank", "effective rank of targets"),
)
# Singular values below this share of the largest are rounding.
SPECTRUM_FLOOR = 1e-8
MAX_LINES = 150
_METHOD_AXES = {"pca": "principal component", "tsne": "t-SNE axis", "umap": "UMAP axis"}
_METHOD_TITLES = {"pca": "PCA", "tsne": "t-SNE", "umap": "UMAP"}

# Mean difference, low and high end of its interval; the ends may be missing.
Estimate = tuple[float, "float | None", "float | None"]


def spectrum_figure(spectra: Mapping[str, np.ndarray], title: str = "Singular values of source - target") -> Any:
    """Singular values of several models, largest first, on a logarithmic axis.

    Args:
        spectra: model -> (S,) singular values.

    Raises:
        DataError: there is nothing to draw.
    """
    _need(spectra, "spectra")
    figure, (axis,) = new_figure(height=4.5, title=title)
    top = max((float(values.max()) for values in spectra.values() if len(values)), default=0.0)
    for i, (name, values) in enumerate(spectra.items()):
        style, shown = look(i), np.where(values > 0, values, np.nan)
        every = max(1, len(values) // 8)
        axis.plot(
            np.arange(1, len(values) + 1), shown, label=name, linewidth=1.8, markersize=5,
            markevery=(i * every // max(1, len(spectra)), every), **style._asdict(),
        )  # fmt: skip
    if top > 0:
        axis.set_yscale("log")
        axis.set_ylim(bottom=max(SPECTRUM_FLOOR * top, axis.get_ylim()[0]))
    axis.set_xlabel("rank of the singular value")
    axis.set_ylabel("singular value")
    legend_below(figure, axis)
    return figure


def cosine_figure(
    cosines: Mapping[str, tuple[np.ndarray, np.ndarray]], title: str = "Cosine of source and target"
) -> Any:
    """Histograms of matched and of shuffled pairs, a panel per model, all on one axis.

    Args:
        cosines: model -> cosines of matched pairs (N,), cosines of shuffled pairs (M,).

    Raises:
        DataError: there is nothing to draw.
    """
    _need(cosines, "cosines")
    figure, axes = new_figure(len(cosines), height=1.0 + 1.9 * len(cosines), title=title, sharex=True)
    every = np.concatenate([values for both in cosines.values() for values in both])
    low, high = float(every.min()), float(every.max())
    bins = np.linspace(low, high, 101) if high - low > 1e-6 else np.linspace(low - 1e-3, high + 1e-3, 101)
    for axis, (name, both) in zip(axes, cosines.items(), strict=True):
        means = []
        for i, (values, label) in enumerate(zip(both, ("matched", "shuffled"), strict=True)):
            style, shares, mean = look(i), np.full(len(values), 100 / max(1, len(values))), float(np.mean(values))
            fill = {"facecolor": style.color, "edgecolor": style.color, "hatch": "////" if i else "", "linewidth": 0}
            axis.hist(values, bins, weights=shares, histtype="stepfilled", alpha=0.35, label=f"{label} pairs", **fill)
            axis.hist(values, bins, weights=shares, histtype="step", color=style.color, linewidth=1.4)
            axis.axvline(mean, color=style.color, linestyle=style.linestyle, linewidth=1.4, label=f"mean, {label}")
            means.append(f"{mean:.4f} {label}")
        axis.set_title(f"{name}: mean {' and '.join(means)}", fontsize=10, loc="left")
        axis.set_ylabel("pairs (%)")
    axes[-1].set_xlabel("cosine")
    legend_below(figure, axes[0])
    return figure


def layer_figure(
    values: Mapping[str, Mapping[int, float]], label: str, *, title: str = "", chance: float | None = None
) -> Any:
    """A number by layer, a line per model: retrieval, a cosine gap, an effective rank.

    Args:
        values: model -> layer -> number; -1, behind the final norm, stands last.
        label: of the number, with its unit.
        chance: what random states give; a horizontal line.

    Raises:
        DataError: there is nothing to draw.
    """
    _need(values, "layers")
    layers = sorted({layer for line in values.values() for layer in line}, key=lambda n: (n < 0, n))
    place = {layer: i for i, layer in enumerate(layers)}
    figure, (axis,) = new_figure(height=4.5, title=title)
    for i, (name, line) in enumerate(values.items()):
        points = sorted((place[layer], number) for layer, number in line.items())
        axis.plot(*zip(*points, strict=True), label=name, linewidth=1.8, markersize=6, **look(i)._asdict())
    if chance is not None:
        axis.axhline(chance, color=GREY, linewidth=1.2, linestyle=(0, (2, 2)), label="chance")
    step = -(-len(layers) // 16)  # so that the numbers do not touch
    ticks = [i for i, layer in enumerate(layers) if i % step == 0 and (layer < 0 or i < len(layers) - 1)]
    ticks = sorted({*ticks, len(layers) - 1})
    axis.set_xticks(ticks, [_layer_name(layers[i]) for i in ticks])
    axis.set_xlabel("layer")
    axis.set_ylabel(label)
    legend_below(figure, axis)
    return figure


def retrieval_figure(values: Mapping[str, Mapping[int, float]], chance: float | None = None, k: int = 1) -> Any:
    """Share of targets found among the `k` nearest, by layer, a line per model: see `layer_figure`."""
    percent = {name: {layer: 100 * share for layer, share in line.items()} for name, line in values.items()}
    scaled = None if chance is None else 100 * chance
    figure = layer_figure(percent, f"retrieval@{k} (%)", title="Targets found from their sources", chance=scaled)
    figure.axes[0].set_ylim(-3, 103)
    return figure


def scatter_figure(
    points: Coordinates, title: str = "", labels: tuple[str, str] = ("source", "target"), max_lines: int = MAX_LINES
) -> Any:
    """Both views in one plane, with a line between the two of a pair.

    Args:
        points: from `coordinates`.
        labels: of the views.
        max_lines: pairs that are joined, taken evenly from all.

    Raises:
        DataError: there is nothing to draw.
    """
    _need(points.source, "points")
    figure, (axis,) = new_figure(height=6.0, title=title or _METHOD_TITLES[points.method])
    n = len(points.source)
    size, alpha = (26, 0.9) if n <= 300 else (12, 0.6) if n <= 2000 else (5, 0.35)
    for i in sorted({round(row) for row in np.linspace(0, n - 1, min(n, max_lines))}):
        ends = np.stack([points.source[i], points.target[i]])
        axis.plot(ends[:, 0], ends[:, 1], color=GREY, linewidth=0.6, alpha=0.5, zorder=1)
    for i, (view, label) in enumerate(zip((points.source, points.target), labels, strict=True)):
        style = look(i)
        # The second view's marks are hollow, so that one does not hide the other.
        axis.scatter(
            view[:, 0], view[:, 1], s=size, alpha=alpha, marker=style.marker, label=label, linewidths=0.9 if i else 0,
            facecolors="none" if i else style.color, edgecolors=style.color, zorder=2 + i, rasterized=n > 2000,
        )  # fmt: skip
    for number, set_label in enumerate((axis.set_xlabel, axis.set_ylabel)):
        share = f" ({100 * points.explained[number]:.1f} % of variance)" if points.explained is not None else ""
        set_label(f"{_METHOD_AXES[points.method]} {number + 1}{share}")
    if points.method == "pca":
        axis.set_aspect("equal", adjustable="datalim")
    legend_below(figure, axis)
    for handle in figure.legends[0].legend_handles:
        handle.set_alpha(1)
        handle.set_sizes([40])
    return figure


def curve_figure(
    histories: Mapping[str, Sequence[Mapping[str, Any]]],
    curves: Sequence[tuple[str, str]] = LOSS_CURVES,
    title: str = "Training",
    log: Sequence[str] = ("lm_loss",),
) -> Any:
    """Curves of several runs over the optimizer steps, a panel per quantity; those that no run has logged are left out.

    Args:
        histories: run -> the Trainer's ``log_history``.
        curves: (key of the log, label of the axis).
        log: keys on a logarithmic axis.

    Raises:
        DataError: there is nothing to draw.
    """
    logged = [curve for curve in curves if any(_points(history, curve[0]) for history in histories.values())]
    _need(logged, "curves")
    columns = min(len(logged), 3)
    rows = -(-len(logged) // columns)
    figure, axes = new_figure(rows, columns, height=1.1 + 2.9 * rows, title=title)
    for axis, (key, label) in zip(axes, logged, strict=False):
        for i, (name, history) in enumerate(histories.items()):
            points = _points(history, key)
            style = look(i)
            steps, values = zip(*points, strict=True) if points else ((), ())
            every = max(1, len(points) // 6)
            axis.plot(
                steps, values, label=name, linewidth=1.6, markersize=4, markevery=(i % every, every), **style._asdict()
            )
        axis.set_xlabel("optimizer step", fontsize=9)
        axis.set_title(label, fontsize=10)
        axis.locator_params(axis="x", nbins=4)
        if key in log and all(value > 0 for history in histories.values() for _, value in _points(history, key)):
            plain_log_axis(axis)
    for axis in axes[len(logged) :]:
        axis.set_visible(False)
    legend_below(figure, axes[0])
    return figure


def forest_figure(
    differences: Sequence[tuple[str, Mapping[str, Estimate]]],
    label: str,
    *,
    title: str = "Differences between arms, paired by seed",
    higher_is_better: bool = True,
    confidence: float = 0.95,
) -> Any:
    """Paired differences with their intervals, a line per arm and comparison, around a line of no difference.

    A hollow mark has no interval: it comes from one seed.

    Args:
        differences: (arm, comparison -> (mean, low, high)), as `stepjepa.study.results.Table.differences` gives them.
        label: of the metric, with its unit.

    Raises:
        DataError: there is nothing to draw.
    """
    _need(differences, "differences")
    kinds = list(dict.fromkeys(kind for _, made in differences for kind in made))
    lines = sum(len(made) for _, made in differences)
    figure, (axis,) = new_figure(height=1.7 + 0.26 * lines + 0.2 * len(differences), title=title)
    for i, kind in enumerate(kinds):
        style = look(i)
        axis.errorbar([], [], xerr=[], fmt=style.marker, color=style.color, capsize=4, linewidth=1.8, label=kind)
    middles, y = [], 0.0
    for name, made in differences:
        middles.append((y + (len(made) - 1) / 2, name))
        for kind, (mean, low, high) in made.items():
            style = look(kinds.index(kind))
            reach = [[0.0], [0.0]] if low is None or high is None else [[mean - low], [high - mean]]
            axis.errorbar(
                [mean], [y], xerr=reach, fmt=style.marker, color=style.color, markersize=6, capsize=4, linewidth=1.8,
                markerfacecolor="white" if low is None else style.color,
            )  # fmt: skip
            y += 1
        axis.axhline(y - 0.2, color=GREY, linewidth=0.5, alpha=0.5)
        y += 0.6
    axis.axvline(0, color="black", linewidth=1)
    axis.set_yticks(*zip(*middles, strict=True), fontsize=10)
    axis.set_ylim(y - 0.8, -0.8)  # the first arm on top
    axis.grid(False, axis="y")
    better = "right" if higher_is_better else "left"
    axis.set_xlabel(f"difference in {label}, {100 * confidence:g} % interval (better to the {better})")
    legend_below(figure, axis)
    return figure


def plot_curves(histories: Mapping[str, Sequence[Mapping[str, Any]]], path: str | os.PathLike[str], title: str) -> None:
    """Draw the demo's training curves side by side and write them: `curve_figure` with `DEMO_CURVES`.

    Args:
        histories: run name -> the Trainer's ``log_history``.
        path: where to write, .png or .svg; the file appears whole or not at all.
        title: of the figure.
    """
    save_figure(curve_figure(histories, DEMO_CURVES, title), path)


def _points(history: Sequence[Mapping[str, Any]], key: str) -> list[tuple[int, float]]:
    return [(entry["step"], entry[key]) for entry in history if entry.get(key) is not None and "step" in entry]


def _layer_name(layer: int) -> str:
    if layer < 0:
        return "final" if layer == -1 else str(layer)
    return "emb." if layer == 0 else str(layer)


def _need(values: Any, what: str) -> None:
    if len(values) == 0:
        raise DataError(f"there are no {what} to draw")
