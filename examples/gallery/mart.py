"""A mart of orders, customers and products from the change records of a database: Debezium's, with updates and deletes."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from random import Random
from typing import Any

from examples.gallery.story import Answers, Epoch, Run, Story
from zset_join import ZSet
from zset_join.expressions import col
from zset_join.pipeline import Pipeline, View, records
from zset_join.pipeline import functions as F  # noqa: N812 - as PySpark users import theirs

__all__ = ["STORY"]


def _views() -> dict[str, View]:
    orders = records("orders", "debezium-json", "id BIGINT, customer BIGINT, product BIGINT, pieces BIGINT", keys="id")
    customers = records("customers", "debezium-json", "customer BIGINT, city STRING", keys="customer")
    products = records("products", "debezium-json", "product BIGINT, kind STRING, price BIGINT", keys="product")
    lines = (
        orders.join(products, on="product")
        .join(customers, on="customer", how="left")
        .withColumn("paid", col("pieces") * col("price"))
    )
    return {
        "order_lines": lines.select("id", "city", "kind", "paid"),
        "revenue": lines.groupBy("city", "kind").agg(F.sum("paid").alias("paid"), F.count().alias("orders")),
    }


class _Database:
    """Three tables, and the change records of what is done to them."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[int, dict[str, Any]]] = {"orders": {}, "customers": {}, "products": {}}
        self._records: dict[str, list[dict[str, Any]]] = {}

    def write(self, table: str, key: int, row: Mapping[str, Any]) -> None:
        operation = "u" if key in self.tables[table] else "c"
        self.tables[table][key] = dict(row)
        self._record(table, {"op": operation, "after": dict(row)})

    def delete(self, table: str, key: int) -> None:
        self._record(table, {"op": "d", "before": self.tables[table].pop(key)})

    def _record(self, table: str, record: Mapping[str, Any]) -> None:
        self._records.setdefault(table, []).append({"value": json.dumps(record)})

    def taken(self) -> dict[str, list[dict[str, Any]]]:
        """Return the records since the last call."""
        taken, self._records = self._records, {}
        return taken


def _epochs(database: _Database) -> Iterator[Epoch]:
    rng = Random(41)  # noqa: S311 - data of an example
    for number in range(12):
        database.write("products", number, {"product": number, "kind": ("tea", "nuts", "oil")[number % 3], "price": 3 + number})
    for number in range(20):
        database.write("customers", number, {"customer": number, "city": rng.choice(("Oslo", "Rome", "Lima"))})
    yield Epoch(database.taken())
    for epoch in range(8):
        for number in range(epoch * 15, epoch * 15 + 15):
            order = {"id": number, "customer": rng.randrange(22), "product": rng.randrange(12), "pieces": rng.randrange(1, 5)}
            database.write("orders", number, order)
        for number in rng.sample(sorted(database.tables["orders"]), 4):
            database.write("orders", number, {**database.tables["orders"][number], "pieces": rng.randrange(1, 9)})
        for number in rng.sample(sorted(database.tables["orders"]), 2):
            database.delete("orders", number)
        moved = rng.choice(sorted(database.tables["customers"]))
        database.write("customers", moved, {"customer": moved, "city": rng.choice(("Oslo", "Rome", "Kobe"))})
        yield Epoch(database.taken())


def _begin() -> Run:
    database = _Database()

    def facts(pipeline: Pipeline[dict[str, ZSet]], answers: Answers) -> Iterator[tuple[str, bool]]:
        paid: dict[tuple[str | None, str], int] = defaultdict(int)
        for order in database.tables["orders"].values():
            product = database.tables["products"][order["product"]]
            city = database.tables["customers"].get(order["customer"], {}).get("city")
            paid[city, product["kind"]] += order["pieces"] * product["price"]
        view = {(line["city"], line["kind"]): line["paid"] for line in pipeline.view("revenue").to_pylist()}
        yield f"{len(paid)} sums of the database's tables are those of the view", view == paid
        retracted = sum(-weight for answer in answers for _, weight in answer["order_lines"].to_pylist() if weight < 0)
        yield f"{retracted} order lines were retracted: updates, deletes and customers who moved", retracted > 0

    return Run(_views(), _epochs(database), facts)


STORY = Story("mart", "orders, customers and products as change records become revenue by city and kind", _begin)
