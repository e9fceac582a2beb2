"""Where rows come from: files of JSON, CSV and Parquet, Hub data sets, `datasets.Dataset` objects, lists of dicts.

How a row becomes a chat is in `stepjepa.data.chat`; a row of ``text`` or ``input_ids`` alone is plain text.
"""

from __future__ import annotations

import contextlib
import csv
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO

from stepjepa.config.values import nearest
from stepjepa.data.chat import row_to_messages
from stepjepa.data.columns import is_stream
from stepjepa.data.options import PairColumns, check_split_name
from stepjepa.errors import DataError, RowError, said
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
        any_file: whether files of every kind are taken, and not those of `FILE_SUFFIXES` alone.

    Attributes:
        name: as it was given.
        file: that is read, None for any other source; `by_line` says whether rows are its lines.

    Raises:
        DataError: nothing there, or nothing that can be read as rows.
    """

    def __init__(self, source: object, split: str = "train", streaming: bool = False, any_file: bool = False):
        self.name = str(source) if isinstance(source, (str, os.PathLike)) else type(source).__name__
        check_split_name(split)
        self.file: Path | None = None
        self._folder: Path | None = None
        self._split = split
        self._rows: Any = ()
        if isinstance(source, (str, os.PathLike)):
            path = Path(os.path.expanduser(source))
            with reading(self.name[:200]):  # a name that no file can have, a folder that may not be looked into
                if path.is_file():
                    with open(path, "rb") as file:
                        if file.read(2) == b"\x1f\x8b":
                            raise DataError(f"{path}: compressed with gzip; unpack it first (gunzip -k FILE.gz)")
                if (any_file or path.suffix.lower() in FILE_SUFFIXES) and path.is_file():
                    self.file = path
                else:
                    self._rows = _load_dataset(path, self.name, split, streaming)
                    self._folder = path if path.is_dir() and not _is_saved(path) else None
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

    @cached_property
    def files(self) -> list[str]:
        """The files of a folder that are read, which `datasets` chooses by their names; empty for anything else."""
        if self._folder is None:
            return []
        import datasets

        files = datasets.load_dataset_builder(str(self._folder)).config.data_files or {}
        return sorted(os.path.relpath(str(file), self._folder.resolve()) for file in files.get(self._split, ()))

    @property
    def fingerprint(self) -> str:
        """A digest that tells other data, without reading them: size, first and last bytes of a file; else the name."""
        if self.file is None:
            return digest([self.name.encode()])
        with reading(self.name), open(self.file, "rb") as file:
            first = file.read(_SAMPLED_BYTES)
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _SAMPLED_BYTES))
            return digest([b"%d:" % size, first, file.read()])

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        """(number for `place`, row) of every row. Lines count from 1, rows from 0."""
        return self.rows()

    def rows(self, part: RowShare = EVERY_ROW) -> Iterator[tuple[int, Any]]:
        """As `__iter__`, of some of the rows; the others are skipped unread where the source allows it."""
        if self.file is not None:
            return file_rows(self.file, part)
        if part == EVERY_ROW:
            return enumerate(self._rows)
        if hasattr(self._rows, "select"):  # a `datasets.Dataset`
            first = part.start + (part.shard - part.start) % part.shards
            numbers = range(first, len(self._rows), part.shards)
            return zip(numbers, self._rows.select(numbers), strict=True)
        rows, start = self._rows, 0
        if hasattr(rows, "skip"):  # a `datasets.IterableDataset`
            rows, start = rows.skip(part.start), part.start
        return ((number, row) for number, row in enumerate(rows, start) if number in part)


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


def file_rows(path: Path, part: RowShare = EVERY_ROW) -> Iterator[tuple[int, Any]]:
    """(number, row) of a file that must stay as it is meanwhile. Lines count from 1, rows of a Parquet file from 0.

    Raises:
        DataError: the file cannot be read, is broken, or changes.
    """
    read = {".csv": _csv, ".parquet": _parquet}.get(path.suffix.lower(), _json_lines)
    read = _json_array if _is_array(path) else read
    with reading(path), unchanged(path):
        yield from read(path, part)


def _json_lines(path: Path, part: RowShare) -> Iterator[tuple[int, Any]]:
    with open(path, "rb") as file:
        for number, raw in enumerate(read_lines(file), 1):
            if number not in part:
                continue
            try:
                text = line_text(raw)
                if not text:
                    continue
                row = line_value(text, raw)
            except RowError as error:
                raise DataError(f"{path} line {number}: {error}") from None
            yield number, row


def _is_array(path: Path) -> bool:
    """Whether a file of JSON holds one array of rows, not a row a line."""
    if path.suffix.lower() in FILE_SUFFIXES - JSON_SUFFIXES:
        return False
    with reading(path), open(path, "rb") as file:
        starts = (raw.lstrip(b"\xef\xbb\xbf \t\r\n") for raw in read_lines(file, 4096))
        return next(filter(None, starts), b"").startswith(b"[")


def _json_array(path: Path, part: RowShare) -> Iterator[tuple[int, Any]]:
    """The entries of an array, all of which are read at once."""
    try:
        rows: Any = parse_json(path.read_bytes())
    except ValueError as error:
        raise DataError(f"{path}: broken JSON ({said(error, lines=1)})") from None
    yield from ((number, row) for number, row in enumerate(rows) if number in part)


def _csv(path: Path, part: RowShare) -> Iterator[tuple[int, Any]]:
    for number, row in csv_rows(path):
        if number not in part:
            continue
        if isinstance(row, RowError):
            raise DataError(f"{path} line {number}: {row}")
        yield number, row


def _parquet(path: Path, part: RowShare) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows of a Parquet file, a few at a time; row groups before the first one are not read."""
    import pyarrow.parquet

    number = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            groups = list(range(file.num_row_groups))
            while groups and number + (rows := file.metadata.row_group(groups[0]).num_rows) <= part.start:
                number += rows
                groups = groups[1:]
            for batch in file.iter_batches(batch_size=256, row_groups=groups) if groups else ():
                for row in batch.to_pylist():
                    if number in part:
                        yield number, row
                    number += 1
    except Exception as error:  # pyarrow raises its own errors and those of decoding
        what = f"cannot be read after row {number} ({said(error, lines=1)})"
        raise DataError(f"{path}: {what}; copy or write it again") from None


