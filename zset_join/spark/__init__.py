"""Keep a join of two streams up to date inside Spark.

from zset_join.spark import appends, changes

orders = changes(orders_df, name="orders", keys=["order_id"], sequence_by="ts", apply_as_deletes="op = 'd'")
customers = changes(customers_df, name="customers", keys=["customer_id"], sequence_by="ts")
query = (
orders.join(customers, on="customer_id", how="left")
.writeStream.option("checkpointLocation", "/data/checkpoints/orders")
.toDuckDB("/data/orders.duckdb", "orders_with_customers")
.start()
)
"""

from __future__ import annotations

from zset_join.runners.spark.api.query import JoinQuery
from zset_join.runners.spark.api.streams import appends, changes
from zset_join.runners.spark.api.views import ChangeStream, JoinedStream, UnionedStream, View, writeStream
from zset_join.runners.spark.api.writer import JoinStreamWriter
from zset_join.runners.spark.driver.moving import MoveReport, move
from zset_join.runners.spark.epoch.progress import join_progress
from zset_join.runners.spark.session import cluster_settings, local_session
from zset_join.runners.spark.tools.rescaling import RescaleReport, rescale
from zset_join.stages import StateTtl
from zset_join.tools.reports import VerificationReport

__all__ = [
    "ChangeStream",
    "JoinQuery",
    "JoinStreamWriter",
    "JoinedStream",
    "MoveReport",
    "RescaleReport",
    "StateTtl",
    "UnionedStream",
    "VerificationReport",
    "View",
    "appends",
    "changes",
    "cluster_settings",
    "join_progress",
    "local_session",
    "move",
    "rescale",
    "writeStream",
]
