"""What ``stepjepa analyze`` does: collect states, measure them, draw them, and leave all of it in one folder."""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from stepjepa.analysis.compare import Comparison, Saved, check_saved, compare, comparison_csv, comparison_record
from stepjepa.analysis.draw import FIGURES, METHOD_TITLES, draw_comparison, number_of_figures
from stepjepa.analysis.plots import LOSS_CURVES, curve_figure
from stepjepa.analysis.states import saved_layers
from stepjepa.analysis.style import save_figure
from stepjepa.analysis.summary import collapse_lines, tables
from stepjepa.cli.check import folded
from stepjepa.errors import ConfigError, DataError
from stepjepa.utils.files import check_writable, read_json, write_json, write_whole
from stepjepa.utils.progress import Bar
from stepjepa.utils.terminal import print_text, show_log
from stepjepa.utils.text import one_line

ABOUT, NUMBERS, TABLE, CURVES = "analysis.json", "numbers.json", "numbers.csv", "curves"
_STATES = re.compile(r"states-.+\.safetensors")
_MEASURED = re.compile(
    rf"numbers\.(?:json|csv)|(?:{'|'.join(FIGURES)})\.(?:png|svg)|(?:{'|'.join(METHOD_TITLES)})-.+\.(?:png|svg)"
)
_CURVES = re.compile(rf"{CURVES}\.(?:png|svg)")
_LABEL = 100  # characters
_ABOUT = re.compile(re.escape(ABOUT))
_NEW = ".new-states"


def work(options: Any, explicit: Collection[str], notes: Sequence[str]) -> int:
    """Do what the options say; exit status 0.

    Raises:
        StepJepaError: what cannot be used; what an earlier analysis has left still stands then.
    """
    folder, curves = output_folder(options), read_runs(options.runs or ())
    index = (
        None if options.runs_alone or not options.from_states else read_index(options.from_states, options.base_model)
    )
    refuse_existing(folder, options)
    with Bar() as bar:
        for line in notes:
            bar.say(f"note     {line}")
        if index is None and not options.runs_alone:
            index = collect(options, explicit, folder, bar)
        files, comparison = list[Path](), None
        if index is not None:
            saved, base, about = index
            comparison = measure(saved, base, options.map_layers, bar)
            remove(folder, _MEASURED)
            folder.mkdir(parents=True, exist_ok=True)
            write_json(folder / NUMBERS, {**about, **comparison_record(comparison)})
            write_whole(folder / TABLE, [comparison_csv(comparison).encode()])
            methods = list(dict.fromkeys(options.coordinates or ["pca"]))
            bar.start("figures", number_of_figures(comparison, methods), 0)
            files = draw_comparison(
                comparison, saved, folder, methods, options.figure_format, options.seed, lambda: bar.advance(1)
            )
        if curves:
            files.append(folder / f"{CURVES}.{options.figure_format}")
            folder.mkdir(parents=True, exist_ok=True)
            save_figure(curve_figure(curves, title="Training losses"), files[-1])
    print_text("\n".join(report(folder, files, comparison)))
    return 0


def report(folder: Path, files: Sequence[Path], comparison: Comparison | None) -> list[str]:
    """What the terminal shows at the end."""
    lines = []
    if comparison is not None:
        lines = [*tables(comparison), "", *folded(collapse_lines(comparison)), ""]
        written = (
            [f"states-*.safetensors, {NUMBERS}, {TABLE}"] if any(folder.glob("states-*")) else [f"{NUMBERS}, {TABLE}"]
        )
        lines += [f"written to {folder}: {written[0]}"]
    return [*lines, *folded([f"figures: {', '.join(path.name if comparison else str(path) for path in files)}"])]


def output_folder(options: Any) -> Path:
    """The folder that everything goes to."""
    if options.output_dir:
        return Path(os.path.expanduser(options.output_dir))
    if options.from_states:
        return Path(os.path.expanduser(options.from_states))
    if options.runs_alone:
        return Path("analysis-runs")
    name = Path(options.file).stem if Path(options.file).exists() else options.file
    return Path(f"analysis-{re.sub(r'[^a-zA-Z0-9_.-]+', '-', name).strip('-.') or 'data'}")


def refuse_existing(folder: Path, options: Any) -> None:
    """Refuse to write over what is there without being told to.

    Raises:
        ConfigError: the folder is a file, or holds what an earlier analysis has written.
    """
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--output_dir {folder}: is a file; give a folder")
    check_writable(folder)
    if options.overwrite_output_dir or not folder.is_dir():
        return
    for entry in sorted(folder.iterdir()):
        if any(kind.fullmatch(entry.name) for kind in written_kinds(options)):
            raise ConfigError(
                f"--output_dir {folder}: {entry.name} is there already; give another folder, or replace it with "
                "--overwrite_output_dir"
            )


def written_kinds(options: Any) -> list[re.Pattern[str]]:
    """Names of the files that a command writes."""
    curves = [_CURVES] if options.runs else []
    if options.runs_alone:
        return curves
    return [_MEASURED, *curves] if options.from_states else [_MEASURED, _CURVES, _STATES, _ABOUT]


def remove(folder: Path, *kinds: re.Pattern[str]) -> None:
    """Remove what an earlier analysis has written."""
    if folder.is_dir():
        for entry in sorted(folder.iterdir()):
            if entry.is_file() and any(kind.fullmatch(entry.name) for kind in kinds):
                entry.unlink()


