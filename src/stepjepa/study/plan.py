"""What a study writes before it begins: the built-in data, and a plan for every run."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from stepjepa.config.yaml_file import write_yaml
from stepjepa.data.synthetic import ArithmeticConfig, generate_split
from stepjepa.errors import ConfigError
from stepjepa.study.grid import Run
from stepjepa.study.reading_data import BUILTIN, ROWS
from stepjepa.study.results import STATE, StudyRunFolder, write_record
from stepjepa.study.spec import SPLITS, Block, Data
from stepjepa.utils.files import LOCK, check_writable, json_bytes, write_whole

# Options of training that say how a row becomes a chat, and a chat tokens: a model is asked as it was trained.
CHAT_OPTIONS = (
    "plain chat_template chat_template_kwargs system_prompt max_length source_column target_column choice_column"
).split()
_OWN = (STATE, "runs", "jobs", "results.jsonl", "table.md", "table.csv", "table.json")
_DATA = "data"


def check_folder(folder: Path) -> None:
    """Refuse a folder that holds something other than a study.

    Raises:
        ConfigError: it does.
    """
    if not folder.is_dir():
        if folder.exists():
            raise ConfigError(f"--output_dir {folder}: is a file; give a folder")
        check_writable(folder)
        return
    # A study that was killed at once leaves built-in data and no state.
    others = sorted(entry.name for entry in folder.iterdir() if entry.name not in (LOCK, _DATA))
    if others and not (folder / STATE).is_file():
        raise ConfigError(f"--output_dir {folder}: the folder is not empty ({others[0]}), and there is no study in it")


def clear_folder(folder: Path) -> None:
    """Remove what a study has written, and nothing else."""
    builtin = [entry for entry in (folder / _DATA).glob(f"{BUILTIN}*") if entry.is_dir()]
    for entry in [*folder.iterdir(), *builtin]:
        figure = entry.name.startswith("study") and entry.suffix in (".png", ".svg")
        if entry.name in _OWN or figure or entry in builtin:
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def write_builtin(data: Data, folder: Path) -> None:
    """Generate the built-in data of a block, where they are not there yet.

    Raises:
        ConfigError: the options admit too few different problems.
    """
    if data.builtin is None:
        return
    files = {split: builtin_folder(folder, data) / f"{split}.jsonl" for split in SPLITS}
    if all(file.is_file() for file in files.values()):
        return
    options = data.builtin
    config = ArithmeticConfig(**{key: value for key, value in options.items() if key not in ROWS})
    chosen, held_out = options["select_rows"], options["select_rows"] + options["test_rows"]
    try:
        train, rest = generate_split(options["train_rows"], held_out, seed=options["seed"], config=config)
    except ValueError as error:
        raise ConfigError(f"data: {error}") from None
    rows = {"train": train, "select": rest[:chosen], "test": rest[chosen:]}
    for split, file in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, (json_bytes(row) + b"\n" for row in rows[split]))


def builtin_folder(folder: Path, data: Data) -> Path:
    """Where the built-in data of a block lie; blocks with the same options share them."""
    assert data.builtin is not None
    words = [f"{key}={value}" for key, value in sorted(data.builtin.items())]
    kept = "".join(letter for letter in "-".join(words) if letter.isalnum() or letter in "-=_.")
    return folder / _DATA / f"{BUILTIN}-{kept}"


def split_files(block: Block, folder: Path) -> dict[str, list[str]]:
    """The files of every split."""
    data = block.data
    if data.builtin is not None:
        place = builtin_folder(folder, data)
        return {split: [str(place / f"{split}.jsonl")] for split in ("train", "select", "test")}
    return {"train": list(data.train), "select": [data.select] if data.select else [], "test": [data.test]}


def write_plan(folder: StudyRunFolder, run: Run, block: Block, files: dict[str, list[str]]) -> None:
    """All that carrying a run out needs, in its folder."""
    folder.path.mkdir(parents=True, exist_ok=True)
    # What trackers call the run: study/arm/seed-1. The name of the base, if it has one, stands for the study's.
    study = run.settings.get("run_name") or folder.path.resolve().parents[len(run.folder.parts) - 1].name
    values: dict[str, Any] = {"run_name": "/".join([study, *run.folder.parts[1:]])}
    values["train_file"] = [absolute(file) for file in files["train"]]
    if block.data.splits.get("train"):
        values["dataset_split"] = block.data.splits["train"]
    write_yaml({**run.settings, **values}, folder.train_config, header=f"One run of a study: {run.name}")
    evaluation = block.evaluation
    write_record(
        folder.plan,
        {
            "run": run.name,
            "files": {split: absolute(files[split][0]) for split in ("select", "test") if files[split]},
            "splits": dict(block.data.splits),
            "metrics": {metric.name: dict(metric.options) for metric in block.metrics},
            "evaluation": vars(evaluation),
            "chat": {name: run.settings[name] for name in CHAT_OPTIONS if name in run.settings},
        },
    )


def absolute(name: str) -> str:
    """A file's whole path, so that its run may be carried out elsewhere; the name of a data set as it is."""
    path = Path(name).expanduser()
    return str(path.resolve()) if path.exists() else name
