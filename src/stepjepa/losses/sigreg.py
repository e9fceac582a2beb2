"""SIGReg: along random directions the states should look like a standard normal sample.

Against collapse of any kind, together with a distance that draws the views together. It fixes location, scale and shape
at once, where `vicreg` fixes variances and covariances, in time and memory that grow with the width and not its square.

Balestriero and LeCun, LeJEPA, arXiv:2511.08544, Section 4; written from the formula.

Shapes: P pairs and N rows of this process, D width, K directions, T knots.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from stepjepa.losses.gather import sum_over_ranks

KNOTS = 17
BOUND = 3.0


def random_directions(width: int, count: int, seed: int, device: torch.device | None = None) -> torch.Tensor:
    """Directions drawn evenly from the unit sphere, one a column: (D, K) float32.

    A new seed for every step lets the steps together cover the sphere. Drawn on the CPU by a generator of its own: the
    same seed gives the same directions on every process and device, and the global generators do not move.
    """
    generator = torch.Generator(device="cpu").manual_seed(seed)
    directions_DK = torch.randn(width, count, generator=generator, device="cpu")
    return F.normalize(directions_DK, dim=0).to(device)


def sigreg_regularizer(source_PD: torch.Tensor, target_PD: torch.Tensor, directions_DK: torch.Tensor) -> torch.Tensor:
    """Mean of `epps_pulley` over all directions and both sides.

    Over the pairs of all processes, and the same value on each; `gather` says how to weigh it.

    Args:
        source_PD, target_PD: (P, D) floating point; P may be 0 here and differ between processes.
        directions_DK: (D, K) unit columns, the same on every process (`random_directions`).

    Returns:
        () float32, at least 0; 0, still connected, where no process has pairs.
    """
    # Under autocast the products would be bfloat16, and a projection would keep two digits.
    with torch.autocast(source_PD.device.type, enabled=False):
        sides = [side_PD.float() @ directions_DK.float() for side_PD in (source_PD, target_PD)]
    return epps_pulley(torch.cat(sides, dim=-1)).mean()  # side by side: one exchange between processes for both


def epps_pulley(values_NK: torch.Tensor, knots: int = KNOTS, bound: float = BOUND) -> torch.Tensor:
    """Distance between each column's characteristic function and the standard normal one (LeJEPA, Section 4.2).

    ``N * sum_q w_q [(mean_n cos(t_q y_n) - exp(-t_q^2 / 2))^2 + (mean_n sin(t_q y_n))^2]``, N and the means over the rows of
    all processes; t_q are `knots` even steps from 0 to `bound`, w_q the trapezoid rule's weights times ``exp(-t_q^2 / 2)``.

    The integrand is even, so this is half the integral over [-bound, bound]: where a published weight refers to the
    latter, take it twice. For a standard normal sample of any size the expectation is ``sum_q w_q (1 - exp(-t_q^2))``,
    about 0.53; for other distributions it grows with N.

    Several tensors of N x K x T float32 values live until the backward pass: 4 MiB each for 64 rows and 1,024 directions.

    Args:
        values_NK: (N, K) float32, K samples next to each other.
        knots: points of the integral, at least 2.
        bound: its end.

    Returns:
        (K,) float32, at least 0.
    """
    knots_T = torch.linspace(0.0, bound, knots, device=values_NK.device)
    normal_T = torch.exp(-knots_T.square() / 2)
    weights_T = torch.full_like(knots_T, bound / (knots - 1)) * normal_T
    weights_T[[0, -1]] /= 2
    phases_NKT = values_NK[..., None] * knots_T
    # Sums, not means, are what unequal processes can add up.
    sums_2KT = sum_over_ranks(torch.stack([phases_NKT.cos().sum(dim=0), phases_NKT.sin().sum(dim=0)]))
    rows = sum_over_ranks(torch.tensor(float(values_NK.shape[0]), device=values_NK.device))
    cosine_KT, sine_KT = sums_2KT / rows.clamp(min=1)
    error_KT = (cosine_KT - normal_T).square() + sine_KT.square()
    return rows * (error_KT * weights_T).sum(dim=-1)
