"""A cache of examples on disk, so that a second run on the same file starts without reading it.

One entry is a folder named by a key of everything that decides the examples: the file (path, size, time of change), the
tokenizer, the chat template, the encoding options and this library's version. It holds the arrays of an `ExampleStore`,
which are memory-mapped when they are read, and the data report.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from stepjepa.config.option import Names
from stepjepa.data.options import DataOptions, ReadingOptions
from stepjepa.data.report import DataReport
from stepjepa.data.sources import RowSource
from stepjepa.data.types import ExampleStore
from stepjepa.errors import ConfigError
from stepjepa.utils.files import read_json, write_json
from stepjepa.version import __version__

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_NAME = Names(ReadingOptions)
_VERSION = {"format": 7, "version": __version__}
_REPORT = "report.json"  # written last: an entry without it is none


def cache_key(source: RowSource, tokenizer: PreTrainedTokenizerBase, options: DataOptions) -> str | None:
    """The key of a data set under an `EncodeOptions`; None for data that is not a file, which is not cached."""
    path = Path(source.name)
    if not path.is_file():
        return None
    state = path.stat()
    data = (str(path.resolve()), state.st_size, state.st_mtime_ns)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    what_it_does = [
        repr(tokenizer) + json.dumps(sorted(tokenizer.get_vocab().items())) if backend is None else backend.to_str(),
        str(tokenizer.chat_template),
        json.dumps({name: str(token) for name, token in sorted(tokenizer.special_tokens_map.items())}),
    ]
    digest = hashlib.sha256("\0".join(what_it_does).encode()).hexdigest()
    parts = [_VERSION, data, digest, repr(options)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def load_cached(folder: str | os.PathLike[str], key: str) -> tuple[ExampleStore, DataReport] | None:
    """What `save_cached` stored under the key, memory-mapped; None where there is nothing complete."""
    entry = Path(folder) / key
    try:
        record = read_json(entry / _REPORT)
        arrays = {name: np.load(entry / f"{name}.npy", mmap_mode="r") for name in ExampleStore.ARRAYS}
        return ExampleStore(arrays), DataReport.from_dict(record)
    except (OSError, EOFError, ValueError, TypeError, AttributeError):  # nothing there, or damaged
        return None


def save_cached(folder: str | os.PathLike[str], key: str, store: ExampleStore, report: DataReport) -> None:
    """Store examples and their report under a key. The entry appears complete or not at all.

    Raises:
        ConfigError: the folder cannot be written.
    """
    root = Path(folder)
    try:
        root.mkdir(parents=True, exist_ok=True)
        part = root / f".{key}.{secrets.token_hex(8)}"
        part.mkdir()  # readable for whoever may read the folder around it
        try:
            for name, array in store.arrays.items():
                np.save(part / f"{name}.npy", array)
            write_json(part / _REPORT, report.to_dict(), indent=None)
            if load_cached(root, key) is None:
                shutil.rmtree(root / key, ignore_errors=True)  # a damaged entry
                os.replace(part, root / key)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    except OSError as error:
        if load_cached(root, key) is not None:
            return  # another process was faster
        raise ConfigError(f"--{_NAME.data_cache} {folder}: cannot be written ({error.strerror or error})") from None
