"""Two coordinates per state, to draw: PCA, t-SNE and UMAP of both views together.

Shapes: N pairs, D width.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepjepa.analysis.geometry import check_views
from stepjepa.errors import ConfigError
from stepjepa.utils.failures import library

# t-SNE and UMAP start from so many principal components, which takes noise and time away (van der Maaten and Hinton 2008).
COMPONENTS = 50
METHODS = ("pca", "tsne", "umap")


@dataclass(frozen=True)
class Coordinates:
    """Points of both views in one plane.

    Attributes:
        source, target: (N, 2) float64, row i of both a pair.
        method: "pca", "tsne" or "umap".
        explained: share of the variance on each of the two axes, for PCA only.
    """

    source: np.ndarray
    target: np.ndarray
    method: str
    explained: tuple[float, float] | None = None


def coordinates(source: np.ndarray, target: np.ndarray, method: str = "pca", seed: int = 0) -> Coordinates:
    """Place the states of both views in one plane, the same for the same seed and the same versions of the libraries.

    Distances on a PCA are distances in two of D directions. On t-SNE and UMAP only who is near whom means something:
    neither the size of a cluster nor the distance between two of them does.

    Args:
        source, target: (N, D), N >= 2.
        method: "pca"; "tsne" (van der Maaten and Hinton 2008, perplexity 30, less for few rows); "umap" (McInnes et al.
            2018, arXiv:1802.03426; extra ``umap``).

    Raises:
        DataError: the arrays are no pair of views.
        ConfigError: the method is unknown, or its library is missing.
    """
    if method not in METHODS:
        raise ConfigError(f"method is {method!r}; known: {', '.join(METHODS)}")
    source, target = check_views(source, target)
    states = np.concatenate([source, target]).astype(np.float32)
    n, decomposition = len(source), library("sklearn.decomposition", "analysis")
    if not np.ptp(states, axis=0).any():  # one point, which no method can scale
        here = np.zeros((n, 2))
        return Coordinates(here, here, method, (0.0, 0.0) if method == "pca" else None)
    if method == "pca":
        pca = decomposition.PCA(min(2, states.shape[1]), random_state=seed)
        points = _two_columns(pca.fit_transform(states))
        first, second = (*map(float, pca.explained_variance_ratio_), 0.0)[:2]
        return Coordinates(points[:n], points[n:], method, (first, second))
    kept = min(COMPONENTS, *states.shape)
    states = decomposition.PCA(kept, random_state=seed).fit_transform(states)
    points = _two_columns(_tsne(states, seed) if method == "tsne" else _umap(states, seed))
    return Coordinates(points[:n], points[n:], method)


def _tsne(states: np.ndarray, seed: int) -> np.ndarray:
    manifold = library("sklearn.manifold", "analysis")
    perplexity = min(30.0, (len(states) - 1) / 3)
    init = "pca" if states.shape[1] >= 2 else "random"
    return manifold.TSNE(2, perplexity=perplexity, init=init, random_state=seed).fit_transform(states)


def _umap(states: np.ndarray, seed: int) -> np.ndarray:
    umap: Any = library("umap", "umap")
    few = len(states) <= 4  # too few for the spectral start
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a seed means one thread, and that few rows have few neighbours
        neighbours = min(15, len(states) - 1)
        start = "random" if few else "spectral"
        model = umap.UMAP(n_components=2, n_neighbors=neighbours, init=start, random_state=seed, n_jobs=1)
        return model.fit_transform(states)


def _two_columns(points: np.ndarray) -> np.ndarray:
    points = np.asarray(points, dtype=np.float64)
    return points if points.shape[1] == 2 else np.column_stack([points, np.zeros(len(points))])
