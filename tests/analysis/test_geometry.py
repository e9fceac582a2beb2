"""Cosines, retrieval, spectra and spread, by hand and against SciPy and scikit-learn."""

from __future__ import annotations

import math

import numpy as np
import pytest

from stepjepa.analysis import geometry
from stepjepa.analysis.geometry import (
    aligned_cosines,
    dimension_variance,
    effective_rank,
    pair_numbers,
    pairwise_cosine,
    shuffled_cosines,
    singular_values,
    top_mean,
    uniformity,
    variance_ratio,
)
from stepjepa.errors import DataError


def states(rows=50, width=7, seed=0, cone=0.0):
    generator = np.random.default_rng(seed)
    return (generator.normal(size=(rows, width)) + cone).astype(np.float32)


def test_pairs_by_hand():
    """Cosines: row 1 (1, 0, .6), row 2 (0, 1, .8), row 3 (-1, 0, -.6); their right targets have ranks 1, 1 and 2 of 3."""
    source = np.array([[2.0, 0.0], [0.0, 1.0], [-3.0, 0.0]])
    target = np.array([[1.0, 0.0], [0.0, 5.0], [3.0, 4.0]])
    numbers = pair_numbers(source, target)
    aligned, others = [1.0, 1.0, -0.6], [0.0, 0.6, 0.0, 0.8, -1.0, 0.0]
    assert numbers.aligned_mean == pytest.approx(1.4 / 3)
    assert numbers.aligned_sd == pytest.approx(np.std(aligned, ddof=1))
    assert numbers.shuffled_mean == pytest.approx(0.4 / 6)
    assert numbers.shuffled_sd == pytest.approx(np.std(others))
    assert numbers.gap == pytest.approx(0.4)
    pooled = math.sqrt((np.var(aligned, ddof=1) + np.var(others)) / 2)
    assert numbers.d_prime == pytest.approx(0.4 / pooled)
    assert numbers.retrieval_at_1 == pytest.approx(2 / 3)
    assert numbers.retrieval_at_5 == 1.0
    assert numbers.mrr == pytest.approx((1 + 1 + 1 / 2) / 3)
    assert (numbers.chance_at_1, numbers.chance_at_5) == (pytest.approx(1 / 3), 1.0)
    assert numbers.chance_mrr == pytest.approx((1 + 1 / 2 + 1 / 3) / 3)


@pytest.mark.parametrize("block", [1, 137, 2**23])
def test_pairs_agree_with_the_whole_matrix(block, monkeypatch):
    monkeypatch.setattr(geometry, "_BLOCK", block)
    source = states(seed=1, cone=0.5)
    target = source + 0.8 * states(seed=2)
    numbers = pair_numbers(source, target)
    cosine = pytest.importorskip("sklearn.metrics.pairwise").cosine_similarity(
        source.astype(np.float64), target.astype(np.float64)
    )
    off = cosine[~np.eye(50, dtype=bool)]
    ranks = (cosine > np.diag(cosine)[:, None]).sum(axis=1) + 1
    assert 0.1 < (ranks == 1).mean() < 0.9  # or the comparison would show nothing
    assert numbers.aligned_mean == pytest.approx(np.diag(cosine).mean())
    assert (numbers.shuffled_mean, numbers.shuffled_sd) == (pytest.approx(off.mean()), pytest.approx(off.std()))
    assert numbers.retrieval_at_1 == pytest.approx((ranks == 1).mean())
    assert numbers.retrieval_at_5 == pytest.approx((ranks <= 5).mean())
    assert numbers.mrr == pytest.approx((1 / ranks).mean())


def test_a_narrow_cone_keeps_its_digits():
    """Cosines of 1 - 1e-5 or so: the spread of the shuffled ones is right to three digits all the same."""
    source, target = (np.float64(1000) + states(60, 9, seed) for seed in (1, 2))
    unit_s, unit_t = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (source, target))
    off = (unit_s @ unit_t.T)[~np.eye(60, dtype=bool)]
    numbers = pair_numbers(source, target)
    assert off.std() < 1e-5
    assert numbers.shuffled_sd == pytest.approx(off.std(), rel=1e-3)
    assert numbers.shuffled_mean == pytest.approx(off.mean(), abs=1e-12)


