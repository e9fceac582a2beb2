"""Saved states of both views: what every number and figure is made from.

One safetensors file, which any reader of that format opens:

    source   (L, N, D) float32   states that the source views are read from, layer by layer
    target   (L, N, D) float32   those of the target views, row i of both a pair
    rows     (N,) int64          the pairs' rows in `file`, counted from 0
    steps    (N,) int64          number of the pair's target among the steps of its row, counted from 1 (so 2 is the least);
                                 only where views are steps, and files without it are read as ever

and in its metadata, under ``stepjepa.states``, a JSON object with ``version`` (1), ``model``, ``file``, and ``layers``, a
list of L integers: 0 for the embeddings, i for the output of layer i, -1 for the last hidden state behind the final norm.

Shapes: L layers, N pairs, D width.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stepjepa.errors import DataError
from stepjepa.utils.files import parse_json, replacing

KEY, VERSION = "stepjepa.states", 1
FINAL = -1  # the layer that is the last hidden state behind the final norm


@dataclass(frozen=True)
class States:
    """States of both views in some layers of one model.

    Attributes:
        model: name or folder of the model.
        file: of the rows.
        layers: (L,) 0 the embeddings, i behind layer i, -1 behind the final norm.
        rows: (N,) int64, of `file`.
        source, target: (L, N, D) float32.
        steps: (N,) int64, number of the target step within its row, from 1; None where views are no steps.

    Raises:
        DataError: the shapes do not fit together.
    """

    model: str
    file: str
    layers: tuple[int, ...]
    rows: np.ndarray
    source: np.ndarray
    target: np.ndarray
    steps: np.ndarray | None = None

    def __post_init__(self) -> None:
        if self.source.ndim != 3 or self.source.shape != self.target.shape:
            raise DataError(
                f"states of {self.model}: source {self.source.shape} and target {self.target.shape} must be of one "
                "shape (layers, rows, width)"
            )
        if (len(self.layers), len(self.rows)) != self.source.shape[:2]:
            raise DataError(
                f"states of {self.model}: {len(self.layers)} layers and {len(self.rows)} rows are named, "
                f"the arrays have {self.source.shape[0]} and {self.source.shape[1]}"
            )
        if self.steps is not None and self.steps.shape != (len(self.rows),):
            raise DataError(
                f"states of {self.model}: steps are of shape {self.steps.shape}, and there are {len(self.rows)} rows"
            )
        if len(set(self.layers)) < len(self.layers):
            raise DataError(f"states of {self.model}: a layer is there twice: {list(self.layers)}")

    def layer(self, layer: int) -> tuple[np.ndarray, np.ndarray]:
        """Source and target of one layer, both (N, D).

        Raises:
            DataError: the layer was not saved.
        """
        if layer not in self.layers:
            raise DataError(f"layer {layer} of {self.model} was not saved; there are: {list(self.layers)}")
        index = self.layers.index(layer)
        return self.source[index], self.target[index]


def save_states(states: States, path: str | os.PathLike[str]) -> None:
    """Write states; the file appears whole or not at all, and the same states give the same bytes.

    Raises:
        OSError: it could not be written; what stood there still stands.
    """
    from safetensors.numpy import save_file

    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, np.ndarray] = {
        "source": np.ascontiguousarray(states.source, dtype=np.float32),
        "target": np.ascontiguousarray(states.target, dtype=np.float32),
        "rows": np.ascontiguousarray(states.rows, dtype=np.int64),
    }
    if states.steps is not None:
        tensors["steps"] = np.ascontiguousarray(states.steps, dtype=np.int64)
    # One entry, for safetensors writes several in any order.
    about = {"version": VERSION, "model": states.model, "file": states.file, "layers": list(states.layers)}
    metadata = {KEY: json.dumps(about, ensure_ascii=False)}
    with replacing(path) as temporary:
        save_file(tensors, temporary, metadata)  # straight to the disk: some gigabytes need no copy in memory


def load_states(path: str | os.PathLike[str], layers: Sequence[int] | None = None) -> States:
    """Read what `save_states` wrote.

    Args:
        layers: read only these, in this order.

    Raises:
        DataError: there is no such file, it holds no states, it is damaged, or a layer was not saved.
    """
    with _opened(path) as (file, about):
        return _read(file, about, path, layers)


def saved_layers(path: str | os.PathLike[str]) -> tuple[int, ...]:
    """The layers that a file holds, in its order.

    Raises:
        DataError: see `load_states`.
    """
    with _opened(path) as (_, about):
        return tuple(about["layers"])


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[tuple[Any, dict[str, Any]]]:
    """The open file and what its metadata say."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            if KEY not in metadata or set(file.keys()) - {"steps"} != {"source", "target", "rows"}:
                raise DataError(f"{path}: holds no states; they are written by save_states")
            about = parse_json(metadata[KEY])
            if about["version"] != VERSION:
                raise DataError(f"{path}: is of version {about['version']}; this library reads version {VERSION}")
            yield file, about
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from None
    except SafetensorError as error:
        raise DataError(f"{path}: is no safetensors file, or a damaged one ({error})") from None


def _read(file: Any, about: dict[str, Any], path: Any, layers: Sequence[int] | None) -> States:
    saved = about["layers"]
    chosen = list(saved if layers is None else layers)
    missing = [layer for layer in chosen if layer not in saved]
    if missing:
        raise DataError(f"{path}: layer {missing[0]} was not saved; there are: {saved}")
    views = {}
    for name in ("source", "target"):
        part = file.get_slice(name)
        found = [part[saved.index(layer)] for layer in chosen]  # (N, D) each
        views[name] = np.stack(found) if found else np.empty((0, *part.get_shape()[1:]), np.float32)
    steps = file.get_tensor("steps") if "steps" in file.keys() else None  # noqa: SIM118
    return States(about["model"], about["file"], tuple(chosen), file.get_tensor("rows"), **views, steps=steps)
