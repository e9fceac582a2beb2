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
from itertools import zip_longest
from typing import IO

import numpy as np
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from stepjepa.inspect.record import SAMPLED_TUBES, PairRecord, Readout, RowRecord, TubeRecord, Vector
from stepjepa.inspect.style import ASCII, KINDS, UNICODE, Glyphs, counted, counts_of, token_label
from stepjepa.utils.text import escaped

_FAINT = "dim"
_NARROWEST = 20  # columns for tokens, and for the mask, at least
_NARROWEST_ROW = 60  # columns for a row next to another
_GAP = 3  # columns between rows side by side
_MOST_TUBES = 6  # pairs of vectors that are written out
_MOST_TERMS = 6  # states of a vector that are


def make_console(file: IO[str] | None = None, width: int | None = None) -> Console:
    """A console that writes colour to terminals only, and none where NO_COLOR is set."""
    console = Console(file=file, width=width, highlight=False, markup=False, emoji=False)
    if console.is_terminal and not os.environ.get("NO_COLOR"):
        return console
    terminal = None if console.is_terminal else False
    return Console(
        file=file, width=width, highlight=False, markup=False, emoji=False, force_terminal=terminal, color_system=None
    )


def draw(
    rows: Sequence[tuple[str, RowRecord]],
    console: Console,
    title: str = "",
    notes: Sequence[str] = (),
    packing: Sequence[str] = (),
) -> None:
    """Print rows: several of them side by side as far as the width allows, else one below the other.

    Args:
        rows: (heading, record), at least one.
        console: for instance `make_console`'s; its encoding decides between half blocks and plain ASCII.
        title: first line; of a single row its counts follow.
        notes: further lines below the title.
        packing: lines on how the rows were packed, above the notes.
    """
    glyphs = UNICODE if console.encoding.lower().startswith("utf") else ASCII
    alone = len(rows) == 1
    titles = [title, *([counts_of(rows[0][1])] if alone else [])]
    for text, style in [(": ".join(filter(None, titles)), "bold"), *((line, "") for line in packing)]:
        console.print(Text(escaped(text), style=style))
    for note in notes:
        console.print(Text(escaped(note), style="yellow"))
    console.print()
    for kind, (letter, meaning, style, *_) in KINDS.items():
        if any(kind in record.kinds for _, record in rows):
            console.print(Text(f"  {letter} {meaning}", style=style))
    columns = max(min(len(rows), (console.width + _GAP) // (_NARROWEST_ROW + _GAP)), 1)
    width = (console.width + _GAP) // columns - _GAP
    for first in range(0, len(rows), columns):
        console.print()
        blocks = []
        for heading, record in rows[first : first + columns]:
            head = [] if alone else [Text(escaped(heading), style="bold"), Text(counts_of(record)), Text()]
            block = [*head, *_row_lines(record, width, glyphs)]
            # Drawn lines are filled to the width already; only a token that is wider than that goes beyond it.
            blocks.append([part for line in block for part in _fitted(line, console, width)])
        for cells in zip_longest(*blocks, fillvalue=Text()):
            line = Text()
            for number, cell in enumerate(cells):
                line.append(" " * (number * (width + _GAP) - cell_len(line.plain)))
                line.append_text(cell)
            line.rstrip()
            console.print(line, soft_wrap=True)


def _fitted(line: Text, console: Console, width: int) -> Sequence[Text]:
    return [line] if line.no_wrap or cell_len(line.plain) <= width else list(line.wrap(console, width))


def _row_lines(record: RowRecord, width: int, glyphs: Glyphs) -> Iterator[Text]:
    yield from token_lines(record, width, glyphs)
    yield Text()
    edges = np.flatnonzero(np.diff(record.labelled, prepend=False, append=False)).reshape(-1, 2).tolist()
    where = ", ".join(_range(first, stop) for first, stop in edges)
    yield Text(f"LM loss on {counted(int(record.labelled.sum()), 'token')}{': ' if where else ''}{where}")
    yield Text()
    yield from _tube_lines(record, glyphs) if record.tube else _pair_lines(record, glyphs)
    yield Text()
    yield from mask_lines(record, width, glyphs)


def token_lines(record: RowRecord, width: int, glyphs: Glyphs = UNICODE) -> Iterator[Text]:
    """The tokens, section by section, with the row index and the position of each line's first token."""
    names = [escaped(record.section_name(start)) for start, _ in record.sections]
    column = max(map(len, [*names, "segment"]))
    yield Text(f"{'segment':<{column}}  index  position  tokens", style=_FAINT)
    room = max(width - column - 19, _NARROWEST)
    tags = _tags(record, glyphs)
    for (start, stop), name in zip(record.sections, names, strict=True):
        if record.kinds[start] == "padding":
            yield Text(f"{name:<{column}}  {start:>5}  {0:>8}  {stop - start} in all", style=_FAINT)
            continue
        for first, cells in _filled(record, range(start, stop), room, tags, glyphs):
            line = Text(no_wrap=True).append(f"{name:<{column}}  ", style=KINDS[record.kinds[start]].style)
            line.append(f"{first:>5}  {record.positions[first]:>8}  ", style=_FAINT)
            line.append_text(cells)
            yield line
            name = ""


def _tags(record: RowRecord, glyphs: Glyphs) -> dict[int, str]:
    """What is said after a token: where a source view or a sampled span ends, and what is read there."""
    said: dict[int, dict[str, list[str]]] = {}
    for pair in record.pairs:
        if not pair.standalone:
            said.setdefault(pair.source_end.index, {}).setdefault("end of source", []).append(str(pair.number))
    for index, read in record.readouts.items():
        for what, own in read:
            said.setdefault(index, {}).setdefault(what, []).append(str(own.number))
    left, right = glyphs.tag
    return {
        index: left + "; ".join(f"{what} {', '.join(numbers)}" for what, numbers in words.items()) + right
        for index, words in said.items()
    }


def _filled(
    record: RowRecord, tokens: range, room: int, tags: dict[int, str], glyphs: Glyphs
) -> Iterator[tuple[int, Text]]:
    """(index of the first token, line) for lines of at most `room` cells; a longer token has a line of its own."""
    first, line, used = tokens.start, Text(), 0
    for index in tokens:
        label, tag = token_label(record.texts[index], glyphs), tags.get(index, "")
        needs = cell_len(label) + 1 + (cell_len(tag) + 1 if tag else 0)
        if used and used + needs > room:
            yield first, line
            first, line, used = index, Text(), 0
        if used:
            line.append(glyphs.bar, style=_FAINT)
        style = KINDS[record.kinds[index]].style
        line.append(label, style=f"{style} underline" if index in record.readouts else style)
        if tag:
            line.append(f" {tag}", style="italic")
        used += needs
    yield first, line


def _pair_lines(record: RowRecord, glyphs: Glyphs) -> Iterator[Text]:
    """Two lines a pair: its source and its target."""
    yield Text("pairs" if record.pairs else "pairs: none", style=_FAINT)
    for pair in record.pairs:
        title = _title(record, pair)
        line = Text(title)
        if pair.standalone and pair.source_segment:
            line.append(f"source {_range(*pair.source_segment)}", style=KINDS["source"].style)
        else:
            line.append(f"source ends at {_shown(pair.source_end, glyphs)}", style=KINDS["source_end"].style)
            if pair.source_segment:
                line.append(f" (row {_range(*pair.source_segment)})", style=KINDS["source"].style)
        line.append(", read at ")
        line.append(_shown(pair.source, glyphs), style=KINDS[record.kinds[pair.source.index]].style)
        yield line
        style = KINDS[record.kinds[pair.target.index]].style
        line = Text(" " * len(title)).append(f"target {_range(*pair.copy)}", style=style)
        if pair.original == pair.copy:
            line.append(" (isolated in its place)")
        elif pair.original:
            line.append(f" (on the trunk {_range(*pair.original)})", style=KINDS["original"].style)
        line.append(", read at ")
        line.append(_shown(pair.target, glyphs), style=style)
        yield line


def _tube_lines(record: RowRecord, glyphs: Glyphs) -> Iterator[Text]:
    mode = record.tube[0].mode
    yield Text(f"{'spans' if mode in SAMPLED_TUBES else 'vectors'} (h: the state of a token)", style=_FAINT)
    for pair in record.tube[:_MOST_TUBES]:
        title = _title(record, pair)
        vectors = [vector for vector in (pair.total, pair.target, pair.source) if vector]
        if mode != "span":
            vectors.reverse()
        column = max(len(vector.name) for vector in vectors)
        lines = [", ".join(f"{name} = {_shown(term, glyphs)}" for name, term in pair.ends)] if pair.ends else []
        lines += [f"{vector.name:<{column}}  {_vector(record, vector, glyphs)}" for vector in vectors]
        weight = f", weight {pair.weight:.3g}" if pair.weight != 1 else ""
        lines.append(f"compared: {pair.source.name} (source) with {pair.target.name} (target){weight}")
        for line in lines:
            yield Text(title + line)
            title = " " * len(title)
    if len(record.tube) > _MOST_TUBES:
        yield Text(f"  and {len(record.tube) - _MOST_TUBES} more")


def _vector(record: RowRecord, vector: Vector, glyphs: Glyphs) -> str:
    if not vector.terms:
        return "zero"
    where = ", ".join(
        f'{_range(first, stop)} ("{token_label(record.texts[first], glyphs)}"'
        + (f' .. "{token_label(record.texts[stop - 1], glyphs)}")' if stop - first > 1 else ")")
        for first, stop in vector.covered
    )
    if all(term.coefficient > 0 for term in vector.terms):
        return f"mean of h over {where}"
    if len(vector.terms) > _MOST_TERMS:
        return where
    # From left to right as they are subtracted: an end, then its start.
    ordered = sorted(enumerate(vector.terms), key=lambda item: (item[0] // 2, -item[0]))
    formula = " ".join(
        f"{'-' if term.coefficient < 0 else '+'} {_factor(term.coefficient)}h[{term.index}]" for _, term in ordered
    )
    return f"{formula.removeprefix('+ ')}: {where}"


def _factor(coefficient: float) -> str:
    return "" if abs(coefficient) == 1 else f"{abs(coefficient):.3g} "


def _title(record: RowRecord, pair: PairRecord | TubeRecord) -> str:
    return f"  example {pair.example}, pair {pair.number}  " if record.batch > 1 else f"  pair {pair.number}  "


def _shown(token: Readout, glyphs: Glyphs) -> str:
    return f'{token.index} "{token_label(token.text, glyphs)}"'


def _range(start: int, stop: int) -> str:
    return f"{start}-{stop - 1}" if stop - start > 1 else f"{start}"


def mask_lines(record: RowRecord, width: int, glyphs: Glyphs = UNICODE) -> Iterator[Text]:
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
    seen = record.visible[np.ix_(shown, shown)]
    if len(shown) % 2:
        seen = np.vstack([seen, np.zeros_like(seen[:1])])
    for upper in range(0, len(shown), 2):
        line = Text(no_wrap=True).append(f"{shown[upper]:>6} ", style=_FAINT)
        for kind in kinds[upper : upper + 2]:
            line.append(kind.letter, style=kind.style)
        line.append(" " * (10 - len(line)))
        for key, kind in enumerate(kinds):
            line.append(glyphs.blocks[int(seen[upper, key]) + 2 * int(seen[upper + 1, key])], style=kind.style)
        line.rstrip()
        yield line


def shown_positions(record: RowRecord, room: int) -> list[int]:
    """At most `room` positions of the row in order: all, or those that matter most and the others thinned evenly."""
    everything = range(len(record))
    if len(record) <= room:
        return list(everything)
    needed = {*record.readouts, *(pair.source_end.index for pair in record.pairs)}
    needed |= {index for index, kind in enumerate(record.kinds) if kind == "predictor"}
    for start, stop in record.sections:
        needed |= {start, stop - 1}
    kept, rest = sorted(needed), [index for index in everything if index not in needed]
    if len(kept) >= room:
        return _thinned(kept, room)
    return sorted([*kept, *_thinned(rest, room - len(kept))])


def _thinned(indices: Sequence[int], count: int) -> list[int]:
    picks = np.linspace(0, len(indices) - 1, count).round().astype(int)
    return [indices[pick] for pick in picks]
