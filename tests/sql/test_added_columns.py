"""Tables that get columns while they have rows: every view stays what it was, and keeps its state; new ones have the columns."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from zset_join.core.errors import SqlError
from zset_join.sql import Session, connect

_TABLES = (
    "CREATE TABLE t (k INT, v INT, g STRING, PRIMARY KEY (k)); CREATE TABLE l (k INT, n INT); "
    "CREATE TABLE sums (g STRING, s BIGINT, PRIMARY KEY (g)); "
)
_VIEWS = (
    "CREATE MATERIALIZED VIEW star AS SELECT * FROM t; CREATE VIEW named AS SELECT * FROM t; "
    "CREATE MATERIALIZED VIEW by_g INTO sums AS SELECT g, sum(v) AS s FROM named GROUP BY g; "
    "CREATE MATERIALIZED VIEW joined AS SELECT * FROM t JOIN l USING (k); "
    "CREATE MATERIALIZED VIEW large AS SELECT g, max(s) AS s FROM sums WHERE s > 1 GROUP BY g; "
)
_ADDED = (
    "ALTER TABLE t ADD COLUMN c INT; ALTER TABLE l ADD (m INT, o STRING), ADD p INT; ALTER TABLE sums ADD COLUMNS (q INT); "
)
_NEW = "CREATE MATERIALIZED VIEW all_t AS SELECT * FROM t; CREATE MATERIALIZED VIEW all_l AS SELECT * FROM l"


def _shown(session: Session) -> dict[str, list[Any]]:
    return {name: sorted(tuple(row.values()) for row in rows.to_pylist()) for name, rows in session.views().items()}


@pytest.mark.parametrize("where", ["memory", "directory"])
def test_views_stay_what_they_were_and_new_ones_have_the_columns(where: str, tmp_path: Path) -> None:
    place = None if where == "memory" else tmp_path / "s"
    with connect(directory=place, keep_inputs=True) as session:
        session.sql(_TABLES + _VIEWS)
        session.sql("INSERT INTO t VALUES (1, 1, 'x'), (2, 2, 'y'); INSERT INTO l VALUES (1, 1), (2, 5), (1, 7)")
        before = _shown(session)
        for running in session.running:
            running.changelog()
        session.sql(_ADDED)
        assert (_shown(session), [len(running.changelog()) for running in session.running]) == (before, [0] * 4)

        session.sql(f"{_NEW}; INSERT INTO t VALUES (1, 5, 'x', 7); INSERT INTO t (k, v, g) VALUES (3, 3, 'z')")
        session.sql("INSERT INTO sums VALUES ('w', 9, 1)")
        wanted = {
            "star": [(1, 5, "x"), (2, 2, "y"), (3, 3, "z")],
            "by_g": [("x", 5), ("y", 2), ("z", 3)],
            "joined": [(1, 5, "x", 1), (1, 5, "x", 7), (2, 2, "y", 5)],
            "large": [("w", 9), ("x", 5), ("y", 2), ("z", 3)],
            "all_t": [(1, 5, "x", 7), (2, 2, "y", None), (3, 3, "z", None)],
            "all_l": [(1, 1, None, None, None), (1, 7, None, None, None), (2, 5, None, None, None)],
        }
        assert _shown(session) == wanted
        assert all(running.verify().equal for running in session.running)
        held = session.sql("SELECT * FROM sums WHERE g < 'y'").table().to_pylist()
        assert sorted(tuple(row.values()) for row in held) == [("w", 9, 1), ("x", 5, None)]


def test_stages_that_read_none_of_the_added_columns_keep_their_state_over_restarts(tmp_path: Path) -> None:
    with connect(directory=tmp_path) as session:
        session.sql(_TABLES + _VIEWS)
        session.sql("INSERT INTO t VALUES (1, 1, 'x'), (2, 2, 'y'); INSERT INTO l VALUES (1, 1)")
        kept = {state.name for state in session.running[0].whole.plan.states if state.stage.kind in {"join", "aggregate"}}
        session.sql(_ADDED)
        assert kept <= {state.name for state in session.running[0].whole.plan.states}
    with connect(directory=tmp_path) as session:
        session.sql(_TABLES + _VIEWS + _ADDED + _NEW)
        session.sql("INSERT INTO t VALUES (2, 4, 'y', 1)")
        assert kept <= {state.name for state in session.running[0].whole.plan.states}
        assert _shown(session)["all_t"] == [(1, 1, "x", None), (2, 4, "y", 1)]
        session.sql(
            "ALTER VIEW named AS SELECT k, c AS v, g FROM t; DROP MATERIALIZED VIEW all_l; DROP MATERIALIZED VIEW joined"
        )
        session.sql("DROP TABLE l; CREATE TABLE l (k INT)")
    with connect(directory=tmp_path) as session:
        shown = _shown(session)
        assert (shown["star"], shown["by_g"]) == ([(1, 1, "x"), (2, 4, "y")], [("x", None), ("y", 1)])
        assert session.sql("SELECT * FROM l").table().schema.names == ["k"]


@pytest.mark.parametrize("where", ["memory", "directory"])
def test_rows_that_are_there_and_rows_that_do_not_give_an_added_column_have_its_default(where: str, tmp_path: Path) -> None:
    made = (
        "CREATE TABLE t (k INT, v INT, PRIMARY KEY (k)); CREATE TABLE a (k INT); CREATE TABLE w (k INT, n INT); "
        "INSERT INTO w (k) SELECT k FROM a; "
        "CREATE MATERIALIZED VIEW star AS SELECT * FROM t; "
    )
    altered = (
        "ALTER TABLE t ADD COLUMN c DECIMAL(8, 2) DEFAULT -1.5 NOT NULL, ADD d DATE DEFAULT DATE '2026-01-02'; "
        "CREATE TABLE w (k INT, n INT, kind STRING DEFAULT 'none'); "
        "CREATE MATERIALIZED VIEW all_t AS SELECT * FROM t; CREATE MATERIALIZED VIEW all_w AS SELECT k, kind FROM w"
    )
    given, low = date(2026, 1, 2), Decimal("-1.50")
    with connect(directory=None if where == "memory" else tmp_path, keep_inputs=True) as session:
        session.sql(made + "INSERT INTO t VALUES (1, 1), (2, 2); INSERT INTO a VALUES (1)")
        session.sql(altered)
        assert _shown(session)["all_t"] == [(1, 1, low, given), (2, 2, low, given)]

        session.sql(
            "INSERT INTO t (k, v, c) VALUES (2, 3, 4); INSERT INTO t VALUES (3, 3, 0, NULL); INSERT INTO w (k, n) VALUES (3, 7)"
        )
        session.sql("INSERT INTO a VALUES (2)")
        wanted = {
            "star": [(1, 1), (2, 3), (3, 3)],
            "all_t": [(1, 1, low, given), (2, 3, Decimal(4), given), (3, 3, Decimal(0), None)],
            "all_w": [(1, "none"), (2, "none"), (3, "none")],
        }
        assert {name: _shown(session)[name] for name in wanted} == wanted
        assert all(running.verify().equal for running in session.running)
    if where == "directory":
        with connect(directory=tmp_path, keep_inputs=True) as session:
            session.sql(made + altered)
            assert {name: _shown(session)[name] for name in wanted} == wanted


@pytest.mark.parametrize(
    ("column", "code"),
    [
        ("c INT DEFAULT rand()", "NOT_OFFERED"),
        ("c INT DEFAULT v", "NOT_OFFERED"),
        ("c INT NOT NULL DEFAULT NULL", "NOT_OFFERED"),
        ("c INT DEFAULT 1.5", "LITERAL"),
        ("c INT DEFAULT", "SQL_SYNTAX"),
    ],
)
def test_a_default_is_a_literal_of_its_column(column: str, code: str) -> None:
    with connect() as session:
        session.sql("CREATE TABLE t (v INT)")
        with pytest.raises(SqlError) as caught:
            session.sql(f"ALTER TABLE t ADD COLUMN {column}")
        assert (caught.value.code, session.sql("SELECT * FROM t").schema.names) == (code, ["v"])


def test_a_table_of_a_connector_is_declared_again_with_more_columns_and_goes_on(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()

    def session(columns: str, rows: str) -> dict[str, list[Any]]:
        (tmp_path / "in" / f"{len(list((tmp_path / 'in').iterdir()))}.json").write_text(rows)
        options = f"'connector' = 'filesystem', 'path' = '{tmp_path / 'in'}', 'format' = 'json'"
        with connect(directory=tmp_path / "s") as opened:
            opened.sql(f"CREATE TABLE f ({columns}) WITH ({options}); CREATE MATERIALIZED VIEW s AS SELECT sum(b) AS b FROM f")
            if "c" in columns:
                opened.sql("CREATE MATERIALIZED VIEW c AS SELECT * FROM f")
            opened.read(wait_seconds=0)
            return _shown(opened)

    assert session("a INT, b INT", '{"a": 1, "b": 2, "c": 3}') == {"s": [(2,)]}
    assert session("a INT, b INT, c INT", '{"a": 1, "b": 5, "c": 4}') == {"s": [(7,)], "c": [(1, 2, None), (1, 5, 4)]}
    assert session("a INT, b INT, c INT", "") == {"s": [(7,)], "c": [(1, 2, None), (1, 5, 4)]}


@pytest.mark.parametrize("where", ["memory", "directory"])
def test_a_query_joins_a_table_and_a_view_from_before_it_got_columns(where: str, tmp_path: Path) -> None:
    with connect(directory=None if where == "memory" else tmp_path) as session:
        session.sql("CREATE TABLE t (k INT, PRIMARY KEY (k)); CREATE MATERIALIZED VIEW star AS SELECT * FROM t")
        session.sql("INSERT INTO t VALUES (1); ALTER TABLE t ADD COLUMN c INT DEFAULT 5; ALTER TABLE t ADD COLUMN d INT")
        session.sql("CREATE MATERIALIZED VIEW both AS SELECT t.k, t.c FROM t JOIN star ON t.k = star.k")
        session.sql("INSERT INTO t VALUES (2, 6, 7)")
        assert _shown(session)["both"] == [(1, 5), (2, 6)]
