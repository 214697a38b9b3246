"""Random sessions of which only one reads: its readers change no view, and they have the rows of the views.

Two sessions run the same statements at the same times. In one of them queries over the views are explained, listed, started,
stopped and compared, also as views of their own and as views over these. The law: after every step all views and written tables
of both are equal, also when both are opened again; and what a reader has is its query over the rows of the views that it reads,
which DuckDB computes.

The views depend on when their rows came: by processing time, by `state_ttl`, by event time with rows behind the watermark.
"""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path

import duckdb
import pyarrow as pa

from property_tests.laws import LawBrokenError
from zset_join.core.errors import ZsetJoinError
from zset_join.sql import Session, connect
from zset_join.sql.tables.results import Query

__all__ = ["reading_changes_nothing"]

_TABLES = """
CREATE TABLE visits (id INT, k INT, at TIMESTAMP(3), WATERMARK FOR at AS at);
CREATE TABLE names (k INT, n STRING, at TIMESTAMP(3), PRIMARY KEY (k), WATERMARK FOR at AS at);
CREATE TABLE others (k INT, x INT);
CREATE TABLE kept (id INT, n STRING, PRIMARY KEY (id));
"""
_VIEWS = (
    "SELECT id, n FROM visits LEFT JOIN names FOR SYSTEM_TIME AS OF PROCTIME() ON visits.k = names.k",
    "SELECT id, n FROM visits JOIN names FOR SYSTEM_TIME AS OF PROCTIME() ON visits.k = names.k WHERE id > 2",
    "SELECT id, n FROM visits LEFT JOIN names FOR SYSTEM_TIME AS OF visits.at ON visits.k = names.k",
    "SELECT /*+ STATE_TTL('visits'='2 s','names'='2 s') */ id, n FROM visits JOIN names ON visits.k = names.k",
    "SELECT /*+ STATE_TTL('visits'='3 s') */ DISTINCT id, CAST(k AS STRING) AS n FROM visits",
    "SELECT id, n FROM visits JOIN names ON visits.k = names.k",
    "SELECT count(*) AS id, n FROM {view} GROUP BY n",
    "SELECT id, n FROM {view} WHERE id < 5",
    "SELECT {view}.id, names.n FROM {view} LEFT JOIN names FOR SYSTEM_TIME AS OF PROCTIME() ON {view}.id = names.k",
)
_READERS = (
    "SELECT * FROM {view}",
    "SELECT id, n FROM {view}",
    "SELECT n, id FROM {view}",
    "SELECT id FROM {view} WHERE id > 3",
    "SELECT n, count(*) AS c, max(id) AS m FROM {view} GROUP BY n",
    "SELECT a.id, b.n FROM {view} AS a JOIN {view} AS b ON a.id = b.id",
    "SELECT a.id, b.n FROM {view} AS a LEFT JOIN {other} AS b ON a.n = b.n",
    "SELECT id FROM {view} UNION ALL SELECT id FROM {other}",
)
_SETTINGS = ("", "", "SET tombstone_retention = '3 h'; ", "SET state_ttl = '1 s'; ")
"""Of readers; one with a stage of its own would end its rows by the last one."""
_RESET = "RESET state_ttl; RESET tombstone_retention"


