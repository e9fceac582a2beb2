"""The colours of the runs in the curves, for light and for dark paper.

They differ under deuteranopia too, blue against yellow and light against dark; lines differ in their dashes besides.
"""

from __future__ import annotations

COLOURS = ("#0072b2", "#c14f00", "#1b2028", "#d17392", "#007a3d", "#3d2bff", "#8a1c5c")
DARK_COLOURS = ("#5cb8f0", "#ff8a3d", "#e6e9ef", "#b5668f", "#ffe14d", "#4f7bff", "#6f9a52")
DASHES = ("", "7 4", "2 3", "10 3 2 3", "12 5", "1 4", "6 2 1 2 1 2")


def look(index: int) -> tuple[int, str]:
    """Number of the colour and dashes of series `index`; 49 of them differ, the first 7 in both."""
    shift = index // len(COLOURS)
    return index % len(COLOURS), DASHES[(index + shift) % len(DASHES)]


def colour_rules() -> str:
    """CSS: ``--c`` for each class ``c0``, ``c1``, .."""
    pairs = enumerate(zip(COLOURS, DARK_COLOURS, strict=True))
    return "".join(f".c{number} {{ --c: light-dark({light}, {dark}); }}\n" for number, (light, dark) in pairs)
