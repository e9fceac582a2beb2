"""What lies in the folders that a report is asked for: runs, a study, or the folder of a demo."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepjepa.errors import ConfigError
from stepjepa.report.files import Reader, entries, labels, mapping
from stepjepa.training.run_folder import METRICS, RunFolder
from stepjepa.utils.manifest import weights_digest

_RUN_FILES = ("run.json", "resolved.yaml", "metrics.json", "data_report.json", "trainer_state.json")
_DEMO_KEYS = {"accuracy", "correct"}


@dataclass
class Evaluation:
    """What ``stepjepa evaluate`` has left.

    Attributes:
        name: of its folder, less ``evaluation-``.
        result: its ``metrics.json``; empty while it is unfinished.
        predictions: the file of answers, None where there is none.
        unfinished: whether a part of it is done.
    """

    name: str
    result: dict[str, Any]
    predictions: Path | None
    unfinished: bool = False


@dataclass
class Run:
    """A training run's records; each is empty where its file is missing.

    Attributes:
        label: what it is called on the page.
        record: ``run.json``.
        options: ``resolved.yaml``.
        data: ``data_report.json``.
        metrics: of ``metrics.json``, the last values.
        history: the Trainer's log.
        unfinished: whether the log is a checkpoint's, because the run has not ended.
        evaluations: by name.
        demo: what the demo has measured on its held-out problems.
    """

    label: str
    path: Path
    record: dict[str, Any]
    options: dict[str, Any]
    data: dict[str, Any]
    metrics: dict[str, Any]
    history: list[dict[str, Any]]
    unfinished: bool
    evaluations: dict[str, Evaluation] = field(default_factory=dict)
    demo: dict[str, Any] = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, Any]:
        """All that was set; ``resolved.yaml`` knows more, ``run.json`` what came of it."""
        return {**self.options, **mapping(self.record.get("settings"))}


@dataclass
class StudyFolder:
    """A study's records.

    Attributes:
        table: ``table.json``; empty while the study goes on.
        state: ``state.json``.
        results: ``results.jsonl``.
        runs: one for each folder under ``runs/``; their labels are the folders' names.
        figures: ``study*.png`` or ``.svg``.
    """

    path: Path
    table: dict[str, Any]
    state: dict[str, Any]
    results: list[dict[str, Any]]
    runs: list[Run]
    stages: dict[str, dict[str, dict[str, Any]]]
    figures: list[Path]


@dataclass
class Found:
    """All that a report is about: runs or a study, and geometry folders."""

    runs: list[Run]
    study: StudyFolder | None
    geometry: list[Path]
    reader: Reader
    demo: dict[str, Any] = field(default_factory=dict)


def read_folders(names: Sequence[Path], geometry: Sequence[Path] = ()) -> Found:
    """Read whatever the folders hold.

    Raises:
        ConfigError: a folder is missing, or holds neither a run nor a study.
    """
    reader, places = Reader(), list[Path]()
    demo: dict[str, Any] = {}
    labels(names)
    for folder in [*names, *geometry]:
        if not folder.is_dir():
            raise ConfigError(
                f"{folder}: {'is a file; give the folder of a run' if folder.exists() else 'no such folder'}"
            )
    for folder in geometry:
        if not is_geometry(folder):
            raise ConfigError(f"--geometry {folder}: holds nothing that stepjepa analyze has written (numbers.json)")
    found_geometry = list(geometry)
    for folder in names:
        found_geometry += [inner for inner in _geometry_in(folder) if inner not in found_geometry]
        if is_study(folder):
            if len(names) > 1:
                raise ConfigError(f"{folder}: is a study, which is reported alone; give one study, or several runs")
            return Found([], _study(folder, reader), found_geometry, reader)
        measured = _demo(folder, reader)
        demo = demo or measured
        runs = [] if is_run(folder) and not measured else _runs_in(folder)
        if not runs and not is_run(folder):
            raise ConfigError(
                f"{folder}: is no folder of a run, a study or a demo (none of {', '.join(_RUN_FILES)}, state.json in it)"
            )
        places += runs or [folder]
    read = [_run(label, place, reader) for label, place in zip(labels(places), places, strict=True)]
    return Found(read, None, found_geometry, reader, demo)


def is_run(folder: Path) -> bool:
    """Whether a folder holds what a run leaves, or an evaluation of one."""
    named = any((folder / name).is_file() for name in _RUN_FILES)
    return named or bool(_checkpoints(folder)) or any(folder.glob("evaluation-*/"))


def is_study(folder: Path) -> bool:
    """Whether a study was begun in a folder."""
    return (folder / "state.json").is_file() and ((folder / "runs").is_dir() or (folder / "table.json").is_file())


def is_geometry(folder: Path) -> bool:
    """Whether ``stepjepa analyze`` has written there: numbers, or the curves of runs."""
    return any((folder / name).is_file() for name in ("numbers.json", "curves.png", "curves.svg"))


def _geometry_in(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.glob("*/numbers.json"))


def _demo(folder: Path, reader: Reader) -> dict[str, Any]:
    """What the demo has measured, by arm; empty for any other folder."""
    whole = reader.json_object(folder / "metrics.json")
    return {arm: one for arm, one in whole.items() if isinstance(one, dict) and set(one) >= _DEMO_KEYS}


def _runs_in(folder: Path) -> list[Path]:
    """The runs that lie side by side in a folder, as a demo leaves them."""
    return sorted(file.parent for file in folder.glob("*/run.json"))


def _checkpoints(folder: Path) -> list[Path]:
    """Logs of checkpoints, the newest first."""
    found = folder.glob("checkpoint-*/trainer_state.json")
    return sorted(found, key=lambda path: (len(path.parent.name), path.parent.name), reverse=True)


def _run(label: str, folder: Path, reader: Reader) -> Run:
    ended = reader.json_object(folder / METRICS)
    log = _log(ended) if RunFolder(folder).ended else []
    unfinished = not log
    for state in [] if log else [folder / "trainer_state.json", *_checkpoints(folder)]:
        log = log or _log(reader.json_object(state))
    return Run(
        label,
        folder,
        reader.json_object(folder / "run.json"),
        reader.yaml_object(folder / "resolved.yaml"),
        reader.json_object(folder / "data_report.json"),
        mapping(ended.get("metrics")),
        log,
        unfinished,
        {one.name: one for one in _evaluations(folder, reader)},
        reader.json_object(folder / "demo_result.json"),
    )


def _log(record: dict[str, Any]) -> list[dict[str, Any]]:
    return [entry for entry in entries(record.get("log_history")) if isinstance(entry, dict)]


def _evaluations(folder: Path, reader: Reader) -> list[Evaluation]:
    """Those in folders of their own, and those whose predictions were given a name (``X.jsonl``, ``X.metrics.json``)."""
    found, weights = [], weights_digest(folder)
    for place in sorted(path for path in folder.iterdir() if path.is_dir()):
        result = reader.json_object(place / "metrics.json") if _evaluated(place) else {}
        if weights is not None and result.get("weights") not in (None, weights):
            reader.say(
                f"{place}: is of an earlier model in this folder, and is left out; evaluate the present one again"
            )
            continue
        partial = (place / "predictions.partial").is_file()
        if "identity" in result or partial:
            name = place.name.removeprefix("evaluation-")
            found.append(Evaluation(name, result, _first_file(place / "predictions.jsonl"), partial and not result))
    for file in sorted(folder.glob("*.metrics.json")):
        stem = file.name.removesuffix(".metrics.json")
        result = reader.json_object(file)
        if "identity" in result:
            predictions = _first_file(folder / f"{stem}.jsonl", folder / f"{stem}.json")
            found.append(Evaluation(stem, result, predictions))
    return found


def _evaluated(folder: Path) -> bool:
    """Whether a folder's metrics.json can be an evaluation's: no checkpoint's, no other run's."""
    return (folder / "metrics.json").is_file() and not (folder / "run.json").is_file()


def _first_file(*paths: Path) -> Path | None:
    return next((path for path in paths if path.is_file()), None)


def _study(folder: Path, reader: Reader) -> StudyFolder:
    runs, stages = list[Run](), dict[str, dict[str, dict[str, Any]]]()
    for plan in sorted((folder / "runs").rglob("plan.json")):
        label = plan.parent.relative_to(folder / "runs").as_posix()
        runs.append(
            _run(label, plan.parent / "model", reader) if (plan.parent / "model").is_dir() else _no_run(label, plan)
        )
        names = ("trained", "scored-select", "scored-test")
        records = {name: reader.json_object(plan.parent / f"{name}.json") for name in names}
        stages[label] = {name: record for name, record in records.items() if record}
    figures = {path.stem: path for suffix in ("png", "svg") for path in sorted(folder.glob(f"study*.{suffix}"))}
    return StudyFolder(
        folder,
        reader.json_object(folder / "table.json"),
        reader.json_object(folder / "state.json"),
        reader.json_lines(folder / "results.jsonl"),
        runs,
        stages,
        list(figures.values()),
    )


def _no_run(label: str, plan: Path) -> Run:
    return Run(label, plan.parent / "model", {}, {}, {}, {}, [], True)
