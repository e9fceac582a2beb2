"""What happens beside the optimizer's steps."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from stepjepa.modeling.extras import TargetEncoder, momentum_at


class TargetEncoderCallback(TrainerCallback):
    """Moves the EMA target encoder after every optimizer step."""

    def __init__(self, encoder: TargetEncoder):
        self.encoder = encoder

    def on_optimizer_step(self, args, state, control, **kwargs):
        """See `TrainerCallback`."""
        done = (state.global_step + 1) / max(state.max_steps, 1)
        self.encoder.update(momentum_at(done, args.ema_momentum, args.ema_momentum_end))


class ResumedLogCallback(TrainerCallback):
    """Lets a trainer that goes on from a checkpoint take up its log, once the Trainer has set its own to 0.

    Args:
        trainer: a `JEPATrainer`.
    """

    def __init__(self, trainer: Any):
        self.trainer = trainer

    def on_train_begin(self, args, state, control, **kwargs):
        """See `TrainerCallback`."""
        if self.trainer._resumed_from is not None:
            self.trainer.resume_log()
