"""Statements that nobody should have written, in every dialect: `python -m property_tests.sql_fuzz --statements 1000000`.

The law: a statement runs or is refused with an error of our own; nothing else is raised, and none takes longer than a minute,
which on a busy machine is for the first call of a kernel. Of those that are bound, some are explained, some are run.

Of twenty statements six are combined of clauses of which four in five are plain, so an odd one is met in all contexts; five
are drawn from a grammar of queries and declarations, over names that are present and some that are not; five are the fixtures
of `tests/sql`, with tokens omitted, doubled, exchanged, or taken from another; four are noise of words and signs. Names and
literals are hostile in all of them. A seed gives the same statements.

`--names N` checks N hostile names and texts: what is quoted in a statement is the name and the value of its answer.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import signal
import string
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from zset_join.core.errors import ZsetJoinError
from zset_join.expressions.sql_text import quote_name, quote_text
from zset_join.sql import Query, Session, connect
from zset_join.tools.compiling import compile_kernels

__all__ = ["DIALECTS", "FIXTURES", "LawBrokenError", "fuzz", "main", "names_mean_themselves", "run_one", "statement"]

DIALECTS = ("flink", "laminardb", "risingwave", "spark", "timeplus")
FIXTURES = Path(__file__).resolve().parent.parent / "tests" / "sql" / "fixtures"
_MOST_SECONDS = 60
_SESSION_STATEMENTS = 400

_TABLES = """
CREATE TABLE t (a INT, b STRING, c DOUBLE, d DECIMAL(10, 2), e TIMESTAMP(3), f BOOLEAN, g BIGINT, h DATE);
CREATE TABLE u (k STRING, v INT, w TIMESTAMP(3), PRIMARY KEY (k), WATERMARK FOR w AS w - INTERVAL '5' SECOND);
CREATE TABLE p (k STRING, n INT, w TIMESTAMP(3), now AS PROCTIME(), WATERMARK FOR w AS w - INTERVAL '5' SECOND);
CREATE VIEW q AS SELECT k, sum(v) AS s FROM u GROUP BY k;
CREATE TABLE y (k STRING, v INT, w TIMESTAMP(3), PRIMARY KEY (k), WATERMARK FOR w AS w - INTERVAL '5' SECOND);
CREATE TABLE z (k STRING, v INT, w TIMESTAMP(3), WATERMARK FOR w AS w - INTERVAL '5' SECOND);
"""
_WORDS = r"""
SELECT INSERT INTO VALUES CREATE MUTABLE STREAM TABLE VIEW MATERIALIZED SINK SOURCE FROM WHERE JOIN LEFT RIGHT FULL SEMI ANTI
CROSS
NATURAL ON USING GROUP BY HAVING ORDER LIMIT OFFSET UNION ALL EXCEPT INTERSECT WITH RECURSIVE AS t u p q a b k v w n * , ; ( )
. + - /
% || = <> <= > < ' " ` 'x' 1 1.5 1e400 0x1F NULL TRUE CASE WHEN THEN ELSE END COUNT SUM MIN ROW_NUMBER OVER PARTITION EMIT
CHANGELOG SETTINGS
SET RESET FOR SYSTEM_TIME OF VERSIONED PROCTIME() NOW() LATERAL INTERVAL '5' SECOND CAST INT BIGINT IN EXISTS NOT LIKE RLIKE
BETWEEN AND
OR IS DISTINCT EXTRACT YEAR WATERMARK PRIMARY KEY DROP SHOW TABLES DESCRIBE EXPLAIN ASOF MATCH_CONDITION /*+
LOOKUP('table'='t') */ -- /*
*/ \ é 𝄞 ::int [ ] { } ? @ # $ : _tp_delta table(t) DEFAULT TUMBLE HOP CUBE ROLLUP GROUPING SETS QUALIFY WINDOW TABLESAMPLE
PIVOT
UPDATE DELETE MERGE FILTER STRUCT<a:INT> ARRAY<INT> ARRAY[1,2] MAP -> ->> => := ~ ! ^ & | << >> <=> $$ $1 E'\n' X'00' N'x' U&'x'
""".split()  # noqa: SIM905 - a list of a hundred lines reads worse
_SCALARS = (
    "abs({0})", "upper({0})", "{0} + {1}", "{0} - {1}", "{0} * {1}", "{0} / {1}", "{0} % {1}", "{0} || {1}",
    "coalesce({0}, {1})",
    "nullif({0}, {1})", "CASE WHEN {0} THEN {1} ELSE {0} END", "CAST({0} AS INT)", "CAST({0} AS STRING)",
    "TRY_CAST({0} AS DATE)",
    "substring({0}, 1, 2)", "date_trunc('HOUR', {0})", "{0} + INTERVAL '1' DAY", "greatest({0}, {1})", "concat({0}, {1})",
    "-{0}",
    "NOT {0}", "{0} IS NULL", "{0} = {1}", "{0} < {1}", "{0} LIKE {1}", "{0} IN ({1}, {0})", "{0} BETWEEN {1} AND {0}",
    "round({0}, 2)",
    "extract(YEAR FROM {0})", "({0})", "{0} IS NOT DISTINCT FROM {1}", "split({0}, ',')[{1}]", "array({0}, {1})", "md5({0})",
    "{0} AND {1}", "{0} OR {1}", "if({0}, {1}, {1})", "trim({0})", "position({0} IN {1})", "date_format({0}, {1})", "{0}[{1}]",
    "regexp_replace({0}, {1}, 'x')", "rand()", "nosuch({0})", "{0}.{1}", "sum({0})", "count(DISTINCT {0})",
    "{0} + INTERVAL 'NaN' DAY", "{0} - INTERVAL '1-2' YEAR TO MONTH", "{0} + {1} * INTERVAL '1' HOUR", "grouping({0})",
    "EXISTS (SELECT 1 FROM u WHERE u.k = {0})", "(SELECT max({0}) FROM u)", "(SELECT count(*) + 1 FROM u WHERE u.k = {0})",
    "{0} IN (SELECT k FROM u)", "({0}, {1}) = ({1}, {0})", "row_number() OVER (PARTITION BY {0} ORDER BY {1} NULLS LAST)",
)  # fmt: skip
_AGGREGATES = (
    "count(*)", "sum({0})", "min({0})", "max({0})", "avg({0})", "count({0})", "count(DISTINCT {0})", "stddev({0})",
    "max_by({0}, {1})",
    "sum({0}) FILTER (WHERE {1})", "collect_list({0})", "bool_and({0})", "percentile({0}, 0.5)", "listagg({0})",
    "max({0}, {1})", "max_by({0}, {1}, 2)", "string_agg({0}, {1})", "array_agg({0} ORDER BY {1})", "count(DISTINCT {0}, {1})",
)  # fmt: skip


_COLUMNS = {
    "t": {"a": "n", "b": "s", "c": "n", "d": "n", "e": "t", "f": "b", "g": "n"},
    "u": {"k": "s", "v": "n", "w": "t"},
    "p": {"k": "s", "n": "n", "w": "t"},
    "q": {"k": "s", "s": "n"},
}
_CONSTANTS = {
    "n": ("0", "1", "-1", "2.5", "NULL", "1e3", "9223372036854775807"),
    "s": ("'a'", "''", "'é'''", "NULL", "'1'", "'2024-01-01'", "'%a_'"),
    "b": ("TRUE", "FALSE", "NULL"),
    "t": ("TIMESTAMP '2024-01-01 00:00:00'", "CAST('2024-01-01 10:00:00' AS TIMESTAMP(3))", "NULL"),
}
_TYPED: dict[str, tuple[tuple[str, str], ...]] = {
    "n": (("{} + {}", "nn"), ("{} - {}", "nn"), ("{} * {}", "nn"), ("{} / {}", "nn"), ("{} % {}", "nn"), ("abs({})", "n"),
          ("coalesce({}, {})", "nn"), ("CASE WHEN {} THEN {} ELSE {} END", "bnn"), ("CAST({} AS INT)", "n"), ("length({})",
          "s"),
          ("round({}, 1)", "n"), ("extract(YEAR FROM {})", "t"), ("greatest({}, {})", "nn"), ("nullif({}, {})", "nn"),
          ("-{}", "n"), ("({})", "n"), ("TRY_CAST({} AS DOUBLE)", "s"), ("CAST({} AS BIGINT)", "s"), ("power({}, {})", "nn")),
    "s": (("upper({})", "s"), ("{} || {}", "ss"), ("substring({}, {}, 2)", "sn"), ("CAST({} AS STRING)", "n"), ("trim({})",
    "s"),
          ("concat({}, {})", "ss"), ("coalesce({}, {})", "ss"), ("CAST({} AS STRING)", "t"), ("replace({}, {}, 'x')", "ss"),
          ("md5({})", "s"), ("split({}, ',')[{}]", "sn"), ("lpad({}, {}, 'x')", "sn"), ("regexp_replace({}, {}, '')", "ss"),
          ("date_format({}, {})", "ts"), ("get_json_object({}, {})", "ss"), ("repeat({}, {})", "sn"), ("decode({}, 'utf-8')",
          "s")),
    "b": (("{} = {}", "nn"), ("{} < {}", "nn"), ("{} = {}", "ss"), ("{} LIKE {}", "ss"), ("{} RLIKE {}", "ss"), ("{} IS NULL",
    "n"),
          ("NOT {}", "b"), ("{} AND {}", "bb"), ("{} OR {}", "bb"), ("{} IN ({}, {})", "nnn"), ("{} BETWEEN {} AND {}", "nnn"),
          ("{} IS NOT DISTINCT FROM {}", "ss"), ("{} >= {}", "tt"), ("({})", "b"), ("{} IN ({}, {})", "sss")),
    "t": (("{} + INTERVAL '1' DAY", "t"), ("{} - INTERVAL '2' HOUR", "t"), ("date_trunc('HOUR', {})", "t"),
    ("{} + INTERVAL '1' MONTH", "t"),
          ("coalesce({}, {})", "tt"), ("CAST({} AS TIMESTAMP(3))", "s"), ("greatest({}, {})", "tt")),
}  # fmt: skip
"""Forms by their type, each with the types of its operands."""


_CLAUSES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "item": (
        ("x.v", "x.k", "x.v + 1", "upper(x.k)", "coalesce(x.v, 0)", "x.w"),
        ("*", "x.*", "NULL", "(x.v, x.k)", "sum(x.v)", "count(*)", "x.nosuch", "nosuch.v", "x.k -> 'a'", "array(x.v)[1]",
         "(SELECT max(v) FROM y)", "(SELECT k, v FROM y)", "(SELECT count(*) FROM y WHERE y.k = x.k)", "x.w - x.w",
         "EXISTS (SELECT 1 FROM y UNION SELECT 2 FROM z)", "x.k IN (SELECT k FROM y)", "x.v = ANY (SELECT v FROM y)",
         "ROW_NUMBER() OVER (PARTITION BY x.k ORDER BY x.w)", "lag(x.v) OVER (ORDER BY x.w)", "explode(split(x.k, ','))",
         "interval '1' day", "x.w AT TIME ZONE 'UTC'", "named_struct('a', x.v)", "grouping(x.k)", "PROCTIME()", "window_start"),
    ),
    "from": (
        ("y x", "z x", "q x", "z x JOIN y ON x.k = y.k"),
        ("table(z) x", "(SELECT * FROM z) x", "z x, y", "z x CROSS JOIN y", "z x ANTI JOIN y ON x.v > y.v",
         "z x NATURAL JOIN y",
         "z x JOIN y FOR SYSTEM_TIME AS OF x.w ON x.k = y.k", "z x ASOF JOIN y ON x.k = y.k AND x.w >= y.w", "",
         "TUMBLE(y, w, INTERVAL '1' HOUR) x", "(VALUES (1, 'a')) x(v, k)", "z x, LATERAL (SELECT * FROM y WHERE y.k = x.k) l",
         "z x JOIN (z a JOIN y ON a.k = y.k) ON x.k = a.k", "z AS x(a, b)", "z x LEFT JOIN y ON x.k IN (SELECT k FROM q)",
         "(WITH a AS (SELECT * FROM z) SELECT * FROM a) x", "UNNEST(array(1, 2)) x(v)", "(z x JOIN y ON x.k = y.k)",
         "(SELECT *, ROW_NUMBER() OVER (PARTITION BY k ORDER BY w) AS rn FROM y) x", "z x JOIN y ON EXISTS (SELECT 1 FROM q)"),
    ),
    "where": (
        ("TRUE", "x.v > 0", "x.k IS NOT NULL"),
        ("x.k NOT IN (SELECT k FROM y)", "x.rn = 1", "sum(x.v) > 1", "x.v", "(SELECT TRUE)", "x.v > ALL (SELECT v FROM y)",
         "EXISTS (VALUES (1))", "EXISTS (SELECT 1)", "EXISTS (TABLE y)", "EXISTS (SELECT * FROM (SELECT x.v) l)",
         "NOT NOT EXISTS (SELECT 1 FROM y UNION ALL SELECT 2 FROM z WHERE z.k = x.k)", "(x.k, x.v) IN (SELECT k FROM y)",
         "x.k IN (SELECT k FROM y WHERE y.v = x.v UNION SELECT k FROM z WHERE z.v = x.v + 1)",
         "x.k IN (SELECT k FROM y GROUP BY k UNION ALL (SELECT k FROM z WHERE z.v = x.v))",
         "x.k IN (SELECT x.k FROM y EXCEPT SELECT k FROM z)", "x.v = (SELECT v FROM y UNION SELECT v FROM z)",
         "EXISTS (WITH a AS (SELECT * FROM y) SELECT 1 FROM a WHERE a.k = x.k)", "EXISTS (SELECT 1 FROM y LIMIT 1)",
         "EXISTS (SELECT 1 FROM y WHERE y.k = x.k INTERSECT SELECT 2 FROM z)",
         "x.v = (WITH a AS (SELECT 1 AS m FROM y) SELECT m FROM a)",
         "EXISTS (SELECT 1 FROM y GROUP BY k HAVING count(*) > x.v)",
         "EXISTS (SELECT 1 FROM z WHERE EXISTS (SELECT 1 FROM y WHERE y.k = x.k))"),
    ),
    "group": (
        ("x.k", "x.k, x.v"),
        ("", "1", "99", "()", "ALL", "NULL", "ROLLUP (x.k, x.v)", "GROUPING SETS ((x.k), ())", "(SELECT max(v) FROM y)",
         "sum(x.v)",
         "x.k WITH ROLLUP", "GROUPING SETS (ROLLUP (x.k, x.v), (x.w))", "x.k IN (SELECT k FROM y)", "array(x.v)", "o0",
         "window_start, window_end"),
    ),
    "having": (
        ("TRUE", "count(*) > 0"),
        ("x.v > 1", "count(*)", "o1 > 1", "x.k IN (SELECT k FROM y UNION SELECT k FROM z)",
         "ROW_NUMBER() OVER (ORDER BY x.k) = 1",
         "sum(x.v) > (SELECT max(v) FROM y)", "EXISTS (SELECT 1 FROM y WHERE y.k = x.k)"),
    ),
    "aggregate": (
        ("count(*)", "sum(x.v)", "max(x.v)"),
        ("sum(sum(x.v))", "sum((SELECT max(v) FROM y))", "listagg(x.k, ',') WITHIN GROUP (ORDER BY x.v)", "sum(x.k)",
         "max(array(x.v))",
         "count(*) OVER ()", "array_agg(x.v ORDER BY x.k)", "sum(NULL)", "avg(x.w)", "grouping_id(x.k, x.v)",
         "min(x.v) FILTER (WHERE 1)"),
    ),
    "tail": (
        ("", "", " EMIT CHANGELOG"),
        (" ORDER BY x.v NULLS LAST", " LIMIT -1", " LIMIT ALL", " QUALIFY ROW_NUMBER() OVER (ORDER BY x.v) = 1", " FOR UPDATE",
         " UNION ALL BY NAME SELECT k FROM y", " UNION (SELECT k FROM y LIMIT 1)", " EXCEPT ALL SELECT k FROM y",
         " MINUS SELECT k FROM y",
         " UNION ALL VALUES ('a')", " WINDOW w AS (PARTITION BY k)", " ORDER BY count(*)", " UNION SELECT k, v FROM y"),
    ),
}  # fmt: skip
"""By clause, texts that are bound, and odd ones: over `z` and `y`, which have the columns k, v and w."""


class LawBrokenError(AssertionError):
    """A statement did something else than run or be refused; the message holds it."""


class _HangError(BaseException):
    """A statement takes too long; no handler of errors may take it for one."""


def hostile_name(draw: random.Random) -> str:
    """Return what may be between quotes as a name."""
    signs = string.printable + "é𝄞\u202e\u0000\ufeff'\"`\\;--/**/$$" * 3
    return "".join(draw.choice(signs) for _ in range(draw.randrange(1, 12)))


def _name(draw: random.Random, dialect: str) -> str:
    if draw.random() < 0.05:
        sign = draw.choice('`"' if dialect in {"timeplus", "risingwave", "laminardb"} else "`")
        return sign + hostile_name(draw).replace(sign, sign * 2) + sign
    return draw.choice(["a", "b", "c", "d", "e", "f", "g", "h", "k", "v", "w", "n", "s", "now", "x"])


def _literal(draw: random.Random) -> str:
    if draw.random() < 0.2:
        return "'" + hostile_name(draw).replace("'", "''") + "'"
    return draw.choice(
        ["0", "1", "-1", "9223372036854775808", "1.5", "1e308", "1e400", "0.00000000001", "'a'", "''", "NULL", "TRUE",
        "DATE '2024-02-30'",
         "TIMESTAMP '2024-01-01 00:00:00'", "INTERVAL '1' MONTH", "'2024-01-01'", "X'00'", "X'f'", "0xff", "X'0_1'",
         "99999999999999999999999999999999999999999"]
    )  # fmt: skip


def _scalar(draw: random.Random, dialect: str, depth: int = 0) -> str:
    """Return an expression of no type in particular."""
    if depth > 3 or draw.random() < 0.35:
        chosen = draw.random()
        if chosen < 0.3:
            return _literal(draw)
        column = _name(draw, dialect)
        return column if chosen < 0.7 else f"{draw.choice('xyzt')}.{column}"
    return draw.choice(_SCALARS).format(_scalar(draw, dialect, depth + 1), _scalar(draw, dialect, depth + 1))


def _typed(draw: random.Random, dialect: str, kind: str, scope: list[tuple[str, str]], depth: int = 0) -> str:
    """Return an expression that is likely to have a type: n(umber), s(tring), b(oolean) or t(ime)."""
    if draw.random() < 0.03:
        return _scalar(draw, dialect, 2)
    columns = [name for name, its in scope if its == kind]
    if depth > 2 or draw.random() < 0.4:
        return draw.choice(columns) if columns and draw.random() < 0.7 else draw.choice(_CONSTANTS[kind])
    form, operands = draw.choice(_TYPED[kind])
    return form.format(*[_typed(draw, dialect, one, scope, depth + 1) for one in operands])


def _source(draw: random.Random, dialect: str, alias: str, depth: int) -> tuple[str, list[tuple[str, str]]]:
    if depth < 2 and draw.random() < 0.15:
        return f"({_query(draw, dialect, depth + 1)}) {alias}", []
    table = draw.choice(["t", "u", "p", "q", "t", "u", "p", "table(t)", "TUMBLE(p, w, INTERVAL '1' MINUTE)"])
    table = "nosuch" if draw.random() < 0.02 else table
    columns = _COLUMNS.get(table.removeprefix("table(").removeprefix("TUMBLE(")[:1], {})
    listed = draw.choice(["(a, b)", "(k, v, w)", "(k, k)"]) if draw.random() < 0.03 else ""
    return f"{table} {alias}{listed}", [(f"{alias}.{name}", kind) for name, kind in columns.items()]


def _from(draw: random.Random, dialect: str, depth: int) -> tuple[str, list[tuple[str, str]]]:
    text, scope = _source(draw, dialect, "x", depth)
    for alias in "yz"[: draw.choice((0, 0, 1, 1, 2))]:
        how = draw.choice(
            ["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN", ",", "ASOF JOIN"]
        )
        if draw.random() < 0.05:
            how = draw.choice(["CROSS JOIN", "NATURAL JOIN", "INNER ALL JOIN", "GLOBAL JOIN"])
        source, its = _source(draw, dialect, alias, depth)
        if how in {"JOIN", "LEFT JOIN"} and draw.random() < 0.3:
            table = draw.choice("uqpt")
            when = draw.choice(["x.w", "x.now", "PROCTIME()", "NOW()", "x.e", "x.a", "w"])
            versioned = draw.choice(["", "", " VERSIONED ON w"])
            source = f"{table} FOR SYSTEM_TIME AS OF {when}{versioned} AS {alias}"
            its = [(f"{alias}.{name}", kind) for name, kind in _COLUMNS[table].items()]
        pairs = [(one, other) for one, kind in scope for other, same in its if kind == same]
        condition = " = ".join(draw.choice(pairs)) if pairs and draw.random() < 0.9 else _scalar(draw, dialect)
        scope = scope if how in {"LEFT SEMI JOIN", "LEFT ANTI JOIN"} else [*scope, *its]
        if draw.random() < 0.3:
            condition += f" AND {_typed(draw, dialect, 'b', [*scope, *its], 1)}"
        text += f" {how} {source}"
        if how == "ASOF JOIN":
            text += f" MATCH_CONDITION (x.w >= {alias}.w)" if draw.random() < 0.5 else ""
            condition += f" AND x.w >= {alias}.w" if "MATCH" not in text else ""
        if how not in {",", "CROSS JOIN", "NATURAL JOIN"}:
            text += f" ON {condition}" if draw.random() < 0.9 else " USING (k)"
    return text, scope


def _query(draw: random.Random, dialect: str, depth: int = 0) -> str:
    source, scope = _from(draw, dialect, depth)

    def one(kind: str = "") -> str:
        return _typed(draw, dialect, kind or draw.choice("nnsbt"), scope, 1)

    if draw.random() < 0.3:
        key = one()
        made = [draw.choice(_AGGREGATES).format(one("n"), one("b")) for _ in range(2)]
        columns = ", ".join(f"{text} AS o{place}" for place, text in enumerate((key, *made)))
        grouped = draw.choice(
            [key, key, key, "1", "o0", "()", f"ROLLUP ({key})", f"CUBE ({key}, 1)", f"GROUPING SETS (({key}), ())"]
        )
        behind = f" GROUP BY {grouped}" + draw.choice(["", f" HAVING {made[0]} > 1", " HAVING o1 > 1", " QUALIFY o1 = 1"])
    else:
        names = [draw.choice(["*", "x.*", f"{one()} AS o{place}", f"{one()} AS o{place}", one()]) for place in range(2)]
        columns, behind = ", ".join(names), draw.choice(["", "", "", "", " EMIT CHANGELOG", " SETTINGS max_hot_keys=3"])
        behind = draw.choice([" ORDER BY 1", " LIMIT 3"]) if draw.random() < 0.05 else behind
    where = f" WHERE {one('b')}" if draw.random() < 0.4 else ""
    if draw.random() < 0.08:
        word = draw.choice(["EXISTS", "NOT EXISTS", "x.a IN", "x.k IN", "x.k NOT IN", "x.v ="])
        is_drawn = depth < 2 and draw.random() < 0.3
        where = f" WHERE {word} ({_query(draw, dialect, depth + 1) if is_drawn else 'SELECT k FROM u WHERE k = x.k'})"
    distinct = draw.choice(["", "", "", "DISTINCT "])
    text = f"SELECT {distinct}{columns} FROM {source}{where}{behind}"
    if draw.random() < 0.06:
        window = f"PARTITION BY {draw.choice('knw')} ORDER BY w"
        text = f"SELECT * FROM (SELECT *, ROW_NUMBER() OVER ({window}) AS rn FROM p) WHERE rn = 1"
    if depth == 0 and draw.random() < 0.1:
        text = f"{text} {draw.choice(['UNION ALL', 'UNION', 'EXCEPT', 'INTERSECT'])} {_query(draw, dialect, 1)}"
    if draw.random() < 0.03:
        text = f"{text} {draw.choice(['LIMIT 1', 'ORDER BY 1 NULLS LAST', 'FETCH FIRST 1 ROWS ONLY', 'LIMIT x'])}"
    if depth == 0 and draw.random() < 0.05:
        text = f"WITH y AS ({text}) SELECT * FROM y"
    return text


def _declaration(draw: random.Random, dialect: str) -> str:
    kinds = ["INT", "STRING", "TIMESTAMP(3)", "DECIMAL(10,2)", "ARRAY<INT>", "DECIMAL(99,98)", "MAP<INT,INT>", "VARCHAR(3)",
    "AS PROCTIME()",
             "INT METADATA FROM 'offset'", "AS a + 1", "INT NOT NULL", "INT DEFAULT 1", "ROW<a INT>",
             "BIGINT PRIMARY KEY"]  # fmt: skip
    columns = [f"{_name(draw, dialect)} {draw.choice(kinds)}" for _ in range(draw.randrange(1, 4))]
    more = draw.choice(
        ["", "", ", PRIMARY KEY (a)", ", WATERMARK FOR w AS w - INTERVAL '5' SECOND", ", PRIMARY KEY (a, b) NOT ENFORCED"]
    )
    head = draw.choice(["TABLE", "STREAM", "MUTABLE STREAM", "SOURCE", "TEMPORARY TABLE", "SINK", "VIEW", "OR REPLACE TABLE"])
    tail = draw.choice(
        [
            "",
            "",
            " WITH ('connector'='memory')",
            " WITH ('connector'='nosuch')",
            " SETTINGS mode='versioned_kv'",
            " PRIMARY KEY (a)",
        ]
    )
    return f"CREATE {head} {_name(draw, dialect)} ({', '.join(columns)}{more}){tail}"


def _other(draw: random.Random, dialect: str) -> str:
    name, value = _name(draw, dialect), _scalar(draw, dialect)
    values = ", ".join(_scalar(draw, dialect, 3) for _ in range(draw.randrange(1, 9)))
    setting = draw.choice(["max_hot_keys", "default_hash_join", "cold_store", "tombstone_retention"])
    return draw.choice(
        [
            f"INSERT INTO {draw.choice('tup')} VALUES ({values})",
            f"INSERT INTO u (k, v) {_query(draw, dialect)}",
            f"CREATE SINK {name} INTO {draw.choice('tup')} {draw.choice(['', '(k) ', '(k, v) '])}FROM {draw.choice('tupq')}",
            f"CREATE OR REPLACE SINK {name} INTO u (k, v) AS {_query(draw, dialect)} WITH (type = 'upsert')",
            f"DROP SINK {name}",
            f"CREATE VIEW {name} AS {_query(draw, dialect)}",
            f"CREATE MATERIALIZED VIEW {name} AS {_query(draw, dialect)}",
            f"EXPLAIN {_query(draw, dialect)}",
            f"DESCRIBE {name}",
            f"DROP TABLE {name}",
            f"SET {name} = {_literal(draw)}",
            f"SET '{setting}' = {_literal(draw)}",
            f"UPDATE u SET v = {value} WHERE {value}",
            f"DELETE FROM u WHERE {value}",
            f"SHOW {draw.choice(_WORDS)}",
            f"/*+ {value} */ {_query(draw, dialect)}",
        ]
    )


_TOKENS = re.compile(
    r"""'(?:[^']|'')*'|`[^`]*`|"[^"]*"|[\w.]+|->>|->|<=>|<=|>=|<>|!=|\|\||::|/\*\+|/\*|\*/|--[^\n]*\n|[^\s\w]"""
)


