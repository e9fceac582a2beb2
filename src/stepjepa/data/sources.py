"""Where rows come from: files of JSON, CSV and Parquet, Hub data sets, `datasets.Dataset` objects, lists of dicts.

How a row becomes a chat is in `stepjepa.data.chat`; a row of ``text`` or ``input_ids`` alone is plain text.
"""

from __future__ import annotations

import contextlib
import csv
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from stepjepa.config.values import nearest
from stepjepa.data.chat import row_to_messages
from stepjepa.data.columns import is_stream
from stepjepa.data.options import PairColumns
from stepjepa.errors import DataError, RowError, attempted, said
from stepjepa.utils.files import MAX_LINE_BYTES, digest, line_text, line_value, parse_json, read_lines, unchanged
from stepjepa.utils.text import lone_surrogate

JSON_SUFFIXES = {".jsonl", ".json", ".ndjson"}
FILE_SUFFIXES = JSON_SUFFIXES | {".parquet", ".csv"}
_SAMPLED_BYTES = 2**16


@contextlib.contextmanager
def reading(name: object) -> Iterator[None]:
    """Within this context an `OSError` is a `DataError` that says what cannot be read."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{name}: cannot be read ({error.strerror or error})") from None


def texts_of(sources: Sequence[Any], columns: PairColumns | None = None, limit: int = 50_000) -> Iterator[str]:
    """The texts of the first rows of some data sets (what `RowSource` takes), the same number of each, for a tokenizer
    that is trained on them.

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
        with contextlib.suppress(RowError):
            yield from [message["content"] for message in row_to_messages(row, None, columns)]


@dataclass(frozen=True)
class RowShare:
    """The rows with a number of `start` or more that leaves the remainder `shard` when divided by `shards`."""

    start: int = 0
    shard: int = 0
    shards: int = 1

    def __contains__(self, number: int) -> bool:
        return number >= self.start and number % self.shards == self.shard


EVERY_ROW = RowShare()


class RowSource:
    """Rows with a place to name in messages: ``file.jsonl line 7`` or ``row 7``.

    Args:
        source: a path, a Hub data set's name (``openai/gsm8k:main`` with its configuration), a `datasets.Dataset` or
            `DatasetDict`, or an iterable of rows.
        split: the split of a Hub data set or a `DatasetDict`.
        streaming: load a Hub data set as one that is read while it comes (`datasets.IterableDataset`).

    Attributes:
        name: as it was given.
        file: that is read, None for any other source; `by_line` says whether rows are its lines.

    Raises:
        DataError: nothing there, or nothing that can be read as rows.
    """

    def __init__(self, source: object, split: str = "train", streaming: bool = False):
        self.name = str(source) if isinstance(source, (str, os.PathLike)) else type(source).__name__
        self.file: Path | None = None
        self._rows: Any = ()
        if isinstance(source, (str, os.PathLike)):
            path = Path(os.path.expanduser(source))
            with reading(self.name[:200]):  # a name that no file can have, a folder that may not be looked into
                if path.suffix.lower() in FILE_SUFFIXES and path.is_file():
                    self.file = path
                else:
                    self._rows = _load_dataset(path, self.name, split, streaming)
        elif isinstance(source, Mapping):
            self._rows = _pick_split(source, self.name, split)
        elif isinstance(source, Iterable):
            # What can be read but once is kept: rows are looked at before they are encoded.
            self._rows = list(source) if isinstance(source, Iterator) else source
        else:
            raise DataError(f"data of type {self.name} cannot be read; give a file, a data set or a list of rows")
        self.by_line = self.file is not None and self.file.suffix.lower() != ".parquet" and not _is_array(self.file)

    def place(self, index: int) -> str:
        """The place of row `index` (as `__iter__` numbers it), for messages."""
        return f"{self.name} {'line' if self.by_line else 'row'} {index}"

    @property
    def fingerprint(self) -> str:
        """A digest that tells other data, without reading them: size, first and last bytes of a file; else the name."""
        if self.file is None:
            return digest([self.name.encode()])
        with reading(self.name), open(self.file, "rb") as file:
            first = file.read(_SAMPLED_BYTES)
            size = file.seek(0, os.SEEK_END)
            last_begin = max(0, size - _SAMPLED_BYTES)
            file.seek(last_begin)
            last = file.read()
        return digest([b"%d:" % size, first, last])

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        """(number for `place`, row) of every row. Lines count from 1, rows from 0."""
        return self.rows()

    def rows(self, part: RowShare = EVERY_ROW, strict: bool = True) -> Iterator[tuple[int, Any]]:
        """As `__iter__`, of some of the rows; without `strict` as `file_rows`."""
        if self.file is not None:
            return file_rows(self.file, part, strict)
        return ((number, row) for number, row in enumerate(self._rows) if number in part)


