"""A folder's list of its files, by which a cut, damaged or missing file is found.

``manifest.json`` is written last, after every file that it lists is on the disk: a folder that has one is complete.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from stepjepa.utils.files import read_json, sync, write_json

MANIFEST = "manifest.json"
_WEIGHTS = (".safetensors", ".bin")
_CHUNK = 1 << 22
_THREADS = 4


def write_manifest(folder: Path, names: Iterable[str] | None = None) -> None:
    """See files onto the disk, then write their sizes and checksums to `MANIFEST`.

    Args:
        folder: where they are.
        names: which files; None for every file in the folder and in folders inside it.

    Raises:
        OSError: a file cannot be read or written.
    """
    if names is None:
        names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    listed = sorted(set(names) - {MANIFEST})
    with ThreadPoolExecutor(_THREADS) as pool:  # weights and optimizer at a time: neither waits for Python
        files = dict(zip(listed, pool.map(_entry, (folder / name for name in listed)), strict=True))
    for parent in {(folder / name).parent for name in files}:
        sync(parent)
    write_json(folder / MANIFEST, {"files": files})


def _entry(path: Path) -> dict[str, int | str]:
    sync(path)
    return {"bytes": path.stat().st_size, "sha256": _checksum(path)}


def listed_files(folder: Path) -> dict[str, dict[str, int | str]] | None:
    """What a folder's manifest lists, by name; None where there is no manifest that can be read."""
    try:
        record = read_json(folder / MANIFEST)
        return {name: {"bytes": entry["bytes"], "sha256": entry["sha256"]} for name, entry in record["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def weights_digest(folder: Path) -> str | None:
    """A digest of the weights that a folder's manifest lists; None without a manifest."""
    files = listed_files(folder)
    if files is None:
        return None
    listed = sorted((name, entry["sha256"]) for name, entry in files.items() if name.endswith(_WEIGHTS))
    return hashlib.sha256(repr(listed).encode()).hexdigest()[:16]


def mismatch(folder: Path, only_weights: bool = False, checksums: bool = True) -> str | None:
    """What is wrong with a folder by its manifest, in words; None where all files are as they were written.

    Args:
        only_weights: compare the weights alone; of the other files, which users may edit, only that they are there.
        checksums: compare contents too, which reads the files; else sizes alone.
    """
    files = listed_files(folder)
    if files is None:
        damaged = (folder / MANIFEST).exists()
        return f"{MANIFEST} cannot be read" if damaged else f"it has no {MANIFEST}"
    for name, entry in files.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if only_weights and not name.endswith(_WEIGHTS):
            continue
        size = path.stat().st_size
        if size != entry["bytes"]:
            return f"{name} has {size:,} bytes instead of {entry['bytes']:,}"
    for name, entry in files.items() if checksums else ():
        if only_weights and not name.endswith(_WEIGHTS):
            continue
        try:
            if _checksum(folder / name) != entry["sha256"]:
                return f"{name} is damaged: its checksum differs"
        except OSError as error:
            return f"{name} cannot be read ({error.strerror or error})"
    return None


def _checksum(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(_CHUNK):
            digest.update(piece)
    return digest.hexdigest()
