"""Regularizers against collapse, added to a distance that draws the views together.

The variance and covariance terms of VICReg keep every dimension alive and decorrelated (Bardes et al., arXiv:2105.04906,
Eq. 1 to 4). They constrain the first two moments only. SIGReg constrains the distribution: along random directions the
states should be a standard normal sample. Its time and memory grow with the width, not with its square (Balestriero and
LeCun, LeJEPA, arXiv:2511.08544, Section 4; written from the formula).

All computations are in float32.

Shapes: P pairs and N rows of this process, Q rows of all processes, D width, K directions, T knots.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from stepjepa.losses.gather import gather_rows, sum_over_ranks

# Points and upper end of SIGReg's integral.
KNOTS = 17
BOUND = 3.0
# Keeps the gradient of the standard deviation finite at collapse.
EPSILON = 1e-4


def variance_loss(rows_QD: Tensor) -> Tensor:
    """``mean_d max(0, 1 - sqrt(Var_d + EPSILON))`` with the unbiased variance over rows (Eq. 1 and 2).

    Args:
        rows_QD: (Q, D) floating point, the rows of all processes.

    Returns:
        () float32 in [0, 1); 0 for fewer than two rows, but still connected to them.
    """
    if rows_QD.shape[0] < 2:
        return _connected_zero(rows_QD)
    deviation_D = (rows_QD.float().var(dim=0) + EPSILON).sqrt()
    return (1 - deviation_D).clamp(min=0).mean()


def covariance_loss(rows_QD: Tensor) -> Tensor:
    """``sum_{i != j} C_ij^2 / D`` with ``C = sum_q (z_q - mean)(z_q - mean)^T / (Q - 1)`` (Eq. 3 and 4).

    C holds D x D float32 values (64 MiB at a width of 4,096) and costs Q x D x D operations.

    Args:
        rows_QD: (Q, D) floating point, the rows of all processes.

    Returns:
        () float32, at least 0; 0 for fewer than two rows, but still connected to them.
    """
    if rows_QD.shape[0] < 2:
        return _connected_zero(rows_QD)
    count, width = rows_QD.shape
    rows_QD = rows_QD.float()
    centred_QD = rows_QD - rows_QD.mean(dim=0)
    with torch.autocast(rows_QD.device.type, enabled=False):
        covariance_DD = centred_QD.T @ centred_QD / (count - 1)
    # Twice the upper triangle: subtracting the diagonal from the sum of all squares would leave its rounding error.
    upper_DD = covariance_DD.triu(diagonal=1)
    return 2 * upper_DD.square().sum() / width


def vicreg_regularizer(source_PD: Tensor, target_PD: Tensor, covariance_weight: float) -> Tensor:
    """``v(U) + v(V) + nu [c(U) + c(V)]``, Eq. 6 without its distance and with mu = 1, over the rows of all processes.

    The value is the same on every process; see `gather` for its weight. With nu = 0, the covariance is not computed.

    Args:
        source_PD, target_PD: (P, D) floating point; P may be 0 here and differ between processes.
        covariance_weight: nu.

    Returns:
        () float32; 0, still connected, if all processes together have fewer than two pairs.
    """
    # One exchange between processes serves both sides: E = 2D.
    joined_QE, _ = gather_rows(torch.cat([source_PD.float(), target_PD.float()], dim=-1))
    loss = _connected_zero(joined_QE)
    for rows_QD in joined_QE.chunk(2, dim=-1):
        loss = loss + variance_loss(rows_QD)
        if covariance_weight:
            loss = loss + covariance_weight * covariance_loss(rows_QD)
    return loss


def _connected_zero(rows_QD: Tensor) -> Tensor:
    """0 with a gradient of zeros, which DistributedDataParallel needs. ``0 * row`` would keep an inf or NaN of the row."""
    return rows_QD[:0].float().sum()


def random_directions(
    width: int, count: int, seed: int, device: torch.device | None = None
) -> Tensor:
    """Directions drawn uniformly from the unit sphere, one per column: (D, K) float32.

    A new seed at every step covers the sphere over time. A separate generator on the CPU gives the same directions on
    every process and device, and leaves the global generators untouched.
    """
    generator = torch.Generator(device="cpu").manual_seed(seed)
    directions_DK = torch.randn(width, count, generator=generator, device="cpu")
    return F.normalize(directions_DK, dim=0).to(device)


def sigreg_regularizer(source_PD: Tensor, target_PD: Tensor, directions_DK: Tensor) -> Tensor:
    """Mean of `epps_pulley` over all directions and both sides.

    It is taken over the pairs of all processes, so its value is the same on each; see `gather` for its weight.

    Args:
        source_PD, target_PD: (P, D) floating point; P may be 0 here and differ between processes.
        directions_DK: (D, K) unit columns, the same on every process (`random_directions`).

    Returns:
        () float32, at least 0; 0, still connected, where no process has pairs.
    """
    # Under autocast the products would be bfloat16, and a projection would keep two digits.
    with torch.autocast(source_PD.device.type, enabled=False):
        sides = [side_PD.float() @ directions_DK.float() for side_PD in (source_PD, target_PD)]
    # Side by side: one exchange between processes for both.
    return epps_pulley(torch.cat(sides, dim=-1)).mean()


def epps_pulley(values_NK: Tensor) -> Tensor:
    """Distance between each column's characteristic function and the standard normal one (LeJEPA, Section 4.2).

    ``N * sum_q w_q [(mean_n cos(t_q y_n) - exp(-t_q^2 / 2))^2 + (mean_n sin(t_q y_n))^2]``, N and the means over the rows of
    all processes; t_q are `KNOTS` evenly spaced points from 0 to `BOUND`, w_q the trapezoid rule's weights times
    ``exp(-t_q^2 / 2)``.

    The integrand is even, so this is half the integral over [-BOUND, BOUND]: a published weight that refers to the
    latter must be doubled here. For a standard normal sample of any size the expectation is ``sum_q w_q (1 - exp(-t_q^2))``,
    about 0.53; for other distributions it grows with N.

    Several tensors of N x K x T float32 values live until the backward pass: 4 MiB each for 64 rows and 1,024 directions.

    Args:
        values_NK: (N, K) float32, K samples next to each other.

    Returns:
        (K,) float32, at least 0.
    """
    device = values_NK.device
    knots_T = torch.linspace(0.0, BOUND, KNOTS, device=device)
    step = BOUND / (KNOTS - 1)
    normal_T = torch.exp(-knots_T.square() / 2)
    weights_T = step * normal_T
    # The trapezoid rule gives the two ends half weight.
    weights_T[:: KNOTS - 1] /= 2

    # Processes with unequal numbers of rows can add sums, but not means.
    phases_NKT = values_NK[..., None] * knots_T
    cosine_sum_KT = phases_NKT.cos().sum(dim=0)
    sine_sum_KT = phases_NKT.sin().sum(dim=0)
    sums_2KT = sum_over_ranks(torch.stack([cosine_sum_KT, sine_sum_KT]))
    rows = sum_over_ranks(torch.full((), float(len(values_NK)), device=device))

    cosine_KT, sine_KT = sums_2KT / rows.clamp(min=1)
    error_KT = (cosine_KT - normal_T).square() + sine_KT.square()
    return rows * (error_KT * weights_T).sum(dim=-1)
