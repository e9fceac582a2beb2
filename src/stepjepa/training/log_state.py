"""What the log holds between two of its entries, kept in checkpoints: a run that goes on logs what it would have logged."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from stepjepa.training.meter import LossMeter
from stepjepa.training.run_folder import LOG_STATE


@dataclass
class LogState:
    """State of one process's log.

    Attributes:
        sums: the meter's, on the host; None right after an entry.
        targets: the target states that the meter keeps.
        flops: by kind.
        loss: the sum of the losses since the last entry.
        total_loss: the sum of the losses until then.
        last_logged: the step of the last entry.
        grad_norm, learning_rate: of the last step.
        epoch_ended: whether what happens when an epoch ends had happened, in a checkpoint at an epoch's end.
    """

    sums: torch.Tensor | None
    targets: list[torch.Tensor]
    flops: dict[str, float]
    loss: float
    total_loss: float
    last_logged: int
    grad_norm: float | None
    learning_rate: float | None
    epoch_ended: bool

    def save(self, checkpoint: str | os.PathLike[str], process: int) -> None:
        """Write the state of process `process` to a checkpoint."""
        torch.save(asdict(self), Path(checkpoint) / LOG_STATE.format(process))

    @classmethod
    def load(cls, checkpoint: str | os.PathLike[str], process: int) -> LogState:
        """Read what `save` wrote.

        Raises:
            FileNotFoundError: the checkpoint is that of fewer processes.
        """
        path = Path(checkpoint) / LOG_STATE.format(process)
        return cls(**torch.load(path, map_location="cpu", weights_only=True))

    def meter(self, names: tuple[str, ...], device: torch.device) -> LossMeter:
        """A meter of the parts `names` that holds what the run's meter held."""
        sums = None if self.sums is None else self.sums.to(device)
        return LossMeter(names, sums, [target.to(device) for target in self.targets], Counter(self.flops))


def log_state_of(trainer: Any, grad_norm: Any, learning_rate: float | None, epoch_ended: bool) -> LogState:
    """The state of a `JEPATrainer`'s log."""
    meter = trainer._meter
    return LogState(
        None if meter.sums is None else meter.sums.cpu(),
        [target.cpu() for target in meter.targets],
        dict(meter.flops),
        float(trainer._tr_loss),
        float(trainer._total_loss_scalar),
        int(trainer._globalstep_last_logged),
        None if grad_norm is None else float(grad_norm),
        learning_rate,
        epoch_ended,
    )
