"""From the parts of the loss to that of an optimizer step."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from stepjepa.data.types import LM, LossParts
from stepjepa.training.options import JEPAOptions


def total_loss(parts: LossParts, counts: Mapping[str, torch.Tensor], lbd: float) -> torch.Tensor:
    """``sum of weight * part / count``, all parts but the LM loss times lambda: () float32.

    Args:
        parts: of one micro-batch.
        counts: () of the optimizer step, by the names of the parts: over all micro-batches and processes; zero divides by
            one.
        lbd: lambda of this step, see `lbd_at`.
    """
    terms = []
    for name, part in parts.items():
        count = counts[name]
        scale = part.weight if name == LM else lbd * part.weight
        terms.append(scale * part.sum / torch.where(count > 0, count, torch.ones_like(count)))
    return sum(terms[1:], start=terms[0])


def lbd_at(options: JEPAOptions, step: int, steps: int) -> float:
    """lambda at optimizer step `step` (from 0) of a run of `steps`: the warm-up, then the schedule, 0 after `jepa_until`."""
    if options.jepa_until < 1 and step >= options.jepa_until * steps:
        return 0.0
    warm = options.lbd_warmup_ratio * steps
    if step < warm:
        return options.lbd * step / warm
    if options.lbd_schedule == "constant":
        return options.lbd
    done = (step - warm) / max(steps - warm, 1)
    return options.lbd * (1 + math.cos(math.pi * min(done, 1.0))) / 2
