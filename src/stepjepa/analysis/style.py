"""How the library's figures look, and how they are written (matplotlib, extra ``analysis``).

Figures are drawn without pyplot, so nothing global is changed and no window opens. They are 8 inches wide: at 800 pixels
their smallest letters are 12 pixels high. Lines differ in colour, in dashes and in markers.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any, NamedTuple

from stepjepa.errors import ConfigError
from stepjepa.utils.failures import library
from stepjepa.utils.files import write_whole

WIDTH = 8.0  # inches
# Okabe and Ito's colours (jfly.uni-koeln.de/color), without the yellow, which white paper swallows.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)), (0, (1, 3)), (0, (8, 3)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
GREY = "#6b6b6b"
_METADATA = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}


class Look(NamedTuple):
    """What tells one series from the others."""

    color: str
    linestyle: Any
    marker: str


def look(index: int) -> Look:
    """The look of series number `index`: 49 of them differ, the first 7 in all three."""
    shift = index // len(COLOURS)
    return Look(
        COLOURS[index % len(COLOURS)],
        DASHES[(index + shift) % len(DASHES)],
        MARKERS[(index + shift) % len(MARKERS)],
    )


def new_figure(
    rows: int = 1, columns: int = 1, *, height: float, title: str = "", **options: Any
) -> tuple[Any, list[Any]]:
    """A figure of `WIDTH` x `height` inches and its axes, row by row, with a light grid and without a box.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    figure = library("matplotlib.figure", "analysis").Figure(figsize=(WIDTH, height), layout="constrained", dpi=100)
    figure.get_layout_engine().set(h_pad=0.07)
    axes = figure.subplots(rows, columns, squeeze=False, **options).ravel().tolist()
    for axis in axes:
        axis.grid(alpha=0.3, linewidth=0.6)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=9)
    if title:
        figure.suptitle(title, fontsize=12)
    return figure, axes


def plain_log_axis(axis: Any) -> None:
    """A logarithmic y axis with 1, 2, 5 written as they are, for numbers that span little."""
    ticker = library("matplotlib.ticker", "analysis")
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter(ticker.StrMethodFormatter("{x:g}"))
    axis.yaxis.set_minor_formatter(ticker.NullFormatter())


def legend_below(figure: Any, axis: Any) -> None:
    """One legend for all panels, under them, in as many columns as fit."""
    handles, labels = axis.get_legend_handles_labels()
    columns = max(1, min(len(labels), int(110 / (max(map(len, labels), default=1) + 8))))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=10)


def save_figure(figure: Any, path: str | os.PathLike[str], dpi: int = 200) -> None:
    """Write a figure as PNG or SVG, by the file's name; it appears whole or not at all.

    The same figure gives the same bytes with the same version of matplotlib: there is no date in it and no random name.

    Args:
        dpi: pixels an inch of a PNG; 100 makes it 800 wide.

    Raises:
        ConfigError: the name ends in neither .png nor .svg.
        OSError: it could not be written; what stood there still stands.
    """
    path = Path(path)
    kind = path.suffix.lower().lstrip(".")
    if kind not in _METADATA:
        raise ConfigError(f"{path}: figures are written as .png or .svg")
    matplotlib = library("matplotlib", "analysis")
    memory = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "stepjepa", "svg.fonttype": "path"}):
        figure.savefig(memory, format=kind, dpi=dpi, metadata=_METADATA[kind])
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, [memory.getvalue()])
