"""All numbers of one model's states in one layer, as `stepjepa analyze` prints and saves them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepjepa.analysis.geometry import (
    PairNumbers,
    check_views,
    dimension_variance,
    effective_rank,
    pair_numbers,
    pairwise_cosine,
    singular_values,
    top_mean,
    uniformity,
    unit_rows,
    variance_ratio,
)
from stepjepa.analysis.linear import LinearMap, linear_cka, linear_map

# A dimension is dead if it varies by less than this share of what it did in the base model, or, without one, of the
# median dimension's mean square.
DEAD_SHARE = 1e-3
# Fewer rows than this are fitted by no map and compared by no CKA.
MIN_ROWS = 10


@dataclass(frozen=True)
class ViewNumbers:
    """The states of one view.

    Attributes:
        pairwise_cosine: mean cosine of two rows.
        effective_rank: of the unit-length rows, not centred, as the training log has it.
        effective_rank_centred: of the rows less their mean.
        uniformity: Wang and Isola's.
        dead_dimensions: share of the dimensions that hardly vary (`DEAD_SHARE`), of those that did in the base model.
        variance_ratio: median over the dimensions of their variance over the base model's; None without a base.
        base_cka: debiased linear CKA with the base model's states of the same rows; None without a base, or not asked for.
    """

    pairwise_cosine: float
    effective_rank: float
    effective_rank_centred: float
    uniformity: float
    dead_dimensions: float
    variance_ratio: float | None
    base_cka: float | None


@dataclass(frozen=True)
class GeometryNumbers:
    """The states of both views.

    Attributes:
        n, width: pairs N, dimensions D.
        pairs: cosines and retrieval.
        source, target: each view by itself.
        difference_top_100: mean of the 100 largest singular values of source - target (Table 14 of arXiv:2509.14252).
        difference_effective_rank: of source - target, not centred.
        linear_map: source -> target on held-out rows; None below `MIN_ROWS` rows, or not asked for.
    """

    n: int
    width: int
    pairs: PairNumbers
    source: ViewNumbers
    target: ViewNumbers
    difference_top_100: float
    difference_effective_rank: float
    linear_map: LinearMap | None


def measure_states(
    source: np.ndarray, target: np.ndarray, base: tuple[np.ndarray, np.ndarray] | None = None, maps: bool = True
) -> GeometryNumbers:
    """Measure one layer's states of both views.

    Args:
        source, target: (N, D), row i of both a pair.
        base: source and target states of the model before training, for the same rows.
        maps: also what costs most, the linear map and the CKA with the base; None in their places without.

    Raises:
        DataError: the arrays do not fit together, or hold numbers that are not finite.
    """
    source, target = check_views(source, target)
    bases = check_views(*base) if base is not None else (None, None)
    n, width = source.shape
    spectrum = singular_values(np.subtract(source, target, dtype=np.float64))
    return GeometryNumbers(
        n,
        width,
        pair_numbers(source, target),
        measure_view(source, bases[0], maps),
        measure_view(target, bases[1], maps),
        top_mean(spectrum),
        effective_rank(spectrum),
        linear_map(source, target) if maps and n >= MIN_ROWS else None,
    )


def measure_view(states: np.ndarray, base: np.ndarray | None = None, cka: bool = True) -> ViewNumbers:
    """Measure the states of one view, (N, D), against a base model's of the same shape if there is one, the CKA only where
    asked for.

    Raises:
        DataError: as `measure_states`.
    """
    variance_D = dimension_variance(states)
    ratio = base_cka = None
    if base is None:
        usual = np.median(np.square(states, dtype=np.float64).mean(axis=0))
        dead_D = variance_D <= DEAD_SHARE * usual
    else:
        ratio_D = variance_ratio(states, base)
        ratio_D = ratio_D[~np.isnan(ratio_D)]
        dead_D = ratio_D <= DEAD_SHARE
        ratio = float(np.median(ratio_D)) if len(ratio_D) else None
        base_cka = linear_cka(states, base) if cka and len(states) >= MIN_ROWS else None
    return ViewNumbers(
        pairwise_cosine(states),
        effective_rank(singular_values(unit_rows(states))),
        effective_rank(singular_values(states, center=True)),
        uniformity(states),
        float(dead_D.mean()) if len(dead_D) else 0.0,
        ratio,
        base_cka,
    )
