"""The picture of packed rows: every segment at its positions, and who sees whom (matplotlib, extra ``analysis``).

Drawn without pyplot, so nothing global is changed and no window opens. Figures are 8 inches wide: at 800 pixels the smallest
letters are 12 pixels high.
"""

from __future__ import annotations

import io
import os
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from stepjepa.errors import ConfigError
from stepjepa.inspect.html import write_page
from stepjepa.inspect.record import KINDS, RowRecord, letter_colour, runs, token_label
from stepjepa.utils.failures import library
from stepjepa.utils.text import escaped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 8.0  # inches
INK, FAINT, PAPER = "#1b2028", "#5b6472", "#ffffff"
SOURCE, TARGET = "#0b4a80", "#9a5b00"  # of the two readouts
_SMALL = 9  # points
_MASK = 5.5  # inches, side of a mask
_LABEL = 0.155  # inches between two labels of the mask, and that a token needs for its text
_MOST_LABELS = 0.85  # of the room next to a mask
_MOST_CELLS = 1600  # of a mask's side; longer rows are thinned
_STRIP = WIDTH - 0.95  # inches, width of a strip
_BAR = 0.17  # inches, height of a bar without text
_NAMES = 0.26  # inches, the line for names below a bar
_MOST_LETTERS = 13
_LETTER = 0.075  # inches, the width of a letter
_METADATA: dict[str, dict[str, None]] = {".png": {"Software": None}, ".svg": {"Date": None, "Creator": None}}
_STEPS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)  # between two positions that are written


def row_figure(rows: Sequence[tuple[str, RowRecord]], title: str = "") -> Figure:
    """A figure with a strip and a mask for each row, one below the other.

    Args:
        rows: (heading, record); at least one.
        title: of the figure.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    title_lines = _wrapped(title, 92)
    parts = [
        (record, Strip(record), _wrapped(f"{heading}: {record.counts}".removeprefix(": "), 104))
        for heading, record in rows
    ]
    top = 0.25 + 0.2 * len(title_lines)
    kinds = [kind for kind in KINDS if any(kind in record.kinds for _, record in rows)]
    foot = 0.45 + 0.2 * -(-len(kinds) // 2)
    height = top + sum(0.17 * len(lines) + strip.height + _MASK + 1.1 for _, strip, lines in parts) + foot
    figure = library("matplotlib.figure", "analysis").Figure(figsize=(WIDTH, height), dpi=100, facecolor=PAPER)

    def axes(left: float, top: float, width: float, tall: float) -> Axes:
        """Axes at a place in inches, counted from the top left."""
        made = figure.add_axes((left / WIDTH, 1 - (top + tall) / height, width / WIDTH, tall / height))
        made.spines[:].set_visible(False)
        made.set_xticks([])
        made.set_yticks([])
        return made

    figure.text(0.02, 1 - 0.12 / height, "\n".join(title_lines), va="top", fontsize=11, color=INK, parse_math=False)
    for record, strip, lines in parts:
        text = "\n".join(lines)
        figure.text(0.02, 1 - top / height, text, va="top", fontsize=_SMALL, color=FAINT, parse_math=False)
        top += 0.17 * len(lines) + 0.35
        strip.draw(axes(0.85, top, _STRIP, strip.height))
        top += strip.height + 0.5
        _draw_mask(axes(1.4, top, _MASK, _MASK), record)
        top += _MASK + 0.25
    patches = library("matplotlib.patches", "analysis")
    handles = [patches.Patch(facecolor=KINDS[kind].light, edgecolor=FAINT, linewidth=0.5) for kind in kinds]
    figure.legend(
        handles, [KINDS[kind].meaning for kind in kinds], loc="lower left", bbox_to_anchor=(0.01, 0.22 / height), ncols=2,
        fontsize=_SMALL, frameon=False, handlelength=1.2, columnspacing=2, labelcolor=INK,
    )  # fmt: skip
    if any(pair.arrow for _, record in rows for pair in record.pairs):
        words = "Triangles: tokens at which views are read; an arrow leads from a source to the target that it must predict."
        figure.text(0.02, 0.1 / height, words, fontsize=_SMALL, color=FAINT)
    return figure


def save_figure(figure: Figure, path: str | os.PathLike[str], dpi: int = 200) -> None:
    """Write a figure as PNG or SVG, by the file's name, as `write_page` does.

    The same figure gives the same bytes with the same version of matplotlib: there is no date in it and no random name.

    Args:
        dpi: pixels an inch of a PNG; 100 makes it 800 wide.

    Raises:
        ConfigError: the name ends in neither .png nor .svg, or the file cannot be written; an earlier one is unchanged.
    """
    kind, memory = Path(path).suffix.lower(), io.BytesIO()
    if kind not in _METADATA:
        raise ConfigError(f"{path}: figures are written as .png or .svg")
    with library("matplotlib", "analysis").rc_context({"svg.hashsalt": "stepjepa", "svg.fonttype": "path"}):
        figure.savefig(memory, format=kind[1:], dpi=dpi, metadata=_METADATA[kind])
    write_page(memory.getvalue(), path)


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(written(text), width) or [""]


def written(text: str) -> str:
    """`text` in letters that the figure's font has; others, and what is not printable, as escapes."""
    manager = library("matplotlib.font_manager", "analysis")
    font = manager.get_font(manager.findfont(manager.FontProperties()))
    return "".join(
        letter if font.get_char_index(ord(letter)) else letter.encode("unicode_escape").decode()
        for letter in escaped(text)
    )


