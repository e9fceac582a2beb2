"""Sources of rows: files of JSON, CSV and Parquet, Hub data sets, `datasets.Dataset` objects, lists of dicts.

`stepjepa.data.chat` turns a row into a chat; a row with only ``text`` or ``input_ids`` is plain text.
"""

from __future__ import annotations

import contextlib
import csv
import json
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
from stepjepa.utils.files import digest, parse_json, unchanged
from stepjepa.utils.text import lone_surrogate

# Rows with their numbers, see `RowSource.place`.
NumberedRows = Iterator[tuple[int, Any]]
JSON_SUFFIXES = {".jsonl", ".json", ".ndjson"}
FILE_SUFFIXES = JSON_SUFFIXES | {".parquet", ".csv"}
# The number of rows, of all data sets together, that a tokenizer is trained on.
_TOKENIZER_ROWS = 50_000
# Bytes at each end of a file that its fingerprint reads.
_SAMPLED_BYTES = 2**16
# A byte order mark, which some editors write at the start of a file, and white space.
_BLANK = b"\xef\xbb\xbf \t\r\n"


@contextlib.contextmanager
def reading(name: object) -> Iterator[None]:
    """Turn an `OSError` within this context into a `DataError` that names what cannot be read."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{name}: cannot be read ({error.strerror or error})") from None


def texts_of(sources: Sequence[Any], columns: PairColumns | None = None) -> Iterator[str]:
    """Yield the texts of the first rows of several data sets, the same number from each, to train a tokenizer on.

    Args:
        sources: anything that `RowSource` takes.
        columns: the two columns of a chat; None for the known names.
    """
    each = -(-_TOKENIZER_ROWS // len(sources))
    rows = [RowSource.of(source) for source in sources]
    for _, row in chain.from_iterable(islice(source, each) for source in rows):
        if columns is None and is_stream(row) and isinstance(row.get("text"), str):
            # A lone surrogate would stop the tokenizer. The encoder counts such a row as unusable later.
            if lone_surrogate(row["text"]) is None:
                yield row["text"]
            continue
        with contextlib.suppress(RowError):
            yield from [message["content"] for message in row_to_messages(row, None, columns)]


@dataclass(frozen=True)
class RowShare:
    """The rows whose number is at least `start` and leaves the remainder `shard` when divided by `shards`."""

    start: int = 0
    shard: int = 0
    shards: int = 1

    def __contains__(self, number: int) -> bool:
        return number >= self.start and number % self.shards == self.shard


EVERY_ROW = RowShare()


class RowSource:
    """Rows, each with a place that messages can name: ``file.jsonl line 7`` or ``row 7``.

    Args:
        source: a path, a Hub data set's name (``openai/gsm8k:main`` with its configuration), a `datasets.Dataset` or
            `DatasetDict`, or an iterable of rows.
        split: the split of a Hub data set or a `DatasetDict`.
        streaming: read a Hub data set during its download (`datasets.IterableDataset`).

    Attributes:
        name: the name of the source as it was passed.
        file: the file, None for any other source; `by_line` says whether rows are its lines.

    Raises:
        DataError: the source does not exist, or cannot be read as rows.
    """

    def __init__(self, source: object, split: str = "train", streaming: bool = False):
        self.name = str(source) if isinstance(source, (str, os.PathLike)) else type(source).__name__
        self.file: Path | None = None
        self._rows: Any = ()
        if isinstance(source, (str, os.PathLike)):
            path = Path(os.path.expanduser(source))
            # `is_file` fails for a name that is too long, and in a folder without permission.
            with reading(self.name[:200]):
                if path.suffix.lower() in FILE_SUFFIXES and path.is_file():
                    self.file = path
                else:
                    self._rows = _load_dataset(path, self.name, split, streaming)
        elif isinstance(source, Mapping):
            self._rows = _pick_split(source, self.name, split)
        elif isinstance(source, Iterable):
            # An iterator can be read only once, but the first rows are read twice: to choose a splitter, and to encode.
            self._rows = list(source) if isinstance(source, Iterator) else source
        else:
            raise DataError(
                f"data of type {self.name} cannot be read; give a file, a data set or a list of rows"
            )
        self.by_line = (
            self.file is not None
            and self.file.suffix.lower() != ".parquet"
            and not _is_array(self.file)
        )

    @classmethod
    def of(cls, source: object, split: str = "train") -> RowSource:
        """Return `source` itself if it is a `RowSource`, else a new one that reads it."""
        return source if isinstance(source, cls) else cls(source, split)

    def place(self, index: int) -> str:
        """Return the place of row `index` (in the numbering of `__iter__`), for messages."""
        return f"{self.name} {'line' if self.by_line else 'row'} {index}"

    @property
    def fingerprint(self) -> str:
        """A digest by which to recognise the data: of the size and the first and last bytes of a file, else of the name."""
        if self.file is None:
            return digest([self.name.encode()])
        with reading(self.name), open(self.file, "rb") as file:
            first = file.read(_SAMPLED_BYTES)
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _SAMPLED_BYTES))
            last = file.read()
        return digest([b"%d:" % size, first, last])

    def __iter__(self) -> NumberedRows:
        """Yield (number for `place`, row) of every row. Lines are counted from 1, rows from 0."""
        return self.rows()

    def rows(self, part: RowShare = EVERY_ROW, strict: bool = True) -> NumberedRows:
        """Yield some of the rows as `__iter__` does; for `strict` see `file_rows`."""
        if self.file is not None:
            return file_rows(self.file, part, strict)
        return ((number, row) for number, row in enumerate(self._rows) if number in part)


def _load_dataset(path: Path, name: str, split: str, streaming: bool) -> Iterable[Any]:
    suffix = path.suffix.lower()
    # A name on the Hub has one or two parts; anything else can only be a path.
    is_path = (
        suffix in FILE_SUFFIXES or path.is_absolute() or name.startswith(".") or len(path.parts) > 2
    )
    if not path.exists() and is_path:
        raise DataError(f"{name}: no such file{near_path(path)}")
    if path.is_file():
        raise DataError(
            f"{name}: unknown type of file; known types: {', '.join(sorted(FILE_SUFFIXES))}"
        )
    # `datasets` is slow to import, and files of rows do not need it.
    import datasets

    hub_name, _, configuration = name.partition(":")
    wanted = (str(path),) if path.is_dir() else (hub_name, configuration or None)
    try:
        # `Dataset.save_to_disk` wrote one of these files.
        if any((path / file).exists() for file in ("dataset_info.json", "dataset_dict.json")):
            stored = datasets.load_from_disk(str(path))
        else:
            stored = datasets.load_dataset(*wanted, split=split, streaming=streaming)
    except Exception as error:
        # `datasets` raises errors of many libraries, or wraps the actual error in its own.
        why = said(error.__cause__ or error, lines=1)
        if path.exists():
            raise DataError(f"{name}: cannot be read ({why})") from None
        raise DataError(
            f"{name}: neither a file here nor a data set that could be loaded ({why}){near_path(path)}"
        ) from None
    return _pick_split(stored, name, split) if isinstance(stored, Mapping) else stored


def _pick_split(source: Mapping[Any, Any], name: str, split: str) -> Iterable[Any]:
    if split in source:
        return source[split]
    splits = ", ".join(map(str, source)) or "none"
    raise DataError(
        f"{name}: no split {split!r} (found: {splits}); name one of them, or give a list of rows"
    )


def near_path(path: Path) -> str:
    """The end of a message about a missing file or folder: an existing entry with a similar name, if there is one."""
    names = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    near = nearest(path.name, names)
    return f"; did you mean {path.parent / near}?" if near else ""


def file_rows(path: Path, part: RowShare = EVERY_ROW, strict: bool = True) -> NumberedRows:
    """Yield (number, row) of a file, which must not change meanwhile. Lines are counted from 1, rows of an array and
    of a Parquet file from 0. Without `strict`, an unreadable row is yielded as a RowError, and reading goes on.

    Raises:
        DataError: the file cannot be read or changes; with `strict`, also if a row is broken.
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


