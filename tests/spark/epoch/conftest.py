"""What tests of outputs share: a join of three epochs, and a query that ran to its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.conftest import Source, upserts
from zset_join.spark import JoinedStream, JoinQuery, JoinStreamWriter, changes


@pytest.fixture
def joined(orders: Source, customers: Source) -> JoinedStream:
    """Give a join of three epochs: inserts, then updates that move a key, then a delete."""
    orders.add(("i", 1, 10, "pen", 1), ("i", 2, 20, "ink", 1)).add(("u", 1, 20, "pen", 2)).add(("d", 2, None, None, 3))
    customers.add((10, "Ann", 1), (20, "Bob", 1)).add((20, "Bobby", 2))
    return upserts(orders).join(
        changes(customers.stream(), name="customers", keys=["customer_id"], except_column_list=["ts"]),
        on="customer_id",
        how="left",
    )


def finished(writer: JoinStreamWriter, tmp_path: Path) -> JoinQuery:
    writer = writer.option("checkpointLocation", str(tmp_path / "cp")).option("localStateDir", str(tmp_path / "local"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return query
