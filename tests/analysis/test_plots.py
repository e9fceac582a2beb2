"""Figures: what is drawn, that it stays inside, and that the same numbers give the same bytes."""

from __future__ import annotations

import numpy as np
import pytest

from stepjepa.analysis.plots import layer_figure, spectrum_figure

matplotlib = pytest.importorskip("matplotlib")
pytestmark = pytest.mark.filterwarnings("error::UserWarning")

LONG = "llm_jepa, InfoNCE, lambda 0.1, K = 2, EMA 0.98"
SPECTRA = {"plain": np.array([9.0, 3.0, 1.0, 0.0]), LONG: np.array([5.0, 1e-3, 1e-30, 0.0])}
LAYERS = {"plain": {0: 0.1, 6: 0.3, 12: 0.5, -1: 0.4}, LONG: {0: 0.1, 6: 0.4, -1: 0.9}}
FIGURES = {
    "spectrum": lambda: spectrum_figure(SPECTRA),
    "layers": lambda: layer_figure({"cosine gap": LAYERS, "retrieval@1 (%)": LAYERS}),
}


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


def test_layers_are_in_order_with_the_final_one_last():
    first, last = FIGURES["layers"]().axes
    assert [tick.get_text() for tick in last.get_xticklabels()] == ["emb.", "6", "12", "final"]
    assert first.lines[1].get_xdata().tolist() == [0, 1, 3] and list(last.lines[1].get_ydata()) == [0.1, 0.4, 0.9]
    many = layer_figure({"x": {"a": {**dict.fromkeys(range(81), 0.5), -1: 0.5}}}).axes[0]
    assert len(many.get_xticks()) <= 18
