"""`analyze`: collect the states of models, measure and compare them, draw them, and leave all of it in one folder.

Shapes: N pairs, D width.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from stepjepa.analysis import geometry, plots
from stepjepa.analysis.geometry import ADVICE, MIN_ROWS, CollapseSign, GeometryNumbers, LinearMap
from stepjepa.analysis.models import ABOUT, collect_all
from stepjepa.analysis.options import AnalysisResult, AnalyzeOptions, EnergyOptions
from stepjepa.analysis.plots import METHOD_TITLES, TITLES
from stepjepa.analysis.prediction import MOST_HORIZONS, PredictionErrors, prediction_errors
from stepjepa.analysis.states import FINAL, States, check_alike, check_map_layers, load_states
from stepjepa.config.option import Names
from stepjepa.errors import ConfigError, DataError
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
_MOST_STEPS = 9  # in the table
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
_MAP: _Columns = {
    "fitted error": (
        "train_error",
        ".4g",
        "root mean squared, on the map's own rows; 0 with as many directions as rows",
    ),
    "held-out error": ("test_error", ".4g", "on the other rows"),
    "mean's error": ("mean_error", ".4g", "there, if every target is taken for the mean"),
    "held-out R2": ("test_r2", ".3f", "1 is a perfect map, 0 as good as the mean"),
}
_BASE: _Columns = {
    "variance": ("variance_ratio", ".3g", "times the base model's, median of the dimensions"),
    "CKA": ("base_cka", ".3f", "likeness to the base model's states, 1 where they are alike"),
}
_STEPS: _Columns = {
    "pairs": ("n", "d", "of this step, among which the rest is measured"),
    **{name: _PAIRS[name] for name in ("gap", "@1")},
    "chance": ("chance_at_1", ".1%", "of @1"),
}
_PREDICTION: _Columns = {
    "line": ("line", ".3g", "along the last step; 0 is perfect, 1 as bad as the mean state"),
    "linear": ("linear", ".3g", "a ridge regression, fitted on other rows"),
    "MLP": ("mlp", ".3g", "three layers, fitted on other rows"),
}


def _row(columns: _Columns, *records: Any) -> list[str]:
    return [", ".join(written(getattr(one, name), form) for one in records) for name, form, _ in columns.values()]


def _table(title: str, rows: Sequence[list[str]], columns: _Columns) -> list[str]:
    """An empty line, a table, and what its columns mean; nothing without rows."""
    words = {name: words for name, (*_, words) in columns.items()}
    return ["", *text_table([title, *columns], rows), *legend(words)] if rows else []


def _cells(numbers: GeometryNumbers) -> dict[str, Any]:
    """The numbers as one flat record; those of a record in it get its name in front."""
    record, cells = asdict(numbers), dict[str, Any]()
    record["linear_map"] = record["linear_map"] or dict.fromkeys(one.name for one in fields(LinearMap))
    for name, value in record.items():
        cells |= {f"{name}_{key}": part for key, part in value.items()} if isinstance(value, dict) else {name: value}
    return cells


@dataclass(frozen=True)
class ModelNumbers:
    """What was measured of one model.

    Attributes:
        model: its name or folder.
        layers: layer -> numbers of all pairs.
        steps: step -> numbers of the pairs with that target step, in the layer that is shown; only steps with `MIN_ROWS`
            pairs or more, and none where views are no steps.
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
        map_layers: those with a linear map and a CKA.
        base: label of the model that the others were trained from, None if there is none.
        models: by their labels, in their order.
    """

    file: str
    n: int
    layer: int
    map_layers: tuple[int, ...]
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
        rows = [[label, *_row(_PAIRS, one.pairs)] for label, one in shown.items()]
        chance = next(iter(shown.values())).pairs
        shares = [written(share, ".1%") for share in (chance.chance_at_1, chance.chance_at_5)]
        rows.append(["chance", "", "", "", "", *shares, written(chance.chance_mrr, ".3f")])
        yield from _table("pairs", rows, _PAIRS)
        rows = [[label, *_row(_VIEWS, one.source, one.target), *_row(_TOP, one)] for label, one in shown.items()]
        yield from _table("states (source, target)", rows, {**_VIEWS, **_TOP})
        rows = [[label, *_row(_MAP, one.linear_map)] for label, one in shown.items() if one.linear_map is not None]
        yield from _table("linear map", rows, _MAP)
        others = {label: one for label, one in shown.items() if self.base not in (None, label)}
        rows = [[label, *_row(_BASE, one.source, one.target)] for label, one in others.items()]
        yield from _table(f"against {self.base}", rows, _BASE)
        yield from self._prediction()
        steps = sorted({step for one in self.models.values() for step in one.steps})[:_MOST_STEPS]
        if len(steps) > 1:
            found = {(step, label): one.steps.get(step) for step in steps for label, one in self.models.items()}
            rows = [[f"{step}, {label}", *_row(_STEPS, one.pairs)] for (step, label), one in found.items() if one]
            yield from _table("target step", rows, _STEPS)
            yield f"(up to {_MOST_STEPS} steps, those with {MIN_ROWS} pairs or more; {TABLE} has all of them)"

    def _prediction(self) -> Iterator[str]:
        """Errors of predicting later states by horizon, and how many times smaller they are than the base model's."""
        known = {label: one.prediction for label, one in self.models.items() if one.prediction is not None}
        rows = []
        for horizon in sorted({horizon for errors in known.values() for horizon in errors}):
            base = known.get(str(self.base), {}).get(horizon)
            for label, errors in known.items():
                if horizon in errors:
                    cells = _row(_PREDICTION, errors[horizon])
                    if base is not None and label != self.base:
                        smaller = [
                            getattr(base, name) / (getattr(errors[horizon], name) or np.nan)
                            for name, *_ in _PREDICTION.values()
                        ]
                        cells = [f"{cell} ({times:.3g}x)" for cell, times in zip(cells, smaller, strict=True)]
                    rows.append([f"{horizon}, {label}", *cells])
        than = "" if self.base is None else f" (2x: half that of {self.base})"
        yield from _table(f"error h steps later{than}", rows, _PREDICTION)
        if known:
            yield f"(horizons with fewer than {MIN_ROWS} pairs to fit or to measure on are left out)"

    def _collapse(self) -> Iterator[str]:
        for label, one in self.models.items():
            if geometry.collapsed(one.collapse):
                yield f"Warning: {label} shows collapse:"
            elif one.collapse:
                yield f"{label}: no collapse, but what models that never saw a pair may show:"
            else:
                yield f"{label}: no sign of collapse"
            yield from (f"  {sign.text}" for sign in one.collapse)
        if any(geometry.collapsed(one.collapse) for label, one in self.models.items() if label != self.base):
            yield ADVICE


