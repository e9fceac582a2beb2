"""Appending and replacing files so that a kill or a full disk at any moment loses nothing that was whole before."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from stepjepa.errors import ConfigError, DataError
from stepjepa.utils.files import json_bytes, no_links, write_whole

try:
    import fcntl
except ImportError:  # Windows: two runs on one output are then the user's to avoid
    fcntl = None  # type: ignore[assignment]


def json_line(record: Any) -> bytes:
    """One line of JSONL; NaN and infinity become null."""
    return json_bytes(record) + b"\n"


@contextlib.contextmanager
def saying_where(path: Path) -> Iterator[None]:
    """Turn an error of the system (a full disk, a missing right) into one line.

    Raises:
        DataError: in place of an OSError.
    """
    try:
        yield
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise DataError(
            f"{path}: cannot be written ({why}); what was written before is kept, and the same command goes on from it"
        ) from None


def append(file: BinaryIO, data: bytes, path: Path) -> None:
    """Append to a file opened without a buffer, and wait until the disk has it. What fits in part is taken out again.

    Raises:
        DataError: it could not be written.
    """
    size = file.seek(0, os.SEEK_END)
    with saying_where(path):
        try:
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]
            os.fsync(file.fileno())
        except OSError:
            with contextlib.suppress(OSError):
                file.truncate(size)
            raise


def replace(path: Path, pieces: Iterable[bytes]) -> None:
    """Write a file so that a reader finds the old one or the whole new one, also after a crash.

    Raises:
        DataError: it could not be written; the old one is still there.
    """
    with saying_where(path):
        write_whole(path, pieces)


def open_locked(path: Path) -> BinaryIO:
    """Open a file for reading and appending without a buffer, making it if need be, for this process alone.

    Raises:
        ConfigError: another process holds it.
        DataError: it cannot be opened.
    """
    with saying_where(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open(path, "a+b", buffering=0, opener=no_links)  # noqa: SIM115
    if fcntl is not None:
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise ConfigError(f"{path}: another process is writing it; wait for it, or choose another file") from None
        except OSError:  # a file system without locks
            pass
    return file
