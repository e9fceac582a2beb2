"""What runs, studies, demos and analyses have left in their folders.

Old and unfinished folders lack some of the files, and a broken file must not cost the rest: it is left out, and named.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from stepjepa.errors import ConfigError
from stepjepa.training.run_folder import METRICS, RunFolder
from stepjepa.utils.files import parse_json, weights_digest

_RUN_FILES = ("run.json", "resolved.yaml", METRICS, "data_report.json", "trainer_state.json")
_STAGES = ("trained", "scored-test")
DEMO = "demo's held-out problems"


def table(value: Any, *keys: str) -> dict[str, Any]:
    """The object at a path of keys, an empty one for anything else."""
    found = _at(value, *keys)
    return found if isinstance(found, dict) else {}


def entries(value: Any, *keys: str) -> list[Any]:
    """The list at a path of keys, an empty one for anything else."""
    found = _at(value, *keys)
    return found if isinstance(found, list) else []


def number(value: Any, *keys: str) -> float | None:
    """The finite number at a path of keys, None for anything else."""
    found = _at(value, *keys)
    fits = isinstance(found, (int, float)) and not isinstance(found, bool) and math.isfinite(found)
    return found if fits else None


def _at(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


class Reader:
    """Reads files.

    Attributes:
        problems: a sentence for every file that is there and is left out.
    """

    def __init__(self) -> None:
        self.problems: list[str] = []

    def text(self, path: Path) -> str:
        """A file's text; empty where there is none."""
        return self._read(path, str) or ""

    def object(self, path: Path, parse: Callable[[str], Any] = parse_json) -> dict[str, Any]:
        """The object in a file of JSON, or of what `parse` reads; empty where there is none."""
        found = self._read(path, parse)
        if found is not None and not isinstance(found, dict):
            self.leave_out(path, "holds no object, and is left out")
        return table(found)

    def _read(self, path: Path, parse: Callable[[str], Any]) -> Any:
        try:
            return parse(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
            reason = " ".join(str(getattr(error, "strerror", None) or error).split())
            self.leave_out(path, f"cannot be read ({reason}), and is left out")

    def leave_out(self, path: Path, why: str) -> None:
        """Name a file that is left out, once."""
        problem = f"{path}: {why}"
        if problem not in self.problems:
            self.problems.append(problem)


@dataclass
class Evaluation:
    """What ``stepjepa evaluate`` has left, or what a demo has measured.

    Attributes:
        result: its ``metrics.json``; empty while it is unfinished.
        predictions: the file of answers, None where there is none.
        verdicts: of a demo, whether each answer was right, in the order of its problems.
    """

    result: dict[str, Any]
    predictions: Path | None = None
    verdicts: list[bool] = field(default_factory=list)


@dataclass
class Run:
    """A training run's records; each is empty where its file is missing.

    Attributes:
        label: what it is called on the page.
        record: ``run.json``.
        settings: those of ``resolved.yaml``, and over them those of ``run.json``, which came of them.
        data: ``data_report.json``.
        metrics: of ``metrics.json``, the last values.
        history: the Trainer's log; a checkpoint's where the run is unfinished.
        evaluations: by name.
        demo: what a demo has measured on its held-out problems.
        stages: of a study's run, the records of the stages that are done.
    """

    label: str
    path: Path
    record: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    unfinished: bool = True
    evaluations: dict[str, Evaluation] = field(default_factory=dict)
    demo: dict[str, Any] = field(default_factory=dict)
    stages: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass
class Study:
    """A study's records.

    Attributes:
        tables: ``table.md``; empty until the study has ended.
        state: ``state.json``.
        runs: one for each folder under ``runs/``, which is its label.
        figures: ``study*.svg`` or ``.png``.
    """

    path: Path
    tables: str
    state: dict[str, Any]
    runs: list[Run]
    figures: list[Path]


@dataclass
class Found:
    """All that a report is about: runs or a study, and folders of ``stepjepa analyze``."""

    runs: list[Run]
    study: Study | None
    geometry: list[Path]
    reader: Reader


def read_folders(names: Sequence[Path], geometry: Sequence[Path] = ()) -> Found:
    """Read whatever the folders hold.

    Raises:
        ConfigError: a folder is missing, given twice, or holds nothing that can be reported.
    """
    reader, folders, analyses = Reader(), list[Path](), list(geometry)
    for folder in [*names, *geometry]:
        if not folder.is_dir():
            why = "is a file; give the folder of a run" if folder.exists() else "no such folder"
            raise ConfigError(f"{folder}: {why}")
    for folder in geometry:
        if not any((folder / name).is_file() for name in ("numbers.json", "curves.png", "curves.svg")):
            raise ConfigError(f"--geometry {folder}: holds nothing that stepjepa analyze has written (numbers.json)")
    for folder in names:
        analyses += [file.parent for file in sorted(folder.glob("*/numbers.json")) if file.parent not in analyses]
        if (folder / "state.json").is_file() and any((folder / name).exists() for name in ("runs", "table.json")):
            if len(names) > 1:
                raise ConfigError(f"{folder}: is a study, which is reported alone; give one study, or several runs")
            return Found([], _study(folder, reader), analyses, reader)
        is_run = any((folder / name).is_file() for name in _RUN_FILES) or any(folder.glob("evaluation-*/"))
        is_run = is_run or bool(_checkpoint_logs(folder))
        inner = sorted(file.parent for file in folder.glob("*/run.json"))  # as a demo leaves them
        if not is_run and not inner:
            raise ConfigError(
                f"{folder}: is no folder of a run, a study or a demo (none of {', '.join(_RUN_FILES)}, state.json in it)"
            )
        demo = any("correct" in table(one) for one in reader.object(folder / METRICS).values())
        folders += inner if demo or not is_run else [folder]
    runs = [_run(label, folder, reader) for label, folder in zip(_labels(folders), folders, strict=True)]
    return Found(runs, None, analyses, reader)


def _labels(folders: Sequence[Path]) -> list[str]:
    """The last names of folders, with as many in front as tell them apart."""
    parts = [folder.resolve().parts for folder in folders]
    twice = next((one for place, one in enumerate(parts) if one in parts[:place]), None)
    if twice is not None:
        raise ConfigError(f"{Path(*twice)}: is given twice")
    length = 1
    while len({one[-length:] for one in parts}) < len(parts):
        length += 1
    return ["/".join(one[-length:]).lstrip("/") or "/" for one in parts]


def _run(label: str, folder: Path, reader: Reader) -> Run:
    ended, record = reader.object(folder / METRICS), reader.object(folder / "run.json")
    history = _log(ended) if RunFolder(folder).ended else []
    unfinished = not history
    for state in [] if history else [folder / "trainer_state.json", *_checkpoint_logs(folder)]:
        history = history or _log(reader.object(state))
    evaluations = dict(_evaluations(folder, reader))
    demo = reader.object(folder / "demo_result.json")
    if entries(demo, "correct"):
        evaluations = {DEMO: _demo_evaluation(demo), **evaluations}
    return Run(
        label,
        folder,
        record,
        {**reader.object(folder / "resolved.yaml", yaml.safe_load), **table(record, "settings")},
        reader.object(folder / "data_report.json"),
        table(ended, "metrics"),
        history,
        unfinished,
        evaluations,
        demo,
    )


def _log(record: dict[str, Any]) -> list[dict[str, Any]]:
    return [entry for entry in entries(record, "log_history") if isinstance(entry, dict)]


def _checkpoint_logs(folder: Path) -> list[Path]:
    """Logs of checkpoints, the newest first."""
    found = folder.glob("checkpoint-*/trainer_state.json")
    return sorted(found, key=lambda path: (len(path.parent.name), path.parent.name), reverse=True)


def _evaluations(folder: Path, reader: Reader) -> Iterator[tuple[str, Evaluation]]:
    """Those in folders of their own, and those whose predictions were given a name (``X.jsonl``, ``X.metrics.json``)."""
    for place in sorted(path for path in folder.iterdir() if path.is_dir() and not (path / "run.json").is_file()):
        result = reader.object(place / METRICS)
        if "identity" in result and _of_these_weights(place, result, folder, reader):
            yield place.name.removeprefix("evaluation-"), Evaluation(result, _first_file(place / "predictions.jsonl"))
        elif "identity" not in result and (place / "predictions.partial").is_file():
            yield place.name.removeprefix("evaluation-"), Evaluation({})
    for file in sorted(folder.glob("*.metrics.json")):
        stem, result = file.name.removesuffix(".metrics.json"), reader.object(file)
        if "identity" in result and _of_these_weights(file, result, folder, reader):
            yield stem, Evaluation(result, _first_file(folder / f"{stem}.jsonl", folder / f"{stem}.json"))


def _of_these_weights(place: Path, result: dict[str, Any], folder: Path, reader: Reader) -> bool:
    """Whether an evaluation is of the model that is in the run's folder now."""
    if result.get("weights") is not None and weights_digest(folder) not in (None, result["weights"]):
        reader.leave_out(
            place, "is of an earlier model in this folder, and is left out; evaluate the present one again"
        )
        return False
    return True


def _first_file(*paths: Path) -> Path | None:
    return next((path for path in paths if path.is_file()), None)


def _demo_evaluation(demo: dict[str, Any]) -> Evaluation:
    from stepjepa.evaluation.intervals import share

    verdicts = [bool(one) for one in entries(demo, "correct")]
    right, n, stopped = sum(verdicts), len(verdicts), number(demo, "stopped")
    found = {**share(right, n)._asdict(), "kind": "accuracy", "correct": right, "n": n}
    stop = {} if stopped is None else {"did_not_stop": {"count": round((1 - stopped) * n), "n": n}}
    return Evaluation({"metrics": {"final answer": found}, "generation": stop}, None, verdicts)


def _study(folder: Path, reader: Reader) -> Study:
    runs = list[Run]()
    for plan in sorted((folder / "runs").rglob("plan.json")):
        label, model = plan.parent.relative_to(folder / "runs").as_posix(), plan.parent / "model"
        run = _run(label, model, reader) if model.is_dir() else Run(label, model)
        records = {stage: reader.object(plan.parent / f"{stage}.json") for stage in _STAGES}
        run.stages = {stage: record for stage, record in records.items() if record}
        runs.append(run)
    figures = {path.stem: path for suffix in ("png", "svg") for path in sorted(folder.glob(f"study*.{suffix}"))}
    tables = reader.text(folder / "table.md")
    return Study(folder, tables, reader.object(folder / "state.json"), runs, list(figures.values()))