def _texts(path: Path) -> list[str]:
    return re.split(r"^-- [+!].*\n", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]


def fixture_statements(path: Path) -> list[list[str]]:
    """Return the statements of a file of fixtures, cut into tokens; those that need another process are omitted."""
    kept = [text for text in _texts(path) if not re.search(r"kafka|jdbc|redis|duckdb|filesystem|datagen", text, re.IGNORECASE)]
    return [_TOKENS.findall(text.strip().rstrip(";")) for text in kept]


def _mutated(draw: random.Random, corpus: list[list[str]], dialect: str) -> str:
    tokens = list(draw.choice(corpus))
    for _ in range(draw.choice((0, 1, 1, 2, 3))):
        at, what = draw.randrange(len(tokens)), draw.randrange(7)
        if what == 0:
            del tokens[at : at + draw.randrange(1, 4)]
        elif what == 1:
            tokens[at:at] = tokens[at : at + 3]
        elif what == 2:
            tokens[at] = draw.choice(draw.choice(corpus))
        elif what == 3:
            tokens[at] = draw.choice(_WORDS)
        elif what == 4:
            other = draw.choice(corpus)
            begin = draw.randrange(len(other))
            tokens[at:] = other[begin:]
        elif what == 5:
            tokens[at] = _scalar(draw, dialect, 2)
        else:
            tokens[at] = f"({tokens[at]})" if draw.random() < 0.9 else "(" * draw.randrange(2, 200)
        if not tokens:
            return ""
    return " ".join(tokens)


