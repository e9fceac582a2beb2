"""All figures of a comparison, drawn from the saved states and what was measured of them, into one folder."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from stepjepa.analysis.compare import Comparison, Saved
from stepjepa.analysis.coordinates import coordinates
from stepjepa.analysis.geometry import aligned_cosines, shuffled_cosines, singular_values
from stepjepa.analysis.plots import cosine_figure, layer_figure, retrieval_figure, scatter_figure, spectrum_figure
from stepjepa.analysis.states import FINAL, load_states
from stepjepa.analysis.style import GREY, legend_below, look, new_figure, save_figure

# Names of the figures; those of one model each end in its name.
FIGURES = ("spectrum", "cosine", "retrieval", "rank_source", "rank_target", "steps")
METHOD_TITLES = {"pca": "PCA", "tsne": "t-SNE", "umap": "UMAP"}


def slug(label: str) -> str:
    """A label as a part of a file's name."""
    return re.sub(r"[^\w.-]+", "-", label).strip("-.") or "model"


def draw_comparison(
    comparison: Comparison,
    saved: Sequence[Saved],
    folder: Path,
    methods: Sequence[str] = ("pca",),
    kind: str = "png",
    seed: int = 0,
    advance: Callable[[], None] = lambda: None,
) -> list[Path]:
    """Draw everything that there are numbers for.

    Args:
        saved: the states that `comparison` was measured on.
        folder: where the figures go; those of the same names there are replaced.
        methods: of the coordinates, a figure for each and each model.
        kind: "png" or "svg".
        seed: of shuffled pairs and coordinates.
        advance: told after each figure.

    Returns:
        The files, in the order in which they were written.

    Raises:
        ConfigError: a library is missing.
    """
    files = []
    for name, figure in figures(comparison, saved, methods, seed):
        files.append(folder / f"{name}.{kind}")
        save_figure(figure, files[-1])
        advance()
    return files


def number_of_figures(comparison: Comparison, methods: Sequence[str]) -> int:
    """How many `figures` gives."""
    layers = any(len(one.layers) > 1 for one in comparison.models)
    return 2 + 3 * layers + any(len(one.steps) > 1 for one in comparison.models) + len(methods) * len(comparison.models)


def figures(
    comparison: Comparison, saved: Sequence[Saved], methods: Sequence[str], seed: int = 0
) -> Iterator[tuple[str, Any]]:
    """Name and matplotlib figure, one after the other, so that only one model's states are held at a time."""
    layer, models = comparison.layer, comparison.models
    where = "final" if layer == FINAL else f"layer {layer}"
    spectra, cosines = {}, {}
    for one in saved:
        source, target = load_states(one.path, [layer]).layer(layer)
        spectra[one.label] = singular_values(source - target)
        cosines[one.label] = aligned_cosines(source, target), shuffled_cosines(source, target, seed)
    yield "spectrum", spectrum_figure(spectra, f"Singular values of source - target ({where})")
    yield "cosine", cosine_figure(cosines, f"Cosine of source and target ({where})")
    if any(len(one.layers) > 1 for one in models):
        first = next(iter(models[0].layers.values())).pairs
        found = {one.label: {n: m.pairs.retrieval_at_1 for n, m in one.layers.items()} for one in models}
        figure = retrieval_figure(found, first.chance_at_1)
        figure.axes[0].set_ylim(
            *percent_limits([first.chance_at_1, *(v for line in found.values() for v in line.values())])
        )
        yield "retrieval", figure
        for view in ("source", "target"):
            ranks = {one.label: {n: getattr(m, view).effective_rank for n, m in one.layers.items()} for one in models}
            title = f"Effective rank of the {view} states"
            yield f"rank_{view}", layer_figure(ranks, "effective rank (of unit rows)", title=title)
    if any(len(one.steps) > 1 for one in models):
        yield "steps", step_figure(comparison)
    for method in methods:
        for one in saved:
            points = coordinates(*load_states(one.path, [layer]).layer(layer), method, seed)
            yield (
                f"{method}-{slug(one.label)}",
                scatter_figure(points, f"{METHOD_TITLES[method]}: {one.label} ({where})"),
            )


def percent_limits(shares: Sequence[float]) -> tuple[float, float]:
    """Ends of an axis in percent: 0 to 100, unless all shares are so small that they would lie on its bottom."""
    top = max(shares)
    top = 100.0 if top > 0.4 else max(125 * top, 1.0)
    return -0.03 * top, 1.03 * top


def step_figure(comparison: Comparison) -> Any:
    """Gap of the cosines and retrieval by target step, a line for each model, among the pairs of each step alone."""
    figure, axes = new_figure(1, 2, height=4.0, title="By target step")
    chance: Mapping[int, float] = {
        step: numbers.pairs.chance_at_1 for one in comparison.models for step, numbers in one.steps.items()
    }
    for i, one in enumerate(comparison.models):
        if not one.steps:
            continue
        there, numbers = zip(*sorted(one.steps.items()), strict=True)
        style = {"label": one.label, "linewidth": 1.8, "markersize": 6, **look(i)._asdict()}
        axes[0].plot(there, [found.pairs.gap for found in numbers], **style)
        axes[1].plot(there, [100 * found.pairs.retrieval_at_1 for found in numbers], **style)
    steps = sorted(chance)
    line = {"color": GREY, "linewidth": 1.2, "linestyle": (0, (2, 2)), "label": "chance"}
    axes[1].plot(steps, [100 * chance[step] for step in steps], **line)
    shares = [numbers.pairs.retrieval_at_1 for one in comparison.models for numbers in one.steps.values()]
    axes[1].set_ylim(*percent_limits([*chance.values(), *shares]))
    axes[0].axhline(0, color=GREY, linewidth=0.8)
    for axis, title in zip(axes, ("cosine, matched - shuffled", "retrieval@1 (%)"), strict=True):
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("target step")
        axis.set_xticks(steps[:: -(-len(steps) // 10)])
    legend_below(figure, axes[1])
    return figure
