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
_MOST_CELLS = 1600  # of a mask's side; longer rows are thinned
_STRIP = WIDTH - 0.95  # inches, width of a strip
_ABOVE = 0.45  # inches above the trunk, for positions and arrows along it
_BAR, _TALL = 0.17, 1.2  # inches, height of a bar without text and with it
_NAMES = 0.26  # inches, the line for names below a bar
_MOST_LETTERS = 13
_LETTER = 0.075  # inches, the width of a letter
_STEPS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)  # between two positions that are written
_METADATA: dict[str, dict[str, None]] = {".png": {"Software": None}, ".svg": {"Date": None, "Creator": None}}
_CAPTION = "Triangles: tokens at which views are read; an arrow leads from a source to the target that it must predict."


def row_figure(records: Sequence[RowRecord], title: str = "") -> Figure:
    """A figure with a strip and a mask for each row, at least one, one below the other.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    title_lines = _wrapped(title, 92)
    counts = [f"{heading(records, number)}: {record.counts}" for number, record in enumerate(records)]
    captions = [_wrapped(text.removeprefix(": "), 104) for text in counts]
    kinds = [kind for kind in KINDS if any(kind in record.kinds for record in records)]
    # All places are in inches from the top, until they are divided by the height.
    top = 0.25 + 0.2 * len(title_lines)
    height = top + 0.65 + 0.1 * len(kinds)
    for record, lines in zip(records, captions, strict=True):
        height += 0.17 * len(lines) + strip_height(record) + _MASK + 1.1
    figure = library("matplotlib.figure", "analysis").Figure(figsize=(WIDTH, height), dpi=100, facecolor=PAPER)

    def write(lines: Sequence[str], at: float, **style: Any) -> None:
        figure.text(0.02, 1 - at / height, "\n".join(lines), va="top", parse_math=False, **style)

    def axes(left: float, at: float, width: float, tall: float) -> Axes:
        place = (left / WIDTH, 1 - (at + tall) / height, width / WIDTH, tall / height)
        return figure.add_axes(place, frameon=False, xticks=[], yticks=[])

    write(title_lines, 0.12, fontsize=11, color=INK)
    for record, lines in zip(records, captions, strict=True):
        write(lines, top, fontsize=_SMALL, color=FAINT)
        top += 0.17 * len(lines) + 0.35
        draw_strip(axes(0.85, top, _STRIP, strip_height(record)), record)
        top += strip_height(record) + 0.5
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


def _bar(record: RowRecord) -> float:
    """The height of a lane's bar in inches: that of its tokens' texts where the cells are wide enough for them."""
    return _TALL if _STRIP / record.lanes.width >= _LABEL else _BAR


def strip_height(record: RowRecord) -> float:
    """The height that `draw_strip` needs, in inches."""
    return _ABOVE + len(record.lanes.names) * (_bar(record) + _NAMES)


def draw_strip(axes: Axes, record: RowRecord) -> None:
    """Draw the row's segments by position (`record.Lanes`), what hangs where, and what is read."""
    lanes, bar = record.lanes, _bar(record)
    unit = _STRIP / lanes.width  # inches a column
    tops = [_ABOVE + lane * (bar + _NAMES) for lane in range(len(lanes.names))]
    middles = (lanes.columns + 0.5).tolist()  # of the tokens' cells, in columns
    axes.set_xlim(0, lanes.width)
    axes.set_ylim(strip_height(record), 0)
    axes.set_title("positions", fontsize=_SMALL, color=FAINT, loc="left", pad=2)
    for name in dict.fromkeys(lanes.names):
        top = tops[lanes.names.index(name)]  # of the first of its lanes
        axes.text(-0.08 / unit, top + bar / 2, name, fontsize=_SMALL, ha="right", va="center", color=INK)

    top_of = list[float]()  # of each token's bar
    free = dict.fromkeys(tops, -1.0)  # where there is room for the next name below a bar
    for (start, stop), lane in zip(record.sections, lanes.of_section, strict=True):
        top = tops[lane]
        bottom = top + bar
        first = middles[start] - 0.5
        last = middles[stop - 1] + 0.5
        top_of += [top] * (stop - start)
        colours = [KINDS[kind].light for kind in record.kinds[start:stop]]
        cells = [(middle - 0.5, 1) for middle in middles[start:stop]]
        axes.broken_barh(
            cells,
            (top, bar),
            facecolors=colours,
            edgecolor="white",
            linewidth=min(0.6, 10 * unit),
        )
        axes.plot([first, first], [top, bottom + 0.05], color=INK, linewidth=0.6)

        name = record.names[start].removeprefix("trunk: ")
        room = last + 0.02 / unit
        if lane:
            # Names below the trunk are numbers, with all the room to the next one.
            name = name.split(" ")[-1]
            room = float("inf")
        end = first + (len(name) + 1) * _LETTER / unit
        if first >= free[top] and end <= room:
            left = first + 0.04 / unit
            axes.text(left, bottom + 0.03, written(name), fontsize=_SMALL, va="top", color=FAINT, parse_math=False)
            free[top] = end

        if record.attaches[start] >= 0:
            # A line from the token that a branch hangs off.
            trunk = record.examples.tolist().index(record.examples[start])
            attach = middles[trunk + int(record.attaches[start])]
            middle = top + bar / 2
            colour = KINDS["predictor"].light
            axes.plot([attach, attach, first], [_ABOVE + bar, middle, middle], color=colour, linewidth=1.1)

    step = next(step for step in _STEPS if step * unit > 0.45)
    for index, (middle, top) in enumerate(zip(middles, top_of, strict=True)):
        kind, position = record.kinds[index], int(record.positions[index])
        if bar == _TALL:
            _write_token(axes, record.texts[index], kind, (middle, top + bar - 0.05))
        if top == _ABOVE and kind != "padding" and position % step == 0:
            axes.text(middle, 0.22, str(position), fontsize=_SMALL, ha="center", color=FAINT)
    for index, what in record.marked.items():
        colour = TARGET if what == "target" else SOURCE
        axes.plot([middles[index]], [top_of[index] - 0.03], marker="v", markersize=5, color=colour, clip_on=False)
    style = {
        "arrowstyle": "-|>",
        "color": FAINT,
        "linewidth": 0.8,
        "connectionstyle": "arc3,rad=-0.12",
        "shrinkA": 2,
        "shrinkB": 4,
        "mutation_scale": min(8, 72 * unit),
    }
    for pair in record.pairs:
        if pair.arrow:
            source, target = [(middles[index], top_of[index] - 0.05) for index in pair.arrow]
            axes.annotate("", target, xytext=source, arrowprops=style)


