"""From a whole data set to its examples, in this process or in several."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import islice
from typing import Any

from stepjepa.data.chat import ChatRenderer
from stepjepa.data.encoder import PlacedRow, RowEncoder
from stepjepa.data.examples import ExampleStore
from stepjepa.data.options import EncodeOptions
from stepjepa.data.report import DataReport
from stepjepa.data.sources import RowSource, listed_columns
from stepjepa.data.streams import is_stream
from stepjepa.errors import DataError
from stepjepa.utils.parallel import mapped

CHUNK_ROWS = 1000


def encode_dataset(
    source: Any,
    tokenizer: Any,
    renderer: ChatRenderer | None,
    options: EncodeOptions,
    split: str = "train",
    processes: int = 1,
) -> tuple[ExampleStore, DataReport]:
    """Read, render, tokenise and pair a whole data set.

    The first row decides whether the data set is one of chats or of plain text.

    Args:
        source: what `RowSource` takes.
        tokenizer: a Hugging Face tokenizer.
        renderer: None where the tokenizer has no chat template, which plain text does not need.
        processes: that encode; the examples are the same for any number.

    Returns:
        The examples and the report on them.

    Raises:
        DataError: nothing to read, nothing left to train on, or with ``strict`` the first row that cannot be used.
        ConfigError: a tokenizer whose tokens cannot be traced to the text, or chats without a template.
    """
    rows = source if isinstance(source, RowSource) else RowSource(source, split)
    encoder = make_encoder(rows, tokenizer, renderer, options)
    report, stores, digest = DataReport(rows.name, files=rows.files), [], hashlib.sha256()
    for _, encoded in mapped(encoder, _chunks(rows), processes, "dataset_num_proc"):
        report.add(encoded.report)
        stores.append(encoded.store)
        digest.update(encoded.digest)
    report.fingerprint = digest.hexdigest()[:16]
    if not report.examples:
        raise nothing_kept(report)
    store = ExampleStore.joined(stores)
    report.set_lengths(store.lengths)
    return store, report


def make_encoder(rows: RowSource, tokenizer: Any, renderer: ChatRenderer | None, options: EncodeOptions) -> RowEncoder:
    """The encoder of a data set, whose first row decides whether it is one of chats or of plain text.

    Raises:
        DataError: no row at all, or plain text for an objective that needs chats.
        ConfigError: a tokenizer that cannot be used.
    """
    first = next(rows.rows(), None)
    if first is None:
        raise DataError(f"{rows.name}: the file or data set is empty; it needs at least one row")
    number, row = first
    streams = options.columns is None and is_stream(row)
    if streams and options.objective not in ("regular", "split"):
        raise DataError(
            f"{rows.place(number)}: columns found: {listed_columns(row)}; {options.objective} needs chats (messages, "
            "question/answer, prompt/completion or text/code); plain text trains with --objective split or regular"
        )
    return RowEncoder(rows.name, tokenizer, renderer, options, streams)


def nothing_kept(report: DataReport) -> DataError:
    """The error for a data set of which no row can be trained on."""
    first = next(iter(report.first_skipped.values()))
    return DataError(f"no row can be trained on: {report.rows_read} read, all skipped; first: {first}")


def _chunks(rows: RowSource) -> Iterator[tuple[None, list[PlacedRow]]]:
    placed = ((rows.place(number), row) for number, row in rows)
    while chunk := list(islice(placed, CHUNK_ROWS)):
        yield None, chunk
