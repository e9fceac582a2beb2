"""What a run shows meanwhile: one bar on a terminal, plain lines where there is none."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column
from transformers import TrainerCallback

from stepjepa.training.options import GRADIENT_COSINE
from stepjepa.utils.terminal import is_quiet, say

# What a line of the log shows, how it is called there, its format, and what the summary's legend says.
_SHOWN = (
    ("lm_loss", "lm", ".4f", "LM loss, nats a labelled token"),
    ("jepa_loss", "jepa", ".4f", "JEPA loss, mean of the pairs"),
    ("cosine_similarity", "cos", ".3f", "their mean cosine"),
    ("eval_lm_loss", "eval lm", ".4f", "of the evaluation data"),
    ("eval_jepa_loss", "eval jepa", ".4f", "the same"),
    (GRADIENT_COSINE, "grad cos", ".3f", "cosine of the gradients of both losses"),
    ("tokens_per_second", "tok/s", ".0f", "tokens a second without padding"),
)
_PAUSE = 0.1  # seconds between two drawings of the bar
_TRAINING, _EVALUATION = "", "eval "  # the bars, by what stands in front of their numbers


def short(logs: dict[str, Any], metrics: Sequence[str] = ()) -> str:
    """A log entry in one line: ``lm 2.4312  jepa 0.0687  cos 0.931  tok/s 3112``; `metrics` are those of answers."""
    shown = [*_SHOWN, *((f"eval_{name}", name, ".3f", "") for name in metrics)]
    return "  ".join(
        f"{name} {logs[key]:{form}}" for key, name, form, _ in shown if isinstance(logs.get(key), (int, float))
    )


def meanings(makes_pairs: bool, evaluates: bool, gradients: bool) -> dict[str, str]:
    """What the words of the log's lines mean, of runs that make pairs, evaluate, compare gradients."""
    words = {"jepa": makes_pairs, "cos": makes_pairs, "eval": evaluates, "grad": gradients}
    left_out = [word for word, shown in words.items() if not shown]
    return {name: words for _, name, _, words in _SHOWN if not any(word in name for word in left_out)}


def clock(seconds: float) -> str:
    """``0:01:05``."""
    return str(timedelta(seconds=round(seconds)))


class RunDisplay(TrainerCallback):
    """One plain line a log entry; on a terminal one bar on standard error with the last losses, the speed and the time left,
    and a second one below it while the model is evaluated. Evaluation losses are lines above it, as is what others print.

    It is drawn when a step ends, by no thread of its own: worker processes are forked meanwhile.

    Args:
        disable_tqdm: lines on a terminal, too.
        metrics: names of the scores of answers.
        keep_losses: losses are lines above the bar, too.
    """

    def __init__(self, disable_tqdm: bool = False, metrics: Sequence[str] = (), keep_losses: bool = False):
        console = Console(stderr=True)
        self.has_bar = sys.stderr.isatty() and console.is_terminal and not console.is_dumb_terminal
        self.has_bar = self.has_bar and not disable_tqdm and not is_quiet()
        self.metrics, self._keep_losses = metrics, keep_losses
        self._progress: Progress | None = None
        self._bars: dict[str, TaskID] = {}
        self._drawn = 0.0
        self._redirected: list[tuple[logging.StreamHandler, Any]] = []

    def on_train_begin(self, args, state, control, **kwargs):
        """See `TrainerCallback`."""
        if self.has_bar and state.is_world_process_zero:
            self._add_bar(_TRAINING, state.max_steps, state.global_step)

    def on_step_end(self, args, state, control, **kwargs):
        """See `TrainerCallback`."""
        self._update(_TRAINING, completed=state.global_step)

    def on_prediction_step(self, args, state, control, eval_dataloader=None, **kwargs):
        """See `TrainerCallback`."""
        if self.has_bar and state.is_world_process_zero:
            begins = _EVALUATION not in self._bars
            if begins:
                self._add_bar(_EVALUATION, len(eval_dataloader), 0)
            self._update(_EVALUATION, at_once=begins, advance=1)

    def on_log(self, args, state, control, logs=None, **kwargs):
        """See `TrainerCallback`."""
        losses = short(logs or {}, self.metrics)
        if not state.is_world_process_zero or not losses:
            return
        in_bar = "lm_loss" in logs and _TRAINING in self._bars
        line = f"step {state.global_step}/{state.max_steps}  {losses}"
        if self._progress is None or not sys.stdout.isatty():
            say(line)
        elif not in_bar or self._keep_losses:
            self._progress.console.print(line, markup=False, highlight=False, soft_wrap=True)
        if in_bar:
            self._update(_TRAINING, at_once=True, note=losses)

    def end_evaluation(self) -> None:
        """Take the evaluation's bar away; called after every evaluation, also one that failed."""
        if self._progress is not None and _EVALUATION in self._bars:
            self._progress.remove_task(self._bars.pop(_EVALUATION))
            if not self._bars:
                self.close()

    def on_train_end(self, args, state, control, **kwargs):
        """See `TrainerCallback`."""
        self.close()

    def close(self) -> None:
        """Leave the bar as it stands, and the terminal as it was; called when training ends, in whatever way."""
        if self._progress is not None:
            for handler, stream in self._redirected:
                handler.setStream(stream)
            self._progress.stop()
        self._progress, self._bars, self._redirected = None, {}, []

    def _add_bar(self, name: str, total: int, completed: int) -> None:
        progress = self._progress = self._progress or self._open()
        self._bars[name] = progress.add_task(name, total=total, completed=completed, note="")
        self._update(name, at_once=True)

    def _update(self, name: str, at_once: bool = False, **changes: Any) -> None:
        if self._progress is None or name not in self._bars:
            return
        self._progress.update(self._bars[name], **changes)
        if at_once or time.monotonic() - self._drawn >= _PAUSE:
            self._drawn = time.monotonic()
            self._progress.refresh()

    def _open(self) -> Progress:
        console = Console(stderr=True)
        note = Column(no_wrap=True, overflow="ellipsis", max_width=max(console.width - 32, 8))
        progress = Progress(
            TextColumn("{task.description}{task.completed}/{task.total}", markup=False),
            BarColumn(bar_width=None, table_column=Column(ratio=1, min_width=4)),
            TextColumn("{task.fields[note]}", markup=False, table_column=note),
            TimeRemainingColumn(elapsed_when_finished=True, table_column=Column(no_wrap=True)),
            console=console,
            auto_refresh=False,
            expand=True,
            speed_estimate_period=float("inf"),  # of the last 1,000 steps, however long they take
            redirect_stdout=sys.stdout.isatty(),  # what goes to a file stays there
        )
        before = sys.stderr
        progress.start()
        console.show_cursor()  # so that a signal that ends the process leaves it, too
        # Handlers hold the stream of their first day, which a redirected `sys.stderr` does not reach.
        loggers = [logging.root, *(one for one in logging.root.manager.loggerDict.values() if hasattr(one, "handlers"))]
        handlers = [handler for logger in loggers for handler in logger.handlers]
        streams = [handler for handler in handlers if isinstance(handler, logging.StreamHandler)]
        self._redirected = [(handler, before) for handler in streams if handler.stream is before]
        for handler, _ in self._redirected:
            handler.setStream(sys.stderr)
        return progress
