"""What a study checks and writes before it begins: its folder, the built-in problems, and a plan for every run."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from stepjepa.config.yaml_file import write_yaml
from stepjepa.data.chat import RowError
from stepjepa.data.signs import question_of
from stepjepa.data.sources import PairColumns, RowSource, row_to_messages
from stepjepa.data.synthetic import ArithmeticConfig, generate_split
from stepjepa.errors import ConfigError
from stepjepa.study.records import STATE, StudyRunFolder, write_record
from stepjepa.study.spec import Block, Data, Run
from stepjepa.utils.files import LOCK, check_writable, json_bytes, write_whole

_OWN_FILES = (STATE, "runs", "jobs", "results.jsonl", "table.md", "table.csv", "table.json")
_MOST_BYTES = 500_000_000  # larger files are not searched for questions of other splits


def check_folder(folder: Path) -> None:
    """Refuse a folder that holds something other than a study.

    Raises:
        ConfigError: it does.
    """
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--output_dir {folder}: is a file; give a folder")
    check_writable(folder)
    # A study that was killed at once leaves built-in data and no state.
    others = sorted(entry.name for entry in folder.glob("*") if entry.name not in (LOCK, "data"))
    if others and not (folder / STATE).is_file():
        raise ConfigError(f"--output_dir {folder}: the folder is not empty ({others[0]}), and there is no study in it")


def clear_folder(folder: Path) -> None:
    """Remove what a study has written, and nothing else."""
    figures = [entry for entry in folder.glob("study*") if entry.suffix in (".png", ".svg")]
    for entry in [*(folder / name for name in _OWN_FILES), *figures, *(folder / "data").glob("builtin*/")]:
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink(missing_ok=True)


def write_builtin(data: Data, folder: Path) -> None:
    """Generate the built-in problems of a block, where it has any and they are not there yet.

    Raises:
        ConfigError: the options admit too few different problems.
    """
    files = {split: Path(name) for split, (name, *_) in data.paths(folder).items()}
    if data.builtin is None or all(file.is_file() for file in files.values()):
        return
    fields, options = ArithmeticConfig.__dataclass_fields__, data.builtin
    config = ArithmeticConfig(**{key: value for key, value in options.items() if key in fields})
    chosen, held_out = options["select_rows"], options["select_rows"] + options["test_rows"]
    try:
        train, rest = generate_split(options["train_rows"], held_out, seed=options["seed"], config=config)
    except ValueError as error:
        raise ConfigError(f"data: {error}") from None
    for split, rows in {"train": train, "select": rest[:chosen], "test": rest[chosen:]}.items():
        files[split].parent.mkdir(parents=True, exist_ok=True)
        write_whole(files[split], (json_bytes(row) + b"\n" for row in rows))


def shared_questions(block: Block, folder: Path) -> Iterator[str]:
    """A line for every two splits of a block that share questions: what was trained on, or chosen by, is no test."""
    files = block.data.paths(folder)
    paths = [Path(name).expanduser() for name in chain.from_iterable(files.values())]
    if any(not path.is_file() for path in paths) or sum(path.stat().st_size for path in paths) > _MOST_BYTES:
        return
    source, target, choice = (block.base.get(f"{name}_column") for name in PairColumns._fields)
    columns = PairColumns(source, target, choice) if source and target else None
    asked: dict[str, set[int]] = {}
    for split, name in ((split, name) for split, group in files.items() for name in group):
        for _, row in RowSource(name):
            try:
                question = question_of(row_to_messages(row, None, columns))
            except RowError:  # a row that is no chat asks nothing
                continue
            asked.setdefault(split, set()).add(hash(" ".join(question.split())))
    for one, other in (("test", "train"), ("test", "select"), ("select", "train")):
        both = asked.get(one, set()) & asked.get(other, set())
        if both:
            place = f"{block.name}: " if block.name else ""
            yield f"{place}{len(both)} of the {len(asked[one])} questions of {one}_file are in {other}_file too"


def write_plan(folder: StudyRunFolder, run: Run, study_folder: Path) -> None:
    """All that carrying a run out needs, in its folder."""
    from stepjepa.study.train_options import chat_options, file_settings

    folder.path.mkdir(parents=True, exist_ok=True)
    block = run.block
    files = {split: [_absolute(name) for name in names] for split, names in block.data.paths(study_folder).items()}
    # What trackers call the run: study/arm/seed-1. The name of the base, if it has one, replaces the study's.
    name = run.settings.get("run_name") or study_folder.resolve().name
    values: dict[str, Any] = {"run_name": "/".join([name, *run.folder.parts[1:]]), "train_file": files.pop("train")}
    if "train" in block.data.splits:
        values["dataset_split"] = block.data.splits["train"]
    write_yaml({**file_settings(run.settings), **values}, folder.train_config, header=f"One run of a study: {run.name}")
    plan = {
        "run": run.name,
        "files": {split: names[0] for split, names in files.items()},
        "splits": dict(block.data.splits),
        "metrics": {metric.name: dict(metric.options) for metric in block.metrics},
        "evaluation": vars(block.evaluation),
        "chat": chat_options(run.settings),
    }
    write_record(folder.plan, plan)


def _absolute(name: str) -> str:
    """A file's full path, so that its run may be carried out elsewhere; the name of a data set as it is."""
    path = Path(name).expanduser()
    return str(path.resolve()) if path.exists() else name
