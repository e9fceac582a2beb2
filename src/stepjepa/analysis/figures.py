"""Which figures an analysis has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from stepjepa.analysis import geometry, plots
from stepjepa.analysis.geometry import GeometryNumbers
from stepjepa.analysis.numbers import GeometryComparison
from stepjepa.analysis.plots import METHOD_TITLES
from stepjepa.analysis.states import FINAL, States
from stepjepa.utils.text import slug

Drawing = Callable[[], Any]  # gives a matplotlib figure


def figures_of(
    comparison: GeometryComparison, states: Mapping[str, States], methods: Sequence[str], seed: int
) -> Iterator[tuple[str, Drawing]]:
    """Name and drawing of every figure that there are numbers for."""
    layer = comparison.layer
    where = "final" if layer == FINAL else f"layer {layer}"
    views = {label: one.layer(layer) for label, one in states.items()}

    def spectrum() -> Any:
        spectra = {label: geometry.singular_values(source - target) for label, (source, target) in views.items()}
        return plots.spectrum_figure(spectra, f"Singular values of source - target ({where})")

    def cosine() -> Any:
        cosines = {}
        for label, both in views.items():
            cosines[label] = geometry.aligned_cosines(*both), geometry.shuffled_cosines(*both, seed)
        return plots.cosine_figure(cosines, f"Cosine of source and target ({where})")

    def scatter(label: str, method: str) -> Any:
        title = f"{METHOD_TITLES[method]}: {label} ({where})"
        return plots.scatter_figure(plots.coordinates(*views[label], method, seed), title)

    yield from (("spectrum", spectrum), ("cosine", cosine))
    yield from _by_layer(comparison)
    yield from _by_step(comparison)
    for method in dict.fromkeys(methods):
        for label in states:
            yield f"{method}-{slug(label)}", partial(scatter, label, method)


def _by_layer(comparison: GeometryComparison) -> Iterator[tuple[str, Drawing]]:
    models = comparison.models
    if all(len(one.layers) < 2 for one in models.values()):
        return

    def by_layer(read: Callable[[GeometryNumbers], float]) -> dict[str, dict[int, float]]:
        return {label: {n: read(numbers) for n, numbers in one.layers.items()} for label, one in models.items()}

    chance = next(iter(comparison.shown.values())).pairs.chance_at_1
    retrieval = by_layer(lambda numbers: numbers.pairs.retrieval_at_1)
    yield "retrieval", partial(plots.retrieval_figure, retrieval, chance)
    for view in ("source", "target"):
        ranks = by_layer(lambda numbers, view=view: getattr(numbers, view).effective_rank)  # type: ignore[misc]
        title = f"Effective rank of the {view} states"
        yield f"rank_{view}", partial(plots.layer_figure, ranks, "effective rank (of unit rows)", title=title)


def _by_step(comparison: GeometryComparison) -> Iterator[tuple[str, Drawing]]:
    models = comparison.models
    chances = {step: one.pairs.chance_at_1 for step, one in next(iter(models.values())).steps.items()}
    if len(chances) < 2:
        return
    numbers = {}
    for label, one in models.items():
        numbers[label] = {step: (n.pairs.gap, n.pairs.retrieval_at_1) for step, n in one.steps.items()}
    yield "steps", partial(plots.step_figure, numbers, chances)
