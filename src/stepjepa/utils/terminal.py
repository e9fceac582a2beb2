"""Printing: every line that leaves the library passes here, so that nothing in it can steer the terminal."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
import sys
from typing import IO, Any

from stepjepa.utils.text import one_line, printable, printable_json

_STDOUT = "standard output"


def print_text(text: str) -> None:
    """Print `text` at once; what is not printable, or not in standard output's encoding, is written as escapes."""
    print_drawn(printable(text))


def print_json(record: Any) -> None:
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


def say(text: str) -> None:
    """Print lines, once over all processes."""
    if is_main_process():
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


def open_missing_streams() -> None:
    """Give standard input, output and error that were closed (``>&-``) to nobody, so that no file gets their numbers."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


def stdout_trouble() -> str | None:
    """Why standard output takes no more, None where it does; what is buffered for it is thrown away then.

    Returns:
        The system's words; "" where its reader has gone.
    """
    trouble: str | None = None
    try:
        sys.stdout.flush()
        with contextlib.suppress(OSError, ValueError, AttributeError):  # no descriptor, or a system without poll
            poll = select.poll()
            poll.register(sys.stdout.fileno(), 0)
            if any(event & select.POLLERR for _, event in poll.poll(0)):
                trouble = ""
    except OSError as error:
        trouble = "" if error.errno == errno.EPIPE else f"{_STDOUT}: {error.strerror or error}"
    if trouble is not None:
        _silence(sys.stdout)
    return trouble


def _silence(stream: IO[str]) -> None:
    """Let what is still written to a stream go nowhere."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
