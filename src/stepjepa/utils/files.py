"""Files: atomic writes, JSON, and manifests.

With atomic writes, a reader sees either the old file or the complete new one, even after a crash or with a full disk.
``manifest.json`` lists the files of a folder with sizes and checksums. It reveals truncated, damaged and missing files, and
is written last, when every listed file is on the disk: a folder with a manifest is complete.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from operator import index
from pathlib import Path
from typing import Any

from stepjepa.errors import ConfigError, DataError

# A path as text or as an object.
AnyPath = str | os.PathLike[str]
# A JSON object.
Record = dict[str, Any]
# Lock file of a folder to which one process at a time may write.
LOCK = ".lock"
MANIFEST = "manifest.json"
_WEIGHTS = (".safetensors", ".bin")
_MODEL_FILES = re.compile(
    r".*\.(?:safetensors|model|jinja|py|index\.json)|(?:pytorch|adapter)_model.*\.bin|(?:merges|vocab)\.txt"
    r"|(?:(?:\w+_)?config|tokenizer\w*|special_tokens_map|added_tokens|vocab|chat_template)\.json"
)
# The number and size of the samples that `model_parts` reads from a large file.
_SAMPLES, _SAMPLE_BYTES = 64, 2**15
# Deeper JSON could exceed the recursion limit of code that walks through it.
_MOST_NESTED = 100
# A JSON integer with more digits does not fit into a float.
_MOST_DIGITS = 300


@contextmanager
def replacing(path: AnyPath) -> Iterator[Path]:
    """Yield a temporary path in the same folder; when the block ends, that file is synced and renamed to `path`.

    What a killed process left under the temporary name, or a symbolic link of that name, is removed first, so that the file
    is always new. It gets the default mode of new files. Devices and pipes are written to directly.

    Raises:
        OSError: the file could not be written; an earlier file at `path` is unchanged.
    """
    path = Path(path)
    if path.exists() and not path.is_file() and not path.is_dir():
        yield path
        return
    temporary = path.with_name(f".{path.name.lstrip('.')}.tmp")
    temporary.unlink(missing_ok=True)
    temporary.touch(exist_ok=False)
    # safetensors makes files readable only by their owner, so the mode is restored below.
    mode = temporary.stat().st_mode
    try:
        yield temporary
        temporary.chmod(mode)
        sync(temporary)
        os.replace(temporary, path)
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def no_links(path: AnyPath, flags: int) -> int:
    """An `opener` that does not follow symbolic links, for files with predictable names that are written in place.

    Raises:
        OSError: the name is a link, or cannot be opened.
    """
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0), 0o666)


def sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to the disk.

    Raises:
        OSError: the file could not be written. Folders that the system cannot open are ignored.
    """
    with suppress(OSError) if path.is_dir() else nullcontext():
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def remove_tree(path: Path) -> None:
    """Remove a file, a folder with its content, or a symbolic link (not its target), if it exists.

    Raises:
        OSError: the path could not be removed.
    """
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def share(folder: Path) -> None:
    """Make the files in a folder readable by everyone who may read the folder: safetensors lets only the owner read."""
    readers = folder.stat().st_mode & 0o444
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(path.stat().st_mode | readers)


def write_whole(path: AnyPath, pieces: Iterable[bytes]) -> None:
    """Write a file atomically.

    Raises:
        OSError: the file could not be written; an earlier file at `path` is unchanged.
    """
    with replacing(path) as temporary, open(temporary, "wb") as file:
        file.writelines(pieces)


def write_json(path: AnyPath, record: object, indent: int | None = 2) -> None:
    """Write a record as JSON (`json_bytes`), atomically."""
    write_whole(path, [json_bytes(record, indent), b"\n"])


def json_bytes(record: object, indent: int | None = None) -> bytes:
    """`record` as JSON in UTF-8. NaN and infinity, which JSON lacks, become null; lone surrogates become escapes."""
    text = json.dumps(_finite(record), indent=indent, ensure_ascii=False, allow_nan=False)
    # Python's escape for a lone surrogate is also JSON's.
    return text.encode(errors="backslashreplace")


def json_line(record: object) -> bytes:
    """One line of JSONL; NaN and infinity become null."""
    return json_bytes(record) + b"\n"


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(part) for key, part in value.items()}
    return [_finite(part) for part in value] if isinstance(value, (list, tuple)) else value


def read_json(path: AnyPath) -> Record:
    """The object in a JSON file.

    Raises:
        OSError: the file cannot be read.
        ValueError: see `parse_object`.
    """
    return parse_object(Path(path).read_bytes())


def read_object(path: AnyPath) -> Record:
    """The object in a JSON file; empty if the file cannot be read or parsed."""
    try:
        return read_json(path)
    except (OSError, ValueError):
        return {}


def parse_json(text: str | bytes) -> object:
    """The value of a JSON text.

    Raises:
        ValueError: the text is not JSON, is nested too deeply, or has an integer that is too large for a float.
    """
    text = text if isinstance(text, str) else text.decode("utf-8-sig")
    try:
        value = json.loads(text, parse_int=_whole_number)
        # The decoder accepts deeper nesting than recursive code can handle. Counting brackets first avoids the walk for
        # most texts.
        if text.count("[") + text.count("{") > _MOST_NESTED and _depth(value) > _MOST_NESTED:
            raise RecursionError
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return value


