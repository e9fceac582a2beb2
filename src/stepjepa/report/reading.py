"""Reads the records in the folders of runs and studies.

Old and unfinished folders lack some files. A broken file does not stop the report: it is left out and named.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from stepjepa.data.report import DataReport
from stepjepa.errors import ConfigError
from stepjepa.evaluation.metrics.base import NLL
from stepjepa.study.folder import STATE
from stepjepa.study.results import table_cells, table_title, verdict_lines
from stepjepa.training.run_folder import METRICS, RunFolder
from stepjepa.utils.files import Record, digest, model_parts, parse_object
from stepjepa.utils.text import labels_of

_RUN_FILES = ("run.json", METRICS, "data_report.json", "trainer_state.json")
PREDICTIONS = "predictions.jsonl"
T = TypeVar("T")


def table(value: object, *keys: str) -> Record:
    """The object at a path of keys; empty if it is missing, or is not an object."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def number(record: Mapping[str, Any], key: str) -> float | None:
    """The finite number under a key; None for anything else."""
    value = record.get(key)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return value
    return None


class Reader:
    """Reads files, and collects the problems that the report should mention.

    Attributes:
        problems: a sentence for every file that exists but cannot be used.
        stale: a sentence for every evaluation of a model other than the current one.
    """

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.stale: list[str] = []

    def read(self, path: Path, parse: Callable[[bytes], T]) -> T | None:
        """The parsed content of a file; None if it does not exist or cannot be parsed."""
        try:
            return parse(path.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ConfigError, KeyError, TypeError, ValueError, AttributeError) as error:
            reason = " ".join(str(getattr(error, "strerror", None) or error).split())
            self.problems.append(f"{path}: cannot be read ({reason})")
            return None

    def object(self, path: Path) -> Record:
        """The object in a JSON file; empty if it does not exist or cannot be parsed."""
        return self.read(path, parse_object) or {}


@dataclass
class StoredEvaluation:
    """The files of ``stepjepa evaluate`` or of a study's scoring.

    Attributes:
        result: content of ``metrics.json``.
        answers: the file of answers, else that of the reference answers' likelihoods; None if there is neither.
        stale: whether the model in the folder has changed since the evaluation.
    """

    result: Record
    answers: Path | None
    stale: bool


@dataclass
class ReportedRun:
    """The records of a training run; each is empty if its file is missing.

    Attributes:
        label: name of the run on the page.
        record: content of ``run.json``.
        settings: those in ``run.json``.
        data: lines of the data reports, as training printed them.
        metrics: last values, from ``metrics.json``.
        history: the Trainer's log, from a checkpoint if the run is unfinished.
        evaluations: name on the page -> evaluation.
        trained: for a run of a study, the record of its training.
        scored: for a run of a study, whether the test split was scored.
    """

    label: str
    path: Path
    record: Record = field(default_factory=dict)
    settings: Record = field(default_factory=dict)
    data: list[str] = field(default_factory=list)
    metrics: Record = field(default_factory=dict)
    history: list[Record] = field(default_factory=list)
    unfinished: bool = True
    evaluations: dict[str, StoredEvaluation] = field(default_factory=dict)
    trained: Record = field(default_factory=dict)
    scored: bool = False

    @property
    def arm(self) -> str:
        """For a run of a study: its arm, including the block and the tuned values."""
        return self.label.rpartition("/")[0] or self.label


@dataclass
class ReportedStudy:
    """The records of a study.

    Attributes:
        title, verdicts (one for each metric), notes: from ``table.json``; empty until it is written.
        tables: title -> title of a column -> a cell per arm.
        code: versions of the code that ran the study.
        arms: name -> training options, for every arm of every block.
    """

    path: Path
    title: str = ""
    verdicts: list[str] = field(default_factory=list)
    tables: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    code: Record = field(default_factory=dict)
    arms: dict[str, Record] = field(default_factory=dict)


@dataclass
class Found:
    """The content of a report: runs, or a study and its runs, whose labels are their folders under ``runs/``."""

    runs: list[ReportedRun]
    study: ReportedStudy | None
    reader: Reader


def read_folders(names: Sequence[Path]) -> Found:
    """Read the folders of several runs, or of one study.

    Raises:
        ConfigError: a folder is missing, or contains neither a run nor a study.
    """
    reader = Reader()
    for folder in names:
        if not folder.is_dir():
            why = "is a file; give the folder of a run" if folder.exists() else "no such folder"
            raise ConfigError(f"{folder}: {why}")
        if (folder / STATE).is_file():
            if len(names) > 1:
                raise ConfigError(
                    f"{folder}: is a study, which needs a report of its own; give one study, or several runs"
                )
            return Found(list(_study_runs(folder / "runs", reader)), _study(folder, reader), reader)
        is_run = any((folder / name).is_file() for name in _RUN_FILES) or any(
            folder.glob("evaluation-*/")
        )
        if not is_run and not _checkpoint_logs(folder):
            files = ", ".join(_RUN_FILES)
            raise ConfigError(
                f"{folder}: is not the folder of a run or a study (it contains none of {files}, {STATE})"
            )
    labels = labels_of(list(map(str, names)))
    runs = [_run(label, folder, reader) for label, folder in zip(labels, names, strict=True)]
    return Found(runs, None, reader)


