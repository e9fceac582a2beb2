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
from stepjepa.inspect.record import KINDS, RowRecord, heading, letter_colour, token_label
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
_MOST_LABELS = 30  # at one side of a mask
_MOST_CELLS = 1600  # of a mask's side; longer rows are thinned
_STRIP = WIDTH - 0.95  # inches, width of a strip
_ABOVE = 0.45  # inches above the trunk, for positions and arrows along it
_BAR = 0.17  # inches, height of a bar without text
_NAMES = 0.26  # inches, the line for names below a bar
_MOST_LETTERS = 13
_LETTER = 0.075  # inches, the width of a letter
_STEPS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)  # between two positions that are written
_CAPTION = "Triangles: tokens at which views are read; an arrow leads from a source to the target that it must predict."


def row_figure(records: Sequence[RowRecord], title: str = "") -> Figure:
    """A figure with a strip and a mask for each row, at least one, one below the other.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    strips = [Strip(record) for record in records]
    title_lines = _wrapped(title, 92)
    counts = [f"{heading(records, number)}: {record.counts}" for number, record in enumerate(records)]
    captions = [_wrapped(text.removeprefix(": "), 104) for text in counts]
    kinds = [kind for kind in KINDS if any(kind in record.kinds for record in records)]
    # All places are in inches from the top, until they are divided by the height.
    top = 0.25 + 0.2 * len(title_lines)
    height = top + 0.65 + 0.1 * len(kinds)
    for lines, strip in zip(captions, strips, strict=True):
        height += 0.17 * len(lines) + strip.height + _MASK + 1.1
    figure = library("matplotlib.figure", "analysis").Figure(figsize=(WIDTH, height), dpi=100, facecolor=PAPER)

    def write(lines: Sequence[str], at: float, **style: Any) -> None:
        figure.text(0.02, 1 - at / height, "\n".join(lines), va="top", parse_math=False, **style)

    def axes(left: float, at: float, width: float, tall: float) -> Axes:
        place = (left / WIDTH, 1 - (at + tall) / height, width / WIDTH, tall / height)
        return figure.add_axes(place, frameon=False, xticks=[], yticks=[])

    write(title_lines, 0.12, fontsize=11, color=INK)
    for record, strip, lines in zip(records, strips, captions, strict=True):
        write(lines, top, fontsize=_SMALL, color=FAINT)
        top += 0.17 * len(lines) + 0.35
        strip.draw(axes(0.85, top, _STRIP, strip.height))
        top += strip.height + 0.5
        _draw_mask(axes(1.4, top, _MASK, _MASK), record)
        top += _MASK + 0.25
    patch = library("matplotlib.patches", "analysis").Patch
    figure.legend(
        [patch(facecolor=KINDS[kind].light, edgecolor=FAINT, linewidth=0.5) for kind in kinds],
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
        write([_CAPTION], height - 0.22, fontsize=_SMALL, color=FAINT)
    return figure


def save_figure(figure: Figure, path: str | os.PathLike[str], dpi: int = 200) -> None:
    """Write a figure as PNG, as `write_page` does.

    The same figure gives the same bytes with the same version of matplotlib.

    Args:
        dpi: pixels an inch; 100 makes it 800 wide.

    Raises:
        ConfigError: the name does not end in .png, or the file cannot be written; an earlier one is unchanged.
    """
    if Path(path).suffix.lower() != ".png":
        raise ConfigError(f"{path}: figures are written as .png")
    memory = io.BytesIO()
    figure.savefig(memory, format="png", dpi=dpi, metadata={"Software": None})
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
        longest = max(map(len, self.texts))
        self.bar = max(_BAR, 0.085 * longest + 0.12) if longest else _BAR  # inches, the height of a bar
        self.lane_of: list[int] = []
        for (start, stop), lane in zip(record.sections, self.placed.of_section, strict=True):
            self.lane_of += [lane] * (stop - start)
        self.height = self._top(len(self.placed.names))

    def _top(self, lane: int) -> float:
        """Where the bars of a lane begin, in inches."""
        return _ABOVE + lane * (self.bar + _NAMES)

    def _middle(self, index: int) -> float:
        """Where the middle of a token's cell is, in columns."""
        return float(self.placed.columns[index]) + 0.5

    def draw(self, axes: Axes) -> None:
        """Draw into axes that are `height` inches high."""
        record, placed = self.record, self.placed
        axes.set_xlim(0, placed.width)
        axes.set_ylim(self.height, 0)
        axes.set_title("positions", fontsize=_SMALL, color=FAINT, loc="left", pad=2)
        for lane, name in enumerate(placed.names):
            if name not in placed.names[:lane]:
                middle = self._top(lane) + self.bar / 2
                axes.text(-0.08 / self.unit, middle, name, fontsize=_SMALL, ha="right", va="center", color=INK)
        free = [-1.0] * len(placed.names)  # where there is room for the next name of a lane
        for (start, stop), lane in zip(record.sections, placed.of_section, strict=True):
            self._draw_cells(axes, start, stop, lane)
            free[lane] = self._draw_name(axes, start, stop, lane, free[lane])
            if record.attaches[start] >= 0:
                self._draw_branch(axes, start, lane)
        self._draw_positions(axes)
        self._draw_readouts(axes)

    def _draw_positions(self, axes: Axes) -> None:
        """Every so many positions of the trunk, above it."""
        step = next(step for step in _STEPS if step * self.unit > 0.45)
        for index, position in enumerate(self.record.positions.tolist()):
            on_trunk = self.lane_of[index] == 0 and self.record.kinds[index] != "padding"
            if on_trunk and position % step == 0:
                axes.text(self._middle(index), 0.22, str(position), fontsize=_SMALL, ha="center", color=FAINT)

    def _draw_cells(self, axes: Axes, start: int, stop: int, lane: int) -> None:
        """A box for each token, with its text where there is room."""
        top = self._top(lane)
        colours = [KINDS[kind].light for kind in self.record.kinds[start:stop]]
        cells = [(self._middle(index) - 0.5, 1) for index in range(start, stop)]
        edge = 0.6 if self.unit > 0.05 else 0
        axes.broken_barh(cells, (top, self.bar), facecolors=colours, edgecolor="white", linewidth=edge)
        for index, colour in zip(range(start, stop), colours, strict=True):
            axes.text(
                self._middle(index),
                top + self.bar - 0.05,
                self.texts[index],
                rotation=90,
                fontsize=_SMALL,
                ha="center",
                va="bottom",
                color=letter_colour(colour),
                clip_on=True,
                parse_math=False,
            )

    def _draw_name(self, axes: Axes, start: int, stop: int, lane: int, free: float) -> float:
        """Write a section's name below it where there is room; where there is room for the next one."""
        first, last = self._middle(start) - 0.5, self._middle(stop - 1) + 0.5
        top = self._top(lane)
        bottom = top + self.bar
        axes.plot([first, first], [top, bottom + 0.05], color=INK, linewidth=0.6)
        name = self.record.names[start].removeprefix("trunk: ")
        room = last - first + 0.02 / self.unit
        if lane:  # the names below the trunk are numbers, with all the room to the next one
            name, room = name.split(" ")[-1], float("inf")
        width = (len(name) + 1) * _LETTER / self.unit
        if first < free or width > room:
            return free
        place = first + 0.04 / self.unit, bottom + 0.03
        axes.text(*place, written(name), fontsize=_SMALL, va="top", color=FAINT, parse_math=False)
        return first + width

    def _draw_branch(self, axes: Axes, start: int, lane: int) -> None:
        """A line from the token that a branch is attached to."""
        trunk = self.record.examples.tolist().index(self.record.examples[start])
        attach = self._middle(trunk + int(self.record.attaches[start]))
        middle = self._top(lane) + self.bar / 2
        xs = [attach, attach, self._middle(start) - 0.5]
        axes.plot(xs, [_ABOVE + self.bar, middle, middle], color=KINDS["predictor"].light, linewidth=1.1)

    def _draw_readouts(self, axes: Axes) -> None:
        """Triangles at the tokens that are read, and an arrow for each pair."""
        for index, what in self.record.marked.items():
            place = [self._middle(index)], [self._top(self.lane_of[index]) - 0.03]
            colour = TARGET if what == "target" else SOURCE
            axes.plot(*place, marker="v", markersize=5, color=colour, clip_on=False)
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
                source, target = [(self._middle(i), self._top(self.lane_of[i]) - 0.05) for i in pair.arrow]
                axes.annotate("", target, xytext=source, arrowprops=style)


