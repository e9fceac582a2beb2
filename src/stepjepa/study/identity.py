"""What must be equal for results to stand in one table: the code, the data, the settings."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import stepjepa
from stepjepa.data.sources import RowSource
from stepjepa.errors import ConfigError, DataError
from stepjepa.study.grid import row_name
from stepjepa.study.spec import Block, Study

# What decides a run's numbers. Tables and figures are made anew from the records whenever a study is started.
_SOURCE = (
    "data forest losses modeling training evaluation cli/train.py study/scoring.py study/geometry.py "
    "analysis/collect.py analysis/geometry.py analysis/linear.py analysis/numbers.py"
).split()
_PACKAGES = ("torch", "transformers", "peft")
# Options that leave the numbers as they are.
_FREE = set(
    "disable_tqdm report_to logging_steps dataloader_num_workers dataset_num_proc data_cache save_strategy save_steps "
    "save_total_limit debug_level".split()
)


def code_identity() -> dict[str, str]:
    """Versions, and a digest of the source of this package, as far as it decides the numbers."""
    root = Path(stepjepa.__file__).parent
    digest = hashlib.sha256()
    files = [
        file for part in _SOURCE for file in ([root / part] if part.endswith(".py") else (root / part).rglob("*.py"))
    ]
    for file in sorted(files):
        digest.update(file.relative_to(root).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    found = {"stepjepa": stepjepa.__version__, "source": digest.hexdigest()[:16]}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "none"
    return found


def data_identity(files: Mapping[str, list[str]], splits: Mapping[str, str]) -> dict[str, list[str]]:
    """A digest of every file of every split, or the name and split of a data set that is no file.

    Raises:
        DataError: a file that cannot be read.
    """
    return {split: [_digest(file, splits.get(split, "")) for file in names] for split, names in files.items() if names}


def _digest(name: str, split: str) -> str:
    path = Path(name).expanduser()
    if not path.is_file():
        return f"{RowSource(name, split or 'train').fingerprint}:{split}"
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while piece := file.read(1 << 20):
                digest.update(piece)
    except OSError as error:
        raise DataError(f"{name}: cannot be read ({error.strerror or error})") from None
    return digest.hexdigest()[:16]


def study_identity(study: Study, data: Mapping[str, Any]) -> dict[str, Any]:
    """What `check_same` compares.

    Args:
        data: block -> its `data_identity`.
    """
    blocks = {block.name: {"data": data[block.name], **_block_identity(block)} for block in study.blocks}
    return {"code": code_identity(), "blocks": blocks}


def _block_identity(block: Block) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for arm in block.arms:
        tuned = {name for cell in arm.cells for name in cell}
        settings = {**block.base, **arm.settings}
        row: dict[str, Any] = {k: v for k, v in settings.items() if k not in _FREE and k not in tuned}
        if len(arm.cells) > 1:  # a choice among others, or on other seeds, is another choice
            row |= {"tune": [dict(cell) for cell in arm.cells], "seeds": list(block.seeds)}
        for variant in ("", *arm.variants):
            rows[row_name(arm.name, variant)] = row
    metrics = {metric.name: dict(metric.options) for metric in block.metrics}
    tuned_arms = any(len(arm.cells) > 1 for arm in block.arms)
    return {
        "scoring": {"metrics": metrics, **asdict(block.evaluation)},
        "select": list(block.select) if tuned_arms else None,
        "arms": rows,
    }


def check_same(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to put results beside those of another code, other data or other settings. New arms, seeds and blocks may come.

    Raises:
        ConfigError: what differs.
    """
    found = list(_differences(before.get("code", {}), now["code"], "code"))
    for name, block in now["blocks"].items():
        old = before.get("blocks", {}).get(name)
        if old is None:
            continue
        place = f"{name}: " if name else ""
        for key in ("data", "scoring", "select"):
            found += _differences(old.get(key), block[key], f"{place}{key}")
        for row, settings in block["arms"].items():
            if row in old.get("arms", {}):
                found += _differences(old["arms"][row], settings, f"{place}{row}")
    if found:
        shown = "; ".join(found[:5]) + (f"; and {len(found) - 5} more" if len(found) > 5 else "")
        raise ConfigError(
            f"{folder} holds results of another study, and a table must not mix them: {shown}. Give another --output_dir, "
            "or start anew with --overwrite_output_dir"
        )


def _differences(old: Any, new: Any, place: str) -> list[str]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        names = [*old, *(name for name in new if name not in old)]
        return [line for name in names for line in _differences(old.get(name), new.get(name), f"{place} {name}")]
    old, new = (list(value) if isinstance(value, tuple) else value for value in (old, new))
    return [] if old == new else [f"{place} was {_shown(old)}, is {_shown(new)}"]


def _shown(value: Any) -> str:
    text = "not set" if value is None else str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