class _Twins:
    """Two sessions with the same statements.

    Args:
        draw: what everything is drawn from.
        directory: of both; None: in memory.
    """

    def __init__(self, draw: random.Random, directory: Path | None) -> None:
        self.draw, self.now_us, self._directory = draw, 0, directory
        self.texts: dict[str, str] = {}
        """Queries of which readers have rows, over the views, by the name of what runs."""
        self.readable: dict[str, str] = {}
        """What readers may read: columns `id` and `n`, as a query over the views."""
        self._visit = self._numbered = 0
        self.reading, self.alone = self._opened("reading"), self._opened("alone")
        self.both(_TABLES)
        first = draw.choice(_VIEWS[:3])
        self.views = {"v0": first}
        for number in range(1, draw.randint(2, 4)):
            self.views[f"v{number}"] = draw.choice(_VIEWS).format(view=draw.choice([*self.views]))
        for name, text in self.views.items():
            self.both(f"CREATE MATERIALIZED VIEW {name} AS {text}")
            self.readable[name] = name
        self.both("INSERT INTO kept SELECT id, n FROM v0")

    def _opened(self, name: str) -> Session:
        directory = None if self._directory is None else self._directory / name
        return connect(directory=directory, clock=lambda: self.now_us)

    def close(self) -> None:
        """End both."""
        self.reading.close()
        self.alone.close()

    def both(self, statement: str) -> None:
        """Run a statement in both."""
        for session in (self.reading, self.alone):
            session.sql(statement)

    def change(self) -> str:
        """Let rows come and time pass; return how."""
        draw = self.draw
        self.now_us += draw.choice([0, 0, 1, 3]) * 500_000
        self._visit += 1
        at = f"TIMESTAMP '2026-01-01 00:00:{max(0, min(59, self._visit + draw.randint(-4, 2))):02}'"
        statement = draw.choice(
            [
                f"INSERT INTO visits VALUES ({self._visit}, {draw.randint(1, 3)}, {at})",
                f"INSERT INTO visits VALUES ({self._visit}, {draw.randint(1, 3)}, {at})",
                f"INSERT INTO names VALUES ({draw.randint(1, 3)}, '{draw.choice('abc')}', {at})",
                f"DELETE FROM names WHERE k = {draw.randint(1, 3)}",
                "INSERT INTO others VALUES (1, 1)",
            ]
        )
        self.both(statement)
        return statement

    def read(self) -> str:
        """Let one session read; return how.

        Raises:
            LawBrokenError: it reads other rows than the views have.
        """
        draw = self.draw
        view, other = (draw.choice([*self.readable]) for _ in range(2))
        number = draw.randrange(len(_READERS))
        text = _READERS[number].format(view=view, other=other)
        over = _READERS[number].format(view=f"({self.readable[view]})", other=f"({self.readable[other]})")
        over = over.replace("FROM (v", "FROM (FROM v").replace("JOIN (v", "JOIN (FROM v")
        how = draw.choice(["explain", "table", "start", "start", "create", "alter", "stop"])
        setting = draw.choice(_SETTINGS[: 4 if number < 4 else 3])
        self._numbered += 1
        name = f"r{self._numbered}"
        if how == "explain":
            self.reading.sql(f"{setting}EXPLAIN {text}")
        elif how == "table":
            self._compare(text, _query(self.reading, setting + text).table(), over)
        elif how == "start":
            _query(self.reading, setting + text).start(name)
            self.texts[name] = over
        elif how == "create":
            self.reading.sql(f"{setting}CREATE MATERIALIZED VIEW {name} AS {text}")
            self.texts[name] = over
            if number < 2:
                self.readable[name] = over
        elif how == "alter":
            with suppress(ZsetJoinError):  # refused or not, it is a preview
                self.reading.sql(f"EXPLAIN ALTER MATERIALIZED VIEW {draw.choice([*self.views])} AS {draw.choice(_VIEWS[:6])}")
        elif self.texts:
            name = draw.choice([*self.texts])
            (running,) = [one for one in self.reading.running if one.name == name]
            running.stop()
            del self.texts[name]
            self.readable.pop(name, None)
        self.reading.sql(_RESET)
        return f"{how} {setting}{name}: {text}"

    def reopen(self) -> str:
        """Open both again."""
        if self._directory is not None:
            self.close()
            self.reading, self.alone = self._opened("reading"), self._opened("alone")
        return "reopen"

    def check(self) -> int:
        """Compare both sessions, and the readers with the views; return how many rows the readers have.

        Raises:
            LawBrokenError: they differ.
        """
        for session in (self.reading, self.alone):
            session.advance_due()
        read, alone = self.reading.views(), self.alone.views()
        for name in self.views:
            _same(f"view {name}: {self.views[name]}", read[name], alone[name])
        _same("table kept", *(_query(one, "SELECT * FROM kept").table() for one in (self.reading, self.alone)))
        for name, text in self.texts.items():
            self._compare(f"{name}: {text}", read[name], text)
        return sum(read[name].num_rows for name in self.texts)

    def _compare(self, what: str, found: pa.Table, text: str) -> None:
        views = self.reading.views()
        with duckdb.connect() as connection:
            for name in self.views:
                connection.register(name, views[name])
            _same(what, found, connection.sql(text).to_arrow_table())


def reading_changes_nothing(seed: int, directory: Path | None) -> int:
    """Run two sessions of which one reads; return how many rows the readers had.

    Args:
        seed: what everything is drawn from.
        directory: an empty one for the sessions; None: in memory.

    Raises:
        LawBrokenError: a view or table differs, or a reader has other rows than the views.
    """
    draw = random.Random(seed)
    twins, done, rows = _Twins(draw, directory), list[str](), 0
    try:
        for _ in range(25):
            step = draw.choice([twins.change, twins.change, twins.read, twins.reopen if draw.random() < 0.3 else twins.read])
            done.append(step())
            rows += twins.check()
    except LawBrokenError as error:
        raise LawBrokenError(f"seed {seed}: {error}\n" + "\n".join([*twins.views.values(), *done])) from error
    finally:
        twins.close()
    return rows


def _query(session: Session, text: str) -> Query:
    query = session.sql(text)
    assert isinstance(query, Query)
    return query


def _same(what: str, found: pa.Table, expected: pa.Table) -> None:
    one, other = (sorted(map(str, (tuple(row.values()) for row in rows.to_pylist()))) for rows in (found, expected))
    if one != other:
        raise LawBrokenError(f"{what}: expected {other}, got {one}")
