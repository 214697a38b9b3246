"""On Spark too, rows that a query cannot answer change nothing, whether INSERT or Spark brings them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from zset_join.core.errors import BadInputError, SinkError, SqlError
from zset_join.sql import Session, connect
from zset_join.tools.dead_letters import read_letters
from zset_join.zset import ZSet

TABLES = """
    SET on_bad_input = 'quarantine';
    CREATE TABLE orders (id INT, item INT, total INT, PRIMARY KEY (id));
    CREATE TABLE items (item INT, qty INT, PRIMARY KEY (item));
    CREATE TABLE owners (item INT, total INT, PRIMARY KEY (item));
"""
BEHIND_A_JOIN = "SELECT o.item, sum(o.total / i.qty) AS price FROM orders o JOIN items i ON o.item = i.item GROUP BY o.item"


@pytest.fixture
def session(spark: SparkSession, tmp_path: Path) -> Iterator[Session]:
    with connect(engine="spark", spark=spark, directory=tmp_path / "session") as opened:
        opened.sql(TABLES)
        yield opened


def deleted(**row: int) -> ZSet:
    columns = {name: pa.array([value], pa.int32()) for name, value in row.items()}
    return ZSet(pa.RecordBatch.from_pydict(columns), np.array([-1]))


def rows(running: Any) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in running.table().to_pylist())


def test_an_insert_on_spark_is_all_or_nothing(session: Session, tmp_path: Path) -> None:
    session.sql("INSERT INTO items VALUES (1, 2), (2, 0), (3, 1); INSERT INTO owners VALUES (9, 9)")
    session.sql("INSERT INTO owners SELECT item, total FROM orders")
    owners = session.sql("SELECT item, 12 / total AS share FROM owners").start(name="shares")
    prices = session.sql(BEHIND_A_JOIN).start(name="prices")
    session.sql("INSERT INTO orders VALUES (1, 1, 6)")

    with pytest.raises(BadInputError, match='query "prices"') as divided:
        session.sql("INSERT INTO orders VALUES (2, 3, 6), (3, 2, 6)")
    with pytest.raises(BadInputError, match='query "shares"'):
        session.sql("INSERT INTO orders VALUES (2, 3, 0)")
    with pytest.raises(SinkError, match="two live rows claim the key") as claimed:
        session.sql("INSERT INTO orders VALUES (2, 1, 6)")
    with pytest.raises(SinkError, match="that no query retracts"):
        session.sql("INSERT INTO orders VALUES (2, 9, 6)")
    with pytest.raises(SinkError, match="a DELETE or UPDATE takes"):
        session.insert("owners", deleted(item=1, total=6))
    session.sql("INSERT INTO orders VALUES (4, 3, 4), (5, 6, 1)")
    session.insert("orders", deleted(id=5, item=6, total=1))
    session.sql("INSERT INTO owners VALUES (7, 0), (8, 3), (6, 3)")

    assert (divided.value.code, claimed.value.code) == ("DIVIDE_BY_ZERO", "SINK_KEY")
    assert rows(prices) == [(1, 3.0), (3, 4.0)]
    assert rows(owners) == [(1, 2.0), (3, 3.0), (6, 4.0), (8, 4.0), (9, 12 / 9)]
    (letter,) = read_letters(tmp_path / "session" / "pipeline").to_pylist()
    assert (letter["stream"], letter["code"], letter["row"]) == ("owners", "DIVIDE_BY_ZERO", '{"item": 7, "total": 0}')
    assert letter["reason"].startswith('query "shares"')
    session.stop(prices)
    with pytest.raises(SinkError, match="two live rows claim the key"):
        session.sql("INSERT INTO orders VALUES (2, 1, 6)")


def test_what_spark_brings_waits_until_all_views_can_take_it(spark: SparkSession, tmp_path: Path) -> None:
    """The batch is offered again: also behind a pause, and by a session that is opened later, which takes it once."""
    files = tmp_path / "files"
    files.mkdir()
    (files / "1.json").write_text(json.dumps({"id": 1, "item": 1, "total": 6}) + "\n")

    def opened() -> Session:
        return connect(engine="spark", spark=spark, directory=tmp_path / "session")

    with opened() as session:
        session.sql(f"""
            CREATE TABLE orders (id INT, item INT, total INT) WITH ('connector'='filesystem', 'path'='{files}');
            CREATE TABLE items (item INT, qty INT, PRIMARY KEY (item));
            INSERT INTO items VALUES (1, 2), (2, 0);
            CREATE MATERIALIZED VIEW plain AS SELECT id, item FROM orders;
            CREATE MATERIALIZED VIEW prices AS {BEHIND_A_JOIN};
        """)
        plain, prices = session.running
        (files / "2.json").write_text(json.dumps({"id": 2, "item": 2, "total": 6}) + "\n")
        for _ in range(2):
            with pytest.raises(BadInputError, match='query "prices"'):
                session.read()
        assert (rows(plain), rows(prices)) == ([(1, 1)], [(1, 3.0)])
    with opened() as session:
        session.sql("PAUSE MATERIALIZED VIEW prices")
        plain, prices = session.running
        assert session.read() == 1
        (files / "3.json").write_text(json.dumps({"id": 3, "item": 1, "total": 4}) + "\n")
        assert session.read() == 1
        assert (rows(plain), rows(prices)) == ([(1, 1), (2, 2), (3, 1)], [(1, 3.0)])
        session.sql("INSERT INTO items VALUES (2, 3); RESUME MATERIALIZED VIEW prices")

        assert rows(prices) == [(1, 5.0), (2, 2.0)]


def test_executors_are_refused_with_the_way_to_them(session: Session) -> None:
    shown = [str(session.sql("EXPLAIN SELECT id FROM orders"))]
    session.sql("SET execution = 'executors'")
    shown.append(str(session.sql("EXPLAIN SELECT id FROM orders")))

    with pytest.raises(SqlError, match="writeStream") as refused:
        session.sql("SELECT id FROM orders").start()

    assert refused.value.code == "NOT_OFFERED"
    assert ["Runs on the driver" in one for one in shown] == [True, False]
