"""An update that moves only a hidden sequence emits nothing, and is remembered."""

from __future__ import annotations

from collections.abc import Callable

from tests.spark.conftest import Collected, Source, weights
from zset_join.spark import JoinQuery, changes

Run = Callable[..., JoinQuery]


def test_an_update_of_the_hidden_sequence_alone_emits_nothing(orders: Source, customers: Source, run: Run) -> None:
    left = changes(orders.stream(), name="orders", keys=["order_id"], sequence_by="ts", except_column_list=["op", "ts"])
    right = changes(customers.stream(), name="customers", keys=["customer_id"], sequence_by="ts", except_column_list=["ts"])
    joined = left.join(right, on="customer_id", how="left")
    orders.add(*(("i", number, 10, "pen", 1) for number in range(20)))
    customers.add((10, "Ann", 1))
    customers.add((10, "Ann", 5))
    customers.add((10, "too late", 4))
    customers.add((10, "Bea", 6))
    sink = Collected()

    run(joined, sink)

    lines = [weights(epoch) for epoch in sink.epochs]
    assert lines[0] == {(10, number, "pen", "Ann"): 1 for number in range(20)}
    assert [len(epoch) for epoch in lines] == [20, 0, 0, 40]
    assert sink.total() == {(10, number, "pen", "Bea"): 1 for number in range(20)}
