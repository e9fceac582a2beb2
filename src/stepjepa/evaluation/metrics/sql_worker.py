"""Two queries on an SQLite database and whether they return the same rows. Runs in a process of its own."""

from __future__ import annotations

import math
import re
import sqlite3
import time
from pathlib import Path
from typing import Any

_TOLERANCE = 1e-6
_STEPS = 10_000  # of SQLite's machine between two looks at the clock
_LARGEST_VALUE = 10_000_000  # bytes of a text or blob
_READING = {
    getattr(sqlite3, name, number)
    for name, number in (("SQLITE_SELECT", 21), ("SQLITE_READ", 20), ("SQLITE_RECURSIVE", 33))
}
_FUNCTION = getattr(sqlite3, "SQLITE_FUNCTION", 31)
# Functions that reach beyond the query, or build values of any size in one step.
_FORBIDDEN = {"load_extension", "fts3_tokenizer", "readfile", "writefile", "edit", "randomblob", "zeroblob"}
_TOKENS = re.compile(
    r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`(?:[^`]|``)*`|\[[^\]]*\]|--[^\n]*|/\*.*?\*/|[A-Za-z_]\w*|\S""", re.DOTALL
)


class _Limit(Exception):
    """A query broke a limit."""


def compare(database: str, gold: str, answer: str, seconds: float, max_rows: int) -> str:
    """Why the results of two queries differ; empty where they do not.

    Args:
        database: the file; it is never written to.
        gold, answer: one statement each.
        seconds: for each query.
        max_rows: that each may return.
    """
    uri = f"{Path(database).as_uri()}?mode=ro"
    connection = sqlite3.connect(uri, uri=True, isolation_level=None)
    try:
        connection.execute("PRAGMA query_only = ON")
        connection.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
        if hasattr(connection, "setlimit"):  # Python 3.11
            connection.setlimit(0, _LARGEST_VALUE)  # SQLITE_LIMIT_LENGTH
            connection.setlimit(7, 0)  # SQLITE_LIMIT_ATTACHED
            connection.setlimit(8, 1000)  # SQLITE_LIMIT_LIKE_PATTERN_LENGTH
        connection.set_authorizer(_authorize)
        results = []
        for query, whose in ((gold, "the reference"), (answer, "the query")):
            try:
                results.append(_rows(connection, query, seconds, max_rows))
            except (sqlite3.Error, sqlite3.Warning, _Limit, ValueError, OverflowError) as error:
                return f"{'unknown: ' if whose == 'the reference' else ''}{whose} fails: {error}"
        return _why_different(results[0], results[1], is_ordered(gold))
    finally:
        connection.close()


def _authorize(action: int, _: str | None, name: str | None, *__: str | None) -> int:
    if action in _READING or (action == _FUNCTION and (name or "").lower() not in _FORBIDDEN):
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


def _rows(connection: sqlite3.Connection, query: str, seconds: float, max_rows: int) -> list[tuple[Any, ...]]:
    deadline = time.monotonic() + seconds
    connection.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS)
    cursor = connection.cursor()
    try:
        cursor.execute(query)
        if cursor.description is None:
            raise _Limit("it returns no rows")
        rows = cursor.fetchmany(max_rows + 1)
    except sqlite3.OperationalError as error:
        if "interrupted" in str(error):
            raise _Limit(f"not done after {seconds:g} s") from None
        raise
    finally:
        cursor.close()
    if len(rows) > max_rows:
        raise _Limit(f"more than {max_rows} rows")
    return rows


def is_ordered(query: str) -> bool:
    """Whether a query has an ORDER BY outside of all brackets, strings and comments."""
    depth, before = 0, ""
    for token in _TOKENS.findall(query):
        if token in "()":
            depth += 1 if token == "(" else -1
        elif token.startswith(("--", "/*")):
            continue
        elif depth == 0 and before == "order" and token.lower() == "by":
            return True
        before = token.lower() if depth == 0 else ""
    return False


def _why_different(gold: list[tuple[Any, ...]], answer: list[tuple[Any, ...]], ordered: bool) -> str:
    widths = [len(rows[0]) if rows else 0 for rows in (gold, answer)]
    if gold and answer and widths[0] != widths[1]:
        return f"{widths[1]} columns instead of {widths[0]}"
    if len(gold) != len(answer):
        return f"{len(answer)} rows instead of {len(gold)}"
    if not ordered:
        gold, answer = sorted(gold, key=_key), sorted(answer, key=_key)
    if all(_same_row(one, other) for one, other in zip(gold, answer, strict=True)):
        return ""
    return "other rows, or another order" if ordered else "other rows"


def _key(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Sorts rows that are equal but for rounding next to each other: by what is no number first."""
    kinds = tuple((0, "") if cell is None else (1, "") if _is_number(cell) else (2, _text(cell)) for cell in row)
    return kinds, tuple(float(f"{cell:.9g}") for cell in row if _is_number(cell))


def _text(cell: Any) -> str:
    return f"b{cell.hex()}" if isinstance(cell, bytes) else f"t{cell}"


def _is_number(cell: Any) -> bool:
    return isinstance(cell, (int, float))


def _same_row(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    return all(map(_same, one, other))


def _same(one: Any, other: Any) -> bool:
    if _is_number(one) and _is_number(other):
        if isinstance(one, int) and isinstance(other, int):
            return one == other
        return math.isclose(one, other, rel_tol=_TOLERANCE, abs_tol=1e-9)
    return type(one) is type(other) and one == other
