"""What stands in a study's folder before a run begins: its built-in problems and the plan of each run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stepjepa.config.option import Names, options_of
from stepjepa.config.parser import carried
from stepjepa.config.values import named_by_file
from stepjepa.config.yaml_file import write_yaml
from stepjepa.data.chat import row_to_messages
from stepjepa.data.options import DataOptions, PairColumns
from stepjepa.data.prepare.rows import question_of
from stepjepa.data.sources import RowSource
from stepjepa.data.tasks import HELD_OUT, generate_split, generate_unseen, make_task, task_class
from stepjepa.errors import ConfigError, RowError
from stepjepa.study.records import STATE, StudyRunFolder, write_record
from stepjepa.study.spec import SPLITS, Block, Data, Run, Study, StudyOptions, evaluates_on_the_way
from stepjepa.training.options import RunOptions
from stepjepa.utils.files import LOCK, check_writable, json_bytes, remove_tree, write_whole

_NAME = Names(StudyOptions)
_OWN_FILES = (STATE, "runs", "jobs", "results.jsonl", "table.md", "table.csv", "table.json", "report.html")
_MOST_BYTES = 500_000_000  # larger files are not searched for questions of other splits


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
    for name in _OWN_FILES:
        remove_tree(folder / name)
    for pattern in ("study*.png", "study*.svg", "data/builtin*/"):  # figures of version 0.2
        for entry in folder.glob(pattern):
            remove_tree(entry)


def write_builtin(data: Data, folder: Path) -> None:
    """Generate the built-in problems of a block, where it has any and they are not there yet.

    Raises:
        ConfigError: the options admit too few different problems.
    """
    files = {split: Path(name) for split, (name, *_) in data.paths(folder).items()}
    if data.builtin is None or all(file.is_file() for file in files.values()):
        return
    builtin = data.builtin
    name, seed = builtin["task"], builtin["seed"]
    known = options_of(task_class(name))
    options = {key: value for key, value in builtin.items() if key in known}
    task = make_task(name, **options)
    test_task = make_task(name, **{**options, **builtin.get("test", {})})
    try:
        train, select = generate_split(builtin["train_rows"], builtin["select_rows"], seed, task)
        seen = {task.instance(row) for row in (*train, *select)}
        test = generate_unseen(builtin["test_rows"], seed + HELD_OUT, test_task, seen)
    except ConfigError as error:
        raise ConfigError(f"data: {error}") from None
    for split, rows in zip(SPLITS, (train, select, test), strict=True):
        files[split].parent.mkdir(parents=True, exist_ok=True)
        write_whole(files[split], (json_bytes(row) + b"\n" for row in rows))


def shared_questions(block: Block, folder: Path) -> Iterator[str]:
    """A line for every two splits of a block that share questions: what was trained on, or chosen by, is no test."""
    files: dict[str, list[Path]] = {}
    size = 0
    for split, names in block.data.paths(folder).items():
        files[split] = [Path(name).expanduser() for name in names]
        for file in files[split]:
            if not file.is_file():  # a data set of the Hub
                return
            size += file.stat().st_size
    if size > _MOST_BYTES:
        return
    source, target, choice = (block.base.get(f"{name}_column") for name in PairColumns._fields)
    columns = PairColumns(source, target, choice) if source and target else None
    asked = {split: _questions(files.get(split, []), columns) for split in SPLITS}
    for one, other in (("test", "train"), ("test", "select"), ("select", "train")):
        shared = len(asked[one] & asked[other])
        if shared:
            place = f"{block.name}: " if block.name else ""
            yield f"{place}{shared} of the {len(asked[one])} questions of {one}_file are in {other}_file too"


def _questions(files: list[Path], columns: PairColumns | None) -> set[int]:
    """Hashes of the questions, white space folded."""
    questions = set()
    for file in files:
        for _, row in RowSource(file):
            try:
                question = question_of(row_to_messages(row, None, columns))
            except RowError:  # a row that is no chat asks nothing
                continue
            questions.add(hash(" ".join(question.split())))
    return questions


def write_plan(folder: StudyRunFolder, run: Run, study: Study) -> None:
    """All that carrying a run out needs, in its folder."""
    from stepjepa.training.config import JEPAConfig  # with transformers, which listing recipes does not need

    block, settings = run.block, run.settings
    paths = block.data.paths(study.output_dir)
    files = {split: [_absolute(name) for name in names] for split, names in paths.items()}
    # Options of other arms' own objectives are left out.
    known = {**options_of(RunOptions), **options_of(JEPAConfig)}
    values = {name: value for name, value in carried(known, settings).items() if name in known}
    for name, value in values.items():
        if known[name].own and named_by_file(value):
            values[name] = _absolute_attribute(value)
    # What trackers call the run: study/arm/seed-1. The name of the base, if it has one, replaces the study's.
    title = settings.get("run_name") or study.output_dir.resolve().name
    values["run_name"] = "/".join([title, *run.folder.parts[1:]])
    values["train_file"] = files["train"]
    if "train" in block.data.splits:
        values["dataset_split"] = block.data.splits["train"]
    if evaluates_on_the_way(settings):
        values["eval_file"] = files["select"][0]
        values["eval_split"] = block.data.splits.get("select", "test")
    write_yaml(values, folder.train_config, header=f"One run of a study: {run.name}")
    plan: dict[str, Any] = {
        "run": run.name,
        "processes": study.processes_per_run,
        "files": {split: names[0] for split, names in files.items() if split != "train"},
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


def _absolute_attribute(value: str) -> str:
    """``file.py:Class`` with the file's full path; the name of a module as it is."""
    file, _, attribute = value.rpartition(":")
    return f"{Path(file).resolve()}:{attribute}" if Path(file).is_file() else value
