"""Figures: the values that are drawn."""

import numpy as np
import pytest

from stepjepa.analysis.geometry import measure_states
from stepjepa.analysis.numbers import ModelGeometry
from stepjepa.analysis.plots import layer_figure

pytest.importorskip("matplotlib")
pytestmark = pytest.mark.filterwarnings("error::UserWarning")


def test_layers_are_in_order_with_the_final_one_last():
    rng = np.random.default_rng(0)
    measured = {layer: measure_states(*rng.normal(size=(2, 8, 4))) for layer in (0, 6, 12, -1)}
    models = {"plain": ModelGeometry("plain", measured, [], None)}
    models["step"] = ModelGeometry("step", {layer: measured[layer] for layer in (-1, 6, 0)}, [], None)
    retrieval, source, target = layer_figure(models).axes
    assert [tick.get_text() for tick in target.get_xticklabels()] == ["0", "6", "12", "final"]
    assert retrieval.lines[1].get_xdata().tolist() == [0, 1, 3]
    step = [measured[layer] for layer in (0, 6, -1)]
    assert list(retrieval.lines[1].get_ydata()) == [100 * one.pairs.retrieval_at_1 for one in step]
    assert list(source.lines[1].get_ydata()) == [one.source.effective_rank for one in step]
