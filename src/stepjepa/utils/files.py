"""Atomic writes: a reader finds the old file or the complete new one, also after a crash or a full disk."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from stepjepa.errors import ConfigError

LOCK = ".lock"  # the name of the lock file in a folder that one process at a time may write
_MOST_DIGITS = 300  # of a whole number in JSON; with more it is no float


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary path in the same folder; when the block ends, that file is synced and moved to `path`.

    What a killed process left under the temporary name is removed first, a planted link included: the file is made anew and
    never opened through one. It gets the mode of any new file, whatever wrote it. A device or a pipe is written to directly.

    Raises:
        OSError: it could not be written; what was at `path` is unchanged.
    """
    path = Path(path)
    if path.exists() and not path.is_file() and not path.is_dir():
        yield path
        return
    temporary = path.with_name(f".{path.name.lstrip('.')}.tmp")
    temporary.unlink(missing_ok=True)
    temporary.touch(exist_ok=False)
    mode = temporary.stat().st_mode
    try:
        yield temporary
        temporary.chmod(mode)
        sync(temporary)
        os.replace(temporary, path)
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def no_links(path: str | os.PathLike[str], flags: int) -> int:
    """An `opener` for files with known names that are written in place: it follows no link that someone has put there.

    Raises:
        OSError: the name is a link, or cannot be opened.
    """
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0), 0o666)


def sync(path: Path) -> None:
    """See a file, or the names in a folder, onto the disk.

    Raises:
        OSError: the file could not be written. A system that cannot open folders is no error.
    """
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        if path.is_dir():
            return
        raise
    try:
        os.fsync(handle)
    except OSError:
        if not path.is_dir():
            raise
    finally:
        os.close(handle)


def share(folder: Path) -> None:
    """Let whoever may read a folder read the files in it; safetensors writes them for their owner alone."""
    readers = folder.stat().st_mode & 0o444
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(path.stat().st_mode | readers)


def write_whole(path: str | os.PathLike[str], pieces: Iterable[bytes]) -> None:
    """Write a file atomically.

    Raises:
        OSError: it could not be written; what was at `path` is unchanged.
    """
    with replacing(path) as temporary, open(temporary, "wb") as file:
        file.writelines(pieces)


def write_json(path: str | os.PathLike[str], record: Any, indent: int | None = 2) -> None:
    """Write JSON atomically. NaN and infinity, which JSON does not have, become null.

    Raises:
        OSError: as `write_whole`.
    """
    write_whole(path, [json_bytes(record, indent), b"\n"])


def json_bytes(record: Any, indent: int | None = None) -> bytes:
    """`record` as JSON in UTF-8; NaN and infinity become null, a lone surrogate an escape."""
    try:
        text = json.dumps(record, indent=indent, ensure_ascii=False, allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(record), indent=indent, ensure_ascii=False, allow_nan=False)
    try:
        return text.encode()
    except UnicodeEncodeError:
        return json.dumps(_finite(record), indent=indent, allow_nan=False).encode()


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Hold a lock file within this context, as long as the process lives; False where another process holds it.

    The file is removed at the end. One that a dead process has left is no obstacle. Where the system or the file system has
    no locks, nobody is kept out.
    """
    try:
        import fcntl
    except ImportError:
        yield True
        return
    while True:
        try:
            file = open(path, "a", opener=no_links)  # noqa: SIM115
        except OSError:  # a folder that cannot be written to
            yield True
            return
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            except OSError:
                pass
            if not _same_file(path, file.fileno()):  # its last holder has removed it meanwhile
                continue
            try:
                yield True
            finally:
                with suppress(OSError):
                    path.unlink()
            return


def _same_file(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except OSError:
        return False


def read_json(path: str | os.PathLike[str]) -> Any:
    """The value in a file of JSON.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no JSON in UTF-8.
    """
    return parse_json(Path(path).read_bytes())


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: it is none, or one that no program reads well: nested too deeply, a whole number beyond all floats.
    """
    try:
        return _DECODER.decode(text if isinstance(text, str) else text.decode("utf-8-sig"))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _whole_number(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"a number of {len(digits):,} digits")
    return int(digits)


_DECODER = json.JSONDecoder(parse_int=_whole_number)


def check_writable(folder: Path, option: str = "--output_dir") -> None:
    """Find out whether files can be written to a folder that exists or will be made, and leave nothing behind.

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


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
    return value