def _json_lines(path: Path, part: RowShare) -> NumberedRows:
    with open(path, "rb") as file:
        for number, raw in enumerate(file, 1):
            # Lines of other shards are counted, but not parsed.
            if number in part and raw.strip(_BLANK):
                yield number, attempted(_json_line, raw)


def _json_line(raw: bytes) -> object:
    """The row of a line."""
    try:
        return parse_json(raw)
    except UnicodeDecodeError as error:
        raise RowError(
            "not_utf8", f"not UTF-8 text ({error.reason}); save the file as UTF-8"
        ) from None
    except json.JSONDecodeError as error:
        why = f"{error.msg.removesuffix(' at')} at character {error.pos + 1}"
    except ValueError as error:
        why = str(error)
    raise RowError("broken_json", f"broken JSON ({why}); one JSON object per line is expected")


def _is_array(path: Path) -> bool:
    """Whether a JSON file is one array of rows, rather than one row per line."""
    if path.suffix.lower() not in JSON_SUFFIXES:
        return False
    with reading(path), open(path, "rb") as file:
        return file.read(4096).lstrip(_BLANK).startswith(b"[")


def _json_array(path: Path) -> NumberedRows:
    """The entries of an array, all read at once."""
    try:
        rows: Any = parse_json(path.read_bytes())
    except ValueError as error:
        raise DataError(f"{path}: broken JSON ({said(error, lines=1)})") from None
    yield from enumerate(rows)