def combined(draw: random.Random) -> str:
    """Return a statement of clauses, each of which is odd once in five times."""

    def one(clause: str) -> str:
        plain, odd = _CLAUSES[clause]
        return draw.choice(odd if draw.random() < 0.2 else plain)

    if draw.random() < 0.35:
        keys = one("group")
        grouped = f" GROUP BY {keys} HAVING {one('having')}" if keys else ""
        items, behind = [keys if keys and "(" not in keys else one("item"), one("aggregate")], grouped
    else:
        items, behind = [one("item") for _ in range(draw.randrange(1, 4))], ""
    listed = ", ".join(f"{item} AS o{place}" if draw.random() < 0.7 else item for place, item in enumerate(items))
    query = f"SELECT {listed} FROM {one('from')} WHERE {one('where')}{behind}{one('tail')}"
    name = f"n{draw.randrange(5)}"
    forms = ("WITH a AS ({0}) SELECT * FROM a", "SELECT * FROM ({0}) a", "({0})", "EXPLAIN {0}",
    "CREATE MATERIALIZED VIEW {1} AS {0}",
             "CREATE OR REPLACE VIEW {1} AS {0}", "INSERT INTO y (k, v) {0}", "CREATE TABLE {1} AS {0}", "DROP VIEW {1}",
             "ALTER MATERIALIZED VIEW {1} AS {0}", "CREATE SINK {1} INTO y (k, v) AS {0}", "DELETE FROM y WHERE {2}",
             "UPDATE y SET v = {3} WHERE {2}", "CREATE TABLE {1} (k STRING, v INT DEFAULT {3})")  # fmt: skip
    form = draw.choice(forms) if draw.random() < 0.4 else "{0}"
    return form.format(query, name, one("where").replace("x.", ""), one("item").replace("x.", ""))


