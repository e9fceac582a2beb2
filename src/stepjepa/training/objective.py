"""From what one forward returns to the parts of the loss, and their sums for the log.

Shapes: P pairs, D width.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.nn.functional as F

from stepjepa.losses.alignment import cosine_loss, l2_loss, mse_loss
from stepjepa.losses.contrastive import infonce_loss
from stepjepa.modeling.forward import ForestOutput
from stepjepa.training.options import JEPAOptions

# Target states kept between two logs for the collapse signs; 256 give the rank of 96 to 256 dimensions a fair chance.
KEPT_TARGETS = 256


class LossParts(NamedTuple):
    """Sums over one micro-batch, () float32 each."""

    lm: torch.Tensor
    jepa: torch.Tensor


def jepa_losses(options: JEPAOptions, source_PD: torch.Tensor, target_PD: torch.Tensor) -> torch.Tensor:
    """The JEPA loss of every pair, (P,) float32, by `options.jepa_loss`."""
    if options.jepa_loss == "infonce":
        return infonce_loss(source_PD, target_PD, options.infonce_temperature)
    return {"cosine": cosine_loss, "l2": l2_loss, "mse": mse_loss}[options.jepa_loss](source_PD, target_PD)


def loss_parts(options: JEPAOptions, output: ForestOutput) -> LossParts:
    """Both sums of one micro-batch; the JEPA part is 0 where the objective has none."""
    assert output.lm_loss_sum is not None and output.source_states is not None and output.target_states is not None
    if not options.uses_pairs:
        return LossParts(output.lm_loss_sum, output.lm_loss_sum.new_zeros(()))
    return LossParts(output.lm_loss_sum, jepa_losses(options, output.source_states, output.target_states).sum())


def total_loss(options: JEPAOptions, parts: LossParts, labels: torch.Tensor, pairs: torch.Tensor) -> torch.Tensor:
    """``gamma * LM / labels + lbd * JEPA / pairs`` with the counts of the whole optimizer step, () float32.

    Args:
        labels, pairs: () counts over all micro-batches and processes; zero counts divide by one.
    """
    loss = options.gamma * parts.lm / labels.clamp(min=1)
    if options.uses_pairs:
        loss = loss + options.lbd * parts.jepa / pairs.clamp(min=1)
    return loss


def precise_dtype(device: torch.device) -> torch.dtype:
    """float64, where the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


@dataclass
class LossMeter:
    """Sums between two logs, kept on the device until they are asked for."""

    sums: torch.Tensor | None = None  # (5,) float64: lm, labels, jepa, pairs, cosine
    tokens: torch.Tensor | None = None  # () int64
    targets: list[torch.Tensor] = field(default_factory=list)

    def add(self, parts: LossParts, output: ForestOutput, batch: dict[str, torch.Tensor]) -> None:
        """Count one micro-batch."""
        source, target = output.source_states.detach(), output.target_states.detach()  # type: ignore[union-attr]
        cosine = F.cosine_similarity(source.float(), target.float(), dim=-1).sum()
        labels, pairs = batch["label_ids"].numel(), source.shape[0]
        precise = precise_dtype(source.device)
        row = [parts.lm.detach(), labels, parts.jepa.detach(), pairs, cosine]
        new = torch.stack([torch.as_tensor(value, device=source.device).to(precise) for value in row])
        self.sums = new if self.sums is None else self.sums + new
        tokens = count_tokens(batch)
        self.tokens = tokens if self.tokens is None else self.tokens + tokens
        if pairs and sum(len(kept) for kept in self.targets) < KEPT_TARGETS:
            self.targets.append(target.float())

    def totals(self, device: torch.device) -> torch.Tensor:
        """(6,) float64: lm, labels, jepa, pairs, cosine, tokens of this process."""
        if self.sums is None or self.tokens is None:
            return torch.zeros(6, dtype=precise_dtype(device), device=device)
        return torch.cat([self.sums, self.tokens.to(self.sums.dtype).reshape(1)])


def count_tokens(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Tokens of a batch without padding, () int64."""
    if "example" in batch:
        return (batch["example"] >= 0).sum()
    views = batch.get("view_attention_mask")
    return batch["attention_mask"].sum() + (0 if views is None else views.sum())


def collapse_signs(targets: list[torch.Tensor]) -> dict[str, float]:
    """Signs that all targets become one vector.

    ``target_std``: standard deviation of the unit-length targets over the batch, times the root of the width (1 for
    targets spread evenly in all directions, 0 for a single point). ``effective_rank``: exponential of the entropy of
    their normalised singular values (RankMe, arXiv:2210.02885, Eq. 1; uncentred), 1 at collapse.

    Args:
        targets: (P, D) tensors.
    """
    if sum(len(kept) for kept in targets) < 2:
        return {}
    states = F.normalize(torch.cat(targets)[:KEPT_TARGETS].cpu().double(), dim=-1)
    if not states.isfinite().all():
        return {"target_std": float("nan"), "effective_rank": float("nan")}
    singular = torch.linalg.svdvals(states)
    share = singular / singular.sum().clamp(min=1e-12) + 1e-12
    spread = states.std(dim=0).square().mean().sqrt() * states.shape[1] ** 0.5
    return {"target_std": float(spread), "effective_rank": float(torch.exp(-(share * share.log()).sum()))}
