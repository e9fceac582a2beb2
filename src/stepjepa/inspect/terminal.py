"""Draw the record of a row in a terminal: tokens by segment, pairs with their readouts, and the mask in half blocks.

```
segment   index  position  tokens
step 1       12        12  First|,|·add|.|..  <end of source 1>
branch 1     40        17  <|predictor_1|>|<|predictor_2|> <source 1>
target 1     42        19  Then|·double|.  <target 1>
```

Text from the data reaches rich only as `Text`, so rich's markup in it does nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from stepjepa.inspect.record import KINDS, RowRecord, edges_of, evenly, stretch, token_label
from stepjepa.utils.text import counted, escaped

_FAINT = "dim"
# Between tokens.
_BAR = "\u2502"
# Two rows of the mask in one character, by upper + 2 * lower: empty, upper half, lower half, full.
_BLOCKS = " \u2580\u2584\u2588"
# Maximum number of pairs that are listed; only the number of the others is shown.
_MOST_PAIRS = 12


def draw(record: RowRecord, console: Console, title: str, notes: Sequence[str]) -> None:
    """Print a row."""
    console.print(Text(escaped(f"{title}: {record.counts}"), style="bold"))
    for note in notes:
        console.print(Text(escaped(note), style="yellow"))
    console.print()
    for name, kind in KINDS.items():
        if name in record.kinds:
            console.print(Text(f"  {kind.letter} {kind.meaning}", style=kind.style))
    console.print()
    console.print(_tokens(record))
    for lines in (_loss_lines(record), _pair_lines(record), mask_lines(record, console.width)):
        console.print()
        for line in lines:
            # Lines of the mask fill the width exactly, so rich must not wrap them.
            console.print(line, soft_wrap=bool(line.no_wrap))


def _tokens(record: RowRecord) -> Table:
    """The tokens, section by section, with the index in the row and the position of the section's first token."""
    table = Table(box=None, pad_edge=False, header_style=_FAINT, padding=(0, 2, 0, 0))
    table.add_column("segment", no_wrap=True)
    table.add_column("index", justify="right", no_wrap=True, style=_FAINT)
    table.add_column("position", justify="right", no_wrap=True, style=_FAINT)
    table.add_column("tokens", overflow="fold")
    # One line per section; spaces and line breaks inside tokens are shown as visible characters.
    for start, stop in record.sections:
        line = Text()
        for index in range(start, stop):
            if index > start:
                line.append(_BAR, style=_FAINT)
            line.append(token_label(record.texts[index]), style=KINDS[record.kinds[index]].style)
            tags = record.tags.get(index)
            if tags:
                line.append(f" \u00ab{'; '.join(tags)}\u00bb", style="italic")
        table.add_row(
            Text(escaped(record.names[start])), str(start), str(record.positions[start]), line
        )
    return table


def _loss_lines(record: RowRecord) -> Iterator[Text]:
    edges = edges_of(record.labelled)
    stretches = [stretch(start, stop) for start, stop in zip(edges[::2], edges[1::2], strict=True)]
    where = f": {', '.join(stretches)}" if stretches else ""
    yield Text(f"LM loss on {counted(int(record.labelled.sum()), 'token')}{where}")


def _pair_lines(record: RowRecord) -> Iterator[Text]:
    """Two lines for each of the first pairs: its source and its target."""
    heading = "pairs (h: the state of a token)" if record.pairs else "pairs: none"
    yield Text(heading, style=_FAINT)
    for pair in record.pairs[:_MOST_PAIRS]:
        title = f"  {pair.title}  "
        source, target = record.sides(pair)
        indent = " " * len(title)
        yield Text(title).append(source, style=KINDS["source"].style)
        yield Text(indent).append(target, style=KINDS["target"].style)
    left_out = len(record.pairs) - _MOST_PAIRS
    if left_out > 0:
        yield Text(f"  and {left_out} more")


def mask_lines(record: RowRecord, width: int) -> Iterator[Text]:
    """Who sees whom, two query rows per line. A row wider than `width` is sampled evenly, as the first line then states."""
    # Ten columns on the left show the query's position and the letters of both queries.
    shown = evenly(len(record), max(width, 30) - 10)
    where = "" if len(shown) == len(record) else f"; {len(shown)} of {len(record)} positions"
    yield Text(
        f"who sees whom (down: who looks, two per line; across: who is seen{where})", style=_FAINT
    )
    kinds = [KINDS[record.kinds[index]] for index in shown]
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
