"""Cosine distance: the direction of the prediction, not its length.

``L = gamma * LM + lambda * d(Pred(Enc(text)), Enc(code))`` (LLM-JEPA, arXiv:2509.14252, Eq. 2) with the paper's own choice
of d. Its siblings `l2`, `mse` and `smooth_l1` also match the length; `infonce` compares the same cosine with those of the
other pairs. None of the distances keeps the states from collapsing to one point: `vicreg` and `sigreg` do.

Shapes: P pairs, D width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def cosine_loss(source_PD: torch.Tensor, target_PD: torch.Tensor) -> torch.Tensor:
    """``1 - cos(u_i, v_i)`` (LLM-JEPA, arXiv:2509.14252, Section 3.1).

    Computed in float32 whatever the states' dtype: in bfloat16 a distance of 0.0014 is 0. A state of zeros has cosine 0
    with everything.

    Args:
        source_PD, target_PD: (P, D) floating point.

    Returns:
        (P,) float32 in [0, 2].
    """
    return 1.0 - F.cosine_similarity(source_PD.float(), target_PD.float(), dim=-1)
