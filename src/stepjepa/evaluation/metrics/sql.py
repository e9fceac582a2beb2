"""`sql_execution`: the generated query returns the rows that the reference query returns."""

from __future__ import annotations

import re
import sqlite3
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepjepa.config.option import Names, option
from stepjepa.data.blocks import answer_of
from stepjepa.errors import ConfigError, DataError
from stepjepa.evaluation.metrics import OPTIONS, Judgement, Metric
from stepjepa.evaluation.metrics.worker import Worker, WorkerError

_FENCE = re.compile(r"```[ \t]*(?:sql|sqlite)?[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE)
_IN_PROMPT = re.compile(r"\bdb_id:\s*\[([^\]\n]+)\]")
_LONGEST = 20_000  # characters of a query
_GRACE = 2.0  # seconds for opening, comparing and closing

_STEPS = 10_000  # of SQLite's machine between two looks at the clock
_LARGEST_VALUE = 10_000_000  # bytes of a text or blob
_READING, _FUNCTION = {20, 21, 33}, 31  # SQLITE_READ, SQLITE_SELECT, SQLITE_RECURSIVE; SQLITE_FUNCTION
# Functions that reach beyond the query, or build values of any size in one step.
_FORBIDDEN = {"load_extension", "fts3_tokenizer", "readfile", "writefile", "edit", "randomblob", "zeroblob"}
# What is quoted, and comments.
_QUOTED = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`(?:[^`]|``)*`|\[[^\]]*\]|--[^\n]*|/\*.*?\*/""", re.DOTALL)
_BRACKETS = re.compile(r"\([^()]*\)")
_ORDER = re.compile(r"\border\s+by\b", re.IGNORECASE)


@dataclass(kw_only=True)
class SqlExecution(Metric):
    """Runs both queries on the row's SQLite database and compares the rows they return.

    The order of rows counts only where the reference has an ORDER BY of its own (not in a subquery); duplicates count; the
    order of columns counts, their names do not. 2 and 2.0 are equal, floats to nine digits, NULL is only NULL.

    The database is the file in the row's `db_path`, or the one of its `db_id` in `db_folder` (`db_id/db_id.sqlite`, as
    Spider lays them out, or `db_id.sqlite`); a `db_id:[name]` in the user's message serves as well. It is opened for
    reading only, in a process of its own; nothing but SELECT is permitted.
    """

    db_folder: str | None = option(None, "Where the databases are.", OPTIONS)
    time_limit: float = option(10.0, "Seconds for each of the two queries.", OPTIONS, above=0)
    max_rows: int = option(100_000, "Rows that a query may return.", OPTIONS, at_least=1)

    name = "sql_execution"
    columns = ("messages", "completion", "code", "query", "sql", "answer", "ground_truth")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.db_folder is not None and not Path(self.db_folder).is_dir():
            raise ConfigError(f"{_NAME.db_folder}: no folder {self.db_folder}")
        self._worker = Worker(compare)

    def score(self, generated: str, row: Mapping[str, Any]) -> Judgement:
        """1 where both queries return the same rows.

        Raises:
            DataError: the row has no reference, or its database is not there.
        """
        gold, answer = query_of(self.reference(row)), query_of(answer_of(generated))
        database = self._database(row)
        if not answer:
            return Judgement(0.0, gold, None, "no query found")
        if max(len(gold), len(answer)) > _LONGEST:
            return Judgement(0.0, gold, answer, f"longer than {_LONGEST} characters")
        queries = {"database": str(database), "gold": gold, "answer": answer}
        limits = {"seconds": self.time_limit, "max_rows": self.max_rows}
        try:
            note, undecided = self._worker.call(2 * self.time_limit + _GRACE, **queries, **limits)
        except WorkerError as error:
            note, undecided = f"unknown: {error}", "unknown"
        return Judgement(float(not note), gold, answer, note, undecided)

    def _database(self, row: Mapping[str, Any]) -> Path:
        """The file of a row's database."""
        if row.get("db_path"):
            files = [Path(self.db_folder or "") / str(row["db_path"])]
        else:
            name = _database_name(row)
            if self.db_folder is None:
                raise ConfigError(
                    f"the metric {self.name} needs {_NAME.db_folder}, the folder of the database {name!r}"
                )
            if Path(name).name != name:
                raise DataError(f"db_id {name!r} is no name of a database")
            files = [Path(self.db_folder, name, f"{name}.sqlite"), Path(self.db_folder, f"{name}.sqlite")]
        for file in files:
            if file.is_file():
                return file.absolute()
        raise DataError(f"no database {files[0]}")


_NAME = Names(SqlExecution)


def _database_name(row: Mapping[str, Any]) -> str:
    if row.get("db_id"):
        return str(row["db_id"])
    for turn in row.get("messages") or ():
        name = _IN_PROMPT.search(str(turn.get("content")))
        if name is not None:
            return name[1].strip()
    raise DataError(f"the row names no database: no column db_path or db_id (columns found: {', '.join(row)})")


def query_of(text: str) -> str:
    """The query in a text: its last fenced block, else all of it; the first statement, without the semicolon."""
    blocks = _FENCE.findall(text)
    text = (blocks[-1] if blocks else text).strip()
    for end in re.finditer(";", text[:_LONGEST]):
        if sqlite3.complete_statement(text[: end.end()]):
            return text[: end.start()].strip()
    return text


class _Limit(Exception):
    """A query broke a limit."""


def compare(database: str, gold: str, answer: str, seconds: float, max_rows: int) -> tuple[str, str | None]:
    """Why the results of two queries differ, empty where they do not, and `Judgement.undecided`. Runs in a process of its
    own.

    Args:
        database: the file; it is never written to.
        gold, answer: one statement each.
        seconds: for each query.
        max_rows: that each may return.
    """
    with closing(sqlite3.connect(f"{Path(database).as_uri()}?mode=ro", uri=True, isolation_level=None)) as connection:
        connection.execute("PRAGMA query_only = ON")
        connection.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
        if hasattr(connection, "setlimit"):  # Python 3.11
            connection.setlimit(0, _LARGEST_VALUE)  # SQLITE_LIMIT_LENGTH
        connection.set_authorizer(_authorize)
        results = []
        for query, whose, undecided in ((gold, "unknown: the reference", "unknown"), (answer, "the query", "invalid")):
            try:
                results.append(_rows(connection, query, seconds, max_rows))
            except (sqlite3.Error, sqlite3.Warning, _Limit, ValueError, OverflowError) as error:
                return f"{whose} fails: {error}", undecided
        return _why_different(results[0], results[1], is_ordered(gold)), None


def _authorize(action: int, _: str | None, name: str | None, *__: str | None) -> int:
    if action in _READING or (action == _FUNCTION and (name or "").lower() not in _FORBIDDEN):
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


def _rows(connection: sqlite3.Connection, query: str, seconds: float, max_rows: int) -> list[tuple[Any, ...]]:
    deadline = time.monotonic() + seconds
    connection.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS)
    try:
        with closing(connection.execute(query)) as cursor:
            if cursor.description is None:
                raise _Limit("it returns no rows")
            rows = cursor.fetchmany(max_rows + 1)
    except sqlite3.OperationalError:
        if time.monotonic() > deadline:  # the handler has interrupted it
            raise _Limit(f"not done after {seconds:g} s") from None
        raise
    if len(rows) > max_rows:
        raise _Limit(f"more than {max_rows} rows")
    return rows


def is_ordered(query: str) -> bool:
    """Whether a query has an ORDER BY outside of all brackets, strings and comments."""
    query = _QUOTED.sub(" ", query)
    brackets = 1
    while brackets:
        query, brackets = _BRACKETS.subn(" ", query)
    return _ORDER.search(query) is not None


def _why_different(gold: list[tuple[Any, ...]], answer: list[tuple[Any, ...]], ordered: bool) -> str:
    for row, other in zip(gold[:1], answer[:1], strict=False):
        if len(row) != len(other):
            return f"{len(other)} columns instead of {len(row)}"
    if len(gold) != len(answer):
        return f"{len(answer)} rows instead of {len(gold)}"
    rows = [tuple(map(_rounded, row)) for row in gold]
    others = [tuple(map(_rounded, row)) for row in answer]
    if ordered:
        return "" if rows == others else "other rows, or another order"
    same = Counter(rows) == Counter(others)
    return "" if same else "other rows"


def _rounded(cell: Any) -> Any:
    """A cell without what differs by the order of a sum alone."""
    return float(f"{cell:.9g}") if isinstance(cell, float) and not cell.is_integer() else cell
