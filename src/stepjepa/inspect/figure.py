"""The picture of packed rows: every segment where its positions are, and who sees whom (matplotlib, extra ``analysis``).

Drawn without pyplot, so nothing global is changed and no window opens. Figures are 8 inches wide: at 800 pixels the smallest
letters are 12 pixels high.
"""

from __future__ import annotations

import io
import os
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stepjepa.data.extras import library
from stepjepa.errors import ConfigError
from stepjepa.inspect.figure_strip import draw_strip, strip_height, written
from stepjepa.inspect.model import KINDS, RowRecord
from stepjepa.inspect.pairs import PairRecord
from stepjepa.inspect.palette import COLOURS, FAINT, INK, PAPER, SOURCE, TARGET
from stepjepa.inspect.prose import counts_of
from stepjepa.inspect.tube import TubeRecord
from stepjepa.utils.files import write_whole

WIDTH = 8.0  # inches
_MASK = 5.5  # inches, side of a mask
_LABEL = 0.155  # inches between two labels of the mask
_MOST_LABELS = 0.85  # of the room beside a mask
_MOST_CELLS = 1600  # of a mask's side; longer rows are thinned
_SMALL = 9  # points


def row_figure(rows: Sequence[tuple[str, RowRecord]], title: str = "") -> Any:
    """A figure with a strip and a mask for each row, one under the other.

    Args:
        rows: (heading, record); at least one.
        title: of the figure.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    title_lines = _wrapped(title, 92)
    words = [_wrapped(f"{heading}: {counts_of(record)}".removeprefix(": "), 104) for heading, record in rows]
    strips = [strip_height(record) for _, record in rows]
    head = 0.25 + 0.2 * len(title_lines)
    kinds = [kind for kind in KINDS if any(kind in record.kinds for _, record in rows)]
    foot = 0.45 + 0.2 * -(-len(kinds) // 2)
    height = head + sum(0.17 * len(w) + strip + _MASK + 1.1 for w, strip in zip(words, strips, strict=True)) + foot
    figure = library("matplotlib.figure", "analysis").Figure(figsize=(WIDTH, height), dpi=100, facecolor=PAPER)
    figure.text(0.02, 1 - 0.12 / height, "\n".join(title_lines), va="top", fontsize=11, color=INK, parse_math=False)
    top = head
    for (_, record), lines, strip in zip(rows, words, strips, strict=True):
        text = "\n".join(lines)
        figure.text(0.02, 1 - top / height, text, va="top", fontsize=_SMALL, color=FAINT, parse_math=False)
        top += 0.17 * len(lines) + 0.35
        draw_strip(_axes(figure, height, 0.85, top, WIDTH - 0.95, strip), record)
        top += strip + 0.5
        _draw_mask(_axes(figure, height, 1.4, top, _MASK, _MASK), record)
        top += _MASK + 0.25
    _legend(figure, kinds, any(record.pairs for _, record in rows), height)
    return figure


def save_png(figure: Any, path: str | os.PathLike[str], dpi: int = 200) -> None:
    """Write a figure as PNG; it appears whole or not at all.

    Args:
        dpi: pixels an inch; 100 makes it 800 wide.

    Raises:
        ConfigError: it could not be written; what stood there still stands.
    """
    path, memory = Path(path), io.BytesIO()
    figure.savefig(memory, format="png", dpi=dpi, metadata={"Software": None})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, [memory.getvalue()])
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror or error})") from None


def _axes(figure: Any, height: float, left: float, top: float, width: float, tall: float) -> Any:
    """Axes at a place in inches, counted from the top left."""
    axes = figure.add_axes((left / WIDTH, 1 - (top + tall) / height, width / WIDTH, tall / height))
    axes.spines[:].set_visible(False)
    axes.set_xticks([])
    axes.set_yticks([])
    return axes


def _draw_mask(axes: Any, record: RowRecord) -> None:
    """The matrix in the colours of the seen tokens, a band of kinds along two sides, names and readouts beside it."""
    colours = library("matplotlib.colors", "analysis")
    size = len(record)
    shown = np.unique(np.linspace(0, size - 1, min(size, _MOST_CELLS)).round().astype(int))
    table = np.array([colours.to_rgb(COLOURS[kind]) for kind in KINDS])
    order = {kind: number for number, kind in enumerate(KINDS)}
    of_key = table[[order[record.kinds[index]] for index in shown]]  # (cells, 3)
    picture = np.ones((len(shown), len(shown), 3))
    for row, query in enumerate(shown.tolist()):
        seen = record.seen_by(slice(query, query + 1))[0][shown]
        picture[row, seen] = of_key[seen]
    axes.imshow(picture, extent=(0, size, size, 0), interpolation="nearest", aspect="auto")
    band = 0.018 * size
    axes.imshow(of_key[None], extent=(0, size, -band, -0.2 * band), interpolation="nearest", aspect="auto")
    axes.imshow(of_key[:, None], extent=(-band, -0.2 * band, size, 0), interpolation="nearest", aspect="auto")
    axes.set_xlim(-band, size)
    axes.set_ylim(size, -band)
    for start, _ in record.sections()[1:]:
        axes.axhline(start, color=INK, linewidth=0.35, alpha=0.35)
        axes.axvline(start, color=INK, linewidth=0.35, alpha=0.35)
    axes.set_title("who sees whom   (down: who looks; across: who is seen)", fontsize=_SMALL, color=FAINT, pad=6)
    _side_labels(axes, _section_labels(record), size, left=True)
    _side_labels(axes, _readout_labels(record), size, left=False)


class _Label(NamedTuple):
    """A label beside the mask: where it belongs, what it says, its colour, and how much of the row it is about."""

    place: float
    text: str
    colour: str
    weight: int


def _section_labels(record: RowRecord) -> list[_Label]:
    several = record.batch > 1
    found = []
    for start, stop in record.sections():
        name = record.names[start].removeprefix("trunk: ")
        number = record.examples[start]
        text = f"{number} {name}" if several and number >= 0 else name
        found.append(_Label((start + stop) / 2, text, INK, stop - start))
    return found


def _readout_labels(record: RowRecord) -> list[_Label]:
    """Rows whose states are read; those of several pairs at one place in one label."""
    read: dict[tuple[int, str], list[str]] = {}
    ends = [(pair, "source", pair.source.index) for pair in record.pairs]
    ends += [(pair, "target", pair.target.index) for pair in record.pairs]
    for pair, what, index in ends:
        read.setdefault((index, what), []).append(_number(record, pair))
    for drawn in record.tube:
        for name, term in drawn.ends:
            read.setdefault((term.index, name), []).append(_number(record, drawn))
    return [
        _Label(index + 0.5, f"{what} {', '.join(numbers)}", TARGET if what == "target" else SOURCE, 1)
        for (index, what), numbers in sorted(read.items())
    ]


def _number(record: RowRecord, pair: PairRecord | TubeRecord) -> str:
    return f"{pair.example}.{pair.number}" if record.batch > 1 else str(pair.number)


def _side_labels(axes: Any, labels: Sequence[_Label], size: int, left: bool) -> None:
    """Labels beside the mask, moved apart where they would touch, with lines to their rows; where there is no room for all,
    those of the largest parts."""
    apart = _LABEL / _MASK * size
    room = int(_MOST_LABELS * size / apart)
    if len(labels) > room:
        kept = sorted(range(len(labels)), key=lambda number: -labels[number].weight)[:room]
        labels = [labels[number] for number in sorted(kept)]
    places = spread([label.place for label in labels], apart, 0.5 * apart, size - 0.5 * apart)
    edge, sign = (-0.018 * size, -1) if left else (size, 1)
    for (place, text, colour, _), at in zip(labels, places, strict=True):
        axes.annotate(
            written(text), (edge, place), xytext=(edge + sign * 0.05 * size, at), textcoords="data", fontsize=_SMALL,
            ha="right" if left else "left", va="center", color=colour, annotation_clip=False, parse_math=False,
            arrowprops={"arrowstyle": "-" if left else "-|>", "color": colour, "linewidth": 0.7, "shrinkA": 1, "shrinkB": 0,
                        "mutation_scale": 7},
        )  # fmt: skip


def spread(places: Sequence[float], apart: float, low: float, high: float) -> list[float]:
    """Ascending places at least `apart` from each other, close to the given ones and within [low, high] if there is room."""
    found: list[float] = []
    for place in places:
        found.append(max(place, found[-1] + apart if found else low))
    for index in range(len(found) - 1, -1, -1):
        limit = high if index == len(found) - 1 else found[index + 1] - apart
        found[index] = min(found[index], limit)
    return found


def _legend(figure: Any, kinds: Sequence[str], pairs: bool, height: float) -> None:
    patches = library("matplotlib.patches", "analysis")
    handles = [patches.Patch(facecolor=COLOURS[kind], edgecolor=FAINT, linewidth=0.5) for kind in kinds]
    figure.legend(
        handles, [KINDS[kind] for kind in kinds], loc="lower left", bbox_to_anchor=(0.01, 0.22 / height), ncols=2,
        fontsize=_SMALL, frameon=False, handlelength=1.2, columnspacing=2, labelcolor=INK,
    )  # fmt: skip
    if pairs:
        words = "Triangles: tokens at which views are read; an arrow leads from a source to the target that it must predict."
        figure.text(0.02, 0.1 / height, words, fontsize=_SMALL, color=FAINT)


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(written(text), width) or [""]
