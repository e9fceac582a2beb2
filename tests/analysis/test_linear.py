"""The linear map on held-out rows, and CKA."""

from __future__ import annotations

import numpy as np
import pytest

from stepjepa.analysis.linear import linear_cka, linear_map
from stepjepa.errors import DataError

pytest.importorskip("scipy")


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def split(n, share=0.2, seed=0):
    order = np.random.default_rng(seed).permutation(n)
    held = round(n * share)
    return order[held:], order[:held]


def test_an_exact_map_is_found():
    source = normal(60, 5)
    found = linear_map(source, source @ normal(5, 3, seed=1))
    assert (found.train_rows, found.test_rows, found.rank) == (48, 12, 5)
    assert found.train_error < 1e-12 and found.test_error < 1e-12
    assert found.mean_error > 1 and found.test_r2 == pytest.approx(1.0)


def test_agrees_with_scikit_learn():
    model = pytest.importorskip("sklearn.linear_model").LinearRegression(fit_intercept=False)
    source = normal(80, 6) + 2
    target = source @ normal(6, 4, seed=1) + 3 + normal(80, 4, seed=2)
    found = linear_map(source, target, seed=5)
    train, test = split(80, 0.2, 5)
    model.fit(source[train], target[train])

    def error(rows):
        return np.sqrt(((model.predict(source[rows]) - target[rows]) ** 2).sum(axis=1).mean())

    mean_error = np.sqrt(((target[train].mean(axis=0) - target[test]) ** 2).sum(axis=1).mean())
    assert found.train_error == pytest.approx(error(train))
    assert found.test_error == pytest.approx(error(test))
    assert found.mean_error == pytest.approx(mean_error)
    assert found.test_r2 == pytest.approx(1 - (error(test) / mean_error) ** 2)


def test_the_error_is_a_frobenius_norm_over_the_root_of_the_rows():
    source, target = normal(50, 4), normal(50, 3, seed=1)
    train, _ = split(50)
    residual = target[train] - source[train] @ np.linalg.lstsq(source[train], target[train], rcond=None)[0]
    found = linear_map(source, target)
    assert found.train_error * 40**0.5 == pytest.approx(np.linalg.norm(residual))


def test_more_dimensions_than_rows_fit_noise_and_predict_nothing():
    """What the fitted error alone would call a perfect map."""
    found = linear_map(normal(40, 64), normal(40, 64, seed=1))
    assert found.rank == found.train_rows == 32
    assert found.train_error < 1e-10
    assert found.test_error > found.mean_error and found.test_r2 < 0


def test_directions_that_are_noise_are_left_out():
    """Two columns alike but for float32 rounding: rank 2 of 3, and no wild weights."""
    source = normal(100, 2).astype(np.float32)
    noisy = np.column_stack([source, source[:, 0] + 1e-8 * normal(100, seed=3)])
    target = source @ normal(2, 2, seed=1) + 0.1 * normal(100, 2, seed=2)
    found = linear_map(noisy, target)
    assert found.rank == 2
    assert found.test_error == pytest.approx(linear_map(source, target).test_error, rel=1e-4)


def test_constant_targets():
    found = linear_map(normal(30, 4), np.zeros((30, 2)))
    assert (found.test_error, found.mean_error, found.test_r2) == (0.0, 0.0, None)


def test_the_split_depends_on_the_seed_alone():
    source, target = normal(50, 4), normal(50, 3, seed=1)
    assert linear_map(source, target) == linear_map(source, target)
    assert linear_map(source, target) != linear_map(source, target, seed=1)
    assert linear_map(2 * source, target).test_error == pytest.approx(linear_map(source, target).test_error)


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        (normal(5, 2), normal(4, 2), "5 rows of source against 4 of target"),
        (normal(2, 2), normal(2, 2), "2 rows cannot be fitted and held out"),
    ],
)
def test_maps_that_cannot_be_fitted(source, target, message):
    with pytest.raises(DataError, match=message):
        linear_map(source, target)


def slow_cka(a, b):
    """From the N x N Gram matrices, term by term as the papers write them."""
    n, one = len(a), np.ones(len(a))

    def hsic(k, m):
        k, m = k - np.diag(np.diag(k)), m - np.diag(np.diag(m))
        inner = np.trace(k @ m) + (one @ k @ one) * (one @ m @ one) / ((n - 1) * (n - 2))
        return (inner - 2 / (n - 2) * (one @ k @ m @ one)) / (n * (n - 3))

    k, m = a @ a.T, b @ b.T
    return hsic(k, m) / np.sqrt(hsic(k, k) * hsic(m, m))


@pytest.mark.parametrize(("rows", "width", "other"), [(30, 5, 8), (12, 40, 20), (20, 3, 50)])
def test_cka_agrees_with_the_gram_matrices(rows, width, other):
    a = normal(rows, width) + 5
    b = np.tanh(a @ normal(width, other, seed=1)) + 0.3 * normal(rows, other, seed=2)
    assert linear_cka(a, b) == pytest.approx(slow_cka(a, b), rel=1e-8)


def test_cka_is_blind_to_rotation_scale_and_shift():
    a = normal(40, 6)
    rotation = np.linalg.qr(normal(6, 6, seed=1))[0]
    assert linear_cka(a, 1e-6 * a @ rotation + 100) == pytest.approx(1.0, rel=1e-6)


def test_cka_of_unrelated_states():
    """With 50 rows in 500 dimensions a biased estimator would call noise alike."""
    a, b = normal(50, 500), normal(50, 500, seed=1)
    assert abs(linear_cka(a, b)) < 0.1


def test_cka_without_an_answer():
    assert linear_cka(np.ones((9, 3)), normal(9, 3)) is None
    with pytest.raises(DataError, match="9 rows against 8"):
        linear_cka(normal(9, 3), normal(8, 3))
    with pytest.raises(DataError, match="four are needed"):
        linear_cka(normal(3, 3), normal(3, 3))
