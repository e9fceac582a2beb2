"""Queries that return the same rows, and queries that must not do any harm."""

import hashlib
import sqlite3

import pytest

from stepjepa.errors import ConfigError, DataError
from stepjepa.evaluation.metrics import make_metric
from stepjepa.evaluation.metrics.sql import is_ordered, query_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("databases")
    (folder / "school").mkdir()
    with sqlite3.connect(folder / "school" / "school.sqlite") as connection:
        connection.executescript(
            """
            CREATE TABLE student (id INTEGER, name TEXT, gpa REAL, photo BLOB);
            INSERT INTO student VALUES (1, 'Ann', 3.5, x'00'), (2, 'Bob', NULL, NULL), (3, 'Cid', 0.3, x'ff'),
                                       (4, 'Ann', 3.5, x'00');
            """
        )
    connection.close()
    return folder


@pytest.fixture(scope="module")
def metric(folder):
    with make_metric("sql_execution", db_folder=str(folder), time_limit=2, max_rows=1000) as metric:
        yield metric


def note(metric, gold, answer):
    return metric.score(answer, {"query": gold, "db_id": "school"}).note


@pytest.mark.parametrize(
    ("gold", "answer", "why"),
    [
        ("SELECT name FROM student", "SELECT name FROM student ORDER BY id DESC", ""),
        ("SELECT COUNT(*) FROM student", "SELECT 4.0", ""),
        ("SELECT gpa FROM student WHERE id = 3", "SELECT 0.1 + 0.2", ""),
        ("SELECT gpa, id FROM student", "SELECT gpa + 1e-12, id FROM student ORDER BY 1", ""),
        ("SELECT id FROM student WHERE 0", "SELECT name FROM student WHERE name = 'x'", ""),
        ("SELECT id FROM (SELECT id FROM student ORDER BY id)", "SELECT id FROM student ORDER BY id DESC", ""),
        ("SELECT id FROM student", "SELECT id FROM student; DROP TABLE student", ""),
        ("SELECT id FROM student;", "Here it is:\n```sql\nSELECT id FROM student;\n```\nIt lists ids.", ""),
        ("SELECT id FROM student ORDER BY id", "SELECT id FROM student ORDER BY -id", "different rows or order"),
        ("SELECT id, name FROM student", "SELECT name, id FROM student", "different rows"),
        ("SELECT DISTINCT name FROM student", "SELECT name FROM student", "4 rows instead of 3"),
        ("SELECT id FROM student WHERE id = 2", "SELECT '2'", "different rows"),
        ("SELECT 9007199254740993", "SELECT 9007199254740992", "different rows"),
        ("SELECT 1", "SELEC 1", 'the query fails: near "SELEC": syntax error'),
        ("SELECT x FROM student", "SELECT 1", "unknown: the reference fails: no such column: x"),
        ("SELECT 1", "-- nothing", "the query fails: it returns no rows"),
    ],
)
def test_the_same_and_other_rows(metric, gold, answer, why):
    judgement = metric.score(answer, {"query": gold, "db_id": "school"})
    assert judgement.note == why and judgement.score == (why == "")
    kind = "invalid" if why.startswith("the query fails") else None
    assert judgement.undecided == ("unknown" if why.startswith("unknown") else kind)


@pytest.mark.parametrize(
    "query",
    [
        "DROP TABLE student",
        "CREATE TEMP TABLE t (x)",
        "PRAGMA query_only = OFF",
        "ATTACH '{folder}/new.db' AS new",
        "VACUUM INTO '{folder}/new.db'",
        "SELECT load_extension('x')",
        "SELECT zeroblob(1000000000)",
        "BEGIN EXCLUSIVE",
    ],
)
def test_nothing_but_reading(metric, folder, query):
    file = folder / "school" / "school.sqlite"
    before = hashlib.sha256(file.read_bytes()).hexdigest()
    said = note(metric, "SELECT 1", query.replace("{folder}", str(folder)))
    assert said.startswith("the query fails: ") and ("auth" in said or "readonly" in said), said
    assert hashlib.sha256(file.read_bytes()).hexdigest() == before
    assert sorted(path.name for path in folder.rglob("*")) == ["school", "school.sqlite"]


def test_limits(metric):
    endless = "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r)"
    slow = metric.score(f"{endless} SELECT count(*) FROM r", {"query": "SELECT 1", "db_id": "school"})
    assert slow[3:] == ("unknown: no result after 2 s", "unknown")
    assert note(metric, "SELECT 1", f"{endless} SELECT x FROM r") == "the query fails: more than 1000 rows"
    assert note(metric, "SELECT 1", f"SELECT '{'x' * 30_000}'") == "longer than 20000 characters"
    assert note(metric, "SELECT 1", "SELECT 1") == ""  # and it goes on


def test_where_the_database_is(metric, folder, tmp_path):
    chat = [{"role": "user", "content": "How?\nFor db_id:[school]"}, {"role": "assistant", "content": "SELECT 4"}]
    row = {"messages": chat}
    count = "SELECT count(*) FROM student"
    assert metric.score(count, row)[:4] == (1.0, "SELECT 4", count, "")
    alone = make_metric("sql_execution")
    path = str(folder / "school" / "school.sqlite")
    assert alone.score("SELECT 4", {"sql": "SELECT count(*) FROM student", "db_path": path}).score == 1
    alone.close()
    with pytest.raises(ConfigError, match="needs db_folder"):
        alone.score("SELECT 1", {"query": "SELECT 1", "db_id": "school"})
    for row, message in [
        ({"db_id": "other"}, "no database .*other.sqlite"),
        ({"db_id": "../school"}, "not the name of a database"),
        ({}, "names no database"),
    ]:
        with pytest.raises(DataError, match=message):
            metric.score("SELECT 1", {"query": "SELECT 1", **row})
    with pytest.raises(ConfigError, match="no such folder"):
        make_metric("sql_execution", db_folder=str(tmp_path / "none"))
    assert metric.score(" ", {"query": "SELECT 1", "db_id": "school"})[:4] == (0.0, "SELECT 1", None, "no query found")


def test_what_is_read_of_a_query():
    for query, ordered in {
        "SELECT a FROM t ORDER BY a": True,
        "SELECT a FROM t UNION SELECT b FROM t ORDER /* now */ BY 1": True,
        "SELECT row_number() OVER (ORDER BY a) FROM t": False,
        "SELECT 'x ORDER BY y' FROM t -- ORDER BY a": False,
        'SELECT "order", "by" FROM t': False,
    }.items():
        assert is_ordered(query) is ordered, query
    assert query_of("SELECT ';' AS a; SELECT 2") == "SELECT ';' AS a"
    assert query_of("```sql\nSELECT 1\n```\nor\n```SQL\nSELECT 2;\n```") == "SELECT 2"
