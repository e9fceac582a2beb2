"""What a study leaves on disk while it runs: a folder for every run, and the study's state with its identity.

A run's folder holds ``plan.json`` and ``train.yaml`` (all that is needed to carry it out), ``model/``, the logs, and a
record for each stage that is done: ``trained.json``, ``scored-select.json``, ``scored-test.json``. A record is written
atomically, as the last thing of its stage, and never again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

from stepjepa.config.option import Names, options_of
from stepjepa.config.parser import carried
from stepjepa.config.values import named_by_file
from stepjepa.config.yaml_file import write_yaml
from stepjepa.data.chat import row_to_messages
from stepjepa.data.options import DataOptions, PairColumns
from stepjepa.data.prepare.rows import question_of
from stepjepa.data.sources import RowSource, file_rows
from stepjepa.data.tasks import HELD_OUT, generate_split, generate_unseen, make_task, task_class
from stepjepa.errors import ConfigError, DataError, RowError
from stepjepa.study.spec import SPLITS, Block, Data, Run, Study, StudyOptions, evaluates_on_the_way, possible_runs
from stepjepa.training.run_options import RunOptions
from stepjepa.utils.files import (
    LOCK,
    check_writable,
    checksum,
    digest,
    json_bytes,
    read_json,
    remove_tree,
    write_json,
    write_whole,
)
from stepjepa.version import __version__

_NAME = Names(StudyOptions, Study)
STATE = "state.json"
SOURCE = Path(__file__).parents[1]
# Packages of the library that no number of a run depends on.
_OTHER_SOURCE = ("cli", "inspect", "recipes", "report")
# What is kept of a model whose weights are deleted.
_MODEL_RECORDS = {"run.json", "resolved.yaml", "metrics.json", "data_report.json"}
_OWN_FILES = (STATE, "runs", "jobs", "results.jsonl", "table.md", "table.csv", "table.json")
# Of a run's training, as its record has them: the hardware, the types of weights and arithmetic, the commit of the code.
CIRCUMSTANCES = ("machine", "dtype", "commit")
_MOST_BYTES = 500_000_000  # larger files are not searched for questions of other splits


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
        self.path, self.model = path, path / "model"
        self.plan, self.train_config, self.job = path / "plan.json", path / "train.yaml", path / "job.json"
        self._done: dict[str, dict[str, Any]] = {}

    def record(self, stage: str) -> Path:
        """The record of a stage: ``train``, or the split that is scored."""
        return self.path / ("trained.json" if stage == "train" else f"scored-{stage}.json")

    def done(self, stage: str) -> dict[str, Any] | None:
        """The record of a stage, None where it is not done. Raises DataError: it is damaged."""
        path = self.record(stage)
        if stage not in self._done and (record := read_record(path)) is not None:
            kind = int if stage == "train" else dict
            held = record.get("steps" if stage == "train" else "metrics")
            if not isinstance(held, kind) or not isinstance(record.get("at"), str):
                raise DataError(f"{path}: the record is damaged; delete it, and its stage is done again")
            self._done[stage] = record
        return self._done.get(stage)

    def restore(self, result: Mapping[str, Any]) -> None:
        """Write the records of the stages that are done by a line of results."""
        trained = {name: result[name] for name in ("steps", "flops", "train_seconds", "history")}
        trained |= {name: result[name] for name in ("losses", *CIRCUMSTANCES) if result.get(name)}
        trained |= {"diverged": result["diverged"]} if result.get("diverged") else {}
        for stage, at in result["at"].items():
            done = trained if stage == "train" else {"metrics": result["metrics"][stage]}
            write_record(self.record(stage), {**done, "at": at})

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


def write_plan(folder: StudyRunFolder, run: Run, study: Study) -> None:
    """All that carrying a run out needs, in its folder."""
    from stepjepa.training.config import JEPAConfig  # with transformers, which listing recipes does not need

    block, settings, paths = run.block, run.settings, run.block.data.paths(study.output_dir)
    files = {split: [_absolute(name) for name in names] for split, names in paths.items()}
    # Options of other arms' own objectives are left out, and files of one's own are named in full.
    known = {**options_of(RunOptions), **options_of(JEPAConfig)}
    values = {name: value for name, value in carried(known, settings).items() if name in known}
    for name, value in values.items():
        if known[name].own and named_by_file(value) and Path(value.rpartition(":")[0]).is_file():
            file, _, attribute = value.rpartition(":")
            values[name] = f"{Path(file).resolve()}:{attribute}"
    # What trackers call the run: study/arm/seed-1. The name of the base, if it has one, replaces the study's.
    name = settings.get("run_name") or study.output_dir.resolve().name
    values |= {"run_name": "/".join([name, *run.folder.parts[1:]]), "train_file": files.pop("train")}
    if "train" in block.data.splits:
        values["dataset_split"] = block.data.splits["train"]
    if evaluates_on_the_way(settings):
        values["eval_file"] = files["select"][0]
        values["eval_split"] = block.data.splits.get("select", "test")
    write_yaml(values, folder.train_config, header=f"One run of a study: {run.name}")
    plan = {
        "run": run.name,
        "processes": study.processes_per_run,
        "files": {split: names[0] for split, names in files.items()},
        "splits": dict(block.data.splits),
        "metrics": {metric.name: dict(metric.options) for metric in block.metrics},
        "evaluation": asdict(block.evaluation),
        # How a row becomes a chat, and a chat tokens: a model is asked as it was trained.
        "chat": {name: value for name, value in settings.items() if name in options_of(DataOptions)},
    }
    write_record(folder.plan, plan)


def _absolute(name: str) -> str:
    """A file's full path, so that its run may be carried out elsewhere; the name of a data set as it is."""
    path = Path(name).expanduser()
    return str(path.resolve()) if path.exists() else name


