"""Only the columns of an external table that are read are requested."""

from __future__ import annotations

import pyarrow as pa

from zset_join.expressions import col, right
from zset_join.lookup import FunctionSource
from zset_join.pipeline import Pipeline, appends
from zset_join.stages import LookupJoinStage

SCHEMA = pa.schema({"id": pa.int64(), "name": pa.string(), "who": pa.string(), "rank": pa.int64(), "country": pa.string()})
ORDERS = {"o": pa.int64(), "who": pa.int64()}


def _everything(keys: pa.Table) -> pa.Table:
    rows = [{"id": key, "name": f"n{key}", "who": f"w{key}", "rank": key, "country": "UK"} for key in keys["id"].to_pylist()]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


SOURCE = FunctionSource(name="people", schema=SCHEMA, function=_everything)


def _fetched(view) -> list[str]:
    (stage,) = [planned.stage for planned in view.plan().nodes if isinstance(planned.stage, LookupJoinStage)]
    return stage.table.schema.names


def _answer(view) -> list:
    with Pipeline(view) as pipeline:
        return pipeline.step({"orders": [{"o": 1, "who": 7}, {"o": 2, "who": 8}]}).to_pylist()


def test_a_selection_reads_only_its_columns_under_the_names_of_the_answer():
    enriched = appends("orders", ORDERS).lookup_join(SOURCE, on=[("who", "id")])
    view = enriched.where(col("country") == "UK").select("o", "who_right")

    assert _fetched(enriched) == SCHEMA.names
    assert _fetched(view) == ["id", "who", "country"]
    assert _answer(view) == [((1, "w7"), 1), ((2, "w8"), 1)]


def test_the_key_and_the_condition_stay():
    enriched = appends("orders", ORDERS).lookup_join(SOURCE, on=[("who", "id")], how="left", condition=right("rank") > 7)

    view = enriched.select("o", "name")

    assert _fetched(view) == ["id", "name", "rank"]
    assert _answer(view) == [((1, None), 1), ((2, "n8"), 1)]


def test_rows_that_go_two_ways_are_requested_whole():
    enriched = appends("orders", ORDERS).lookup_join(SOURCE, on=[("who", "id")])

    both = enriched.select("o", "name").union(enriched.select("o", "country").withColumnRenamed("country", "name"))

    assert _fetched(both) == SCHEMA.names
    assert len(_answer(both)) == 4