class Strip:
    """The row's segments by position (`record.Lanes`), what hangs where, and what is read."""

    def __init__(self, record: RowRecord):
        self.record, self.placed = record, record.lanes
        self.unit = _STRIP / self.placed.width  # inches a column
        self.texts: list[str] = []  # none where the cells are too narrow for them
        if self.placed.width * _LABEL <= _STRIP:
            bare = (t.strip("<|>") if k == "predictor" else t for t, k in zip(record.texts, record.kinds, strict=True))
            labels = [written(token_label(text)) for text in bare]
            self.texts = [t if len(t) <= _MOST_LETTERS else f"{t[: _MOST_LETTERS - 1]}\u2026" for t in labels]
        self.bars = [_BAR] * len(self.placed.names)  # inches, height of each lane's bar
        self.lane_of: list[int] = []
        for (start, stop), lane in zip(record.sections, self.placed.of_section, strict=True):
            longest = max(map(len, self.texts[start:stop]), default=0)
            self.bars[lane] = max(self.bars[lane], longest * 0.085 + 0.12 if self.texts else 0)
            self.lane_of += [lane] * (stop - start)
        arrows = (pair.arrow for pair in record.pairs if pair.arrow)
        above = any(self.lane_of[one] == self.lane_of[other] == 0 for one, other in arrows)
        self.first = 0.45 if above else 0.3  # inches, where the trunk begins, below its positions and arrows along it
        self.tops = [self.first + sum(self.bars[:lane]) + lane * _NAMES for lane in range(len(self.bars))]
        self.height = self.first + sum(self.bars) + len(self.bars) * _NAMES

    def draw(self, axes: Axes) -> None:
        """Draw into axes that are `height` inches high."""
        record, placed, tops = self.record, self.placed, self.tops
        columns, middles = placed.columns.tolist(), [top + bar / 2 for top, bar in zip(tops, self.bars, strict=True)]
        axes.set_xlim(0, placed.width)
        axes.set_ylim(self.height, 0)
        axes.set_title("positions", fontsize=_SMALL, color=FAINT, loc="left", pad=2)
        taken = [-1.0] * len(tops)  # where the last label of a lane ends
        for (start, stop), lane in zip(record.sections, placed.of_section, strict=True):
            self._cells(axes, start, stop, lane)
            taken[lane] = self._name(axes, start, stop, lane, taken[lane])
            attach = int(record.attaches[start])
            if attach >= 0:  # a branch: a line from the token that it is attached to
                first = int(np.argmax(record.examples == record.examples[start]))
                at, bottom, middle = columns[first + attach] + 0.5, tops[0] + self.bars[0], middles[lane]
                axes.plot(
                    [at, at, columns[start]], [bottom, middle, middle], color=KINDS["predictor"].light, linewidth=1.1
                )  # fmt: skip
        for lane, name in enumerate(placed.names):
            if name not in placed.names[:lane]:
                x = -0.08 / self.unit
                axes.text(x, middles[lane], name, fontsize=_SMALL, ha="right", va="center", color=INK)
        for index, what in record.marked.items():
            colour, top = TARGET if what == "target" else SOURCE, tops[self.lane_of[index]] - 0.03
            axes.plot([columns[index] + 0.5], [top], marker="v", markersize=5, color=colour, clip_on=False)
        for arrow in (pair.arrow for pair in record.pairs if pair.arrow):
            source, target = ((columns[index] + 0.5, tops[self.lane_of[index]] - 0.05) for index in arrow)
            axes.annotate(
                "", target, xytext=source,
                arrowprops={"arrowstyle": "-|>", "color": FAINT, "linewidth": 0.8, "connectionstyle": "arc3,rad=-0.12",
                            "shrinkA": 2, "shrinkB": 4, "mutation_scale": min(8, 72 * self.unit)},
            )  # fmt: skip
        step = next(step for step in _STEPS if step * self.unit > 0.45)
        for index, position in enumerate(record.positions.tolist()):
            if self.lane_of[index] == 0 and record.examples[index] >= 0 and position % step == 0:
                axes.text(columns[index] + 0.5, 0.22, str(position), fontsize=_SMALL, ha="center", color=FAINT)

    def _cells(self, axes: Axes, start: int, stop: int, lane: int) -> None:
        """A box for each token, or for each run of one kind where tokens are too narrow."""
        patches, wide = library("matplotlib.patches", "analysis"), self.unit > 0.05
        for first, after in runs(range(start, stop) if wide else self.record.kinds[start:stop]):
            index = start + first
            column, colour = int(self.placed.columns[index]), KINDS[self.record.kinds[index]].light
            axes.add_patch(
                patches.Rectangle(
                    (column, self.tops[lane]), after - first, self.bars[lane], facecolor=colour, edgecolor="white",
                    linewidth=0.6 if wide else 0,
                )
            )  # fmt: skip
            if self.texts:
                axes.text(
                    column + 0.5, self.tops[lane] + self.bars[lane] - 0.05, self.texts[index], rotation=90, fontsize=_SMALL,
                    ha="center", va="bottom", color=letter_colour(colour), parse_math=False, clip_on=True,
                )  # fmt: skip

    def _name(self, axes: Axes, start: int, stop: int, lane: int, taken: float) -> float:
        """Write a section's name below it where there is room; where the last name of the lane ends."""
        first, last = int(self.placed.columns[start]), int(self.placed.columns[stop - 1]) + 1
        bottom = self.tops[lane] + self.bars[lane]
        axes.plot([first] * 2, [self.tops[lane], bottom + 0.05], color=INK, linewidth=0.6)
        name, on_trunk = self.record.names[start].removeprefix("trunk: "), self.placed.names[lane] == "trunk"
        name = name if on_trunk else name.split(" ")[-1]
        width = (len(name) + 1) * _LETTER / self.unit
        if first < taken or (on_trunk and width > last - first + 0.02 / self.unit):
            return taken
        x = first + 0.04 / self.unit
        axes.text(x, bottom + 0.03, written(name), fontsize=_SMALL, va="top", color=FAINT, parse_math=False)
        return first + width


