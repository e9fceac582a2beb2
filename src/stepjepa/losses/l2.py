"""Euclidean distance: every pair pulls with the same force, however far apart it is.

The gradient is a unit vector, where that of `mse` grows with the distance; `smooth_l1` lies between the two.

Shapes: P pairs, D width.
"""

from __future__ import annotations

import torch


def l2_loss(source_PD: torch.Tensor, target_PD: torch.Tensor) -> torch.Tensor:
    """``||u_i - v_i||_2``, not squared (LLM-JEPA, arXiv:2509.14252, Table 3).

    Its gradient is 0 where both views are equal.

    Args:
        source_PD, target_PD: (P, D) floating point.

    Returns:
        (P,) float32, at least 0.
    """
    return torch.linalg.vector_norm(source_PD.float() - target_PD.float(), dim=-1)
