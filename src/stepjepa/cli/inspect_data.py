"""The rows of a data file that ``stepjepa inspect`` looks at: where they stand, and the examples that each becomes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from stepjepa.errors import ConfigError, DataError
from stepjepa.training.options import JEPAOptions


class Found(NamedTuple):
    """A row of a data set.

    Attributes:
        number: counted from 0.
        place: where it stands, in words.
        row: what stands there.
    """

    number: int
    place: str
    row: Any


def find_row(source: Any, number: int) -> Found:
    """Row `number`, counted from 0.

    Raises:
        ConfigError: no such row.
        DataError: the source cannot be read.
    """
    from stepjepa.data.sources import RowSource

    if number < 0:
        raise ConfigError(f"--row {number}: rows are counted from 0")
    rows = RowSource(source)
    count = 0
    for label, row in rows:
        if count == number:
            return Found(number, rows.place(label), row)
        count += 1
    if not count:
        raise DataError(f"{rows.name}: the file or data set is empty; it needs at least one row")
    raise ConfigError(
        f"row {number}: {rows.name} has {count:,} rows, counted from 0, so the last one is row {count - 1}"
    )


def following(source: Any, found: Found) -> Iterator[Found]:
    """`found` and the rows behind it."""
    from stepjepa.data.sources import RowSource

    yield found
    rows = RowSource(source)
    for number, (label, row) in enumerate(rows):
        if number > found.number:
            yield Found(number, rows.place(label), row)


def tokenizer_for(source: Any, model_name: str, method: JEPAOptions) -> Any:
    """The tokenizer of a run; a preset's is trained on the file, whose columns `method` may name.

    Raises:
        ConfigError: it cannot be loaded.
    """
    from stepjepa.data.texts import texts_of
    from stepjepa.modeling.load import load_tokenizer
    from stepjepa.training.encoding import pair_columns

    return load_tokenizer(model_name, texts_of([source], pair_columns(method)))


def row_spans(found: Found, example: Any, tokenizer: Any, renderer: Any, settings: Any) -> Any:
    """Names for the trunk of a row's example."""
    from stepjepa.data.chat import ChatRenderer
    from stepjepa.data.encoder import read_chat
    from stepjepa.data.streams import is_stream
    from stepjepa.inspect.spans import TrunkSpan, trunk_spans

    if settings.columns is None and is_stream(found.row):
        return [TrunkSpan("text", 0, len(example.input_ids))]
    chat = read_chat(found.row, renderer or ChatRenderer(tokenizer), settings)
    return trunk_spans(tokenizer, chat.rendered, chat.steps and chat.steps.spans, example.input_ids)


def encode_row(found: Found, encoder: Any) -> tuple[Any, Any]:
    """The examples that one row becomes, and the report on it.

    Args:
        encoder: of the data set (`data.encoder.RowEncoder`).

    Raises:
        DataError: training would skip the row, or stop at it.
    """
    encoded = encoder([(found.place, found.row)])
    for first in encoded.report.first_skipped.values():
        raise DataError(f"{first}; training skips this row")
    return encoded.store, encoded.report