def collect(
    options: Any, explicit: Collection[str], folder: Path, bar: Bar
) -> tuple[list[Saved], str | None, dict[str, Any]]:
    """Run the models and leave their states in the folder, all or none.

    Returns:
        The states, the label of the base model, and what is known about them.

    Raises:
        StepJepaError: a model or the data cannot be used.
    """
    from transformers.utils.logging import disable_progress_bar

    from stepjepa.cli.analyze_models import Collector, choose_models, method_record

    disable_progress_bar()  # of loading
    show_log(logging.WARNING)
    chosen, base = choose_models(options.models or [], options.base_model)
    new = folder / _NEW
    there = folder.is_dir()
    try:
        collector = Collector(options, explicit, new, bar)
        if collector.method.step_pairs == "random" and collector.method.objective == "step_jepa":
            bar.say("note     --step_pairs random: all pairs are read, of which training draws one an epoch")
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
        found = [collector.collect(one) for one in chosen]
        saved, models = [one for one, _ in found], [about for _, about in found]
        check_saved(saved, base)
        about = {
            "version": 1,
            "file": str(options.file),
            "max_examples": options.max_examples,
            "views": method_record(collector.method),
            "inputs": models,
            "base": base,
        }
        remove(folder, *written_kinds(options))
        for one in saved:
            os.replace(one.path, folder / one.path.name)
        write_json(folder / ABOUT, about)
    finally:
        shutil.rmtree(new, ignore_errors=True)
        if not there and folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    return [Saved(one.label, folder / one.path.name) for one in saved], base, about


def measure(saved: Sequence[Saved], base: str | None, map_layers: Sequence[int] | None, bar: Bar) -> Comparison:
    """The numbers, with a bar."""
    bar.start("numbers", sum(len(saved_layers(one.path)) for one in saved), 0)
    return compare(saved, base, map_layers, lambda label: bar.advance(1, label))


def read_index(name: str, base: str | None) -> tuple[list[Saved], str | None, dict[str, Any]]:
    """The states in a folder, in the order in which they were collected, the base model's label and what is known of them.

    Args:
        base: label or name of the base model in place of the one that was given before.

    Raises:
        ConfigError: there are no states, or `base` is none of the models.
    """
    folder = Path(os.path.expanduser(name))
    if not folder.is_dir():
        raise ConfigError(f"--from_states {name}: no such folder")
    about: dict[str, Any] = read_object(folder / ABOUT)
    inputs = about.get("inputs")
    inputs = inputs if isinstance(inputs, list) else []
    known = {str(one.get("states")): one for one in inputs if isinstance(one, dict)}
    paths = sorted(path for path in folder.glob("states-*.safetensors") if path.is_file())
    if not paths:
        raise ConfigError(
            f"--from_states {name}: holds no states (states-*.safetensors); run stepjepa analyze FILE first"
        )
    order = list(known)
    paths.sort(key=lambda path: order.index(path.name) if path.name in order else len(order))
    saved = [Saved(_label(path, known), path) for path in paths]
    if base is None:
        labels = [one.label for one in saved]
        return saved, about["base"] if about.get("base") in labels else None, about
    for one in saved:
        if base in (one.label, known.get(one.path.name, {}).get("model")):
            return saved, one.label, {**about, "base": one.label}
    raise ConfigError(
        f"--base_model {base}: no states of it in {name}; there are: {', '.join(one.label for one in saved)}"
    )


def _label(path: Path, known: dict[str, Any]) -> str:
    found = known.get(path.name)
    label = found.get("label") if isinstance(found, dict) else None
    return one_line(str(label or path.stem.removeprefix("states-")), _LABEL)


def read_runs(names: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """The Trainer's log of each run.

    Raises:
        ConfigError: a folder without one.
        DataError: a log without any loss.
    """
    if not names:
        return {}
    from stepjepa.cli.analyze_models import labels_of

    return {label: read_log(name) for label, name in zip(labels_of(names), names, strict=True)}


def read_log(name: str) -> list[dict[str, Any]]:
    """The log of a run, from ``metrics.json`` or, where it has not ended, its newest checkpoint.

    Raises:
        ConfigError: no folder, or none with a log.
        DataError: no loss in it.
    """
    folder = Path(os.path.expanduser(name))
    if not folder.is_dir():
        raise ConfigError(f"--runs {name}: no such folder")
    checkpoints = sorted(folder.glob("checkpoint-*"), key=lambda path: (len(path.name), path.name), reverse=True)
    states = [path / "trainer_state.json" for path in (folder, *checkpoints)]
    for file in [folder / "metrics.json", *states]:
        log = read_object(file).get("log_history")
        if isinstance(log, list):
            entries = [entry for entry in log if isinstance(entry, dict)]
            if not any(entry.get(key) is not None for entry in entries for key, _ in LOSS_CURVES):
                raise DataError(
                    f"--runs {name}: {file.name} holds neither {' nor '.join(key for key, _ in LOSS_CURVES)}"
                )
            return entries
    raise ConfigError(f"--runs {name}: no log of a training there (metrics.json, or a checkpoint's trainer_state.json)")


def read_object(path: Path) -> dict[str, Any]:
    """An object in a file; empty where there is none that can be read."""
    try:
        found = read_json(path)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
