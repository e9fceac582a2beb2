"""The rows of a data file that ``stepjepa inspect`` looks at: where they stand, and the examples that each becomes."""

from __future__ import annotations

import logging
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
        first: the first row of the data set.
    """

    number: int
    place: str
    row: Any
    first: Any


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
    count, first = 0, None
    for label, row in rows:
        first = row if count == 0 else first
        if count == number:
            return Found(number, rows.place(label), row, first)
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
            yield Found(number, rows.place(label), row, found.first)


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
    from stepjepa.data.sources import row_to_messages
    from stepjepa.data.streams import is_stream
    from stepjepa.inspect.spans import TrunkSpan, trunk_spans

    if settings.columns is None and is_stream(found.row):
        return [TrunkSpan("text", 0, len(example.input_ids))]
    messages = row_to_messages(found.row, settings.system_prompt, settings.columns)
    steps = settings.splitter if settings.objective == "step_jepa" else None
    return trunk_spans(tokenizer, renderer or ChatRenderer(tokenizer), messages, steps, example.input_ids)


def settle(source: Any, method: JEPAOptions) -> list[str]:
    """Settle ``step_splitter=auto`` on the data set as training does, and what training says about it."""
    from stepjepa.data.sources import RowSource
    from stepjepa.training.encoding import logger, settle_splitter

    said: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    shown, logger.handlers = logger.handlers, [handler]  # said once: by the caller
    try:
        settle_splitter(RowSource(source), method)
    finally:
        logger.handlers = shown
    return said


def encode_row(found: Found, tokenizer: Any, renderer: Any, settings: Any) -> tuple[Any, Any]:
    """The examples that one row becomes, and the report on it.

    Raises:
        DataError: training would skip the row, or stop at it.
    """
    from stepjepa.data.chat import RowError
    from stepjepa.data.encode import encode_dataset
    from stepjepa.data.sources import row_to_messages
    from stepjepa.data.streams import is_stream

    try:
        if is_stream(found.row) and not is_stream(found.first):
            row_to_messages(found.row, settings.system_prompt, settings.columns)  # a data set of chats has no texts
        return encode_dataset([found.row], tokenizer, renderer, settings)
    except RowError as error:
        raise DataError(f"{found.place}: {error}; training skips this row") from None
    except DataError as error:
        message = str(error)
        skipped = "; training skips this row" if message.startswith("no row can be trained on") else ""
        raise DataError(f"{found.place}: {message.rpartition('list row 0: ')[2]}{skipped}") from None
