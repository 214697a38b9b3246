"""Laws of SQL: a query's view equals DuckDB's answer to the same text; any text is run or refused, and nothing else happens.

Random queries (`sql_queries`) over two tables that change. After every epoch the view must hold what DuckDB answers over the
tables as they are. The push profile runs a few, the nightly one 2,000.
"""

from __future__ import annotations

import collections
import contextlib
import random
from typing import Any

import duckdb
import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings

from property_tests.profiles import profile_name
from property_tests.sql_queries import queries
from zset_join.core.errors import ZsetJoinError
from zset_join.expressions.sql_text import quote_name, quote_text
from zset_join.sql import Query, connect

LEFT = pa.schema({"id": pa.int32(), "k": pa.int32(), "v": pa.int32(), "s": pa.string()})
RIGHT = pa.schema({"rid": pa.int32(), "rk": pa.int32(), "w": pa.int32(), "u": pa.string()})


def rows_of(chance: random.Random, names: list[str], *, keys: int = 6, most: int = 4) -> list[dict[str, Any]]:
    def one() -> list[Any]:
        number = chance.choice([None, 0, 1, 2, 3])
        return [chance.randrange(keys), number, chance.choice([None, 0, 1, 2]), chance.choice([None, "a", "b", "ab", "A"])]

    return [dict(zip(names, one(), strict=True)) for _ in range(chance.randint(1, most))]


def bag(table: pa.Table) -> collections.Counter[tuple[Any, ...]]:
    return collections.Counter(tuple(line.values()) for line in table.to_pylist())


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=2000 if profile_name() == "nightly" else 8)
@given(text=queries(), seed=st.integers(0, 2**32))
def test_a_view_equals_duckdb_s_answer_to_the_same_text_after_every_epoch(text: str, seed: int) -> None:
    chance = random.Random(seed)
    with connect() as session, duckdb.connect() as database:
        session.register("lefts", LEFT, keys="id")
        session.register("rights", RIGHT, keys="rid")
        query = session.sql(text)
        assert isinstance(query, Query)
        running = query.start()
        database.sql("SET default_null_order = 'nulls_first_on_asc_last_on_desc'")
        changed = set()
        for _ in range(3):
            name, schema = chance.choice([("lefts", LEFT), ("rights", RIGHT)])
            changed.add(name)
            keys, most = chance.choice([(6, 4), (20, 30)])
            session.insert(name, pa.Table.from_pylist(rows_of(chance, schema.names, keys=keys, most=most), schema))
            if chance.random() < 0.3:
                session.sql(f"DELETE FROM {name} WHERE {schema.names[1]} = {chance.randrange(4)}")
            for table in ("lefts", "rights"):
                stored = session.sql(f"SELECT * FROM table({table})")
                assert isinstance(stored, Query)
                database.register(table, stored.table())
            if not any(name in text for name in changed):
                continue  # the query has had no epoch: the row of no rows comes with the first
            answer = database.sql(text).to_arrow_table()

            assert bag(running.table()) == bag(answer), text


_PIECES = r"""
SELECT INSERT INTO VALUES CREATE MUTABLE STREAM TABLE VIEW FROM WHERE JOIN LEFT ON USING GROUP BY HAVING ORDER LIMIT UNION ALL
WITH AS t a b * , ; ( ) . + - / % || = <> <= > ' " ` 'x' 1 1.5 1e400 NULL TRUE CASE WHEN THEN END COUNT SUM MIN ROW_NUMBER OVER
PARTITION EMIT CHANGELOG SETTINGS SET FOR SYSTEM_TIME OF VERSIONED PROCTIME() LATERAL INTERVAL '5' SECOND CAST INT IN EXISTS NOT
LIKE BETWEEN AND OR IS DISTINCT EXTRACT YEAR WATERMARK PRIMARY KEY DROP SHOW TABLES DESCRIBE EXPLAIN ASOF MATCH_CONDITION /*+
LOOKUP('table'='t') */ -- /* */ \ é 𝄞 ::int [ ] { } ? @ # $ : _tp_delta table(t) DEFAULT
""".split()  # noqa: SIM905 - a list of a hundred lines reads worse


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=20_000 if profile_name() == "nightly" else 30)
@pytest.mark.filterwarnings("ignore")
@given(
    text=st.lists(st.sampled_from(_PIECES), max_size=25).map(" ".join) | st.text(max_size=60),
    dialect=st.sampled_from(["spark", "flink", "timeplus", "risingwave", "laminardb"]),
)
def test_any_text_runs_or_is_refused_and_never_crashes(text: str, dialect: str) -> None:
    with connect(dialect=dialect) as session:
        session.sql("CREATE TABLE t (a INT, b STRING)")
        with contextlib.suppress(ZsetJoinError):
            session.sql(text)


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=2000 if profile_name() == "nightly" else 10)
@given(name=st.text(min_size=1, max_size=12), value=st.text(max_size=12))
def test_names_and_texts_mean_themselves_whatever_they_hold(name: str, value: str) -> None:
    if name.startswith("__") or "\x00" in value + name or not name.strip():
        return
    quoted = quote_name(name, "spark")
    with connect() as session:
        session.register("t", pa.schema({"k": pa.int32(), name + "x": pa.string()}))
        session.insert("t", pa.table({"k": pa.array([1], pa.int32()), name + "x": [value]}))
        column = quote_name(name + "x", "spark")
        query = session.sql(f"SELECT {column} AS {quoted} FROM t WHERE {column} = {quote_text(value, 'spark')}")
        assert isinstance(query, Query)

        assert query.table().to_pylist() == [{name: value}]
