"""Requests and replies, and the files that store the replies of a command that may be killed at any moment.

    results     written at the end, each atomically
    record      settings and summary; written last, so its presence means that the work is complete
    partial     a line for each finished batch; removed at the end

When the command is repeated, it resumes. Only complete lines of the partial file count. The first line contains the identity
of the work, the settings that the answers depend on: only a command with the same identity resumes the work.
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
from stepjepa.utils.files import (
    Record,
    digest,
    json_bytes,
    json_line,
    locked,
    no_links,
    parse_object,
    read_json,
    write_whole,
)
from stepjepa.utils.terminal import Bar
from stepjepa.utils.text import one_line
from stepjepa.version import __version__

_ADVICE = f"choose another output, or {OVERWRITE} to replace it"
# Options of earlier versions. At these values they had no effect on the answers, so a record may contain them.
_REMOVED = {"greedy_first": False, "response_field": "response", "samples_per_question": 1}
# Longest value of a setting in messages, in characters.
_SHOWN = 40
# Errors from reading a file that this library may not have written.
_BROKEN = (OSError, ValueError, KeyError, TypeError, AttributeError)


@dataclass(frozen=True)
class Request:
    """One chat to answer.

    Attributes:
        row: number of the question.
        messages: the chat before the answer.
        temperature: 0 is greedy.
        seed: seed of the sampling, see `seed_of`.
        template_kwargs: arguments of the chat template for this chat alone.
    """

    row: int
    messages: Sequence[Mapping[str, str]]
    temperature: float
    seed: int
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Reply:
    """The model's answer to a request.

    Attributes:
        row: number of the question, from the request.
        text: the response; empty if the request was refused.
        stopped: True if the model ended the response itself, False if it was cut off.
        prompt_tokens, new_tokens: number of tokens; 0 if unknown.
        refused: why this request cannot be answered (a prompt that is too long, a content filter); else None.
        reasoning: thinking that a server returns in a separate field.
        drafts: see `Drafts`; None if nothing was drafted.
    """

    # A reply is stored as the list of its values, so new fields must be added at the end.

    row: int
    text: str
    stopped: bool = True
    prompt_tokens: int = 0
    new_tokens: int = 0
    refused: str | None = None
    reasoning: str | None = None
    drafts: Sequence[int] | None = None


class Drafts(NamedTuple):
    """Counts for one answer: the model's passes over drafts (without the pass over the prompt), and the drafts it kept."""

    passes: int
    kept: int


def acceptance(answers: Iterable[Sequence[int] | None]) -> Record | None:
    """The sum of the answers' `Drafts`, and the drafts kept per pass; None if nothing was drafted."""
    drafted = [drafts for drafts in answers if drafts is not None]
    if not drafted:
        return None
    passes, kept = map(sum, zip(*drafted, strict=True))
    return {"passes": passes, "kept": kept, "kept_per_pass": kept / max(passes, 1)}


def acceptance_text(drafts: Record) -> str:
    """The result of `acceptance` in words."""
    return f"{drafts['kept_per_pass']:.2f} kept per pass of the model ({drafts['kept']} in {drafts['passes']})"


class Generator(Protocol):
    """The interface of everything that answers requests."""

    def answer(self, requests: Sequence[Request], done: Collection[int]) -> Iterator[list[Reply]]:
        """Answer all requests except those whose rows are in `done`, a group at a time and in any order.

        A group is stored as a unit. Requests in `done` are passed too, so that a generator forms the same batches when it
        resumes.
        """
        ...


def seed_of(seed: int, *parts: int) -> int:
    """A seed below 2**31 for (seed, row, attempt) or other numbers; different numbers almost always give different seeds."""
    # A hash, because sums such as seed + row would give one row's seed to another row of the next run.
    text = ":".join(map(str, (seed, *parts)))
    hashed = hashlib.sha256(text.encode()).digest()
    return int.from_bytes(hashed[:4], "big") >> 1


