"""What happens beside the optimizer's steps."""

from __future__ import annotations

from transformers import TrainerCallback

from stepjepa.modeling.ema import TargetEncoder, momentum_at


class TargetEncoderCallback(TrainerCallback):
    """Moves the EMA target encoder after every optimizer step."""

    def __init__(self, encoder: TargetEncoder):
        self.encoder = encoder

    def on_optimizer_step(self, args, state, control, **kwargs):
        """See `TrainerCallback`."""
        done = (state.global_step + 1) / max(state.max_steps, 1)
        self.encoder.update(momentum_at(done, args.ema_momentum, args.ema_momentum_end))