def kept_runs(path: Path) -> dict[str, dict[str, Any]]:
    """The runs that a file like ``results.jsonl`` holds, by name: of each its last line with a stage that is done.

    Raises:
        DataError: the file cannot be read, or a line is no record of a run. One that does not exist has none.
    """
    runs: dict[str, dict[str, Any]] = {}
    for number, row in file_rows(path) if path.exists() else ():
        if not isinstance(row, dict) or not {"run", "identity", "code", "at"} <= row.keys():
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
            if (known := self.runs.get(run.name)) and known["identity"] != run_identity(run, identity):
                raise ConfigError(f"{path}: {run.name} has other data, scoring or settings than the study")

    def add(self, results: Sequence[dict[str, Any]]) -> None:
        """Add lines to the file, atomically."""
        self.runs |= {result["run"]: result for result in results}
        lines = self.path.read_bytes().splitlines() if self.path.exists() else []
        write_whole(self.path, (line + b"\n" for line in [*lines, *map(json_bytes, results)]))


# The study's folder


def check_folder(folder: Path) -> None:
    """Refuse a folder that holds something other than a study.

    Raises:
        ConfigError: it does.
    """
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--{_NAME.output_dir} {folder}: is a file; give a folder")
    check_writable(folder)
    # A study that was killed at once leaves built-in data and no state.
    others = sorted(entry.name for entry in folder.glob("*") if entry.name not in (LOCK, "data"))
    if others and not (folder / STATE).is_file():
        raise ConfigError(
            f"--{_NAME.output_dir} {folder}: the folder is not empty ({others[0]}), and there is no study in it"
        )


def clear_folder(folder: Path) -> None:
    """Remove what a study has written, and nothing else."""
    figures = [entry for entry in folder.glob("study*") if entry.suffix in (".png", ".svg")]
    for entry in [*(folder / name for name in _OWN_FILES), *figures, *(folder / "data").glob("builtin*/")]:
        remove_tree(entry)


def write_builtin(data: Data, folder: Path) -> None:
    """Generate the built-in problems of a block, where it has any and they are not there yet.

    Raises:
        ConfigError: the options admit too few different problems.
    """
    files = {split: Path(name) for split, (name, *_) in data.paths(folder).items()}
    if data.builtin is None or all(file.is_file() for file in files.values()):
        return
    name, seed = data.builtin["task"], data.builtin["seed"]
    own = {key: value for key, value in data.builtin.items() if key in options_of(task_class(name))}
    task, test_task = make_task(name, **own), make_task(name, **{**own, **data.builtin.get("test", {})})
    n_train, n_select, n_test = (data.builtin[f"{split}_rows"] for split in SPLITS)
    try:
        train, select = generate_split(n_train, n_select, seed, task)
        test = generate_unseen(n_test, seed + HELD_OUT, test_task, {task.instance(row) for row in (*train, *select)})
    except ConfigError as error:
        raise ConfigError(f"data: {error}") from None
    for split, rows in zip(SPLITS, (train, select, test), strict=True):
        files[split].parent.mkdir(parents=True, exist_ok=True)
        write_whole(files[split], (json_bytes(row) + b"\n" for row in rows))


def shared_questions(block: Block, folder: Path) -> Iterator[str]:
    """A line for every two splits of a block that share questions: what was trained on, or chosen by, is no test."""
    files = {split: [Path(name).expanduser() for name in names] for split, names in block.data.paths(folder).items()}
    paths = [path for group in files.values() for path in group]
    if any(not path.is_file() for path in paths) or sum(path.stat().st_size for path in paths) > _MOST_BYTES:
        return
    source, target, choice = (block.base.get(f"{name}_column") for name in PairColumns._fields)
    columns = PairColumns(source, target, choice) if source and target else None
    asked: dict[str, set[int]] = {split: set() for split in SPLITS}
    for split, path in ((split, path) for split, group in files.items() for path in group):
        for _, row in RowSource(path):
            try:
                question = question_of(row_to_messages(row, None, columns))
            except RowError:  # a row that is no chat asks nothing
                continue
            asked[split].add(hash(" ".join(question.split())))
    for one, other in (("test", "train"), ("test", "select"), ("select", "train")):
        if both := asked[one] & asked[other]:
            place = f"{block.name}: " if block.name else ""
            yield f"{place}{len(both)} of the {len(asked[one])} questions of {one}_file are in {other}_file too"


