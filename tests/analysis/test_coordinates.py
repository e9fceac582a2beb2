"""Coordinates to draw: PCA against NumPy, t-SNE and UMAP by what they keep."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from stepjepa.analysis.coordinates import METHODS, coordinates
from stepjepa.errors import ConfigError, DataError

pytest.importorskip("sklearn")


def views(rows=40, width=12, seed=0):
    source = np.random.default_rng(seed).normal(size=(rows, width)) * np.linspace(3, 0.1, width)
    return source, source + 0.05 * np.random.default_rng(seed + 1).normal(size=(rows, width))


def method_or_skip(method):
    if method == "umap":
        pytest.importorskip("umap")
    return method


def test_pca_agrees_with_numpy():
    source, target = views()
    both = np.concatenate([source, target])
    u, s, _ = np.linalg.svd(both - both.mean(axis=0), full_matrices=False)
    expected = (u * s)[:, :2]
    points = coordinates(source, target)
    found = np.concatenate([points.source, points.target])
    signs = np.sign((found * expected).sum(axis=0))
    assert found * signs == pytest.approx(expected, abs=1e-4)
    assert points.explained == pytest.approx(tuple(s[:2] ** 2 / (s**2).sum()), rel=1e-4)
    assert points.method == "pca"


@pytest.mark.parametrize("method", METHODS)
def test_the_same_seed_gives_the_same_picture(method):
    source, target = views()
    first, second = (coordinates(source, target, method_or_skip(method), seed=3) for _ in range(2))
    assert np.array_equal(first.source, second.source) and np.array_equal(first.target, second.target)
    assert first.source.shape == first.target.shape == (40, 2)


@pytest.mark.parametrize("method", ["tsne", "umap"])
def test_neighbours_stay_neighbours(method):
    """Two far clusters: the nearest point in the plane is of the same cluster."""
    source, target = views(30, 6)
    source[15:] += 100
    target[15:] += 100
    points = coordinates(source, target, method_or_skip(method))
    everything = np.concatenate([points.source, points.target])
    distance = np.linalg.norm(everything[:, None] - everything[None], axis=-1) + 1e9 * np.eye(60)
    cluster = np.tile(np.arange(30) >= 15, 2)
    assert (cluster[distance.argmin(axis=1)] == cluster).all()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("rows", "width"), [(2, 5), (3, 1), (6, 2)])
def test_few_rows_and_dimensions(method, rows, width):
    points = coordinates(*views(rows, width), method_or_skip(method))
    assert points.source.shape == (rows, 2)
    assert np.isfinite(points.source).all() and np.isfinite(points.target).all()


@pytest.mark.parametrize("method", ["pca", "tsne"])
@pytest.mark.filterwarnings("error")
def test_states_of_a_single_point(method):
    points = coordinates(np.ones((9, 4)), np.ones((9, 4)), method)
    assert not points.source.any() and not points.target.any()


def test_umap_that_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "umap", None)
    with pytest.raises(ConfigError, match=r"needs umap, .* pip install 'stepjepa\[umap\]'"):
        coordinates(*views(), "umap")


def test_what_cannot_be_placed():
    with pytest.raises(ConfigError, match="method is 'mds'; known: pca, tsne, umap"):
        coordinates(*views(), "mds")
    with pytest.raises(DataError, match="row i of both must be a pair"):
        coordinates(np.ones((3, 2)), np.ones((4, 2)))
