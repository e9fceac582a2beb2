"""The records of a study: its identity, its choices, and a line for each run.

Results share a table only if code, data, scoring and settings are equal. A run's identity holds only the options that the
study's file sets, so that records stay valid when the library gains options.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from stepjepa.config.option import Names, Values, options_of
from stepjepa.data.sources import RowSource, file_rows, reading
from stepjepa.errors import ConfigError, DataError
from stepjepa.study.folder import STATE, TRAINED, StudyRunFolder, read_record
from stepjepa.study.spec import (
    SAME_FLOP,
    SPLITS,
    Arm,
    Block,
    Run,
    Study,
    StudyOptions,
    possible_runs,
    varied,
)
from stepjepa.training.options import RunOptions
from stepjepa.utils.files import (
    Record,
    check_writable,
    checksum,
    digest,
    json_bytes,
    write_json,
    write_whole,
)
from stepjepa.version import __version__

_NAME = Names(StudyOptions)
SOURCE = Path(__file__).parents[1]
# Packages of the library that do not affect the numbers of a run.
_OTHER_SOURCE = ("cli", "inspect", "recipes", "report")
_MOST_DIFFERENCES = 5  # in a message
_LINE_KEYS = {"run", "identity", "code", "at"}


def code_identity() -> dict[str, str]:
    """Versions, and a digest of this package's source without the packages in `_OTHER_SOURCE`."""
    parts = []
    for file in sorted(SOURCE.rglob("*.py")):
        name = file.relative_to(SOURCE)
        if name.parts[0] in _OTHER_SOURCE:
            continue
        path = name.as_posix().encode()
        parts.append(path + b"\0" + file.read_bytes() + b"\0")
    versions = {package: version(package) for package in ("torch", "transformers", "peft")}
    return {"stepjepa": __version__, "source": digest(parts), **versions}


def study_identity(study: Study) -> Record:
    """The code, data and settings, which must be equal for results to share a table, as plain JSON.

    Raises:
        DataError: a data file cannot be read.
    """
    blocks = {block.name: _block_identity(block, study.output_dir) for block in study.blocks}
    # The round trip turns tuples into lists, so that the identity can be compared with one that was read from a file.
    return json.loads(json.dumps({"code": code_identity(), "blocks": blocks}))


def run_identity(run: Run, identity: Values) -> str:
    """A digest of the data, scoring and settings of a run, which must be the same in its record and in the study."""
    block = identity["blocks"][run.block.name]
    settings = {
        name: value
        for name, value in block["arms"][run.row].items()
        if name not in ("tune", "seeds")
    }
    parts = [block["data"], block["scoring"], settings, run.cell]
    return digest([json.dumps(parts, sort_keys=True).encode()])


def _block_identity(block: Block, folder: Path) -> Record:
    data = {}
    for split, names in block.data.paths(folder).items():
        data[split] = [_data_digest(name, block.data.splits.get(split, "")) for name in names]
    metrics = {metric.name: dict(metric.options) for metric in block.metrics}
    arms: dict[str, Record] = {}
    for arm in block.arms:
        arms |= dict.fromkeys(arm.rows.values(), _arm_identity(arm, block))
    return {
        "data": data,
        "scoring": {"metrics": metrics, **asdict(block.evaluation)},
        "select": list(block.select) if any(arm.tuned for arm in block.arms) else None,
        "arms": arms,
    }


def _arm_identity(arm: Arm, block: Block) -> Record:
    """The settings of an arm that affect its numbers, and the rule by which the tuned ones are chosen."""
    # These load torch.
    from stepjepa.objectives.base import objective_of
    from stepjepa.study.reading import config_of
    from stepjepa.training.config import JEPAConfig

    options = options_of(RunOptions, JEPAConfig)
    tuned = {name for cell in arm.cells for name in cell}
    settings = {**block.base, **arm.settings}
    identity = {
        name: value
        for name, value in settings.items()
        # The options of a user's own objective are not known here.
        if (name not in options or options[name].identity) and name not in tuned
    }
    # Fingerprints of the user's own objective and loss.
    for cell in arm.cells:
        identity |= objective_of(config_of({**settings, **cell})).code
    # Other cells, or other seeds, could lead to another choice.
    if arm.tuned:
        identity["tune"] = [dict(cell) for cell in arm.cells]
        identity["seeds"] = list(block.tune_seeds or block.seeds)
    return identity


