"""Semantic tube: vectors made of hidden states, and the angle between them.

The objective compares displacements of a sequence's own hidden states, which should lie on a straight line (Semantic
Tube Prediction, arXiv:2602.22617). Each side of a pair is a linear combination of states, given as a flat list of
terms; the distance of the sides is `cosine_loss`, `mse_loss` or, for curvature, `turning_angle`, and the loss is

    ``sum_p w_p * d(source_p, target_p) / sum_p w_p``

over the whole batch, which for d = 1 - cos is the published code's ``1 - sum_p w_p cos_p / sum_p w_p``.

Shapes: T states, D width, M terms, P pairs.
"""

from __future__ import annotations

import torch

MIN_LENGTH = 1e-8  # what torch.nn.functional.cosine_similarity takes for the length of a zero vector


def combine(
    states_TD: torch.Tensor,
    position_M: torch.Tensor,
    coefficient_M: torch.Tensor,
    pair_M: torch.Tensor,
    pairs: int,
) -> torch.Tensor:
    """``v_p = sum of coefficient_m * states[position_m] over the terms m with pair_m = p``.

    The states are taken to float32 first, so that neither the difference of two nearly equal states nor the gradient of
    a state that many terms read is added up in a shorter dtype.

    Args:
        states_TD: (T, D) floating point.
        position_M: (M,) int32 or int64 in [0, T).
        coefficient_M: (M,) floating point.
        pair_M: (M,) int32 or int64 in [0, P).
        pairs: P.

    Returns:
        (P, D) float32, with gradient into the states; zero for a pair without terms.
    """
    states = states_TD.float()
    terms_MD = states.index_select(0, position_M) * coefficient_M.float().unsqueeze(1)
    return states.new_zeros(pairs, states.shape[1]).index_add(0, pair_M, terms_MD)


def turning_angle(source_PD: torch.Tensor, target_PD: torch.Tensor) -> torch.Tensor:
    """Angle between the two vectors of each pair: (P,) float32 radians in [0, pi].

    ``2 * atan2(|u - v|, |u + v|)`` of the unit vectors u, v, which equals the published code's
    ``acos(clamp(cos, -1, 1))``. That one divides by zero in its derivative for parallel vectors, and in float32 cannot
    tell angles below 3e-4 from zero. This one is accurate throughout; its gradient is bounded by the vectors' inverse
    lengths, and zero at 0 and pi, where the angle has a kink. A vector of length 0 (up to `MIN_LENGTH`) has no
    direction: its angle counts as pi/2, as if its cosine were 0, and has no gradient.
    """
    source, target = source_PD.float(), target_PD.float()
    shorter_P = torch.minimum(torch.linalg.vector_norm(source, dim=-1), torch.linalg.vector_norm(target, dim=-1))
    has_direction_P = shorter_P.detach() > MIN_LENGTH
    source, target = _unit(source, has_direction_P), _unit(target, has_direction_P)
    apart_P = torch.linalg.vector_norm(source - target, dim=-1)
    along_P = torch.linalg.vector_norm(source + target, dim=-1)
    return torch.where(has_direction_P, 2 * torch.atan2(apart_P, along_P), torch.pi / 2)


def _unit(vectors_PD: torch.Tensor, valid_P: torch.Tensor) -> torch.Tensor:
    """Vectors of length 1; a constant one where not valid."""
    filled = torch.where(valid_P.unsqueeze(1), vectors_PD, 1.0)
    return filled / torch.linalg.vector_norm(filled, dim=-1, keepdim=True)
