"""`analyze`: collect the states of models, measure and compare them, draw them, and leave all of it in one folder.

Shapes: N pairs, D width.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from stepjepa.analysis import geometry, plots
from stepjepa.analysis.geometry import ADVICE, MIN_ROWS, CollapseSign, GeometryNumbers
from stepjepa.analysis.models import ABOUT, collect_all
from stepjepa.analysis.options import AnalysisResult, AnalyzeOptions
from stepjepa.analysis.plots import LOSS_CURVES, METHOD_TITLES, TITLES
from stepjepa.analysis.prediction import MOST_HORIZONS, PredictionErrors, prediction_errors
from stepjepa.analysis.states import FINAL, States, check_alike, load_states
from stepjepa.config.option import Names, options_of
from stepjepa.errors import ConfigError, DataError
from stepjepa.modeling.card import collapse_words
from stepjepa.training.run_folder import RunFolder
from stepjepa.utils.failures import library
from stepjepa.utils.files import check_writable, read_object, write_json, write_whole
from stepjepa.utils.terminal import Bar
from stepjepa.utils.text import PAGE, folded, labels_of, legend, one_line, slug, text_table, written

NUMBERS, TABLE, CURVES = "numbers.json", "numbers.csv", "curves"
_FIGURES = "|".join([*(name for name in TITLES if name != CURVES), *(f"{method}-.+" for method in METHOD_TITLES)])
_MEASURED = rf"numbers\.(?:json|csv)|(?:{_FIGURES})\.(?:png|svg)"
_CURVES = rf"{CURVES}\.(?:png|svg)"
_COLLECTED = rf"states-.+\.safetensors|{re.escape(ABOUT)}"
_NAME = Names(AnalyzeOptions)
_LABEL = 100  # characters
_MOST_STEPS = 9  # columns that fit next to a name
# Columns of the tables: attribute, format, and what the legend says.
_Columns = Mapping[str, tuple[str, str, str]]
_PAIRS: _Columns = {
    "cosine": ("aligned_mean", ".4f", "mean over the pairs"),
    "shuffled": ("shuffled_mean", ".4f", "the same of sources with the targets of other pairs"),
    "gap": ("gap", ".4f", "cosine less shuffled"),
    "d'": ("d_prime", ".2f", "the gap in standard deviations"),
    "@1": ("retrieval_at_1", ".1%", "sources whose own target is the nearest of all"),
    "@5": ("retrieval_at_5", ".1%", "is among the nearest 5"),
    "MRR": ("mrr", ".3f", "mean of 1 / rank of the own target"),
}
_VIEWS: _Columns = {
    "eff. rank": ("effective_rank", ".1f", "directions that the states fill, 1 at collapse"),
    "uniformity": ("uniformity", ".2f", "0 where all states are one, lower where they are spread evenly"),
    "own cosine": ("pairwise_cosine", ".3f", "mean cosine of two states of a view"),
}
_TOP: _Columns = {
    "top 100 s-t": ("difference_top_100", ".4g", "mean of the 100 largest singular values of source less target"),
}
_BASE: _Columns = {
    "variance": ("variance_ratio", ".3g", "times the base model's, median of the dimensions"),
}
# Ways to predict; these are rows.
_PREDICTION: _Columns = {
    "line": ("line", ".3g", "along the last step; 0 is perfect, 1 as bad as the mean state"),
    "linear": ("linear", ".3g", "a ridge regression, fitted on other rows"),
    "MLP": ("mlp", ".3g", "three layers, fitted on other rows"),
}


def _row(columns: _Columns, *records: Any) -> list[str]:
    return [", ".join(written(getattr(one, name), form) for one in records) for name, form, _ in columns.values()]


def _table(head: Sequence[str], rows: Sequence[list[str]], columns: _Columns, *marks: tuple[str, str]) -> list[str]:
    """An empty line, a table, and what its columns and its marks mean; nothing without rows."""
    words = {name: words for name, (*_, words) in columns.items()} | dict(marks)
    return ["", *text_table(head, rows), *legend(words)] if rows else []


def _cells(numbers: GeometryNumbers) -> dict[str, Any]:
    """The numbers as one flat record; those of a record in it get its name in front."""
    cells: dict[str, Any] = {}
    for name, value in asdict(numbers).items():
        cells |= {f"{name}_{key}": part for key, part in value.items()} if isinstance(value, dict) else {name: value}
    return cells


@dataclass(frozen=True)
class ModelNumbers:
    """What was measured of one model.

    Attributes:
        model: its name or folder.
        layers: layer -> numbers of all pairs.
        steps: step -> numbers of the pairs with that target step, in the layer that is shown, in order and the same steps of
            all models; only steps with `MIN_ROWS` pairs or more, and none where views are no steps.
        collapse: signs of it, in the layer that is shown.
        prediction: horizon -> errors of predicting later states; None where they were not asked for.
    """

    model: str
    layers: dict[int, GeometryNumbers]
    steps: dict[int, GeometryNumbers]
    collapse: list[CollapseSign]
    prediction: dict[int, PredictionErrors] | None


@dataclass(frozen=True)
class Comparison:
    """Several models on the same pairs; printed, tables with a line for each model, and signs of collapse.

    Attributes:
        file: of the rows.
        n: pairs.
        layer: that is shown in tables, and in figures without layers: the last one.
        base: label of the model that the others were trained from, None if there is none.
        models: by their labels, in their order.
    """

    file: str
    n: int
    layer: int
    base: str | None
    models: dict[str, ModelNumbers]

    def csv(self) -> str:
        """All numbers as a table: a line for each model and layer, then one for each model and step (of the layer shown)."""
        lines = []
        for label, one in self.models.items():
            for layer, numbers in one.layers.items():
                lines.append({"model": label, "layer": layer, "step": "", **_cells(numbers)})
            for step, numbers in one.steps.items():
                lines.append({"model": label, "layer": self.layer, "step": step, **_cells(numbers)})
        text = io.StringIO()
        writer = csv.DictWriter(text, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
        return text.getvalue()

    def __str__(self) -> str:
        return "\n".join([*self._tables(), "", *folded(list(self._collapse()), PAGE)])

    def _tables(self) -> Iterator[str]:
        where = "after the final norm" if self.layer == FINAL else f"of layer {self.layer}"
        yield f"{self.n:,} pairs of {self.file}, states {where}"
        shown = {label: one.layers[self.layer] for label, one in self.models.items()}
        chance = next(iter(shown.values())).pairs
        shares = [written(chance.chance_at_1, ".1%"), written(chance.chance_at_5, ".1%")]
        rows = [[label, *_row(_PAIRS, one.pairs)] for label, one in shown.items()]
        rows.append(["chance", "", "", "", "", *shares, written(chance.chance_mrr, ".3f")])
        yield from _table(["pairs", *_PAIRS], rows, _PAIRS)
        rows = [[label, *_row(_VIEWS, one.source, one.target), *_row(_TOP, one)] for label, one in shown.items()]
        yield from _table(["states (source, target)", *_VIEWS, *_TOP], rows, {**_VIEWS, **_TOP})
        if self.base is not None:
            others = [(label, one) for label, one in shown.items() if label != self.base]
            rows = [[label, *_row(_BASE, one.source, one.target)] for label, one in others]
            yield from _table([f"against {self.base}", *_BASE], rows, _BASE)
        yield from self._prediction()
        steps = {step: one.pairs for step, one in next(iter(self.models.values())).steps.items()}
        if len(steps) < 2:
            return
        known = sorted(steps)[:_MOST_STEPS]
        rows = [["pairs", *(str(steps[step].n) for step in known)]]
        for name in ("gap", "@1"):
            for label, model in self.models.items():
                found = [_row({name: _PAIRS[name]}, model.steps[step].pairs)[0] for step in known]
                rows.append([f"{name}, {label}", *found])
        rows.append(["@1, chance", *(written(steps[step].chance_at_1, ".1%") for step in known)])
        yield from ("", *text_table(["target step", *map(str, known)], rows))
        more = f"and {len(steps) - _MOST_STEPS} later steps; " if len(steps) > _MOST_STEPS else ""
        yield f"({more}among the pairs of one step; steps with fewer than {MIN_ROWS} are left out)"

    def _prediction(self) -> Iterator[str]:
        """Errors of predicting later states by horizon, and how many times smaller they are than the base model's."""
        known = {label: one.prediction for label, one in self.models.items() if one.prediction is not None}
        horizons = sorted({horizon for errors in known.values() for horizon in errors})
        few = f"fewer than {MIN_ROWS} pairs to fit or to measure on"
        if not horizons:
            yield from ("", f"no later state is predicted: {few}; read more rows") if known else ()
            return
        rows = []
        for name, (attribute, form, _) in _PREDICTION.items():
            for label, errors in known.items():
                base, cells = known.get(str(self.base), {}) if label != self.base else {}, [f"{name}, {label}"]
                for horizon in horizons:
                    own, other = (getattr(one.get(horizon), attribute, None) for one in (errors, base))
                    cells.append(written(own, form) + (f" ({other / own:.3g}x)" if own and other is not None else ""))
                rows.append(cells)
        marks = [] if self.base is None else [("(2x)", "half the base model's error")]
        head = ["error of a state h steps later", *(f"h = {horizon}" for horizon in horizons)]
        yield from _table(head, rows, _PREDICTION, *marks)
        yield f"(horizons with {few} are left out)"

    def _collapse(self) -> Iterator[str]:
        own = self.models[self.base].collapse if self.base is not None else []
        known, advice = {(sign.name, sign.view) for sign in own}, False
        for label, one in self.models.items():
            collapse = geometry.collapsed(one.collapse)
            advice = advice or (collapse and label != self.base)
            line = f"{label} shows {collapse_words(collapse, bool(one.collapse))}"
            yield f"{'Warning: ' if collapse else ''}{line}{':' if one.collapse else ''}"
            for sign in one.collapse:
                too = f"; {self.base} too" if label != self.base and (sign.name, sign.view) in known else ""
                yield f"  {sign.text}{too}"
        if advice:
            yield ADVICE


