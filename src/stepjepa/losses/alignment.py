"""Distances between a predicted view and its target, pair by pair.

``L = gamma * LM + lambda * d(Pred(Enc(text)), Enc(code))`` (LLM-JEPA, arXiv:2509.14252, Eq. 2). Each function takes the
raw states and returns one loss a pair in float32, whatever the states' dtype: a cosine distance computed in bfloat16
rounds 0.0014 to 0.

Shapes: P pairs, D width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def cosine_loss(source_PD: torch.Tensor, target_PD: torch.Tensor) -> torch.Tensor:
    """``1 - cos(u_i, v_i)``: (P,) float32 in [0, 2]. The paper's choice (Section 3.1)."""
    return 1.0 - F.cosine_similarity(source_PD.float(), target_PD.float(), dim=-1)


def l2_loss(source_PD: torch.Tensor, target_PD: torch.Tensor) -> torch.Tensor:
    """``||u_i - v_i||_2``: (P,) float32, the Euclidean norm, not squared (LLM-JEPA, Table 3)."""
    return torch.linalg.vector_norm(source_PD.float() - target_PD.float(), dim=-1)


def mse_loss(source_PD: torch.Tensor, target_PD: torch.Tensor) -> torch.Tensor:
    """``mean_d (u_id - v_id)^2``: (P,) float32; its mean over pairs is the mean over all elements (Table 3)."""
    return (source_PD.float() - target_PD.float()).square().mean(dim=-1)
