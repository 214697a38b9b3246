"""A Spark query has the plan that every runner has: written down as JSON, and read without its program."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.stages.every_stage import registered
from zset_join.lookup import ArrowSource
from zset_join.plan.query_plan import QueryPlan
from zset_join.query.joining import PROCESSING_TIME
from zset_join.spark import StateTtl, View, appends, changes
from zset_join.spark import functions as F  # noqa: N812 - as PySpark users write it
from zset_join.sql import connect

IN_PROCESS_ALONE = {"shared_table"}
CODES = pa.table({"sku": [1, 2], "name": ["pen", "ink"]})


@pytest.fixture
def views(spark: SparkSession, tmp_path: Path) -> dict[str, View]:
    """Give a view per kind of stage; nothing of them is started."""

    def stream(schema: str) -> Any:
        return spark.readStream.schema(schema).json(str(tmp_path))

    orders = appends(stream("id long, sku long, at long"), name="orders", watermark=("at", 0))
    changed = changes(stream("id long, sku long, ts long"), name="changed", keys=["id"], sequence_by="ts")
    prices = changes(stream("sku long, price long, at long"), name="prices", keys=["sku"], watermark=("at", 0))
    with connect(engine="spark", spark=spark) as session:
        session.sql("CREATE TABLE clicks (page STRING, ms BIGINT); CREATE TABLE sums (n BIGINT)")
        joined = "SELECT a.ms + 1 AS ms FROM clicks a JOIN sums s ON a.ms = s.n"
        clicks = session.view_of(session.sql(f"SELECT ms FROM clicks UNION ALL {joined}"))
    return {
        "aggregate": orders.join(changed, on="sku").groupBy("sku").agg(F.sum("at").alias("n")).where("n > 3"),
        "as_of_join": orders.join_asof(prices, on="sku", left_time="at", right_time="at"),
        "current_versions": orders.temporal_join(prices, on="sku", how="left", as_of=PROCESSING_TIME),
        "deduplicate": orders.dedup("sku", order_by="at desc"),
        "join": orders.join(prices, on="sku", how="left").union(orders.alias("more").join(prices.alias("others"), on="sku")),
        "latest": orders.join_asof(prices, on="sku", how="left", left_time="at", right_time="at"),
        "lookup_join": orders.lookup_join(ArrowSource(name="codes", table=CODES), on="sku"),
        "process_time_join": orders.temporal_join(prices, on="sku", as_of=PROCESSING_TIME),
        "route": changed.join(prices, on="sku").select("id", "price"),
        "state_ttl": orders.join(prices, on="sku", state_ttl=(StateTtl(10, by="event"), None)),
        "temporal_join": orders.temporal_join(prices, on="sku"),
        "unchanged": clicks,
    }


def test_a_plan_with_any_kind_of_stage_comes_back_from_json(views: dict[str, View]) -> None:
    plans = {kind: view.placed.plan for kind, view in views.items()}

    again = {kind: QueryPlan.from_json(json.loads(json.dumps(plan.to_json()))) for kind, plan in plans.items()}

    assert {kind: plan.to_json() for kind, plan in again.items()} == {kind: plan.to_json() for kind, plan in plans.items()}
    assert {kind: plan.explain() for kind, plan in again.items()} == {kind: plan.explain() for kind, plan in plans.items()}
    assert [kind for kind, plan in plans.items() if kind not in {node.stage.kind for node in plan.nodes}] == []
    assert set(plans) == registered() - IN_PROCESS_ALONE


def test_a_plan_has_streams_as_sources_and_routes_unions_and_rows_of_sql_as_every_runner_has(views: dict[str, View]) -> None:
    plan = views["route"].placed.plan

    assert [(source.name, source.hidden) for source in plan.sources] == [("changed", ()), ("prices", ())]
    assert [node.stage.kind for node in plan.nodes] == ["route", "join"]
    assert [[feed.origin for feed in feeds] for feeds in plan.nodes[1].feeds] == [[0], ["prices"]]
    assert plan.outputs[0].steps[0].describe() == "Select id, price"
    assert plan.output.schema.names == views["route"].columns

    of_sql, of_spark = (views[kind].placed.plan.outputs[-1].steps for kind in ("unchanged", "aggregate"))

    assert [step.describe() for step in of_sql] == ["Select ms + 1 AS ms"]
    assert [step.describe() for step in of_spark] == ["Where n > 3"]

    plan = views["join"].placed.plan

    assert len(plan.outputs) == 2
    assert [source.name for source in plan.sources] == ["orders", "prices", "more", "others"]