def _write_token(axes: Axes, text: str, kind: str, place: tuple[float, float]) -> None:
    """Write a token's text upright into its cell; of a predictor token its name alone."""
    label = written(token_label(text.strip("<|>") if kind == "predictor" else text))
    if len(label) > _MOST_LETTERS:
        label = f"{label[: _MOST_LETTERS - 1]}\u2026"
    style: dict[str, Any] = {"rotation": 90, "fontsize": _SMALL, "ha": "center", "va": "bottom", "clip_on": True}
    axes.text(*place, label, color=letter_colour(KINDS[kind].light), parse_math=False, **style)


def _draw_mask(axes: Axes, record: RowRecord) -> None:
    """The matrix in the colours of the seen tokens, a band of kinds along two sides, names and readouts next to it."""
    size = len(record)
    to_rgb = library("matplotlib.colors", "analysis").to_rgb
    cells = min(size, _MOST_CELLS)
    shown = np.unique(np.linspace(0, size - 1, cells).round().astype(int))
    kinds = [KINDS[record.kinds[index]] for index in shown]
    of_key = np.array([to_rgb(kind.light) for kind in kinds])  # (cells, 3)
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

    names = list[tuple[float, str, str]]()
    readouts = list[tuple[float, str, str]]()
    for start, stop in record.sections:
        middle = (start + stop) / 2
        name = record.section_name(start).replace("trunk: ", "", 1)
        names.append((middle, name, INK))
        if start:
            axes.axhline(start, color=INK, linewidth=0.35, alpha=0.35)
            axes.axvline(start, color=INK, linewidth=0.35, alpha=0.35)
    for index, read in sorted(record.readouts.items()):
        for what, pairs in read.items():
            numbers = [f"{pair.example}.{pair.number}" if record.batch > 1 else str(pair.number) for pair in pairs]
            colour = TARGET if what == "target" else SOURCE
            readouts.append((index + 0.5, f"{what} {', '.join(numbers)}", colour))
    _side_labels(axes, names, size, -band, ha="right")
    _side_labels(axes, readouts, size, size, ha="left")


def _side_labels(axes: Axes, labels: list[tuple[float, str, str]], size: int, edge: float, ha: str) -> None:
    """Labels (row, text, colour) next to the mask that do not touch, with lines to their rows; some where not all have
    room."""
    distance = _LABEL / _MASK * size
    kept = labels[:: 1 + int(len(labels) * distance / size)]
    places = spread([row for row, _, _ in kept], distance, 0.5 * distance, size - 0.5 * distance)
    text_edge = edge + (0.05 if ha == "left" else -0.05) * size
    for (row, text, colour), place in zip(kept, places, strict=True):
        axes.annotate(
            written(text),
            (edge, row),
            xytext=(text_edge, place),
            fontsize=_SMALL,
            ha=ha,
            va="center",
            color=colour,
            annotation_clip=False,
            parse_math=False,
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.7, "shrinkA": 1, "shrinkB": 0},
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
