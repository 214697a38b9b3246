"""Random queries inside Spark are changed to others while they run, on the driver and on executors: the laws of `evolving`.

Both streams, and what Spark computes of them, stay; joins, conditions, groups and columns are drawn. All queries have the
same columns, so that one output goes through all of them. DuckDB answers each over the rows that are live then.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import duckdb
import numpy as np
import pytest
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from tests.spark.api.test_query import names, upserts
from tests.spark.conftest import Collected, Source
from tests.spark.driver.test_executors_changes import start
from tests.spark.tools.test_rescaling import read_files
from tests.sweeps import some_of
from zset_join.core.errors import SinkError, StateError

__all__ = ["start"]

_CASES = [f"{mode} {seed}" for seed in range(20) for mode in ("driver", "executors")]
_HOW = ("inner", "left", "full", "left_anti", "left_semi")
_AGGREGATES = ("max", "min", "sum")


@dataclass(frozen=True)
class Drawn:
    """Hold a query: a type of join, a condition behind it, the label of a row, and how rows of a label are aggregated."""

    how: str
    least: int
    label: str
    aggregate: str | None

    @classmethod
    def of(cls, rng: np.random.Generator) -> Drawn:
        how = str(rng.choice(_HOW))
        label = "item" if how in ("left_anti", "left_semi") else str(rng.choice(["item", "name"]))
        return cls(how, int(rng.integers(4)), label, str(rng.choice(_AGGREGATES)) if rng.random() < 0.7 else None)

    def view(self, orders: Source, customers: Source) -> Any:
        joined = upserts(orders).join(names(customers), on="customer_id", how=self.how)
        if self.least:
            joined = joined.where(f"order_id >= {self.least}")
        if self.aggregate is None:
            return joined.select(
                F.col(self.label).alias("label"), F.col("order_id").alias("n"), F.col("customer_id").alias("last")
            )
        last = getattr(F, self.aggregate)("order_id").alias("last")
        return (
            joined.select("order_id", F.col(self.label).alias("label"))
            .groupBy("label")
            .agg(F.count("order_id").alias("n"), last)
        )

    def rows(self, orders: Source, customers: Source) -> Counter[Any]:
        """Return what it answers, by DuckDB over the live rows."""
        live: dict[int, Any] = {}
        for op, key, customer, item, ts in read_files(orders):
            if key not in live or ts >= live[key][4]:
                live[key] = (op, key, customer, item, ts)
        people = {key: name for key, name, _ in read_files(customers)}
        how = self.how.replace("left_", "")
        where = f"WHERE order_id >= {self.least}" if self.least else ""
        joined = f"SELECT * FROM orders {how} JOIN customers USING (customer_id) {where}"
        wanted = f"{self.label}, order_id, customer_id FROM ({joined})"
        if self.aggregate is not None:
            wanted = f"{self.label}, count(order_id), {self.aggregate}(order_id)::BIGINT FROM ({joined}) GROUP BY 1"
        with duckdb.connect() as database:
            database.execute("CREATE TABLE orders (order_id BIGINT, customer_id BIGINT, item VARCHAR)")
            database.execute("CREATE TABLE customers (customer_id BIGINT, name VARCHAR)")
            database.executemany("INSERT INTO orders VALUES (?, ?, ?)", [row[1:4] for row in live.values() if row[0] != "d"])
            database.executemany("INSERT INTO customers VALUES (?, ?)", list(people.items()))
            return Counter(database.execute(f"SELECT {wanted}").fetchall())


def add_rows(rng: np.random.Generator, orders: Source, customers: Source, ts: int) -> None:
    """Append a file to each stream: inserts, updates, deletes, and changes that are late."""
    keys = rng.choice(12, 8, replace=False).tolist()
    orders.add(
        *(
            (
                "d" if rng.random() < 0.2 else "u",
                key,
                None if rng.random() < 0.15 else int(rng.integers(5)),
                f"item {rng.integers(3)}",
                ts - 15 * int(rng.random() < 0.2),
            )
            for key in keys
        )
    )
    customers.add(*((int(key), f"name {rng.integers(3)}", ts) for key in rng.choice(5, 2, replace=False)))


@pytest.mark.parametrize("case", some_of(_CASES, short=["executors 0"]))
def test_a_random_query_is_changed_to_others_and_goes_on(orders: Source, customers: Source, start: Any, case: str) -> None:
    mode, seed = case.split()
    buckets = 2 if mode == "executors" else 1
    rng = np.random.default_rng(int(seed))
    before, sink = Drawn.of(rng), Collected()
    add_rows(rng, orders, customers, 10)
    query = start(before.view(orders, customers), sink, execution=mode, buckets=buckets)
    for number in range(2):
        add_rows(rng, orders, customers, 20 + 20 * number)
        query.processAllAvailable()
        after = Drawn.of(rng)
        held, wanted = before.rows(orders, customers), after.rows(orders, customers)
        assert sink.total() == held, (before, "before")
        try:
            differs = query.diff(after.view(orders, customers))
            query.evolve(after.view(orders, customers))
        except (SinkError, StateError) as error:
            if error.code not in ("EVOLVE_NO_ROWS", "EVOLVE_OUTPUT"):  # rows that are absent; another key of the view
                raise
            continue
        (view,) = differs.views.values()
        gone = Counter(dict(view.removed.to_pylist()))
        assert gone == held - wanted, (before, after)
        assert sink.total() == wanted, (before, after)
        before = after
    add_rows(rng, orders, customers, 60)
    query.processAllAvailable()
    assert sink.total() == before.rows(orders, customers), (before, "later")
    query.stop()
    add_rows(rng, orders, customers, 70)
    start(before.view(orders, customers), sink, execution=mode, buckets=buckets)
    assert sink.total() == before.rows(orders, customers), (before, "started again")
