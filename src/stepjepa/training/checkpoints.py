"""Checkpoints on disk: which one a killed run can go on from."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

_NAME = re.compile(r"checkpoint-(\d+)$")
# Written last of all by `Trainer._save_checkpoint`: a folder whose state can be read is whole.
_LAST_FILE = "trainer_state.json"


def is_complete(folder: str | os.PathLike[str]) -> bool:
    """Whether a checkpoint was written to its end and holds all that a run needs to go on."""
    try:
        with open(Path(folder) / _LAST_FILE, encoding="utf-8") as file:
            json.load(file)
    except (OSError, ValueError):
        return False
    # Without these (save_only_model, or a kill between files) a run cannot go on exactly.
    return any(Path(folder).glob("rng_state*.pth"))


def last_complete_checkpoint(output_dir: str | os.PathLike[str]) -> Path | None:
    """The newest whole ``checkpoint-N`` in a folder, None where there is none.

    A run killed while it wrote a checkpoint leaves a part of it; older ones are only deleted after a new one is whole,
    so there is always one to go on from.
    """
    found = []
    if Path(output_dir).is_dir():
        for entry in Path(output_dir).iterdir():
            match = _NAME.match(entry.name)
            if match and is_complete(entry):
                found.append((int(match[1]), entry))
    return max(found)[1] if found else None
