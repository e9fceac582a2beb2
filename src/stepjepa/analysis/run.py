"""`analyze`: collect the states of models, measure and compare them, draw them, and leave all of it in one folder."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from stepjepa.analysis import geometry, plots
from stepjepa.analysis.collect import ABOUT, Collected, collect_all
from stepjepa.analysis.geometry import GeometryNumbers
from stepjepa.analysis.numbers import GeometryComparison, compare
from stepjepa.analysis.options import AnalysisResult, AnalyzeOptions
from stepjepa.analysis.plots import METHOD_TITLES, TITLES
from stepjepa.analysis.prediction import MOST_HORIZONS
from stepjepa.analysis.states import FINAL, States, load_states
from stepjepa.config.option import Names, options_of
from stepjepa.errors import ConfigError
from stepjepa.training.run_folder import RunFolder
from stepjepa.utils.failures import library
from stepjepa.utils.files import check_writable, read_object, write_json
from stepjepa.utils.terminal import Bar
from stepjepa.utils.text import PAGE, folded, one_line, slug

Drawing = Callable[[], Any]  # gives a matplotlib figure
NUMBERS = "numbers.json"
_FIGURES = "|".join([*TITLES, *(f"{method}-.+" for method in METHOD_TITLES)])
_MEASURED = rf"numbers\.(?:json|csv)|(?:{_FIGURES})\.(?:png|svg)"
_COLLECTED = rf"states-.+\.safetensors|{re.escape(ABOUT)}"
_NAME = Names(AnalyzeOptions)
_LABEL = 100  # characters


def analyze(options: AnalyzeOptions, notes: Sequence[str] = (), given: Collection[str] | None = None) -> AnalysisResult:
    """Measure where source and target views are in models: ``stepjepa analyze``.

    Args:
        notes: lines that are shown before the work begins.
        given: options that the user has set; by default those that differ from their defaults.

    Raises:
        ConfigError, DataError: what cannot be used; what an earlier analysis has written is unchanged then.
    """
    options.check()
    if given is None:
        given = {name for name, one in options_of(AnalyzeOptions).items() if getattr(options, name) != one.default}
    for name in ("matplotlib", "sklearn"):
        library(name, "analysis")  # before the work, which would be lost
    folder = _folder(options)
    saved = _saved_states(options.from_states, options.base_model) if options.from_states else None
    pattern = _MEASURED if saved is not None else f"{_MEASURED}|{_COLLECTED}"
    stale = _existing(folder, pattern, options.overwrite_output_dir)
    with Bar() as bar:
        for line in notes:
            bar.say(f"note     {line}")
        collected = saved
        if collected is None:
            collected, stale = collect_all(options, given, folder, stale, bar), []
        states = collected.states
        bar.start("numbers", sum(len(one.layers) for one in states.values()), 0)
        horizon = options.prediction_horizon or MOST_HORIZONS
        comparison = compare(states, collected.base, lambda label: bar.advance(1, label), horizon)
        folder.mkdir(parents=True, exist_ok=True)
        for file in stale:
            file.unlink()
        record = {**collected.about, **asdict(comparison)}
        write_json(folder / NUMBERS, record)
        figures = list(_figures(comparison, states, options.coordinates or ["pca"], options.seed))
        bar.start("figures", len(figures), 0)
        files = []
        for name, draw in figures:
            files.append(folder / f"{name}.{options.figure_format}")
            plots.save_figure(draw(), files[-1])
            bar.advance(1)
    kept = "states-*.safetensors, " if any(folder.glob("states-*")) else ""
    lines = [str(comparison), "", f"written to {folder}: {kept}{NUMBERS}"]
    lines += folded([f"figures: {', '.join(path.name for path in files)}"], PAGE)
    return AnalysisResult(record, tuple(files), tuple(lines))


def _figures(
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


# The folder


def _folder(options: AnalyzeOptions) -> Path:
    if options.output_dir or options.from_states:
        return Path(str(options.output_dir or options.from_states)).expanduser()
    name = Path(str(options.file)).stem if Path(str(options.file)).exists() else str(options.file)
    return Path(f"analysis-{slug(name)}")


def _existing(folder: Path, pattern: str, overwrite: bool) -> list[Path]:
    """What an earlier analysis has written, of the files that are written again, which must be asked for."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--{_NAME.output_dir} {folder}: is a file; give a folder")
    if RunFolder(folder).holds_model:
        raise ConfigError(
            f"--{_NAME.output_dir} {folder}: holds a run or a model, which the analysis would seem to change; give another "
            f"folder, such as {folder / 'analysis'}"
        )
    check_writable(folder)
    entries = sorted(folder.iterdir()) if folder.is_dir() else []
    there = [one for one in entries if one.is_file() and re.fullmatch(pattern, one.name)]
    if there and not overwrite:
        raise ConfigError(
            f"--{_NAME.output_dir} {folder}: {there[0].name} is there already; give another folder, or replace it with "
            f"--{_NAME.overwrite_output_dir}"
        )
    return there


def _saved_states(name: str, base: str | None) -> Collected:
    """The states in a folder, in the order in which they were collected; `base`: label or name of another base model."""
    folder, flag = Path(name).expanduser(), f"--{_NAME.from_states} {name}"
    if not folder.is_dir():
        raise ConfigError(f"{flag}: no such folder")
    about = read_object(folder / ABOUT)
    paths = sorted(folder.glob("states-*.safetensors"))
    if not paths:
        raise ConfigError(f"{flag}: holds no states (states-*.safetensors); run stepjepa analyze FILE first")
    try:
        labels = {str(one["states"]): str(one["label"]) for one in about.get("inputs") or ()}
    except (TypeError, KeyError):  # a damaged record names nothing
        labels = {}
    order = list(labels)
    paths.sort(key=lambda path: order.index(path.name) if path.name in labels else len(order))
    states, names = dict[str, States](), dict[str, str]()
    for path in paths:
        label = labels.get(path.name, path.stem.removeprefix("states-"))
        label = one_line(label, _LABEL)
        one = load_states(path)
        states[label] = one
        names[label] = names[one.model] = label
    if base is not None and base not in names:
        raise ConfigError(f"--{_NAME.base_model} {base}: no states of it in {name}; there are: {', '.join(states)}")
    asked = about.get("base") if base is None else base
    label_of_base = names.get(str(asked))
    return Collected(states, label_of_base, {**about, "base": label_of_base})
