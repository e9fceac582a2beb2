"""Printing and progress. Everything printed but the help passes through here, so that no text from data can control the
terminal."""

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
from typing import IO

from stepjepa.utils.text import escaped, one_line, printable, printable_json

_STDOUT = "standard output"
# Seconds between two lines of progress outside a terminal.
_PAUSE = 60.0
_quiet = False


def print_text(text: str) -> None:
    """Print `text` immediately, with escapes for characters that are not printable or not in the encoding of stdout."""
    print_drawn(printable(text))


def print_json(record: object) -> None:
    """Print a record as JSON; NaN and infinity are null."""
    print_drawn(printable_json(record))


def print_drawn(text: str) -> None:
    """Print text that may contain terminal colors, with escapes for characters outside the encoding of stdout."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)
    except OSError as error:
        # With this, the error's message names the stream.
        error.filename = _STDOUT
        raise


def print_error(text: str) -> None:
    """Print one line of limited length on standard error, if that is open."""
    try:
        print(one_line(text), file=sys.stderr, flush=True)
    except (OSError, ValueError):
        _silence(sys.stderr)


def is_main_process() -> bool:
    """Whether this is the process that prints and writes: the first of a distributed run, or the only one."""
    return int(os.environ.get("RANK", "0")) == 0


def is_quiet() -> bool:
    """Whether only results and errors are printed."""
    return _quiet


@contextlib.contextmanager
def only_results(on: bool = True) -> Iterator[None]:
    """Within this context, if `on`, print only results and errors: no progress, notes, warnings or log."""
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
    """Print a line of progress in the main process, unless only results are wanted."""
    if is_main_process() and not _quiet:
        print_text(text)


class _Log(logging.Handler):
    """Writes to the current standard error, which a progress bar may have replaced."""

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError, ValueError):
            print(printable(self.format(record)), file=sys.stderr, flush=True)


_log = _Log()


def show_log(level: int) -> None:
    """Show the log of this library on standard error. Other libraries print theirs themselves."""
    logger = logging.getLogger("stepjepa")
    logger.setLevel(level)
    # Adding it again has no effect.
    logger.addHandler(_log)


class Bar:
    """Progress of successive tasks on standard error: a bar in a terminal, plain lines elsewhere; nothing if `silent`."""

    def __init__(self, silent: bool = False) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        self._silent = silent or _quiet
        self._console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=self._console,
            disable=self._silent or not self._console.is_terminal,
        )
        self._printed = 0.0

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begin(self, name: str, total: int, done: int = 0) -> None:
        """Begin a task, `done` of whose `total` steps are already done; outside a terminal, print it."""
        for earlier in self._progress.task_ids:
            self._progress.remove_task(earlier)
        self._progress.add_task(escaped(name), total=total, completed=done)
        self._printed = time.monotonic()
        if self._progress.disable:
            self.say(f"{name}: {total}{f', {done} of them already done' if done else ''}")

    def step(self, count: int) -> None:
        """Advance the task; outside a terminal, print the progress from time to time."""
        (task,) = self._progress.tasks
        self._progress.advance(task.id, count)
        now = time.monotonic()
        if self._progress.disable and now - self._printed >= _PAUSE and not task.finished:
            self._printed = now
            self.say(f"{task.description}: {task.completed} of {task.total}")

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        if not self._silent:
            self._console.print(printable(line), markup=False, highlight=False, soft_wrap=True)


@contextlib.contextmanager
def ending(command: str, kept: str) -> Iterator[None]:
    """Let SIGTERM end a command as Ctrl-C does, and print what is kept.

    This is for commands whose files are complete at any moment, so that nothing has to be saved at the end.
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
    """Why standard output cannot be written to, in which case its buffer is discarded; None if it can.

    Returns:
        The system's message; "" if the reader of a pipe has gone.
    """
    trouble: str | None = None
    # The shell may have closed it, as in `>&-`.
    if sys.stdout is None:
        return None
    try:
        sys.stdout.flush()
        # Flushing an empty buffer does not notice a closed pipe.
        if _reader_has_gone(sys.stdout):
            trouble = ""
    except OSError as error:
        trouble = "" if error.errno == errno.EPIPE else f"{_STDOUT}: {error.strerror or error}"
    if trouble is not None:
        _silence(sys.stdout)
    return trouble


def _reader_has_gone(stream: IO[str]) -> bool:
    # The stream may have no descriptor, and the system no poll.
    with contextlib.suppress(OSError, ValueError, AttributeError):
        poll = select.poll()
        poll.register(stream.fileno(), 0)
        return any(event & select.POLLERR for _, event in poll.poll(0))
    return False


def _silence(stream: IO[str]) -> None:
    """Discard everything that is written to a stream from now on."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