def mended(text: str) -> str:
    """A response without lone surrogates (half characters), which UTF-8 cannot encode."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


@dataclass
class ReplyLog:
    """The replies of a generator so far.

    Attributes:
        output: stores every group of replies; None if nothing is stored.
        replies: number of a request -> its reply, in the order of arrival.
        seconds: time spent on generation.
    """

    output: Output | None = None
    replies: dict[int, Reply] = field(default_factory=dict)
    seconds: float = 0.0

    def ask(self, generator: Generator, requests: Sequence[Request], task: str, bar: Bar) -> None:
        """Let the generator answer the open requests; each group of replies is stored when it arrives.

        Args:
            task: name of the work on the progress bar.

        Raises:
            ConfigError: the model cannot be used.
            DataError: a reply cannot be stored.
        """
        done = frozenset(self.replies)
        bar.begin(task, len(requests), sum(request.row in done for request in requests))
        # The clock stops while a group is stored, so `seconds` is only the time of generation.
        begin = time.perf_counter()
        for replies in generator.answer(requests, done):
            seconds = time.perf_counter() - begin
            rows = [list(vars(reply).values()) for reply in replies]
            line = {"replies": rows, "seconds": round(seconds, 3)}
            if self.output is not None:
                self.output.append(line)
            self.take(line)
            bar.step(len(replies))
            begin = time.perf_counter()

    def take(self, line: Record) -> None:
        """Add the replies of a stored line. Raises KeyError, TypeError, ValueError: the line has no replies."""
        for values in line["replies"]:
            self.replies[values[0]] = Reply(*values)
        self.seconds += float(line["seconds"])


class Paths(NamedTuple):
    """The files of an output."""

    results: tuple[Path, ...]
    record: Path
    partial: Path


def digest_of(values: Iterable[Any]) -> str:
    """A digest that changes with any of the values (as JSON, or as text), and with their order."""
    return digest(json.dumps(value, default=str).encode() for value in values)


@contextlib.contextmanager
def reading_record(path: Path) -> Iterator[None]:
    """Turn errors from a damaged record of complete work into one message.

    Raises:
        ConfigError: the record lacks a value, or has a different form.
    """
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        what = f"{type(error).__name__}: {said(error)[:100]}"
        raise ConfigError(f"{path}: the record is damaged ({what}); {_ADVICE}") from None


@contextlib.contextmanager
def saying_where(path: Path) -> Iterator[None]:
    """Turn an error of the operating system (a full disk, a missing permission) into one message.

    Raises:
        DataError: instead of an OSError.
    """
    try:
        yield
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise DataError(
            f"{path}: cannot be written ({why}); completed work is kept, and the same command resumes from it"
        ) from None


class Output:
    """Stores batches of answers in files.

    Args:
        identity: the settings and data that the answers depend on, as plain JSON values.
        overwrite: whether to replace existing files.
        inputs: input files, which must not be overwritten.

    Attributes:
        complete: the record, if the same work was completed before; else None.
        started: whether part of the same work is stored.

    Raises:
        ConfigError: an existing file must not be overwritten.
        DataError: an existing file cannot be read.
    """

    def __init__(
        self,
        paths: Paths,
        identity: Record,
        *,
        overwrite: bool = False,
        inputs: Iterable[Path] = (),
    ):
        self.paths, self._overwrite = paths, overwrite
        # Converted to JSON and back, because the identity is compared with values that were read from a file.
        self.identity = json.loads(json.dumps(identity))
        self.complete: Record | None = None
        self._file: BinaryIO | None = None
        # Compared as files, not as names: links may lead an output to an input.
        for source in inputs:
            for path in (*paths.results, paths.record, paths.partial):
                if path.exists() and source.exists() and path.samefile(source):
                    raise ConfigError(
                        f"{path}: the command would overwrite its input; choose another output"
                    )
        # A file of another kind under this name is never replaced, not even with `overwrite`.
        record = known = None
        if paths.record.exists():
            try:
                record = read_json(paths.record)
                known = _compared(_identity_in(record))
            except _BROKEN:
                raise ConfigError(
                    f"{paths.record} exists and is not a record of this command; choose another output"
                ) from None
        header = self._header()
        self.started = header == _compared(self.identity)
        if overwrite:
            return
        # The files hold complete work, unfinished work, or neither; existing work must have the identity of this command.
        if known is not None:
            refuse_other(paths.record, known, self.identity)
            self.complete = record
        elif header is not None:
            refuse_other(paths.partial, header, self.identity)
        else:
            for path in paths.results:
                if path.exists():
                    raise ConfigError(
                        f"{path} exists and does not belong to unfinished work; {_ADVICE}"
                    )

    def _header(self) -> Record | None:
        """The identity in the first line of the partial file; None if there is no complete first line, or if it is broken
        and `overwrite` is set."""
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
            raise DataError(
                f"{path}: cannot be read as unfinished work; remove it, or choose another output"
            ) from None

    @contextlib.contextmanager
    def opened(self, take: Callable[[Record], None]) -> Iterator[None]:
        """Lock the files, and call `take` for each stored line. Results and record do not change before the first new line
        is stored.

        `take` must raise KeyError, TypeError or ValueError for a line that it cannot use.

        Raises:
            ConfigError: another process is writing the files.
            DataError: a file cannot be read or written.
        """
        partial = self.paths.partial
        with saying_where(partial):
            partial.parent.mkdir(parents=True, exist_ok=True)
        with locked(partial.with_name(f".{partial.name}.lock")) as is_locked:
            if not is_locked:
                raise ConfigError(
                    f"{partial}: another process is writing it; wait for it, or choose another file"
                )
            # Unbuffered, so that no part of a line is written later than its fsync.
            with saying_where(partial):
                self._file = open(partial, "a+b", buffering=0, opener=no_links)  # noqa: SIM115
            try:
                if self.started:
                    self._resume(self._file, take)
                yield
            finally:
                self._file.close()
                # A command that failed before its first reply leaves no file.
                if partial.exists() and not partial.stat().st_size:
                    partial.unlink()

    def _resume(self, file: BinaryIO, take: Callable[[Record], None]) -> None:
        """Read the stored lines; an incomplete last one is removed."""
        file.seek(0)
        complete = 0
        with open(file.fileno(), "rb", closefd=False) as lines:
            for number, line in enumerate(lines, 1):
                # After a crash, a file may end in space that was reserved but not written, which reads as zeros.
                if not line.endswith(b"\n") or not line.strip(b"\0\n"):
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
        """Store a batch, completely or not at all. Raises DataError: the batch cannot be written."""
        assert self._file is not None
        with saying_where(self.paths.partial):
            # The order matters if the command is killed here: old results never remain next to new answers.
            if not self.started:
                self._file.truncate(0)
                if self._overwrite:
                    for path in (self.paths.record, *self.paths.results):
                        path.unlink(missing_ok=True)
                self._write(self._file, {"stepjepa": __version__, "identity": self.identity})
                self.started = True
            self._write(self._file, line)

    @staticmethod
    def _write(file: BinaryIO, line: Record) -> None:
        """Append a line, and wait until it is on disk. If only part of it was written, resuming removes that part."""
        # An unbuffered file may write less than it is given.
        rest = memoryview(json_line(line))
        while rest:
            rest = rest[file.write(rest) :]
        os.fsync(file.fileno())

    def finish(self, results: Mapping[Path, Iterable[bytes]], record: Record) -> None:
        """Write the results, then the record, each atomically, and remove the partial file.

        Raises:
            DataError: a file could not be written; the same command tries again.
        """
        contents = {**results, self.paths.record: [json_bytes(record, indent=2), b"\n"]}
        for path, parts in contents.items():
            with saying_where(path):
                write_whole(path, parts)
        # Windows does not remove an open file.
        if self._file is not None:
            self._file.close()
        self.paths.partial.unlink(missing_ok=True)


def _identity_in(record: Record) -> Record:
    """The identity in a record of complete work. Raises KeyError or TypeError: it is a different file."""
    if "identity" in record:
        return dict(record["identity"])
    # Up to version 0.3, `generate` wrote the identity in two parts.
    return {**record["settings"], "data": record["input"]["fingerprint"]}


def _compared(identity: Record) -> Record:
    """The compared settings of an identity; without None, so that an old record equals one with a new option."""
    return {
        name: value
        for name, value in identity.items()
        if value is not None and _REMOVED.get(name) != value
    }


def refuse_other(path: Path, stored: Record, current: Record) -> None:
    """Raises ConfigError: the work in `path` was done with other settings than the current ones."""
    for name in {**current, **stored}:
        stored_value, current_value = stored.get(name), current.get(name)
        if stored_value == current_value:
            continue
        # These two are digests, which would not help in a message.
        if name in ("model", "data"):
            what = "another model" if name == "model" else "other questions"
            raise ConfigError(f"{path} was made with {what}, or they have changed since; {_ADVICE}")
        raise ConfigError(
            f"{path} was made with {name} {_setting(stored_value)}, not {_setting(current_value)}; {_ADVICE}"
        )


def _setting(value: object) -> str:
    return "none" if value is None else one_line(json.dumps(value, ensure_ascii=False), _SHOWN)
