"""What counts as collapse, for all who look for it: the training log, the model card, `stepjepa analyze` and the report.

Plain language models already have cone-shaped states: two unrelated views have a cosine of .76 to .96 and the effective
rank is well above 1. Collapsed ones reach .995 and rank 1.0. The thresholds lie between the two.

Shapes: P pairs, D width, K singular values.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

CONE_COSINE = 0.98  # mean cosine of two rows: above all plain models measured (.96), below all collapsed ones (.995)
LOW_RANK = 2.0  # effective rank of unit rows
RANK_ROWS = 8  # rows and dimensions below which a rank says nothing


def effective_rank(singular_K: np.ndarray) -> float:
    """``exp(-sum_k p_k log p_k)``, ``p_k = s_k / sum(s) + 1e-7`` (RankMe, Garrido et al. 2023, arXiv:2210.02885, Eq. 1).

    Of singular values (K,): 1 for a single direction, K for equal values, 0 for states that are all zero.
    """
    total = singular_K.sum()
    if total == 0:
        return 0.0
    share_K = singular_K / total + 1e-7
    return float(np.exp(-(share_K * np.log(share_K)).sum()))


def logged_collapse(last: Mapping[str, float]) -> tuple[list[str], bool]:
    """The signs of collapse in the last values of a log, and whether a low rank, which is collapse by itself, is one.

    The log knows the targets of training batches alone. Their spread gives the mean cosine of two targets:
    ``target_std ** 2 = 1 - mean cosine`` for unit-length states.
    """
    rank = last.get("effective_rank", LOW_RANK)
    cosine = 1 - last.get("target_std", 1.0) ** 2
    low = rank < LOW_RANK and last.get("num_pairs", RANK_ROWS) >= RANK_ROWS
    texts = [f"target states have an effective rank of {rank:.2f} (below {LOW_RANK})"] if low else []
    if cosine >= CONE_COSINE:
        texts.append(
            f"target states point in one direction: two targets have a cosine of {cosine:.4f} on average, from target_std "
            f"{last['target_std']:.3f} (from {CONE_COSINE}; plain models .76 to .96)"
        )
    return texts, low


def collapse_words(collapse: bool, signs: bool) -> str:
    """What signs of collapse amount to, in the words that `stepjepa analyze` and the report share."""
    if collapse:
        return "collapse"
    return "signs, but no collapse by themselves" if signs else "no sign of collapse"
