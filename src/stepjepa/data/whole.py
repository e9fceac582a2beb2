"""Files that a reader finds as they were or whole, also after a crash."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


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
