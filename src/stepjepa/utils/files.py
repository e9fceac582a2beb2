"""Files: atomic writes, lines of JSON that may be damaged, and manifests.

An atomic write gives a reader the old file or the complete new one, also after a crash or a full disk. Lines are read as
bytes, so that one bad line neither stops the reading nor shifts the numbers of later lines, and never beyond a limit, so
that a file without line ends cannot fill the memory. ``manifest.json`` is a folder's list of its files, by which a cut,
damaged or missing one is noticed. It is written last, after every file that it lists is on the disk: a folder that has one
is complete.
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
from typing import Any, BinaryIO

from stepjepa.errors import ConfigError, DataError, RowError

LOCK = ".lock"  # the name of the lock file in a folder that one process at a time may write
MANIFEST = "manifest.json"
_WEIGHTS = (".safetensors", ".bin")
_MODEL_FILES = re.compile(
    r".*\.(?:safetensors|model|jinja|py|index\.json)|(?:pytorch|adapter)_model.*\.bin|(?:merges|vocab)\.txt"
    r"|(?:(?:\w+_)?config|tokenizer\w*|special_tokens_map|added_tokens|vocab|chat_template)\.json"
)
_SAMPLES, _SAMPLE_BYTES = 64, 2**15  # of a large file of a model
MAX_LINE_BYTES = 64 * 2**20  # a longer line is refused before all of it is read
_SKIPPED_AT_ONCE = 2**20
_MOST_NESTED = 100  # lists and objects inside each other in JSON
_MOST_DIGITS = 300  # of a whole number in JSON; with more it is no float


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary path in the same folder; when the block ends, that file is synced and moved to `path`.

    What a killed process left under the temporary name is removed first, a planted link included: the file is new and never
    opened through one. It gets the mode of any new file, whatever wrote it. A device or a pipe is written to directly.

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
    with suppress(OSError) if path.is_dir() else nullcontext():
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def remove_tree(path: Path) -> None:
    """Remove a file, or a folder with all that is in it, and of a symbolic link the link alone; nothing where nothing is.

    Raises:
        OSError: something could not be removed.
    """
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def share(folder: Path) -> None:
    """Let whoever may read a folder read the files in it; safetensors writes them for their owner alone."""
    readers = folder.stat().st_mode & 0o444
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(path.stat().st_mode | readers)


def write_whole(path: str | os.PathLike[str], pieces: Iterable[bytes]) -> None:
    """Write a file atomically.

    Raises:
        OSError: it could not be written; what was at `path` is unchanged.
    """
    with replacing(path) as temporary, open(temporary, "wb") as file:
        file.writelines(pieces)


def write_json(path: str | os.PathLike[str], record: object, indent: int | None = 2) -> None:
    """Write JSON as `json_bytes` gives it, atomically (`write_whole`)."""
    write_whole(path, [json_bytes(record, indent), b"\n"])


def json_bytes(record: object, indent: int | None = None) -> bytes:
    """`record` as JSON in UTF-8; NaN and infinity, which JSON does not have, become null, a lone surrogate an escape."""
    try:
        text = json.dumps(record, indent=indent, ensure_ascii=False, allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(record), indent=indent, ensure_ascii=False, allow_nan=False)
    try:
        return text.encode()
    except UnicodeEncodeError:
        return json.dumps(_finite(record), indent=indent, allow_nan=False).encode()


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(part) for key, part in value.items()}
    return [_finite(part) for part in value] if isinstance(value, (list, tuple)) else value


def read_json(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The object in a file of JSON.

    Raises:
        OSError: it cannot be read.
        ValueError: as `parse_object`.
    """
    return parse_object(Path(path).read_bytes())


