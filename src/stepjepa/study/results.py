"""What a study leaves on disk while it runs: a folder for every run, and the study's state.

A run's folder holds ``plan.json`` (all that is needed to carry it out), ``train.yaml``, ``model/``, the logs, and a
record for each stage that is done: ``trained.json``, ``scored-select.json``, ``scored-test.json``. A record is written
whole, as the last of its stage, and never again.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from stepjepa.errors import DataError
from stepjepa.training.run_folder import RunFolder
from stepjepa.utils.files import read_json, write_json

STATE = "state.json"
# What stays of a model whose weights are deleted.
_RECORDS = {"run.json", "resolved.yaml", "metrics.json", "data_report.json"}


def now() -> str:
    """The time in UTC, to the millisecond."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Write a record of JSON, and the folder that it lies in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, record, indent=1)


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
    """The folder of one run."""

    def __init__(self, path: Path):
        self.path = path

    @property
    def plan(self) -> Path:
        """What the run is to do, written before it begins."""
        return self.path / "plan.json"

    @property
    def train_config(self) -> Path:
        """The options of its ``stepjepa train --config``."""
        return self.path / "train.yaml"

    @property
    def model(self) -> Path:
        """The output_dir of its training."""
        return self.path / "model"

    @property
    def job(self) -> Path:
        """The job of a cluster that carries the run out."""
        return self.path / "job.json"

    def record(self, stage: str) -> Path:
        """The record of a stage: ``train``, or the split that is scored."""
        return self.path / ("trained.json" if stage == "train" else f"scored-{stage}.json")

    def log(self, stage: str) -> Path:
        """What the stage's process has printed."""
        return self.path / (f"{stage}.log")

    def done(self, stage: str) -> dict[str, Any] | None:
        """The record of a stage, None where it is not done."""
        return read_record(self.record(stage))

    @property
    def training(self) -> RunFolder:
        """The folder of its training, which knows how far that is."""
        return RunFolder(self.model)

    @property
    def has_weights(self) -> bool:
        """Whether the trained model still lies there."""
        return any(self.model.glob("*.safetensors"))

    def clear_checkpoints(self) -> None:
        """Remove what only a resumed training would read."""
        for entry in self.model.glob("checkpoint-*"):
            shutil.rmtree(entry, ignore_errors=True)

    def delete_weights(self) -> None:
        """Keep the records of a model only."""
        for entry in self.model.glob("*"):
            if entry.is_dir():
                shutil.rmtree(entry, ignore_errors=True)
            elif entry.name not in _RECORDS:
                entry.unlink()


class State:
    """What a study knows beside its runs' records: what it is, and which cells were chosen, when.

    Attributes:
        identity: see `identity.study_identity`; None before the first start.
        choices: block and arm -> the choice, see `choose`.
    """

    def __init__(self, folder: Path):
        self.path = folder / STATE
        record = read_record(self.path) or {}
        self.identity: dict[str, Any] | None = record.get("identity")
        self.choices: dict[str, dict[str, Any]] = record.get("choices", {})
        self.scored: list[dict[str, Any]] = record.get("scored", [])

    def settle(self, identity: Mapping[str, Any]) -> None:
        """Take the identity of a study over; what other arms, blocks and seeds had before stays known."""
        old = self.identity or {"blocks": {}}
        blocks = dict(old["blocks"])
        for name, block in identity["blocks"].items():
            arms = {**blocks.get(name, {}).get("arms", {}), **block["arms"]}
            blocks[name] = {**block, "arms": arms}
        self.identity = {**identity, "blocks": blocks}
        self.save()

    def choice(self, block: str, arm: str) -> dict[str, Any] | None:
        """What `choose` has kept for an arm, None where nothing is chosen yet."""
        return self.choices.get(f"{block}/{arm}")

    def choose(self, block: str, arm: str, choice: Mapping[str, Any]) -> None:
        """Keep what the validation split chose; it is on disk before the test split is looked at."""
        self.choices[f"{block}/{arm}"] = {**choice, "at": now()}
        self.save()

    def note_score(self, run: str, split: str, record: Mapping[str, Any]) -> None:
        """Keep which split was scored when, once."""
        if not any(entry["run"] == run and entry["split"] == split for entry in self.scored):
            self.scored.append({"run": run, "split": split, "at": record["at"]})
            self.save()

    def save(self) -> None:
        """Write the state, whole."""
        write_record(self.path, {"identity": self.identity, "choices": self.choices, "scored": self.scored})