def _load_dataset(path: Path, name: str, split: str, streaming: bool) -> Iterable[Any]:
    suffix = path.suffix.lower()
    if path.is_dir() and not any(path.iterdir()):
        raise DataError(f"{name}: the folder is empty; give a data file or a data set's folder")
    # The Hub knows names of one or two parts only.
    is_path = suffix in FILE_SUFFIXES or path.is_absolute() or name.startswith(".") or len(path.parts) > 2
    if not path.exists() and is_path:
        raise DataError(f"{name}: no such file{_did_you_mean(path)}")
    if path.is_file():
        raise DataError(f"{name}: unknown kind of file; known: {', '.join(sorted(FILE_SUFFIXES))}")
    import datasets

    how = {"streaming": True} if streaming else {}
    try:
        if path.is_dir() and _is_saved(path):
            stored = datasets.load_from_disk(str(path))
            return _pick_split(stored, name, split) if isinstance(stored, Mapping) else stored
        if path.is_dir():
            return datasets.load_dataset(str(path), split=split, **how)
        hub_name, _, configuration = name.partition(":")
        return datasets.load_dataset(hub_name, configuration or None, split=split, **how)
    except DataError:
        raise
    except Exception as error:
        why = said(error.__cause__ or error, lines=1)  # datasets wraps what really went wrong
        if path.exists():
            raise DataError(f"{name}: cannot be read ({why})") from None
        raise DataError(
            f"{name}: neither a file here nor a data set that could be loaded ({why}){_did_you_mean(path)}"
        ) from None


def _is_saved(folder: Path) -> bool:
    """Whether it is what `Dataset.save_to_disk` writes."""
    return (folder / "dataset_info.json").exists() or (folder / "dataset_dict.json").exists()


def _pick_split(source: Mapping[Any, Any], name: str, split: str) -> Iterable[Any]:
    if split in source:
        return source[split]
    splits = ", ".join(map(str, source)) or "none"
    raise DataError(f"{name}: no split {split!r} (found: {splits}); name one of them, or give a list of rows")


def _did_you_mean(path: Path) -> str:
    there = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    near = nearest(path.name, there)
    return f"; did you mean {path.parent / near}?" if near else ""


def file_rows(path: Path, part: RowShare = EVERY_ROW, strict: bool = True) -> Iterator[tuple[int, Any]]:
    """(number, row) of a file that must stay as it is meanwhile. Lines count from 1, rows of an array and of a Parquet file
    from 0. Without `strict` a row that cannot be read is a RowError, and the rows after it follow.

    Raises:
        DataError: the file cannot be read or changes; with `strict` also where a row is broken.
    """
    suffix = path.suffix.lower()
    with reading(path), unchanged(path):
        if suffix == ".csv":
            rows = _csv(path)
        elif suffix == ".parquet":
            rows = _parquet(path)
        else:
            rows = _json_array(path) if _is_array(path) else _json_lines(path, part)
        for number, row in rows:
            if number not in part:
                continue
            if strict and isinstance(row, RowError):
                raise DataError(f"{path} line {number}: {row}")
            yield number, row


def _json_lines(path: Path, part: RowShare) -> Iterator[tuple[int, Any]]:
    with open(path, "rb") as file:
        for number, raw in enumerate(read_lines(file), 1):
            row = attempted(_json_line, raw) if number in part else None
            if row is not None:
                yield number, row


def _json_line(raw: bytes) -> object:
    """The row of a line, None for a blank one."""
    text = line_text(raw)
    if not text:
        return None
    row = line_value(text, raw)
    if row is None:
        raise RowError("not_an_object", "the row is null, not an object with columns")
    return row


def _is_array(path: Path) -> bool:
    """Whether a file of JSON holds one array of rows, not a row a line."""
    if path.suffix.lower() not in JSON_SUFFIXES:
        return False
    with reading(path), open(path, "rb") as file:
        starts = (raw.lstrip(b"\xef\xbb\xbf \t\r\n") for raw in read_lines(file, 4096))
        return next(filter(None, starts), b"").startswith(b"[")


def _json_array(path: Path) -> Iterator[tuple[int, Any]]:
    """The entries of an array, all of which are read at once."""
    try:
        rows: Any = parse_json(path.read_bytes())
    except ValueError as error:
        raise DataError(f"{path}: broken JSON ({said(error, lines=1)})") from None
    yield from enumerate(rows)


def _parquet(path: Path) -> Iterator[tuple[int, Any]]:
    """Rows of a Parquet file, a few at a time."""
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            batches = file.iter_batches(batch_size=256)
            yield from enumerate(chain.from_iterable(batch.to_pylist() for batch in batches))
    except Exception as error:  # pyarrow raises its own errors and those of decoding
        raise DataError(f"{path}: cannot be read ({said(error, lines=1)}); copy or write it again") from None


def _csv(path: Path) -> Iterator[tuple[int, Any]]:
    """Rows of a CSV file by the line on which each begins; all values are text."""
    csv.field_size_limit(MAX_LINE_BYTES)  # the module's own limit is shorter than many answers
    header: list[str] = []
    with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        reader = csv.reader(file, strict=True)
        while True:
            start = reader.line_num + 1
            row: dict[str, str] | RowError
            try:
                fields = next(reader)
                row = _csv_row(fields, header or fields)
            except StopIteration:
                break
            except csv.Error as error:
                row = RowError("broken_csv", f"broken CSV ({error}); a quote may lack its partner")
            if header and row:
                yield start, row
            elif isinstance(row, RowError):
                raise DataError(f"{path} line {start}: {row}")
            elif row:
                header = fields
    if not header:
        raise DataError(f"{path}: the file is empty; a CSV file begins with the names of its columns")


def _csv_row(fields: list[str], header: list[str]) -> dict[str, str] | RowError:
    """The row of a line, {} for a blank one."""
    if lone_surrogate("".join(fields)) is not None:  # a byte that is not of the encoding
        return RowError("not_utf8", "not UTF-8 text; save the file as UTF-8")
    if fields and len(fields) != len(header):
        return RowError("broken_csv", f"the row has {len(fields)} fields, the header names {len(header)} columns")
    row = dict(zip(header, fields, strict=False))
    if len(row) != len(fields):
        return RowError("broken_csv", "two columns have the same name; rename one")
    return row
