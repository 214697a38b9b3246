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

`streams` describes inputs, `joined` the join, `writer` collects options, `query` is the handle of what runs; `runner` is one
epoch on the driver and `tasks` on the workers. `rescaling` changes the number of buckets of a stopped query. `verification`
compares the result with Spark's own batch join.
"""

from __future__ import annotations

from zset_join.spark.joined import JoinedStream
from zset_join.spark.progress import join_progress
from zset_join.spark.query import JoinQuery
from zset_join.spark.rescaling import RescaleReport, rescale
from zset_join.spark.session import cluster_settings, local_session
from zset_join.spark.streams import ChangeStream, appends, changes
from zset_join.spark.unions import UnionedStream
from zset_join.spark.verification import VerificationReport
from zset_join.spark.views import View
from zset_join.spark.writer import JoinStreamWriter

__all__ = [
    "ChangeStream",
    "JoinQuery",
    "JoinStreamWriter",
    "JoinedStream",
    "RescaleReport",
    "UnionedStream",
    "VerificationReport",
    "View",
    "appends",
    "changes",
    "cluster_settings",
    "join_progress",
    "local_session",
    "rescale",
]
