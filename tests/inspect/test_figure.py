"""The picture of packed rows: it is drawn for every form, without global state, and its labels do not touch."""

import sys
import warnings

import matplotlib
import numpy as np
import pytest
from matplotlib.image import imread

from stepjepa.errors import ConfigError
from stepjepa.inspect.figure import row_figure, save_figure
from stepjepa.inspect.record import KINDS
from support.colours import assert_told_apart
from support.pages import stepped_example
from support.records import row_record


def texts_of(figure):
    """All texts of a figure, those of its axes included."""
    return [text.get_text() for text in figure.findobj(matplotlib.text.Text) if text.get_text()]


def made_up(texts=str, length=15, pairs=1, **form):
    return row_record(stepped_example(length, pairs), 2, texts, vocabulary=97, **form)


@pytest.mark.parametrize("inline", [False, True])
def test_a_row_in_every_form(tmp_path, inline):
    figure = row_figure(made_up(inline=inline), "a $title_{")
    texts = [text.strip() for text in texts_of(figure)]
    assert any(text.startswith("a $title_{: ") for text in texts)
    assert {"source 1", "target 1", "answer"} <= set(texts)
    assert ("branch 1" in texts) == (not inline)
    save_figure(figure, tmp_path / "deep" / "row.png")
    assert imread(tmp_path / "deep" / "row.png").shape[1] == 1600
    assert min(text.get_fontsize() for text in figure.findobj(matplotlib.text.Text) if text.get_text()) >= 9  # points


def test_the_mask_is_the_record_s_and_nothing_global_is_changed(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # importing it fails
    before = dict(dict.items(matplotlib.rcParams))
    record = made_up(length=20)
    figure = row_figure(record)
    assert dict(dict.items(matplotlib.rcParams)) == before
    pictures = [image.get_array() for axes in figure.axes for image in axes.images]
    (picture,) = (found for found in pictures if found.shape[:2] == (len(record), len(record)))
    np.testing.assert_array_equal((np.asarray(picture) < 1).any(2), record.visible)
    red = int(KINDS["predictor"].light[1:3], 16) / 255
    first = record.kinds.index("predictor")
    assert picture[first, first, 0] == pytest.approx(red)


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_same_figure_gives_the_same_bytes(suffix, tmp_path):
    record = made_up()
    for number in "12":
        save_figure(row_figure(record), tmp_path / f"{number}.{suffix}", dpi=50)
    first, second = ((tmp_path / f"{number}.{suffix}").read_bytes() for number in "12")
    assert (
        first == second and len(first) > 1000 and first.lstrip().startswith(b"<?xml" if suffix == "svg" else b"\x89PNG")
    )
    with pytest.raises(ConfigError, match="figures are written as .png or .svg"):
        save_figure(row_figure(record), tmp_path / "row.pdf")


def test_control_characters_and_missing_letters(tmp_path):
    title = "\x1b[31m\x00 \u202e\u05d0 $\\frac{1 \U00013000\u4e2d"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save_figure(row_figure(made_up(), title), tmp_path / "row.png", dpi=50)
    assert (tmp_path / "row.png").stat().st_size > 1000


@pytest.mark.parametrize("paper", ["light", "dark"])
@pytest.mark.parametrize(
    "together",
    ["prompt answer source_end original predictor target source", "prompt answer source_end isolated predictor"],
)
def test_colours_differ_under_deuteranopia(paper, together):
    assert_told_apart([getattr(KINDS[kind], paper) for kind in together.split()])