class State:
    """What a study knows besides its runs' records: what it is, and which cells were chosen when.

    Attributes:
        identity: see `study_identity`; None before the first start.
    """

    def __init__(self, folder: Path):
        self._path = folder / STATE
        record = read_record(self._path) or {}
        self.identity: dict[str, Any] | None = record.get("identity")
        self._choices: dict[str, dict[str, Any]] = record.get("choices", {})

    def take_over(self, identity: Mapping[str, Any]) -> None:
        """Keep the identity of the study; what other arms, blocks and seeds had before stays known."""
        blocks = dict((self.identity or {"blocks": {}})["blocks"])
        for name, block in identity["blocks"].items():
            blocks[name] = {**block, "arms": {**blocks.get(name, {}).get("arms", {}), **block["arms"]}}
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


# Identity


def code_identity() -> dict[str, str]:
    """Versions, and a digest of this package's source without the parts that only read and show."""
    files = {file.relative_to(SOURCE): file for file in sorted(SOURCE.rglob("*.py"))}
    own = (one for one in files if one.parts[0] not in _OTHER_SOURCE)
    source = digest(one.as_posix().encode() + b"\0" + files[one].read_bytes() + b"\0" for one in own)
    versions = {package: version(package) for package in ("torch", "transformers", "peft")}
    return {"stepjepa": __version__, "source": source, **versions}


def study_identity(study: Study) -> dict[str, Any]:
    """What must be equal for results to share a table: the code, the data, the settings. Plain JSON.

    Raises:
        DataError: a file of the data cannot be read.
    """
    blocks = {block.name: _block_identity(block, study) for block in study.blocks}
    return json.loads(json.dumps({"code": code_identity(), "blocks": blocks}))


def run_identity(run: Run, identity: Mapping[str, Any]) -> str:
    """A digest of what a record of a run must share with a study of this identity: data, scoring and settings."""
    block = identity["blocks"][run.block.name]
    settings = {k: v for k, v in block["arms"][run.row].items() if k not in ("tune", "seeds")}
    parts = [block["data"], block["scoring"], settings, run.cell]
    return digest([json.dumps(parts, sort_keys=True).encode()])


def _block_identity(block: Block, study: Study) -> dict[str, Any]:
    from stepjepa.training.config import JEPAConfig  # loads torch

    options, arms = {**options_of(RunOptions), **options_of(JEPAConfig)}, dict[str, Any]()
    for arm in block.arms:
        settings, tuned = {**block.base, **arm.settings}, {name for cell in arm.cells for name in cell}
        row: dict[str, Any] = {k: v for k, v in settings.items() if options[k].identity and k not in tuned}
        if arm.tuned:  # a choice among others, or on other seeds, is another choice
            row |= {"tune": [dict(cell) for cell in arm.cells], "seeds": list(block.tune_seeds or block.seeds)}
        if study.processes_per_run > 1:  # each has a batch of its own
            row[_NAME.processes_per_run] = study.processes_per_run
        arms |= dict.fromkeys(arm.rows.values(), row)
    paths, splits = block.data.paths(study.output_dir), block.data.splits
    return {
        "data": {split: [_digest(name, splits.get(split, "")) for name in names] for split, names in paths.items()},
        "scoring": {"metrics": {one.name: dict(one.options) for one in block.metrics}, **asdict(block.evaluation)},
        "select": list(block.select) if any(arm.tuned for arm in block.arms) else None,
        "arms": arms,
    }


def _digest(name: str, split: str) -> str:
    """A digest of a file's whole content, or the name and split of a data set that is no file."""
    path = Path(name).expanduser()
    if not path.is_file():
        return f"{RowSource(name, split or 'train').fingerprint}:{split}"
    try:
        return checksum(path)[:16]
    except OSError as error:
        raise DataError(f"{name}: cannot be read ({error.strerror or error})") from None


def check_same(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to add to results of other code, other data or other settings. New arms, seeds and blocks are allowed.

    Raises:
        ConfigError: what differs.
    """
    differences = list(_differences(before["code"], now["code"], "code"))
    for name, block in now["blocks"].items():
        if (old := before["blocks"].get(name)) is None:
            continue
        place = f"{name}: " if name else ""
        for key in ("data", "scoring", "select"):
            differences += _differences(old[key], block[key], f"{place}{key}")
        for row in (row for row in block["arms"] if row in old["arms"]):
            differences += _differences(old["arms"][row], block["arms"][row], f"{place}{row}")
    if differences:
        more = f"; and {len(differences) - 5} more" if len(differences) > 5 else ""
        raise ConfigError(
            f"{folder} holds results of another study, and a table must not mix them: {'; '.join(differences[:5])}{more}. "
            f"Give another --{_NAME.output_dir}, or start again with --{_NAME.overwrite_output_dir}"
        )


def _differences(old: Any, new: Any, place: str) -> Iterator[str]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in {**old, **new}:
            yield from _differences(old.get(name), new.get(name), f"{place} {name}")
    elif old != new:
        before, after = ("not set" if value is None else str(value) for value in (old, new))
        yield f"{place} was {before[:80]}, is {after[:80]}"
