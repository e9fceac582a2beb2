"""What is said about a row beside its picture: counts, legend, labels, pairs and the semantic tube's vectors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from rich.text import Text

from stepjepa.inspect.glyphs import FAINT, LETTERS, STYLES, Glyphs, token_label
from stepjepa.inspect.model import KINDS, RowRecord
from stepjepa.inspect.pairs import PairRecord, Readout
from stepjepa.inspect.tube import DRAWN, Term, TubeRecord, Vector
from stepjepa.utils.text import escaped

_MOST_TUBES = 6  # pairs of vectors that are spelled out
_MOST_TERMS = 6  # states of a vector that are


def head_lines(title: str, packing: Sequence[str], notes: Sequence[str]) -> Iterator[Text]:
    """Title, then how the rows are packed, then the notes."""
    yield Text(escaped(title), style="bold")
    for line in packing:
        yield Text(escaped(line))
    for note in notes:
        yield Text(escaped(note), style="yellow")


def counts_of(record: RowRecord) -> str:
    """How many tokens of which kind the row has, and how many pairs."""
    kinds = record.kinds
    trunk = sum(name.startswith("trunk: ") for name in record.names)
    parts = [f"{trunk} on the trunk ({int(record.labelled.sum())} labelled)"]
    for kind, words in (
        ("predictor", "predictor"),
        ("source", "in sources of their own"),
        ("target", "in isolated targets"),
        ("padding", "of padding"),
    ):
        count = kinds.count(kind)
        plural = "s" if kind == "predictor" and count != 1 else ""
        parts += [f"{count} {words}{plural}"] if count else []
    pairs = _counted(len(record.pairs), "pair")
    if record.tube:
        pairs = _counted(len(record.tube), "span" if record.tube[0].mode in DRAWN else "pair of vectors")
    return f"{len(record)} {'positions' if 'padding' in kinds else 'tokens'}: {', '.join(parts)}; {pairs}"


def legend_lines(*records: RowRecord) -> Iterator[Text]:
    """A line for every kind of token that the rows have."""
    for kind, words in KINDS.items():
        if any(kind in record.kinds for record in records):
            line = Text(f"  {LETTERS[kind]} ", style=STYLES[kind])
            line.append(words, style=STYLES[kind])
            yield line


def label_lines(record: RowRecord) -> Iterator[Text]:
    """Which tokens the LM loss is computed on."""
    edges = np.flatnonzero(np.diff(record.labelled, prepend=False, append=False)).reshape(-1, 2).tolist()
    where = ", ".join(_range(first, stop) for first, stop in edges)
    yield Text(f"LM loss on {_counted(int(record.labelled.sum()), 'token')}{': ' if where else ''}{where}")


def pair_lines(record: RowRecord, glyphs: Glyphs) -> Iterator[Text]:
    """Two lines a pair: its source and its target."""
    if record.tube:
        yield from _tube_lines(record, glyphs)
        return
    yield Text("pairs" if record.pairs else "pairs: none", style=FAINT)
    for pair in record.pairs:
        title = _title(record, pair)
        line = Text(title)
        if pair.apart and pair.source_segment:
            line.append(f"source {_range(*pair.source_segment)}", style=STYLES["source"])
        else:
            line.append(f"source ends at {_shown(pair.source_end, glyphs)}", style=STYLES["source_end"])
            if pair.source_segment:
                line.append(f" (row {_range(*pair.source_segment)})", style=STYLES["source"])
        line.append(", read at ")
        line.append(_shown(pair.source, glyphs), style=STYLES[record.kinds[pair.source.index]])
        yield line
        kind = record.kinds[pair.target.index]
        line = Text(" " * len(title))
        line.append(f"target {_range(*pair.copy)}", style=STYLES[kind])
        if pair.original == pair.copy:
            line.append(" (isolated in its place)")
        elif pair.original:
            line.append(" (on the trunk ")
            line.append(_range(*pair.original), style=STYLES["original"])
            line.append(")")
        line.append(", read at ")
        line.append(_shown(pair.target, glyphs), style=STYLES[kind])
        yield line


def _tube_lines(record: RowRecord, glyphs: Glyphs) -> Iterator[Text]:
    mode = record.tube[0].mode
    yield Text("spans (h: the state of a token)" if mode in DRAWN else "vectors (h: the state of a token)", style=FAINT)
    for drawn in record.tube[:_MOST_TUBES]:
        title = _title(record, drawn)
        vectors = [vector for vector in (drawn.whole, drawn.target, drawn.source) if vector]
        if mode != "span":
            vectors.reverse()
        column = max(len(vector.name) for vector in vectors)
        lines = [", ".join(f"{name} = {_shown(term, glyphs)}" for name, term in drawn.ends)] if drawn.ends else []
        lines += [f"{vector.name:<{column}}  {_vector(record, vector, glyphs)}" for vector in vectors]
        weight = f", weight {drawn.weight:.3g}" if drawn.weight != 1 else ""
        lines.append(f"compared: {drawn.source.name} (source) with {drawn.target.name} (target){weight}")
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


def _shown(token: Readout | Term, glyphs: Glyphs) -> str:
    return f'{token.index} "{token_label(token.text, glyphs)}"'


def _range(start: int, stop: int) -> str:
    return f"{start}-{stop - 1}" if stop - start > 1 else f"{start}"


def _counted(count: int, what: str) -> str:
    noun, *rest = what.split(" ", 1)
    return " ".join([str(count), noun if count == 1 else f"{noun}s", *rest])
