"""A dimension in a database that lags: a customer who is absent yet is looked up again, and nothing waits meanwhile."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from examples.gallery.story import Answers, Epoch, Run, Story
from zset_join import ZSet
from zset_join.lookup import Lookup
from zset_join.pipeline import Pipeline, appends
from zset_join.pipeline import functions as F  # noqa: N812 - as PySpark users import theirs
from zset_join.stages import StageOptions
from zset_join.testing.lookups import FakeClock, ScriptedSource

__all__ = ["STORY"]

NEW, ORDERS, EVERY_SECONDS = (3, 9, 14), 40, 10


def _begin() -> Run:
    clock = FakeClock()
    schema = pa.schema({"customer": pa.int64(), "name": pa.string()})
    customers = ScriptedSource("customers", schema, clock=clock)
    for number in range(16):
        if number not in NEW:
            customers.put({"customer": number, "name": f"customer {number}"}, at=0)
    for number in NEW[:2]:
        customers.put({"customer": number, "name": f"customer {number}"}, at=25)  # after their first orders

    orders = appends("orders", "id BIGINT, customer BIGINT, total BIGINT")
    retry = Lookup(
        retry_predicate="lookup_miss", retry_strategy="fixed_delay", fixed_delay="10s", max_attempts=3, park="epochs"
    )
    named = orders.lookup_join(customers, on="customer", how="left", hint=retry, columns=["name"])
    epochs = [
        Epoch(
            {"orders": [{"id": at, "customer": at % 16, "total": 5 + at} for at in range(ORDERS) if at // 8 == number]},
            at_seconds=number * EVERY_SECONDS,
        )
        for number in range(9)
    ]

    def wait(epoch: Epoch) -> None:
        clock.sleep(float(epoch.at_seconds or 0) - clock.now_us() / 1e6)

    def facts(pipeline: Pipeline[dict[str, ZSet]], answers: Answers) -> Iterator[tuple[str, bool]]:
        column = answers[0]["named"].schema.names.index("id")
        epoch_of = {row[column]: at for at, answer in enumerate(answers) for row, _ in answer["named"].to_pylist()}
        waited = sorted(order for order, at in epoch_of.items() if at > order // 8)
        of_new = [order for order in range(ORDERS) if order % 16 in NEW]
        yield (
            f"{len(epoch_of)} orders are answered, none of them twice",
            len(epoch_of) == pipeline.view("named").num_rows == ORDERS,
        )
        yield (
            f"{len(waited)} waited for their customer; the others of their epoch did not",
            set(waited) <= set(of_new) and bool(waited),
        )
        names = {(line["customer"], line["name"]) for line in pipeline.view("named").to_pylist() if line["name"] is not None}
        yield (
            "each of the others has the name of its customer",
            names == {(at, f"customer {at}") for at in range(16) if at != NEW[2]},
        )
        unnamed = [line["id"] for line in pipeline.view("named").to_pylist() if line["name"] is None]
        never = [order for order in of_new if order % 16 == NEW[2]]
        yield f"{len(unnamed)} of a customer who never came are padded after the third attempt", sorted(unnamed) == never

    return Run(
        {"named": named, "totals": orders.groupBy("customer").agg(F.sum("total").alias("total"))},
        epochs,
        facts,
        StageOptions(more={"lookup_clock": clock}),
        before_epoch=wait,
        not_verifiable=frozenset({"named"}),
    )


STORY = Story("late_dimension", "orders with the names of customers from a database that learns of some of them later", _begin)