def _draw_mask(axes: Axes, record: RowRecord) -> None:
    """The matrix in the colours of the seen tokens, a band of kinds along two sides, names and readouts next to it."""
    colours, size = library("matplotlib.colors", "analysis"), len(record)
    shown = np.unique(np.linspace(0, size - 1, min(size, _MOST_CELLS)).round().astype(int))
    of_key = np.array([colours.to_rgb(KINDS[record.kinds[index]].light) for index in shown])  # (cells, 3)
    picture = np.ones((len(shown), len(shown), 3))
    for row, query in enumerate(shown.tolist()):
        seen = record.seen_by(slice(query, query + 1))[0][shown]
        picture[row, seen] = of_key[seen]
    band = 0.018 * size
    for image, extent in (
        (picture, (0, size, size, 0)),
        (of_key[None], (0, size, -band, -0.2 * band)),
        (of_key[:, None], (-band, -0.2 * band, size, 0)),
    ):
        axes.imshow(image, extent=extent, interpolation="nearest", aspect="auto")
    axes.set_xlim(-band, size)
    axes.set_ylim(size, -band)
    for start, _ in record.sections[1:]:
        axes.axhline(start, color=INK, linewidth=0.35, alpha=0.35)
        axes.axvline(start, color=INK, linewidth=0.35, alpha=0.35)
    axes.set_title("who sees whom   (down: who looks; across: who is seen)", fontsize=_SMALL, color=FAINT, pad=6)
    names = [
        ((start + stop) / 2, record.section_name(start).replace("trunk: ", "", 1), INK, stop - start)
        for start, stop in record.sections
    ]
    readouts = []
    for index, read in sorted(record.readouts.items()):
        for what, pairs in read.items():
            numbers = ", ".join(f"{one.example}." * (record.batch > 1) + str(one.number) for one in pairs)
            readouts.append((index + 0.5, f"{what} {numbers}", TARGET if what == "target" else SOURCE, 1))
    _side_labels(axes, names, size, left=True)
    _side_labels(axes, readouts, size, left=False)


def _side_labels(axes: Axes, labels: list[tuple[float, str, str, int]], size: int, left: bool) -> None:
    """Labels next to the mask that do not touch, with lines to their rows.

    Args:
        labels: where each belongs, what it says, its colour, and how many tokens it is about: where there is no room for
            all, those about most of them are written.
    """
    distance = _LABEL / _MASK * size
    kept = sorted(range(len(labels)), key=lambda number: -labels[number][3])[: int(_MOST_LABELS * size / distance)]
    labels = [labels[number] for number in sorted(kept)]
    places = spread([label[0] for label in labels], distance, 0.5 * distance, size - 0.5 * distance)
    edge, sign = (-0.018 * size, -1) if left else (size, 1)
    for (at, text, colour, _), place in zip(labels, places, strict=True):
        axes.annotate(
            written(text), (edge, at), xytext=(edge + sign * 0.05 * size, place), textcoords="data", fontsize=_SMALL,
            ha="right" if left else "left", va="center", color=colour, annotation_clip=False, parse_math=False,
            arrowprops={"arrowstyle": "-" if left else "-|>", "color": colour, "linewidth": 0.7, "shrinkA": 1, "shrinkB": 0,
                        "mutation_scale": 7},
        )  # fmt: skip


def spread(places: Sequence[float], distance: float, low: float, high: float) -> list[float]:
    """Ascending places at least `distance` from each other, close to the given ones, within [low, high] if there is room."""
    found: list[float] = []
    for place in places:
        found.append(max(place, found[-1] + distance if found else low))
    for index in range(len(found) - 1, -1, -1):
        found[index] = min(found[index], high)
        high = found[index] - distance
    return found