def compare(
    states: Mapping[str, States],
    base: str | None = None,
    advance: Callable[[str], None] = lambda label: None,
    horizon: int = MOST_HORIZONS,
) -> Comparison:
    """Measure every layer of every model.

    Args:
        states: by the labels that the models get in tables and figures.
        base: label of the one that the others were trained from.
        advance: called with the model's label after each layer.
        horizon: the longest of `prediction_errors`, where walks were collected.

    Raises:
        DataError: states of other rows, or of a base model of another shape; no layer in common; not finite.
    """
    check_alike(states, base)
    common = set.intersection(*(set(one.layers) for one in states.values()))
    if not common:
        raise DataError(f"states of {', '.join(states)} have no layer in common")
    shown = FINAL if FINAL in common else max(common)
    models = {}
    for label, one in states.items():
        layers, steps = dict[int, GeometryNumbers](), dict[int, GeometryNumbers]()
        for layer in one.layers:
            both, origin = one.layer(layer), None if base in (None, label) else states[str(base)].layer(layer)
            try:
                layers[layer] = geometry.measure_states(*both, origin)
            except DataError as error:
                raise DataError(f"{label}, layer {layer}: {error}") from None
            if layer == shown and one.steps is not None:
                for step, count in zip(*np.unique(one.steps, return_counts=True), strict=True):
                    there = one.steps == step
                    if count >= MIN_ROWS:
                        steps[int(step)] = geometry.measure_states(both[0][there], both[1][there])
            advance(label)
        prediction = None if one.walks is None else prediction_errors(one.walks, horizon)
        models[label] = ModelNumbers(one.model, layers, steps, geometry.collapse_signs(layers[shown]), prediction)
    first = next(iter(states.values()))
    return Comparison(first.file, len(first.rows), shown, base, models)


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
    methods = [] if options.runs_alone else options.coordinates or ["pca"]
    for name in ("matplotlib", *(["sklearn", *(["umap"] if "umap" in methods else [])] if methods else [])):
        library(name, "umap" if name == "umap" else "analysis")  # before the work, which would be lost
    folder, histories = _folder(options), _read_runs(options.runs or ())
    found = _saved_states(options.from_states, options.base_model) if options.from_states else None
    patterns = [_MEASURED] if found is not None else [] if options.runs_alone else [_MEASURED, _COLLECTED, _CURVES]
    stale = _existing(folder, [*patterns, _CURVES] if options.runs else patterns, options.overwrite_output_dir)
    files, lines, record = list[Path](), list[str](), dict[str, Any]()
    with Bar() as bar:
        for line in notes:
            bar.say(f"note     {line}")
        if found is None and not options.runs_alone:
            found, stale = collect_all(options, given, folder, stale, bar), []
        if found is not None:
            states, base, about = found
            bar.start("numbers", sum(len(one.layers) for one in states.values()), 0)
            most = options.prediction_horizon or MOST_HORIZONS
            comparison = compare(states, base, lambda label: bar.advance(1, label), most)
            folder.mkdir(parents=True, exist_ok=True)
            for file in stale:
                file.unlink()
            record = {**about, **asdict(comparison)}
            write_json(folder / NUMBERS, record)
            write_whole(folder / TABLE, [comparison.csv().encode()])
            figures = list(_figures(comparison, states, methods, options.seed))
            bar.start("figures", len(figures), 0)
            for name, draw in figures:
                files.append(folder / f"{name}.{options.figure_format}")
                plots.save_figure(draw(), files[-1])
                bar.advance(1)
            collected = "states-*.safetensors, " if any(folder.glob("states-*")) else ""
            lines = [str(comparison), "", f"written to {folder}: {collected}{NUMBERS}, {TABLE}"]
        if histories:
            files.append(folder / f"{CURVES}.{options.figure_format}")
            plots.save_figure(plots.curve_figure(histories, title="Training losses"), files[-1])
    lines += folded([f"figures: {', '.join(path.name if found else str(path) for path in files)}"], PAGE)
    return AnalysisResult(record, tuple(files), tuple(lines))


