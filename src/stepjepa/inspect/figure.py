"""The picture of a row: who sees whom (matplotlib, extra ``analysis``).

It is drawn without pyplot, so no global state changes and no window opens. Figures are 8 inches wide: at 800 pixels, the
smallest letters are 12 pixels high.
"""

from __future__ import annotations

import io
import os
import textwrap
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stepjepa.errors import library
from stepjepa.inspect.html import write_page
from stepjepa.inspect.record import KINDS, RowRecord, evenly
from stepjepa.utils.text import escaped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Lengths are in inches, font sizes in points.
WIDTH = 8.0
INK, FAINT, PAPER = "#1b2028", "#5b6472", "#ffffff"
# Colours of the labels of the two readouts.
SOURCE, TARGET = "#0b4a80", "#9a5b00"
_SMALL = 9
# The side of the mask, and the distance between two labels next to it.
_MASK = 5.5
_LABEL = 0.155
# Maximum number of cells along the mask's side; longer rows are sampled evenly.
_MOST_CELLS = 1600


def row_figure(record: RowRecord, title: str) -> Figure:
    """Draw who sees whom in a row.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    kinds = [meaning for name, meaning in KINDS.items() if name in record.kinds]
    heading = escaped(f"{title}: {record.counts}")
    # Matplotlib's font has few characters beyond ASCII, so all of those become escapes.
    lines = textwrap.wrap(heading.encode("ascii", "backslashreplace").decode(), 104)
    figure = library("matplotlib.figure", "analysis").Figure(
        figsize=(WIDTH, _MASK + 1.1 + 0.17 * len(lines) + 0.1 * len(kinds)),
        dpi=100,
        facecolor=PAPER,
        layout="constrained",
    )
    figure.suptitle(
        "\n".join(lines), x=0.02, ha="left", fontsize=_SMALL, color=INK, parse_math=False
    )
    _draw_mask(figure.add_subplot(frameon=False, xticks=[], yticks=[]), record)
    patch = library("matplotlib.patches", "analysis").Patch
    figure.legend(
        [patch(facecolor=kind.light, edgecolor=FAINT, linewidth=0.5) for kind in kinds],
        [kind.meaning for kind in kinds],
        loc="outside lower left",
        ncols=2,
        fontsize=_SMALL,
        frameon=False,
        labelcolor=INK,
    )
    return figure


def save_figure(figure: Figure, path: str | os.PathLike[str], dpi: int = 200) -> None:
    """Write a figure as PNG, atomically.

    The same version of matplotlib writes the same bytes for the same figure.

    Args:
        dpi: pixels per inch; 100 makes the picture 800 pixels wide.

    Raises:
        ConfigError: the file cannot be written; an earlier one is unchanged.
    """
    # Drawn in memory first, so that a failure leaves no partial file.
    memory = io.BytesIO()
    # By default matplotlib writes its version into the file.
    figure.savefig(memory, format="png", dpi=dpi, metadata={"Software": None})
    write_page(memory.getvalue(), path)


def _draw_mask(axes: Axes, record: RowRecord) -> None:
    """Draw the matrix in the colours of the seen tokens, and labels next to it."""
    size = len(record)
    to_rgb = library("matplotlib.colors", "analysis").to_rgb
    shown = evenly(size, _MOST_CELLS)
    of_key = np.array([to_rgb(KINDS[record.kinds[index]].light) for index in shown])  # (cells, 3)
    seen = record.visible[np.ix_(shown, shown)]
    # Where a query sees a key, the cell has the key's colour, and is white otherwise: (cells, cells, 3).
    picture = np.where(seen[..., None], of_key, 1.0)
    # The extent is in tokens, so labels and lines need no scaling for a sampled row.
    axes.imshow(picture, extent=(0, size, size, 0), interpolation="nearest", aspect="auto")
    axes.set_title(
        "who sees whom   (down: who looks; across: who is seen)",
        fontsize=_SMALL,
        color=FAINT,
        pad=6,
    )

    # Labels on the left are sections, those on the right readouts.
    names = []
    for start, stop in record.sections:
        names.append(((start + stop) / 2, record.names[start].removeprefix("trunk: "), INK))
        axes.axhline(start, color=INK, linewidth=0.35, alpha=0.35)
        axes.axvline(start, color=INK, linewidth=0.35, alpha=0.35)
    readouts = []
    for index, tags in sorted(record.tags.items()):
        reads = [tag for tag in tags if tag.startswith(("source", "target"))]
        if reads:
            colour = TARGET if reads[0].startswith("target") else SOURCE
            readouts.append((index + 0.5, "; ".join(reads), colour))
    _side_labels(axes, names, size, 0, ha="right")
    _side_labels(axes, readouts, size, size, ha="left")


def _side_labels(
    axes: Axes, labels: list[tuple[float, str, str]], size: int, edge: float, ha: str
) -> None:
    """Write labels (row, text, colour) next to the mask; a label that would touch the one above is left out."""
    distance = _LABEL / _MASK * size
    free = 0.0
    for row, text, colour in labels:
        if row >= free:
            axes.text(
                edge,
                row,
                f" {escaped(text)} ",
                fontsize=_SMALL,
                ha=ha,
                va="center",
                color=colour,
                parse_math=False,
            )
            free = row + distance


# The series in figures and in the report: their colours also differ under deuteranopia, and their lines have dashes.


class Colour(NamedTuple):
    """A colour for light and for dark backgrounds."""

    light: str
    dark: str


COLOURS = (
    Colour("#0072b2", "#5cb8f0"),
    Colour("#c14f00", "#ff8a3d"),
    Colour("#1b2028", "#e6e9ef"),
    Colour("#d17392", "#b5668f"),
    Colour("#007a3d", "#ffe14d"),
    Colour("#3d2bff", "#4f7bff"),
    Colour("#8a1c5c", "#6f9a52"),
)
# The number of colours, and also of the dash patterns and markers in figures.
SERIES = len(COLOURS)


def series_style(index: int) -> tuple[int, int]:
    """The numbers of the colour and of the dashes of series `index`: 49 series differ, the first 7 of them in both."""
    # After every 7 series, the shift combines each colour with different dashes.
    return index % SERIES, (index + index // SERIES) % SERIES


def series_rules() -> str:
    """The colours as rules of a page's style: ``--c`` of the classes ``c0``, ``c1``, ..."""
    return "".join(
        f".c{number} {{ --c: light-dark({colour.light}, {colour.dark}); }}\n"
        for number, colour in enumerate(COLOURS)
    )
