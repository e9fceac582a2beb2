"""Requests and replies, and the files that keep the replies of a command that can be killed at any moment.

    results     written at the end, each in one step
    record      what came of it; written last: with it the work is complete
    partial     a line for each batch as it is done; removed at the end

Repeated, the command resumes where it was. A line of the partial file counts only when it is complete. Its first line says
what the answers depend on: the work is resumed only with the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

from stepjepa.errors import ConfigError, DataError, said
from stepjepa.generation.options import OVERWRITE
from stepjepa.utils.files import digest, json_bytes, locked, no_links, parse_object, read_json, write_whole
from stepjepa.utils.terminal import Bar
from stepjepa.utils.text import one_line
from stepjepa.version import __version__

Record = dict[str, Any]
_ADVICE = f"choose another output, or {OVERWRITE} to replace it"
# Options that have left: in records of earlier versions nothing depends on them at these values.
_LEFT = {"greedy_first": False, "response_field": "response", "samples_per_question": 1}
_SHOWN = 40  # characters of a setting in messages
_BROKEN = (OSError, ValueError, KeyError, TypeError, AttributeError)  # what reading a file of others may raise


@dataclass(frozen=True)
class Request:
    """One chat to answer.

    Attributes:
        row: number of the question.
        messages: the chat up to where the model answers.
        temperature: 0 is greedy.
        seed: of the sampling, see `seed_of`.
        template_kwargs: what the chat template gets for this chat alone.
    """

    row: int
    messages: Sequence[Mapping[str, str]]
    temperature: float
    seed: int
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Reply:
    """What the model answered.

    Attributes:
        row: that of the request.
        text: the response; empty where the request was refused.
        stopped: True when the model ended by itself, False when it was cut off.
        prompt_tokens, new_tokens: counts, 0 where they are unknown.
        refused: why this one request cannot be answered (a prompt that is too long, a content filter).
        reasoning: thoughts that a server returns in a field of their own.
        drafts: see `Drafts`; None where nothing was drafted.
    """

    row: int
    text: str
    stopped: bool = True
    prompt_tokens: int = 0
    new_tokens: int = 0
    refused: str | None = None
    reasoning: str | None = None
    drafts: Sequence[int] | None = None


class Drafts(NamedTuple):
    """Of one answer: passes of the model over drafts, without the one over the prompt, and drafted tokens that were kept."""

    passes: int
    kept: int


def acceptance(answers: Iterable[Sequence[int] | None]) -> Record | None:
    """The `Drafts` of all answers, and the drafts kept per pass; None where nothing was drafted."""
    drafted = [one for one in answers if one is not None]
    if not drafted:
        return None
    passes, kept = map(sum, zip(*drafted, strict=True))
    return {"passes": passes, "kept": kept, "kept_per_pass": kept / max(passes, 1)}


def acceptance_text(drafts: Record) -> str:
    """What `acceptance` gives, in words."""
    return f"{drafts['kept_per_pass']:.2f} kept per pass of the model ({drafts['kept']} in {drafts['passes']})"


class Generator(Protocol):
    """Whatever answers requests."""

    def answer(self, requests: Sequence[Request], done: Collection[int]) -> Iterator[list[Reply]]:
        """Answer all requests but those of the rows in `done`, a group at a time and in any order.

        A group is stored as a unit. `done` is an argument of its own, so that a generator that forms batches forms the same
        ones when it resumes in the middle.
        """
        ...


def seed_of(seed: int, *parts: int) -> int:
    """A seed below 2**31 for (seed, row, attempt) or any other numbers, different for all others."""
    text = ":".join(map(str, (seed, *parts)))
    hashed = hashlib.sha256(text.encode()).digest()
    return int.from_bytes(hashed[:4], "big") >> 1


def mended(text: str) -> str:
    """A response without halves of characters, which no file could hold."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


@dataclass
class ReplyLog:
    """What a generator has answered so far.

    Attributes:
        output: keeps every group of replies, None for a model in memory.
        replies: by the number of the request, in the order in which they came.
        seconds: spent on generating.
    """

    output: Output | None = None
    replies: dict[int, Reply] = field(default_factory=dict)
    seconds: float = 0.0

    def ask(self, generator: Generator, requests: Sequence[Request], task: str, bar: Bar) -> None:
        """Let the generator answer what it has not answered yet. Each group of replies is stored as it comes.

        Args:
            task: its name on the bar.

        Raises:
            ConfigError: the model cannot be asked.
            DataError: a reply cannot be stored.
        """
        known = frozenset(self.replies)
        done = sum(request.row in known for request in requests)
        bar.begin(task, len(requests), done)
        begin = time.perf_counter()
        for replies in generator.answer(requests, known):
            seconds = time.perf_counter() - begin
            rows = [list(vars(reply).values()) for reply in replies]
            self.add({"replies": rows, "seconds": round(seconds, 3)})
            bar.step(len(replies))
            begin = time.perf_counter()

    def add(self, line: Record) -> None:
        """Store and take a line."""
        if self.output is not None:
            self.output.append(line)
        self.take(line)

    def take(self, line: Record) -> None:
        """Take a stored line. Raises KeyError, TypeError, ValueError: it holds no replies."""
        if "losses" in line:  # the likelihoods that version 0.3 kept here are computed again
            return
        for values in line["replies"]:
            self.replies[values[0]] = Reply(*values)
        self.seconds += float(line["seconds"])


class Paths(NamedTuple):
    """The files of an output."""

    results: tuple[Path, ...]
    record: Path
    partial: Path


def json_line(record: object) -> bytes:
    """One line of JSONL; NaN and infinity become null."""
    return json_bytes(record) + b"\n"


