"""InfoNCE: the source must pick its own target among those of the batch.

The only loss here that also pushes pairs apart, and the only one whose value depends on the micro-batch's size: log Q where
the views cannot be told apart, 0 for a single pair. On matched directions it pulls along the same cosine as `cosine`.

Shapes: P pairs of this process, Q pairs of all processes, D width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from stepjepa.losses.gather import gather_rows

TEMPERATURE = 0.07


def infonce_loss(
    source_PD: torch.Tensor, target_PD: torch.Tensor, temperature: float = TEMPERATURE, symmetric: bool = False
) -> torch.Tensor:
    """``CE(cos(u_i, v_j) / temperature, j = i)``.

    Formula and temperature are the published LLM-JEPA code's (arXiv:2509.14252, Table 3 ``infonce``; van den Oord et al.,
    arXiv:1807.03748, Eq. 4). The negatives are the other targets of the micro-batch, gathered over all processes with
    their gradient (`gather` says what that means for the caller).

    Args:
        source_PD, target_PD: (P, D) floating point; P may be 0 here and differ between processes.
        temperature: divides the cosines; smaller weighs the hardest negatives more.
        symmetric: the mean of both directions, source among targets and target among sources (CLIP, arXiv:2103.00020,
            Figure 3).

    Returns:
        (P,) float32, at least 0.
    """
    source_PD = F.normalize(source_PD.float(), dim=-1)
    target_PD = F.normalize(target_PD.float(), dim=-1)
    if not symmetric:
        targets_QD, offset = gather_rows(target_PD)
        return _pick_own(source_PD, targets_QD, offset, temperature)
    both_QE, offset = gather_rows(torch.cat([source_PD, target_PD], dim=-1))  # E = 2D: one exchange for both sides
    sources_QD, targets_QD = both_QE.chunk(2, dim=-1)
    there = _pick_own(source_PD, targets_QD, offset, temperature)
    back = _pick_own(target_PD, sources_QD, offset, temperature)
    return (there + back) / 2


def _pick_own(query_PD: torch.Tensor, keys_QD: torch.Tensor, offset: int, temperature: float) -> torch.Tensor:
    """Cross-entropy of each query against all keys; the own key of query i is number ``offset + i``. (P,) float32."""
    # A bfloat16 product under autocast would be off by up to 0.004 / temperature.
    with torch.autocast(query_PD.device.type, enabled=False):
        similarity_PQ = query_PD @ keys_QD.T / temperature
    labels_P = torch.arange(query_PD.shape[0], device=query_PD.device) + offset
    return F.cross_entropy(similarity_PQ, labels_P, reduction="none")
