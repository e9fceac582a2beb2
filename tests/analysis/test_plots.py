"""Figures: what is drawn, that it stays inside, and that the same numbers give the same bytes."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from stepjepa.analysis.plots import (
    METHOD_TITLES,
    Coordinates,
    coordinates,
    cosine_figure,
    forest_figure,
    layer_figure,
    look,
    retrieval_figure,
    save_figure,
    scatter_figure,
    spectrum_figure,
    step_figure,
)
from stepjepa.errors import ConfigError, DataError

matplotlib = pytest.importorskip("matplotlib")
pytestmark = pytest.mark.filterwarnings("error::UserWarning")

LONG = "llm_jepa, InfoNCE, lambda 0.1, K = 2, EMA 0.98"
SPECTRA = {"plain": np.array([9.0, 3.0, 1.0, 0.0]), LONG: np.array([5.0, 1e-3, 1e-30, 0.0])}
COSINES = {"plain": (np.linspace(0.8, 0.99, 50), np.linspace(0.5, 0.9, 50)), LONG: (np.full(50, 1.0), np.full(50, 1.0))}
LAYERS = {"plain": {0: 0.1, 6: 0.3, 12: 0.5, -1: 0.4}, LONG: {0: 0.1, 6: 0.4, -1: 0.9}}
POINTS = Coordinates(np.random.default_rng(0).normal(size=(30, 2)), np.ones((30, 2)), "pca", (0.5, 0.25))
DIFFERENCES = [
    ("InfoNCE", {"at equal examples": (0.03, 0.01, 0.05), "at equal compute": (-0.01, -0.03, 0.01)}),
    (LONG, {"at equal examples": (-0.02, None, None)}),
]
FIGURES = {
    "spectrum": lambda: spectrum_figure(SPECTRA),
    "cosine": lambda: cosine_figure(COSINES),
    "layer": lambda: layer_figure(LAYERS, "cosine gap", title="Gap by layer"),
    "retrieval": lambda: retrieval_figure(LAYERS, chance=0.01),
    "steps": lambda: step_figure(
        {"plain": {2: (0.1, 0.02), 3: (0.2, 0.01)}, LONG: {3: (0.0, 0.03)}}, {2: 0.1, 3: 0.05}
    ),
    "scatter": lambda: scatter_figure(POINTS, "PCA of plain"),
    "forest": lambda: forest_figure(DIFFERENCES, "accuracy (share)"),
}


def legend_texts(figure):
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_says_what_it_shows_and_nothing_is_cut_off(name):
    figure = FIGURES[name]()
    assert figure.get_suptitle() and legend_texts(figure)
    for axis in figure.axes:
        assert axis.get_xlabel() or axis.get_shared_x_axes().get_siblings(axis) != [axis]
        assert axis.get_ylabel() or axis.get_title() or name == "forest"
    figure.draw_without_rendering()
    box = figure.get_tightbbox()
    width, height = figure.get_size_inches()
    assert box.x0 >= -0.01 and box.y0 >= -0.01 and box.x1 <= width + 0.01 and box.y1 <= height + 0.01
    texts = [text for text in figure.findobj(matplotlib.text.Text) if text.get_text() and text.get_visible()]
    assert min(text.get_fontsize() for text in texts) >= 9


@pytest.mark.parametrize("name", ["forest", "scatter"])
def test_the_same_figure_gives_the_same_bytes_and_nothing_global_is_touched(name, tmp_path):
    before = dict(matplotlib.rcParams)
    for number in "12":
        save_figure(FIGURES[name](), tmp_path / "new" / f"{number}.png", dpi=100)
    first, second = ((tmp_path / "new" / f"{number}.png").read_bytes() for number in "12")
    assert first == second and len(first) > 1000
    assert b"Date" not in first and b"dc:date" not in first and matplotlib.__version__.encode() not in first
    assert dict(matplotlib.rcParams) == before
    assert matplotlib.image.imread(tmp_path / "new" / "1.png").shape[1] == 800


def test_looks_differ_in_more_than_colour():
    looks = [look(i) for i in range(49)]
    assert len(set(map(str, looks))) == 49
    assert all(len({str(one[part]) for one in looks[:7]}) == 7 for part in looks[0])


def test_spectrum_draws_the_values_without_zeros():
    axis = spectrum_figure(SPECTRA).axes[0]
    assert axis.get_yscale() == "log" and axis.get_ylim()[0] >= 9e-8  # what is below is rounding
    assert axis.lines[0].get_ydata()[:3].tolist() == [9.0, 3.0, 1.0] and np.isnan(axis.lines[0].get_ydata()[3])
    assert axis.lines[0].get_xdata().tolist() == [1, 2, 3, 4]
    assert spectrum_figure({"a": np.zeros(3)}).axes[0].get_yscale() == "linear"


def test_cosine_histograms_are_shares_of_the_pairs():
    """Two of three matched pairs in the first bin, two of four shuffled ones in the middle."""
    axis = cosine_figure({"plain": (np.array([0.0, 0.0, 1.0]), np.array([0.0, 0.5, 0.5, 1.0]))}).axes[0]
    filled, _, shuffled, _ = (patch.get_path().vertices for patch in axis.patches)
    assert filled[:, 1].max() == pytest.approx(200 / 3) and shuffled[:, 1].max() == pytest.approx(50)
    assert axis.get_title(loc="left") == "plain: mean 0.3333 matched and 0.5000 shuffled"


def test_layers_are_in_order_with_the_final_one_last():
    axis = retrieval_figure(LAYERS, chance=0.01).axes[0]
    assert [tick.get_text() for tick in axis.get_xticklabels()] == ["emb.", "6", "12", "final"]
    assert axis.lines[1].get_xdata().tolist() == [0, 1, 3]
    assert axis.lines[1].get_ydata() == pytest.approx([10, 40, 90])
    assert axis.lines[2].get_ydata() == pytest.approx([1, 1])
    many = layer_figure({"a": {**dict.fromkeys(range(81), 0.5), -1: 0.5}}, "x").axes[0]
    assert len(many.get_xticks()) <= 18


def test_scatter_joins_pairs():
    axis = scatter_figure(POINTS, max_lines=4).axes[0]
    assert [line.get_xdata()[0] for line in axis.lines] == [POINTS.source[i, 0] for i in (0, 10, 19, 29)]
    assert np.array_equal(axis.collections[1].get_offsets(), POINTS.target)
    assert axis.get_ylabel() == "principal component 2 (25.0 % of variance)"
    assert scatter_figure(Coordinates(POINTS.source, POINTS.target, "tsne")).axes[0].get_xlabel() == "t-SNE axis 1"


def test_forest_draws_means_and_intervals():
    figure = forest_figure(DIFFERENCES, "loss (nats)", higher_is_better=False)
    axis = figure.axes[0]
    drawn = [c for c in axis.containers if len(c.lines[0].get_xdata())]
    assert [float(c.lines[0].get_xdata()[0]) for c in drawn] == [0.03, -0.01, -0.02]
    ends = [c.lines[2][0].get_segments()[0][:, 0].tolist() for c in drawn[:2]]
    assert ends == [pytest.approx([0.01, 0.05]), pytest.approx([-0.03, 0.01])]
    assert axis.get_ylim()[0] > axis.get_ylim()[1]  # the first arm on top
    assert axis.get_xlabel() == "difference in loss (nats), 95 % interval (better to the left)"
    assert legend_texts(figure) == ["at equal examples", "at equal compute"]


def test_what_cannot_be_drawn_or_written(tmp_path, monkeypatch):
    for draw, what in (
        (lambda: spectrum_figure({}), "spectra"),
        (lambda: forest_figure([], "x"), "differences"),
    ):
        with pytest.raises(DataError, match=f"there are no {what} to draw"):
            draw()
    with pytest.raises(ConfigError, match=r"f.pdf: figures are written as .png"):
        save_figure(FIGURES["spectrum"](), tmp_path / "f.pdf")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match=r"pip install 'stepjepa\[analysis\]'"):
        FIGURES["spectrum"]()


# Coordinates


def views(rows=40, width=12):
    source = np.random.default_rng(0).normal(size=(rows, width)) * np.linspace(3, 0.1, width)
    return source, source + 0.05 * np.random.default_rng(1).normal(size=(rows, width))


def test_pca_agrees_with_numpy():
    both = np.concatenate(views())
    u, s, _ = np.linalg.svd(both - both.mean(axis=0), full_matrices=False)
    expected, points = (u * s)[:, :2], coordinates(*views())
    found = np.concatenate([points.source, points.target])
    assert found * np.sign((found * expected).sum(axis=0)) == pytest.approx(expected, abs=1e-4)
    assert points.explained == pytest.approx(tuple(s[:2] ** 2 / (s**2).sum()), rel=1e-4)


@pytest.mark.parametrize("method", METHOD_TITLES)
def test_coordinates_of_every_method(method):
    """The same seed gives the same points; what is near is of one cluster; few rows and dimensions have points too."""
    source, target = views(30, 6)
    source[15:] += 100
    target[15:] += 100
    first, second = (coordinates(source, target, method, seed=3) for _ in "ab")
    assert first.method == method and first.source.shape == first.target.shape == (30, 2)
    assert np.array_equal(first.source, second.source) and np.array_equal(first.target, second.target)
    everything = np.concatenate([first.source, first.target])
    distance = np.linalg.norm(everything[:, None] - everything[None], axis=-1) + 1e9 * np.eye(60)
    cluster = np.tile(np.arange(30) >= 15, 2)
    assert (cluster[distance.argmin(axis=1)] == cluster).all()
    for rows, width in ((2, 5), (3, 1)):
        points = coordinates(*views(rows, width), method)
        assert points.source.shape == (rows, 2) and np.isfinite([points.source, points.target]).all()


@pytest.mark.filterwarnings("error")
def test_what_cannot_be_scaled_or_placed():
    for method in ("pca", "tsne"):
        points = coordinates(np.ones((9, 4)), np.ones((9, 4)), method)
        assert not points.source.any() and not points.target.any()
    with pytest.raises(ConfigError, match="method is 'mds'; known: pca, tsne"):
        coordinates(*views(), "mds")
