"""What a study leaves on disk while it runs: a folder for every run, the study's state, and a line for each run.

A run's folder holds ``plan.json`` and ``train.yaml`` (all that is needed to carry it out), ``model/``, the logs, and a
record for each stage that is done: ``trained.json``, ``scored-select.json``, ``scored-test.json``. A record is written
atomically, as the last thing of its stage, and never again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from stepjepa.config.option import Names
from stepjepa.data.sources import file_rows
from stepjepa.errors import ConfigError, DataError
from stepjepa.study.identity import run_identity
from stepjepa.study.spec import SAME_FLOP, SPLITS, Run, Study, StudyOptions, Values, possible_runs
from stepjepa.utils.files import check_writable, json_bytes, read_json, remove_tree, write_json, write_whole

_NAME = Names(StudyOptions)
STATE = "state.json"
# What is kept of a model whose weights are deleted.
_MODEL_RECORDS = {"run.json", "resolved.yaml", "metrics.json", "data_report.json"}
# Of a run's training, as its record has them: the hardware, the types of weights and arithmetic, the commit of the code.
CIRCUMSTANCES = ("machine", "dtype", "commit")
_LINE_KEYS = {"run", "identity", "code", "at"}


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Write a record with the time, and the folder that it belongs to."""
    path.parent.mkdir(parents=True, exist_ok=True)
    now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    write_json(path, {"at": now, **record}, indent=1)


def read_record(path: Path) -> dict[str, Any] | None:
    """A record, None where there is none.

    Raises:
        DataError: it cannot be read.
    """
    try:
        return read_json(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error}); delete it, and its stage is done again") from None


class StudyRunFolder:
    """The folder of one run: its plan, its options for training, its model, and the job of a cluster that carries it out."""

    def __init__(self, path: Path):
        self.path = path
        self.model = path / "model"
        self.plan = path / "plan.json"
        self.train_config = path / "train.yaml"
        self.job = path / "job.json"
        self._done: dict[str, dict[str, Any]] = {}

    def record(self, stage: str) -> Path:
        """The record of a stage: ``train``, or the split that is scored."""
        return self.path / ("trained.json" if stage == "train" else f"scored-{stage}.json")

    def done(self, stage: str) -> dict[str, Any] | None:
        """The record of a stage, None where it is not done. Raises DataError: it is damaged."""
        if stage in self._done:
            return self._done[stage]
        path = self.record(stage)
        record = read_record(path)
        if record is None:
            return None
        result, kind = (record.get("steps"), int) if stage == "train" else (record.get("metrics"), dict)
        if not isinstance(result, kind) or not isinstance(record.get("at"), str):
            raise DataError(f"{path}: the record is damaged; delete it, and its stage is done again")
        self._done[stage] = record
        return record

    def restore(self, line: Mapping[str, Any]) -> None:
        """Write the records of the stages that are done by a line of results."""
        trained = {name: line[name] for name in ("steps", "flops", "train_seconds", "history")}
        for name in ("losses", "diverged", *CIRCUMSTANCES):
            if line.get(name):
                trained[name] = line[name]
        for stage, at in line["at"].items():
            record = trained if stage == "train" else {"metrics": line["metrics"][stage]}
            write_record(self.record(stage), {**record, "at": at})

    @property
    def has_weights(self) -> bool:
        """Whether the trained model is still there."""
        return any(self.model.glob("*.safetensors"))

    def tidy(self, keep_weights: bool) -> None:
        """Remove what only a resumed training would read, and the weights unless they are kept; the records stay."""
        self.job.unlink(missing_ok=True)
        if self.model.is_symlink():
            return
        for entry in self.model.glob("checkpoint-*" if keep_weights else "*"):
            if entry.name not in _MODEL_RECORDS:
                with suppress(OSError):
                    remove_tree(entry)


@dataclass(eq=False)
class Item:
    """A run of the study: the stages that are wanted of it, and why it failed."""

    run: Run
    folder: StudyRunFolder
    stages: tuple[str, ...]
    error: str | None = None

    @property
    def todo(self) -> list[str]:
        """The stages that are not done."""
        return [stage for stage in self.stages if self.folder.done(stage) is None]

    @property
    def missing(self) -> bool:
        """Whether it has no result: it ended with an error, or was not begun."""
        return self.error is not None or bool(self.todo)


class State:
    """What a study knows besides its runs' records: what it is, and which cells were chosen when.

    Attributes:
        identity: see `stepjepa.study.identity.study_identity`; None before the first start.
    """

    def __init__(self, folder: Path):
        self._path = folder / STATE
        record = read_record(self._path) or {}
        self.identity: dict[str, Any] | None = record.get("identity")
        self._choices: dict[str, dict[str, Any]] = record.get("choices", {})

    def take_over(self, identity: Mapping[str, Any]) -> None:
        """Keep the identity of the study; what other arms, blocks and seeds had before stays known."""
        blocks = dict(self.identity["blocks"]) if self.identity else {}
        for name, block in identity["blocks"].items():
            arms = blocks.get(name, {}).get("arms", {})
            blocks[name] = {**block, "arms": {**arms, **block["arms"]}}
        self.identity = {**identity, "blocks": blocks}
        self._save()

    def choice(self, block: str, arm: str) -> dict[str, Any] | None:
        """What `choose` has kept for an arm, None where nothing is chosen yet."""
        return self._choices.get(f"{block}/{arm}")

    def choose(self, block: str, arm: str, choice: Mapping[str, Any]) -> None:
        """Keep what the validation split chose; it is on disk before the test split is looked at."""
        self._choices[f"{block}/{arm}"] = dict(choice)
        self._save()

    def _save(self) -> None:
        write_json(self._path, {"identity": self.identity, "choices": self._choices}, indent=1)


