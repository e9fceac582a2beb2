"""The picture of a row: it is drawn for every form, without global state, and its colours can be told apart."""

import sys

import matplotlib
import numpy as np
import pytest
from matplotlib.image import imread

from stepjepa.inspect.figure import row_figure, save_figure
from stepjepa.inspect.record import KINDS
from support.pages import stepped_example
from support.records import row_record


@pytest.mark.parametrize("inline", [False, True])
def test_a_row_in_every_form(tmp_path, monkeypatch, inline):
    """The mask is the record's, and nothing global is changed."""
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # importing it fails
    before = dict(dict.items(matplotlib.rcParams))
    record = row_record(stepped_example(15, 1), 2, str, vocabulary=97, inline=inline)
    figure = row_figure(record, "a $title_{")
    texts = [text for text in figure.findobj(matplotlib.text.Text) if text.get_text()]
    words = {text.get_text().strip() for text in texts}
    assert any(text.startswith("a $title_{: ") for text in words)
    assert {"source 1", "target 1", "answer"} <= words and ("branch 1" in words) == (not inline)
    assert min(text.get_fontsize() for text in texts) >= 9  # points
    picture = np.asarray(figure.axes[0].images[0].get_array())
    np.testing.assert_array_equal((picture < 1).any(2), record.visible)
    first = record.kinds.index("predictor")
    assert picture[first, first, 0] == pytest.approx(int(KINDS["predictor"].light[1:3], 16) / 255)
    save_figure(figure, tmp_path / "deep" / "row.png")
    assert imread(tmp_path / "deep" / "row.png").shape[1] == 1600
    assert dict(dict.items(matplotlib.rcParams)) == before