def test_collapsed_states_are_at_chance_exactly():
    """Everything ties, so every rank is as likely: 1/N, 5/N and the mean of 1/rank."""
    one = np.tile(states(1, 6, 3), (40, 1))
    numbers = pair_numbers(one, 2 * one)
    assert numbers.retrieval_at_1 == pytest.approx(numbers.chance_at_1) == pytest.approx(1 / 40)
    assert numbers.retrieval_at_5 == pytest.approx(numbers.chance_at_5)
    assert numbers.mrr == pytest.approx(numbers.chance_mrr)
    assert (numbers.d_prime, numbers.gap) == (0.0, pytest.approx(0.0, abs=1e-12))


def test_a_target_that_occurs_twice_is_found_every_other_time():
    basis = np.eye(4)[[0, 0, 1, 2]]
    numbers = pair_numbers(basis, basis)
    assert numbers.retrieval_at_1 == pytest.approx((0.5 + 0.5 + 1 + 1) / 4)
    assert numbers.mrr == pytest.approx((0.75 + 0.75 + 1 + 1) / 4)


def test_random_states_are_near_chance():
    numbers = pair_numbers(states(2000, 30, 4), states(2000, 30, 5))
    assert abs(numbers.retrieval_at_1 - numbers.chance_at_1) < 4 * math.sqrt(1 / 2000 / 2000)
    assert abs(numbers.d_prime) < 0.1


def test_equal_views_without_spread_have_no_d_prime():
    """Matched cosines all 1, others all 0: there is a gap and nothing to measure it by."""
    numbers = pair_numbers(np.eye(5), np.eye(5))
    assert (numbers.gap, numbers.d_prime) == (1.0, None)


def test_rows_of_zeros_have_cosine_zero():
    source, target = np.array([[0.0, 0.0], [1.0, 0.0]]), np.array([[1.0, 0.0], [1.0, 0.0]])
    assert aligned_cosines(source, target).tolist() == [0.0, 1.0]
    assert math.isfinite(pair_numbers(source, target).d_prime)


def test_shuffled_pairs_are_all_others():
    rng = np.random.default_rng(5)
    source, target = rng.normal(size=(2, 30, 4))
    unit = [view / np.linalg.norm(view, axis=1, keepdims=True) for view in (source, target)]
    every = (unit[0] @ unit[1].T)[~np.eye(30, dtype=bool)]
    drawn = shuffled_cosines(source, target)
    assert sorted(drawn) == pytest.approx(sorted(every))
    assert drawn.mean() == pytest.approx(pair_numbers(source, target).shuffled_mean)


def test_of_many_shuffled_pairs_some_are_drawn_each_target_as_often(monkeypatch):
    n = 30
    monkeypatch.setattr("stepjepa.analysis.geometry.MOST_SHUFFLED", 3 * n)
    assert not shuffled_cosines(np.eye(n), np.eye(n)).any()  # never its own
    angles = np.linspace(0.1, 1.5, n)
    targets = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    drawn = shuffled_cosines(np.tile([1.0, 0.0], (n, 1)), targets, seed=3)
    assert sorted(drawn) == pytest.approx(sorted(np.tile(np.cos(angles), 3)))
    assert np.array_equal(drawn, shuffled_cosines(np.tile([1.0, 0.0], (n, 1)), targets, seed=3))
    assert not np.array_equal(drawn, shuffled_cosines(np.tile([1.0, 0.0], (n, 1)), targets, seed=4))


def test_pairwise_cosine():
    """Of (1, 0), (0, 1), (1, 1): 0, r, r with r = 1 / sqrt(2)."""
    assert pairwise_cosine(np.array([[1.0, 0.0], [0.0, 3.0], [2.0, 2.0]])) == pytest.approx(2 * 0.5**0.5 / 3)
    rows = states(cone=2.0)
    cosine = pytest.importorskip("sklearn.metrics.pairwise").cosine_similarity(rows.astype(np.float64))
    assert pairwise_cosine(rows) == pytest.approx(cosine[np.triu_indices(50, 1)].mean())