def read_object(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The object in a file of JSON, empty where there is none that can be read."""
    try:
        return read_json(path)
    except (OSError, ValueError):
        return {}


def parse_json(text: str | bytes) -> object:
    """The value of a JSON text.

    Raises:
        ValueError: it is none, is nested too deeply, or has a whole number beyond all floats.
    """
    text = text if isinstance(text, str) else text.decode("utf-8-sig")
    try:
        value = json.loads(text, parse_int=_whole_number)
        # What the decoder still reads, code that walks through it may not. Few texts have so many brackets.
        if text.count("[") + text.count("{") > _MOST_NESTED and _depth(value) > _MOST_NESTED:
            raise RecursionError
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return value


def _depth(value: object) -> int:
    """How deeply lists and objects are nested in each other."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(_depth, inner), default=0)


def _whole_number(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"a number of {len(digits):,} digits")
    return int(digits)


def parse_object(text: str | bytes) -> dict[str, Any]:
    """The object of a JSON text; a ValueError where it is none."""
    value = parse_json(text)
    if not isinstance(value, dict):
        raise ValueError("no JSON object")
    return value


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
        identity = None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            except OSError:
                pass
            with suppress(OSError):
                identity = path.stat()
            if identity is None or not os.path.samestat(identity, os.fstat(file.fileno())):
                continue  # its last holder has removed it meanwhile
            try:
                yield True
            finally:
                with suppress(OSError):
                    path.unlink()
            return


def check_writable(folder: Path, option: str = "--output_dir") -> None:
    """Find out whether files can be written to a folder that exists or will be made, and leave nothing there.

    Raises:
        ConfigError: they cannot.
    """
    place = next(one for one in (folder.absolute(), *folder.absolute().parents) if one.exists())
    if not place.is_dir():
        raise ConfigError(f"{option} {folder}: {place} is a file")
    try:
        tempfile.TemporaryDirectory(prefix=".stepjepa-", dir=place).cleanup()
    except OSError as error:
        raise ConfigError(f"{option} {folder}: cannot be written ({error.strerror or error})") from None


# Lines of JSON


@contextmanager
def unchanged(path: str | os.PathLike[str]) -> Iterator[None]:
    """Within this context a file must stay as it is; what is being written looks broken.

    Raises:
        DataError: it was written to, replaced or removed meanwhile.
        OSError: there is no such file at the start.
    """
    before = os.stat(path)
    broken: DataError | None = None
    try:
        yield
    except DataError as error:
        broken = error
    try:
        now = os.stat(path)
    except FileNotFoundError:
        raise DataError(f"{path}: the file was removed while it was read; give a file that stays") from None
    if (now.st_ino, now.st_size, now.st_mtime_ns) != (before.st_ino, before.st_size, before.st_mtime_ns):
        grown = now.st_size != before.st_size
        size = f" ({before.st_size:,} bytes before, {now.st_size:,} now)" if grown else ""
        raise DataError(f"{path}: the file changed while it was read{size}; start again when nothing writes to it")
    if broken is not None:
        raise broken


def read_lines(file: BinaryIO, limit: int = MAX_LINE_BYTES) -> Iterator[bytes]:
    """The lines of a file from its position on, with their line ends.

    Of a line with more than `limit` bytes the first ``limit + 1`` come; the rest is skipped when the next line is asked for.
    """
    while raw := file.readline(limit + 1):
        yield raw
        if len(raw) > limit and not raw.endswith(b"\n"):
            while (rest := file.readline(_SKIPPED_AT_ONCE)) and not rest.endswith(b"\n"):
                pass


def line_text(raw: bytes, limit: int = MAX_LINE_BYTES) -> str:
    """The text of a line as `read_lines` gives it, without surrounding white space and byte-order mark.

    Raises:
        RowError: ``line_too_long``, ``not_utf8``, or ``truncated_line`` where a file ends inside a character.
    """
    if len(raw) > limit and not raw.endswith(b"\n"):
        size = f"{limit >> 20} MiB" if limit >= 2**20 else f"{limit} bytes"
        raise RowError("line_too_long", f"the line has more than {size}; one row a line is expected")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.reason == "unexpected end of data" and error.end == len(raw):
            raise _cut_off("inside a character") from None
        raise RowError("not_utf8", f"not UTF-8 text ({error.reason}); save the file as UTF-8") from None
    return text.removeprefix("\ufeff").strip()


def line_value(text: str, raw: bytes) -> object:
    """The JSON value that a line holds; `text` is `line_text` of `raw`.

    Raises:
        RowError: ``broken_json``, or ``truncated_line`` where the file ends in the middle of the object.
    """
    try:
        return parse_json(text)
    except json.JSONDecodeError as error:
        if not raw.endswith(b"\n") and text[:1] == "{" and text[-1:] != "}":
            raise _cut_off(f"at character {len(text)} of it") from None
        why = f"{error.msg.removesuffix(' at')} at character {error.pos + 1}"
    except ValueError as error:
        why = str(error)
    raise RowError("broken_json", f"broken JSON ({why}); one JSON object per line is expected") from None


def _cut_off(where: str) -> RowError:
    return RowError(
        "truncated_line",
        f"the file ends in the middle of this line ({where}): it is cut off; copy it again, or remove the line",
    )


# Manifests


def write_manifest(folder: Path, names: Iterable[str] | None = None) -> None:
    """See files onto the disk, then write their sizes and checksums to `MANIFEST`.

    Args:
        names: which files of the folder; None for every file in it and in folders inside it.

    Raises:
        OSError: a file cannot be read or written.
    """
    if names is None:
        names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]

    def entry(name: str) -> dict[str, int | str]:
        sync(folder / name)
        return {"bytes": (folder / name).stat().st_size, "sha256": checksum(folder / name)}

    listed = sorted(set(names) - {MANIFEST})
    with ThreadPoolExecutor(4) as pool:  # weights and optimizer at a time: neither waits for Python
        files = dict(zip(listed, pool.map(entry, listed), strict=True))
    for parent in {(folder / name).parent for name in files}:
        sync(parent)
    write_json(folder / MANIFEST, {"files": files})