def csv_rows(path: Path, limit: int = MAX_LINE_BYTES) -> Iterator[tuple[int, dict[str, str] | RowError]]:
    """(line on which it begins, row or what is wrong with it) of every row of a CSV file; all values are text.

    Raises:
        DataError: a header that is missing, broken or names a column twice, or a line of more than `limit` bytes.
        OSError: the file cannot be read.
    """
    csv.field_size_limit(max(csv.field_size_limit(), limit))  # the module's own limit is shorter than many answers
    header: list[str] = []
    with open(path, "rb") as file:
        reader = csv.reader(_csv_lines(file, path, limit), strict=True)
        while True:
            start = reader.line_num + 1
            row: dict[str, str] | RowError
            try:
                fields = next(reader)
                row = _csv_row(fields, header)
            except StopIteration:
                break
            except csv.Error as error:
                row = RowError("broken_csv", f"broken CSV ({error}); a quote may lack its partner")
            if header:
                if row:
                    yield start, row
            elif isinstance(row, RowError):
                raise DataError(f"{path} line {start}: {row}")
            elif "".join(fields).strip():
                header = fields
                twice = [name for name in header if header.count(name) > 1]
                if twice:
                    raise DataError(f"{path} line {start}: two columns are called {twice[0][:40]!r}; rename one")
    if not header:
        raise DataError(f"{path}: the file is empty; a CSV file begins with the names of its columns")


def _csv_lines(file: BinaryIO, path: Path, limit: int) -> Iterator[str]:
    for number, raw in enumerate(read_lines(file, limit), 1):
        if len(raw) > limit:
            try:
                line_text(raw, limit)
            except RowError as error:
                raise DataError(f"{path} line {number}: {error}") from None
        text = raw.decode("utf-8", "surrogateescape")  # what is not UTF-8 is found with its row
        yield text.removeprefix("\ufeff") if number == 1 else text


def _csv_row(fields: list[str], header: list[str]) -> dict[str, str] | RowError:
    """A row; {} for a blank line and for the header."""
    text = "".join(fields)
    try:
        text.encode()
    except UnicodeEncodeError:
        return RowError("not_utf8", "not UTF-8 text; save the file as UTF-8")
    if not header or (not text.strip() and len(fields) < len(header)):
        return {}
    if len(fields) != len(header):
        return RowError("broken_csv", f"the row has {len(fields)} fields, the header names {len(header)} columns")
    return dict(zip(header, fields, strict=True))
