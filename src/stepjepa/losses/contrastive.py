"""InfoNCE: the source must pick its own target among those of the batch.

Shapes: P pairs of this process, Q targets of all processes, D width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

TEMPERATURE = 0.07


def infonce_loss(source_PD: torch.Tensor, target_PD: torch.Tensor, temperature: float = TEMPERATURE) -> torch.Tensor:
    """``CE(cos(u_i, v_j) / temperature, diagonal)``, one direction: (P,) float32.

    Formula and temperature are the published LLM-JEPA code's (arXiv:2509.14252, Table 3 ``infonce``; van den Oord et al.,
    arXiv:1807.03748). The negatives are the other targets of the micro-batch, gathered over all processes with their
    gradient; unlike the other losses its value therefore depends on the micro-batch's size.
    """
    source = F.normalize(source_PD.float(), dim=-1)
    target = F.normalize(target_PD.float(), dim=-1)
    targets_QD, offset = gather_targets(target)
    similarity_PQ = source @ targets_QD.T / temperature
    labels = torch.arange(source.shape[0], device=source.device) + offset
    return F.cross_entropy(similarity_PQ, labels, reduction="none")


def gather_targets(target_PD: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Targets of all processes (Q, D), with gradient, and where this process's begin. Alone: the input itself and 0.

    Processes may hold different numbers of targets, none included.
    """
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()) or distributed.get_world_size() == 1:
        return target_PD, 0
    from torch.distributed.nn.functional import all_gather

    count = torch.tensor([target_PD.shape[0]], device=target_PD.device)
    counts = [torch.zeros_like(count) for _ in range(distributed.get_world_size())]
    distributed.all_gather(counts, count)
    sizes = [int(size) for size in counts]
    padded = F.pad(target_PD, (0, 0, 0, max(sizes) - target_PD.shape[0]))
    gathered = all_gather(padded)
    pieces = [piece[:size] for piece, size in zip(gathered, sizes, strict=True)]
    return torch.cat(pieces), sum(sizes[: distributed.get_rank()])
