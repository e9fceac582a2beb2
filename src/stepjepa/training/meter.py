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

from stepjepa.data.types import LM, Batch, ForestOutput
from stepjepa.modeling.flops import KINDS

# Target states kept between two logs for the collapse signs; 256 give the rank of 96 to 256 dimensions a fair chance.
KEPT_TARGETS = 256
# What does not grow with the number of batches that it was taken over.
MEANS = ("lm_loss", "jepa_loss", "cosine_similarity", "regularizer", "target_std", "effective_rank")


def precise_dtype(device: torch.device) -> torch.dtype:
    """float64, where the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


@dataclass
class LossMeter:
    """Sums over micro-batches, kept on the device until they are asked for.

    Attributes:
        names: of the parts of the loss.
        sums: (2 * parts + 3,) float64: sum and count of every part, pairs, cosine similarities, tokens.
    """

    names: tuple[str, ...] = (LM,)
    sums: torch.Tensor | None = None
    targets: list[torch.Tensor] = field(default_factory=list)
    flops: Counter[str] = field(default_factory=Counter)  # by kind, of this process
    since: float = field(default_factory=time.perf_counter)
    tokens: float = 0.0  # of all processes, once `metrics` was called
    weights: dict[str, float] = field(default_factory=dict)  # constant factors of the parts

    def add(self, output: ForestOutput, batch: Batch) -> None:
        """Count one micro-batch."""
        source, target = output.source_states.detach(), output.target_states.detach()
        pairs, device = source.shape[0], source.device
        row: list[Any] = []
        for name in self.names:
            part = output.parts[name]
            self.weights[name] = part.weight
            row += [part.sum.detach(), part.count]
        row += [pairs, F.cosine_similarity(source.float(), target.float(), dim=-1).sum(), count_tokens(batch)]
        new = torch.stack([torch.as_tensor(value, device=device).to(precise_dtype(device)) for value in row])
        self.sums = new if self.sums is None else self.sums + new
        if pairs and sum(len(kept) for kept in self.targets) < KEPT_TARGETS:
            self.targets.append(target.float())

    def _over_processes(self, values: Sequence[float] | torch.Tensor, accelerator: Any) -> list[float]:
        device = accelerator.device
        totals = torch.as_tensor(values, dtype=precise_dtype(device), device=device)
        return accelerator.reduce(totals, reduction="sum").tolist()

    def metrics(self, makes_pairs: bool, accelerator: Any) -> dict[str, float]:
        """Means over the labels and pairs of all processes, by the names of the log. Every process must call it.

        Args:
            makes_pairs: whether pairs are compared at all.
        """
        empty = [0.0] * (2 * len(self.names) + 3)
        sums = self._over_processes(empty if self.sums is None else self.sums, accelerator)
        *parts, pairs, cosine, self.tokens = sums
        metrics = {}
        for name, total, count in zip(self.names, parts[::2], parts[1::2], strict=True):
            if name == LM or count:
                metrics[name] = total / (count or 1.0)
        if makes_pairs:
            metrics |= {"cosine_similarity": cosine / pairs} if pairs else {}
            metrics["num_pairs"] = int(pairs)
            metrics |= collapse_signs(self.targets)
        return metrics

    def speed(self) -> dict[str, float]:
        """Tokens a second of all processes since `since`; `metrics` has counted them."""
        return {"tokens_per_second": round(self.tokens / (time.perf_counter() - self.since), 1)}

    def flops_by_kind(self, accelerator: Any) -> dict[str, float]:
        """FLOPs of all processes, by kind. Every process must call it."""
        totals = self._over_processes([self.flops[kind] for kind in KINDS], accelerator)
        return {f"flops_{kind}": value for kind, value in zip(KINDS, totals, strict=True)}


def count_tokens(batch: Batch) -> torch.Tensor:
    """Tokens of a batch without padding, () int64."""
    return torch.stack([rows.filled.sum() for rows in batch.every_rows]).sum()


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
