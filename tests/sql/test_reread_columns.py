"""ALTER TABLE ... ADD COLUMN with rows that are read again: rows from before have the values that their place has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from zset_join.core.errors import ZsetJoinError
from zset_join.sql import Session, connect

ROWS = {"id": [1, 2, 3], "total": [5, 7, 9]}
PLACES = {"place": ["shop", "web", "shop"], "more": [0, 0, 0]}
TABLE = "CREATE TABLE orders (id BIGINT, total BIGINT, PRIMARY KEY (id))"
BY_PLACE = "ALTER MATERIALIZED VIEW v AS SELECT place, sum(total) AS t FROM orders GROUP BY place"


@pytest.fixture(params=["memory", "directory", "files"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def opened(kind: str, tmp_path: Path) -> Session:
    return connect(directory=None if kind == "memory" else tmp_path / "session")


def begun(session: Session, kind: str, tmp_path: Path) -> None:
    """Declare a table that has the rows, and a view of it."""
    if kind == "files":
        (tmp_path / "in").mkdir()
        pq.write_table(pa.table(ROWS), tmp_path / "in" / "1.parquet")
        session.sql(
            "CREATE TABLE orders (id BIGINT, total BIGINT) "
            f"WITH ('connector' = 'filesystem', 'path' = '{tmp_path}/in', 'format' = 'parquet')"
        )
    else:
        session.sql(TABLE)
        session.insert("orders", ROWS)
    session.sql("CREATE MATERIALIZED VIEW v AS SELECT count(*) AS n FROM orders")
    session.read()


def placed(tmp_path: Path, rows: dict[str, Any]) -> str:
    pq.write_table(pa.table(rows), tmp_path / "again.parquet")
    return f"ALTER TABLE orders ADD COLUMN place STRING WITH ('reread' = '{tmp_path}/again.parquet')"


def shown(session: Session) -> list[tuple[Any, ...]]:
    return sorted(tuple(line.values()) for line in session.views()["v"].to_pylist())


def test_rows_from_before_have_the_values_that_are_read_again(kind: str, tmp_path: Path) -> None:
    with opened(kind, tmp_path) as session:
        begun(session, kind, tmp_path)
        statement = placed(tmp_path, ROWS | PLACES)

        session.sql(statement)
        unchanged = shown(session)
        session.sql(BY_PLACE)

        assert (unchanged, shown(session)) == ([(3,)], [("shop", 14), ("web", 7)])
        if kind != "files":
            session.sql("INSERT INTO orders VALUES (4, 1, 'web')")
            assert shown(session) == [("shop", 14), ("web", 8)]
    if kind == "directory":
        (tmp_path / "again.parquet").unlink()
        with opened(kind, tmp_path) as session:
            session.sql(f"{TABLE}; {statement}")
            assert shown(session) == [("shop", 14), ("web", 8)]


@pytest.mark.parametrize(
    ("rows", "code", "words"),
    [
        ({"id": [1, 2], "total": [5, 8], "place": ["shop", "web"]}, "EVOLVE_REREAD", "1 rows are new or changed, 2 are gone"),
        (ROWS, "EVOLVE_REREAD", "have no column place"),
    ],
    ids=["other rows", "no column"],
)
def test_rows_that_are_not_those_that_were_taken_change_nothing(
    kind: str, tmp_path: Path, rows: dict[str, Any], code: str, words: str
) -> None:
    with opened(kind, tmp_path) as session:
        begun(session, kind, tmp_path)

        with pytest.raises(ZsetJoinError, match=words) as refused:
            session.sql(placed(tmp_path, rows))

        assert (refused.value.code, shown(session)) == (code, [(3,)])
        with pytest.raises(ZsetJoinError, match="place"):
            session.sql("SELECT place FROM orders")


@pytest.mark.parametrize(
    ("options", "code"),
    [("('reload' = 'x')", "UNKNOWN_OPTION"), ("('reread' = 'postgresql://me:secret@host/db:orders')", "SECRET_KEPT")],
)
def test_an_option_that_is_none_and_a_password_are_refused(tmp_path: Path, options: str, code: str) -> None:
    with opened("directory", tmp_path) as session:
        begun(session, "directory", tmp_path)

        with pytest.raises(ZsetJoinError) as refused:
            session.sql(f"ALTER TABLE orders ADD COLUMN place STRING WITH {options}")

        assert refused.value.code == code


def test_the_place_is_read_once_and_its_variable_is_not_needed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "configuration"))
    monkeypatch.setenv("PLACE_OF_ORDERS", str(tmp_path))
    with opened("directory", tmp_path) as session:
        begun(session, "directory", tmp_path)
        session.sql(placed(tmp_path, ROWS | PLACES).replace(f"'{tmp_path}/", "'${ENV:PLACE_OF_ORDERS}/"))
    monkeypatch.delenv("PLACE_OF_ORDERS")

    with opened("directory", tmp_path) as session:
        session.sql(BY_PLACE)
        assert shown(session) == [("shop", 14), ("web", 7)]


@pytest.mark.parametrize("where", ["memory", "directory"])
def test_rows_of_a_table_that_has_none_are_refused(where: str, tmp_path: Path) -> None:
    with opened(where, tmp_path) as session:
        session.sql(TABLE)
        with pytest.raises(ZsetJoinError, match="are 3 rows, and none has been taken") as refused:
            session.sql(placed(tmp_path, ROWS | PLACES))
        assert refused.value.code == "EVOLVE_REREAD"
        session.insert("orders", {"id": [1], "total": [5]})
        session.sql("CREATE MATERIALIZED VIEW v AS SELECT id, total FROM orders")
        assert shown(session) == [(1, 5)]