def statement(draw: random.Random, dialect: str, corpus: list[list[str]]) -> str:
    """Return one statement, good or not."""
    chosen = draw.random()
    if chosen < 0.3:
        return combined(draw)
    if chosen < 0.55:
        return draw.choice([_query, _query, _declaration, _other])(draw, dialect)
    if chosen < 0.8:
        return _mutated(draw, corpus, dialect)
    if chosen < 0.96:
        return " ".join(draw.choice(_WORDS) for _ in range(draw.randrange(1, 25)))
    return hostile_name(draw) * draw.randrange(1, 6)


def _session(dialect: str, path: Path) -> Session:
    session = connect(dialect=dialect, clock=lambda: 1_700_000_000_000_000)
    session.sql(_TABLES, dialect="flink")
    session.insert("t", [{"a": 1, "b": "a", "c": 0.5, "f": True, "g": 2**62}, {"a": None, "b": "1"}])
    for text in _texts(path):
        if re.match(r"CREATE (TEMPORARY )?(MUTABLE )?(TABLE|STREAM|SOURCE|VIEW)\b", text):
            with contextlib.suppress(ZsetJoinError):
                session.sql(text)
    return session


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    def interrupt(*_: object) -> None:
        raise _HangError

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, _MOST_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def run_one(session: Session, text: str, draw: random.Random) -> str:
    """Run a statement; return what became of it.

    Raises:
        LawBrokenError: something else than an answer or a refusal.
    """
    try:
        with _limited():
            made = session.sql(text)
            if not isinstance(made, Query):
                return "done"
            chosen = draw.random()
            if chosen < 0.2:
                made.explain()
            elif chosen < 0.3:
                made.table()
                return "queried"
            elif chosen < 0.4 and not made.bound.is_bounded:
                running = made.start()
                session.insert("z", [{"k": "a", "v": 1}, {"k": None}])
                running.table()
                session.stop(running)
                return "run"
            return "bound"
    except ZsetJoinError:
        return "refused"
    except _HangError:
        raise LawBrokenError(f"[{session.dialect}] longer than {_MOST_SECONDS} s: {text!r}") from None
    except Exception as error:
        where = traceback.format_exc(limit=-6)
        raise LawBrokenError(f"[{session.dialect}] {type(error).__name__} for {text!r}\n{where}") from error


