"""Figures: what is drawn, that it stays inside, and that the same numbers give the same bytes."""

from __future__ import annotations

import numpy as np
import pytest

from stepjepa.analysis.plots import cosine_figure, layer_figure, pca_figure, principal_plane, spectrum_figure

matplotlib = pytest.importorskip("matplotlib")
pytestmark = pytest.mark.filterwarnings("error::UserWarning")

LONG = "llm_jepa, InfoNCE, lambda 0.1, K = 2, EMA 0.98"
SPECTRA = {"plain": np.array([9.0, 3.0, 1.0, 0.0]), LONG: np.array([5.0, 1e-3, 1e-30, 0.0])}
COSINES = {"plain": (np.linspace(0.8, 0.99, 50), np.linspace(0.5, 0.9, 50)), LONG: (np.full(50, 1.0), np.full(50, 1.0))}
LAYERS = {"plain": {0: 0.1, 6: 0.3, 12: 0.5, -1: 0.4}, LONG: {0: 0.1, 6: 0.4, -1: 0.9}}
FIGURES = {
    "spectrum": lambda: spectrum_figure(SPECTRA),
    "cosine": lambda: cosine_figure(COSINES),
    "layers": lambda: layer_figure({"cosine gap": LAYERS, "retrieval@1 (%)": LAYERS}),
    "pca": lambda: pca_figure({"plain": views(), LONG: (np.ones((9, 4)), np.ones((9, 4)))}),
}


def views(rows=40, width=12):
    source = np.random.default_rng(0).normal(size=(rows, width)) * np.linspace(3, 0.1, width)
    return source, source + 0.05 * np.random.default_rng(1).normal(size=(rows, width))


def legend_texts(figure):
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_says_what_it_shows_and_nothing_is_cut_off(name):
    figure = FIGURES[name]()
    assert figure.get_suptitle() and legend_texts(figure)
    for axis in figure.axes:
        assert axis.get_xlabel() or axis.get_shared_x_axes().get_siblings(axis) != [axis]
        assert axis.get_ylabel() or axis.get_title()
    figure.draw_without_rendering()
    box = figure.get_tightbbox()
    width, height = figure.get_size_inches()
    assert box.x0 >= -0.01 and box.y0 >= -0.01 and box.x1 <= width + 0.01 and box.y1 <= height + 0.01
    texts = [text for text in figure.findobj(matplotlib.text.Text) if text.get_text() and text.get_visible()]
    assert min(text.get_fontsize() for text in texts) >= 9


def test_spectrum_draws_the_values_without_zeros():
    axis = spectrum_figure(SPECTRA).axes[0]
    assert axis.get_yscale() == "log" and axis.get_ylim()[0] >= 9e-8  # what is below is rounding
    assert axis.lines[0].get_ydata()[:3].tolist() == [9.0, 3.0, 1.0] and np.isnan(axis.lines[0].get_ydata()[3])
    assert axis.lines[0].get_xdata().tolist() == [1, 2, 3, 4]
    assert spectrum_figure({"a": np.zeros(3)}).axes[0].get_yscale() == "linear"


def test_cosine_histograms_are_shares_of_the_pairs():
    """Two of three matched pairs in the first bin, two of four shuffled ones in the middle."""
    axis = cosine_figure({"plain": (np.array([0.0, 0.0, 1.0]), np.array([0.0, 0.5, 0.5, 1.0]))}).axes[0]
    matched, shuffled = (patch.get_path().vertices for patch in axis.patches)
    assert matched[:, 1].max() == pytest.approx(200 / 3) and shuffled[:, 1].max() == pytest.approx(50)
    assert axis.get_title(loc="left") == "plain: mean 0.3333 matched and 0.5000 shuffled"


def test_layers_are_in_order_with_the_final_one_last():
    first, last = FIGURES["layers"]().axes
    assert [tick.get_text() for tick in last.get_xticklabels()] == ["emb.", "6", "12", "final"]
    assert first.lines[1].get_xdata().tolist() == [0, 1, 3] and list(last.lines[1].get_ydata()) == [0.1, 0.4, 0.9]
    many = layer_figure({"x": {"a": {**dict.fromkeys(range(81), 0.5), -1: 0.5}}}).axes[0]
    assert len(many.get_xticks()) <= 18


def test_both_views_in_the_plane_of_their_principal_components():
    both = np.concatenate(views())
    covariance = np.cov(both.T)
    values, vectors = np.linalg.eigh(covariance)
    expected = (both - both.mean(axis=0)) @ vectors[:, [-1, -2]]
    *points, shares = principal_plane(*views())
    found = np.concatenate(points)
    assert found * np.sign((found * expected).sum(axis=0)) == pytest.approx(expected)
    assert shares == pytest.approx(values[[-1, -2]] / values.sum())
    axis = pca_figure({"a": views()}).axes[0]
    assert np.array_equal(axis.collections[1].get_offsets(), points[1])
    assert axis.get_ylabel() == f"component 2 ({100 * shares[1]:.1f} % of variance)"
    for rows, width in ((2, 5), (3, 1)):
        source, target, _ = principal_plane(*views(rows, width))
        assert source.shape == target.shape == (rows, 2) and np.isfinite([source, target]).all()
    assert not any(part.any() for part in principal_plane(np.ones((9, 4)), np.ones((9, 4))))
