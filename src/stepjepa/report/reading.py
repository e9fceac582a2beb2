"""Reads the records in the folders of runs and studies.

Old and unfinished folders lack some files. A file that cannot be read or parsed is left out and named; a JSON file of
another form ends the report.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stepjepa.data.report import DataReport
from stepjepa.errors import ConfigError, said
from stepjepa.evaluation.metrics.base import NLL
from stepjepa.study.folder import STATE
from stepjepa.study.results import table_cells, table_title, verdict_lines
from stepjepa.training.run_folder import METRICS, RunFolder
from stepjepa.utils.files import Record, digest, model_parts, read_json
from stepjepa.utils.text import labels_of

PREDICTIONS = "predictions.jsonl"


class Reader:
    """Reads files, and collects the problems that the report should mention.

    Attributes:
        problems: a sentence for every file that exists but cannot be used.
        stale: a sentence for every evaluation of a model other than the current one.
    """

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.stale: list[str] = []

    def object(self, path: Path) -> Record:
        """The object in a JSON file; empty if it does not exist or cannot be parsed."""
        try:
            return read_json(path)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except (OSError, ValueError) as error:
            self.problems.append(f"{path}: cannot be read ({said(error)})")
            return {}


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
    """

    label: str
    path: Path
    record: Record
    settings: Record
    data: list[str]
    metrics: Record
    history: list[Record]
    unfinished: bool
    evaluations: dict[str, StoredEvaluation]
    trained: Record = field(default_factory=dict)

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
    title: str
    verdicts: list[str]
    tables: dict[str, dict[str, list[str]]]
    notes: list[str]
    code: Record
    arms: dict[str, Record]


def read_folders(
    names: Sequence[Path], reader: Reader
) -> tuple[list[ReportedRun], ReportedStudy | None]:
    """Read the folders of several runs, or of one study, whose runs are labelled by their folders under ``runs/``.

    Raises:
        ConfigError: a folder is missing, or contains neither a run nor a study.
    """
    for folder in names:
        if not folder.is_dir():
            raise ConfigError(f"{folder}: no such folder")
        if (folder / STATE).is_file():
            if len(names) > 1:
                raise ConfigError(
                    f"{folder}: is a study, which needs a report of its own; give one study, or several runs"
                )
            return list(_study_runs(folder / "runs", reader)), _study(folder, reader)
    labels = labels_of(list(map(str, names)))
    runs = [_run(label, folder, reader) for label, folder in zip(labels, names, strict=True)]
    for run in runs:
        if not (run.record or run.history or run.evaluations):
            raise ConfigError(
                f"{run.path}: is not the folder of a run or a study (it has no run.json, {METRICS}, evaluation or {STATE} "
                "that can be read)"
            )
    return runs, None


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
        settings=record.get("settings", {}),
        data=data_lines(reader.object(folder / "data_report.json")),
        metrics=ended.get("metrics", {}),
        history=history,
        unfinished=unfinished,
        evaluations=dict(_evaluations(folder, reader)),
    )


def data_lines(reports: Record) -> list[str]:
    """The lines of the data reports of all splits, as training printed them."""
    lines = []
    for split, record in reports.items():
        first, *others = DataReport.from_dict(record).lines()
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


def _other_model(folder: Path, result: Record) -> str:
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
    identity = reader.object(folder / STATE).get("identity", {})
    arms = {}
    for block, about in identity.get("blocks", {}).items():
        for arm, settings in about["arms"].items():
            arms[f"{block}/{arm}" if block else arm] = settings
    result = reader.object(folder / "table.json")
    tables, failed = result.get("tables", []), result.get("missing", [])
    missing = [f"{run['run']}: {run['error'] or run['status']}" for run in failed]
    return ReportedStudy(
        folder,
        result.get("title", ""),
        verdicts=["\n".join(verdict_lines(record)) for record in tables],
        tables={table_title(record): table_cells(record) for record in tables},
        notes=[*result.get("choices", []), *missing, *result.get("notes", [])],
        code=identity.get("code", {}),
        arms=arms,
    )


def _study_runs(folder: Path, reader: Reader) -> Iterator[ReportedRun]:
    for plan in sorted(folder.rglob("plan.json")):
        path = plan.parent
        label = path.relative_to(folder).as_posix()
        run = _run(label, path / "model", reader)
        run.evaluations |= dict(_evaluations(path, reader))
        run.trained = reader.object(path / "trained.json")
        # A run from a file of records has no log, but its record contains the curves.
        if not run.history:
            run.history = run.trained.get("losses", []) + run.trained.get("history", [])
        yield run
