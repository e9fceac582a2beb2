"""From the parts of the loss over micro-batches to the loss of an optimizer step."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from stepjepa.data.types import LM, Batch, LossParts
from stepjepa.objectives.base import Objective
from stepjepa.training.options import JEPAOptions


def batch_counts(objective: Objective, batch: Batch) -> dict[str, float]:
    """What the parts of the loss are divided by, by name: those of one micro-batch."""
    return {LM: batch.label_ids.numel(), **objective.counts(batch)}


def total_loss(parts: LossParts, counts: Mapping[str, torch.Tensor], lbd: float) -> torch.Tensor:
    """``sum of weight * part / count``, all parts but the LM loss times lambda: () float32.

    Args:
        parts: of one micro-batch.
        counts: () of the whole optimizer step, by the names of the parts: over all micro-batches and processes; zero divides
            by one.
        lbd: lambda of this step, see `lbd_at`.
    """
    total: torch.Tensor | None = None
    for name, part in parts.items():
        count = counts[name]
        scale = part.weight if name == LM else lbd * part.weight
        term = scale * part.sum / torch.where(count > 0, count, torch.ones_like(count))
        total = term if total is None else total + term
    assert total is not None  # there is always the LM loss
    return total


def lbd_at(options: JEPAOptions, step: int, steps: int) -> float:
    """lambda at optimizer step `step` (from 0) of a run of `steps`: the warm-up, then the schedule."""
    warm = options.lbd_warmup_ratio * steps
    if step < warm:
        return options.lbd * step / warm
    if options.lbd_schedule == "constant":
        return options.lbd
    done = (step - warm) / max(steps - warm, 1)
    return options.lbd * (1 + math.cos(math.pi * min(done, 1.0))) / 2
