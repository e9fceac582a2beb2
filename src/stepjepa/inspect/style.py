"""What the terminal, the figure and the page share: the kinds of tokens, tokens as text that does nothing, counts, lanes.

Colours differ under deuteranopia too: blue against yellow, and light against dark. No colour is the only sign of anything:
kinds have letters, segments have names. Text from the data is shown only through `token_label` or `utils.text.escaped`.

Shapes: L positions of a row, S sections (`RowRecord.sections`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from stepjepa.inspect.record import SAMPLED_TUBES, RowRecord
from stepjepa.utils.text import escaped


class Kind(NamedTuple):
    """A kind of token: its letter, what it is, its style in a terminal, its colours on light and dark paper."""

    letter: str
    meaning: str
    style: str
    light: str
    dark: str


KINDS = {  # in the order of the legend
    "prompt": Kind(".", "trunk, no label", "", "#b9c0cc", "#5c6573"),
    "answer": Kind("a", "trunk, labelled", "green", "#6cb2e6", "#2f74a8"),
    "source_end": Kind("s", "end of a source view on the trunk", "bold yellow", "#0b4a80", "#b4dcff"),
    "original": Kind("o", "a target view's original on the trunk", "cyan", "#f4e66a", "#efe374"),
    "isolated": Kind("i", "a target view isolated in its place", "blue", "#dc8a12", "#d0891a"),
    "span": Kind("x", "within a sampled span", "cyan", "#f4e66a", "#efe374"),
    "predictor": Kind("p", "predictor token", "bold magenta", "#b5402a", "#d24a33"),
    "source": Kind("v", "a source view in a segment of its own", "yellow", "#7a68b8", "#a796ea"),
    "target": Kind("t", "isolated copy of a target view", "blue", "#dc8a12", "#d0891a"),
    "padding": Kind("-", "padding, which sees itself alone", "dim", "#eceef2", "#2b323e"),
}


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


def letter_colour(ground: str) -> str:
    """Black or white, whichever is read better on a colour ``#rrggbb`` (WCAG 2.2, relative luminance)."""
    light = luminance(ground)
    return "#000000" if (light + 0.05) / 0.05 > 1.05 / (light + 0.05) else "#ffffff"


def luminance(colour: str) -> float:
    """Relative luminance of ``#rrggbb``, 0 for black to 1 for white (WCAG 2.2)."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def counted(number: int, noun: str, plural: str = "") -> str:
    """``1 row``, ``2,000 rows``."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def counts_of(record: RowRecord) -> str:
    """How many tokens of which kind the row has, and how many pairs."""
    kinds = record.kinds
    trunk = sum(name.startswith("trunk: ") for name in record.names)
    parts = [f"{trunk} on the trunk ({int(record.labelled.sum())} labelled)"]
    predictors = kinds.count("predictor")
    parts += [counted(predictors, "predictor")] if predictors else []
    for kind, words in (
        ("source", "in sources of their own"),
        ("target", "in isolated targets"),
        ("padding", "of padding"),
    ):
        parts += [f"{kinds.count(kind)} {words}"] if kind in kinds else []
    pairs = counted(len(record.pairs), "pair")
    if record.tube:
        sampled = record.tube[0].mode in SAMPLED_TUBES
        pairs = counted(len(record.tube), *(("span",) if sampled else ("pair of vectors", "pairs of vectors")))
    return f"{len(record)} {'positions' if 'padding' in kinds else 'tokens'}: {', '.join(parts)}; {pairs}"


GAP = 4  # columns between examples
_GROUPS = {"branch": 1, "source": 1, "target": 2}


@dataclass(frozen=True)
class Lanes:
    """A row by its positions: the trunk on top, below it the branches, then what is isolated.

        ```
        trunk      [user      ][step 1   ][step 2   ][end]
        branches                          [p1 p2]
        targets                                  [step 2   ]
        position   0 ..                   p+1    p+K+1 ..
        ```

    Attributes:
        columns: (L,) int64; the position of a token within its example, moved on by the examples before it.
        of_section: (S,) lane of each section.
        names: of the lanes, from the top; the same name for several lanes of one group.
        width: columns in all.
    """

    columns: np.ndarray
    of_section: tuple[int, ...]
    names: tuple[str, ...]
    width: int


def lanes(record: RowRecord) -> Lanes:
    """Place the tokens of a row; sections of one group share a lane as far as they do not overlap."""
    columns = record.positions.copy()
    end = 0
    for example in dict.fromkeys(record.examples.tolist()):
        own = record.examples == example
        if example < 0:
            columns[own] = np.arange(own.sum())  # padding has no positions
        columns[own] += end
        end = int(columns[own].max()) + 1 + GAP
    groups: list[list[int]] = [[], [], []]  # for each lane of the group the first free column
    found: list[tuple[int, int]] = []
    for start, stop in record.sections:
        group = _GROUPS.get(record.names[start].split(" ")[0], 0)
        first, after = int(columns[start]), int(columns[stop - 1]) + 1
        free = next((lane for lane, taken in enumerate(groups[group]) if group == 0 or taken <= first), None)
        if free is None:
            free = len(groups[group])
            groups[group].append(0)
        groups[group][free] = after
        found.append((group, free))
    before = np.cumsum([0, *map(len, groups)]).tolist()
    branches = "sources" if any(name.startswith("source") for name in record.names) else "branches"
    names = [name for name, held in zip(("trunk", branches, "targets"), groups, strict=True) for _ in held]
    return Lanes(columns, tuple(before[group] + lane for group, lane in found), tuple(names), end - GAP)
