"""Numbers from the states of paired views: cosines, retrieval, ranks, spread, linear map; and signs of collapse.

NumPy in float64; docs/geometry.md has the formulas. Nothing of size N x N is held: similarities come in blocks of rows.

Shapes: N pairs, D width, C rows of a block.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from stepjepa.config.option import Names
from stepjepa.errors import DataError
from stepjepa.modeling.card import CONE_COSINE, LOW_RANK, RANK_ROWS, effective_rank
from stepjepa.objectives.options import LossOptions, PairOptions, PredictorOptions

TIE = 1e-7  # two cosines closer than this are a tie: states come in float32, whose cosines agree to about that
MIN_ROWS = 10  # fewer rows than this are fitted by no map
TEST_SHARE, CUTOFF = 0.2, 1e-6  # of the linear map: rows held out; the least share of the largest direction that counts
_BLOCK = 2**23  # numbers in a block of similarities: 64 MiB of float64

# The sign of collapse that no training log shows.
LOW_D_PRIME = 0.5  # d' of matched against shuffled cosines: below half a standard deviation most pairs look alike
_NAME = Names(LossOptions, PairOptions, PredictorOptions)
ADVICE = (
    f"What to do: keep the targets apart with --{_NAME.regularizer} vicreg, --{_NAME.jepa_loss} infonce, or no gradient "
    f"into the targets (--{_NAME.target_grad} false, --{_NAME.target_encoder} ema); or lower --{_NAME.lbd}. Then compare "
    f"with --{_NAME.control} shuffled: a good geometry by itself is no gain."
)


@dataclass(frozen=True)
class PairNumbers:
    """How well matched pairs are told from the others.

    Attributes:
        aligned_mean, aligned_sd: cosine of source i and target i.
        shuffled_mean, shuffled_sd: cosine of source i and target j, over all N (N - 1) pairs with i != j.
        d_prime: gap in units of the pooled spread, ``gap / sqrt((aligned_sd^2 + shuffled_sd^2) / 2)``; 0 where there is
            neither gap nor spread, None where there is a gap without any spread.
        retrieval_at_1: share of sources whose target is the nearest of all N by cosine.
        mrr: mean of 1 / rank of the target.
        chance_at_1, chance_mrr: what random states give.
    """

    n: int
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
    """The states of one view.

    Attributes:
        pairwise_cosine: mean cosine of two rows.
        effective_rank: of the unit-length rows, not centred, as the training log has it.
        effective_rank_centred: of the rows less their mean.
    """

    pairwise_cosine: float
    effective_rank: float
    effective_rank_centred: float


@dataclass(frozen=True)
class LinearMap:
    """A least-squares map ``source @ X ~ target``, fitted on some rows and measured on the others.

    Errors are the root of the mean squared distance of a row from what it should be, in the unit of the states; times
    the root of the number of rows they are Frobenius norms.

    Attributes:
        train_error: of the fitted rows; it says nothing where they are as few as the dimensions.
        test_r2: ``1 - (error / error of the mean)^2`` of the held-out rows: 1 a perfect map, 0 as good as the mean of the
            fitted targets, below 0 worse; None where the held-out targets are all that mean.
    """

    train_rows: int
    train_error: float
    test_r2: float | None


@dataclass(frozen=True)
class GeometryNumbers:
    """The states of both views in one layer.

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
    """Measure one layer's states of both views.

    Args:
        source, target: (N, D), row i of both a pair.

    Raises:
        DataError: the arrays do not fit together, or hold numbers that are not finite.
    """
    check_views(source, target)
    n, width = source.shape
    spectrum = singular_values(np.subtract(source, target, dtype=np.float64))
    top_100 = float(spectrum[:100].mean())
    return GeometryNumbers(n, width, pair_numbers(source, target), _view(source), _view(target), top_100)