def digest_of(values: Iterable[Any]) -> str:
    """Changes with any of the values (JSON, or written as text), or their order."""
    return digest(json.dumps(value, default=str).encode() for value in values)


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


class Output:
    """Keeps batches of answers in files.

    Args:
        identity: what the answers depend on; plain JSON values.
        overwrite: replace what is there.
        inputs: files that are read and must not be written.
        identity_of: the identity in a record of complete work; a KeyError or TypeError for another file.

    Attributes:
        complete: the record of the same work that was completed before, None otherwise.
        begun: whether a part of the same work is stored.

    Raises:
        ConfigError: files are there that may not be touched.
        DataError: files are there that cannot be read.
    """

    def __init__(
        self,
        paths: Paths,
        identity: Record,
        *,
        overwrite: bool = False,
        inputs: Iterable[Path] = (),
        identity_of: Callable[[Record], Record] = lambda record: record["identity"],
    ):
        self.paths, self._overwrite = paths, overwrite
        self.identity = json.loads(json.dumps(identity))
        self.complete: Record | None = None
        self._file: BinaryIO | None = None
        for source in inputs:
            for path in (*paths.results, paths.record, paths.partial):
                if path.exists() and source.exists() and path.samefile(source):
                    raise ConfigError(f"{path}: the command would write over its input; name another output")
        record = known = None
        if paths.record.exists():
            try:
                record = read_json(paths.record)
                known = _compared(identity_of(record))
            except _BROKEN:
                raise ConfigError(f"{paths.record} exists and is no record of this; choose another output") from None
        header = self._header()
        self.begun = header == _compared(self.identity)
        if overwrite:
            return
        if known is not None:
            refuse_other(paths.record, known, self.identity)
            self.complete = record
        elif header is not None:
            refuse_other(paths.partial, header, self.identity)
        else:
            for path in paths.results:
                if path.exists():
                    raise ConfigError(f"{path} exists and is not from unfinished work; {_ADVICE}")

    def _header(self) -> Record | None:
        """The identity in the first line of the partial file; None where there is no complete one, or it may go."""
        path = self.paths.partial
        try:
            with open(path, "rb") as file:
                line = file.readline()
            return _compared(parse_object(line)["identity"]) if line.endswith(b"\n") else None
        except FileNotFoundError:
            return None
        except _BROKEN:
            if self._overwrite:
                return None
            raise DataError(f"{path}: cannot be read as unfinished work; remove it, or choose another output") from None

    @contextlib.contextmanager
    def opened(self, take: Callable[[Record], None]) -> Iterator[None]:
        """Lock the files, and give `take` each line that is stored. No file changes before the first new line is stored.

        `take` raises a KeyError, TypeError or ValueError for a line that it cannot use.

        Raises:
            ConfigError: another process is writing them.
            DataError: they cannot be read or written.
        """
        partial = self.paths.partial
        with contextlib.ExitStack() as stack:
            if not partial.parent.exists():
                with saying_where(partial):
                    partial.parent.mkdir(parents=True)
                stack.callback(_remove_if_empty, partial.parent)
            alone = stack.enter_context(locked(partial.with_name(f".{partial.name}.lock")))
            if not alone:
                raise ConfigError(f"{partial}: another process is writing it; wait for it, or choose another file")
            with saying_where(partial):
                self._file = open(partial, "a+b", buffering=0, opener=no_links)  # noqa: SIM115
            try:
                if self.begun:
                    self._resume(self._file, take)
                yield
            finally:
                self._file.close()
                if partial.exists() and not partial.stat().st_size:
                    partial.unlink()

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
                if self._overwrite:
                    for path in (self.paths.record, *self.paths.results):
                        path.unlink(missing_ok=True)
                self._write(self._file, {"stepjepa": __version__, "identity": self.identity})
                self.begun = True
            self._write(self._file, line)

    @staticmethod
    def _write(file: BinaryIO, line: Record) -> None:
        """Append a line and wait until the disk has it. What was written in part is dropped when the work is resumed."""
        rest = memoryview(json_line(line))
        while rest:
            rest = rest[file.write(rest) :]
        os.fsync(file.fileno())

    def finish(self, results: Mapping[Path, Iterable[bytes]], record: Record) -> None:
        """Write the results, then the record, each atomically, and remove the partial file.

        Raises:
            DataError: they could not be written; the same command tries again.
        """
        contents = {**results, self.paths.record: [json_bytes(record, indent=2), b"\n"]}
        for path, parts in contents.items():
            with saying_where(path):
                write_whole(path, parts)
        if self._file is not None:
            self._file.close()  # Windows removes no open file
        self.paths.partial.unlink(missing_ok=True)


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def _compared(identity: Record) -> Record:
    """What is compared of an identity: not what is None, which an option that has left, or is new, may be."""
    return {name: value for name, value in identity.items() if value is not None and _LEFT.get(name) != value}


def refuse_other(path: Path, known: Record, own: Record) -> None:
    """Refuse work in `path` that was done with other settings than one's own; raises ConfigError."""
    for name in {**own, **known}:
        theirs, ours = known.get(name), own.get(name)
        if theirs == ours:
            continue
        if name in ("model", "data"):
            what = "another model" if name == "model" else "other questions"
            raise ConfigError(f"{path} was made with {what}, or they have changed since; {_ADVICE}")
        raise ConfigError(f"{path} was made with {name} {_setting(theirs)}, not {_setting(ours)}; {_ADVICE}")


def _setting(value: object) -> str:
    return "none" if value is None else one_line(json.dumps(value, ensure_ascii=False), _SHOWN)
