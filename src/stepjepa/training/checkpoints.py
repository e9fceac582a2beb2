"""Checkpoints on disk: which one a killed run can go on from, and what one lacks that was loaded."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from torch import nn

from stepjepa.utils.files import read_json

_NAME = re.compile(r"checkpoint-(\d+)$")
# Written last of all by `Trainer._save_checkpoint`: a folder whose state can be read is whole.
_LAST_FILE = "trainer_state.json"


def is_complete(folder: str | os.PathLike[str]) -> bool:
    """Whether a checkpoint was written to its end and holds all that a run needs to go on."""
    try:
        read_json(Path(folder) / _LAST_FILE)
    except (OSError, ValueError):
        return False
    # Without these (save_only_model, or a kill between files) a run cannot go on exactly.
    return any(Path(folder).glob("rng_state*.pth"))


def last_complete_checkpoint(output_dir: str | os.PathLike[str]) -> Path | None:
    """The newest whole ``checkpoint-N`` in a folder, None where there is none.

    A run killed while it wrote a checkpoint leaves a part of it; older ones are only deleted after a new one is whole,
    so there is always one to go on from.
    """
    whole = [(step, entry) for step, entry in _numbered(output_dir) if is_complete(entry)]
    return max(whole)[1] if whole else None


def cut_short(output_dir: str | os.PathLike[str], found: Path | None) -> list[Path]:
    """Checkpoints newer than `found` that a kill cut short, the oldest first."""
    whole = int(found.name.rpartition("-")[2]) if found is not None else -1
    return [entry for step, entry in sorted(_numbered(output_dir)) if step > whole]


def _numbered(output_dir: str | os.PathLike[str]) -> list[tuple[int, Path]]:
    entries = Path(output_dir).iterdir() if Path(output_dir).is_dir() else ()
    return [(int(match[1]), entry) for entry in entries if (match := _NAME.match(entry.name))]


def missing_weights(model: nn.Module, missing: list[str]) -> list[str]:
    """Those of `missing` that nothing else of the model holds: tied weights are saved once, under one of their names."""
    tensors: dict[str, Any] = dict(model.named_parameters(remove_duplicate=False))
    loaded = {id(tensor) for name, tensor in tensors.items() if name not in missing}
    return [name for name in missing if id(tensors.get(name)) not in loaded]