def _data_digest(name: str, split: str) -> str:
    """A digest of a file's content, or of the name and split of a data set on the Hub."""
    path = Path(name).expanduser()
    if not path.is_file():
        return f"{RowSource(name, split or 'train').fingerprint}:{split}"
    with reading(name):
        return checksum(path)[:16]


def check_same(folder: Path, before: Values, now: Values) -> None:
    """Refuse to add to results that were made with different code, data or settings. New arms, seeds and blocks are allowed.

    Raises:
        ConfigError: they differ; the message lists the differences.
    """
    differences = list(_differences(before["code"], now["code"], "code"))
    for name, block in now["blocks"].items():
        old = before["blocks"].get(name)
        if old is None:
            continue
        place = f"{name}: " if name else ""
        for key in ("data", "scoring", "select"):
            differences += _differences(old[key], block[key], f"{place}{key}")
        for row in [row for row in block["arms"] if row in old["arms"]]:
            differences += _differences(old["arms"][row], block["arms"][row], f"{place}{row}")
    if differences:
        raise ConfigError(
            f"{folder} holds results of another study, and a table must not mix them: "
            f"{'; '.join(differences[:_MOST_DIFFERENCES])}. Give another --{_NAME.output_dir}, or start again with "
            f"--{_NAME.overwrite_output_dir}"
        )


def _differences(old: Any, new: Any, place: str) -> Iterator[str]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in {**old, **new}:
            yield from _differences(old.get(name), new.get(name), f"{place} {name}")
    elif old != new:
        before = "not set" if old is None else str(old)
        after = "not set" if new is None else str(new)
        yield f"{place} was {before[:80]}, is {after[:80]}"


# Runs


@dataclass(eq=False)
class Item:
    """A run of the study, the stages that it needs, and why it failed."""

    run: Run
    folder: StudyRunFolder
    stages: tuple[str, ...]
    error: str | None = None

    @property
    def todo(self) -> list[str]:
        """The stages that are not done."""
        return [stage for stage in self.stages if not self.folder.record(stage).is_file()]

    @property
    def missing(self) -> bool:
        """Whether the run has no result, because it failed or was not started."""
        return self.error is not None or bool(self.todo)


class State:
    """The state of a study beyond the records of its runs: its identity, and the chosen cells.

    Attributes:
        identity: the result of `study_identity`; None before the first start.
    """

    def __init__(self, folder: Path):
        self._path = folder / STATE
        record = read_record(self._path) or {}
        self.identity: Record | None = record.get("identity")
        self._choices: dict[str, Record] = record.get("choices", {})

    def take_over(self, identity: Values) -> None:
        """Save the identity of the study, merged with earlier blocks and arms that it no longer contains."""
        blocks = dict(self.identity["blocks"]) if self.identity else {}
        for name, block in identity["blocks"].items():
            arms = blocks.get(name, {}).get("arms", {})
            blocks[name] = {**block, "arms": {**arms, **block["arms"]}}
        self.identity = {**identity, "blocks": blocks}
        self._save()

    def choice(self, block: str, arm: str) -> Record | None:
        """The choice that `choose` saved for an arm; None if there is none yet."""
        return self._choices.get(f"{block}/{arm}")

    def choose(self, block: str, arm: str, choice: Values) -> None:
        """Save the cell that the validation split chose. It is on disk before the test split is scored."""
        self._choices[f"{block}/{arm}"] = dict(choice)
        self._save()

    def _save(self) -> None:
        write_json(self._path, {"identity": self.identity, "choices": self._choices}, indent=1)