def _run(label: str, folder: Path, reader: Reader) -> ReportedRun:
    ended, record = reader.object(folder / METRICS), reader.object(folder / "run.json")
    history = ended.get("log_history", []) if RunFolder(folder).ended else []
    unfinished = not history
    logs = _checkpoint_logs(folder)
    if unfinished and logs:
        history = reader.object(logs[-1]).get("log_history", [])
    return ReportedRun(
        label,
        folder,
        record,
        settings=table(record, "settings"),
        data=reader.read(
            folder / "data_report.json", lambda content: data_lines(parse_object(content))
        )
        or [],
        metrics=table(ended, "metrics"),
        history=history,
        unfinished=unfinished,
        evaluations=dict(_evaluations(folder, reader)),
    )


def data_lines(reports: Mapping[str, Any]) -> list[str]:
    """The lines of the data reports of all splits, as training printed them."""
    lines = []
    for split, record in reports.items():
        first, *others = DataReport.from_dict({"source": "", **record}).lines()
        lines += [f"{split}: {first}", *others]
    return lines


def _checkpoint_logs(folder: Path) -> list[Path]:
    """Logs of checkpoints, newest last."""
    # By length first, so that checkpoint-1000 counts as newer than checkpoint-200.
    logs = folder.glob("checkpoint-*/trainer_state.json")
    return sorted(logs, key=lambda path: (len(str(path)), path))


def _evaluations(folder: Path, reader: Reader) -> Iterator[tuple[str, StoredEvaluation]]:
    """Name and content of every evaluation in a subfolder."""
    for path in sorted(folder.glob("*/")):
        name = path.name.removeprefix("evaluation-")
        result = reader.object(path / METRICS)
        # Not the folder of an evaluation, or an evaluation that has not finished.
        if "identity" not in result:
            continue
        other_model = _other_model(folder, result)
        if other_model:
            reader.stale.append(f"{path}: belongs to {other_model}; evaluate the current model")
            name = f"{name} (stale)"
        files = (path / PREDICTIONS, path / f"{NLL}.jsonl")
        answers = next((file for file in files if file.is_file()), None)
        yield name, StoredEvaluation(result, answers, bool(other_model))


def _other_model(folder: Path, result: Mapping[str, Any]) -> str:
    """The model that a result belongs to; empty if it is the model in `folder`."""
    if (
        (folder / "run.json").is_file()
        and (folder / METRICS).is_file()
        and not RunFolder(folder).ended
    ):
        return "the model before this run was resumed"
    recorded = result.get("model_folder")
    if recorded is None or not any(folder.glob("*.safetensors")):
        return ""
    return "" if recorded == digest(model_parts(folder)) else "an earlier model in this folder"


# A study


def _study(folder: Path, reader: Reader) -> ReportedStudy:
    study = ReportedStudy(folder)
    state = reader.object(folder / STATE)
    study.code = table(state, "identity", "code")
    blocks = table(state, "identity", "blocks")
    for block, about in blocks.items():
        arms = table(about, "arms")
        for arm, settings in arms.items():
            name = f"{block}/{arm}" if block else arm
            study.arms[name] = table(settings)
    reader.read(folder / "table.json", lambda content: _add_tables(study, parse_object(content)))
    return study


def _add_tables(study: ReportedStudy, result: Mapping[str, Any]) -> None:
    """Add the content of ``table.json`` to a study."""
    verdicts = ["\n".join(verdict_lines(record)) for record in result["tables"]]
    tables = {table_title(record): table_cells(record) for record in result["tables"]}
    missing = [f"{run['run']}: {run['error'] or run['status']}" for run in result["missing"]]
    study.title, study.verdicts, study.tables = result["title"], verdicts, tables
    study.notes = [*result.get("choices", ()), *missing, *result.get("notes", ())]


def _study_runs(folder: Path, reader: Reader) -> Iterator[ReportedRun]:
    for plan in sorted(folder.rglob("plan.json")):
        path = plan.parent
        label = path.relative_to(folder).as_posix()
        model = path / "model"
        run = _run(label, model, reader) if model.is_dir() else ReportedRun(label, model)
        run.evaluations |= dict(_evaluations(path, reader))
        run.trained = reader.object(path / "trained.json")
        run.scored = (path / "scored-test.json").is_file()
        # A run from a file of records has no log, but its record contains the curves.
        if not run.history:
            run.history = run.trained.get("losses", []) + run.trained.get("history", [])
        yield run
