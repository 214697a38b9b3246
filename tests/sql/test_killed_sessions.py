"""A session in a directory that is killed at any change of a file: opened again, it is the result of its statements."""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tests.sweeps import some_of
from zset_join.sql import Session

TABLES = (
    "CREATE TABLE orders (id INT, customer STRING, total INT, PRIMARY KEY (id))",
    "CREATE TABLE customers (customer STRING, city STRING, PRIMARY KEY (customer))",
)
JOINED = "SELECT o.id, o.total, c.city FROM orders o JOIN customers c ON o.customer = c.customer"
BY_CITY = f"SELECT city, sum(total) AS total FROM ({JOINED}) j GROUP BY city"
STATEMENTS = (
    *TABLES,
    "INSERT INTO customers VALUES ('ada', 'oslo'), ('bob', 'rome')",
    f"CREATE MATERIALIZED VIEW joined AS {JOINED}",
    "CREATE TABLE cities (city STRING, total BIGINT, PRIMARY KEY (city))",
    f"CREATE MATERIALIZED VIEW by_city INTO cities AS {BY_CITY}",
    "CREATE TABLE files (city STRING, total BIGINT) WITH ('connector' = 'filesystem', 'path' = '{place}/files', 'format' = 'json')",
    "CREATE TABLE kept (id INT PRIMARY KEY, total INT) WITH ('connector'='duckdb', 'path'='{place}/kept.duckdb', 'table-name'='kept')",
    "CREATE TABLE log (customer STRING, total INT)",
    "CREATE TABLE newest (customer STRING, total INT, PRIMARY KEY (customer))",
    "INSERT INTO newest SELECT customer, total FROM log WHERE total > 0",
    "INSERT INTO files SELECT city, total FROM cities",
    "CREATE VIEW priced AS SELECT id, total FROM orders WHERE total > 6",
    "INSERT INTO kept SELECT id, total FROM priced",
    "INSERT INTO orders VALUES (1, 'ada', 5), (2, 'bob', 7)",
    "CREATE MATERIALIZED VIEW most AS SELECT max(total) AS most FROM joined",
    "INSERT INTO orders VALUES (2, 'ada', 8), (3, 'bob', 1)",
    "PAUSE MATERIALIZED VIEW by_city",
    "INSERT INTO orders VALUES (4, 'bob', 9), (1, 'bob', 3)",
    "INSERT INTO log VALUES ('ada', 1), ('bob', 2), ('ada', 3)",
    "RESUME MATERIALIZED VIEW by_city",
    "DROP MATERIALIZED VIEW most",
    "ALTER TABLE cities ADD COLUMN note STRING",
    "CREATE MATERIALIZED VIEW counts AS SELECT customer, count(*) AS n FROM orders GROUP BY customer",
    "ALTER VIEW priced AS SELECT id, total FROM orders",
    "INSERT INTO customers VALUES ('bob', 'oslo')",
    f"ALTER MATERIALIZED VIEW joined AS {JOINED} WHERE o.total > 1",
)


class Killed(BaseException):
    """The end of a process."""


@contextmanager
def killed_at(number: int | None) -> Iterator[Counter[str]]:
    """Let a thread end before it publishes its file of this number; None: never. Yields how many were published.

    Files of other threads do not count: an exception that ends a thread of Spark's leaves the JVM waiting for its answer.
    """
    done: Counter[str] = Counter()
    thread = threading.get_ident()

    def counted(own: Any) -> Any:
        def publish(*arguments: Any, **options: Any) -> Any:
            if threading.get_ident() != thread:
                return own(*arguments, **options)
            if number is not None and done["files"] >= number:
                raise Killed
            done["files"] += 1
            return own(*arguments, **options)

        return publish

    with pytest.MonkeyPatch.context() as patch:
        for name in ("rename", "replace", "link"):
            patch.setattr(os, name, counted(getattr(os, name)))
        yield done


def run(place: Path, number: int | None = None) -> int:
    """Run the statements, each once; return how many files were published."""
    session = Session(directory=place / "state", clock=lambda: 0)
    with killed_at(number) as done:
        try:
            for place_in, text in enumerate(STATEMENTS):
                with session.once(f"statement-{place_in}"):
                    session.sql(text.format(place=place))
        except Killed:
            pass
    session.close()
    return done["files"]


def held(session: Session, text: str) -> Counter[Any]:
    made: Any = session.sql(text)
    return Counter(tuple(row.values()) for row in made.table().to_pylist())


def check(place: Path) -> None:
    """Compare tables, views and outputs with DuckDB's queries over the same rows."""
    peer = duckdb.connect()
    for text in (
        *TABLES,
        *(one for one in STATEMENTS if one.startswith(("INSERT INTO orders VALUES", "INSERT INTO customers"))),
    ):
        peer.execute(text.replace("STRING", "VARCHAR").replace("INSERT INTO", "INSERT OR REPLACE INTO"))

    def wanted(text: str) -> Counter[Any]:
        return Counter(peer.execute(text).fetchall())

    files: Counter[Any] = Counter()
    for file in sorted((place / "files").glob("epoch-*.json")):
        for row in map(json.loads, file.read_text().splitlines()):
            files[row["city"], row["total"]] += row["_tp_delta"]
    with Session(directory=place / "state") as session:
        views = {name: Counter(tuple(row.values()) for row in rows.to_pylist()) for name, rows in session.views().items()}
        assert views["joined"] == wanted(f"{JOINED} WHERE o.total > 1")
        assert views["counts"] == wanted("SELECT customer, count(*) FROM orders GROUP BY customer")
        assert "most" not in views
        assert held(session, "SELECT * FROM cities") == wanted(f"SELECT *, NULL FROM ({BY_CITY})")
        assert held(session, "SELECT * FROM newest") == Counter({("ada", 3): 1, ("bob", 2): 1})
        assert held(session, "SELECT * FROM orders") == wanted("SELECT * FROM orders")
    assert Counter({row: weight for row, weight in files.items() if weight}) == wanted(BY_CITY)
    with duckdb.connect(str(place / "kept.duckdb"), read_only=True) as database:
        assert Counter(database.execute("SELECT id, total FROM kept").fetchall()) == wanted("SELECT id, total FROM orders")


@pytest.mark.parametrize("part", some_of([str(one) for one in range(24)], short=["1"]))
def test_a_session_killed_at_any_file_is_the_result_of_its_statements(tmp_path: Path, part: str) -> None:
    whole = run(tmp_path / "whole")
    check(tmp_path / "whole")
    for number in range(int(part), whole, 24):
        place = tmp_path / str(number)
        assert run(place, number) == number
        run(place)
        check(place)