def compare(
    states: Mapping[str, States],
    base: str | None = None,
    map_layers: Sequence[int] | None = None,
    advance: Callable[[str], None] = lambda label: None,
    horizon: int = MOST_HORIZONS,
) -> Comparison:
    """Measure every layer of every model.

    Args:
        states: by the labels that the models get in tables and figures.
        base: label of the one that the others were trained from.
        map_layers: layers at which the linear map and the CKA are computed. Default: the one that is shown.
        advance: called with the model's label after each layer.
        horizon: the longest of `prediction_errors`, where walks were collected.

    Raises:
        DataError: states of other rows, or of a base model of another shape; no layer in common; not finite.
        ConfigError: a model has no states of a layer of `map_layers`.
    """
    check_alike(states, base)
    common = set.intersection(*(set(one.layers) for one in states.values()))
    if not common:
        raise DataError(f"states of {', '.join(states)} have no layer in common")
    shown = FINAL if FINAL in common else max(common)
    maps = tuple(dict.fromkeys([shown] if map_layers is None else map_layers))
    models = {}
    for label, one in states.items():
        check_map_layers(maps, one.layers, label)
        layers, steps = dict[int, GeometryNumbers](), dict[int, GeometryNumbers]()
        for layer in one.layers:
            both, origin = one.layer(layer), None if base in (None, label) else states[str(base)].layer(layer)
            layers[layer] = geometry.measure_states(*both, origin, layer in maps)
            if layer == shown and one.steps is not None:
                for step, count in zip(*np.unique(one.steps, return_counts=True), strict=True):
                    there = one.steps == step
                    if count >= MIN_ROWS:
                        steps[int(step)] = geometry.measure_states(both[0][there], both[1][there], maps=False)
            advance(label)
        prediction = None if one.walks is None else prediction_errors(one.walks, horizon)
        models[label] = ModelNumbers(one.model, layers, steps, geometry.collapse_signs(layers[shown]), prediction)
    first = next(iter(states.values()))
    return Comparison(first.file, len(first.rows), shown, maps, base, models)


