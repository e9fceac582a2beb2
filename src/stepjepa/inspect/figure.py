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
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from stepjepa.errors import ConfigError
from stepjepa.inspect.html import write_page
from stepjepa.inspect.record import KINDS, RowRecord, letter_colour, token_label
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
_ABOVE = 0.45  # inches above the trunk, for positions and arrows along it
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
    records = [record for _, record in rows]
    strips = [Strip(record) for record in records]
    title_lines = _wrapped(title, 92)
    headings = [_wrapped(f"{heading}: {record.counts}".removeprefix(": "), 104) for heading, record in rows]
    kinds = [kind for kind in KINDS if any(kind in record.kinds for record in records)]
    top = 0.25 + 0.2 * len(title_lines)
    foot = 0.45 + 0.2 * -(-len(kinds) // 2)
    bodies = sum(0.17 * len(lines) + strip.height + _MASK + 1.1 for lines, strip in zip(headings, strips, strict=True))
    height = top + bodies + foot
    figure = library("matplotlib.figure", "analysis").Figure(figsize=(WIDTH, height), dpi=100, facecolor=PAPER)

    def write(lines: Sequence[str], at: float, **style: Any) -> None:
        """Lines of text, `at` inches from the top."""
        figure.text(0.02, 1 - at / height, "\n".join(lines), va="top", parse_math=False, **style)

    def axes(left: float, at: float, width: float, tall: float) -> Axes:
        """Axes at a place in inches, counted from the top left."""
        place = (left / WIDTH, 1 - (at + tall) / height, width / WIDTH, tall / height)
        return figure.add_axes(place, frameon=False, xticks=[], yticks=[])

    write(title_lines, 0.12, fontsize=11, color=INK)
    for record, strip, lines in zip(records, strips, headings, strict=True):
        write(lines, top, fontsize=_SMALL, color=FAINT)
        top += 0.17 * len(lines) + 0.35
        strip.draw(axes(0.85, top, _STRIP, strip.height))
        top += strip.height + 0.5
        _draw_mask(axes(1.4, top, _MASK, _MASK), record)
        top += _MASK + 0.25
    patch = library("matplotlib.patches", "analysis").Patch
    handles = [patch(facecolor=KINDS[kind].light, edgecolor=FAINT, linewidth=0.5) for kind in kinds]
    figure.legend(
        handles,
        [KINDS[kind].meaning for kind in kinds],
        loc="lower left",
        bbox_to_anchor=(0.01, 0.22 / height),
        ncols=2,
        fontsize=_SMALL,
        frameon=False,
        handlelength=1.2,
        columnspacing=2,
        labelcolor=INK,
    )
    if any(pair.arrow for record in records for pair in record.pairs):
        words = "Triangles: tokens at which views are read; an arrow leads from a source to the target that it must predict."
        write([words], height - 0.22, fontsize=_SMALL, color=FAINT)
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
    """The row's segments by position (`record.Lanes`), what hangs where, and what is read.

    Attributes:
        height: inches.
    """

    def __init__(self, record: RowRecord):
        self.record, self.placed = record, record.lanes
        self.unit = _STRIP / self.placed.width  # inches a column
        self.texts = [""] * len(record)
        if self.unit >= _LABEL:  # else the cells are too narrow for them
            self.texts = [_cell_text(text, kind) for text, kind in zip(record.texts, record.kinds, strict=True)]
        self.lane_of = [
            lane
            for (start, stop), lane in zip(record.sections, self.placed.of_section, strict=True)
            for _ in range(start, stop)
        ]
        bars = [_BAR] * len(self.placed.names)  # inches, height of each lane's bar
        for lane, text in zip(self.lane_of, self.texts, strict=True):
            if text:
                bars[lane] = max(bars[lane], len(text) * 0.085 + 0.12)
        self.bars, self.tops = bars, list[float]()
        self.height = _ABOVE
        for bar in bars:
            self.tops.append(self.height)
            self.height += bar + _NAMES

    def draw(self, axes: Axes) -> None:
        """Draw into axes that are `height` inches high."""
        record, placed, tops = self.record, self.placed, self.tops
        axes.set_xlim(0, placed.width)
        axes.set_ylim(self.height, 0)
        axes.set_title("positions", fontsize=_SMALL, color=FAINT, loc="left", pad=2)
        free = [-1.0] * len(tops)  # where there is room for the next name of a lane
        for (start, stop), lane in zip(record.sections, placed.of_section, strict=True):
            self._draw_cells(axes, start, stop, lane)
            free[lane] = self._draw_name(axes, start, stop, lane, free[lane])
            if record.attaches[start] >= 0:
                self._draw_branch(axes, start, lane)
        for lane, name in enumerate(placed.names):
            if name not in placed.names[:lane]:
                middle = tops[lane] + self.bars[lane] / 2
                axes.text(-0.08 / self.unit, middle, name, fontsize=_SMALL, ha="right", va="center", color=INK)
        self._draw_readouts(axes)
        self._draw_positions(axes)

    def _draw_positions(self, axes: Axes) -> None:
        """Every so many positions of the trunk, above it."""
        step = next(step for step in _STEPS if step * self.unit > 0.45)
        style: dict[str, Any] = {"fontsize": _SMALL, "ha": "center", "color": FAINT}
        for index, position in enumerate(self.record.positions.tolist()):
            on_trunk = self.lane_of[index] == 0 and self.record.kinds[index] != "padding"
            if on_trunk and position % step == 0:
                axes.text(self._middle(index), 0.22, str(position), **style)

    def _middle(self, index: int) -> float:
        """Where the middle of a token's cell is, in columns."""
        return float(self.placed.columns[index]) + 0.5

    def _draw_cells(self, axes: Axes, start: int, stop: int, lane: int) -> None:
        """A box for each token, with its text where there is room."""
        top, bar = self.tops[lane], self.bars[lane]
        columns = self.placed.columns[start:stop].tolist()
        colours = [KINDS[kind].light for kind in self.record.kinds[start:stop]]
        edge = 0.6 if self.unit > 0.05 else 0
        cells = [(column, 1) for column in columns]
        axes.broken_barh(cells, (top, bar), facecolors=colours, edgecolor="white", linewidth=edge)
        style: dict[str, Any] = {
            "rotation": 90,
            "fontsize": _SMALL,
            "ha": "center",
            "va": "bottom",
            "parse_math": False,
        }
        for column, colour, text in zip(columns, colours, self.texts[start:stop], strict=True):
            if text:
                axes.text(column + 0.5, top + bar - 0.05, text, color=letter_colour(colour), clip_on=True, **style)

    def _draw_name(self, axes: Axes, start: int, stop: int, lane: int, free: float) -> float:
        """Write a section's name below it where there is room; where there is room for the next one."""
        first = self._middle(start) - 0.5
        last = self._middle(stop - 1) + 0.5
        top = self.tops[lane]
        bottom = top + self.bars[lane]
        axes.plot([first, first], [top, bottom + 0.05], color=INK, linewidth=0.6)
        name = self.record.names[start].removeprefix("trunk: ")
        room = last - first + 0.02 / self.unit
        if lane:  # the names below the trunk are numbers, with all the room to the next one
            name, room = name.split(" ")[-1], float("inf")
        width = (len(name) + 1) * _LETTER / self.unit
        if first < free or width > room:
            return free
        style: dict[str, Any] = {"fontsize": _SMALL, "va": "top", "color": FAINT, "parse_math": False}
        axes.text(first + 0.04 / self.unit, bottom + 0.03, written(name), **style)
        return first + width

    def _draw_branch(self, axes: Axes, start: int, lane: int) -> None:
        """A line from the token that a branch is attached to."""
        examples = self.record.examples.tolist()
        first = examples.index(examples[start])
        attach = int(self.record.attaches[start])
        at = self._middle(first + attach)
        bottom = self.tops[0] + self.bars[0]
        middle = self.tops[lane] + self.bars[lane] / 2
        end = self._middle(start) - 0.5
        colour = KINDS["predictor"].light
        axes.plot([at, at, end], [bottom, middle, middle], color=colour, linewidth=1.1)

    def _draw_readouts(self, axes: Axes) -> None:
        """Triangles at the tokens that are read, and an arrow for each pair."""
        for index, what in self.record.marked.items():
            top = self.tops[self.lane_of[index]] - 0.03
            colour = TARGET if what == "target" else SOURCE
            axes.plot([self._middle(index)], [top], marker="v", markersize=5, color=colour, clip_on=False)
        style = {
            "arrowstyle": "-|>",
            "color": FAINT,
            "linewidth": 0.8,
            "connectionstyle": "arc3,rad=-0.12",
            "shrinkA": 2,
            "shrinkB": 4,
            "mutation_scale": min(8, 72 * self.unit),
        }
        for pair in self.record.pairs:
            if pair.arrow:
                ends = [(self._middle(index), self.tops[self.lane_of[index]] - 0.05) for index in pair.arrow]
                axes.annotate("", ends[1], xytext=ends[0], arrowprops=style)


def _cell_text(text: str, kind: str) -> str:
    """A token's text as it is written into its cell; of a predictor token its name alone."""
    label = written(token_label(text.strip("<|>") if kind == "predictor" else text))
    return label if len(label) <= _MOST_LETTERS else f"{label[: _MOST_LETTERS - 1]}\u2026"


def _draw_mask(axes: Axes, record: RowRecord) -> None:
    """The matrix in the colours of the seen tokens, a band of kinds along two sides, names and readouts next to it."""
    size = len(record)
    to_rgb = library("matplotlib.colors", "analysis").to_rgb
    shown = np.unique(np.linspace(0, size - 1, min(size, _MOST_CELLS)).round().astype(int))
    of_key = np.array([to_rgb(KINDS[record.kinds[index]].light) for index in shown])  # (cells, 3)
    seen = record.visible[np.ix_(shown, shown)]
    picture = np.where(seen[..., None], of_key, 1.0)
    band = 0.018 * size
    for image, extent in (
        (picture, (0, size, size, 0)),
        (of_key[None], (0, size, -band, -0.2 * band)),
        (of_key[:, None], (-band, -0.2 * band, size, 0)),
    ):
        axes.imshow(image, extent=extent, interpolation="nearest", aspect="auto")
    axes.set_xlim(-band, size)
    axes.set_ylim(size, -band)
    axes.set_title("who sees whom   (down: who looks; across: who is seen)", fontsize=_SMALL, color=FAINT, pad=6)

    names, readouts = list[_Label](), list[_Label]()
    for start, stop in record.sections:
        name = record.section_name(start).replace("trunk: ", "", 1)
        names.append(_Label((start + stop) / 2, name, INK, stop - start))
        if start:
            axes.axhline(start, color=INK, linewidth=0.35, alpha=0.35)
            axes.axvline(start, color=INK, linewidth=0.35, alpha=0.35)
    for index, read in sorted(record.readouts.items()):
        for what, pairs in read.items():
            numbers = ", ".join(
                f"{pair.example}.{pair.number}" if record.batch > 1 else f"{pair.number}" for pair in pairs
            )
            readouts.append(_Label(index + 0.5, f"{what} {numbers}", TARGET if what == "target" else SOURCE, 1))
    _side_labels(axes, names, size, left=True)
    _side_labels(axes, readouts, size, left=False)


class _Label(NamedTuple):
    """A label next to the mask: the row that it belongs to, and how many tokens it is about."""

    row: float
    text: str
    colour: str
    tokens: int


def _side_labels(axes: Axes, labels: list[_Label], size: int, left: bool) -> None:
    """Labels next to the mask that do not touch, with lines to their rows; those of most tokens where not all have room."""
    distance = _LABEL / _MASK * size
    room = int(_MOST_LABELS * size / distance)
    kept = sorted(sorted(labels, key=lambda label: -label.tokens)[:room])
    places = spread([label.row for label in kept], distance, 0.5 * distance, size - 0.5 * distance)
    edge, away, side = (-0.018 * size, -0.05 * size, "right") if left else (size, 0.05 * size, "left")
    for label, place in zip(kept, places, strict=True):
        line = {
            "arrowstyle": "-" if left else "-|>",
            "color": label.colour,
            "linewidth": 0.7,
            "shrinkA": 1,
            "shrinkB": 0,
            "mutation_scale": 7,
        }
        axes.annotate(
            written(label.text),
            (edge, label.row),
            xytext=(edge + away, place),
            fontsize=_SMALL,
            ha=side,
            va="center",
            color=label.colour,
            annotation_clip=False,
            parse_math=False,
            arrowprops=line,
        )


def spread(places: Sequence[float], distance: float, low: float, high: float) -> list[float]:
    """Ascending places at least `distance` from each other, close to the given ones, within [low, high] if there is room."""
    moved = list[float]()
    for place in places:
        moved.append(max(place, low))
        low = moved[-1] + distance
    for index in reversed(range(len(moved))):
        moved[index] = min(moved[index], high)
        high = moved[index] - distance
    return moved


# The series of a figure and of the report's page: their colours differ under deuteranopia too, their lines in the dashes.


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
