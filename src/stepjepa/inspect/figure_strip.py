"""The strip of the picture: the row's segments by position, what hangs where, and what is read (see `lanes`)."""

from __future__ import annotations

from typing import Any

from stepjepa.data.extras import library
from stepjepa.inspect.glyphs import token_label
from stepjepa.inspect.lanes import lanes
from stepjepa.inspect.model import RowRecord
from stepjepa.inspect.palette import COLOURS, FAINT, INK, SOURCE, TARGET, letter_colour
from stepjepa.utils.text import escaped

_WIDE = 7.05  # inches
_SMALL = 9  # points
_TEXT_CELL = 0.155  # inches that a token needs for its text
_BAR = 0.17  # inches, height of a bar without text
_MOST_LETTERS = 12
_LETTER = 0.075  # inches, the width of a letter


def strip_height(record: RowRecord) -> float:
    """Inches that the strip takes."""
    placed = lanes(record)
    return 0.3 + sum(_lane_heights(record, placed))


def draw_strip(axes: Any, record: RowRecord) -> None:
    """Draw into axes that are `strip_height` inches high."""
    patches = library("matplotlib.patches", "analysis")
    placed = lanes(record)
    texts = _texts(record)
    heights = _lane_heights(record, placed)
    tops = [0.3 + sum(heights[:lane]) for lane in range(len(heights))]
    bars = [height - 0.26 for height in heights]
    axes.set_xlim(0, placed.width)
    axes.set_ylim(0.3 + sum(heights), 0)
    unit = _WIDE / placed.width  # inches a column
    lane_of: dict[int, int] = {}
    behind = [-1.0] * len(heights)  # where the last label of a lane ends
    for (start, stop), lane in zip(record.sections(), placed.of_section, strict=True):
        lane_of |= dict.fromkeys(range(start, stop), lane)
        cells = [(index, index + 1) for index in range(start, stop)] if unit > 0.05 else _same_kind(record, start, stop)
        for index, behind_it in cells:
            column, colour = int(placed.columns[index]), COLOURS[record.kinds[index]]
            cell = patches.Rectangle(
                (column, tops[lane]), behind_it - index, bars[lane], facecolor=colour, edgecolor="white",
                linewidth=0.6 if unit > 0.05 else 0,
            )  # fmt: skip
            axes.add_patch(cell)
            if texts:
                axes.text(
                    column + 0.5, tops[lane] + bars[lane] - 0.05, texts[index], rotation=90, fontsize=_SMALL, ha="center",
                    va="bottom", color=letter_colour(colour), parse_math=False, clip_on=True,
                )  # fmt: skip
        first, last = int(placed.columns[start]), int(placed.columns[stop - 1]) + 1
        axes.plot([first] * 2, [tops[lane], tops[lane] + bars[lane] + 0.05], color=INK, linewidth=0.6)
        name = record.names[start].removeprefix("trunk: ")
        name = name if placed.names[lane] == "trunk" else name.split(" ")[-1]
        width = (len(name) + 1) * _LETTER / unit
        room = last - first if placed.names[lane] == "trunk" else max(width, last - first)
        if first >= behind[lane] and width <= room + 0.02 / unit:
            axes.text(
                first + 0.04 / unit, tops[lane] + bars[lane] + 0.03, written(name), fontsize=_SMALL, va="top", color=FAINT,
                parse_math=False,
            )  # fmt: skip
            behind[lane] = first + width
        attach = int(record.attaches[start])
        if attach >= 0:  # a branch, drawn from the token that it hangs off
            at = next(i for i in range(start) if record.examples[i] == record.examples[start])
            here = int(placed.columns[at + attach]) + 0.5
            axes.plot(
                [here, here, first], [tops[0] + bars[0], tops[lane] + bars[lane] / 2, tops[lane] + bars[lane] / 2],
                color=COLOURS["predictor"], linewidth=1.1,
            )  # fmt: skip
    shown: set[str] = set()
    for lane, name in enumerate(placed.names):
        if name not in shown:
            axes.text(
                -0.08 / unit, tops[lane] + bars[lane] / 2, name, fontsize=_SMALL, ha="right", va="center", color=INK
            )
            shown.add(name)
    for pair in record.pairs:
        ends = []
        for index, colour in ((pair.source.index, SOURCE), (pair.target.index, TARGET)):
            x, y = int(placed.columns[index]) + 0.5, tops[lane_of[index]]
            axes.plot([x], [y - 0.03], marker="v", markersize=5, color=colour, clip_on=False)
            ends.append((x, y - 0.05))
        axes.annotate(
            "", ends[1], xytext=ends[0],
            arrowprops={"arrowstyle": "-|>", "color": FAINT, "linewidth": 0.8, "connectionstyle": "arc3,rad=-0.12",
                        "shrinkA": 2, "shrinkB": 4, "mutation_scale": 8},
        )  # fmt: skip
    axes.set_title("positions", fontsize=_SMALL, color=FAINT, loc="left", pad=2)
    for drawn in record.tube:
        for _, term in drawn.ends:
            x = int(placed.columns[term.index]) + 0.5
            axes.plot([x], [tops[0] - 0.03], marker="v", markersize=5, color=SOURCE, clip_on=False)
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000) if step * unit > 0.45)
    first_of = placed.columns - record.positions
    for index in range(len(record)):
        if lane_of[index] == 0 and record.examples[index] >= 0 and record.positions[index] % step == 0:
            x = int(first_of[index] + record.positions[index])
            axes.text(x + 0.5, 0.22, str(record.positions[index]), fontsize=_SMALL, ha="center", color=FAINT)


def written(text: str) -> str:
    """`text` in letters that the figure's font has; others, and what is not printable, as escapes."""
    manager = library("matplotlib.font_manager", "analysis")
    font = manager.get_font(manager.findfont(manager.FontProperties()))
    return "".join(
        letter if font.get_char_index(ord(letter)) else letter.encode("unicode_escape").decode()
        for letter in escaped(text)
    )


def _same_kind(record: RowRecord, start: int, stop: int) -> list[tuple[int, int]]:
    """[start, stop) of the runs of one kind."""
    edges = [start, *(i for i in range(start + 1, stop) if record.kinds[i] != record.kinds[i - 1]), stop]
    return list(zip(edges[:-1], edges[1:], strict=True))


def _texts(record: RowRecord) -> list[str]:
    """Texts for the cells; none where the cells are too narrow for them."""
    if lanes(record).width * _TEXT_CELL > _WIDE:
        return []
    bare = [
        text.strip("<|>") if kind == "predictor" else text
        for text, kind in zip(record.texts, record.kinds, strict=True)
    ]
    labels = [written(token_label(text)) for text in bare]
    return [label if len(label) <= _MOST_LETTERS else f"{label[: _MOST_LETTERS - 1]}\u2026" for label in labels]


def _lane_heights(record: RowRecord, placed: Any) -> list[float]:
    """Inches of each lane, the line for names below its bar included."""
    texts = _texts(record)
    heights = [_BAR] * len(placed.names)
    for (start, stop), lane in zip(record.sections(), placed.of_section, strict=True):
        longest = max(len(text) for text in texts[start:stop]) if texts else 0
        heights[lane] = max(heights[lane], longest * 0.085 + 0.12 if texts else 0)
    return [height + 0.26 for height in heights]
