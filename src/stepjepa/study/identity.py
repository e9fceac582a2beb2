"""What must be equal for results to share a table: code, data, scoring and settings.

A run's identity holds the options that the study's file sets and leaves out all others, so that records stay valid when the
library gains options.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from stepjepa.config.option import Names, options_of
from stepjepa.data.sources import RowSource
from stepjepa.errors import ConfigError, DataError
from stepjepa.study.spec import Arm, Block, Run, Study, StudyOptions
from stepjepa.training.options import RunOptions
from stepjepa.utils.files import checksum, digest
from stepjepa.version import __version__

_NAME = Names(StudyOptions, Study)
SOURCE = Path(__file__).parents[1]
# Packages of the library that no number of a run depends on.
_OTHER_SOURCE = ("cli", "inspect", "recipes", "report")
_MOST_DIFFERENCES = 5  # in a message


def code_identity() -> dict[str, str]:
    """Versions, and a digest of this package's source without the parts that only read and show."""
    parts = []
    for file in sorted(SOURCE.rglob("*.py")):
        name = file.relative_to(SOURCE)
        if name.parts[0] in _OTHER_SOURCE:
            continue
        path = name.as_posix().encode()
        parts.append(path + b"\0" + file.read_bytes() + b"\0")
    versions = {package: version(package) for package in ("torch", "transformers", "peft")}
    return {"stepjepa": __version__, "source": digest(parts), **versions}


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
    settings = {name: value for name, value in block["arms"][run.row].items() if name not in ("tune", "seeds")}
    parts = [block["data"], block["scoring"], settings, run.cell]
    return digest([json.dumps(parts, sort_keys=True).encode()])


def _block_identity(block: Block, study: Study) -> dict[str, Any]:
    data = {}
    for split, names in block.data.paths(study.output_dir).items():
        data[split] = [_data_digest(name, block.data.splits.get(split, "")) for name in names]
    metrics = {metric.name: dict(metric.options) for metric in block.metrics}
    arms: dict[str, dict[str, Any]] = {}
    for arm in block.arms:
        arms |= dict.fromkeys(arm.rows.values(), _arm_identity(arm, block, study))
    return {
        "data": data,
        "scoring": {"metrics": metrics, **asdict(block.evaluation)},
        "select": list(block.select) if any(arm.tuned for arm in block.arms) else None,
        "arms": arms,
    }


def _arm_identity(arm: Arm, block: Block, study: Study) -> dict[str, Any]:
    """The settings of an arm that decide its numbers, and how the others are chosen."""
    from stepjepa.training.config import JEPAConfig  # loads torch

    options = {**options_of(RunOptions), **options_of(JEPAConfig)}
    tuned = {name for cell in arm.cells for name in cell}
    settings = {**block.base, **arm.settings}
    identity = {name: value for name, value in settings.items() if options[name].identity and name not in tuned}
    if arm.tuned:  # a choice among others, or on other seeds, is another choice
        identity["tune"] = [dict(cell) for cell in arm.cells]
        identity["seeds"] = list(block.tune_seeds or block.seeds)
    if study.processes_per_run > 1:  # each has a batch of its own
        identity[_NAME.processes_per_run] = study.processes_per_run
    return identity


def _data_digest(name: str, split: str) -> str:
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
        old = before["blocks"].get(name)
        if old is None:
            continue
        place = f"{name}: " if name else ""
        for key in ("data", "scoring", "select"):
            differences += _differences(old[key], block[key], f"{place}{key}")
        for row in block["arms"]:
            if row in old["arms"]:
                differences += _differences(old["arms"][row], block["arms"][row], f"{place}{row}")
    if differences:
        listed = "; ".join(differences[:_MOST_DIFFERENCES])
        if len(differences) > _MOST_DIFFERENCES:
            listed += f"; and {len(differences) - _MOST_DIFFERENCES} more"
        raise ConfigError(
            f"{folder} holds results of another study, and a table must not mix them: {listed}. "
            f"Give another --{_NAME.output_dir}, or start again with --{_NAME.overwrite_output_dir}"
        )


def _differences(old: Any, new: Any, place: str) -> Iterator[str]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in {**old, **new}:
            yield from _differences(old.get(name), new.get(name), f"{place} {name}")
    elif old != new:
        before = "not set" if old is None else str(old)
        after = "not set" if new is None else str(new)
        yield f"{place} was {before[:80]}, is {after[:80]}"
