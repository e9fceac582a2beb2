"""Measures of the states of paired views: cosines, retrieval, ranks, spread, a linear map, and signs of collapse.

Computed in float64 with NumPy; docs/geometry.md has the formulas. Similarities are computed in blocks of rows, so that
no N x N matrix is in memory.

Shapes: N pairs, D width, C rows of a block.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from stepjepa.config.option import Names
from stepjepa.modeling.card import CONE_COSINE, CONE_WORDS, LOW_RANK, RANK_ROWS, effective_rank
from stepjepa.objectives.options import LossOptions, PairOptions, PredictorOptions

# Cosines of float32 states are accurate to about this value, so cosines that differ by less are tied.
TIE = 1e-7
# Fewest rows for a linear map, held-out rows included.
MIN_ROWS = 10
# For the linear map: the share of held-out rows, and the size, relative to the largest singular value, below which singular
# values are treated as zero.
TEST_SHARE, CUTOFF = 0.2, 1e-6
# Elements of a block of similarities: 64 MiB of float64.
_BLOCK = 2**23
# Below half a standard deviation between matched and shuffled cosines, most pairs look alike. Training logs do not contain
# this measure.
LOW_D_PRIME = 0.5
_NAME = Names(LossOptions, PairOptions, PredictorOptions)
ADVICE = (
    f"What to do: keep the targets apart with --{_NAME.regularizer} vicreg, --{_NAME.jepa_loss} infonce, or no gradient "
    f"into the targets (--{_NAME.target_grad} false, --{_NAME.target_encoder} ema); or lower --{_NAME.lbd}. Then compare "
    f"with --{_NAME.control} shuffled: good geometry by itself does not make a better model."
)


@dataclass(frozen=True)
class PairNumbers:
    """How well matched pairs are separated from all other pairs.

    Attributes:
        aligned_mean, aligned_sd: cosine of source i and target i.
        shuffled_mean, shuffled_sd: cosine of source i and target j, over all N (N - 1) pairs with i != j.
        d_prime: gap in units of the pooled spread, ``gap / sqrt((aligned_sd^2 + shuffled_sd^2) / 2)``; without any spread,
            0 if there is no gap either, else None.
        retrieval_at_1: share of sources whose target is the nearest of all N by cosine.
        mrr: mean of 1 / rank of the target.
        chance_at_1, chance_mrr: expected values for random states.
    """

    aligned_mean: float
    aligned_sd: float
    shuffled_mean: float
    shuffled_sd: float
    gap: float
    d_prime: float | None
    retrieval_at_1: float
    mrr: float
    chance_at_1: float
    chance_mrr: float


@dataclass(frozen=True)
class ViewNumbers:
    """Measures of the states of one view.

    Attributes:
        pairwise_cosine: mean cosine between two different rows.
        effective_rank: effective rank of the rows, scaled to unit length but not centred, as in the training log.
    """

    pairwise_cosine: float
    effective_rank: float


@dataclass(frozen=True)
class LinearMap:
    """A least-squares map ``source @ X ~ target``, fitted on some rows and evaluated on the others.

    Errors are root mean squared distances between predicted and true rows, in the unit of the states; multiplied by the
    square root of the number of rows, they are Frobenius norms.

    Attributes:
        train_error: error on the fitted rows; meaningless unless there are more rows than dimensions.
        test_r2: ``1 - (error / error of the mean)^2`` on the held-out rows: 1 for a perfect map, 0 for a map that is as good
            as the mean of the fitted targets, below 0 for a worse map; None if every held-out target equals that mean.
    """

    train_rows: int
    train_error: float
    test_r2: float | None


@dataclass(frozen=True)
class GeometryNumbers:
    """Measures of the states of both views in one layer.

    Attributes:
        pairs: cosines and retrieval.
        difference_top_100: mean of the 100 largest singular values of source - target (Table 14 of arXiv:2509.14252).
    """

    n: int
    width: int
    pairs: PairNumbers
    source: ViewNumbers
    target: ViewNumbers
    difference_top_100: float


def measure_states(source: np.ndarray, target: np.ndarray) -> GeometryNumbers:
    """Measure the states of both views in one layer.

    Args:
        source, target: (N, D), N >= 2, row i of both is a pair; finite, as `read_states` returns them.
    """
    n, width = source.shape
    spectrum = singular_values(np.subtract(source, target, dtype=np.float64))
    top_100 = float(spectrum[:100].mean())
    return GeometryNumbers(
        n, width, pair_numbers(source, target), _view(source), _view(target), top_100
    )


def _view(states: np.ndarray) -> ViewNumbers:
    unit_ND, n = unit_rows(states), len(states)
    sum_D = unit_ND.sum(axis=0)
    # |sum of the rows|^2 is the sum of the cosines of all N * N pairs of rows; a row's cosine with itself is subtracted.
    cosines = sum_D @ sum_D - np.einsum("nd,nd->", unit_ND, unit_ND)
    return ViewNumbers(
        pairwise_cosine=float(cosines / (n * (n - 1))),
        effective_rank=effective_rank(singular_values(unit_ND)),
    )


def pair_numbers(source: np.ndarray, target: np.ndarray) -> PairNumbers:
    """Cosines of matched and of all other pairs, and retrieval of the target by the source, for (N, D) states.

    Retrieval is the expectation under random tie-breaking: if b targets are nearer than the right one and t are equally
    near, its rank is uniform over b + 1 .. b + t + 1. Collapsed states then score exactly at chance, and each copy of a
    text that occurs twice is retrieved half of the time.
    """
    source_ND, target_ND = unit_rows(source), unit_rows(target)
    n = len(source_ND)
    aligned_N = np.einsum("nd,nd->n", source_ND, target_ND)
    nearer_N, tied_N = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    # Collapsed states have cosines near 1: sums of squares around a value near the mean lose no digits to cancellation.
    centre = aligned_N.mean()
    total = squares = 0.0
    size = max(1, _BLOCK // n)
    for start in range(0, n, size):
        rows = slice(start, start + size)
        cosine_CN = source_ND[rows] @ target_ND.T
        aligned_C1 = aligned_N[rows, None]
        nearer_N[rows] = (cosine_CN > aligned_C1 + TIE).sum(axis=1)
        # The right target ties with itself.
        tied_N[rows] = (np.abs(cosine_CN - aligned_C1) <= TIE).sum(axis=1) - 1
        cosine_CN -= centre
        total += cosine_CN.sum()
        squares += np.einsum("cn,cn->", cosine_CN, cosine_CN)

    # The sums run over all N * N pairs; matched pairs are subtracted.
    unmatched, around_N = n * (n - 1), aligned_N - centre
    mean = (total - around_N.sum()) / unmatched
    mean_square = (squares - (around_N**2).sum()) / unmatched
    shuffled_mean = float(centre + mean)
    shuffled_sd = math.sqrt(max(mean_square - mean**2, 0.0))
    aligned_mean, aligned_sd = float(centre), float(aligned_N.std(ddof=1))
    gap = aligned_mean - shuffled_mean
    spread = math.sqrt((aligned_sd**2 + shuffled_sd**2) / 2)
    without_spread = 0.0 if abs(gap) <= TIE else None
    # A spread below the rounding error of float32 is treated as zero.
    d_prime = gap / spread if spread > TIE else without_spread

    # The mean of 1 / rank over tied ranks is a difference of harmonic numbers.
    harmonic_N = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, n + 1))])
    reciprocal_N = (harmonic_N[nearer_N + tied_N + 1] - harmonic_N[nearer_N]) / (tied_N + 1)
    nearest_N = np.where(nearer_N == 0, 1 / (tied_N + 1), 0.0)

    return PairNumbers(
        aligned_mean=aligned_mean,
        aligned_sd=aligned_sd,
        shuffled_mean=shuffled_mean,
        shuffled_sd=shuffled_sd,
        gap=gap,
        d_prime=d_prime,
        retrieval_at_1=float(nearest_N.mean()),
        mrr=float(reciprocal_N.mean()),
        chance_at_1=1 / n,
        chance_mrr=float(harmonic_N[n] / n),
    )


def singular_values(states: np.ndarray) -> np.ndarray:
    """Singular values (min(N, D),), largest first.

    Args:
        states: (N, D); ``source - target`` for the spectrum of the paper's Figure 7 and Table 14 (arXiv:2509.14252).
    """
    return np.linalg.svd(states.astype(np.float64), compute_uv=False)


def linear_map(source: np.ndarray, target: np.ndarray) -> LinearMap:
    """Fit ``min_X ||source X - target||`` on some rows, without a penalty, and evaluate it on the others.

    Table 14 of LLM-JEPA (arXiv:2509.14252) reports the error on the fitted rows only, which falls with the width even for
    random states; held-out rows show whether a map exists. Among several solutions, the one of least norm is used.

    Args:
        source, target: (N, D), N >= 3. A share of `TEST_SHARE` of the rows is held out; the split depends only on N.
    """
    from scipy import linalg

    source_ND, target_ND = source.astype(np.float64), target.astype(np.float64)
    n = len(source_ND)
    order = np.random.default_rng(0).permutation(n)
    held = min(max(1, round(n * TEST_SHARE)), n - 2)
    test, train = order[:held], order[held:]
    # gelsy is a rank-revealing QR decomposition, three times as fast as the SVD.
    map_DD, *_ = linalg.lstsq(
        source_ND[train], target_ND[train], cond=CUTOFF, lapack_driver="gelsy"
    )

    def error(predicted: np.ndarray, rows: np.ndarray) -> float:
        residual = predicted - target_ND[rows]
        return math.sqrt(np.einsum("nd,nd->", residual, residual) / len(residual))

    test_error = error(source_ND[test] @ map_DD, test)
    mean_error = error(target_ND[train].mean(axis=0), test)
    train_error = error(source_ND[train] @ map_DD, train)
    r2 = 1 - (test_error / mean_error) ** 2 if mean_error > 0 else None
    return LinearMap(n - held, train_error, r2)


def unit_rows(states: np.ndarray) -> np.ndarray:
    """The rows (N, D) scaled to length 1, in float64. A row of zeros stays zero, so its cosine with any row is 0."""
    states_ND = np.asarray(states, dtype=np.float64)
    length_N1 = np.linalg.norm(states_ND, axis=1, keepdims=True)
    return np.divide(states_ND, length_N1, out=np.zeros_like(states_ND), where=length_N1 > 0)


@dataclass(frozen=True)
class CollapseSign:
    """A sign of collapse.

    `name` is "low_rank", "cone" or "pairs_alike"; `view` is "source", "target" or "pairs"; `text` is a sentence with the
    value and its threshold.
    """

    name: str
    view: str
    text: str


def collapse_signs(numbers: GeometryNumbers) -> list[CollapseSign]:
    """Signs of collapse in the states of a model; empty for healthy states. `collapsed` combines them."""
    signs = []
    pairs = numbers.pairs
    if pairs.d_prime is not None and pairs.d_prime < LOW_D_PRIME:
        text = (
            f"matched pairs are hardly closer than shuffled ones: cosine {pairs.aligned_mean:.4f} against "
            f"{pairs.shuffled_mean:.4f}, d' = {pairs.d_prime:.2f} (below {LOW_D_PRIME})"
        )
        signs.append(CollapseSign("pairs_alike", "pairs", text))
    # With few rows, even healthy states have a low rank.
    most = min(numbers.n, numbers.width)
    for name, view in (("source", numbers.source), ("target", numbers.target)):
        rank, cosine = view.effective_rank, view.pairwise_cosine
        if most >= RANK_ROWS and rank < LOW_RANK:
            text = (
                f"{name} states have an effective rank of {rank:.2f} of {most} (below {LOW_RANK})"
            )
            signs.append(CollapseSign("low_rank", name, text))
        if cosine >= CONE_COSINE:
            text = (
                f"{name} states point in one direction: two rows have a cosine of {cosine:.4f} on average "
                f"({CONE_WORDS})"
            )
            signs.append(CollapseSign("cone", name, text))
    return signs


def collapsed(signs: Iterable[CollapseSign]) -> bool:
    """Whether signs amount to collapse: a low rank, or a cone in which matched pairs do not differ from other pairs.

    A cone alone, or indistinct pairs alone, also occur in models that were never trained on pairs.
    """
    names = {sign.name for sign in signs}
    return "low_rank" in names or {"cone", "pairs_alike"} <= names