def listed_files(folder: Path) -> dict[str, dict[str, int | str]] | None:
    """What a folder's manifest lists, by name; None where there is no manifest that can be read."""
    try:
        files = read_json(folder / MANIFEST)["files"].items()
        if any(Path(name).is_absolute() or ".." in Path(name).parts for name, _ in files):
            return None
        return {name: {"bytes": index(one["bytes"]), "sha256": one["sha256"]} for name, one in files}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def mismatch(folder: Path, only_weights: bool = False, checksums: bool = True) -> str | None:
    """What is wrong with a folder by its manifest; None where all files are as they were written.

    Args:
        only_weights: compare the weights alone; of the other files, which users may edit, only that they are there.
        checksums: compare contents too, which reads the files; else sizes alone.
    """
    files = listed_files(folder)
    if files is None:
        damaged = (folder / MANIFEST).exists()
        return f"{MANIFEST} cannot be read" if damaged else f"it has no {MANIFEST}"
    for name in files:
        if not (folder / name).is_file():
            return f"{name} is missing"
    compared = {name: entry for name, entry in files.items() if not only_weights or name.endswith(_WEIGHTS)}
    for name, entry in compared.items():
        size = (folder / name).stat().st_size
        if size != entry["bytes"]:
            return f"{name} has {size:,} bytes instead of {entry['bytes']:,}"
    for name, entry in compared.items() if checksums else ():
        try:
            if checksum(folder / name) != entry["sha256"]:
                return f"{name} is damaged: its checksum differs"
        except OSError as error:
            return f"{name} cannot be read ({error.strerror or error})"
    return None


def model_parts(folder: Path) -> Iterator[bytes]:
    """Names and contents of the files of a model in a folder, for `digest`; of large ones size and samples."""
    for path in (one for one in sorted(folder.iterdir()) if one.is_file() and _MODEL_FILES.fullmatch(one.name)):
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
    """16 digits that differ for another content: of SHA-256."""
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
