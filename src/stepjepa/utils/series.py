"""What tells the series of a figure from each other: the one palette of figures and of the report's page.

The colours differ under deuteranopia too; lines differ in their dashes besides.
"""

from __future__ import annotations

from typing import NamedTuple


class Colour(NamedTuple):
    """A colour on light and on dark paper."""

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
SERIES = len(COLOURS)  # and as many dashes and markers, where a figure has them


def series_style(index: int) -> tuple[int, int]:
    """The numbers of the colour and of the dashes of series `index`: 49 of them differ, the first 7 in both."""
    return index % SERIES, (index + index // SERIES) % SERIES


def series_rules() -> str:
    """The colours as rules of a page's style: ``--c`` of the classes ``c0``, ``c1``, ..."""
    return "".join(
        f".c{number} {{ --c: light-dark({one.light}, {one.dark}); }}\n" for number, one in enumerate(COLOURS)
    )
