"""VICReg's variance and covariance terms: keep every dimension alive, and no two dimensions the same.

Against collapse to a point (variance) and to a few dimensions (covariance), next to a distance that draws the views
together (`mse` is the paper's). They fix the first two moments only; `sigreg` asks for the whole distribution, and
`infonce` pushes apart pair by pair instead.

Bardes et al., arXiv:2105.04906, Eq. 1 to 4, in float32.

Shapes: P pairs of this process, Q rows of all processes, D width.
"""

from __future__ import annotations

import torch

from stepjepa.losses.gather import gather_rows


def variance_loss(rows_QD: torch.Tensor, floor: float = 1.0, eps: float = 1e-4) -> torch.Tensor:
    """``mean_d max(0, floor - sqrt(Var_d + eps))`` with the unbiased variance over rows (Eq. 1 and 2).

    Args:
        rows_QD: (Q, D) floating point; all there are, nothing is gathered here.
        floor: standard deviation from which on a dimension is left alone.
        eps: keeps the root's gradient finite at collapse.

    Returns:
        () float32 in [0, floor); 0, still connected to the rows, for fewer than two.
    """
    if rows_QD.shape[0] < 2:
        return _connected_zero(rows_QD)
    deviation_D = (rows_QD.float().var(dim=0) + eps).sqrt()
    return (floor - deviation_D).clamp(min=0).mean()


def covariance_loss(rows_QD: torch.Tensor) -> torch.Tensor:
    """``sum_{i != j} C_ij^2 / D`` with ``C = sum_q (z_q - mean)(z_q - mean)^T / (Q - 1)`` (Eq. 3 and 4).

    C holds D x D float32 values and costs Q x D x D operations: 64 MiB at a width of 4,096.

    Args:
        rows_QD: (Q, D) floating point; all there are, nothing is gathered here.

    Returns:
        () float32, at least 0; 0, still connected to the rows, for fewer than two.
    """
    if rows_QD.shape[0] < 2:
        return _connected_zero(rows_QD)
    centred_QD = rows_QD.float() - rows_QD.float().mean(dim=0)
    with torch.autocast(rows_QD.device.type, enabled=False):
        covariance_DD = centred_QD.T @ centred_QD / (rows_QD.shape[0] - 1)
    # Twice the upper triangle: taking the diagonal off the sum of all squares would leave its rounding error.
    return 2 * covariance_DD.triu(diagonal=1).square().sum() / rows_QD.shape[1]


def vicreg_regularizer(
    source_PD: torch.Tensor, target_PD: torch.Tensor, variance_weight: float, covariance_weight: float
) -> torch.Tensor:
    """``mu [v(U) + v(V)] + nu [c(U) + c(V)]``, Eq. 6 without its distance, over the rows of all processes.

    The same value on every process; `gather` says how to weigh it. A weight of 0 computes nothing.

    Args:
        source_PD, target_PD: (P, D) floating point; P may be 0 here and differ between processes.
        variance_weight, covariance_weight: mu and nu.

    Returns:
        () float32; 0, still connected, where all processes together hold fewer than two pairs.
    """
    both_QE, _ = gather_rows(torch.cat([source_PD.float(), target_PD.float()], dim=-1))  # E = 2D: one exchange
    loss = _connected_zero(both_QE)
    for rows_QD in both_QE.chunk(2, dim=-1):
        if variance_weight:
            loss = loss + variance_weight * variance_loss(rows_QD)
        if covariance_weight:
            loss = loss + covariance_weight * covariance_loss(rows_QD)
    return loss


def _connected_zero(rows_QD: torch.Tensor) -> torch.Tensor:
    """0 with a gradient of zeros, so that DistributedDataParallel finds one; 0 times a row would keep its inf or nan."""
    return rows_QD[:0].float().sum()
