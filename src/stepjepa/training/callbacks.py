"""What the terminal shows while training: one progress bar, or plain lines where there is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from transformers import ProgressCallback, TrainerCallback

from stepjepa.modeling.ema import TargetEncoder, momentum_at

_SHOWN = (
    ("lm_loss", "lm", ".4f"),
    ("jepa_loss", "jepa", ".4f"),
    ("cosine_similarity", "cos", ".3f"),
    ("eval_lm_loss", "eval lm", ".4f"),
    ("eval_jepa_loss", "eval jepa", ".4f"),
    ("tokens_per_second", "tok/s", ".0f"),
)


def short(logs: dict[str, Any], metrics: Sequence[str] = ()) -> str:
    """A log entry in a few words: ``lm 2.4312  jepa 0.0687  cos 0.931  tok/s 3112``; `metrics` are those of answers."""
    shown = [*_SHOWN, *((f"eval_{name}", name, ".3f") for name in metrics)]
    return "  ".join(
        f"{name} {logs[key]:{form}}" for key, name, form in shown if isinstance(logs.get(key), (int, float))
    )


class TargetEncoderCallback(TrainerCallback):
    """Moves the EMA target encoder after every optimizer step."""

    def __init__(self, encoder: TargetEncoder):
        self.encoder = encoder

    def on_optimizer_step(self, args, state, control, **kwargs):
        """See `TrainerCallback`."""
        done = (state.global_step + 1) / max(state.max_steps, 1)
        self.encoder.update(momentum_at(done, args.ema_momentum, args.ema_momentum_end))


class BarCallback(ProgressCallback):
    """The Trainer's bar, with the losses behind it instead of a dictionary below it."""

    def __init__(self, metrics: Sequence[str] = ()):
        super().__init__()
        self.metrics = metrics

    def on_log(self, args, state, control, logs=None, **kwargs):
        """See `TrainerCallback`."""
        if state.is_world_process_zero and self.training_bar is not None and logs and short(logs, self.metrics):
            self.training_bar.set_postfix_str(short(logs, self.metrics))


class LinesCallback(TrainerCallback):
    """One plain line a log entry, for logs in files."""

    def __init__(self, metrics: Sequence[str] = ()):
        self.metrics = metrics

    def on_log(self, args, state, control, logs=None, **kwargs):
        """See `TrainerCallback`."""
        if state.is_world_process_zero and logs and short(logs, self.metrics):
            print(f"step {state.global_step}/{state.max_steps}  {short(logs, self.metrics)}", flush=True)


def display_callback(disable_tqdm: bool, metrics: Sequence[str] = ()) -> TrainerCallback:
    """A bar on a terminal, lines elsewhere; with the metrics of answers that are named."""
    return (LinesCallback if disable_tqdm or not sys.stderr.isatty() else BarCallback)(metrics)
