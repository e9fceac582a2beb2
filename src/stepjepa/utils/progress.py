"""How far a command is, on standard error: a bar in a terminal, plain lines elsewhere; and how it ends when told to."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from stepjepa.utils.terminal import print_error
from stepjepa.utils.text import escaped, printable

_Bar = TypeVar("_Bar", bound="Bar")
# Elsewhere than in a terminal: at most so many lines for one task, and none within so many seconds.
_LINES, _PAUSE = 10, 10.0


class Bar:
    """One task after the other; what stands beside the bar is in `note`."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task: Any = None
        self._name, self._total, self._done = "", 0, 0
        self._told, self._when = 0, 0.0

    def __enter__(self: _Bar) -> _Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    @property
    def is_terminal(self) -> bool:
        """Whether there is a bar at all."""
        return not self._progress.disable

    def start(self, name: str, total: int, done: int, note: str = "") -> None:
        """A bar for a task."""
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._task = self._progress.add_task(escaped(name), total=total, completed=done, note=note)
        self._name, self._total, self._done = name, total, done
        self._told, self._when = done, time.monotonic()

    def advance(self, count: int, note: str = "") -> None:
        """Move it on."""
        self._done += count
        self._progress.update(self._task, advance=count, note=note)

    def tell(self) -> None:
        """Elsewhere than in a terminal: say how far the task is, but not too often."""
        due = self._done - self._told >= self._total / _LINES and time.monotonic() - self._when >= _PAUSE
        if not self.is_terminal and due and self._done < self._total:
            self._told, self._when = self._done, time.monotonic()
            self.say(f"{self._name}: {self._done} of {self._total}")

    def begin(self, name: str, total: int, done: int = 0, note: str = "") -> None:
        """A bar for a task; elsewhere than in a terminal, a line that says what begins."""
        self.start(name, total, done, note)
        if not self.is_terminal:
            self.say(f"{name}: {total}{f', {done} of them done before' if done else ''}")

    def step(self, count: int, note: str = "") -> None:
        """Move it on, and tell now and then how far it is."""
        self.advance(count, note)
        self.tell()

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        self._console.print(printable(line), markup=False, highlight=False, soft_wrap=True)


@contextlib.contextmanager
def ending(command: str, kept: Callable[[], str]) -> Iterator[None]:
    """Let SIGTERM end a command as Ctrl-C does, and say then what is kept.

    For commands whose files are whole at any moment, so that there is nothing to save.
    """

    def terminate(*_: object) -> None:
        raise SystemExit(128 + signal.SIGTERM)

    in_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, terminate) if in_main else None
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        print_error(f"stepjepa {command}: interrupted; {kept()}; the same command resumes from there")
        raise
    finally:
        if in_main:
            signal.signal(signal.SIGTERM, before)
