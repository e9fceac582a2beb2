"""Figures: the values that are drawn."""

from __future__ import annotations

import numpy as np
import pytest

from stepjepa.analysis.plots import layer_figure, spectrum_figure

pytest.importorskip("matplotlib")
pytestmark = pytest.mark.filterwarnings("error::UserWarning")

SPECTRA = {"plain": np.array([9.0, 3.0, 1.0, 0.0]), "step": np.array([5.0, 1e-3, 1e-30, 0.0])}
LAYERS = {"plain": {0: 0.1, 6: 0.3, 12: 0.5, -1: 0.4}, "step": {0: 0.1, 6: 0.4, -1: 0.9}}


def test_spectrum_draws_the_values_without_zeros():
    axis = spectrum_figure(SPECTRA).axes[0]
    assert axis.get_yscale() == "log" and axis.get_ylim()[0] >= 9e-8  # what is below is rounding
    assert axis.lines[0].get_ydata()[:3].tolist() == [9.0, 3.0, 1.0] and np.isnan(axis.lines[0].get_ydata()[3])
    assert axis.lines[0].get_xdata().tolist() == [1, 2, 3, 4]
    assert spectrum_figure({"a": np.zeros(3)}).axes[0].get_yscale() == "linear"


def test_layers_are_in_order_with_the_final_one_last():
    first, last = layer_figure({"cosine gap": LAYERS, "retrieval@1 (%)": LAYERS}).axes
    assert [tick.get_text() for tick in last.get_xticklabels()] == ["emb.", "6", "12", "final"]
    assert first.lines[1].get_xdata().tolist() == [0, 1, 3] and list(last.lines[1].get_ydata()) == [0.1, 0.4, 0.9]
    many = layer_figure({"x": {"a": {**dict.fromkeys(range(81), 0.5), -1: 0.5}}}).axes[0]
    assert len(many.get_xticks()) <= 18