def _view(states: np.ndarray) -> ViewNumbers:
    unit_ND, n = unit_rows(states), len(states)
    sum_D = unit_ND.sum(axis=0)
    others = sum_D @ sum_D - np.einsum("nd,nd->", unit_ND, unit_ND)  # of all pairs of two rows
    return ViewNumbers(
        pairwise_cosine=float(others / (n * (n - 1))),
        effective_rank=effective_rank(singular_values(unit_ND)),
        effective_rank_centred=effective_rank(singular_values(states, center=True)),
    )


def pair_numbers(source: np.ndarray, target: np.ndarray) -> PairNumbers:
    """Cosines of matched and of all other pairs, and retrieval of the target from the source, of (N, D) states.

    Ties count as drawn at random: where b targets are nearer than the right one and t as near, its rank is each of
    b + 1 .. b + t + 1 with the same probability. Collapsed states thus give chance exactly, and a text that occurs twice
    is found every other time.
    """
    source_ND, target_ND = unit_rows(source), unit_rows(target)
    n = len(source_ND)
    aligned_N = np.einsum("nd,nd->n", source_ND, target_ND)
    nearer_N, tied_N = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    centre = aligned_N.mean()  # sums of squares around a number near the mean lose no digits
    total = squares = 0.0
    for rows in _blocks(n):
        cosine_CN = source_ND[rows] @ target_ND.T
        own_C1 = aligned_N[rows, None]
        nearer_N[rows] = (cosine_CN > own_C1 + TIE).sum(axis=1)
        tied_N[rows] = (np.abs(cosine_CN - own_C1) <= TIE).sum(axis=1) - 1  # the right one ties with itself
        cosine_CN -= centre
        total += cosine_CN.sum()
        squares += np.einsum("cn,cn->", cosine_CN, cosine_CN)

    # The sums are over all N * N pairs; those of a source with its own target are taken out.
    others, around_N = n * (n - 1), aligned_N - centre
    mean = (total - around_N.sum()) / others
    mean_square = (squares - (around_N**2).sum()) / others
    shuffled_mean = float(centre + mean)
    shuffled_sd = math.sqrt(max(mean_square - mean**2, 0.0))
    aligned_mean, aligned_sd = float(centre), float(aligned_N.std(ddof=1))
    gap = aligned_mean - shuffled_mean
    spread = math.sqrt((aligned_sd**2 + shuffled_sd**2) / 2)
    without_spread = 0.0 if abs(gap) <= TIE else None
    d_prime = gap / spread if spread > TIE else without_spread  # below the rounding of float32 a spread is none

    harmonic_N = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, n + 1))])
    reciprocal_N = (harmonic_N[nearer_N + tied_N + 1] - harmonic_N[nearer_N]) / (tied_N + 1)
    nearest_N = np.where(nearer_N == 0, 1 / (tied_N + 1), 0.0)

    return PairNumbers(
        n,
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


def singular_values(states: np.ndarray, center: bool = False) -> np.ndarray:
    """Singular values, largest first, (min(N, D),).

    Args:
        states: (N, D); ``source - target`` for the spectrum of the paper's Figure 7 and Table 14 (arXiv:2509.14252).
        center: take the mean row away first.
    """
    states_ND = states.astype(np.float64)
    return np.linalg.svd(states_ND - states_ND.mean(axis=0) if center else states_ND, compute_uv=False)


def linear_map(source: np.ndarray, target: np.ndarray, seed: int = 0) -> LinearMap:
    """Fit ``min_X ||source X - target||`` on some rows, without a penalty, and measure it on the others.

    Table 14 of LLM-JEPA (arXiv:2509.14252) gives the error of the fitted rows only, which falls with the width alone; the
    held-out rows say whether there is a map. Of many solutions the one of least norm is taken.

    Args:
        source, target: (N, D), N >= 3.
        seed: of the split, which depends on it and on N alone; `TEST_SHARE` of the rows are held out.
    """
    from scipy import linalg

    source_ND, target_ND = source.astype(np.float64), target.astype(np.float64)
    n = len(source_ND)
    order, held = np.random.default_rng(seed).permutation(n), min(max(1, round(n * TEST_SHARE)), n - 2)
    test, train = order[:held], order[held:]
    # gelsy: a QR that reveals the rank, three times faster than the SVD.
    map_DD, *_ = linalg.lstsq(source_ND[train], target_ND[train], cond=CUTOFF, lapack_driver="gelsy")

    def error(predicted: np.ndarray, rows: np.ndarray) -> float:
        residual = predicted - target_ND[rows]
        return math.sqrt(np.einsum("nd,nd->", residual, residual) / len(residual))

    test_error = error(source_ND[test] @ map_DD, test)
    mean_error = error(target_ND[train].mean(axis=0), test)
    train_error = error(source_ND[train] @ map_DD, train)
    r2 = 1 - (test_error / mean_error) ** 2 if mean_error > 0 else None
    return LinearMap(n - held, train_error, r2)


def unit_rows(states: np.ndarray) -> np.ndarray:
    """Rows of length 1 in float64, (N, D); rows of zeros stay zeros, and their cosine with everything is 0."""
    states_ND = np.asarray(states, dtype=np.float64)
    length_N1 = np.linalg.norm(states_ND, axis=1, keepdims=True)
    return np.divide(states_ND, length_N1, out=np.zeros_like(states_ND), where=length_N1 > 0)


def check_views(source: np.ndarray, target: np.ndarray) -> None:
    """Refuse arrays that are no pairs: of one shape (N, D), N >= 2, and finite.

    Raises:
        DataError: they are not.
    """
    for name, states in (("source", source), ("target", target)):
        if states.ndim != 2 or len(states) < 2:
            raise DataError(f"{name} must be of shape (rows, width) with two rows or more, not {states.shape}")
        bad_N = ~np.isfinite(states).all(axis=1)
        if bad_N.any():
            raise DataError(
                f"{name}: {bad_N.sum()} of {len(states)} rows are not finite, the first is row {bad_N.argmax()}"
            )
    if source.shape != target.shape:
        raise DataError(f"source is of shape {source.shape} and target of {target.shape}: row i of both must be a pair")


def _blocks(rows: int) -> Iterator[slice]:
    size = max(1, _BLOCK // rows)
    return (slice(start, min(start + size, rows)) for start in range(0, rows, size))


@dataclass(frozen=True)
class CollapseSign:
    """One sign of collapse, with the value and the threshold in a sentence, `text`.

    `name` is "low_rank", "cone" or "pairs_alike"; `view` "source", "target" or "pairs".
    """

    name: str
    view: str
    text: str


def collapse_signs(numbers: GeometryNumbers) -> list[CollapseSign]:
    """Signs of collapse in one model's states, none for healthy ones; `collapsed` says whether they amount to collapse."""
    signs = []
    pairs = numbers.pairs
    if pairs.d_prime is not None and pairs.d_prime < LOW_D_PRIME:
        text = (
            f"matched pairs are hardly closer than shuffled ones: cosine {pairs.aligned_mean:.4f} against "
            f"{pairs.shuffled_mean:.4f}, d' = {pairs.d_prime:.2f} (below {LOW_D_PRIME})"
        )
        signs.append(CollapseSign("pairs_alike", "pairs", text))
    most = min(numbers.n, numbers.width)
    for name, view in (("source", numbers.source), ("target", numbers.target)):
        rank, cosine = view.effective_rank, view.pairwise_cosine
        if most >= RANK_ROWS and rank < LOW_RANK:
            text = f"{name} states have an effective rank of {rank:.2f} of {most} (below {LOW_RANK})"
            signs.append(CollapseSign("low_rank", name, text))
        if cosine >= CONE_COSINE:
            text = (
                f"{name} states point in one direction: two rows have a cosine of {cosine:.4f} on average "
                f"(from {CONE_COSINE}; plain models .76 to .96)"
            )
            signs.append(CollapseSign("cone", name, text))
    return signs


def collapsed(signs: Iterable[CollapseSign]) -> bool:
    """Whether signs amount to collapse: a low rank, or a cone in which matched pairs are not told from the others. A cone
    alone or pairs alike alone are found in models that never saw a pair."""
    names = {sign.name for sign in signs}
    return "low_rank" in names or {"cone", "pairs_alike"} <= names