# A line for each run


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """A line of ``results.jsonl``.

    Attributes:
        run, identity, code: name, `run_identity`, and the versions of the code that executed the run.
        at: time of each completed stage: ``train``, ``select``, ``test``.
        control: ``none``, ``shuffled`` or ``random``.
        compute: what the run has in common with the baseline, ``equal examples`` or ``equal compute``.
        cell: the tuned values; `chosen` is True if the validation split chose them, or if the arm has only one cell.
        settings: options that replace those of the base.
        metrics: split -> metric -> value; None for a value that is not finite.
        history: evaluations during training: ``step``, ``examples``, ``total_flos`` and ``eval_`` metrics by name.
        losses: logged training losses and gradient norms.
        diverged: the value that was not finite in a run that diverged; None for other runs.
        machine, dtype, commit: the hardware, the dtypes of weights and arithmetic, and the commit of the code; None if
            unknown.
        model: the folder of the weights; None if they do not exist.
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
    flops: float | None = None
    train_seconds: float | None = None
    steps: int | None = None
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
    stages = {stage: record for stage in SPLITS if (record := folder.done(stage))}
    trained = stages.get("train", {})
    identity = state.identity or {}
    # A variant runs with the chosen cell only; an arm with one cell has nothing to choose.
    choice = state.choice(run.block.name, run.arm.name)
    chosen = (
        run.variant != ""
        or not run.arm.tuned
        or (choice is not None and choice["cell"] == run.cell)
    )
    error, status = item.error, "finished"
    if error is not None:
        status = "failed"
    elif item.todo:
        status = "not run"
    # A run that diverged is finished: it has no values, and it is not run again.
    if error is None and "diverged" in trained:
        error = f"diverged: {trained['diverged']}"
    return RunRecord(
        run=run.name,
        identity=run_identity(run, identity),
        code=identity["code"],
        at={stage: record["at"] for stage, record in stages.items()},
        block=run.block.name,
        arm=run.arm.name,
        control=varied(run.variant).get("control", "none"),
        compute="equal compute" if run.variant == SAME_FLOP else "equal examples",
        seed=run.seed,
        cell=run.cell,
        chosen=chosen and not run.only_tunes,
        settings=run.changes,
        metrics={split: record["metrics"] for split, record in stages.items() if split != "train"},
        **{name: trained[name] for name in TRAINED if name in trained},
        model=str(folder.model) if folder.has_weights else None,
        status=status,
        error=error,
    )


def kept_runs(path: Path) -> dict[str, Record]:
    """Name of a run -> its last line with a completed stage, in a file like ``results.jsonl``; empty if it does not exist.

    Raises:
        DataError: the file cannot be read, or a line is not the record of a run.
    """
    runs: dict[str, Record] = {}
    for number, row in file_rows(path) if path.exists() else ():
        if not isinstance(row, dict) or not row.keys() >= _LINE_KEYS:
            raise DataError(
                f"{path}:{number}: not a record of a run, as in the results.jsonl of a study"
            )
        if row["at"]:
            runs[row["run"]] = row
    return runs


class KeptRuns:
    """The runs that a study takes from a file of records (see `kept_runs`), and that file, to which it adds new ones.

    Raises:
        DataError: see `kept_runs`.
        ConfigError: the file cannot be written, or has a run of the study with other data, scoring or settings.
    """

    def __init__(self, path: Path, study: Study, identity: Values):
        check_writable(path.parent, f"--{_NAME.records}")
        self.path, self.runs = path, kept_runs(path)
        for run in possible_runs(study):
            line = self.runs.get(run.name)
            if line and line["identity"] != run_identity(run, identity):
                raise ConfigError(
                    f"{path}: {run.name} has other data, scoring or settings than this study's run"
                )

    def add(self, records: Sequence[RunRecord]) -> None:
        """Add, atomically, the runs with newly completed stages and those that failed."""
        new = []
        for record in records:
            known = self.runs.get(record.run, {"at": {}})
            newly_done = record.at.keys() - known["at"].keys()
            newly_failed = record.status == "failed" and record.error != known.get("error")
            if newly_done or newly_failed:
                # The folder of the weights exists only on this machine.
                new.append({**asdict(record), "model": None})
        if new:
            self.runs |= {line["run"]: line for line in new}
            lines = self.path.read_bytes().splitlines() if self.path.exists() else []
            write_whole(self.path, (line + b"\n" for line in [*lines, *map(json_bytes, new)]))
