"""`sql_execution`: the generated query returns the rows that the reference query returns."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from stepjepa.errors import ConfigError, DataError
from stepjepa.evaluation.metrics.base import Metric, Verdict, check_positive
from stepjepa.evaluation.metrics.worker import Worker, WorkerError, WorkerTimeout

_FENCE = re.compile(r"```[ \t]*(?:sql|sqlite)?[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE)
_IN_PROMPT = re.compile(r"\bdb_id:\s*\[([^\]\n]+)\]")
_LONGEST = 20_000  # characters of a query
_MEMORY = 2 * 2**30
_GRACE = 2.0  # seconds for opening, comparing and closing


@dataclass(kw_only=True)
class SqlExecution(Metric):
    """Runs both queries on the row's SQLite database and compares the rows they return.

    The order of rows counts only where the reference has an ORDER BY of its own (not in a subquery); duplicates count; the
    order of columns counts, their names do not. 2 and 2.0 are equal, floats to a relative 1e-6, NULL is only NULL.

    The database is the file in the row's `db_path`, or the one of its `db_id` in `db_folder` (`db_id/db_id.sqlite`, as
    Spider lays them out, or `db_id.sqlite`); a `db_id:[name]` in the user's message serves as well. It is opened for
    reading only, in a process of its own; nothing but SELECT is permitted.

    Attributes:
        db_folder: where the databases are.
        time_limit: seconds for each of the two queries.
        max_rows: rows that a query may return.
    """

    db_folder: str | None = None
    time_limit: float = 10.0
    max_rows: int = 100_000
    _worker: Worker = field(init=False, repr=False, compare=False)

    name: ClassVar[str] = "sql_execution"
    columns: ClassVar[tuple[str, ...]] = ("messages", "completion", "code", "query", "sql", "answer", "ground_truth")

    def __post_init__(self) -> None:
        check_positive("time_limit", self.time_limit)
        check_positive("max_rows", self.max_rows)
        if self.db_folder is not None and not Path(self.db_folder).is_dir():
            raise ConfigError(f"db_folder: no folder {self.db_folder}")
        self._worker = Worker("stepjepa.evaluation.metrics.sql_worker:compare", _MEMORY)

    def score(self, generated: str, row: Mapping[str, Any]) -> Verdict:
        """1 where both queries return the same rows.

        Raises:
            DataError: the row has no reference, or its database is not there.
        """
        gold, answer = query_of(self.reference(row)), query_of(generated)
        database = self._database(row)
        if not answer:
            return Verdict(0.0, gold, None, "no query found")
        if max(len(gold), len(answer)) > _LONGEST:
            return Verdict(0.0, gold, answer, f"longer than {_LONGEST} characters")
        try:
            note = self._worker.call(
                2 * self.time_limit + _GRACE,
                database=str(database),
                gold=gold,
                answer=answer,
                seconds=self.time_limit,
                max_rows=self.max_rows,
            )
        except WorkerTimeout:
            note = "unknown: the queries took too long"
        except WorkerError as error:
            note = f"unknown: {error}"
        return Verdict(float(not note), gold, answer, note)

    def close(self) -> None:
        """End the process that runs queries."""
        self._worker.close()

    def _database(self, row: Mapping[str, Any]) -> Path:
        """The file of a row's database."""
        folder = Path(self.db_folder) if self.db_folder is not None else None
        if isinstance(row.get("db_path"), str) and row["db_path"]:
            places = [(folder or Path()) / row["db_path"]]
        else:
            name = _database_name(row)
            if folder is None:
                raise ConfigError(f"the metric sql_execution needs db_folder, the folder of the database {name!r}")
            if name in (".", "..") or "/" in name or "\\" in name:
                raise DataError(f"db_id {name!r} is no name of a database")
            places = [
                folder / stem for stem in (f"{name}/{name}.sqlite", f"{name}.sqlite", f"{name}/{name}.db", f"{name}.db")
            ]
        found = next((place for place in places if place.is_file()), None)
        if found is None:
            raise DataError(f"no database {places[0]}")
        return found.absolute()


def _database_name(row: Mapping[str, Any]) -> str:
    named = row.get("db_id")
    if isinstance(named, str) and named:
        return named
    messages = row.get("messages")
    for turn in messages if isinstance(messages, (list, tuple)) else ():
        content = turn.get("content") if isinstance(turn, Mapping) else None
        name = _IN_PROMPT.search(content) if isinstance(content, str) else None
        if name is not None:
            return name[1].strip()
    found = ", ".join(map(str, row))
    raise DataError(f"the row names no database: no column db_path or db_id (columns found: {found})")


def query_of(text: str) -> str:
    """The query in a text: its last fenced block, else all of it; the first statement, without the semicolon."""
    from sqlite3 import complete_statement

    if text.count("```") > 1:
        blocks = _FENCE.findall(text)
        text = blocks[-1] if blocks else text
    text = text.strip()
    if len(text) <= _LONGEST:
        for end in (place for place, sign in enumerate(text) if sign == ";"):
            if complete_statement(text[: end + 1]):
                text = text[:end]
                break
    return text.strip()
