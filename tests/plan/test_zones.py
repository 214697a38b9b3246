"""A query in a time zone: every expression of every step and request is in it, those of new requests too."""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from zset_join.expressions import Expression, left, right
from zset_join.lookup import ArrowSource
from zset_join.pipeline import View, appends, changes
from zset_join.pipeline import functions as F  # noqa: N812 - as PySpark users write it
from zset_join.plan.tree import Apply, Node, Operate, in_zone
from zset_join.query import PROCESSING_TIME
from zset_join.shapes.aggregate import AggregateCall
from zset_join.stages.request import StageRequest

COLUMNS = "k INT, ts TIMESTAMP"
HOUR = F.expr("hour(ts)")
PAIR = (left("ts").cast("date") == right("ts").cast("date")) | left("ts").cast("date").isNull()


def rows() -> View:
    return appends("a", COLUMNS, watermark=("ts", "1 second"))


def others() -> View:
    return changes("b", COLUMNS, keys="k").versioned_by("ts", delay="1 second")


TABLE = ArrowSource(name="d", table=pa.table({"k": [1], "ts": pa.array([0], pa.timestamp("us", "UTC"))}))
ON = [("k", "k")]
VIEWS = {
    "where": lambda: rows().where("hour(ts) > 4"),
    "select": lambda: rows().select("k", hour=HOUR),
    "group key": lambda: rows().groupBy(hour=HOUR).count(),
    "argument": lambda: rows().groupBy("k").agg(F.max(HOUR).alias("h")),
    "filter": lambda: rows().groupBy("k").agg(F.count().filter("hour(ts) > 4").alias("n")),
    "call with a filter": lambda: (
        rows().groupBy("k").agg(AggregateCall("count", (), name="n", where=left("ts").cast("date").isNull()))
    ),
    "group that expires": lambda: rows().groupBy(hour=HOUR).agg(F.count().alias("n"), state_ttl="1 day"),
    "join key": lambda: rows().join(others(), on=[(HOUR, HOUR)]),
    "join condition": lambda: rows().join(others(), on=ON, condition=PAIR),
    "join that expires": lambda: rows().join(others(), on=ON, condition=PAIR, state_ttl="1 day"),
    "temporal": lambda: rows().temporal_join(others(), on=ON, condition=PAIR, is_change_time=True),
    "processing time": lambda: rows().temporal_join(others(), on=[(HOUR, "k")], as_of=PROCESSING_TIME, condition=PAIR),
    "as-of": lambda: rows().join_asof(others(), on=ON, left_time="ts", right_time="ts", op=">=", condition=PAIR),
    "lookup": lambda: rows().lookup_join(TABLE, on=[(HOUR, "k")], condition=PAIR),
    "dedup": lambda: rows().withColumn("hour", HOUR).dedup(keys="hour", order_by="ts"),
}


def expressions(value: Any) -> list[Expression]:
    """Return every tree that a value holds, wherever: what pickle sees of it."""
    found: list[Expression] = []

    class Watched(pickle.Pickler):
        def persistent_id(self, part: Any) -> str | None:
            if isinstance(part, Expression):
                found.append(part)
            return "seen" if isinstance(part, Expression) else None

    Watched(io.BytesIO()).dump(value)
    return found


def nodes(node: Node) -> Iterator[Node]:
    yield node
    for child in node.children:
        yield from nodes(child)


def held(root: Node) -> list[Expression]:
    own = [one.step if isinstance(one, Apply) else one.request for one in nodes(root) if isinstance(one, Apply | Operate)]
    return [tree for one in own for tree in expressions(one)]


def depends(tree: Expression) -> bool:
    """Return whether the day or the hour of an instant in UTC is computed."""
    found = re.search(r"(extract\('hour', |CAST\()(left\.|right\.|row\.)?ts( AS date|\))", repr(tree))
    return found is not None


@pytest.mark.parametrize("name", VIEWS)
def test_every_expression_of_a_query_is_in_the_zone(name: str) -> None:
    view = VIEWS[name]()
    before, after = held(view.node), held(in_zone(view.node, "America/New_York"))

    assert any(map(depends, before))
    assert len(after) == len(before)
    assert not any(map(depends, after))
    assert in_zone(view.node, "Etc/UTC") is view.node


def test_the_table_above_has_every_request_that_may_hold_an_expression() -> None:
    wanted = {type(one.request).__name__ for make in VIEWS.values() for one in nodes(make().node) if isinstance(one, Operate)}
    kinds: list[type] = [StageRequest]
    for kind in kinds:
        kinds += kind.__subclasses__()
    concrete = {one.__name__ for one in kinds if not one.__subclasses__() and one.__module__.startswith("zset_join.")}

    assert concrete - wanted == {"CurrentVersionsRequest", "LatestRequest", "UnchangedRequest"} - wanted