def _depth(value: object) -> int:
    """Depth of nested lists and objects."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(_depth, inner), default=0)


def _whole_number(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"a number of {len(digits):,} digits")
    return int(digits)


def parse_object(text: str | bytes) -> Record:
    """The object in a JSON text. Raises ValueError if the text is anything else."""
    value = parse_json(text)
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Hold a lock file within this context; yields False if another process holds it.

    The file is removed at the end. A file that a dead process left does not count as held. If the operating system or the
    file system has no locks, every process gets True.
    """
    try:
        import fcntl
    except ImportError:
        yield True
        return
    while True:
        try:
            file = open(path, "a", opener=no_links)  # noqa: SIM115
        except OSError:
            # The folder is not writable. The command itself will fail with a clearer message.
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
            held = False
            with suppress(OSError):
                held = os.path.samestat(path.stat(), os.fstat(file.fileno()))
            if not held:
                # The last holder removed the file between our open and our lock.
                continue
            try:
                yield True
            finally:
                with suppress(OSError):
                    path.unlink()
            return


def check_writable(folder: Path, option: str = "--output_dir") -> None:
    """Check that files can be written to a folder that exists or will be created, without leaving anything there.

    Raises:
        ConfigError: files cannot be written there.
    """
    place = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not place.is_dir():
        raise ConfigError(f"{option} {folder}: {place} is a file")
    try:
        tempfile.TemporaryDirectory(prefix=".stepjepa-", dir=place).cleanup()
    except OSError as error:
        raise ConfigError(
            f"{option} {folder}: cannot be written ({error.strerror or error})"
        ) from None


@contextmanager
def unchanged(path: AnyPath) -> Iterator[None]:
    """Require that a file does not change within this context.

    A file that is being written looks damaged, so if it changed, this is reported instead of the block's DataError.

    Raises:
        DataError: the file was written to or replaced meanwhile.
        OSError: the file does not exist at the start, or at the end.
    """

    def state() -> tuple[int, int, int]:
        status = os.stat(path)
        return status.st_ino, status.st_size, status.st_mtime_ns

    before = state()
    broken: DataError | None = None
    try:
        yield
    except DataError as error:
        broken = error
    if state() != before:
        raise DataError(
            f"{path}: the file changed while it was being read; start again when nothing is writing to it"
        )
    if broken is not None:
        raise broken


# Manifests


def write_manifest(folder: Path, names: Iterable[str] | None = None) -> None:
    """Flush files to the disk, then write their sizes and checksums to `MANIFEST`.

    Args:
        names: files of the folder; None for all, including those in subfolders.

    Raises:
        OSError: a file cannot be read or written.
    """
    if names is None:
        names = [
            path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
        ]

    def entry(name: str) -> dict[str, int | str]:
        path = folder / name
        sync(path)
        return {"bytes": path.stat().st_size, "sha256": checksum(path)}

    listed = sorted(set(names) - {MANIFEST})
    # Hashing releases the interpreter lock, so weights and optimizer state are hashed in parallel.
    with ThreadPoolExecutor(4) as pool:
        files = dict(zip(listed, pool.map(entry, listed), strict=True))
    for parent in {(folder / name).parent for name in files}:
        sync(parent)
    write_json(folder / MANIFEST, {"files": files})


def listed_files(folder: Path) -> dict[str, dict[str, int | str]] | None:
    """The entries of a folder's manifest, by file name; None if there is no readable manifest."""
    try:
        files = read_json(folder / MANIFEST)["files"].items()
        # A manifest must not name files outside its folder.
        if any(Path(name).is_absolute() or ".." in Path(name).parts for name, _ in files):
            return None
        return {
            name: {"bytes": index(entry["bytes"]), "sha256": entry["sha256"]}
            for name, entry in files
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def mismatch(folder: Path, only_weights: bool = False, checksums: bool = True) -> str | None:
    """The first difference between a folder and its manifest; None if all files are as they were written.

    Args:
        only_weights: compare only the weights; other files, which users may edit, must merely exist.
        checksums: compare contents, which reads the files; otherwise only sizes.
    """
    files = listed_files(folder)
    if files is None:
        return f"it has no {MANIFEST} that can be read"
    for name, entry in files.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if only_weights and not name.endswith(_WEIGHTS):
            continue
        size = path.stat().st_size
        if size != entry["bytes"]:
            return f"{name} has {size:,} bytes instead of {entry['bytes']:,}"
        try:
            damaged = checksums and checksum(path) != entry["sha256"]
        except OSError as error:
            return f"{name} cannot be read ({error.strerror or error})"
        if damaged:
            return f"{name} is damaged: its checksum differs"
    return None


def model_parts(folder: Path) -> Iterator[bytes]:
    """Names and contents of a folder's model files, for `digest`; of large files, the size and samples."""
    for path in sorted(folder.iterdir()):
        if not path.is_file() or not _MODEL_FILES.fullmatch(path.name):
            continue
        yield path.name.encode()
        size = path.stat().st_size
        with open(path, "rb") as file:
            if size <= _SAMPLES * _SAMPLE_BYTES:
                yield file.read()
                continue
            yield str(size).encode()
            for number in range(_SAMPLES):
                file.seek((size - _SAMPLE_BYTES) * number // (_SAMPLES - 1))
                yield file.read(_SAMPLE_BYTES)


def digest(parts: Iterable[bytes]) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of all parts."""
    digest_so_far = hashlib.sha256()
    for part in parts:
        digest_so_far.update(part)
    return digest_so_far.hexdigest()[:16]


def checksum(path: Path) -> str:
    """SHA-256 of a file's content."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while part := file.read(1 << 22):
            digest.update(part)
    return digest.hexdigest()
