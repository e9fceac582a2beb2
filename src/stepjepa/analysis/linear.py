"""How linear the map between two sets of states is: least squares with held-out rows, and CKA (docs/geometry.md).

Shapes: N rows, D width of the source, E width of the target.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from stepjepa.analysis.geometry import check_states
from stepjepa.errors import DataError
from stepjepa.utils.failures import library

# Directions of the source below this share of its largest are noise of float32 states, and no part of the map.
CUTOFF = 1e-6
TEST_SHARE = 0.2


@dataclass(frozen=True)
class LinearMap:
    """A least-squares map ``source @ X ~ target``.

    Errors are the root of the mean squared distance of a row from what it should be, in the unit of the states; times
    the root of the number of rows they are Frobenius norms.

    Attributes:
        train_rows, test_rows: rows fitted, rows held out.
        rank: of the source's fitted rows. With `rank` = `train_rows` the map goes through every fitted row, whatever the
            states are, and `train_error` says nothing.
        train_error: of the fitted rows.
        test_error: of the held-out rows.
        mean_error: of the held-out rows when the mean of the fitted targets is predicted for all.
        test_r2: ``1 - (test_error / mean_error)^2``: 1 a perfect map, 0 as good as the mean, below 0 worse; None where the
            held-out targets are all that mean.
    """

    train_rows: int
    test_rows: int
    rank: int
    train_error: float
    test_error: float
    mean_error: float
    test_r2: float | None


def linear_map(source: np.ndarray, target: np.ndarray, seed: int = 0) -> LinearMap:
    """Fit ``min_X ||source X - target||`` on some rows, without a penalty, and measure it on the others.

    Table 14 of LLM-JEPA (arXiv:2509.14252) gives the error of the fitted rows only, which falls with the width alone; the
    held-out rows say whether there is a map. Of many solutions the one of least norm is taken.

    Args:
        source: (N, D).
        target: (N, E), row i of both a pair.
        seed: of the split, which depends on it and on N alone; `TEST_SHARE` of the rows are held out.

    Raises:
        DataError: the rows do not match, or are fewer than three.
    """
    source_ND = check_states(source, "source").astype(np.float64)
    target_NE = check_states(target, "target").astype(np.float64)
    n = len(source_ND)
    if len(target_NE) != n:
        raise DataError(f"{n} rows of source against {len(target_NE)} of target: row i of both must be a pair")
    if n < 3:
        raise DataError(f"{n} rows cannot be fitted and held out; three are needed at least")
    order = np.random.default_rng(seed).permutation(n)
    held = min(max(1, round(n * TEST_SHARE)), n - 2)
    test, train = order[:held], order[held:]
    linalg = library("scipy.linalg", "analysis")
    # gelsy: a QR that reveals the rank, three times faster than the SVD.
    map_DE, _, rank, _ = linalg.lstsq(source_ND[train], target_NE[train], cond=CUTOFF, lapack_driver="gelsy")
    mean_E = target_NE[train].mean(axis=0)
    test_error = _row_error(source_ND[test] @ map_DE - target_NE[test])
    mean_error = _row_error(mean_E - target_NE[test])
    return LinearMap(
        n - held,
        held,
        int(rank),
        _row_error(source_ND[train] @ map_DE - target_NE[train]),
        test_error,
        mean_error,
        1 - (test_error / mean_error) ** 2 if mean_error > 0 else None,
    )


def linear_cka(first: np.ndarray, second: np.ndarray) -> float | None:
    """Similarity of two models' states for the same rows, blind to rotation and scale (linear CKA).

    ``HSIC(K, L) / sqrt(HSIC(K, K) HSIC(L, L))`` with ``K = first first^T``, ``L = second second^T`` and the debiased HSIC
    (Song et al. 2012; Nguyen et al. 2021, arXiv:2010.15327, Eq. 3): about 0 for unrelated states, perhaps a little below,
    also with fewer rows than dimensions, where the plain one (Kornblith et al. 2019, arXiv:1905.00414) nears 1.

    Args:
        first: (N, D).
        second: (N, E), the same rows.

    Returns:
        None where either side does not vary.

    Raises:
        DataError: the rows do not match, or are fewer than four.
    """
    first_ND = check_states(first, "first").astype(np.float64)
    second_NE = check_states(second, "second").astype(np.float64)
    n = len(first_ND)
    if len(second_NE) != n:
        raise DataError(f"{n} rows against {len(second_NE)}: both models must have seen the same")
    if n < 4:
        raise DataError(f"{n} rows are too few for the debiased CKA; four are needed at least")
    for states in (first_ND, second_NE):
        states -= states.mean(axis=0)  # changes neither HSIC, and keeps digits
        scale = np.abs(states).max()
        if scale == 0:
            return None
        states /= scale
    own, other = _unbiased_hsic(first_ND, first_ND), _unbiased_hsic(second_NE, second_NE)
    if own <= 0 or other <= 0:
        return None
    return _unbiased_hsic(first_ND, second_NE) / math.sqrt(own * other)


def _row_error(residual: np.ndarray) -> float:
    return math.sqrt(np.einsum("ne,ne->", residual, residual) / len(residual))


def _hsic(a_ND: np.ndarray, b_NE: np.ndarray) -> float:
    """Sum of the products of two centred Gram matrices' entries, up to a factor."""
    n, width = len(a_ND), max(a_ND.shape[1], b_NE.shape[1])
    if n < width:
        return float(np.vdot(a_ND @ a_ND.T, b_NE @ b_NE.T))
    return float(np.square(a_ND.T @ b_NE).sum())


def _unbiased_hsic(a_ND: np.ndarray, b_NE: np.ndarray) -> float:
    """HSIC_1 of Song et al. (2012), with sums over the Gram matrices without diagonal: tr(KL), K1, 1^T K L 1."""
    n = len(a_ND)
    diagonal_a, diagonal_b = (np.einsum("nd,nd->n", x, x) for x in (a_ND, b_NE))
    rows_a = a_ND @ a_ND.sum(axis=0) - diagonal_a
    rows_b = b_NE @ b_NE.sum(axis=0) - diagonal_b
    trace = _hsic(a_ND, b_NE) - diagonal_a @ diagonal_b
    whole = rows_a.sum() * rows_b.sum() / ((n - 1) * (n - 2))
    return float(trace + whole - 2 / (n - 2) * (rows_a @ rows_b)) / (n * (n - 3))