def fuzz(dialect: str, count: int, seed: int, *, stop_at_first: bool = True) -> tuple[Counter[str], list[str]]:
    """Run so many statements of a dialect; return what became of them, and the failures where it does not stop at the first.

    Raises:
        LawBrokenError: the law does not hold.
    """
    draw = random.Random(f"{dialect} {seed}")
    paths = sorted((FIXTURES / dialect).glob("*.sql"))
    corpora = {path: fixture_statements(path) for path in paths}
    path = paths[-1]
    found: Counter[str] = Counter()
    failures: dict[str, str] = {}
    session: Session | None = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(count):
            if session is None or number % _SESSION_STATEMENTS == 0:
                if session is not None:
                    session.close()
                path = draw.choice(paths)
                session = _session(dialect, path)
            try:
                found[run_one(session, statement(draw, dialect, corpora[path]), draw)] += 1
            except LawBrokenError as error:
                if stop_at_first:
                    raise
                found["broken"] += 1
                # One of each place in the code is enough to see.
                lines = [line.strip() for line in str(error).splitlines()]
                failures.setdefault(" ".join([*lines[-1:], *[one for one in lines if one.startswith("File")][-2:]]), str(error))
                session.close()
                session = None
    if session is not None:
        session.close()
    return found, list(failures.values())


