"""`sql_execution`: the generated query returns the same rows as the reference query."""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepjepa.config.option import Names, option
from stepjepa.data.blocks import answer_of
from stepjepa.errors import ConfigError, DataError
from stepjepa.evaluation.metrics.base import OPTIONS, Judgement, Metric, Row
from stepjepa.evaluation.metrics.worker import Worker, WorkerError

_FENCE = re.compile(r"```[ \t]*(?:sql|sqlite)?[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE)
# The name of the database in a user's message.
_IN_PROMPT = re.compile(r"\bdb_id:\s*\[([^\]\n]+)\]")
# Longest query, in characters.
_LONGEST = 20_000
# Bytes of a text or blob.
_LARGEST_VALUE = 10_000_000
# SQLITE_READ, SQLITE_SELECT and SQLITE_RECURSIVE; SQLITE_FUNCTION.
_READING, _FUNCTION = {20, 21, 33}, 31
# Functions that reach outside the database, or build values of any size in one step.
_FORBIDDEN = {
    "load_extension",
    "fts3_tokenizer",
    "readfile",
    "writefile",
    "edit",
    "randomblob",
    "zeroblob",
}
# Quoted texts, quoted names, and comments.
_QUOTED = re.compile(
    r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`(?:[^`]|``)*`|\[[^\]]*\]|--[^\n]*|/\*.*?\*/""", re.DOTALL
)
_BRACKETS = re.compile(r"\([^()]*\)")
_ORDER = re.compile(r"\border\s+by\b", re.IGNORECASE)


@dataclass(kw_only=True)
class SqlExecution(Metric):
    """Runs both queries on the row's SQLite database and compares the rows they return.

    The order of rows counts only if the reference has an ORDER BY outside of subqueries. Duplicates count. The order of
    columns counts, their names do not. 2 equals 2.0, floats are equal to nine digits, and NULL equals only NULL.

    The database is the file `db_path` of the row, or that of its `db_id` in `db_folder` (`db_id/db_id.sqlite` as in Spider,
    or `db_id.sqlite`); the name may also be in the user's message as `db_id:[name]`. The file is opened read-only in a
    separate process, and only reading is permitted.
    """

    db_folder: str | None = option(None, "Folder with the databases.", OPTIONS)
    # The whole process is killed, so it does not matter which of the two queries is slow.
    time_limit: float = option(
        10.0, "Seconds for both queries; a row that takes longer is unknown.", OPTIONS, above=0
    )
    max_rows: int = option(100_000, "Rows that a query may return.", OPTIONS, at_least=1)

    name = "sql_execution"
    columns = ("messages", "completion", "code", "query", "sql", "answer", "ground_truth")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.db_folder is not None and not Path(self.db_folder).is_dir():
            raise ConfigError(f"{_NAME.db_folder} {self.db_folder}: no such folder")
        self._worker = Worker(compare)

    def score(self, generated: str, row: Row) -> Judgement:
        """1 if both queries return the same rows.

        Raises:
            DataError: the row has no reference, or its database does not exist.
        """
        gold, answer = query_of(self.reference(row)), query_of(answer_of(generated))
        database = self._database(row)
        if not answer:
            return Judgement(0.0, gold, None, "no query found")
        if max(len(gold), len(answer)) > _LONGEST:
            return Judgement(0.0, gold, answer, f"longer than {_LONGEST} characters")
        queries = {"database": str(database), "gold": gold, "answer": answer}
        try:
            note, undecided = self._worker.call(self.time_limit, **queries, max_rows=self.max_rows)
        except WorkerError as error:
            note, undecided = f"unknown: {error}", "unknown"
        return Judgement(float(not note), gold, answer, note, undecided)

    def _database(self, row: Row) -> Path:
        """The file of a row's database."""
        if row.get("db_path"):
            files = [Path(self.db_folder or "") / str(row["db_path"])]
        else:
            name = _database_name(row)
            if self.db_folder is None:
                raise ConfigError(
                    f"the metric {self.name} needs {_NAME.db_folder}, the folder of the database {name!r}"
                )
            # The name comes from data: it must not lead out of the folder.
            if Path(name).name != name:
                raise DataError(f"db_id {name!r} is not the name of a database")
            files = [
                Path(self.db_folder, name, f"{name}.sqlite"),
                Path(self.db_folder, f"{name}.sqlite"),
            ]
        for file in files:
            if file.is_file():
                return file.absolute()
        raise DataError(f"no database {files[0]}")


_NAME = Names(SqlExecution)


def _database_name(row: Row) -> str:
    if row.get("db_id"):
        return str(row["db_id"])
    for turn in row.get("messages") or ():
        name = _IN_PROMPT.search(str(turn.get("content")))
        if name is not None:
            return name[1].strip()
    raise DataError(
        f"the row names no database: no column db_path or db_id (columns found: {', '.join(row)})"
    )


def query_of(text: str) -> str:
    """The first statement of the last fenced block in a text, or of the whole text; without the semicolon."""
    blocks = _FENCE.findall(text)
    text = (blocks[-1] if blocks else text).strip()
    # A semicolon may be in a quoted text or a comment, which SQLite's own function recognizes.
    for end in re.finditer(";", text[:_LONGEST]):
        if sqlite3.complete_statement(text[: end.end()]):
            return text[: end.start()].strip()
    return text


class _Limit(Exception):
    """A query exceeded a limit."""


def compare(database: str, gold: str, answer: str, max_rows: int) -> tuple[str, str | None]:
    """Why the results of two queries differ (empty if they do not), and `Judgement.undecided`. Runs in the worker.

    Args:
        database: path of the file, which is never written.
        gold, answer: one statement each.
        max_rows: number of rows that each query may return.
    """
    # Three locks: the file is opened read-only, the connection refuses to write, and the authorizer permits only reading.
    with closing(
        sqlite3.connect(f"{Path(database).as_uri()}?mode=ro", uri=True, isolation_level=None)
    ) as connection:
        connection.execute("PRAGMA query_only = ON")
        # Some of Spider's databases hold texts that are not UTF-8.
        connection.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
        # Python 3.11 or later; 0 is SQLITE_LIMIT_LENGTH.
        if hasattr(connection, "setlimit"):
            connection.setlimit(0, _LARGEST_VALUE)
        connection.set_authorizer(_authorize)
        # A reference that fails decides nothing; an answer that fails is wrong.
        results = []
        for query, subject, undecided in (
            (gold, "unknown: the reference", "unknown"),
            (answer, "the query", "invalid"),
        ):
            try:
                results.append(_rows(connection, query, max_rows))
            except (sqlite3.Error, sqlite3.Warning, _Limit, ValueError, OverflowError) as error:
                return f"{subject} fails: {error}", undecided
        return _why_different(results[0], results[1], is_ordered(gold)), None


def _authorize(action: int, _: str | None, name: str | None, *__: str | None) -> int:
    if action in _READING or (action == _FUNCTION and (name or "").lower() not in _FORBIDDEN):
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


def _rows(connection: sqlite3.Connection, query: str, max_rows: int) -> list[tuple[Any, ...]]:
    with closing(connection.execute(query)) as cursor:
        if cursor.description is None:
            raise _Limit("it returns no rows")
        # One row more than allowed shows that there are too many, without reading them all.
        rows = cursor.fetchmany(max_rows + 1)
    if len(rows) > max_rows:
        raise _Limit(f"more than {max_rows} rows")
    return rows


def is_ordered(query: str) -> bool:
    """Whether a query has an ORDER BY outside of all brackets, strings and comments."""
    query = _QUOTED.sub(" ", query)
    # The pattern matches innermost brackets, so it is applied until no brackets are left.
    brackets = 1
    while brackets:
        query, brackets = _BRACKETS.subn(" ", query)
    return _ORDER.search(query) is not None


def _why_different(
    gold: list[tuple[Any, ...]], answer: list[tuple[Any, ...]], ordered: bool
) -> str:
    if len(gold) != len(answer):
        return f"{len(answer)} rows instead of {len(gold)}"
    gold_rows = [tuple(map(_rounded, row)) for row in gold]
    answer_rows = [tuple(map(_rounded, row)) for row in answer]
    if ordered:
        return "" if gold_rows == answer_rows else "different rows or order"
    # As multisets, because duplicates count.
    return "" if Counter(gold_rows) == Counter(answer_rows) else "different rows"


def _rounded(cell: Any) -> Any:
    """A cell, with floats rounded to nine digits: a sum in another order differs in the last ones."""
    return float(f"{cell:.9g}") if isinstance(cell, float) and not cell.is_integer() else cell
