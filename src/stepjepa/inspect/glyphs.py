"""Characters and colours of the terminal's picture, and tokens as text that does nothing.

Text from the data reaches the terminal only through `token_label`, and rich only as `Text`, so neither control
characters nor rich's markup in it do anything.
"""

from __future__ import annotations

from typing import NamedTuple

from stepjepa.utils.text import escaped

STYLES = {
    "prompt": "",
    "answer": "green",
    "source_end": "bold yellow",
    "original": "cyan",
    "isolated": "blue",
    "span": "cyan",
    "predictor": "bold magenta",
    "source": "yellow",
    "target": "blue",
    "padding": "dim",
}
LETTERS = {
    "prompt": ".",
    "answer": "a",
    "source_end": "s",
    "original": "o",
    "isolated": "i",
    "span": "x",
    "predictor": "p",
    "source": "v",
    "target": "t",
    "padding": "-",
}
READOUT = "underline"
FAINT = "dim"


class Glyphs(NamedTuple):
    """Characters to draw with. `blocks`: nothing, upper half, lower half, both."""

    space: str
    newline: str
    tab: str
    bar: str
    tag: tuple[str, str]
    blocks: str


UNICODE = Glyphs("\u00b7", "\u21b5", "\u21e5", "\u2502", ("\u00ab", "\u00bb"), " \u2580\u2584\u2588")
ASCII = Glyphs(" ", "\\n", "\\t", "|", ("<", ">"), " '.#")


def token_label(text: str, glyphs: Glyphs = UNICODE) -> str:
    """A token's text on one line, white space visible, control and format characters as escapes."""
    for character, glyph in ((" ", glyphs.space), ("\n", glyphs.newline), ("\t", glyphs.tab)):
        text = text.replace(character, glyph)
    text = escaped(text)
    return text.encode("ascii", "backslashreplace").decode() if glyphs is ASCII else text
