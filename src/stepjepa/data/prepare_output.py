"""Files that appear whole or not at all, and what is needed to go on after a kill.

Every file is written as ``.NAME.partial`` beside its place. Now and then all of them are brought to the disk and their sizes
noted in a journal, together with how far the source is read and what was counted; to go on means to cut them back to those
sizes. At the end the journal says that all are complete, each is renamed to its place, and the report comes last. A kill
in between leaves files that are whole, and a journal with which ``resume`` renames the others.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from stepjepa.data.prepare_options import PrepareOptions
from stepjepa.data.prepare_report import PrepareReport
from stepjepa.errors import ConfigError, DataError
from stepjepa.utils.files import no_links, read_json, sync, write_json

CHECKPOINT_SECONDS = 2.0
# Options that may differ between an interrupted run and the one that goes on with it.
_FREE = ("num_proc", "overwrite", "resume")


# Counted up where the same options come to other rows or another report: what another version began is begun anew.
_RULES = 2


class WriteError(DataError):
    """The output cannot be written; what was written until then can be gone on with."""


class Outputs:
    """The files of one run.

    Args:
        identity: what the source must be for a run to be gone on with.

    Attributes:
        train: one file, or the shards.
        valid: None where no rows go there.
        report: the report's place.
        targets: `train` and `valid`.
        rows: how many were written to each of `targets`.
        saved: the journal of the interrupted run that is gone on with.
        finished: the report of a run that had nothing left to prepare.
    """

    def __init__(self, options: PrepareOptions, identity: Mapping[str, Any]):
        name = Path(os.path.expanduser(options.output_file or ""))
        if name.is_symlink():  # write where it leads; a rename would replace the link
            name = Path(os.path.realpath(name))
        shards = [f"-{index:05d}-of-{options.shards:05d}" for index in range(options.shards)]
        self.train = [name.with_name(f"{name.stem}{shard}{name.suffix}") for shard in shards] if shards[1:] else [name]
        self.valid = name.with_name(f"{name.stem}.valid{name.suffix}") if options.valid_ratio else None
        self.report = name.with_name(f"{name.stem}.report.json")
        self.targets = [*self.train, *([self.valid] if self.valid else [])]
        self.saved: dict[str, Any] | None = None
        self.finished: PrepareReport | None = None
        settings = {key: value for key, value in vars(options).items() if key not in _FREE}
        self._job = {"rules": _RULES, "input": dict(identity), "options": settings}
        self._overwrite, self._resume = options.overwrite, options.resume
        self._journal = name.with_name(f".{name.name}.progress.json")
        self._partials = [target.with_name(f".{target.name}.partial") for target in self.targets]
        self._lock = name.with_name(f".{name.name}.lock")
        self._locked: int | None = None
        self._files: list[BinaryIO] = []
        self.rows = [0] * len(self.targets)
        self._sizes = [0] * len(self.targets)
        self._last = time.monotonic()

    def begin(self, source: Path | None) -> None:
        """Look at what is there and open the files; sets `saved` or `finished` where an earlier run is gone on with.

        Raises:
            ConfigError: files that must not be replaced.
            DataError: they cannot be written, or another run is writing them.
        """
        with self._errors(self.targets[0].parent):
            self.targets[0].parent.mkdir(parents=True, exist_ok=True)
        self._refuse_folders_and_source(source)
        with self._errors(self._lock):
            self._locked = _lock(self._lock)
        try:
            self._look()
            if self.finished is None:
                self._refuse_existing()
                self._open()
        except BaseException:
            self._close()
            raise
        if self.finished is not None:
            self._close()

    def write(self, index: int, line: bytes) -> None:
        """Append a row to file `index` of `targets`."""
        with self._errors(self._partials[index]):
            self._files[index].write(line)
        self.rows[index] += 1
        self._sizes[index] += len(line)

    def checkpoint(self, progress: Mapping[str, Any]) -> None:
        """Note how far the run is."""
        with self._errors(self._journal):
            self._to_disk()
            self._write_journal({**progress, "done": False})
        self._last = time.monotonic()

    def checkpoint_due(self) -> bool:
        """Whether `CHECKPOINT_SECONDS` have passed since the last one."""
        return time.monotonic() - self._last >= CHECKPOINT_SECONDS

    def commit(self, report: PrepareReport) -> None:
        """Put every file in its place, the report last."""
        record = {"report": report.to_dict(), "sizes": self._sizes, "done": True}
        with self._errors(self.targets[0]):
            self._to_disk()
            self._write_journal(record)
            for file in self._files:
                file.close()
        self._finish(record)
        self._close()

    def abort(self, keep: bool) -> None:
        """Close the files. With `keep`, a run that has a journal can be gone on with; else nothing of it stays."""
        self._close()
        with contextlib.suppress(OSError):
            if not (keep and self._journal.exists()):
                for path in (self._journal, *self._partials):
                    path.unlink(missing_ok=True)

    def partial_lines(self) -> Iterator[bytes]:
        """The rows that an interrupted run had written."""
        for path, size in zip(self._partials, self._sizes, strict=True):
            with open(path, "rb") as file:
                while file.tell() < size:
                    yield file.readline()

    def _refuse_folders_and_source(self, source: Path | None) -> None:
        for path in (*self.targets, self.report):
            if path.is_dir():
                raise ConfigError(f"output_file: {path} is a folder; give a file's name")
            if source is not None and os.path.realpath(path) == os.path.realpath(source):
                raise ConfigError(f"output_file: {path} is the file that is read; write to another one")

    def _refuse_existing(self) -> None:
        existing = [path for path in (*self.targets, self.report) if path.exists()]
        if existing and not self._overwrite:
            raise ConfigError(
                f"{existing[0]} exists already; --overwrite replaces it once the new one is complete, and --resume goes on "
                "with an interrupted run of the same options"
            )

    def _look(self) -> None:
        """What an earlier run left, where it is to be gone on with."""
        if not self._resume:
            return
        journal = _read_json(self._journal)
        if journal is None:
            record = _read_json(self.report)
            if record is not None and record.get("job") == self._job and all(path.is_file() for path in self.targets):
                self.finished = PrepareReport.from_dict(record)
                self.finished.already_done = True
        elif journal.get("job") != self._job:
            raise ConfigError(
                f"resume: the interrupted run of {self.targets[0]} had other options, another source or another "
                "version of this library; give the same ones, or start anew without --resume"
            )
        elif journal.get("done"):
            self.finished = self._finish(journal)
        else:
            self._overwrite = bool(journal["overwrite"])
            sizes = [path.stat().st_size if path.is_file() else -1 for path in self._partials]
            if all(there >= noted for there, noted in zip(sizes, journal["sizes"], strict=True)):  # else a part is lost
                self.saved, self._sizes, self.rows = journal, list(journal["sizes"]), list(journal["rows"])

    def _open(self) -> None:
        with self._errors(self._partials[0]):
            if self.saved is None:
                # The journal goes before a file that it speaks of is cut, and files of other shards with it.
                old = _read_json(self._journal) or {}
                self._journal.unlink(missing_ok=True)
                for name in old.get("partials", []):
                    self._journal.with_name(Path(name).name).unlink(missing_ok=True)
            for path, size in zip(self._partials, self._sizes, strict=True):
                file = no_links(path, os.O_RDWR | os.O_CREAT)
                self._files.append(os.fdopen(file, "wb", buffering=2**20))
                self._files[-1].truncate(size)
                self._files[-1].seek(size)

    def _to_disk(self) -> None:
        for file in self._files:
            file.flush()
            os.fsync(file.fileno())

    def _write_journal(self, record: Mapping[str, Any]) -> None:
        state = {"job": self._job, "overwrite": self._overwrite, "sizes": self._sizes, "rows": self.rows}
        write_json(self._journal, {**state, "partials": [path.name for path in self._partials], **record}, indent=None)

    def _finish(self, journal: Mapping[str, Any]) -> PrepareReport:
        """Rename what is complete and write the report."""
        report = PrepareReport.from_dict(journal["report"])
        with self._errors(self.report):
            for partial, target, size in zip(self._partials, self.targets, journal["sizes"], strict=True):
                if partial.is_file() and partial.stat().st_size == size:
                    os.replace(partial, target)
                elif not (target.is_file() and target.stat().st_size == size):
                    raise DataError(f"{target}: what the interrupted run wrote is gone; start anew without --resume")
            write_json(self.report, {**report.to_dict(), "job": self._job})
            sync(self.report.parent)
            self._journal.unlink(missing_ok=True)
        return report

    def _close(self) -> None:
        for file in self._files:
            with contextlib.suppress(OSError):
                file.close()
        self._files = []
        if self._locked is not None:
            try:
                with contextlib.suppress(OSError):
                    self._lock.unlink()  # while it is held: who opened it before sees that it is no longer there
            finally:
                os.close(self._locked)
                self._locked = None

    @contextlib.contextmanager
    def _errors(self, path: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            kept = "; what is done stays beside it, and --resume goes on from there" if self._journal.exists() else ""
            raise WriteError(f"{path}: cannot be written ({error.strerror or error}){kept}") from None


def _lock(path: Path) -> int | None:
    """The descriptor of a file that one process at a time can hold; None where the system knows no such thing."""
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    file = no_links(path, os.O_RDWR | os.O_CREAT)
    busy = False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        busy = not os.path.samestat(os.fstat(file), os.stat(path))
    except (BlockingIOError, FileNotFoundError):  # held, or just given back
        busy = True
    except OSError:  # a file system without locks
        pass
    if busy:
        os.close(file)
        raise DataError(f"{path}: another run is writing these files; wait for it, or give another output_file")
    return file


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        record = read_json(path)
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None
