"""Files that a reader finds as they were or whole, also after a crash."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from stepjepa.errors import ConfigError


def write_whole(path: Path, pieces: Iterable[bytes]) -> None:
    """Write a file beside its place, see it onto the disk, and move it there.

    Raises:
        OSError: it could not be written; what stood there still stands.
    """
    temporary = path.with_name(f".{path.name.lstrip('.')}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def check_writable(folder: Path, option: str = "--output_dir") -> None:
    """Find out whether files can be written to a folder that there is or will be, and leave nothing behind.

    Raises:
        ConfigError: they cannot.
    """
    place = folder.absolute()
    while not place.is_dir() and place != place.parent:
        if place.exists():
            raise ConfigError(f"{option} {folder}: {place} is a file")
        place = place.parent
    try:
        tempfile.TemporaryDirectory(prefix=".stepjepa-", dir=place).cleanup()
    except OSError as error:
        raise ConfigError(f"{option} {folder}: cannot be written ({error.strerror or error})") from None
