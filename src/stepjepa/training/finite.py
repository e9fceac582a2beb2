"""Whether the loss and the weights of a run are finite."""

from __future__ import annotations

from typing import Any

import torch
from accelerate import Accelerator

from stepjepa.modeling.load import broken_weights
from stepjepa.modeling.sharding import local
from stepjepa.training.metrics import over_processes


class FiniteWatch:
    """Keeps on the device at which optimizer step the loss first was NaN or infinite.

    What is known is copied to the host when a step begins and read when it ends, so a broken step is found one step late at
    most and no step waits for the device; `first_broken` reads it at once, for where the device is waited for anyway.

    Attributes:
        broken_step: what `first_broken` has found, 0 for none.
    """

    def __init__(self, device: torch.device):
        self.broken_step = 0
        self._first = torch.zeros((), device=device)  # the step, 0 for none
        self._copied = torch.zeros(())
        self._event: Any = None

    @property
    def flag(self) -> torch.Tensor:
        """1 once a loss was not finite, else 0: (1,), to be summed over the processes with what is summed anyway."""
        return (self._first > 0).float().reshape(1)

    def add(self, step: int, loss: torch.Tensor) -> None:
        """Look at the loss of a micro-batch, (), in optimizer step `step` (1 is the first)."""
        is_first = ~loss.detach().isfinite() & (self._first == 0)
        self._first = torch.where(is_first, torch.full_like(self._first, step), self._first)

    def copy_to_host(self, flags: torch.Tensor) -> None:
        """Begin to copy the sum of all processes' flags, (); `broken_before` reads it."""
        self._copied = flags.detach().to("cpu", non_blocking=True)
        if flags.is_cuda:
            self._event = torch.cuda.Event()
            self._event.record()

    def broken_before(self) -> bool:
        """Whether a loss was not finite, on any process, when `copy_to_host` was called."""
        if self._event is not None:
            self._event.synchronize()
        return bool(self._copied > 0)

    def first_broken(self, accelerator: Accelerator) -> int | None:
        """The first broken step of all processes, where that is news; else None.

        Waits for the device, and every process must call it.
        """
        steps = accelerator.gather(self._first.reshape(1)).tolist()
        broken = [int(step) for step in steps if step]
        if self.broken_step or not broken:
            return None
        self.broken_step = min(broken)
        return self.broken_step


def weights_are_finite(model: torch.nn.Module, accelerator: Accelerator) -> bool:
    """Whether all weights that are trained are finite, on all processes. Every process must call it."""
    # Of what is sharded, this process's part.
    own = {name: local(weight.detach()) for name, weight in model.named_parameters() if weight.requires_grad}
    return over_processes([float(bool(broken_weights(own)))], accelerator) == [0.0]
