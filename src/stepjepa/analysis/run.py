"""`analyze`: collect states, measure them, draw them, and leave all of it in one folder."""

from __future__ import annotations

import gc
import logging
import os
import re
import shutil
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from stepjepa.analysis.compare import (
    Comparison,
    Saved,
    check_saved,
    compare,
    comparison_csv,
    comparison_record,
)
from stepjepa.analysis.draw import FIGURES, METHOD_TITLES, draw_comparison, number_of_figures
from stepjepa.analysis.models import Collector, labels_of, naming_flag
from stepjepa.analysis.options import AnalysisResult, AnalyzeOptions, EnergyOptions
from stepjepa.analysis.plots import LOSS_CURVES, curve_figure
from stepjepa.analysis.states import saved_layers
from stepjepa.analysis.style import save_figure
from stepjepa.analysis.summary import collapse_lines, tables
from stepjepa.config.option import options_of
from stepjepa.errors import ConfigError, DataError
from stepjepa.evaluation.models import find_model
from stepjepa.inspect.check.report import folded
from stepjepa.objectives.base import objective_of
from stepjepa.training.options import ExampleOptions
from stepjepa.utils.files import check_writable, read_json, write_json, write_whole
from stepjepa.utils.terminal import Bar, show_log
from stepjepa.utils.text import one_line

ABOUT, NUMBERS, TABLE, CURVES = "analysis.json", "numbers.json", "numbers.csv", "curves"
_MEASURED = rf"numbers\.(?:json|csv)|(?:{'|'.join(FIGURES)})\.(?:png|svg)|(?:{'|'.join(METHOD_TITLES)})-.+\.(?:png|svg)"
_CURVES = rf"{CURVES}\.(?:png|svg)"
_COLLECTED = rf"states-.+\.safetensors|{re.escape(ABOUT)}"
_NEW = ".new-states"
_LABEL = 100  # characters

States = tuple[list[Saved], "str | None", dict[str, Any]]  # the files, label of the base, what is known of them


def analyze(options: AnalyzeOptions | EnergyOptions, notes: Sequence[str] = ()) -> AnalysisResult:
    """Measure where source and target views are in models, or score solutions: ``stepjepa analyze``.

    Args:
        notes: lines that are shown before the work begins.

    Raises:
        StepJepaError: what cannot be used; what an earlier analysis has written is unchanged then.
    """
    if isinstance(options, EnergyOptions):
        from stepjepa.analysis.energy import energies

        return energies(options, notes)
    options.check()
    _need_libraries(options)
    folder, curves, states = _folder(options), _read_runs(options.runs or ()), None
    if options.from_states:
        states = _saved_states(options.from_states, options.base_model)
    _refuse_existing(folder, options)
    with Bar() as bar:
        for line in notes:
            bar.say(f"note     {line}")
        if states is None and not options.runs_alone:
            states = _collect_all(options, folder, bar)
        files, lines, record = list[Path](), list[str](), dict[str, Any]()
        if states is not None:
            saved, base, about = states
            comparison = _measure(options, saved, base, bar)
            _remove(folder, _MEASURED)
            folder.mkdir(parents=True, exist_ok=True)
            record = {**about, **comparison_record(comparison)}
            write_json(folder / NUMBERS, record)
            write_whole(folder / TABLE, [comparison_csv(comparison).encode()])
            methods = list(dict.fromkeys(options.coordinates or ["pca"]))
            bar.start("figures", number_of_figures(comparison, methods), 0)
            figures = folder, methods, options.figure_format, options.seed
            files = draw_comparison(comparison, saved, *figures, lambda: bar.advance(1))
            collected = "states-*.safetensors, " if any(folder.glob("states-*")) else ""
            lines = [*tables(comparison), "", *folded(collapse_lines(comparison)), ""]
            lines += [f"written to {folder}: {collected}{NUMBERS}, {TABLE}"]
        if curves:
            files.append(folder / f"{CURVES}.{options.figure_format}")
            folder.mkdir(parents=True, exist_ok=True)
            save_figure(curve_figure(curves, title="Training losses"), files[-1])
    lines += folded([f"figures: {', '.join(path.name if states else str(path) for path in files)}"])
    return AnalysisResult(record, tuple(files), tuple(lines))


def _need_libraries(options: AnalyzeOptions) -> None:
    """Refuse before the work what would fail after it."""
    needed = {"matplotlib": "analysis"}
    if not options.runs_alone:
        needed |= {"sklearn": "analysis", **({"umap": "umap"} if "umap" in (options.coordinates or ()) else {})}
    for name, extra in needed.items():
        if find_spec(name) is None:
            raise ConfigError(
                f"this needs {name}, which is not installed; install it with: pip install 'stepjepa[{extra}]'"
            )


# The folder


def _folder(options: AnalyzeOptions) -> Path:
    if options.output_dir or options.from_states:
        return Path(str(options.output_dir or options.from_states)).expanduser()
    if options.runs_alone:
        return Path("analysis-runs")
    name = str(options.file)
    name = Path(name).stem if Path(name).exists() else name
    return Path(f"analysis-{re.sub(r'[^a-zA-Z0-9_.-]+', '-', name).strip('-.') or 'data'}")


def _written(options: AnalyzeOptions) -> str:
    """A pattern of the files that a command writes."""
    if options.runs_alone:
        return _CURVES
    if options.from_states:
        return f"{_MEASURED}|{_CURVES}" if options.runs else _MEASURED
    return f"{_MEASURED}|{_CURVES}|{_COLLECTED}"


