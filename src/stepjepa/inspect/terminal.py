"""The record of a row drawn in a terminal: tokens by segment, pairs with their readouts, and the mask in half blocks.

```
segment   index  position  tokens
step 1       12        12  First|,|·add|.|..  <end of source 1>
branch 1     40        17  <|predictor_1|>|<|predictor_2|> <source 1>
target 1     42        19  Then|·double|.  <target 1>
```

Text from the data reaches rich only as `Text`, so rich's markup in it does nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import IO, Literal

import numpy as np
from rich.cells import cell_len
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from stepjepa.inspect.record import (
    KINDS,
    RowPair,
    RowRecord,
    Vector,
    edges_of,
    token_label,
)
from stepjepa.utils.text import counted, escaped

_FAINT = "dim"
_BAR = "\u2502"  # between tokens
_BLOCKS = " \u2580\u2584\u2588"  # nothing, upper half, lower half, both
_NARROWEST = 20  # columns for tokens, and for the mask, at least
_NARROWEST_ROW = 60  # columns for a row next to another
_GAP = 3  # columns between rows side by side
_MOST_VECTORS = 6  # pairs of vectors that are written out
_MOST_TERMS = 6  # states of a vector that are


def make_console(file: IO[str] | None = None, width: int | None = None) -> Console:
    """A console that writes colour to terminals only, and none where NO_COLOR is set."""
    colours: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"
    return Console(file=file, width=width, highlight=False, markup=False, emoji=False, color_system=colours)


def draw(
    rows: Sequence[tuple[str, RowRecord]],
    console: Console,
    title: str = "",
    notes: Sequence[str] = (),
    packing: Sequence[str] = (),
) -> None:
    """Print rows (heading, record): several side by side as far as the width allows, else one below the other.

    The lines `packing` come before the `notes`.
    """
    alone = len(rows) == 1
    first = [title, rows[0][1].counts] if alone else [title]
    console.print(Text(escaped(": ".join(filter(None, first))), style="bold"))
    for about in packing:
        console.print(Text(escaped(about)))
    for note in notes:
        console.print(Text(escaped(note), style="yellow"))
    console.print()
    for kind, (letter, meaning, style, *_) in KINDS.items():
        if any(kind in record.kinds for _, record in rows):
            console.print(Text(f"  {letter} {meaning}", style=style))
    columns = max(min(len(rows), (console.width + _GAP) // (_NARROWEST_ROW + _GAP)), 1)
    width = (console.width + _GAP) // columns - _GAP
    for start in range(0, len(rows), columns):
        console.print()
        blocks = []
        for heading, record in rows[start : start + columns]:
            head = [] if alone else [Text(escaped(heading), style="bold"), Text(record.counts), Text()]
            blocks.append([*head, *_row_lines(record, width)])
        if columns == 1:
            for line in blocks[0]:  # drawn lines are filled to the width; a single token may be wider
                console.print(line, soft_wrap=bool(line.no_wrap))
            continue
        grid = Table.grid(padding=(0, _GAP, 0, 0))
        for _ in blocks:
            grid.add_column(width=width, overflow="fold")
        grid.add_row(*(Group(*block) for block in blocks))
        console.print(grid)


def _row_lines(record: RowRecord, width: int) -> Iterator[Text]:
    yield from token_lines(record, width)
    yield Text()
    edges = edges_of(record.labelled)
    where = ", ".join(map(_range, zip(edges[::2], edges[1::2], strict=True)))
    yield Text(f"LM loss on {counted(int(record.labelled.sum()), 'token')}{': ' if where else ''}{where}")
    yield Text()
    yield from _pair_lines(record)
    yield Text()
    yield from mask_lines(record, width)


def token_lines(record: RowRecord, width: int) -> Iterator[Text]:
    """The tokens, section by section, with the row index and the position of each line's first token.

    A line has at most `width` cells; a token that is wider has a line of its own.
    """
    names = [escaped(record.section_name(start)) for start, _ in record.sections]
    column = max(map(len, [*names, "segment"]))
    room = max(width - column - 19, _NARROWEST)
    tags = _tags(record)
    yield Text(f"{'segment':<{column}}  index  position  tokens", style=_FAINT)
    for (start, stop), name in zip(record.sections, names, strict=True):
        if record.kinds[start] == "padding":
            yield Text(f"{name:<{column}}  {start:>5}  {0:>8}  {stop - start} in all", style=_FAINT)
            continue
        line, used = Text(), room + 1
        for index in range(start, stop):
            label, tag = token_label(record.texts[index]), tags.get(index, "")
            needs = cell_len(label) + 1 + (cell_len(tag) + 1 if tag else 0)
            if used and used + needs > room:
                if index > start:
                    yield line
                line, used = Text(no_wrap=True), 0
                line.append(f"{'' if index > start else name:<{column}}  ", style=KINDS[record.kinds[start]].style)
                line.append(f"{index:>5}  {record.positions[index]:>8}  ", style=_FAINT)
            if used:
                line.append(_BAR, style=_FAINT)
            style = KINDS[record.kinds[index]].style
            line.append(label, style=f"{style} underline" if index in record.marked else style)
            if tag:
                line.append(f" {tag}", style="italic")
            used += needs
        yield line


def _tags(record: RowRecord) -> dict[int, str]:
    """What is said after a token: where a source view or a sampled span ends, and what is read there."""
    said: dict[int, dict[str, list[RowPair]]] = {}
    for pair in record.pairs:
        if pair.views and not pair.views.standalone:
            said.setdefault(pair.views.source_end, {}).setdefault("end of source", []).append(pair)
    for index, read in record.readouts.items():
        said.setdefault(index, {}).update(read)
    tags = {}
    for index, read in said.items():
        parts = [f"{what} {', '.join(str(pair.number) for pair in pairs)}" for what, pairs in read.items()]
        tags[index] = f"\u00ab{'; '.join(parts)}\u00bb"
    return tags


def _pair_lines(record: RowRecord) -> Iterator[Text]:
    """The pairs of views, then those of sums of states."""
    views, sums = ([pair for pair in record.pairs if bool(pair.views) == kind] for kind in (True, False))
    if views or not sums:
        yield Text("pairs" if views else "pairs: none", style=_FAINT)
    for number, pair in enumerate([*views, *sums[:_MOST_VECTORS]]):
        if number == len(views):
            called = "pairs" if pair.arrow else "spans" if pair.ends else "vectors"
            yield Text(f"{called} (h: the state of a token)", style=_FAINT)
        title = f"  example {pair.example}, pair {pair.number}  " if record.batch > 1 else f"  pair {pair.number}  "
        for line in (_view_lines if pair.views else _sum_lines)(record, pair):
            yield Text(title).append(line)
            title = " " * len(title)
    if len(sums) > _MOST_VECTORS:
        yield Text(f"  and {len(sums) - _MOST_VECTORS} more")


def _view_lines(record: RowRecord, pair: RowPair) -> Iterator[Text]:
    """Where the source and the target are, and where they are read."""
    assert pair.views
    segment, original, copy = pair.views.source_segment, pair.views.original, pair.views.copy
    source, target = (
        _token(record, last) if len(side.terms) == 1 else f"all its tokens: {_formula(record, side)}"
        for (_, last), side in zip(pair.ends, (pair.source, pair.target), strict=True)
    )
    where = f"source ends at {_token(record, pair.views.source_end)}"
    if segment:
        where = f"source {_range(segment)}" if pair.views.standalone else f"{where} (row {_range(segment)})"
    yield Text(f"{where}, read at {source}", style=KINDS["source"].style)
    where = f" (on the trunk {_range(original)})" if original else ""
    where = " (isolated in its place)" if original == copy else where
    yield Text(f"target {_range(copy)}{where}, read at {target}", style=KINDS["target"].style)


def _sum_lines(record: RowRecord, pair: RowPair) -> Iterator[str]:
    """What was sampled, the vectors, and how they are compared."""
    if pair.ends:
        yield ", ".join(f"{name} = {_token(record, index)}" for name, index in pair.ends)
    vectors = [pair.total, pair.target, pair.source] if pair.total else [pair.source, pair.target]
    column = max(len(vector.name) for vector in vectors)
    for vector in vectors:
        yield f"{vector.name:<{column}}  {_formula(record, vector)}"
    source, target = pair.source.name, pair.target.name
    source = source if source == "source" else f"{source} (source)"
    target = target if target == "target" else f"{target} (target)"
    weight = f", weight {pair.weight:.3g}" if pair.weight != 1 else ""
    yield f"compared: {source} with {target}{weight}"


def _formula(record: RowRecord, vector: Vector) -> str:
    """A vector in words: the states that are summed, or where a mean is taken."""
    if not vector.terms:
        return "zero"
    stretches = []
    for first, stop in vector.covered:
        ends = dict.fromkeys((first, stop - 1))
        texts = " .. ".join(f'"{token_label(record.texts[end])}"' for end in ends)
        stretches.append(f"{_range((first, stop))} ({texts})")
    where = ", ".join(stretches)
    if vector.terms[1:] and all(term.coefficient > 0 for term in vector.terms):
        return f"mean of h over {where}"
    if len(vector.terms) > _MOST_TERMS:
        return where
    formula = ""
    # From left to right as they are subtracted: an end, then its start.
    for _, term in sorted(enumerate(vector.terms), key=lambda item: (item[0] // 2, -item[0])):
        size = abs(term.coefficient)
        factor = "" if size == 1 else f"{size:.3g} "
        formula += f" {'-' if term.coefficient < 0 else '+'} {factor}h[{term.token}]"
    return f"{formula.removeprefix(' + ')}: {where}"


def _token(record: RowRecord, index: int) -> str:
    return f'{index} "{token_label(record.texts[index])}"'


def _range(edges: tuple[int, int]) -> str:
    start, stop = edges
    return f"{start}-{stop - 1}" if stop - start > 1 else f"{start}"


def mask_lines(record: RowRecord, width: int) -> Iterator[Text]:
    """Who sees whom, two query rows a line; a row wider than `width` is shortened, which the first line says."""
    shown = shown_positions(record, max(width - 10, _NARROWEST))
    kinds = [KINDS[record.kinds[index]] for index in shown]
    yield Text("who sees whom (down: who looks, two a line; across: who is seen)", style=_FAINT)
    if len(shown) < len(record):
        yield Text(f"{len(shown)} of {len(record)} positions fit: readouts, segments' ends, some others", style=_FAINT)
    strip = Text(" " * 10, no_wrap=True)
    for kind in kinds:
        strip.append(kind.letter, style=kind.style)
    yield strip
    seen = np.pad(record.visible[np.ix_(shown, shown)], ((0, len(shown) % 2), (0, 0)))
    for upper in range(0, len(shown), 2):
        line = Text(no_wrap=True).append(f"{shown[upper]:>6} ", style=_FAINT)
        for kind in kinds[upper : upper + 2]:
            line.append(kind.letter, style=kind.style)
        line.append(" " * (10 - len(line)))
        for key, kind in enumerate(kinds):
            line.append(_BLOCKS[int(seen[upper, key]) + 2 * int(seen[upper + 1, key])], style=kind.style)
        line.rstrip()
        yield line


def shown_positions(record: RowRecord, room: int) -> list[int]:
    """At most `room` positions of the row in order: all, or those that matter most and the others thinned evenly."""
    everything = range(len(record))
    if len(record) <= room:
        return list(everything)
    needed = {*record.readouts, *(pair.views.source_end for pair in record.pairs if pair.views)}
    needed |= {index for index, kind in enumerate(record.kinds) if kind == "predictor"}
    needed |= {edge for start, stop in record.sections for edge in (start, stop - 1)}
    kept, rest = sorted(needed), [index for index in everything if index not in needed]
    if len(kept) >= room:
        return _thinned(kept, room)
    return sorted([*kept, *_thinned(rest, room - len(kept))])


def _thinned(indices: Sequence[int], count: int) -> list[int]:
    return [indices[pick] for pick in np.linspace(0, len(indices) - 1, count).round().astype(int)]