def _figures(
    comparison: Comparison, states: Mapping[str, States], methods: Sequence[str], seed: int
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Name and drawing of every figure that there are numbers for."""
    layer, models = comparison.layer, comparison.models
    where = "final" if layer == FINAL else f"layer {layer}"
    views = {label: one.layer(layer) for label, one in states.items()}

    def by_layer(read: Callable[[GeometryNumbers], float]) -> dict[str, dict[int, float]]:
        return {label: {n: read(numbers) for n, numbers in one.layers.items()} for label, one in models.items()}

    def scatter(label: str, method: str) -> Any:
        title = f"{METHOD_TITLES[method]}: {label} ({where})"
        return plots.scatter_figure(plots.coordinates(*views[label], method, seed), title)

    def spectrum() -> Any:
        spectra = {label: geometry.singular_values(source - target) for label, (source, target) in views.items()}
        return plots.spectrum_figure(spectra, f"Singular values of source - target ({where})")

    def cosine() -> Any:
        matched = {label: geometry.aligned_cosines(*both) for label, both in views.items()}
        cosines = {label: (matched[label], geometry.shuffled_cosines(*views[label], seed)) for label in views}
        return plots.cosine_figure(cosines, f"Cosine of source and target ({where})")

    yield from (("spectrum", spectrum), ("cosine", cosine))
    if any(len(one.layers) > 1 for one in models.values()):
        chance = next(iter(next(iter(models.values())).layers.values())).pairs.chance_at_1
        yield "retrieval", partial(plots.retrieval_figure, by_layer(attrgetter("pairs.retrieval_at_1")), chance)
        for view in ("source", "target"):
            ranks = by_layer(attrgetter(f"{view}.effective_rank"))
            title, label = f"Effective rank of the {view} states", "effective rank (of unit rows)"
            yield f"rank_{view}", partial(plots.layer_figure, ranks, label, title=title)
    steps = {label: {n: numbers.pairs for n, numbers in one.steps.items()} for label, one in models.items()}
    chances = {n: p.chance_at_1 for n, p in next(iter(steps.values())).items()}
    if len(chances) > 1:
        numbers = {label: {n: (p.gap, p.retrieval_at_1) for n, p in line.items()} for label, line in steps.items()}
        yield "steps", partial(plots.step_figure, numbers, chances)
    for method in dict.fromkeys(methods):
        for label in states:
            yield f"{method}-{slug(label)}", partial(scatter, label, method)


# The folder


def _folder(options: AnalyzeOptions) -> Path:
    if options.output_dir or options.from_states:
        return Path(str(options.output_dir or options.from_states)).expanduser()
    if options.runs_alone:
        return Path("analysis-runs")
    name = Path(str(options.file)).stem if Path(str(options.file)).exists() else str(options.file)
    return Path(f"analysis-{slug(name)}")


def _existing(folder: Path, patterns: Sequence[str], overwrite: bool) -> list[Path]:
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
    there = [one for one in entries if one.is_file() and re.fullmatch("|".join(patterns), one.name)]
    if there and not overwrite:
        raise ConfigError(
            f"--{_NAME.output_dir} {folder}: {there[0].name} is there already; give another folder, or replace it with "
            f"--{_NAME.overwrite_output_dir}"
        )
    return there


def _saved_states(name: str, base: str | None) -> tuple[dict[str, States], str | None, dict[str, Any]]:
    """The states in a folder, in the order in which they were collected; `base`: label or name of another base model."""
    folder, flag = Path(name).expanduser(), f"--{_NAME.from_states} {name}"
    if not folder.is_dir():
        raise ConfigError(f"{flag}: no such folder")
    about = read_object(folder / ABOUT)
    paths = {path.name: path for path in sorted(folder.glob("states-*.safetensors"))}
    if not paths:
        raise ConfigError(f"{flag}: holds no states (states-*.safetensors); run stepjepa analyze FILE first")
    listed = about.get("inputs") if isinstance(about.get("inputs"), list) else []
    inputs = {str(one.get("states")): one for one in listed or () if isinstance(one, dict)}
    states, names = dict[str, States](), dict[str, str]()
    for file in dict.fromkeys([*(name for name in inputs if name in paths), *paths]):
        label = inputs.get(file, {}).get("label") or Path(file).stem.removeprefix("states-")
        label = one_line(str(label), _LABEL)
        states[label] = load_states(paths[file])
        names |= {label: label, states[label].model: label}
    if base is not None and base not in names:
        raise ConfigError(f"--{_NAME.base_model} {base}: no states of it in {name}; there are: {', '.join(states)}")
    found = names[base] if base is not None else names.get(str(about.get("base")))
    return states, found, {**about, "base": found}


def _read_runs(names: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """The Trainer's log of each run, by its label: of ``metrics.json`` or, where it has not ended, its newest checkpoint."""
    found, names = {}, list(dict.fromkeys(names))
    for label, name in zip(labels_of(names), names, strict=True):
        folder, flag = Path(name).expanduser(), f"--{_NAME.runs} {name}"
        if not folder.is_dir():
            raise ConfigError(f"{flag}: no such folder")
        checkpoints = sorted(folder.glob("checkpoint-*"), key=lambda path: (len(path.name), path.name), reverse=True)
        files = [folder / "metrics.json", *(path / "trainer_state.json" for path in (folder, *checkpoints))]
        logs = ((file.name, read_object(file).get("log_history")) for file in files)
        file, log = next(((file, log) for file, log in logs if isinstance(log, list)), ("", None))
        if log is None:
            raise ConfigError(
                f"{flag}: no log of a training there (metrics.json, or a checkpoint's trainer_state.json)"
            )
        found[label] = [entry for entry in log if isinstance(entry, dict)]
        if not any(entry.get(key) is not None for entry in found[label] for key, _ in LOSS_CURVES):
            raise DataError(f"{flag}: {file} holds neither {' nor '.join(key for key, _ in LOSS_CURVES)}")
    return found