def _refuse_existing(folder: Path, options: AnalyzeOptions) -> None:
    """Refuse to write over what is there, unless asked to."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--output_dir {folder}: is a file; give a folder")
    check_writable(folder)
    if options.overwrite_output_dir or not folder.is_dir():
        return
    for entry in sorted(folder.iterdir()):
        if re.fullmatch(_written(options), entry.name):
            raise ConfigError(
                f"--output_dir {folder}: {entry.name} is there already; give another folder, or replace it with "
                "--overwrite_output_dir"
            )


def _remove(folder: Path, pattern: str) -> None:
    """Remove what an earlier analysis has written."""
    for entry in sorted(folder.iterdir()) if folder.is_dir() else ():
        if entry.is_file() and re.fullmatch(pattern, entry.name):
            entry.unlink()


def _saved_states(name: str, base: str | None) -> States:
    """The states in a folder, in the order in which they were collected; `base`: label or name of another base model."""
    folder = Path(name).expanduser()
    if not folder.is_dir():
        raise ConfigError(f"--from_states {name}: no such folder")
    about = _read_object(folder / ABOUT)
    inputs = about.get("inputs") if isinstance(about.get("inputs"), list) else []
    known = {str(one.get("states")): one for one in inputs or () if isinstance(one, dict)}
    paths = sorted(path for path in folder.glob("states-*.safetensors") if path.is_file())
    if not paths:
        raise ConfigError(
            f"--from_states {name}: holds no states (states-*.safetensors); run stepjepa analyze FILE first"
        )
    order = list(known)
    paths.sort(key=lambda path: order.index(path.name) if path.name in order else len(order))
    saved = []
    for path in paths:
        label = known.get(path.name, {}).get("label") or path.stem.removeprefix("states-")
        saved.append(Saved(one_line(str(label), _LABEL), path))
    if base is None:
        label = about.get("base")
        return saved, label if label in [one.label for one in saved] else None, about
    for one in saved:
        if base in (one.label, known.get(one.path.name, {}).get("model")):
            return saved, one.label, {**about, "base": one.label}
    raise ConfigError(
        f"--base_model {base}: no states of it in {name}; there are: {', '.join(one.label for one in saved)}"
    )


# States


def _collect_all(options: AnalyzeOptions, folder: Path, bar: Bar) -> States:
    """Run the models, the base first and each once, and leave their states in the folder, all or none."""
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # of loading
    show_log(logging.WARNING)
    named = [("base_model", options.base_model)] if options.base_model is not None else []
    named += [("models", name) for name in options.models or () if name != options.base_model]
    places = []
    for flag, name in named:
        with naming_flag(flag):
            places.append(find_model(str(name)))
    labels = labels_of([place.name for place in places])
    base = labels[0] if options.base_model is not None else None
    new, existed = folder / _NEW, folder.is_dir()
    try:
        collector = Collector(options, new, bar, base)
        method = collector.method
        if objective_of(method).draws:
            bar.say("note     all pairs are read, of which training samples one an epoch (--step_pairs random)")
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
        found = []
        for (flag, _), label, place in zip(named, labels, places, strict=True):
            found.append(collector.collect(flag, label, place))
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        saved = [one for one, _ in found]
        check_saved(saved, base)
        about = {
            "version": 1,
            "file": str(options.file),
            "max_examples": options.max_examples,
            "views": {name: getattr(method, name) for name in options_of(ExampleOptions) if hasattr(options, name)},
            "inputs": [about for _, about in found],
            "base": base,
        }
        _remove(folder, _written(options))
        for one in saved:
            os.replace(one.path, folder / one.path.name)
        write_json(folder / ABOUT, about)
    finally:
        shutil.rmtree(new, ignore_errors=True)
        if not existed and folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    return [Saved(one.label, folder / one.path.name) for one in saved], base, about


def _measure(options: AnalyzeOptions, saved: Sequence[Saved], base: str | None, bar: Bar) -> Comparison:
    bar.start("numbers", sum(len(saved_layers(one.path)) for one in saved), 0)
    return compare(saved, base, options.map_layers, lambda label: bar.advance(1, label))


# Logs of runs


def _read_runs(names: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """The Trainer's log of each run, by its label."""
    return {label: _read_log(name) for label, name in zip(labels_of(names), names, strict=True)}


def _read_log(name: str) -> list[dict[str, Any]]:
    """The log of a run, from ``metrics.json`` or, where it has not ended, its newest checkpoint."""
    folder = Path(name).expanduser()
    if not folder.is_dir():
        raise ConfigError(f"--runs {name}: no such folder")
    checkpoints = sorted(folder.glob("checkpoint-*"), key=lambda path: (len(path.name), path.name), reverse=True)
    for file in [folder / "metrics.json", *(path / "trainer_state.json" for path in (folder, *checkpoints))]:
        log = _read_object(file).get("log_history")
        if isinstance(log, list):
            entries = [entry for entry in log if isinstance(entry, dict)]
            if not any(entry.get(key) is not None for entry in entries for key, _ in LOSS_CURVES):
                raise DataError(
                    f"--runs {name}: {file.name} holds neither {' nor '.join(key for key, _ in LOSS_CURVES)}"
                )
            return entries
    raise ConfigError(f"--runs {name}: no log of a training there (metrics.json, or a checkpoint's trainer_state.json)")


def _read_object(path: Path) -> dict[str, Any]:
    """An object in a file; empty where there is none that can be read."""
    try:
        found = read_json(path)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