# A line for each run


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """A line of ``results.jsonl``.

    Attributes:
        run, identity, code: its name, what it must share with a study that counts it, and the versions that it was made by.
        at: when each stage was done: ``train``, ``select``, ``test``.
        control: ``none``, ``shuffled`` or ``random``.
        compute: at what the run is equal to the baseline, ``equal examples`` or ``equal compute``.
        cell: the tuned values; `chosen` says whether the validation split chose them, or nothing was to be chosen.
        settings: what differs from the base.
        metrics: split -> metric -> value; None for a value that is no number.
        history: the evaluations on the way: ``step``, ``examples``, ``total_flos`` and ``eval_`` metrics by name.
        losses: the losses of training and the gradient norm, as often as they were logged.
        diverged: what was not finite in a run that broke, None for others.
        machine, dtype, commit: of its training (`CIRCUMSTANCES`), None where they are not known.
        model: the folder of the weights, None where there are none.
        status: ``finished``, ``failed`` or ``not run``; `error` says why.
    """

    run: str = ""
    identity: str = ""
    code: Values = field(default_factory=dict)
    at: Mapping[str, str] = field(default_factory=dict)
    block: str
    arm: str
    control: str
    compute: str
    seed: int
    cell: Values
    chosen: bool
    settings: Values
    metrics: Mapping[str, Mapping[str, float | None]]
    flops: float | None
    train_seconds: float | None
    steps: int | None
    history: Sequence[Mapping[str, float]] = ()
    losses: Sequence[Mapping[str, float]] = ()
    diverged: str | None = None
    machine: str | None = None
    dtype: str | None = None
    commit: str | None = None
    model: str | None
    status: str
    error: str | None

    @property
    def variant(self) -> str:
        """The arm's variant, "" for the arm itself."""
        if self.compute == "equal compute":
            return SAME_FLOP
        return "" if self.control == "none" else self.control


def record_of(item: Item, state: State) -> RunRecord:
    """The record of one run, finished or not."""
    run, folder = item.run, item.folder
    trained = folder.done("train") or {}
    stages = {stage: record for stage in SPLITS if (record := folder.done(stage))}
    identity = state.identity or {}
    choice = state.choice(run.block.name, run.arm.name)
    chosen = run.variant != "" or not run.arm.tuned or (choice is not None and choice["cell"] == run.cell)
    error, status = item.error, "finished"
    if error is not None:
        status = "failed"
    elif item.todo:
        status = "not run"
    if error is None and "diverged" in trained:
        error = f"diverged: {trained['diverged']}"
    return RunRecord(
        run=run.name,
        identity=run_identity(run, identity),
        code=identity["code"],
        at={stage: record["at"] for stage, record in stages.items()},
        block=run.block.name,
        arm=run.arm.name,
        control=run.control,
        compute=run.compute,
        seed=run.seed,
        cell=run.cell,
        chosen=chosen and not run.only_tunes,
        settings=run.changes,
        metrics={split: record["metrics"] for split, record in stages.items() if split != "train"},
        flops=trained.get("flops"),
        train_seconds=trained.get("train_seconds"),
        steps=trained.get("steps"),
        history=trained.get("history", ()),
        losses=trained.get("losses", ()),
        diverged=trained.get("diverged"),
        **{name: trained.get(name) for name in CIRCUMSTANCES},
        model=str(folder.model) if folder.has_weights else None,
        status=status,
        error=error,
    )


def kept_runs(path: Path) -> dict[str, dict[str, Any]]:
    """The runs that a file like ``results.jsonl`` holds, by name: of each its last line with a stage that is done.

    Raises:
        DataError: the file cannot be read, or a line is no record of a run. One that does not exist has none.
    """
    runs: dict[str, dict[str, Any]] = {}
    for number, row in file_rows(path) if path.exists() else ():
        if not isinstance(row, dict) or not row.keys() >= _LINE_KEYS:
            raise DataError(f"{path}:{number}: no record of a run, as the results.jsonl of a study has them")
        if row["at"]:
            runs[row["run"]] = row
    return runs


class KeptRuns:
    """The runs that a study counts as done, see `kept_runs`, and their file, which gets the others.

    Raises:
        DataError: see `kept_runs`.
        ConfigError: a run of the study has other data, scoring or settings there, or the file cannot be written.
    """

    def __init__(self, path: Path, study: Study, identity: Mapping[str, Any]):
        check_writable(path.parent, f"--{_NAME.records}")
        self.path, self.runs = path, kept_runs(path)
        for run in possible_runs(study):
            line = self.runs.get(run.name)
            if line and line["identity"] != run_identity(run, identity):
                raise ConfigError(f"{path}: {run.name} has other data, scoring or settings than the study")

    def lacks(self, record: RunRecord) -> bool:
        """Whether a stage of the run that is done is not in the file."""
        return not record.at.keys() <= self.runs.get(record.run, {"at": {}})["at"].keys()

    def add(self, records: Sequence[RunRecord]) -> None:
        """Add lines to the file, atomically."""
        if not records:
            return
        new = [{**asdict(record), "model": None} for record in records]  # the folder is of this machine
        self.runs |= {line["run"]: line for line in new}
        lines = self.path.read_bytes().splitlines() if self.path.exists() else []
        write_whole(self.path, (line + b"\n" for line in [*lines, *map(json_bytes, new)]))
