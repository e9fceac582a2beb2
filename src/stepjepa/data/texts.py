"""The texts of data sets, for a tokenizer that is trained on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Any

from stepjepa.data.chat import RowError
from stepjepa.data.sources import PairColumns, RowSource, row_to_messages
from stepjepa.data.streams import is_stream
from stepjepa.utils.text import lone_surrogate

# Rows that a preset's tokenizer is trained on, at most.
TOKENIZER_ROWS = 50_000


def texts_of(sources: Sequence[Any], columns: PairColumns | None = None, limit: int = TOKENIZER_ROWS) -> Iterator[str]:
    """The texts of the first rows of some data sets (what `RowSource` takes), the same number of each.

    Args:
        columns: the two columns that make a chat, None for the known names.
        limit: rows in all.
    """
    each = -(-limit // len(sources))
    rows = [source if isinstance(source, RowSource) else RowSource(source) for source in sources]
    for _, row in chain.from_iterable(islice(source, each) for source in rows):
        if columns is None and is_stream(row) and isinstance(row.get("text"), str):
            if lone_surrogate(row["text"]) is None:  # a row with one is counted as unusable when it is encoded
                yield row["text"]
            continue
        try:
            messages = row_to_messages(row, None, columns)
        except RowError:
            continue
        yield from (message["content"] for message in messages)
