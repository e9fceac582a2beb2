"""Smooth L1: squared error near the target, absolute error far from it.

States of language models have a few dimensions that are many times larger than the rest. Under `mse` these decide the
gradient; here no dimension pulls harder than ``1 / D``.

Shapes: P pairs, D width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def smooth_l1_loss(source_PD: torch.Tensor, target_PD: torch.Tensor, beta: float = 1.0) -> torch.Tensor:
    """``mean_d h(u_id - v_id)`` with ``h(x) = x^2 / (2 beta)`` where ``|x| < beta`` and ``|x| - beta / 2`` elsewhere.

    With beta 1 it is Fast R-CNN's (arXiv:1504.08083, Eq. 3); data2vec regresses hidden states with it (arXiv:2202.03555,
    Section 3.4). Differences that are all smaller than beta give `mse` divided by ``2 beta``.

    Args:
        source_PD, target_PD: (P, D) floating point.
        beta: where the square turns into the absolute value, in units of the states; 0 gives the absolute error.

    Returns:
        (P,) float32, at least 0.
    """
    return F.smooth_l1_loss(source_PD.float(), target_PD.float(), reduction="none", beta=beta).mean(dim=-1)
