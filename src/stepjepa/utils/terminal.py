"""Printing: every line that leaves the library passes here, so that nothing in it can steer the terminal; and how far a
command is."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from typing import IO, Any, TypeVar

from stepjepa.utils.text import escaped, one_line, printable, printable_json

_STDOUT = "standard output"
_Bar = TypeVar("_Bar", bound="Bar")
# Elsewhere than in a terminal: at most so many lines for one task, and none within so many seconds.
_LINES, _PAUSE = 10, 10.0
_quiet = False


def print_text(text: str) -> None:
    """Print `text` at once; what is not printable, or not in standard output's encoding, is written as escapes."""
    print_drawn(printable(text))


def print_json(record: object) -> None:
    """Print a record as JSON; NaN and infinity are null."""
    print_drawn(printable_json(record))


def print_drawn(text: str) -> None:
    """Print what was made for the terminal, its colors included; what the encoding cannot hold is written as escapes."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)
    except OSError as error:
        error.filename = _STDOUT  # for whoever reports it
        raise


def print_error(text: str) -> None:
    """Print one line of limited length on standard error; where nobody can read it, the exit status says enough."""
    try:
        print(one_line(text), file=sys.stderr, flush=True)
    except (OSError, ValueError):
        _silence(sys.stderr)


def is_main_process() -> bool:
    """Whether this process prints and writes (the first of a distributed run, or the only one)."""
    return int(os.environ.get("RANK", "0")) == 0


def is_quiet() -> bool:
    """Whether results and errors alone are printed."""
    return _quiet


@contextlib.contextmanager
def only_results(on: bool = True) -> Iterator[None]:
    """Within this context, where `on`, what is printed are results and errors: no progress, notes, warnings or log."""
    global _quiet
    if not on:
        yield
        return
    before, disabled = _quiet, logging.root.manager.disable
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _quiet = True
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            _quiet = before
            logging.disable(disabled)


def say(text: str) -> None:
    """Print lines on how a command goes, once over all processes; none where only results are asked for."""
    if is_main_process() and not _quiet:
        print_text(text)


class _Log(logging.Handler):
    """Writes to the standard error of the moment, which a progress bar may have replaced."""

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError, ValueError):
            print(printable(self.format(record)), file=sys.stderr, flush=True)


def show_log(level: int) -> None:
    """Show the library's own log on standard error, and no other: other libraries show theirs, and would do so twice."""
    logger = logging.getLogger("stepjepa")
    logger.setLevel(level)
    if not any(isinstance(handler, _Log) for handler in logger.handlers):
        logger.addHandler(_Log())


class Bar:
    """One task after the other on standard error: a bar in a terminal, plain lines elsewhere; nothing where it is silent."""

    def __init__(self, silent: bool = False) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._silent, self._console = silent, Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal or silent or _quiet,
        )
        self._task: Any = None
        self._name, self._total, self._done = "", 0, 0
        self._printed, self._when = 0, 0.0

    def __enter__(self: _Bar) -> _Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def start(self, name: str, total: int, done: int, note: str = "") -> None:
        """Begin a task, of which so much is done."""
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._task = self._progress.add_task(escaped(name), total=total, completed=done, note=note)
        self._name, self._total, self._done = name, total, done
        self._printed, self._when = done, time.monotonic()

    def advance(self, count: int, note: str = "") -> None:
        """Move it on; `note` is printed next to the bar."""
        self._done += count
        self._progress.update(self._task, advance=count, note=note)

    def begin(self, name: str, total: int, done: int = 0) -> None:
        """As `start`; elsewhere than in a terminal, print what begins."""
        self.start(name, total, done)
        if self._progress.disable:
            self.say(f"{name}: {total}{f', {done} of them done before' if done else ''}")

    def step(self, count: int) -> None:
        """As `advance`; elsewhere than in a terminal, print now and then how far the task is."""
        self.advance(count)
        due = self._done - self._printed >= self._total / _LINES and time.monotonic() - self._when >= _PAUSE
        if self._progress.disable and due and self._done < self._total:
            self._printed, self._when = self._done, time.monotonic()
            self.say(f"{self._name}: {self._done} of {self._total}")

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        if not (self._silent or _quiet):
            self._console.print(printable(line), markup=False, highlight=False, soft_wrap=True)


@contextlib.contextmanager
def ending(command: str, kept: str) -> Iterator[None]:
    """Let SIGTERM end a command as Ctrl-C does, and print then what is kept.

    For commands whose files are complete at any moment, so that there is nothing to save.
    """

    def terminate(*_: object) -> None:
        raise SystemExit(128 + signal.SIGTERM)

    in_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, terminate) if in_main else None
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        print_error(f"stepjepa {command}: interrupted; {kept}; the same command resumes from there")
        raise
    finally:
        if in_main:
            signal.signal(signal.SIGTERM, before)


# Streams that are closed or full


def stdout_trouble() -> str | None:
    """Why standard output takes no more, None where it does; what is buffered for it is thrown away then.

    Returns:
        The system's words; "" where its reader has gone.
    """
    trouble: str | None = None
    if sys.stdout is None:  # the shell has closed it
        return None
    try:
        sys.stdout.flush()
        if _reader_has_gone(sys.stdout):  # an unbuffered stream has nothing to flush
            trouble = ""
    except OSError as error:
        trouble = "" if error.errno == errno.EPIPE else f"{_STDOUT}: {error.strerror or error}"
    if trouble is not None:
        _silence(sys.stdout)
    return trouble


def _reader_has_gone(stream: IO[str]) -> bool:
    with contextlib.suppress(OSError, ValueError, AttributeError):  # no descriptor, or a system without poll
        poll = select.poll()
        poll.register(stream.fileno(), 0)
        return any(event & select.POLLERR for _, event in poll.poll(0))
    return False


def _silence(stream: IO[str]) -> None:
    """Let what is still written to a stream go nowhere."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