def names_mean_themselves(count: int, seed: int) -> int:
    """Check that so many names and texts, quoted, mean themselves; return how many were checked.

    Raises:
        LawBrokenError: one does not.
    """
    draw = random.Random(f"names {seed}")
    checked = 0
    while checked < count:
        name, value = hostile_name(draw).replace("\x00", ""), hostile_name(draw).replace("\x00", "")
        if not name.strip() or name.startswith("__"):
            continue
        checked += 2
        schema = pa.schema({"k": pa.int32(), name + "x": pa.string()})
        column, title, table = (quote_name(one, "spark") for one in (name + "x", name, name + "t"))
        with connect() as session:
            session.register(name + "t", pa.table({"k": pa.array([1], pa.int32()), name + "x": [value]}, schema=schema))
            text = f"SELECT {column} AS {title} FROM {table} WHERE {column} = {quote_text(value, 'spark')}"
            made: Any = session.sql(text)
            if made.schema.names != [name]:
                raise LawBrokenError(f"the name {name!r} became {made.schema.names}: {text!r}")
            if checked % 20 == 0 and (answer := made.table().to_pylist()) != [{name: value}]:
                raise LawBrokenError(f"{name!r}, {value!r}: {answer}: {text!r}")
    return checked


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="sql_fuzz")
    parser.add_argument("--statements", type=int, default=20_000, help="over all dialects (20000)")
    parser.add_argument("--names", type=int, default=2_000, help="hostile names and texts (2000)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    failed = 0
    with tempfile.TemporaryDirectory() as directory:
        before = Path.cwd()
        os.chdir(directory)
        try:
            compile_kernels(report=lambda _: None)
            for dialect in DIALECTS:
                started = time.monotonic()
                found, failures = fuzz(dialect, options.statements // len(DIALECTS), options.seed, stop_at_first=False)
                print(f"{dialect}: {dict(found)}, {time.monotonic() - started:.0f} s", flush=True)  # noqa: T201 - a program's output
                for one in failures:
                    print(one, flush=True)  # noqa: T201 - a program's output
                failed += found["broken"]
            if options.names:
                started = time.monotonic()
                checked = names_mean_themselves(options.names, options.seed)
                print(f"{checked} names and texts, {time.monotonic() - started:.0f} s", flush=True)  # noqa: T201 - a program's output
            written = list(Path(directory).rglob("*"))
            if written:
                print(f"files were written: {written[:5]}", flush=True)  # noqa: T201 - a program's output
                failed += 1
        finally:
            os.chdir(before)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
