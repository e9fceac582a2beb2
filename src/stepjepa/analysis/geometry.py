"""Numbers from the states of paired views: cosines, retrieval, spectra, ranks, spread (docs/geometry.md).

Plain NumPy, computed in float64. Nothing of size N x N is held: similarities come in blocks of rows.

Shapes: N pairs, D width, C rows of a block.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from stepjepa.errors import DataError

# Numbers in a block of similarities: 64 MiB of float64.
_BLOCK = 2**23
# Two cosines closer than this are a tie; states come in float32, whose cosines agree to about 1e-7.
TIE = 1e-7
# Shuffled pairs that a picture is drawn from: all of them up to 500 rows.
MOST_SHUFFLED = 500 * 499


@dataclass(frozen=True)
class PairNumbers:
    """How well matched pairs are told from the others.

    Attributes:
        n: pairs, N.
        aligned_mean, aligned_sd: cosine of source i and target i.
        shuffled_mean, shuffled_sd: cosine of source i and target j, over all N (N - 1) pairs with i != j.
        gap: aligned_mean - shuffled_mean.
        d_prime: gap in units of the pooled spread, ``gap / sqrt((aligned_sd^2 + shuffled_sd^2) / 2)``; 0 where there is
            neither gap nor spread, None where there is a gap without any spread.
        retrieval_at_1, retrieval_at_5: share of sources whose target is among the 1 or 5 nearest of all N by cosine.
        mrr: mean of 1 / rank of the target.
        chance_at_1, chance_at_5, chance_mrr: what random states give.
    """

    n: int
    aligned_mean: float
    aligned_sd: float
    shuffled_mean: float
    shuffled_sd: float
    gap: float
    d_prime: float | None
    retrieval_at_1: float
    retrieval_at_5: float
    mrr: float
    chance_at_1: float
    chance_at_5: float
    chance_mrr: float


def pair_numbers(source: np.ndarray, target: np.ndarray) -> PairNumbers:
    """Cosines of matched and of all other pairs, and retrieval of the target from the source.

    Ties count as drawn at random: where b targets are nearer than the right one and t as near, its rank is each of
    b + 1 .. b + t + 1 with the same probability. Collapsed states thus give chance exactly, and a text that occurs twice
    is found every other time.

    Args:
        source, target: (N, D), N >= 2, row i of both a pair.

    Raises:
        DataError: the arrays are no such pair, or hold numbers that are not finite.
    """
    source_ND, target_ND = check_views(source, target)
    source_ND, target_ND = unit_rows(source_ND), unit_rows(target_ND)
    n = len(source_ND)
    aligned_N = np.einsum("nd,nd->n", source_ND, target_ND)
    nearer_N, tied_N = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    centre = aligned_N.mean()  # sums of squares around a number near the mean lose no digits
    total = squares = 0.0
    for rows in _blocks(n, n):
        cosine_CN = source_ND[rows] @ target_ND.T
        own_C1 = aligned_N[rows, None]
        nearer_N[rows] = (cosine_CN > own_C1 + TIE).sum(axis=1)
        tied_N[rows] = (np.abs(cosine_CN - own_C1) <= TIE).sum(axis=1) - 1  # the right one ties with itself
        cosine_CN -= centre
        total += cosine_CN.sum()
        squares += np.einsum("cn,cn->", cosine_CN, cosine_CN)
    others = n * (n - 1)
    around_N = aligned_N - centre
    mean = (total - around_N.sum()) / others
    variance = max((squares - (around_N**2).sum()) / others - mean**2, 0.0)
    shuffled_mean, shuffled_sd = float(centre + mean), math.sqrt(variance)
    aligned_mean, aligned_sd = float(centre), float(aligned_N.std(ddof=1))
    gap = aligned_mean - shuffled_mean
    spread = math.sqrt((aligned_sd**2 + shuffled_sd**2) / 2)
    harmonic_N = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, n + 1))])
    return PairNumbers(
        n,
        aligned_mean,
        aligned_sd,
        shuffled_mean,
        shuffled_sd,
        gap,
        # Below the rounding of float32 a spread is none.
        gap / spread if spread > TIE else (0.0 if abs(gap) <= TIE else None),
        _found(nearer_N, tied_N, 1),
        _found(nearer_N, tied_N, 5),
        float(((harmonic_N[nearer_N + tied_N + 1] - harmonic_N[nearer_N]) / (tied_N + 1)).mean()),
        1 / n,
        min(5, n) / n,
        float(harmonic_N[n] / n),
    )


def aligned_cosines(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Cosine of every pair, (N,)."""
    source_ND, target_ND = check_views(source, target)
    return np.einsum("nd,nd->n", unit_rows(source_ND), unit_rows(target_ND))


