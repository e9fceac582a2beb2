"""The colours of the kinds of tokens in the picture and on the page.

They differ under deuteranopia too: blue against yellow, and light against dark. No colour is the only sign of anything:
kinds have letters, segments have names.
"""

from __future__ import annotations

COLOURS = {
    "prompt": "#b9c0cc",
    "answer": "#6cb2e6",
    "source_end": "#0b4a80",
    "original": "#f4e66a",
    "isolated": "#dc8a12",
    "span": "#f4e66a",
    "predictor": "#b5402a",
    "source": "#7a68b8",
    "target": "#dc8a12",
    "padding": "#eceef2",
}
DARK_COLOURS = {
    "prompt": "#5c6573",
    "answer": "#2f74a8",
    "source_end": "#b4dcff",
    "original": "#efe374",
    "isolated": "#d0891a",
    "span": "#efe374",
    "predictor": "#d24a33",
    "source": "#a796ea",
    "target": "#d0891a",
    "padding": "#2b323e",
}
INK, FAINT, PAPER = "#1b2028", "#5b6472", "#ffffff"
SOURCE, TARGET = "#0b4a80", "#9a5b00"  # of the two readouts


def letter_colour(ground: str) -> str:
    """Black or white, whichever is read better on a colour ``#rrggbb`` (WCAG 2.2, relative luminance)."""
    light = luminance(ground)
    return "#000000" if (light + 0.05) / 0.05 > 1.05 / (light + 0.05) else "#ffffff"


def luminance(colour: str) -> float:
    """Relative luminance of ``#rrggbb``, 0 for black to 1 for white (WCAG 2.2)."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
