"""A column in several pairs of `on=`: it is a key once, and the other equalities hold as in an ON of SQL."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from zset_join.lookup import ArrowSource
from zset_join.pipeline import Pipeline, View, appends, changes
from zset_join.sql import connect

ON = [("k", "x"), ("k", "y")]
LEFT = [{"id": 1, "k": 2}, {"id": 2, "k": 3}, {"id": 3, "k": None}]
RIGHT = [{"x": 2, "y": 2}, {"x": 3, "y": 4}, {"x": None, "y": None}]
TABLE = ArrowSource(name="d", table=pa.Table.from_pylist(RIGHT, pa.schema({"x": pa.int32(), "y": pa.int32()})))


def rows() -> View:
    return appends("a", "id INT, k INT, t INT", event_time="t")


def others() -> View:
    return appends("b", "x INT, y INT, t INT", event_time="t")


@pytest.mark.parametrize("how", ["inner", "left", "full", "anti"])
@pytest.mark.parametrize("null_safe", [False, True])
def test_a_join_by_words_has_the_rows_of_the_same_on_in_sql(how: str, null_safe: bool) -> None:
    view = changes("a", "id INT, k INT", keys="id").join(appends("b", "x INT, y INT"), on=ON, how=how, null_safe=null_safe)
    with Pipeline(view) as pipeline, connect(dialect="spark") as session:
        pipeline.step({"a": LEFT, "b": RIGHT})
        session.sql("CREATE TABLE a (id INT, k INT, PRIMARY KEY (id)); CREATE TABLE b (x INT, y INT)")
        session.sql("INSERT INTO a VALUES (1, 2), (2, 3), (3, NULL); INSERT INTO b VALUES (2, 2), (3, 4), (NULL, NULL)")
        equal = "<=>" if null_safe else "="
        query = session.sql(f"SELECT * FROM a {how} JOIN b ON a.k {equal} b.x AND a.k {equal} b.y")

        assert sorted(map(repr, pipeline.view().to_pylist())) == sorted(map(repr, query.table().to_pylist()))


KINDS: dict[str, Any] = {
    "as-of": lambda: rows().join_asof(others(), on=ON, left_time="t", right_time="t", op=">=", how="left"),
    "lookup": lambda: rows().lookup_join(TABLE, on=ON, how="left"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_other_joins_take_such_pairs_as_well(kind: str) -> None:
    with Pipeline(KINDS[kind]()) as pipeline:
        others_given = {"b": [{**one, "t": 1} for one in RIGHT]} if kind == "as-of" else {}
        pipeline.step({"a": [{**one, "t": 5} for one in LEFT], **others_given})

        assert sorted((one["id"], one["x"]) for one in pipeline.view().to_pylist()) == [(1, 2), (2, None), (3, None)]
