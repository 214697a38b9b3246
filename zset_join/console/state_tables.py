"""State of a checkpoint as SQL tables: searched by value and counted by key.

It is `zset_join.tools.inspection`, kept open until an epoch is committed. Cost of the first question after an epoch: every live
row is read and written once, which is why the page reads it only at a click.
"""

# ruff: noqa: S608 - names are quoted, values are parameters.

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from zset_join.checkpoint.reading import stages_of
from zset_join.console.watched import MOST_ROWS, shown, shown_columns, shown_table, typed_values
from zset_join.core.errors import OptionError
from zset_join.core.extras import needed_for
from zset_join.sinks.duckdb_file import quote

with needed_for("the console"):
    import duckdb

    from zset_join.tools.inspection import open_state

__all__ = ["StateTables"]

_MOST_KEYS = 20
_BUCKET, _GROUP_ROWS, _WEIGHT = "_zset_bucket", "_zset_rows", "_zset_weight"


class StateTables:
    def __init__(self, location: str) -> None:
        self._location = location
        self._lock = threading.Lock()
        self._opened: tuple[int, duckdb.DuckDBPyConnection] | None = None

    def rows(self, epoch: int, table: str, where: Mapping[str, str]) -> dict[str, Any]:
        with self._lock:
            connection = self._connection(epoch)
            names = self._names(connection)
            if table not in names:
                raise OptionError(f"there is no table {table!r}; there are {names}.", code="ROW_QUESTION", expected=names)
            schema = _arrow(connection, f"SELECT * FROM {quote(table)} LIMIT 0").schema
            values = typed_values(schema, where)
            tests = [f"{quote(name)} IS NOT DISTINCT FROM ?" for name in values]
            condition = f" WHERE {' AND '.join(tests)}" if tests else ""
            given = list(values.values())
            ((total,),) = connection.execute(f"SELECT count(*) FROM {quote(table)}{condition}", given).fetchall()
            found = _arrow(connection, f"SELECT * FROM {quote(table)}{condition} LIMIT {MOST_ROWS}", given)
        return {"columns": shown_columns(found.schema), "rows": shown_table(found), "weights": None, "total": total}

    def names(self, epoch: int) -> list[str]:
        with self._lock:
            return self._names(self._connection(epoch))

    def fullest(self, epoch: int) -> str:
        """Return the name of the table with the most rows; `about`, where none has any."""
        with self._lock:
            fullest = "SELECT view FROM about WHERE rows > 0 ORDER BY rows DESC, view LIMIT 1"
            found = self._connection(epoch).execute(fullest).fetchall()
        return str(found[0][0]) if found else "about"

    def hot_keys(self, epoch: int) -> dict[str, Any]:
        """Return, per table of the state, the keys that have the most rows, and of joins those with the most pairs."""
        stages = stages_of(self._location)
        with self._lock:
            connection = self._connection(epoch)
            found = []
            counted: dict[str, list[tuple[str, list[str]]]] = {}
            about = "SELECT view, stage, stream, rows FROM about ORDER BY ALL"
            for view, name, stream, rows in connection.execute(about).fetchall():
                stage = stages[name]
                columns = self._columns(connection, view)
                if _GROUP_ROWS in columns:
                    shown_names = [one for one in columns if one not in (_GROUP_ROWS, _BUCKET)]
                    query = f"SELECT {', '.join(map(quote, shown_names))}, {quote(_GROUP_ROWS)} FROM {quote(view)}"
                    top = _arrow(connection, f"{query} ORDER BY {len(shown_names) + 1} DESC LIMIT {_MOST_KEYS}")
                    found.append(_entry(name, view, stream, rows, "rows of the group", top))
                    continue
                table = view.removeprefix(f"{name.replace('-', '_')}_")
                given = stage.state_tables.get(table)
                key = list(stage.inputs[0].key) if stage.forwards or given is None else list(given.columns)
                key = [one for one in key if one in columns]
                if not key:
                    continue
                listed = ", ".join(map(quote, key))
                grouped = f"SELECT {listed}, count(*) AS n FROM {quote(view)} GROUP BY {listed}"
                top = _arrow(connection, f"{grouped} ORDER BY n DESC LIMIT {_MOST_KEYS}")
                found.append(_entry(name, view, stream, rows, "rows", top))
                counted.setdefault(name, []).append((view, key))
            for name, sides in counted.items():
                if len(sides) == 2 and len(sides[0][1]) == len(sides[1][1]) and len(stages[name].inputs) == 2:
                    found.append(_entry(name, name, "both sides", None, "pairs", _arrow(connection, _pairs(sides))))
        return {"stages": found, "counted": "rows that are remembered now"}

    def _connection(self, epoch: int) -> duckdb.DuckDBPyConnection:
        if self._opened is None or self._opened[0] != epoch:
            self._closed()
            self._opened = epoch, open_state(self._location)
        return self._opened[1]

    def close(self) -> None:
        with self._lock:
            self._closed()

    def _closed(self) -> None:
        if self._opened is not None:
            self._opened[1].close()
            self._opened = None

    @staticmethod
    def _names(connection: duckdb.DuckDBPyConnection) -> list[str]:
        named = "SELECT view_name FROM duckdb_views() WHERE schema_name = 'main' AND NOT internal ORDER BY 1"
        return [name for (name,) in connection.execute(named).fetchall()]

    @staticmethod
    def _columns(connection: duckdb.DuckDBPyConnection, view: str) -> list[str]:
        return [one[0] for one in connection.execute(f"SELECT * FROM {quote(view)} LIMIT 0").description or []]


def _arrow(connection: duckdb.DuckDBPyConnection, query: str, values: Sequence[Any] = ()) -> pa.Table:
    return connection.sql(query, params=list(values)).to_arrow_table()


def _pairs(sides: list[tuple[str, list[str]]]) -> str:
    """Return the keys of a join with the most pairs of a left and a right row."""
    (left, left_key), (right, right_key) = sides
    lefts, rights = ", ".join(map(quote, left_key)), ", ".join(map(quote, right_key))
    same = " AND ".join(f"l.{quote(one)} = r.{quote(other)}" for one, other in zip(left_key, right_key, strict=True))
    listed = ", ".join(f"l.{quote(one)}" for one in left_key)
    return (
        f"SELECT {listed}, l.n * r.n AS pairs FROM (SELECT {lefts}, count(*) AS n FROM {quote(left)} GROUP BY {lefts}) l "
        f"JOIN (SELECT {rights}, count(*) AS n FROM {quote(right)} GROUP BY {rights}) r ON {same} "
        f"ORDER BY pairs DESC LIMIT {_MOST_KEYS}"
    )


def _entry(stage: str, table: str, stream: str, rows: int | None, unit: str, top: pa.Table) -> dict[str, Any]:
    keys = shown_table(top)
    return {
        "stage": stage,
        "table": table,
        "input": shown(stream),
        "rows": rows,
        "unit": unit,
        "columns": shown_columns(top.schema)[:-1],
        "keys": [[one[:-1], one[-1]] for one in keys],
    }
