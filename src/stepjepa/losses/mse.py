"""Mean squared error: the square of the `l2` distance, divided by the width.

Far pairs pull hardest, and large dimensions outweigh the small ones; `smooth_l1` bounds both.

Shapes: P pairs, D width.
"""

from __future__ import annotations

import torch


def mse_loss(source_PD: torch.Tensor, target_PD: torch.Tensor) -> torch.Tensor:
    """``mean_d (u_id - v_id)^2`` (LLM-JEPA, arXiv:2509.14252, Table 3).

    The mean over pairs is the mean over all elements.

    Args:
        source_PD, target_PD: (P, D) floating point.

    Returns:
        (P,) float32, at least 0.
    """
    return (source_PD.float() - target_PD.float()).square().mean(dim=-1)