def _cell_text(text: str, kind: str) -> str:
    """A token's text as it is written into its cell; of a predictor token its name alone."""
    label = written(token_label(text.strip("<|>") if kind == "predictor" else text))
    return label if len(label) <= _MOST_LETTERS else f"{label[: _MOST_LETTERS - 1]}\u2026"


class _Label(NamedTuple):
    """A label next to the mask: the row that it belongs to, and how many tokens it is about."""

    row: float
    text: str
    colour: str = INK
    tokens: int = 1


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

    names = list[_Label]()
    for start, stop in record.sections:
        name = record.section_name(start).replace("trunk: ", "", 1)
        names.append(_Label((start + stop) / 2, name, tokens=stop - start))
        if start:
            axes.axhline(start, color=INK, linewidth=0.35, alpha=0.35)
            axes.axvline(start, color=INK, linewidth=0.35, alpha=0.35)
    readouts = list[_Label]()
    for index, read in sorted(record.readouts.items()):
        for what, pairs in read.items():
            numbers = [f"{pair.example}.{pair.number}" if record.batch > 1 else str(pair.number) for pair in pairs]
            colour = TARGET if what == "target" else SOURCE
            readouts.append(_Label(index + 0.5, f"{what} {', '.join(numbers)}", colour))
    _side_labels(axes, names, (-0.018 * size, -0.05 * size), size, arrowstyle="-")
    _side_labels(axes, readouts, (size, 0.05 * size), size, arrowstyle="-|>")


def _side_labels(axes: Axes, labels: list[_Label], edge: tuple[float, float], size: int, **arrow: Any) -> None:
    """Labels next to the mask that do not touch, with lines to their rows; those of most tokens where not all have room.

    Args:
        edge: of the mask, and how far from it the labels are.
    """
    distance = _LABEL / _MASK * size
    kept = sorted(sorted(labels, key=lambda label: -label.tokens)[:_MOST_LABELS])
    places = spread([label.row for label in kept], distance, 0.5 * distance, size - 0.5 * distance)
    at, away = edge
    for label, place in zip(kept, places, strict=True):
        line = {"color": label.colour, "linewidth": 0.7, "shrinkA": 1, "shrinkB": 0, "mutation_scale": 7, **arrow}
        axes.annotate(
            written(label.text),
            (at, label.row),
            xytext=(at + away, place),
            fontsize=_SMALL,
            ha="left" if away > 0 else "right",
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
