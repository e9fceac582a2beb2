"""Finding the first step whose loss or gradient norm is not finite, without making a step wait for the device."""

from __future__ import annotations

from typing import Any

import torch

from stepjepa.modeling.load import broken_weights

_WHAT = ("loss", "gradient norm")


class FiniteWatch:
    """Keeps on the device at which step the loss and the gradient norm first were NaN or infinite.

    What is known is copied to the host when a step begins and read when it ends, so a broken step is found one step late at
    most; `first_broken` reads it at once, for where the device is waited for anyway.
    """

    def __init__(self, device: torch.device):
        self._first = torch.zeros(2, device=device)  # the step of each of _WHAT, 0 for none
        self._loss: torch.Tensor | None = None
        self._copied: torch.Tensor | None = None
        self._event: Any = None

    @property
    def in_step(self) -> bool:
        """Whether a loss was added since the last step ended."""
        return self._loss is not None

    @property
    def flag(self) -> torch.Tensor:
        """1 once something was not finite, else 0: (1,), to be summed over the processes with what is summed anyway."""
        return (self._first > 0).any().float().reshape(1)

    def add(self, loss: torch.Tensor) -> None:
        """Take in the loss of a micro-batch, ()."""
        self._loss = loss.detach() if self._loss is None else self._loss + loss.detach()

    def end_step(self, step: int, grad_norm: Any, skipped: bool) -> None:
        """Take in the gradient norm of step `step` (1 is the first); one that a gradient scaler skipped does not count."""
        loss, self._loss = self._loss, None
        if skipped or loss is None:
            return
        norm = grad_norm.full_tensor() if hasattr(grad_norm, "full_tensor") else grad_norm
        norm = torch.as_tensor(0.0 if norm is None else norm, device=self._first.device)
        broken = ~torch.stack([loss.float().reshape(()), norm.detach().float().reshape(())]).isfinite()
        self._first = torch.where(broken & (self._first == 0), torch.full_like(self._first, step), self._first)

    def copy_to_host(self, flags: torch.Tensor) -> None:
        """Begin to copy the sum of all processes' flags, (); `broken_before` reads it."""
        if flags.device.type != "cuda":
            self._copied = flags.detach()
            return
        if self._copied is None:
            self._copied = torch.empty((), dtype=flags.dtype, pin_memory=True)
        self._copied.copy_(flags.detach(), non_blocking=True)
        self._event = torch.cuda.Event()
        self._event.record()

    def broken_before(self) -> bool:
        """Whether anything was not finite, on any process, when `copy_to_host` was called."""
        if self._event is not None:
            self._event.synchronize()
        return self._copied is not None and bool(self._copied > 0)

    def first_broken(self, accelerator: Any) -> tuple[int, str] | None:
        """The first broken step of all processes and what was not finite there; None where there is none.

        Waits for the device, and every process must call it.
        """
        steps = accelerator.gather(self._first[None]).reshape(-1, 2).tolist()
        found = [(int(step), what) for row in steps for step, what in zip(row, _WHAT, strict=True) if step]
        if not found:
            return None
        first = min(step for step, _ in found)
        return first, next(what for what in _WHAT if (first, what) in found)


def weights_are_finite(model: torch.nn.Module, accelerator: Any) -> bool:
    """Whether all weights that are trained are finite, on all processes. Every process must call it."""
    trained = {name: own.detach() for name, own in model.named_parameters() if own.requires_grad}
    # Of what is sharded, this process's part.
    own = {name: part.to_local() if hasattr(part, "to_local") else part for name, part in trained.items()}
    broken = torch.tensor(float(bool(broken_weights(own))), device=accelerator.device)
    return not bool(accelerator.reduce(broken, reduction="sum") > 0)