@pytest.mark.parametrize("block", [1, 137, 2**23])
def test_uniformity_agrees_with_scipy(block, monkeypatch):
    monkeypatch.setattr(geometry, "_BLOCK", block)
    distance = pytest.importorskip("scipy.spatial.distance")
    rows = states(cone=1.0).astype(np.float64)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    for t in (2.0, 0.5):
        expected = np.log(np.exp(-t * distance.pdist(unit, "sqeuclidean")).mean())
        assert uniformity(rows, t) == pytest.approx(expected)


def test_uniformity_by_hand():
    """Opposite unit vectors lie 2 apart: log exp(-2 * 4). One point: 0."""
    assert uniformity(np.array([[1.0, 0.0], [-2.0, 0.0]])) == pytest.approx(-8.0)
    assert uniformity(np.ones((4, 3))) == pytest.approx(0.0, abs=1e-12)


def test_singular_values():
    """Rows (3, 0), (0, 4), (0, 0): 4 and 3. Centred against scikit-learn's PCA."""
    assert singular_values(np.array([[3.0, 0.0], [0.0, 4.0], [0.0, 0.0]])) == pytest.approx([4.0, 3.0])
    rows = states(cone=3.0)
    assert singular_values(rows) == pytest.approx(pytest.importorskip("scipy.linalg").svdvals(rows.astype(np.float64)))
    pca = pytest.importorskip("sklearn.decomposition").PCA().fit(rows.astype(np.float64))
    assert singular_values(rows, center=True) == pytest.approx(pca.singular_values_)
    assert rows.mean() > 2  # the array that was given is not centred


def test_effective_rank_by_hand():
    """Shares 3/4 and 1/4: entropy 0.5623, exp 1.7548."""
    assert effective_rank(np.array([2.0, 2.0, 2.0, 2.0])) == pytest.approx(4.0, rel=1e-5)
    assert effective_rank(np.array([5.0, 0.0, 0.0])) == pytest.approx(1.0, abs=1e-5)
    assert effective_rank(np.array([3.0, 1.0])) == pytest.approx(1.7548, abs=1e-4)
    assert effective_rank(np.zeros(3)) == 0.0


def test_effective_rank_is_the_training_log_s():
    torch = pytest.importorskip("torch")
    from stepjepa.training.meter import collapse_signs

    rows = states(60, 12, cone=1.0)
    unit = geometry.unit_rows(rows)
    logged = collapse_signs([torch.tensor(rows)])["effective_rank"]
    assert effective_rank(singular_values(unit)) == pytest.approx(logged, rel=1e-4)


def test_top_mean():
    assert top_mean(np.array([1.0, 9.0, 5.0]), 2) == 7.0
    assert top_mean(np.array([1.0, 9.0, 5.0])) == 5.0


def test_variance_and_its_ratio():
    rows = np.array([[1.0, 0.0, 7.0], [3.0, 0.0, 7.0]])
    base = np.array([[1.0, 2.0, 7.0], [2.0, 4.0, 7.0]])
    assert dimension_variance(rows).tolist() == [2.0, 0.0, 0.0]
    ratio = variance_ratio(rows, base)
    assert ratio[:2].tolist() == [4.0, 0.0] and math.isnan(ratio[2])
    with pytest.raises(DataError, match="width 3 against a base of width 2"):
        variance_ratio(rows, base[:, :2])


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        (np.ones((3, 2)), np.ones((3, 4)), r"source is of shape \(3, 2\) and target of \(3, 4\)"),
        (np.ones((1, 2)), np.ones((1, 2)), "two rows or more"),
        (np.ones(3), np.ones(3), "source must be of shape"),
        (np.ones((3, 2)), np.array([[1, 1], [np.nan, 1], [np.inf, 1]]), "target: 2 of 3 rows are not finite, .* row 1"),
    ],
)
def test_arrays_that_are_no_views(source, target, message):
    for measure in (pair_numbers, aligned_cosines, shuffled_cosines):
        with pytest.raises(DataError, match=message):
            measure(source, target)
