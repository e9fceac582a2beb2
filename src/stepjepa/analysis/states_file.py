"""The file that keeps states: one safetensors file, which any reader of that format opens.

    source   (L, N, D) float32   states that the source views are read from, layer by layer
    target   (L, N, D) float32   those of the target views, row i of both a pair
    rows     (N,) int64          the pairs' rows in `file`, counted from 0
    steps    (N,) int64          number of the pair's target among the steps of its row, counted from 1 (so 2 is the least);
                                 only where views are steps
    walks, places  (M, D) float32, (M, 2) int64; see `Walks`; only with --prediction_horizon

and in its metadata, under ``stepjepa.states``, a JSON object with ``version`` (1), ``model``, ``file``, and ``layers``, a
list of L integers: 0 for the embeddings, i for the output of layer i, -1 for the last hidden state after the final norm.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from stepjepa.analysis.options import AnalyzeOptions
from stepjepa.analysis.states import States, Walks
from stepjepa.config.option import Names
from stepjepa.errors import DataError
from stepjepa.utils.files import parse_object, replacing

KEY, VERSION = "stepjepa.states", 1
_NAME = Names(AnalyzeOptions)


def save_states(states: States, path: str | os.PathLike[str]) -> None:
    """Write states with an atomic write; the same states give the same bytes.

    Raises:
        OSError: it could not be written; what was there before is unchanged.
    """
    from safetensors.numpy import save_file

    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {"source": states.source, "target": states.target, "rows": states.rows}
    if states.walks is not None:
        tensors |= {"walks": states.walks.states, "places": states.walks.places}
    if states.steps is not None:
        tensors["steps"] = states.steps
    for name, array in tensors.items():
        dtype = np.float32 if array.dtype.kind == "f" else np.int64
        tensors[name] = np.ascontiguousarray(array, dtype)
    # One entry, for safetensors writes several in any order.
    header = {"version": VERSION, "model": states.model, "file": states.file, "layers": list(states.layers)}
    with replacing(path) as temporary:  # straight to the disk: some gigabytes need no copy in memory
        save_file(tensors, temporary, {KEY: json.dumps(header, ensure_ascii=False)})


def load_states(path: str | os.PathLike[str]) -> States:
    """What `save_states` wrote; layers are read from the disk when they are used.

    Raises:
        DataError: there is no such file, it holds no states, or it is damaged.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            names, metadata = set(file.keys()), file.metadata() or {}
            if KEY not in metadata or names - {"steps", "walks", "places"} != {"source", "target", "rows"}:
                raise DataError(f"{path}: holds no states; they are written by save_states")
            header = parse_object(metadata[KEY])
            if header["version"] != VERSION:
                raise DataError(f"{path}: is of version {header['version']}; this library reads version {VERSION}")
            tensors = {name: file.get_tensor(name).numpy() for name in names}
        walks = Walks(tensors.pop("walks"), tensors.pop("places")) if "walks" in tensors else None
        states = States(header["model"], header["file"], tuple(header["layers"]), **tensors, walks=walks)
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file") from None
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: is no safetensors file, or a damaged one ({error})") from None
    shape = (len(states.layers), len(states.rows), states.source.shape[-1])
    steps = states.rows if states.steps is None else states.steps
    fits = states.source.shape == states.target.shape == shape and steps.shape == states.rows.shape
    if not fits or len(set(states.layers)) < shape[0]:
        raise DataError(f"{path}: is damaged: its layers, rows and states do not fit together")
    return states


def check_alike(states: Mapping[str, States], base: str | None) -> None:
    """Refuse states that are not of the same pairs, and a base model of another width or with fewer layers (DataError)."""
    (label, first), *others = states.items()
    for other, one in others:
        if one.file != first.file:
            raise DataError(
                f"states of {label} are of {first.file}, those of {other} of {one.file}; compare models on one file"
            )
        if not (np.array_equal(first.rows, one.rows) and _same_steps(first.steps, one.steps)):
            raise DataError(
                f"states of {label} are of {len(first.rows)} pairs, those of {other} of {len(one.rows)}, and not of the "
                f"same rows and steps; where tokenizers or positions differ, change --{_NAME.max_length} until every row "
                "fits"
            )
    if base is not None:
        for label, one in states.items():
            _check_base(label, one, base, states[base])


def _same_steps(one: np.ndarray | None, other: np.ndarray | None) -> bool:
    if one is None or other is None:
        return one is other
    return np.array_equal(one, other)


def _check_base(label: str, states: States, base: str, origin: States) -> None:
    advice = f"only models that were trained from it can be held against it; leave --{_NAME.base_model} out"
    width, base_width = states.source.shape[2], origin.source.shape[2]
    if width != base_width:
        raise DataError(f"states of {label} are {width} wide, those of the base model {base} {base_width}: {advice}")
    for layer in states.layers:
        if layer not in origin.layers:
            raise DataError(f"{label} has states of layer {layer}, the base model {base} has not: {advice}")