def shuffled_cosines(source: np.ndarray, target: np.ndarray, seed: int = 0) -> np.ndarray:
    """Cosines of sources with the targets of other pairs, (M,), the same for the same seed.

    All N (N - 1) of them, where these are no more than `MOST_SHUFFLED`; else so many, for which the pairs go round one
    random cycle by different distances, so that each source and each target is used equally often.
    """
    source_ND, target_ND = check_views(source, target)
    unit_source_ND, unit_target_ND = unit_rows(source_ND), unit_rows(target_ND)
    rng, n = np.random.default_rng(seed), len(source_ND)
    cycle, partner = rng.permutation(n), np.empty(n, dtype=np.int64)
    found = []
    for distance in rng.permutation(np.arange(1, n))[: max(1, MOST_SHUFFLED // n)]:
        partner[cycle] = np.roll(cycle, distance)
        found.append(np.einsum("nd,nd->n", unit_source_ND, unit_target_ND[partner]))
    return np.concatenate(found)


def pairwise_cosine(states: np.ndarray) -> float:
    """Mean cosine of two different rows of (N, D) states: 0 for states in all directions, 1 for a single direction."""
    unit_ND = unit_rows(check_states(states))
    n = len(unit_ND)
    sum_D = unit_ND.sum(axis=0)
    return float((sum_D @ sum_D - np.einsum("nd,nd->", unit_ND, unit_ND)) / (n * (n - 1)))


def uniformity(states: np.ndarray, t: float = 2.0) -> float:
    """``log mean_{i != j} exp(-t ||x_i - x_j||^2)`` of unit-length rows (Wang and Isola 2020, arXiv:2005.10242, Eq. 2).

    Of (N, D) states. 0 for a single point, about ``-2 t = -4`` for many rows spread evenly in a wide space; smaller is more
    uniform.
    """
    unit_ND = unit_rows(check_states(states))
    n = len(unit_ND)
    squared_N = np.einsum("nd,nd->n", unit_ND, unit_ND)  # 0 for rows of zeros
    total = 0.0
    for rows in _blocks(n, n):
        distance_CN = unit_ND[rows] @ unit_ND.T
        distance_CN *= -2
        distance_CN += squared_N[rows, None] + squared_N
        np.exp(-t * distance_CN, out=distance_CN)
        total += distance_CN.sum()
    return float(np.log((total - n) / (n * (n - 1))))


def singular_values(states: np.ndarray, center: bool = False) -> np.ndarray:
    """Singular values, largest first, (min(N, D),).

    Args:
        states: (N, D); ``source - target`` for the spectrum of the paper's Figure 7 and Table 14 (arXiv:2509.14252).
        center: take the mean row away first.
    """
    states_ND = check_states(states).astype(np.float64)
    if center:
        states_ND -= states_ND.mean(axis=0)
    return np.linalg.svd(states_ND, compute_uv=False)


def effective_rank(singular: np.ndarray, epsilon: float = 1e-7) -> float:
    """``exp(-sum_k p_k log p_k)``, ``p_k = s_k / sum(s) + epsilon`` (RankMe, Garrido et al. 2023, arXiv:2210.02885, Eq. 1).

    1 for a single direction, min(N, D) for equal singular values, 0 for states that are all zero.

    Args:
        singular: (S,) singular values of the states, S = min(N, D).
        epsilon: keeps the logarithm finite; the paper's value.
    """
    total = singular.sum()
    if total == 0:
        return 0.0
    share = singular / total + epsilon
    return float(np.exp(-(share * np.log(share)).sum()))


def top_mean(singular: np.ndarray, count: int = 100) -> float:
    """Mean of the `count` largest of (S,) singular values, of all if there are fewer (arXiv:2509.14252, Table 14)."""
    return float(np.sort(singular)[::-1][:count].mean())


def dimension_variance(states: np.ndarray) -> np.ndarray:
    """Variance (N - 1) of every dimension, (D,)."""
    return check_states(states).var(axis=0, ddof=1, dtype=np.float64)


def variance_ratio(states: np.ndarray, base: np.ndarray) -> np.ndarray:
    """Variance of every dimension over that of a base model's states, (D,); NaN where the base's is 0.

    Args:
        states: (N, D) of the trained model.
        base: (M, D) of the model that it was trained from; dimensions mean the same only then.

    Raises:
        DataError: the two have different widths.
    """
    if np.shape(states)[-1] != np.shape(base)[-1]:
        raise DataError(f"states of width {np.shape(states)[-1]} against a base of width {np.shape(base)[-1]}")
    variance_D, base_D = dimension_variance(states), dimension_variance(base)
    return np.divide(variance_D, base_D, out=np.full_like(base_D, np.nan), where=base_D > 0)


def unit_rows(states: np.ndarray) -> np.ndarray:
    """Rows of length 1 in float64, (N, D); rows of zeros stay zeros, and their cosine with everything is 0."""
    states_ND = np.asarray(states, dtype=np.float64)
    length_N1 = np.linalg.norm(states_ND, axis=1, keepdims=True)
    return np.divide(states_ND, length_N1, out=np.zeros_like(states_ND), where=length_N1 > 0)


def check_states(states: np.ndarray, name: str = "states") -> np.ndarray:
    """The array itself if it is (N, D), N >= 2, of finite numbers.

    Raises:
        DataError: it is not.
    """
    array = np.asarray(states)
    if array.ndim != 2 or len(array) < 2 or array.shape[1] < 1:
        raise DataError(f"{name} must be of shape (rows, width) with two rows or more, not {array.shape}")
    bad_N = ~np.isfinite(array).all(axis=1)
    if bad_N.any():
        raise DataError(f"{name}: {bad_N.sum()} of {len(array)} rows are not finite, the first is row {bad_N.argmax()}")
    return array


def check_views(source: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both arrays if they are of the same shape (N, D) and pass `check_states`.

    Raises:
        DataError: they are not.
    """
    source, target = check_states(source, "source"), check_states(target, "target")
    if source.shape != target.shape:
        raise DataError(f"source is of shape {source.shape} and target of {target.shape}: row i of both must be a pair")
    return source, target


def _blocks(rows: int, columns: int) -> Iterator[slice]:
    size = max(1, _BLOCK // columns)
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))


def _found(nearer_N: np.ndarray, tied_N: np.ndarray, k: int) -> float:
    """Mean probability that the right target is among the k nearest."""
    return float(np.clip((k - nearer_N) / (tied_N + 1), 0, 1).mean())
