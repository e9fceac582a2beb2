"""`analyze`: collect the states of models, measure and compare them, draw them, and leave all of it in one folder."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import asdict
from pathlib import Path

from stepjepa.analysis import plots
from stepjepa.analysis.collect import ABOUT, Collected, collect_all
from stepjepa.analysis.figures import figures_of
from stepjepa.analysis.numbers import compare
from stepjepa.analysis.options import AnalysisResult, AnalyzeOptions
from stepjepa.analysis.plots import METHOD_TITLES, TITLES
from stepjepa.analysis.prediction import MOST_HORIZONS
from stepjepa.analysis.states import States
from stepjepa.analysis.states_file import load_states
from stepjepa.config.option import Names, options_of
from stepjepa.errors import ConfigError
from stepjepa.training.run_folder import RunFolder
from stepjepa.utils.failures import library
from stepjepa.utils.files import check_writable, read_object, write_json, write_whole
from stepjepa.utils.terminal import Bar
from stepjepa.utils.text import PAGE, folded, one_line, slug

NUMBERS, TABLE = "numbers.json", "numbers.csv"
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
        write_whole(folder / TABLE, [comparison.csv().encode()])
        figures = list(figures_of(comparison, states, options.coordinates or ["pca"], options.seed))
        bar.start("figures", len(figures), 0)
        files = []
        for name, draw in figures:
            files.append(folder / f"{name}.{options.figure_format}")
            plots.save_figure(draw(), files[-1])
            bar.advance(1)
    kept = "states-*.safetensors, " if any(folder.glob("states-*")) else ""
    lines = [str(comparison), "", f"written to {folder}: {kept}{NUMBERS}, {TABLE}"]
    lines += folded([f"figures: {', '.join(path.name for path in files)}"], PAGE)
    return AnalysisResult(record, tuple(files), tuple(lines))


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
    paths = {path.name: path for path in sorted(folder.glob("states-*.safetensors"))}
    if not paths:
        raise ConfigError(f"{flag}: holds no states (states-*.safetensors); run stepjepa analyze FILE first")
    inputs = {one["states"]: one for one in about.get("inputs") or ()}
    states, names = dict[str, States](), dict[str, str]()
    for file in dict.fromkeys([*(name for name in inputs if name in paths), *paths]):
        label = inputs[file]["label"] if file in inputs else Path(file).stem.removeprefix("states-")
        label = one_line(label, _LABEL)
        states[label] = load_states(paths[file])
        names |= {label: label, states[label].model: label}
    if base is not None and base not in names:
        raise ConfigError(f"--{_NAME.base_model} {base}: no states of it in {name}; there are: {', '.join(states)}")
    found = names.get(str(about.get("base") if base is None else base))
    return Collected(states, found, {**about, "base": found})
