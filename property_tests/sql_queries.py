"""Random queries over two tables, `lefts` and `rights`, that DuckDB, Spark and zset_join read alike.

Drawn: joins of every kind, also with USING, three items and one table twice; conditions; groups with FILTER, HAVING and sets of
keys; subqueries in FROM, WITH, EXISTS, IN and as a value, tied and not; the first rows of ROW_NUMBER(); UNION, EXCEPT and
INTERSECT of other types. Each may be within another.

Not drawn, since the two that judge differ there: a set of keys without rows (Spark has no group, DuckDB one: HAVING leaves it
out), an order of NULLs that is not written (DuckDB is set to Spark's).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st

__all__ = ["Draw", "drawn_query", "predicate", "queries"]

Draw = Callable[[int], int]
"""Returns a number below another one."""

_NUMBERS = {"l": ["id", "k", "v"], "r": ["rid", "rk", "w"]}
_TEXTS = {"l": "s", "r": "u"}
_TABLES = {"l": "lefts", "r": "rights"}


def _one(draw: Draw, *ways: str | Callable[[], str]) -> str:
    """Return one of several texts; of those that hold others only the chosen one is drawn."""
    way = ways[draw(len(ways))]
    return way if isinstance(way, str) else way()


def scalar(draw: Draw, sides: str) -> str:
    """Return a number of a row."""
    side = _one(draw, *sides)
    column, number = f"{side}.{_one(draw, *_NUMBERS[side])}", draw(4)
    return _one(
        draw,
        column,
        f"{column} + {number}",
        f"coalesce({column}, {number})",
        f"CASE WHEN {column} > {number} THEN {column} ELSE -{column} END",
        f"CASE {column} WHEN {number} THEN 7 WHEN 2 THEN NULL ELSE {column} END",
        f"nullif({column}, {number})",
        f"greatest({column}, {number})",
        f"abs({column} - 2)",
        f"({column} + 4) % 3",
        f"CAST(CAST({column} AS STRING) AS INT)",
        f"length({side}.{_TEXTS[side]})",
    )


def predicate(draw: Draw, sides: str) -> str:
    """Return a condition on a row."""
    side = _one(draw, *sides)
    text, number = f"{side}.{_TEXTS[side]}", scalar(draw, sides)
    return _one(
        draw,
        lambda: f"{number} > {scalar(draw, sides)}",
        f"{number} IN (0, 2)",
        f"{number} NOT IN (0, 3)",
        f"{number} BETWEEN 0 AND 2",
        f"{text} LIKE '%a%'",
        f"upper({text}) = 'A'",
        f"{text} IS NULL",
        f"NOT ({number} = 1 OR {text} = 'b')",
        f"{number} IS NOT DISTINCT FROM 1",
        lambda: f"{number} IS DISTINCT FROM {scalar(draw, sides)}",
        f"({text} = 'a' AND {number} < 2) IS NOT TRUE",
    )


def _source(draw: Draw, side: str) -> str:
    """Return an item of FROM with the columns of a side, under its name."""
    table, names = _TABLES[side], [*_NUMBERS[side], _TEXTS[side]]
    columns = ", ".join(names)
    back = ", ".join(f"c{place} AS {name}" for place, name in enumerate(names))
    return _one(
        draw,
        *[f"{table} {side}"] * 4,
        lambda: f"(SELECT {columns} FROM {table} {side} WHERE {predicate(draw, side)}) {side}",
        f"(SELECT DISTINCT * FROM {table}) AS {side}",
        lambda: _first_rows(draw, side, columns),
        lambda: _first_rows(draw, side, columns),
        f"(SELECT {back} FROM {table} AS x(c0, c1, c2, c3)) {side}",
        f"(SELECT {columns} FROM {table} UNION ALL SELECT {columns} FROM {table} WHERE {names[1]} = 1) {side}",
    )


def _first_rows(draw: Draw, side: str, columns: str) -> str:
    key, number, _ = _NUMBERS[side]
    order = _one(draw, "", " DESC", " NULLS LAST", " DESC NULLS FIRST")
    window = f"PARTITION BY {scalar(draw, side)} ORDER BY {scalar(draw, side)}{order}, {side}.{key}"
    numbered = f"SELECT {columns}, ROW_NUMBER() OVER ({window}) AS rn FROM {_TABLES[side]} {side}"
    count = _one(draw, "n.rn = 1", "rn <= 2", "3 > n.rn", "rn BETWEEN 1 AND 2")
    also = _one(draw, "", f" AND n.{number} > 0", f" AND n.{key} IN (SELECT rk FROM rights)")
    return f"(SELECT {columns} FROM ({numbered}) n WHERE {count}{also}) {side}"


def _joined(draw: Draw) -> tuple[str, str]:
    """Return FROM, and the sides whose columns it has."""
    how = _one(draw, "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "SEMI JOIN", "ANTI JOIN")
    equal = _one(draw, "l.k = r.rk", "l.k = r.rk AND l.v = r.w", "l.k + 1 = r.rk", "l.s = r.u", "l.k IS NOT DISTINCT FROM r.rk")
    more = _one(draw, "", lambda: f" AND {predicate(draw, 'lr')}")
    third = _one(draw, "", "", " JOIN lefts z ON z.id = l.v", " LEFT JOIN lefts z ON z.k = l.k AND z.v > 0")
    sides = "l" if how in {"SEMI JOIN", "ANTI JOIN"} else "lr"
    return f"{_source(draw, 'l')} {how} {_source(draw, 'r')} ON {equal}{more}{third}", sides


def _outside(draw: Draw, sides: str) -> str:
    side = _one(draw, *sides)
    return f"{side}.{_one(draw, *_NUMBERS[side])}"


def _set_word(draw: Draw) -> str:
    return _one(draw, "UNION", "UNION ALL", "EXCEPT", "INTERSECT")


def _not(draw: Draw) -> str:
    return _one(draw, "", "NOT ")


def _with_subquery(draw: Draw, sides: str) -> str:
    """Return a condition of WHERE with a subquery."""
    outside, number = _outside(draw, sides), scalar(draw, sides)
    return _one(
        draw,
        f"{_not(draw)}EXISTS (SELECT 1 FROM rights y WHERE y.rk = {outside} AND {_one(draw, 'y.w', '1')} < {number})",
        f"EXISTS (SELECT 1 FROM rights y JOIN lefts x ON x.k = y.rk WHERE x.id = {outside})",
        f"{_not(draw)}EXISTS (SELECT max(y.rid) FROM rights y WHERE y.rk = {outside} GROUP BY y.w)",
        f"{number} IN (SELECT y.rk FROM rights y WHERE y.w = {outside} GROUP BY y.u, y.rk)",
        f"{_not(draw)}EXISTS (SELECT 1 FROM rights y WHERE y.w = 1)",
        f"{number} IN (SELECT y.rk FROM rights y WHERE y.w IS NOT NULL)",
        f"{number} IN (SELECT y.rk FROM rights y GROUP BY y.rk HAVING count(*) > 1)",
        f"{number} IN (WITH q AS (SELECT rk FROM rights WHERE w > 0) SELECT rk FROM q)",
        f"{number} IN (SELECT y.rk FROM rights y WHERE y.w = {outside} {_set_word(draw)} SELECT z.k FROM lefts z)",
        f"{number} IN (SELECT y.rk FROM rights y {_set_word(draw)} SELECT z.v FROM lefts z)",
        f"{_not(draw)}EXISTS (SELECT y.rk FROM rights y {_set_word(draw)} SELECT z.k FROM lefts z WHERE z.v = 1)",
        f"{_not(draw)}EXISTS (SELECT 1 FROM rights y WHERE y.rk = {outside} UNION SELECT 2 FROM lefts z WHERE z.v = {number})",
        f"({number} > 1 OR EXISTS (SELECT y.rk FROM rights y {_set_word(draw)} SELECT z.k FROM lefts z WHERE z.v > 1))",
        f"({outside}, {number}) IN (SELECT y.rk, y.w FROM rights y)",
        lambda: f"{number} >= {_value(draw, outside)}",
        lambda: f"({number} = {_value(draw, outside)} OR {number} < 1)",
        f"({number} > 1 OR NOT EXISTS (SELECT DISTINCT y.w FROM rights y WHERE y.rk = {outside}))",
        f"{number} IN (SELECT y.rk FROM rights y WHERE y.w >= (SELECT min(v) FROM lefts))",
    )


def _value(draw: Draw, outside: str) -> str:
    """Return a subquery that represents a value, for a column outside."""
    made = _one(
        draw, "max(y.w)", "count(*)", "coalesce(sum(y.w), 0)", "count(y.w) + 1", "min(y.w) - max(y.rk)", "count(DISTINCT y.w)",
        "count(*) FILTER (WHERE y.w > 0)", "CASE WHEN count(*) > 1 THEN 9 ELSE max(y.w) END",
    )  # fmt: skip
    condition = _one(draw, f" WHERE y.rk = {outside}", f" WHERE y.rk = {outside} AND y.w > 0", " WHERE y.w > 1", "")
    return f"(SELECT {made} FROM rights y{condition})"


def _groups(draw: Draw, source: str, condition: str, sides: str) -> str:
    key, other, value = scalar(draw, sides), scalar(draw, sides), scalar(draw, sides)
    other = f"({other}) + 1" if key == other else other
    having = _one(draw, "", "count(*) > 1", "n > 1", f"sum({value}) > (SELECT min(w) FROM rights)")
    filtered = f" HAVING {having}" if having else ""
    made = _one(
        draw,
        f"sum({value}) AS total, min({value}) AS least",
        f"avg({value}) AS mean, max({value}) - min({value}) AS width",
        f"count(DISTINCT {value}) AS kinds",
        lambda: f"count({value}) FILTER (WHERE {predicate(draw, sides)}) AS some",
        lambda: f"coalesce(max({value}) FILTER (WHERE {predicate(draw, sides)}), -1) AS most",
        f"sum({value}) + count(*) AS both",
    )
    rows = f"count(*) AS n, {made} FROM {source}{condition}"
    sets = _one(
        draw, f"ROLLUP ({key}, {other})", f"CUBE ({key}, {other})", f"GROUPING SETS (({key}), ({other}), ())",
        f"GROUPING SETS (({key}, {other}), ({key}))",
    )  # fmt: skip
    # DuckDB has a group of no rows, Spark none.
    some = f" HAVING {' AND '.join(filter(None, ['count(*) > 0', having]))}"
    return _one(
        draw,
        f"SELECT {key} AS g, {rows} GROUP BY {key}{filtered}",
        f"SELECT {key} AS g, {other} AS h, {rows} GROUP BY 1, 2{filtered}",
        f"SELECT {key} AS g, (SELECT max(w) FROM rights) AS top, {rows} GROUP BY {key}{filtered}",
        f"SELECT {rows}",
        f"SELECT {key} AS g, {other} AS h, grouping({key}) AS i, {rows} GROUP BY {sets}{some}",
    )


def _plain(draw: Draw, source: str, condition: str, sides: str) -> str:
    third = _one(draw, "", ", a + 1 AS c", lambda: f", {_value(draw, _outside(draw, sides))} AS c")
    first = f"SELECT {_one(draw, '', 'DISTINCT ')}{scalar(draw, sides)} AS a"
    return f"{first}, {scalar(draw, sides)} AS b{third} FROM {source}{condition}"


def _of_using(draw: Draw) -> str:
    how = _one(draw, "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN")
    third = _one(draw, "", f" {how} (SELECT w AS k, rid AS d FROM rights) z USING (k)")
    items = f"(SELECT id, k, v FROM lefts) x {how} (SELECT rk AS k, w, rid FROM rights) y USING (k){third}"
    condition = _one(draw, "", " WHERE k > 0", " WHERE k IS NULL", " WHERE k IN (1, 2) AND x.v > 0")
    return _one(
        draw,
        f"SELECT k, x.id, w FROM {items}{condition}",
        f"SELECT k, count(*) AS n FROM {items}{condition} GROUP BY k",
        f"SELECT K + 1 AS j, y.w FROM {items}{condition}",
    )


def _set_of(draw: Draw) -> str:
    word = _one(draw, "UNION ALL", "UNION ALL", "UNION", "EXCEPT", "INTERSECT")
    number = scalar(draw, "r")
    other = _one(draw, number, f"CAST({number} AS BIGINT)", "NULL", f"{number} + 0.5")
    left = f"SELECT {scalar(draw, 'l')} AS a, l.s AS t FROM {_source(draw, 'l')}"
    return f"{left} {word} SELECT {other}, {_one(draw, 'r.u', 'NULL')} FROM {_source(draw, 'r')}"


@st.composite
def queries(draw: Any) -> str:
    """Return the text of a query."""
    return drawn_query(lambda below: draw(st.integers(0, below - 1)))


def drawn_query(draw: Draw) -> str:
    """Return the text of a query."""
    kind = _one(draw, "one", "join", "join", "join", "subquery", "subquery", "union", "comma", "using")
    where, sides = "", "l"
    if kind == "union":
        text = _set_of(draw)
    elif kind == "using":
        text = _of_using(draw)
    else:
        source, sides = _joined(draw) if kind == "join" else (_source(draw, "l"), "l")
        if kind == "comma":
            between = _one(draw, "", "lefts z, ")
            source, sides, where = f"{source}, {between}{_source(draw, 'r')}", "lr", "l.k = r.rk"
            where += " AND z.id = r.w" if between else ""
        if kind == "subquery":
            where = _with_subquery(draw, sides)
        if draw(2):
            where = " AND ".join(filter(None, [predicate(draw, sides), where]))
        condition = f" WHERE {where}" if where else ""
        text = (_groups if draw(2) else _plain)(draw, source, condition, sides)
    return _one(
        draw,
        *[text] * 5,
        f"WITH q AS ({text}) SELECT * FROM q",
        f"SELECT DISTINCT * FROM ({text}) AS q",
        f"WITH q AS ({text}) SELECT * FROM q UNION ALL SELECT * FROM q",
    )
