"""Columns that are NOT NULL have a value in every row: of an INSERT, of a file, of changes, and of what a query writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from zset_join.core.errors import BadInputError, SqlError
from zset_join.sql import connect

TABLE = "CREATE TABLE t (k INT, v INT NOT NULL, PRIMARY KEY (k) NOT ENFORCED)"


@pytest.mark.parametrize("is_lasting", [False, True])
@pytest.mark.parametrize(
    "text", ["INSERT INTO t VALUES (2, 20), (1, NULL)", "UPDATE t SET v = NULL", "INSERT INTO t (k) VALUES (3)"]
)
def test_a_row_without_its_value_is_refused_and_nothing_of_the_statement_is_kept(
    text: str, is_lasting: bool, tmp_path: Path
) -> None:
    with connect(dialect="flink", directory=tmp_path if is_lasting else None) as session:
        session.sql(TABLE)
        query = session.sql("SELECT k, v FROM t").start()
        session.sql("INSERT INTO t VALUES (1, 10)")

        with pytest.raises(BadInputError, match='NULL in column "v", which is NOT NULL') as refused:
            session.sql(text)

        assert (refused.value.code, query.table().to_pylist()) == ("NOT_NULL", [{"k": 1, "v": 10}])
        session.sql("DELETE FROM t")
        assert query.table().num_rows == 0


def test_what_deletes_a_row_needs_its_key_alone() -> None:
    with connect(dialect="timeplus") as session:
        session.sql("CREATE STREAM t (k int, v int NOT NULL, PRIMARY KEY (k)) SETTINGS mode = 'changelog_kv'")
        session.sql("INSERT INTO t (k, v, _tp_delta) VALUES (1, 2, 1); INSERT INTO t (k, _tp_delta) VALUES (1, -1)")

        assert session.sql("SELECT k FROM t").table().num_rows == 0


@pytest.mark.parametrize(
    ("policy", "lines", "options"),
    [
        ("error", ['{"k":1,"v":2}', '{"k":2}'], "'format' = 'json'"),
        ("quarantine", ['{"k":1,"v":2}', '{"k":2}', '{"k":3,"v":null}'], "'format' = 'json'"),
        ("error", ["k,v", "1,2", "2,"], "'format' = 'csv'"),
        ("quarantine", ["k,v", "1,2", "2,", "3,x"], "'format' = 'csv'"),
        ("error", ['{"op":"c","after":{"k":2,"v":null}}'], "'format' = 'debezium-json'"),
    ],
)
def test_a_line_of_a_file_without_its_value_stops_the_query_or_is_put_aside(
    policy: str, lines: list[str], options: str, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").write_text("\n".join(lines) + "\n")
    with connect(dialect="flink", directory=tmp_path / "session") as session:
        session.sql(f"SET on_bad_input = '{policy}'")
        session.sql(
            f"CREATE TABLE t (k INT, v INT NOT NULL) WITH ('connector'='filesystem', 'path'='{tmp_path / 'in'}', {options})"
        )
        query = session.sql("SELECT k, v FROM t").start()
        rows: Any = None
        if policy == "error":
            with pytest.raises(BadInputError, match="NOT NULL"):
                session.read()
        else:
            session.read()
            rows = query.table().to_pylist()

    assert rows == (None if policy == "error" else [{"k": 1, "v": 2}])


@pytest.mark.parametrize(
    ("columns", "aside"),
    [({"k": [1, 2, 3], "v": [2, None, 4]}, [2]), ({"k": [1, 2], "v": ["x", None]}, [1, 2])],
)
def test_a_row_of_parquet_or_of_a_header_without_its_value_is_put_aside(
    columns: dict[str, list[Any]], aside: list[int], tmp_path: Path
) -> None:
    (tmp_path / "parquet").mkdir()
    (tmp_path / "csv").mkdir()
    pq.write_table(pa.table(columns), tmp_path / "parquet" / "a")
    lines = [",".join(map(str, ("" if one is None else one for one in row))) for row in zip(*columns.values(), strict=True)]
    (tmp_path / "csv" / "a").write_text("\n".join([",".join(columns), *lines]) + "\n")
    found: dict[str, list[int]] = {}
    for form in ("parquet", "csv"):
        with connect(dialect="flink", directory=tmp_path / f"session_{form}") as session:
            session.sql("SET on_bad_input = 'quarantine'")
            session.sql(
                f"CREATE TABLE t (k INT, v INT NOT NULL) WITH ('connector'='filesystem', 'path'='{tmp_path / form}', "
                f"'format'='{form}')"
            )
            query = session.sql("SELECT k, v FROM t").start()
            session.read()
            found[form] = sorted(row["k"] for row in query.table().to_pylist())

    good = [key for key, number in zip(columns["k"], range(1, 9), strict=False) if number not in aside]
    assert found == {"parquet": good, "csv": good}


@pytest.mark.parametrize("kind", ["INT", "STRING", "DECIMAL(10, 2)", "TIMESTAMP(3)", "BOOLEAN", "DOUBLE", "DATE"])
def test_a_query_writes_no_row_without_its_value_outside(kind: str, tmp_path: Path) -> None:
    with connect(dialect="flink") as session:
        session.sql(f"CREATE TABLE source (k INT, v {kind})")
        session.sql(
            f"CREATE TABLE out (k INT, v {kind} NOT NULL) WITH "
            f"('connector'='filesystem', 'path'='{tmp_path / 'out'}', 'format'='json')"
        )
        session.sql("INSERT INTO out SELECT k, v FROM source")

        with pytest.raises(BadInputError, match='NULL in column "v" of "out", which is NOT NULL'):
            session.sql("INSERT INTO source VALUES (1, NULL)")


def test_what_cannot_be_checked_is_refused() -> None:
    with connect(dialect="flink") as session:
        session.sql("CREATE TABLE source (k ARRAY<INT>)")
        session.sql("CREATE TABLE out (k ARRAY<INT> NOT NULL) WITH ('connector' = 'blackhole')")

        with pytest.raises(SqlError, match="NOT NULL is not supported for k"):
            session.sql("INSERT INTO out SELECT k FROM source")