def analyze(options: AnalyzeOptions | EnergyOptions, notes: Sequence[str] = ()) -> AnalysisResult:
    """Measure where source and target views are in models, or score solutions: ``stepjepa analyze``.

    Args:
        notes: lines that are shown before the work begins.

    Raises:
        ConfigError, DataError: what cannot be used; what an earlier analysis has written is unchanged then.
    """
    if isinstance(options, EnergyOptions):
        from stepjepa.analysis.energy import energies

        return energies(options, notes)
    options.check()
    methods = options.coordinates or ["pca"]
    for name in ("matplotlib", "sklearn", *(["umap"] if "umap" in methods else [])):
        library(name, "umap" if name == "umap" else "analysis")  # before the work, which would be lost
    folder, histories = _folder(options), _read_runs(options.runs or ())
    figures: Iterable[tuple[str, Any]] = ()
    if histories:
        figures = [(CURVES, plots.curve_figure(histories, title=TITLES[CURVES]))]
    found = _saved_states(options.from_states, options.base_model) if options.from_states else None
    patterns = [_MEASURED] if found is not None else [] if options.runs_alone else [_MEASURED, _COLLECTED, _CURVES]
    stale = _existing(folder, [*patterns, _CURVES] if options.runs else patterns, options.overwrite_output_dir)
    lines, record = list[str](), dict[str, Any]()
    with Bar() as bar:
        for line in notes:
            bar.say(f"note     {line}")
        if found is None and not options.runs_alone:
            found, stale = collect_all(options, folder, stale, bar), []
        if found is not None:
            states, base, about = found
            bar.start("numbers", sum(len(one.layers) for one in states.values()), 0)
            most = options.prediction_horizon or MOST_HORIZONS
            comparison = compare(states, base, options.map_layers, lambda label: bar.advance(1, label), most)
            folder.mkdir(parents=True, exist_ok=True)
            for file in stale:
                file.unlink()
            record = {**about, **asdict(comparison)}
            write_json(folder / NUMBERS, record)
            write_whole(folder / TABLE, [comparison.csv().encode()])
            collected = "states-*.safetensors, " if any(folder.glob("states-*")) else ""
            lines = [str(comparison), "", f"written to {folder}: {collected}{NUMBERS}, {TABLE}"]
            figures = chain(_figures(comparison, states, methods, options.seed), figures)
    files = list[Path]()
    for name, figure in figures:
        files.append(folder / f"{name}.{options.figure_format}")
        plots.save_figure(figure, files[-1])
    lines += folded([f"figures: {', '.join(path.name if found else str(path) for path in files)}"], PAGE)
    return AnalysisResult(record, tuple(files), tuple(lines))


def _figures(
    comparison: Comparison, states: Mapping[str, States], methods: Sequence[str], seed: int
) -> Iterator[tuple[str, Any]]:
    """Every figure that there are numbers for, and its name."""
    layer, models = comparison.layer, comparison.models
    where = "final" if layer == FINAL else f"layer {layer}"
    views = {label: one.layer(layer) for label, one in states.items()}
    spectra = {label: geometry.singular_values(source - target) for label, (source, target) in views.items()}
    yield "spectrum", plots.spectrum_figure(spectra, f"{TITLES['spectrum']} ({where})")
    cosines = {
        label: (geometry.aligned_cosines(*both), geometry.shuffled_cosines(*both, seed))
        for label, both in views.items()
    }
    yield "cosine", plots.cosine_figure(cosines, f"{TITLES['cosine']} ({where})")
    if any(len(one.layers) > 1 for one in models.values()):
        chance, rank = next(iter(models.values())).layers[layer].pairs.chance_at_1, "effective rank (of unit rows)"
        for name, path, axis in (
            ("retrieval", "pairs.retrieval_at_1", "retrieval@1"),
            ("rank_source", "source.effective_rank", rank),
            ("rank_target", "target.effective_rank", rank),
        ):
            read = attrgetter(path)
            values = {label: {n: read(found) for n, found in one.layers.items()} for label, one in models.items()}
            own = chance if name == "retrieval" else None
            yield name, plots.layer_figure(values, axis, title=TITLES[name], chance=own)
    if any(len(one.steps) > 1 for one in models.values()):
        pairs = {label: {n: found.pairs for n, found in sorted(one.steps.items())} for label, one in models.items()}
        numbers = {label: {n: (p.gap, p.retrieval_at_1) for n, p in line.items()} for label, line in pairs.items()}
        chances = {n: p.chance_at_1 for line in pairs.values() for n, p in line.items()}
        yield "steps", plots.step_figure(numbers, dict(sorted(chances.items())))
    for method in dict.fromkeys(methods):
        for label, both in views.items():
            title = f"{METHOD_TITLES[method]}: {label} ({where})"
            yield f"{method}-{slug(label)}", plots.scatter_figure(plots.coordinates(*both, method, seed), title)


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
    folder = Path(name).expanduser()
    about, paths = (
        read_object(folder / ABOUT),
        {path.name: path for path in sorted(folder.glob("states-*.safetensors"))},
    )
    if not paths:
        raise ConfigError(
            f"--{_NAME.from_states} {name}: holds no states (states-*.safetensors); run stepjepa analyze FILE first"
        )
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
        folder = Path(name).expanduser()
        checkpoints = sorted(folder.glob("checkpoint-*"), key=lambda path: (len(path.name), path.name), reverse=True)
        files = [folder / "metrics.json", *(path / "trainer_state.json" for path in (folder, *checkpoints))]
        logs = (read_object(file).get("log_history") for file in files)
        log = next((log for log in logs if isinstance(log, list)), None)
        if log is None:
            raise ConfigError(
                f"--{_NAME.runs} {name}: no log of a training there (metrics.json, or a checkpoint's trainer_state.json)"
            )
        found[label] = [entry for entry in log if isinstance(entry, dict)]
    return found
