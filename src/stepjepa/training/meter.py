"""Sums between two logs, and the signs of collapse.

Shapes: P pairs, D width.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

from stepjepa.modeling.flops import KINDS
from stepjepa.modeling.forward import ForestOutput
from stepjepa.training.objective import LossParts, total_weight
from stepjepa.training.options import JEPAOptions

# Target states kept between two logs for the collapse signs; 256 give the rank of 96 to 256 dimensions a fair chance.
KEPT_TARGETS = 256
SUMS = ("lm", "labels", "jepa", "weight", "regularizer", "pairs", "cosine", "tokens")
# What does not grow with the number of batches that it was taken over.
MEANS = ("lm_loss", "jepa_loss", "cosine_similarity", "regularizer", "target_std", "effective_rank")


def precise_dtype(device: torch.device) -> torch.dtype:
    """float64, where the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


@dataclass
class LossMeter:
    """Sums over micro-batches, kept on the device until they are asked for."""

    sums: torch.Tensor | None = None  # (8,) float64, in the order of SUMS
    targets: list[torch.Tensor] = field(default_factory=list)
    flops: Counter[str] = field(default_factory=Counter)  # by kind, of this process
    since: float = field(default_factory=time.perf_counter)
    tokens: float = 0.0  # of all processes, once `metrics` was called

    def add(
        self, parts: LossParts, output: ForestOutput, batch: dict[str, torch.Tensor], target_PD: torch.Tensor
    ) -> None:
        """Count one micro-batch; `target_PD` (P, D) are the targets that the loss compared with."""
        source, target = output.source_states.detach(), target_PD.detach()  # type: ignore[union-attr]
        pairs, device = source.shape[0], source.device
        cosine = F.cosine_similarity(source.float(), target.float(), dim=-1).sum()
        row = [
            parts.lm.detach(),
            batch["label_ids"].numel(),
            parts.jepa.detach(),
            total_weight(batch),
            parts.regularizer.detach(),
            pairs,
            cosine,
            count_tokens(batch),
        ]
        new = torch.stack([torch.as_tensor(value, device=device).to(precise_dtype(device)) for value in row])
        self.sums = new if self.sums is None else self.sums + new
        if pairs and sum(len(kept) for kept in self.targets) < KEPT_TARGETS:
            self.targets.append(target.float())

    def _over_processes(self, values: Sequence[float] | torch.Tensor | None, accelerator: Any) -> list[float]:
        device = accelerator.device
        if values is None:
            values = [0.0] * len(SUMS)
        totals = torch.as_tensor(values, dtype=precise_dtype(device), device=device)
        return accelerator.reduce(totals, reduction="sum").tolist()

    def metrics(self, options: JEPAOptions, accelerator: Any) -> dict[str, float]:
        """Means over the labels and pairs of all processes, by the names of the log. Every process must call it."""
        sums = dict(zip(SUMS, self._over_processes(self.sums, accelerator), strict=True))
        self.tokens = sums["tokens"]
        weight = sums["weight"] or 1.0
        metrics = {"lm_loss": sums["lm"] / max(sums["labels"], 1)}
        if options.uses_pairs:
            if sums["pairs"]:
                metrics["jepa_loss"] = sums["jepa"] / weight
                metrics["cosine_similarity"] = sums["cosine"] / sums["pairs"]
                if options.regularizer != "none":
                    metrics["regularizer"] = sums["regularizer"] / weight
            metrics["num_pairs"] = int(sums["pairs"])
            metrics |= collapse_signs(self.targets)
        return metrics

    def speed(self) -> dict[str, float]:
        """Tokens a second of all processes since `since`; `metrics` has counted them."""
        return {"tokens_per_second": round(self.tokens / (time.perf_counter() - self.since), 1)}

    def flops_by_kind(self, accelerator: Any) -> dict[str, float]:
        """FLOPs of all processes, by kind. Every process must call it."""
        totals = self._over_processes([self.flops[kind] for kind in KINDS], accelerator)
        return {f"flops_{kind}": value for kind, value in zip(KINDS, totals, strict=True)}


def count_tokens(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Tokens of a batch without padding, () int64."""
    total = torch.zeros((), dtype=torch.int64, device=batch["input_ids"].device)
    for name, value in batch.items():
        if name in ("example", "target_example"):
            total = total + (value >= 0).sum()
        elif name.endswith("attention_mask"):
            total = total + value.sum()
    return total


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
