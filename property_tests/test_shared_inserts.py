"""The law of INSERT: it is one epoch of every query that reads the table, or of none.

Random sets of queries over two shared tables are fed random INSERTs, of which some fail in one query: by its WHERE or SELECT,
behind a join, behind a group. After every statement every query equals DuckDB's answer over the rows that were accepted, in
memory, and with a directory, also after it was opened again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from zset_join.core.errors import BadInputError
from zset_join.sql import Session, connect

Row = dict[str, Any]
Tables = dict[str, list[Row]]

_SCHEMAS = {
    "t": pa.schema([("id", pa.int32()), ("k", pa.int32()), ("a", pa.int32()), ("b", pa.int32()), ("s", pa.string())]),
    "u": pa.schema([("k", pa.int32()), ("c", pa.int32())]),
}
_CREATE = "CREATE TABLE t (id INT, k INT, a INT, b INT, s STRING, PRIMARY KEY (id)); CREATE TABLE u (k INT, c INT)"


def _no_row(row: Row) -> bool:
    return False


def _never(tables: Tables) -> bool:
    return False


def _joins_zero(tables: Tables) -> bool:
    return any(one["k"] == other["k"] and other["c"] == 0 for one in tables["t"] for other in tables["u"])


def _has_three(tables: Tables) -> bool:
    keys = [one["k"] for one in tables["t"]]
    return any(keys.count(key) == 3 for key in keys)


_QUERIES: list[tuple[str, str, Callable[[Row], bool], Callable[[Tables], bool]]] = [
    ("SELECT id, a + b AS total FROM t", "t", _no_row, _never),
    ("SELECT id, a / b AS ratio FROM t", "t", lambda row: row["b"] == 0, _never),
    ("SELECT id, a FROM t WHERE CAST(s AS INT) > 4", "t", lambda row: not row["s"].isdecimal(), _never),
    ("SELECT k, 10 / c AS share FROM u", "u", lambda row: row["c"] == 0, _never),
    ("SELECT t.id, t.a / u.c AS ratio FROM t JOIN u ON t.k = u.k", "", _no_row, _joins_zero),
    ("SELECT k, sum(a) / (count(*) - 3) AS odd FROM t GROUP BY k", "", _no_row, _has_three),
    ("SELECT t.k, count(*) AS pairs FROM t JOIN u ON t.k = u.k GROUP BY t.k", "", _no_row, _never),
]


def _rows(chance: random.Random, table: str) -> list[Row]:
    count = chance.choice([1, 1, 2, 4])
    if table == "u":
        return [{"k": chance.randint(0, 3), "c": chance.choice([0, 1, 2, 4, 5])} for _ in range(count)]
    return [
        {
            "id": chance.randint(0, 7),
            "k": chance.randint(0, 3),
            "a": chance.randint(0, 9),
            "b": chance.choice([0, 1, 2, 4, 5]),
            "s": chance.choice(["1", "3", "7", "9", "x"]),
        }
        for _ in range(count)
    ]


def _with(tables: Tables, name: str, rows: Iterable[Row]) -> Tables:
    if name == "u":
        return {**tables, "u": [*tables["u"], *rows]}
    return {**tables, "t": list({**{one["id"]: one for one in tables["t"]}, **{one["id"]: one for one in rows}}.values())}


def _statement(name: str, rows: Iterable[Row]) -> str:
    return f"INSERT INTO {name} VALUES " + ", ".join(
        "(" + ", ".join(f"'{one}'" if isinstance(one, str) else str(one) for one in row.values()) + ")" for row in rows
    )


def _expected(text: str, tables: Tables) -> list[tuple[Any, ...]]:
    with duckdb.connect() as connection:
        for name, rows in tables.items():
            connection.register(name, pa.Table.from_pylist(rows, schema=_SCHEMAS[name]))
        return _rounded(connection.execute(text).fetchall())


def _rounded(rows: Iterable[Iterable[Any]]) -> list[tuple[Any, ...]]:
    return sorted(tuple(round(float(one), 6) for one in row) for row in rows)


def _held(table: pa.Table) -> list[tuple[Any, ...]]:
    return _rounded(row.values() for row in table.to_pylist())


def _opened(directory: Path | None, policy: str, texts: Iterable[str]) -> Session:
    session = connect() if directory is None else connect(directory=directory)
    session.sql(f"SET on_bad_input = '{policy}'; {_CREATE}")
    for text in texts:
        session.sql(text).start()  # type: ignore[union-attr] - a SELECT gives a query
    return session


@pytest.mark.parametrize("policy", ["error", "quarantine"])
@pytest.mark.parametrize("seed", range(1))
@pytest.mark.parametrize("place", ["memory", "directory"])
def test_an_insert_is_taken_by_every_query_or_by_none(tmp_path: Path, place: str, seed: int, policy: str) -> None:
    chance = random.Random(f"{seed} {policy}")
    directory = tmp_path / "shop" if place == "directory" else None
    chosen = chance.sample(_QUERIES, 4)
    texts = [text for text, *_ in chosen]
    session, tables, outcomes = _opened(directory, policy, texts), {"t": [], "u": []}, set()
    for number in range(10):
        name = chance.choice("ttu")
        rows = _rows(chance, name)
        fails = [row for row in rows if any(of == name and failing(row) for _, of, failing, _ in chosen)]
        kept = [row for row in rows if row not in fails] if policy == "quarantine" else rows
        after = _with(tables, name, kept)
        is_refused = any(failing(after) for *_, failing in chosen) or (policy == "error" and bool(fails))
        if is_refused:
            with pytest.raises(BadInputError, match='query "query_'):
                session.sql(_statement(name, rows))
        else:
            session.sql(_statement(name, rows))
            tables = after
        outcomes.add(is_refused or bool(fails))
        if directory is not None and number % 4 == 3:
            session.close()
            session = _opened(directory, policy, texts)
        for running, text in zip(session.running, texts, strict=True):
            assert _held(running.table()) == _expected(text, tables), (number, text)
        assert _held(session.sql("SELECT id, a FROM t").table()) == _expected("SELECT id, a FROM t", tables)
    session.close()
    assert outcomes == {True, False}
