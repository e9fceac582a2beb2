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
from rich.console import Console
from rich.text import Text

from stepjepa.inspect.record import KINDS, RowPair, RowRecord, Vector, edges_of, heading, token_label
from stepjepa.utils.text import counted, escaped

_FAINT = "dim"
_BAR = "\u2502"  # between tokens
_BLOCKS = " \u2580\u2584\u2588"  # nothing, upper half, lower half, both
_NARROWEST = 20  # columns for tokens, and for the mask, at least
_MOST_VECTORS = 6  # pairs of vectors that are written out
_MOST_TERMS = 6  # states of a vector that are


def make_console(file: IO[str] | None = None, width: int | None = None) -> Console:
    """A console that writes colour to terminals only, and none where NO_COLOR is set."""
    colours: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"
    return Console(file=file, width=width, highlight=False, markup=False, emoji=False, color_system=colours)


def draw(
    records: Sequence[RowRecord],
    console: Console,
    title: str = "",
    packing: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> None:
    """Print rows, one below the other. The lines `packing` come before the `notes`."""
    first = [title, records[0].counts] if len(records) == 1 else [title]
    console.print(Text(escaped(": ".join(filter(None, first))), style="bold"))
    for line in packing:
        console.print(Text(escaped(line)))
    for note in notes:
        console.print(Text(escaped(note), style="yellow"))
    console.print()
    for kind, (letter, meaning, style, *_) in KINDS.items():
        if any(kind in record.kinds for record in records):
            console.print(Text(f"  {letter} {meaning}", style=style))
    for number in range(len(records)):
        console.print()
        if len(records) > 1:
            console.print(Text(heading(records, number), style="bold"))
            console.print(records[number].counts, end="\n\n")
        for row_line in _row_lines(records[number], console.width):
            # Drawn lines are filled to the width; a single token may be wider.
            console.print(row_line, soft_wrap=bool(row_line.no_wrap))


def _row_lines(record: RowRecord, width: int) -> Iterator[Text]:
    yield from token_lines(record, width)
    yield Text()
    edges = edges_of(record.labelled)
    stretches = [_range(edge) for edge in zip(edges[::2], edges[1::2], strict=True)]
    where = f": {', '.join(stretches)}" if stretches else ""
    yield Text(f"LM loss on {counted(int(record.labelled.sum()), 'token')}{where}")
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
        line = Text()
        used = room + 1  # cells of the line; the first token begins a new one
        for index in range(start, stop):
            style = KINDS[record.kinds[index]].style
            label = token_label(record.texts[index])
            tag = f" {tags[index]}" if index in tags else ""
            needed = cell_len(label) + cell_len(tag) + 1
            if used and used + needed > room:
                if index > start:
                    yield line
                line, used = Text(no_wrap=True), 0
                first = name if index == start else ""
                line.append(f"{first:<{column}}  ", style=KINDS[record.kinds[start]].style)
                line.append(f"{index:>5}  {record.positions[index]:>8}  ", style=_FAINT)
            else:
                line.append(_BAR, style=_FAINT)
            line.append(label, style=f"{style} underline" if index in record.marked else style)
            line.append(tag, style="italic")
            used += needed
        yield line


def _tags(record: RowRecord) -> dict[int, str]:
    """What is written after a token: where a source view or a sampled span ends, and what is read there."""
    marks: dict[int, dict[str, list[str]]] = {}
    for pair in record.pairs:
        ends = list(pair.ends)
        if pair.views and not pair.views.standalone:
            ends.insert(0, ("end of source", pair.views.source_end))
        for name, index in ends:
            marks.setdefault(index, {}).setdefault(name, []).append(str(pair.number))
    tags = {}
    for index, names in marks.items():
        parts = [f"{name} {', '.join(numbers)}" for name, numbers in names.items()]
        tags[index] = f"\u00ab{'; '.join(parts)}\u00bb"
    return tags


def _pair_lines(record: RowRecord) -> Iterator[Text]:
    """The pairs of views, then those of sums of states."""
    views = [pair for pair in record.pairs if pair.views]
    sums = [pair for pair in record.pairs if not pair.views]
    if views or not sums:
        yield Text("pairs" if views else "pairs: none", style=_FAINT)
    for pair in views:
        yield from _titled(record, pair, _view_lines(record, pair))
    if sums:
        kind = "pairs" if sums[0].arrow else "spans" if sums[0].ends else "vectors"
        yield Text(f"{kind} (h: the state of a token)", style=_FAINT)
    for pair in sums[:_MOST_VECTORS]:
        yield from _titled(record, pair, map(Text, _sum_lines(record, pair)))
    if len(sums) > _MOST_VECTORS:
        yield Text(f"  and {len(sums) - _MOST_VECTORS} more")


def _titled(record: RowRecord, pair: RowPair, lines: Iterator[Text]) -> Iterator[Text]:
    example = f"example {pair.example}, " if record.batch > 1 else ""
    title = f"  {example}pair {pair.number}  "
    for line in lines:
        yield Text(title).append(line)
        title = " " * len(title)


def _view_lines(record: RowRecord, pair: RowPair) -> Iterator[Text]:
    """Where the source and the target are, and where they are read."""
    assert pair.views
    views = pair.views
    reads = []
    for (_, last), side in zip(pair.ends, (pair.source, pair.target), strict=True):
        one_state = len(side.terms) == 1
        reads.append(_token(record, last) if one_state else f"all its tokens: {_formula(record, side)}")
    source_read, target_read = reads

    where = f"source ends at {_token(record, views.source_end)}"
    if views.source_segment and views.standalone:
        where = f"source {_range(views.source_segment)}"
    elif views.source_segment:
        where += f" (row {_range(views.source_segment)})"
    yield Text(f"{where}, read at {source_read}", style=KINDS["source"].style)

    where = f"target {_range(views.copy)}"
    if views.original == views.copy:
        where += " (isolated in its place)"
    elif views.original:
        where += f" (on the trunk {_range(views.original)})"
    yield Text(f"{where}, read at {target_read}", style=KINDS["target"].style)


def _sum_lines(record: RowRecord, pair: RowPair) -> Iterator[str]:
    """What was sampled, the vectors, and how they are compared."""
    if pair.ends:
        yield ", ".join(f"{name} = {_token(record, index)}" for name, index in pair.ends)
    vectors = [pair.source, pair.target]
    if pair.total:
        vectors = [pair.total, pair.target, pair.source]
    column = max(len(vector.name) for vector in vectors)
    for vector in vectors:
        yield f"{vector.name:<{column}}  {_formula(record, vector)}"
    source = _named_side(pair.source.name, "source")
    target = _named_side(pair.target.name, "target")
    weight = f", weight {pair.weight:.3g}" if pair.weight != 1 else ""
    yield f"compared: {source} with {target}{weight}"


def _named_side(name: str, side: str) -> str:
    """The name of a vector, and which side of a pair it is where the name does not say so."""
    return name if name == side else f"{name} ({side})"


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

    # Two rows of the mask are one line of half blocks.
    visible = record.visible[np.ix_(shown, shown)].astype(int)
    rows = np.pad(visible, ((0, len(shown) % 2), (0, 0)))
    blocks = rows[::2] + 2 * rows[1::2]
    for number, line_blocks in enumerate(blocks.tolist()):
        upper = 2 * number
        line = Text(no_wrap=True).append(f"{shown[upper]:>6} ", style=_FAINT)
        for kind in kinds[upper : upper + 2]:
            line.append(kind.letter, style=kind.style)
        line.append(" " * (10 - len(line)))
        for kind, block in zip(kinds, line_blocks, strict=True):
            line.append(_BLOCKS[block], style=kind.style)
        line.rstrip()
        yield line


def shown_positions(record: RowRecord, room: int) -> list[int]:
    """At most `room` positions of the row in order: all, or those that matter most and the others thinned evenly."""
    everything = range(len(record))
    if len(record) <= room:
        return list(everything)
    needed = set(record.readouts)
    for pair in record.pairs:
        if pair.views:
            needed.add(pair.views.source_end)
    for index, kind in enumerate(record.kinds):
        if kind == "predictor":
            needed.add(index)
    for start, stop in record.sections:
        needed |= {start, stop - 1}
    kept = _thinned(sorted(needed), min(room, len(needed)))
    rest = [index for index in everything if index not in needed]
    more = _thinned(rest, room - len(kept))
    return sorted([*kept, *more])


def _thinned(indices: Sequence[int], count: int) -> list[int]:
    return [indices[pick] for pick in np.linspace(0, len(indices) - 1, count).round().astype(int)]
