"""What is shown while a run trains: one bar on a terminal, plain lines where there is none."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.table import Column
from rich.text import Text
from transformers import TrainerCallback
from transformers.trainer_utils import has_length

from stepjepa.utils.terminal import print_text

_SHOWN = (
    ("lm_loss", "lm", ".4f"),
    ("jepa_loss", "jepa", ".4f"),
    ("cosine_similarity", "cos", ".3f"),
    ("eval_lm_loss", "eval lm", ".4f"),
    ("eval_jepa_loss", "eval jepa", ".4f"),
    ("tokens_per_second", "tok/s", ".0f"),
)
_PAUSE = 0.1  # seconds between two drawings of the bar


def short(logs: dict[str, Any], metrics: Sequence[str] = ()) -> str:
    """A log entry in a few words: ``lm 2.4312  jepa 0.0687  cos 0.931  tok/s 3112``; `metrics` are those of answers."""
    shown = [*_SHOWN, *((f"eval_{name}", name, ".3f") for name in metrics)]
    return "  ".join(
        f"{name} {logs[key]:{form}}" for key, name, form in shown if isinstance(logs.get(key), (int, float))
    )


def clock(seconds: float) -> str:
    """``0:01:05``."""
    return str(timedelta(seconds=round(seconds)))


class LinesCallback(TrainerCallback):
    """One plain line a log entry, for logs in files."""

    def __init__(self, metrics: Sequence[str] = ()):
        self.metrics = metrics

    def on_log(self, args, state, control, logs=None, **kwargs):
        """See `TrainerCallback`."""
        if state.is_world_process_zero and logs and short(logs, self.metrics):
            print_text(f"step {state.global_step}/{state.max_steps}  {short(logs, self.metrics)}")

    def end_evaluation(self) -> None:
        """Called behind every evaluation, also one that failed."""

    def close(self) -> None:
        """Called when training ends, in whatever way."""


class BarCallback(LinesCallback):
    """One bar on standard error with the last losses, the speed and the time left; while the model is evaluated, a second
    one below it. Evaluation losses are lines above it, as is what anything else prints.

    It is drawn when a step ends, by no thread of its own: worker processes are forked meanwhile.
    """

    def __init__(self, metrics: Sequence[str] = ()):
        super().__init__(metrics)
        self._progress: Progress | None = None
        self._steps: TaskID | None = None
        self._evaluation: TaskID | None = None
        self._drawn = 0.0
        self._redirected: list[tuple[logging.StreamHandler, Any]] = []

    def on_train_begin(self, args, state, control, **kwargs):
        """See `TrainerCallback`."""
        if state.is_world_process_zero:
            self._steps = self._open().add_task("", total=state.max_steps, completed=state.global_step, note="")
            self._draw(at_once=True)

    def on_step_end(self, args, state, control, **kwargs):
        """See `TrainerCallback`."""
        if self._progress is not None and self._steps is not None:
            self._progress.update(self._steps, completed=state.global_step)
            self._draw()

    def on_prediction_step(self, args, state, control, eval_dataloader=None, **kwargs):
        """See `TrainerCallback`."""
        if not state.is_world_process_zero:
            return
        progress, begins = self._open(), self._evaluation is None
        if self._evaluation is None:
            total = len(eval_dataloader) if has_length(eval_dataloader) else None
            self._evaluation = progress.add_task("eval ", total=total, note="")
        progress.advance(self._evaluation)
        self._draw(at_once=begins)

    def on_log(self, args, state, control, logs=None, **kwargs):
        """See `TrainerCallback`."""
        words = short(logs or {}, self.metrics)
        if not state.is_world_process_zero or not words:
            return
        if self._progress is None or not sys.stdout.isatty():
            super().on_log(args, state, control, logs, **kwargs)
        elif self._steps is None or "lm_loss" not in (logs or {}):
            self._progress.console.print(f"step {state.global_step}/{state.max_steps}  {words}", **_PLAIN)
        if self._progress is not None and self._steps is not None and "lm_loss" in (logs or {}):
            self._progress.update(self._steps, note=words)
            self._draw(at_once=True)

    def end_evaluation(self) -> None:
        """Take the evaluation's bar away."""
        if self._progress is not None and self._evaluation is not None:
            self._progress.remove_task(self._evaluation)
            self._evaluation = None
            if self._steps is None:
                self.close()

    def on_train_end(self, args, state, control, **kwargs):
        """See `TrainerCallback`."""
        self.close()

    def close(self) -> None:
        """Leave the bar as it stands, and the terminal as it was."""
        if self._progress is not None:
            for handler, stream in self._redirected:
                handler.setStream(stream)
            self._progress.stop()
        self._progress = self._steps = self._evaluation = None
        self._redirected = []

    def _open(self) -> Progress:
        if self._progress is not None:
            return self._progress
        console = Console(stderr=True)
        note = Column(no_wrap=True, overflow="ellipsis", max_width=max(console.width - 32, 8))
        self._progress = Progress(
            Count(),
            BarColumn(bar_width=None, table_column=Column(ratio=1, min_width=4)),
            TextColumn("{task.fields[note]}", markup=False, table_column=note),
            TimeLeft(table_column=Column(no_wrap=True)),
            console=console,
            auto_refresh=False,
            expand=True,
            speed_estimate_period=float("inf"),  # of the last 1,000 steps, however long they take
            redirect_stdout=sys.stdout.isatty(),  # what goes to a file stays there
        )
        before = sys.stderr
        self._progress.start()
        self._progress.console.show_cursor()  # so that a signal that ends the process leaves it, too
        self._redirected = [(handler, handler.stream) for handler in _handlers() if handler.stream is before]
        for handler, _ in self._redirected:
            handler.setStream(sys.stderr)
        return self._progress

    def _draw(self, at_once: bool = False) -> None:
        if self._progress is not None and (at_once or time.monotonic() - self._drawn >= _PAUSE):
            self._drawn = time.monotonic()
            self._progress.refresh()


_PLAIN: dict[str, Any] = {"markup": False, "highlight": False, "soft_wrap": True}


class Count(ProgressColumn):
    """``12/60``; ``12`` of an unknown number."""

    def render(self, task: Task) -> Text:
        """See `ProgressColumn`."""
        return Text(f"{task.description}{task.completed:.0f}" + (f"/{task.total:.0f}" if task.total else ""))


class TimeLeft(ProgressColumn):
    """Time left, by the time that the last steps took; at the end, the time since the start."""

    def render(self, task: Task) -> Text:
        """See `ProgressColumn`."""
        if task.finished:
            return Text(f"{clock(task.finished_time or 0.0)} taken")
        left = task.time_remaining
        return Text("-:--:-- left" if left is None else f"{clock(left)} left")


def _handlers() -> list[logging.StreamHandler]:
    """Of all loggers: they hold the stream of their first day, which a redirected `sys.stderr` does not reach."""
    loggers = [logging.root, *(part for part in logging.root.manager.loggerDict.values() if hasattr(part, "handlers"))]
    return [h for logger in loggers for h in logger.handlers if isinstance(h, logging.StreamHandler)]


def display_callback(disable_tqdm: bool, metrics: Sequence[str] = ()) -> LinesCallback:
    """A bar on a terminal, lines elsewhere; with the metrics of answers that are named."""
    console = Console(stderr=True)
    bar = sys.stderr.isatty() and console.is_terminal and not console.is_dumb_terminal
    return (BarCallback if bar and not disable_tqdm else LinesCallback)(metrics)
