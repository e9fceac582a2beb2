"""The folder of a study and the folders of its runs.

A run's folder holds ``plan.json`` and ``train.yaml`` (all that the run needs), ``model/``, the logs, and a record of each
completed stage: ``trained.json``, ``scored-select.json``, ``scored-test.json``. A record is written once, atomically, as
the last action of its stage.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path

from stepjepa.config.option import Names, Values, options_of
from stepjepa.config.parser import carried, known_values
from stepjepa.config.yaml_file import write_yaml
from stepjepa.data.options import DataOptions
from stepjepa.data.tasks import HELD_OUT, generate_split, generate_unseen, make_task, task_class
from stepjepa.errors import ConfigError, DataError
from stepjepa.study.spec import SPLITS, Data, Run, Study, StudyOptions, evaluates_on_the_way
from stepjepa.training.options import RunOptions
from stepjepa.utils.files import (
    LOCK,
    Record,
    check_writable,
    json_line,
    read_json,
    remove_tree,
    write_json,
    write_whole,
)

_NAME = Names(StudyOptions)
STATE = "state.json"
_OWN_FILES = (
    STATE,
    "runs",
    "jobs",
    "results.jsonl",
    "table.md",  # of version 0.3.0
    "table.json",
    "report.html",
)
# Files of a model that stay when its weights are deleted.
_MODEL_RECORDS = {"run.json", "resolved.yaml", "metrics.json", "data_report.json"}
# Entries of a training record that a line of results.jsonl repeats; an entry is missing if it is unknown.
TRAINED = (
    "steps",
    "flops",
    "train_seconds",
    "history",
    "losses",
    "diverged",
    "machine",
    "dtype",
    "commit",
)


def check_folder(folder: Path) -> None:
    """Refuse a folder that holds something other than a study.

    Raises:
        ConfigError: the path is a file, cannot be written, or holds other files.
    """
    check_writable(folder)
    # A study that was killed during its first seconds leaves built-in data but no state.
    others = sorted(entry.name for entry in folder.glob("*") if entry.name not in (LOCK, "data"))
    if others and not (folder / STATE).is_file():
        raise ConfigError(
            f"--{_NAME.output_dir} {folder}: the folder is not empty ({others[0]}), and there is no study in it"
        )


def clear_folder(folder: Path) -> None:
    """Remove the files of a study, and nothing else."""
    for name in _OWN_FILES:
        remove_tree(folder / name)
    for entry in folder.glob("data/builtin*/"):
        remove_tree(entry)


def write_builtin(data: Data, folder: Path) -> None:
    """Generate the built-in problems of a block, unless it has none or they exist already.

    Raises:
        ConfigError: the task has too few different problems with these options.
    """
    files = {split: Path(name) for split, (name, *_) in data.paths(folder).items()}
    if data.builtin is None or all(file.is_file() for file in files.values()):
        return
    builtin = data.builtin
    name, seed = builtin["task"], builtin["seed"]
    task = make_task(name, **known_values(builtin, task_class(name)))
    # No problem of the test split may occur in the other splits: `instance` recognises a problem even if its text differs.
    train, select = generate_split(builtin["train_rows"], builtin["select_rows"], seed, task)
    seen = {task.instance(row) for row in (*train, *select)}
    test = generate_unseen(builtin["test_rows"], seed + HELD_OUT, task, seen)
    for split, rows in zip(SPLITS, (train, select, test), strict=True):
        files[split].parent.mkdir(parents=True, exist_ok=True)
        write_whole(files[split], map(json_line, rows))


def write_record(path: Path, record: Values) -> None:
    """Write a record together with the time; a missing folder is created."""
    path.parent.mkdir(parents=True, exist_ok=True)
    now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    write_json(path, {"at": now, **record}, indent=1)


def read_record(path: Path) -> Record | None:
    """The record in a file; None if the file does not exist.

    Raises:
        DataError: the file cannot be read.
    """
    try:
        return read_json(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path}: cannot be read ({error}); delete it to repeat its stage"
        ) from None


class StudyRunFolder:
    """The folder of one run, with its plan, training options, model and cluster job."""

    def __init__(self, path: Path):
        self.path = path
        self.model = path / "model"
        self.plan = path / "plan.json"
        self.train_config = path / "train.yaml"
        self.job = path / "job.json"

    def record(self, stage: str) -> Path:
        """The file of a stage's record. A stage is ``train``, or the split that is scored."""
        return self.path / ("trained.json" if stage == "train" else f"scored-{stage}.json")

    def done(self, stage: str) -> Record | None:
        """The record of a stage; None if it is not done. Raises DataError if the record is damaged."""
        return read_record(self.record(stage))

    def restore(self, line: Values) -> None:
        """Write the records of the stages that a line of results.jsonl contains."""
        trained = {name: line[name] for name in TRAINED if line.get(name) is not None}
        for stage, at in line["at"].items():
            record = trained if stage == "train" else {"metrics": line["metrics"][stage]}
            write_record(self.record(stage), {**record, "at": at})

    @property
    def has_weights(self) -> bool:
        """Whether the weights of the trained model exist."""
        return any(self.model.glob("*.safetensors"))

    def tidy(self, keep_weights: bool) -> None:
        """Remove the files that are needed only to resume training, and the weights unless they are kept; the records
        stay."""
        self.job.unlink(missing_ok=True)
        # A link points to a folder that the study did not write.
        if self.model.is_symlink():
            return
        for entry in self.model.glob("checkpoint-*" if keep_weights else "*"):
            if entry.name not in _MODEL_RECORDS:
                with suppress(OSError):
                    remove_tree(entry)


def write_plan(folder: StudyRunFolder, run: Run, study: Study) -> None:
    """Write everything that a run needs into its folder."""
    # This loads transformers, which listing recipes does not need.
    from stepjepa.training.config import JEPAConfig

    data, settings = run.block.data, run.settings
    files = data.paths(study.output_dir)
    # The base may set options of an objective that this arm does not use.
    kinds = RunOptions, JEPAConfig
    values = known_values(carried(options_of(*kinds), settings), *kinds)
    # The run's name in trackers: study/arm/seed-1. A run_name in the base replaces the name of the study.
    title = settings.get("run_name") or study.output_dir.resolve().name
    values["run_name"] = "/".join([title, *run.folder.parts[1:]])
    values["train_file"] = list(files["train"])
    if "train" in data.splits:
        values["dataset_split"] = data.splits["train"]
    if evaluates_on_the_way(settings):
        values["eval_file"] = files["select"][0]
        values["eval_split"] = data.splits.get("select", "test")
    write_yaml(values, folder.train_config)
    plan: Record = {
        "run": run.name,
        "files": {split: names[0] for split, names in files.items() if split != "train"},
        "splits": dict(data.splits),
        "metrics": {metric.name: dict(metric.options) for metric in run.block.metrics},
        "evaluation": asdict(run.block.evaluation),
        # Scoring converts rows to chats, and chats to tokens, with the options of training.
        "chat": known_values(settings, DataOptions),
    }
    write_record(folder.plan, plan)
