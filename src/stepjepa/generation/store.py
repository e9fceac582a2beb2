"""The files of a command that can be killed at any moment, and resumes where it was when it is repeated.

    results     written at the end, each in one step
    record      what came of it; written last: with it the work is complete
    partial     a line for each batch as it is done; removed at the end

A line of the partial file counts only when it is complete. Its first line says what the answers depend on: the work is
resumed only with the same.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from stepjepa.errors import ConfigError, DataError, said
from stepjepa.generation import Generator, Reply, Request
from stepjepa.generation.options import OVERWRITE
from stepjepa.utils.files import json_bytes, locked, no_links, parse_object, read_json, write_whole
from stepjepa.utils.terminal import Bar
from stepjepa.version import __version__

Record = dict[str, Any]
_ADVICE = f"choose another output, or {OVERWRITE} to replace it"
_SHOWN = 40  # characters of a setting in messages
_BROKEN = (OSError, ValueError, KeyError, TypeError, AttributeError)  # what reading a file of others may raise


class Paths(NamedTuple):
    """The files of an output."""

    results: tuple[Path, ...]
    record: Path
    partial: Path


def json_line(record: object) -> bytes:
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
            f"{path}: cannot be written ({why}); what was written before is kept, and the same command resumes from it"
        ) from None


@contextlib.contextmanager
def reading_record(path: Path) -> Iterator[None]:
    """Turn what a damaged record of complete work lacks, or holds in another form, into one line.

    Raises:
        ConfigError: in place of the error that reading it raised.
    """
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        what = f"{type(error).__name__}: {said(error)[:100]}"
        raise ConfigError(f"{path}: the record is damaged ({what}); {_ADVICE}") from None


def replace(path: Path, parts: Iterable[bytes]) -> None:
    """Write a file atomically (`write_whole`).

    Raises:
        DataError: it could not be written; the old one is still there.
    """
    with saying_where(path):
        write_whole(path, parts)


class Output:
    """Keeps batches of answers in files.

    Args:
        identity, scoring: what the answers, and what else the results depend on; plain JSON values.
        overwrite: replace what is there.
        inputs: files that are read and must not be written.
        reader: identity and scoring of a record; a KeyError or TypeError for another file.
        renewable: names in the scoring that may differ from those of a complete record: the work is scored again.

    Attributes:
        complete: the record of work that was completed before, None otherwise.
        outdated: the record of the same work, complete with another scoring that is `renewable`; None otherwise.
        begun: whether a part of the same work is stored.

    Raises:
        ConfigError: files are there that may not be touched.
        DataError: files are there that cannot be read.
    """

    def __init__(
        self,
        paths: Paths,
        identity: Record,
        scoring: Record,
        overwrite: bool = False,
        inputs: Iterable[Path] = (),
        reader: Callable[[Record], tuple[Record, Record]] = lambda record: (record["identity"], record["scoring"]),
        renewable: Collection[str] = (),
    ):
        self.paths, self._overwrite = paths, overwrite
        self.identity, self.scoring = json.loads(json.dumps([identity, scoring]))
        self.complete: Record | None = None
        self.outdated: Record | None = None
        self._file: BinaryIO | None = None
        for source in inputs:
            for path in (*paths.results, paths.record, paths.partial):
                if source.exists() and path.exists() and path.samefile(source):
                    raise ConfigError(f"{path}: the command would write over its input; name another output")
        record: Record | None = None
        if paths.record.exists():
            try:
                record = read_json(paths.record)
                known, known_scoring = reader(record)
            except _BROKEN:
                raise ConfigError(f"{paths.record} exists and is no record of this; choose another output") from None
        header = self._header()
        self.begun = header == self.identity
        if overwrite:
            return
        if record is not None:
            differs = {name for name in renewable if known_scoring.get(name) != self.scoring.get(name)}
            kept = {name: value for name, value in self.scoring.items() if name not in differs}
            known_kept = {name: value for name, value in known_scoring.items() if name not in differs}
            _refuse_other(paths.record, known_kept, kept)
            _refuse_other(paths.record, known, self.identity)
            if differs:
                self.outdated = record
            else:
                self.complete = record
            return
        if header is not None:
            _refuse_other(paths.partial, header, self.identity)
        for path in paths.results:
            if not self.begun and path.exists():
                raise ConfigError(f"{path} exists and is not from unfinished work; {_ADVICE}")

    def _header(self) -> Record | None:
        """The identity in the first line of the partial file; None where there is no complete one, or it may go."""
        path = self.paths.partial
        try:
            with open(path, "rb") as file:
                line = file.readline()
            return dict(parse_object(line)["identity"]) if line.endswith(b"\n") else None
        except FileNotFoundError:
            return None
        except _BROKEN:
            if self._overwrite:
                return None
            raise DataError(f"{path}: cannot be read as unfinished work; remove it, or choose another output") from None

    @contextlib.contextmanager
    def opened(self, take: Callable[[Record], None]) -> Iterator[None]:
        """Lock the files, and give `take` each line that is stored. Nothing changes before the first new line is stored.

        `take` raises a KeyError, TypeError or ValueError for a line that it cannot use.

        Raises:
            ConfigError: another process is writing them.
            DataError: they cannot be read or written.
        """
        partial = self.paths.partial
        made_folder = not partial.parent.exists()
        with saying_where(partial):
            partial.parent.mkdir(parents=True, exist_ok=True)
        try:
            with locked(partial.with_name(f".{partial.name}.lock")) as alone:
                if not alone:
                    raise ConfigError(f"{partial}: another process is writing it; wait for it, or choose another file")
                made = not partial.exists()
                with saying_where(partial):
                    self._file = open(partial, "a+b", buffering=0, opener=no_links)  # noqa: SIM115
                try:
                    if self.begun:
                        self._resume(self._file, take)
                    yield
                finally:
                    self._file.close()
                    if made and not self.begun:
                        partial.unlink(missing_ok=True)
        finally:
            if made_folder and not self.begun:
                with contextlib.suppress(OSError):
                    partial.parent.rmdir()

    def _resume(self, file: BinaryIO, take: Callable[[Record], None]) -> None:
        """Read what is done; an incomplete last line is dropped."""
        file.seek(0)
        complete = 0
        with open(file.fileno(), "rb", closefd=False) as lines:
            for number, line in enumerate(lines, 1):
                if not line.endswith(b"\n") or not line.strip(b"\0\n"):  # space that a crash has left unwritten
                    break
                try:
                    if number > 1:
                        take(parse_object(line))
                except _BROKEN:
                    raise DataError(
                        f"{self.paths.partial} line {number}: broken, so the work cannot be resumed; remove the file to "
                        "start again"
                    ) from None
                complete += len(line)
        with saying_where(self.paths.partial):
            file.truncate(complete)

    def append(self, line: Record) -> None:
        """Store a batch, all or nothing. Raises DataError: it could not be written."""
        assert self._file is not None
        with saying_where(self.paths.partial):
            if not self.begun:  # in an order that never leaves old results next to new answers
                self._file.truncate(0)
                for path in (self.paths.record, *self.paths.results) if self._overwrite else ():
                    path.unlink(missing_ok=True)
                self._write(self._file, {"stepjepa": __version__, "identity": self.identity})
                self.begun = True
            self._write(self._file, line)

    @staticmethod
    def _write(file: BinaryIO, line: Record) -> None:
        """Append a line and wait until the disk has it; what fits in part is taken out again."""
        size = file.seek(0, os.SEEK_END)
        try:
            view = memoryview(json_line(line))
            while view:
                view = view[file.write(view) :]
            os.fsync(file.fileno())
        except OSError:
            with contextlib.suppress(OSError):
                file.truncate(size)
            raise

    def finish(self, results: Mapping[Path, Iterable[bytes]], record: Record) -> None:
        """Write the results, then the record, and remove the partial file.

        Raises:
            DataError: they could not be written; the same command tries again.
        """
        for path, parts in results.items():
            replace(path, parts)
        replace(self.paths.record, [json_bytes(record, indent=2), b"\n"])
        if self._file is not None:
            self._file.close()  # Windows removes no open file
        self.paths.partial.unlink(missing_ok=True)


def _refuse_other(path: Path, other: Record, mine: Record) -> None:
    for name in {**mine, **other}:
        if other.get(name) == mine.get(name):
            continue
        if name in ("model", "data"):
            what = "another model" if name == "model" else "other questions"
            raise ConfigError(f"{path} was made with {what}, or they have changed since; {_ADVICE}")
        values = [one.get(name) for one in (other, mine)]
        texts = ["none" if value is None else json.dumps(value, ensure_ascii=False) for value in values]
        theirs, ours = (text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..." for text in texts)
        raise ConfigError(f"{path} was made with {name} {theirs}, not {ours}; use the same options, {_ADVICE}")


@dataclass
class Replies:
    """What a generator has answered so far.

    Attributes:
        output: keeps every group of replies, None for a model in memory.
        replies: by the number of the request, in the order in which they came.
        seconds: spent on generating.
    """

    output: Output | None = None
    replies: dict[int, Reply] = field(default_factory=dict)
    seconds: float = 0.0

    def ask(
        self,
        generator: Generator,
        requests: Sequence[Request],
        what: str,
        bar: Bar,
        note: Callable[[], str] = str,
    ) -> None:
        """Let the generator answer what it has not answered yet. Each group of replies is stored as it comes.

        Args:
            what: the name of the task for the bar; `note` is what is printed next to it.

        Raises:
            ConfigError: the model cannot be asked.
            DataError: a reply cannot be stored.
        """
        done = sum(request.row in self.replies for request in requests)
        if requests:
            bar.begin(what, len(requests), done, note())
        if done == len(requests):
            return
        begin = time.perf_counter()
        for replies in generator.answer(requests, frozenset(self.replies)):
            rows = [list(vars(reply).values()) for reply in replies]
            self.add({"replies": rows, "seconds": round(time.perf_counter() - begin, 3)})
            bar.step(len(replies), note())
            begin = time.perf_counter()

    def add(self, line: Record) -> None:
        """Store and take a line."""
        if self.output is not None:
            self.output.append(line)
        self.take(line)

    def take(self, line: Record) -> None:
        """Take a stored line. Raises KeyError, TypeError, ValueError: it holds no replies."""
        self.replies.update((values[0], Reply(*values)) for values in line["replies"])
        self.seconds += float(line["seconds"])
