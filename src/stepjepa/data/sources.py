"""Where rows come from: JSONL files, Parquet, CSV and Hub data sets, `datasets.Dataset` objects, lists of dicts.

A row becomes a chat: a ``messages`` column, or ``question``/``answer``, or ``prompt``/``completion``.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from stepjepa.data.chat import RowError, check_messages
from stepjepa.errors import DataError

Row = Mapping[str, Any]
TEXT_COLUMNS = (("question", "answer"), ("prompt", "completion"))
_FILE_SUFFIXES = {".jsonl", ".json", ".ndjson", ".parquet", ".csv"}


def row_to_messages(row: Any, system_prompt: str | None = None) -> list[dict[str, str]]:
    """The checked chat of one row.

    `system_prompt` is put in front of a chat that has no system message.

    Raises:
        RowError: none of the known columns, or a chat that `check_messages` refuses.
    """
    if not isinstance(row, Mapping):
        raise RowError("not_an_object", f"the row is a {type(row).__name__}, not an object with columns")
    if row.get("messages") is not None:
        messages = check_messages(row["messages"])
    else:
        messages = _from_columns(row)
    if system_prompt and messages[0]["role"] != "system":
        messages = [{"role": "system", "content": system_prompt}, *messages]
    return messages


def _from_columns(row: Row) -> list[dict[str, str]]:
    for question, answer in TEXT_COLUMNS:
        if question in row and answer in row:
            left, right = row[question], row[answer]
            if isinstance(left, list) and isinstance(right, list):
                return check_messages([*left, *right])
            return check_messages([{"role": "user", "content": left}, {"role": "assistant", "content": right}])
    found = ", ".join(map(str, row)) or "none"
    raise RowError(
        "no_known_columns", f"columns found: {found}; expected messages, question/answer or prompt/completion"
    )


class RowSource:
    """Rows with a place to name in messages: ``file.jsonl line 7`` or ``row 7``.

    Args:
        source: a path, a Hub data set's name, a `datasets.Dataset`, or an iterable of rows.
        split: the split of a Hub data set.
    """

    def __init__(self, source: Any, split: str = "train"):
        self.name = str(source) if isinstance(source, (str, os.PathLike)) else type(source).__name__
        self._jsonl: Path | None = None
        self._rows: Iterable[Any] = ()
        if isinstance(source, (str, os.PathLike)):
            path = Path(source)
            if path.is_file() and path.suffix in {".jsonl", ".json", ".ndjson"}:
                self._jsonl = path
            else:
                self._rows = _load_dataset(path, str(source), split)
        else:
            self._rows = source

    def place(self, index: int) -> str:
        """Where row `index` (as `__iter__` numbers it) stands, in words."""
        return f"{self.name} line {index}" if self._jsonl else f"{self.name} row {index}"

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        """(number for `place`, row) of every row. Lines count from 1, rows from 0."""
        if self._jsonl is not None:
            yield from _read_json_lines(self._jsonl)
        else:
            yield from enumerate(self._rows)


def _read_json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    number = 0
    try:
        with open(path, encoding="utf-8-sig") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                try:
                    yield number, json.loads(line)
                except ValueError as error:
                    hint = "one JSON object per line is expected"
                    if number == 1 and line.lstrip()[:1] == "[":
                        hint = "this looks like one JSON array; write one object per line (JSONL)"
                    raise DataError(f"{path} line {number}: broken JSON ({error}); {hint}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path} after line {number}: not UTF-8 text ({error.reason})") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None


def _load_dataset(path: Path, name: str, split: str) -> Iterable[Any]:
    if path.is_dir() and not any(path.iterdir()):
        raise DataError(f"{name}: the folder is empty; give a data file or a data set's folder")
    if not path.exists() and (path.suffix in _FILE_SUFFIXES or path.is_absolute() or name.startswith(".")):
        near = _nearest_file(path)
        raise DataError(f"{name}: no such file{f'; did you mean {near}?' if near else ''}")
    import datasets

    try:
        if path.is_file() and path.suffix in {".parquet", ".csv"}:
            return datasets.load_dataset(path.suffix[1:], data_files=str(path), split="train")
        if path.is_dir() and (path / "dataset_info.json").exists():
            return datasets.load_from_disk(str(path))
        if path.is_file():
            raise DataError(f"{name}: unknown kind of file; known: {', '.join(sorted(_FILE_SUFFIXES))}")
        return datasets.load_dataset(name, split=split)
    except DataError:
        raise
    except Exception as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"{name}: neither a file here nor a data set that could be loaded ({first})") from None


def _nearest_file(path: Path) -> str | None:
    folder = path.parent
    if not folder.is_dir():
        return None
    near = difflib.get_close_matches(path.name, [entry.name for entry in folder.iterdir()], n=1)
    return str(folder / near[0]) if near else None
