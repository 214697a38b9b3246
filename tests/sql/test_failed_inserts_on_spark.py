"""Inside Spark too, an INSERT that a query cannot answer changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from zset_join.core.errors import BadInputError, SinkError, StateError
from zset_join.sql import Session, connect
from zset_join.sql.runtime.rehearsal import Rehearsal
from zset_join.tools.dead_letters import read_letters
from zset_join.zset import ZSet

TABLES = """
    CREATE TABLE orders (id INT, item INT, total INT, PRIMARY KEY (id));
    CREATE TABLE items (item INT, qty INT, PRIMARY KEY (item));
    CREATE TABLE owners (item INT, total INT, PRIMARY KEY (item));
    SET on_bad_input = 'quarantine';
"""
BEHIND_A_JOIN = "SELECT o.item, sum(o.total / i.qty) AS price FROM orders o JOIN items i ON o.item = i.item GROUP BY o.item"


@pytest.fixture
def session(spark: SparkSession, tmp_path: Path) -> Iterator[Session]:
    with connect(engine="spark", spark=spark, directory=tmp_path) as opened:
        opened.sql(TABLES)
        yield opened


def deleted(**row: int) -> ZSet:
    columns = {name: pa.array([value], pa.int32()) for name, value in row.items()}
    return ZSet(pa.RecordBatch.from_pydict(columns), np.array([-1]))


def rows(running: Any) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in running.table().to_pylist())


def test_an_insert_inside_spark_is_all_or_nothing(session: Session, tmp_path: Path) -> None:
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
    (letter,) = read_letters(tmp_path / "queries" / "shares" / "checkpoint").to_pylist()
    assert (letter["stream"], letter["code"], letter["row"]) == ("owners", "DIVIDE_BY_ZERO", '{"item": 7, "total": 0}')
    assert letter["reason"].startswith('query "shares"')
    session.stop(
        prices
    )  # the others are rehearsed again, with the row of the key 6 that came after the query had retracted its own
    with pytest.raises(SinkError, match="two live rows claim the key"):
        session.sql("INSERT INTO orders VALUES (2, 1, 6)")


def test_a_query_that_is_not_rehearsed_is_stopped_and_named_and_the_others_go_on(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Rehearsal, "begin", lambda *_, **__: None)
    session.sql("INSERT INTO items VALUES (2, 0)")
    prices = session.sql(BEHIND_A_JOIN).start(name="prices")
    totals = session.sql("SELECT id, total FROM orders").start(name="totals")

    with pytest.raises(StateError, match=r'QUERY_STOPPED.*query "prices"'):
        session.sql("INSERT INTO orders VALUES (3, 2, 6)")
    with pytest.warns(UserWarning, match='query "prices" is stopped'):
        session.sql("INSERT INTO orders VALUES (4, 1, 1)")

    assert rows(totals) == [(3, 6), (4, 1)]
    with pytest.raises(StateError, match="DIVIDE_BY_ZERO"):
        prices.table()


def test_a_paused_view_lets_the_others_take_what_it_cannot_and_goes_on_later(session: Session) -> None:
    session.sql("SET on_bad_input = 'error'; INSERT INTO items VALUES (1, 2)")
    session.sql("CREATE MATERIALIZED VIEW plain AS SELECT id, item FROM orders")
    session.sql("CREATE MATERIALIZED VIEW prices AS " + BEHIND_A_JOIN)
    plain, prices = session.running
    session.sql("INSERT INTO orders VALUES (1, 1, 6)")

    session.sql("PAUSE MATERIALIZED VIEW prices; INSERT INTO orders VALUES (2, 1, 10)")
    paused = rows(plain), rows(prices)
    session.sql("RESUME MATERIALIZED VIEW prices")

    assert (paused, rows(prices)) == (([(1, 1), (2, 1)], [(1, 3.0)]), [(1, 8.0)])
