"""From what one forward returns to the parts of the loss.

Shapes: P pairs, D width.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from stepjepa.losses.cosine import cosine_loss
from stepjepa.losses.infonce import infonce_loss
from stepjepa.losses.l2 import l2_loss
from stepjepa.losses.mse import mse_loss
from stepjepa.losses.sigreg import random_directions, sigreg_regularizer
from stepjepa.losses.smooth_l1 import smooth_l1_loss
from stepjepa.losses.tube import turning_angle
from stepjepa.losses.vicreg import vicreg_regularizer
from stepjepa.modeling.forward import ForestOutput
from stepjepa.training.options import JEPAOptions

_DISTANCES = {"cosine": cosine_loss, "l2": l2_loss, "mse": mse_loss, "smooth_l1": smooth_l1_loss}


class LossParts(NamedTuple):
    """Sums over one micro-batch, () float32 each.

    Attributes:
        lm: cross-entropy over labelled tokens.
        jepa: distances over pairs, each times its weight.
        regularizer: the regularizer times the weight of all pairs, so that dividing by it gives the regularizer back.
    """

    lm: torch.Tensor
    jepa: torch.Tensor
    regularizer: torch.Tensor


def jepa_losses(options: JEPAOptions, source_PD: torch.Tensor, target_PD: torch.Tensor) -> torch.Tensor:
    """The JEPA loss of every pair, (P,) float32, by `options.jepa_loss`."""
    if options.objective == "semantic_tube" and options.tube_mode == "curvature":
        return turning_angle(source_PD, target_PD)
    if options.jepa_loss == "infonce":
        return infonce_loss(source_PD, target_PD, options.infonce_temperature, options.infonce_symmetric)
    return _DISTANCES[options.jepa_loss](source_PD, target_PD)


def regularizer(options: JEPAOptions, source_PD: torch.Tensor, target_PD: torch.Tensor, step: int) -> torch.Tensor:
    """The weighted regularizer of one micro-batch over all processes, () float32; `step` draws SIGReg's directions."""
    if options.regularizer == "vicreg":
        value = vicreg_regularizer(source_PD, target_PD, 1.0, options.vicreg_covariance)
    else:
        directions = random_directions(source_PD.shape[1], options.sigreg_directions, step, source_PD.device)
        value = sigreg_regularizer(source_PD, target_PD, directions)
    return (options.regularizer_weight or 0.0) * value


def random_target(width: int, seed: int, device: torch.device) -> torch.Tensor:
    """The fixed vector of ``control=random``, (D,) float32, standard normal."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(width, generator=generator).to(device)


def used_targets(options: JEPAOptions, output: ForestOutput, seed: int) -> torch.Tensor:
    """The target states (P, D) that the loss compares with: without their graph, or replaced, as the options say."""
    target = output.target_states
    assert target is not None
    if options.control == "random":
        return random_target(target.shape[1], seed, target.device).expand_as(target)
    return target if options.target_grad else target.detach()


def pair_weights(batch: dict[str, torch.Tensor]) -> torch.Tensor | None:
    """Weights (P,) float32 of a batch's pairs; None where all are 1."""
    return batch.get("tube_weights")


def total_weight(batch: dict[str, torch.Tensor]) -> torch.Tensor | int:
    """Sum of the weights of a batch's pairs, () or a number."""
    weights = pair_weights(batch)
    return batch["source_readouts"].numel() if weights is None else weights.sum()


def loss_parts(
    options: JEPAOptions, output: ForestOutput, batch: dict[str, torch.Tensor], target_PD: torch.Tensor, step: int = 0
) -> LossParts:
    """The sums of one micro-batch; the JEPA parts are 0 where the objective has none.

    Args:
        batch: a collator's.
        target_PD: (P, D), as `used_targets` gives it.
        step: optimizer step.
    """
    lm, source = output.lm_loss_sum, output.source_states
    assert lm is not None and source is not None
    zero = lm.new_zeros(())
    if not options.uses_pairs:
        return LossParts(lm, zero, zero)
    losses, weights = jepa_losses(options, source, target_PD), pair_weights(batch)
    jepa = losses.sum() if weights is None else (losses * weights).sum()
    if options.regularizer == "none":
        return LossParts(lm, jepa, zero)
    return LossParts(lm, jepa, regularizer(options, source, target_PD, step) * total_weight(batch))


def total_loss(
    options: JEPAOptions, parts: LossParts, labels: torch.Tensor, weight: torch.Tensor, lbd: float
) -> torch.Tensor:
    """``gamma * LM / labels + lbd * (JEPA + regularizer) / weight`` with counts of the whole optimizer step, () float32.

    Args:
        labels, weight: () labelled tokens and weight of all pairs, over all micro-batches and processes; zero counts
            divide by one.
        lbd: lambda of this step, see `lbd_at`.
    """
    loss = options.gamma * parts.lm / labels.clamp(min=1)
    if options.uses_pairs:
        divisor = torch.where(weight > 0, weight, torch.ones_like(weight))
        loss = loss + lbd * (parts.jepa + parts.regularizer) / divisor
    return loss


def lbd_at(options: JEPAOptions, step: int, steps: int) -> float:
    """lambda at optimizer step `step` (from 0) of a run of `steps`: the warm-up, then the schedule."""
    warm = options.lbd_warmup_ratio * steps
    if step < warm:
        return options.lbd * step / warm
    if options.lbd_schedule == "constant":
        return options.lbd
    done = (step - warm) / max(steps - warm, 1)
    return options.lbd * (1 + math.cos(math.pi * min(done, 1.0))) / 2
