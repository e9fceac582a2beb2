"""Distances between the vectors of each pair, under the names that ``--jepa_loss`` takes.

``L = gamma * LM + lambda * d(Pred(Enc(text)), Enc(code))`` (LLM-JEPA, arXiv:2509.14252, Eq. 2); the paper's own choice of d
is the cosine, the others are in its Table 3, except `smooth_l1`. Only `infonce_loss` pushes pairs apart; with the others, a
term of `regularizers` can keep the states from collapsing to one point.

| d | gradient |
|---|---|
| cosine | along the direction only, not the length |
| l2 | the same force for every pair, however far apart its vectors are |
| mse | grows with the distance; large dimensions outweigh the small ones |
| smooth_l1 | that of mse near the target, of bounded size far from it |
| infonce | along the direction, towards the pair's own target and away from the other targets of the batch |

The distances take source and target states (P, D) of any floating point dtype and return (P,) float32. All are computed in
float32: in bfloat16 a cosine distance of 0.0014 is 0.

Shapes: T states, P pairs, Q pairs of all processes, D width, M terms.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from stepjepa.losses.gather import gather_rows

# Default temperature of infonce.
TEMPERATURE = 0.07
# torch.nn.functional.cosine_similarity uses this length for shorter vectors.
MIN_LENGTH = 1e-8


def cosine_loss(source_PD: Tensor, target_PD: Tensor) -> Tensor:
    """``1 - cos(u_i, v_i)``, (P,) float32 in [0, 2]; a state of zeros has cosine 0 with everything (Section 3.1)."""
    return 1.0 - F.cosine_similarity(source_PD.float(), target_PD.float(), dim=-1)


def l2_loss(source_PD: Tensor, target_PD: Tensor) -> Tensor:
    """``||u_i - v_i||_2``, not squared, (P,) float32; its gradient is 0 where both views are equal."""
    return torch.linalg.vector_norm(source_PD.float() - target_PD.float(), dim=-1)


def mse_loss(source_PD: Tensor, target_PD: Tensor) -> Tensor:
    """``mean_d (u_id - v_id)^2``, (P,) float32. The mean over pairs is the mean over all elements."""
    return (source_PD.float() - target_PD.float()).square().mean(dim=-1)


def smooth_l1_loss(source_PD: Tensor, target_PD: Tensor) -> Tensor:
    """``mean_d h(u_id - v_id)``, (P,) float32; ``h(x) = x^2 / 2`` where ``|x| < 1``, else ``|x| - 1 / 2``.

    States of language models have a few dimensions that are many times larger than the rest; here none pulls harder than
    ``1 / D``. It is Fast R-CNN's (arXiv:1504.08083, Eq. 3); data2vec regresses hidden states with it (arXiv:2202.03555,
    Section 3.4). Differences that are all smaller than 1 give half of `mse_loss`.
    """
    error_PD = F.smooth_l1_loss(source_PD.float(), target_PD.float(), reduction="none")
    return error_PD.mean(dim=-1)


DISTANCES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cosine": cosine_loss,
    "l2": l2_loss,
    "mse": mse_loss,
    "smooth_l1": smooth_l1_loss,
}


def infonce_loss(
    source_PD: Tensor,
    target_PD: Tensor,
    temperature: float = TEMPERATURE,
    symmetric: bool = False,
) -> Tensor:
    """The source must pick its own target among those of the batch: ``CE(cos(u_i, v_j) / temperature, j = i)``.

    The only distance whose value depends on the size of the micro-batch: log Q if all views are equal, 0 for a single
    pair.

    Formula and temperature are the published LLM-JEPA code's (arXiv:2509.14252, Table 3 ``infonce``; van den Oord et al.,
    arXiv:1807.03748, Eq. 4). The negatives are the other targets of the micro-batch, gathered over all processes with
    their gradient (`gather` says what that means for the caller).

    Args:
        source_PD, target_PD: (P, D) floating point; P may be 0 here and differ between processes.
        temperature: divides the cosines; a smaller one gives the hardest negatives more weight.
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
    # One exchange between processes serves both sides: E = 2D.
    joined_QE, offset = gather_rows(torch.cat([source_PD, target_PD], dim=-1))
    sources_QD, targets_QD = joined_QE.chunk(2, dim=-1)
    forward_P = _pick_own(source_PD, targets_QD, offset, temperature)
    backward_P = _pick_own(target_PD, sources_QD, offset, temperature)
    return (forward_P + backward_P) / 2


def _pick_own(query_PD: Tensor, keys_QD: Tensor, offset: int, temperature: float) -> Tensor:
    """Cross-entropy of each query over all keys; the right key of query i is number ``offset + i``. (P,) float32."""
    # A bfloat16 product under autocast would be off by up to 0.004 / temperature.
    with torch.autocast(query_PD.device.type, enabled=False):
        similarity_PQ = query_PD @ keys_QD.T / temperature
    labels_P = torch.arange(query_PD.shape[0], device=query_PD.device) + offset
    return F.cross_entropy(similarity_PQ, labels_P, reduction="none")


def combine(
    states_TD: Tensor,
    position_M: Tensor,
    coefficient_M: Tensor,
    pair_M: Tensor,
    pairs: int,
) -> Tensor:
    """``v_p = sum of coefficient_m * states[position_m] over the terms m with pair_m = p``.

    The states are converted to float32 first: in lower precision, the difference of two nearly equal states, and the
    gradient of a state in many terms, would lose most digits.

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


def turning_angle(source_PD: Tensor, target_PD: Tensor) -> Tensor:
    """Angle between the two vectors of each pair: (P,) float32 radians in [0, pi].

    ``2 * atan2(|u - v|, |u + v|)`` of the unit vectors u, v, which equals the published code's
    ``acos(clamp(cos, -1, 1))``. For parallel vectors, the derivative of the latter divides by zero, and in float32 it cannot
    distinguish angles below 3e-4 from zero. The form here is accurate throughout; its gradient is bounded by the vectors'
    inverse lengths, and zero at 0 and pi, where the angle has a kink. A vector of length 0 (up to `MIN_LENGTH`) has no
    direction: its angle counts as pi/2, as if its cosine were 0, and has no gradient.
    """
    source_PD, target_PD = source_PD.float(), target_PD.float()
    source_length_P = torch.linalg.vector_norm(source_PD, dim=-1)
    target_length_P = torch.linalg.vector_norm(target_PD, dim=-1)
    has_direction_P = torch.minimum(source_length_P, target_length_P).detach() > MIN_LENGTH
    # Both vectors of a pair without direction become constants: a masked result alone would still have NaN gradients.
    keep_P1 = has_direction_P.unsqueeze(1)
    source_PD = torch.where(keep_P1, source_PD, 1.0)
    target_PD = torch.where(keep_P1, target_PD, 1.0)
    source_unit_PD = F.normalize(source_PD, dim=-1)
    target_unit_PD = F.normalize(target_PD, dim=-1)
    difference_PD = source_unit_PD - target_unit_PD
    sum_PD = source_unit_PD + target_unit_PD
    apart_P = torch.linalg.vector_norm(difference_PD, dim=-1)
    along_P = torch.linalg.vector_norm(sum_PD, dim=-1)
    angle_P = 2 * torch.atan2(apart_P, along_P)
    return torch.where(has_direction_P, angle_P, torch.pi / 2)
