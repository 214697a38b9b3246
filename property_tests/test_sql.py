"""Laws of SQL: a query's view equals DuckDB's answer to the same text; any text is run or refused, and nothing else happens.

Random queries over two tables that change: joins of every kind, filters, groups, DISTINCT, UNION ALL, EXISTS. After every epoch
the view must hold what DuckDB answers over the tables as they are. The push profile runs a few, the nightly one 2,000.
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
from zset_join.errors import ZsetJoinError
from zset_join.expressions.sql_text import quote_name, quote_text
from zset_join.sql import Query, connect

LEFT = pa.schema({"id": pa.int32(), "k": pa.int32(), "v": pa.int32(), "s": pa.string()})
RIGHT = pa.schema({"rid": pa.int32(), "rk": pa.int32(), "w": pa.int32(), "u": pa.string()})

_NUMBERS = {"l": ["id", "k", "v"], "r": ["rid", "rk", "w"]}
_TEXTS = {"l": "s", "r": "u"}


def scalar(draw: Any, sides: str) -> str:
    side = draw(st.sampled_from(sides))
    column = f"{side}.{draw(st.sampled_from(_NUMBERS[side]))}"
    number = draw(st.integers(0, 3))
    return draw(
        st.sampled_from(
            [
                column,
                f"{column} + {number}",
                f"coalesce({column}, {number})",
                f"CASE WHEN {column} > {number} THEN {column} ELSE -{column} END",
                f"nullif({column}, {number})",
                f"greatest({column}, {number})",
                f"abs({column} - 2)",
            ]
        )
    )


def predicate(draw: Any, sides: str) -> str:
    side = draw(st.sampled_from(sides))
    text = f"{side}.{_TEXTS[side]}"
    return draw(
        st.sampled_from(
            [
                f"{scalar(draw, sides)} > {scalar(draw, sides)}",
                f"{scalar(draw, sides)} IN (0, 2)",
                f"{scalar(draw, sides)} BETWEEN 0 AND 2",
                f"{text} LIKE '%a%'",
                f"upper({text}) = 'A'",
                f"{text} IS NULL",
                f"NOT ({scalar(draw, sides)} = 1 OR {text} = 'b')",
                f"{scalar(draw, sides)} IS NOT DISTINCT FROM 1",
            ]
        )
    )


@st.composite
def queries(draw: Any) -> str:
    kind = draw(st.sampled_from(["one", "join", "join", "join", "exists", "union", "comma", "nested"]))
    where = ""
    sides = "l"
    if kind in {"join", "nested"}:
        how = draw(st.sampled_from(["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "SEMI JOIN", "ANTI JOIN"]))
        equal = draw(st.sampled_from(["l.k = r.rk", "l.k = r.rk AND l.v = r.w", "l.k + 1 = r.rk", "l.s = r.u"]))
        more = f" AND {predicate(draw, 'lr')}" if draw(st.booleans()) else ""
        source, sides = f"lefts l {how} rights r ON {equal}{more}", "l" if how in {"SEMI JOIN", "ANTI JOIN"} else "lr"
    elif kind == "comma":
        source, sides, where = "lefts l, rights r", "lr", "l.k = r.rk"
    else:
        source = "lefts l"
    if kind == "exists":
        word = draw(st.sampled_from(["EXISTS", "NOT EXISTS"]))
        where = f"{word} (SELECT 1 FROM rights r WHERE r.rk = l.k AND {predicate(draw, 'lr')})"
        if draw(st.booleans()):
            where = f"l.k IN (SELECT rk FROM rights r WHERE {predicate(draw, 'r')})"
    if draw(st.booleans()):
        where = " AND ".join(filter(None, [where, predicate(draw, sides)]))
    condition = f" WHERE {where}" if where else ""
    if draw(st.booleans()):
        key, value = scalar(draw, sides), scalar(draw, sides)
        having = draw(st.sampled_from(["", " HAVING count(*) > 1"]))
        text = (
            f"SELECT {key} AS g, count(*) AS n, sum({value}) AS total, min({value}) AS least, "
            f"count({value}) FILTER (WHERE {predicate(draw, sides)}) AS some FROM {source}{condition} GROUP BY {key}{having}"
        )
    else:
        distinct = draw(st.sampled_from(["", "DISTINCT "]))
        text = f"SELECT {distinct}{scalar(draw, sides)} AS a, {scalar(draw, sides)} AS b FROM {source}{condition}"
    if kind == "union":
        text = f"SELECT l.k AS a FROM lefts l UNION ALL SELECT {scalar(draw, 'r')} FROM rights r"
    if kind == "nested":
        text = f"WITH q AS ({text}) SELECT * FROM q"
    return text


def rows_of(chance: random.Random, names: list[str]) -> list[dict[str, Any]]:
    def one() -> list[Any]:
        number = chance.choice([None, 0, 1, 2, 3])
        return [chance.randrange(6), number, chance.choice([None, 0, 1, 2]), chance.choice([None, "a", "b", "ab", "A"])]

    return [dict(zip(names, one(), strict=True)) for _ in range(chance.randrange(1, 5))]


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
        for _ in range(3):
            name, schema = chance.choice([("lefts", LEFT), ("rights", RIGHT)])
            session.insert(name, pa.Table.from_pylist(rows_of(chance, schema.names), schema))
            for table in ("lefts", "rights"):
                stored = session.sql(f"SELECT * FROM table({table})")
                assert isinstance(stored, Query)
                database.register(table, stored.table())
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
