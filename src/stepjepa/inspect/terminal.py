"""The record of a row drawn in a terminal: tokens by segment, pairs with their readouts, and the mask in half blocks.

```
segment   index  position  tokens
step 1       12        12  First|,|·add|.|..  <end of source 1>
branch 1     40        17  <|predictor_1|>|<|predictor_2|> <source 1>
target 1     42        19  Then|·double|.  <target 1>
```
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import IO, Any

import numpy as np
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from stepjepa.inspect.glyphs import ASCII, FAINT, LETTERS, READOUT, STYLES, UNICODE, Glyphs, token_label
from stepjepa.inspect.model import RowRecord
from stepjepa.inspect.prose import counts_of, head_lines, label_lines, legend_lines, pair_lines
from stepjepa.utils.text import escaped

_NARROWEST = 20  # columns for tokens, and for the mask, at least
_NARROWEST_ROW = 60  # columns for a row beside another
_GAP = 3  # columns between rows side by side


def make_console(file: IO[str] | None = None, width: int | None = None) -> Console:
    """A console that writes colour to terminals only, and none where NO_COLOR is set."""
    plain: dict[str, Any] = {"color_system": None} if os.environ.get("NO_COLOR") else {}
    console = Console(file=file, width=width, highlight=False, markup=False, emoji=False, **plain)
    if not console.is_terminal:
        return Console(
            file=file, width=width, highlight=False, markup=False, emoji=False, force_terminal=False, color_system=None
        )
    return console


def draw(
    record: RowRecord, console: Console, title: str = "", notes: Sequence[str] = (), packing: Sequence[str] = ()
) -> None:
    """Print a row.

    Args:
        record: what `row_record` returns.
        console: for instance `make_console`'s; its encoding decides between half blocks and plain ASCII.
        title: first line; the counts of tokens follow it.
        notes: further lines under it.
        packing: lines on how the row was packed (`packing.packing_lines`), above the notes.
    """
    glyphs = UNICODE if console.encoding.lower().startswith("utf") else ASCII
    counts = counts_of(record)
    blocks: list[tuple[Iterable[Text], bool]] = [  # lines, and whether they may be broken
        (head_lines(f"{title}: {counts}" if title else counts, packing, notes), True),
        (legend_lines(record), True),
        (token_lines(record, console.width, glyphs), False),
        (label_lines(record), True),
        (pair_lines(record, glyphs), True),
        (mask_lines(record, console.width, glyphs), False),
    ]
    for number, (lines, prose) in enumerate(blocks):
        if number:
            console.print()
        for line in lines:
            # Drawn lines are filled to the width already; only a token that is wider than that goes beyond it.
            console.print(line, soft_wrap=not prose)


def draw_beside(
    records: Sequence[tuple[str, RowRecord]],
    console: Console,
    title: str,
    notes: Sequence[str] = (),
    packing: Sequence[str] = (),
) -> None:
    """Print the same row in several ways, side by side as far as the width allows, else one under the other.

    Args:
        records: (heading, record).
        console, title, notes, packing: see `draw`.
    """
    glyphs = UNICODE if console.encoding.lower().startswith("utf") else ASCII
    for lines in (head_lines(title, packing, notes), legend_lines(*(record for _, record in records))):
        for line in lines:
            console.print(line)
        console.print()
    columns = max(min(len(records), (console.width + _GAP) // (_NARROWEST_ROW + _GAP)), 1)
    width = (console.width + _GAP) // columns - _GAP
    for first in range(0, len(records), columns):
        if first:
            console.print()
        drawn = [list(_narrow(heading, record, width, glyphs)) for heading, record in records[first : first + columns]]
        for cells in zip_longest(*drawn, fillvalue=Text()):
            line = Text()
            for number, cell in enumerate(cells):
                line.append_text(cell)
                if number + 1 < len(cells):
                    line.append(" " * (width + _GAP - cell_len(cell.plain)))
            line.rstrip()
            console.print(line, soft_wrap=True)


def _narrow(heading: str, record: RowRecord, width: int, glyphs: Glyphs) -> Iterator[Text]:
    """The lines of a row, each at most `width` cells wide but for a token that is wider."""
    fitted = Console(width=width, highlight=False, markup=False, emoji=False, file=io.StringIO())
    yield from Text(escaped(heading), style="bold").wrap(fitted, width)
    yield from Text(counts_of(record)).wrap(fitted, width)
    blocks: list[tuple[Iterable[Text], bool]] = [
        (token_lines(record, width, glyphs), False),
        (label_lines(record), True),
        (pair_lines(record, glyphs), True),
        (mask_lines(record, width, glyphs), True),
    ]
    for lines, prose in blocks:
        yield Text()
        for line in lines:
            fits = not prose or cell_len(line.plain) <= width
            yield from [line] if fits else line.wrap(fitted, width)


def token_lines(record: RowRecord, width: int, glyphs: Glyphs = UNICODE) -> Iterator[Text]:
    """The tokens, section by section, with the row index and the position of each line's first token."""
    names = [_section_name(record, start) for start, _ in record.sections()]
    column = max(map(len, [*names, "segment"]))
    yield Text(f"{'segment':<{column}}  index  position  tokens", style=FAINT)
    room = max(width - column - 19, _NARROWEST)
    tags = _tags(record, glyphs)
    readouts = {index for pair in record.pairs for index in (pair.source.index, pair.target.index)}
    readouts |= {term.index for drawn in record.tube for _, term in drawn.ends}
    for (start, stop), name in zip(record.sections(), names, strict=True):
        if record.kinds[start] == "padding":
            yield Text(f"{name:<{column}}  {start:>5}  {0:>8}  {stop - start} in all", style=FAINT)
            continue
        for first, cells in _filled(record, start, stop, room, tags, readouts, glyphs):
            line = Text().append(f"{name:<{column}}  ", style=STYLES[record.kinds[start]])
            line.append(f"{first:>5}  {record.positions[first]:>8}  ", style=FAINT)
            line.append_text(cells)
            yield line
            name = ""


