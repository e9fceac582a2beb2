"""States that ``stepjepa analyze`` has saved, read as its docstring describes the file."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import safe_open

from stepjepa.analysis.states import KEY, States


def load_states(path: Path) -> States:
    """What `save_states` wrote."""
    with safe_open(path, framework="numpy") as file:
        header = json.loads(file.metadata()[KEY])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return States(header["model"], header["file"], tuple(header["layers"]), **tensors)