def _parquet(path: Path) -> NumberedRows:
    """Rows of a Parquet file, a few at a time."""
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            batches = file.iter_batches(batch_size=256)
            yield from enumerate(chain.from_iterable(batch.to_pylist() for batch in batches))
    except Exception as error:
        # pyarrow raises its own errors, and those of decoding.
        raise DataError(
            f"{path}: cannot be read ({said(error, lines=1)}); copy or write it again"
        ) from None


def _csv(path: Path) -> NumberedRows:
    """Rows of a CSV file, each with the line on which it ends; all values are text."""
    # The default limit, 128 KiB, is shorter than some answers.
    csv.field_size_limit(2**31 - 1)
    # A byte that is not UTF-8 becomes a lone surrogate, so that only its row is broken.
    with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        rows = csv.DictReader(file, strict=True)
        try:
            # Blank lines may come before the header.
            while rows.fieldnames == []:
                rows.fieldnames = None
            columns = len(rows.fieldnames or ())
        except csv.Error as error:
            raise DataError(f"{path} line {rows.reader.line_num}: {_broken_csv(error)}") from None
        while True:
            row: dict[str, str] | RowError
            try:
                row = attempted(_csv_row, next(rows), columns)
            except StopIteration:
                return
            except csv.Error as error:
                row = _broken_csv(error)
            yield rows.reader.line_num, row


def _broken_csv(error: csv.Error) -> RowError:
    return RowError("broken_csv", f"broken CSV ({error}); a closing quote may be missing")


def _csv_row(row: dict[Any, Any], columns: int) -> dict[str, str]:
    """Check a row of a file with a number of columns."""
    # The reader adds None as a key for further fields, and as a value for missing ones.
    if None in row or None in row.values() or len(row) != columns:
        raise RowError(
            "broken_csv",
            f"the row does not have one field for each of {columns} columns with different names",
        )
    if lone_surrogate("".join([*row, *row.values()])) is not None:
        raise RowError("not_utf8", "not UTF-8 text; save the file as UTF-8")
    return row