def mask_lines(record: RowRecord, width: int, glyphs: Glyphs = UNICODE) -> Iterator[Text]:
    """Who sees whom, two query rows a line; a row wider than `width` is shortened, which the first line says."""
    shown = shown_positions(record, max(width - 10, _NARROWEST))
    yield Text("who sees whom (down: who looks, two a line; across: who is seen)", style=FAINT)
    if len(shown) < len(record):
        yield Text(f"{len(shown)} of {len(record)} positions fit: readouts, segments' ends, some others", style=FAINT)
    strip = Text(" " * 10)
    for index in shown:
        strip.append(LETTERS[record.kinds[index]], style=STYLES[record.kinds[index]])
    yield strip
    for upper, lower in zip(shown[::2], [*shown[1::2], None][: (len(shown) + 1) // 2], strict=True):
        line = Text().append(f"{upper:>6} ", style=FAINT)
        for query in (upper, lower):
            kind = None if query is None else record.kinds[query]
            line.append(LETTERS[kind] if kind else " ", style=STYLES[kind] if kind else "")
        line.append(" ")
        for key in shown:
            below = lower is not None and record.visible[lower, key]
            block = glyphs.blocks[int(record.visible[upper, key]) + 2 * int(below)]
            line.append(block, style=STYLES[record.kinds[key]])
        line.rstrip()
        yield line


def shown_positions(record: RowRecord, room: int) -> list[int]:
    """At most `room` positions of the row in order: all, or those that matter most and the others thinned evenly."""
    if len(record) <= room:
        return list(range(len(record)))
    needed = {index for pair in record.pairs for index in (pair.source_end.index, pair.source.index, pair.target.index)}
    needed |= {term.index for drawn in record.tube for _, term in drawn.ends}
    needed |= {index for index, kind in enumerate(record.kinds) if kind == "predictor"}
    for start, stop in record.sections():
        needed |= {start, stop - 1}
    if len(needed) >= room:
        return _thinned(sorted(needed), room)
    rest = [index for index in range(len(record)) if index not in needed]
    return sorted([*needed, *_thinned(rest, room - len(needed))])


def _thinned(indices: Sequence[int], count: int) -> list[int]:
    picks = np.linspace(0, len(indices) - 1, count).round().astype(int)
    return [indices[pick] for pick in picks]


def _section_name(record: RowRecord, start: int) -> str:
    numbered = record.batch > 1 and record.examples[start] >= 0
    return escaped(f"{record.examples[start]} {record.names[start]}" if numbered else record.names[start])


def _tags(record: RowRecord, glyphs: Glyphs) -> dict[int, str]:
    """What is said behind a token: where a source view or a drawn span ends, and what is read there."""
    words: dict[int, dict[str, list[int]]] = {}

    def say(index: int, what: str, number: int) -> None:
        words.setdefault(index, {}).setdefault(what, []).append(number)

    for pair in record.pairs:
        if not pair.apart:
            say(pair.source_end.index, "end of source", pair.number)
        say(pair.source.index, "source", pair.number)
        say(pair.target.index, "target", pair.number)
    for drawn in record.tube:
        for name, term in drawn.ends:
            say(term.index, name, drawn.number)
    left, right = glyphs.tag
    return {
        index: left + "; ".join(f"{what} {', '.join(map(str, numbers))}" for what, numbers in said.items()) + right
        for index, said in words.items()
    }


def _filled(
    record: RowRecord,
    start: int,
    stop: int,
    room: int,
    tags: dict[int, str],
    readouts: Iterable[int],
    glyphs: Glyphs,
) -> Iterator[tuple[int, Text]]:
    """(index of the first token, line) for lines of at most `room` cells; a longer token has a line of its own."""
    first, line, used = start, Text(), 0
    for index in range(start, stop):
        label = token_label(record.texts[index], glyphs)
        tag = tags.get(index, "")
        needs = cell_len(label) + 1 + (cell_len(tag) + 1 if tag else 0)
        if used and used + needs > room:
            yield first, line
            first, line, used = index, Text(), 0
        if used:
            line.append(glyphs.bar, style=FAINT)
        style = STYLES[record.kinds[index]]
        line.append(label, style=f"{style} {READOUT}" if index in readouts else style)
        if tag:
            line.append(f" {tag}", style="italic")
        used += needs
    yield first, line
