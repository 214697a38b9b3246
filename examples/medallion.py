"""Fifteen views of a shop in one pipeline: cleaned tables (bronze), their joins (silver), and what is counted over them (gold).

    python -m examples.medallion [--epochs N] [--seed N] [--keep DIR] [--executors]

Four tables change: orders, order lines, customers and products. The rows are made here, the same ones for the same seed: new
orders, updates, deletes, and corrections that arrive late and lose against a newer change of their key. All fifteen views take
an epoch together and are written into one DuckDB file in one transaction. At the end every view is compared with its batch
query over all that arrived, and the tables in the file with the views.

With `--executors` the same views are one query on Spark's executors: its streams are files, one of each table per epoch, and
every view is compared with Spark's own batch query.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from zset_join.expressions import col
from zset_join.pipeline import Pipeline, View, changes
from zset_join.pipeline import functions as F  # noqa: N812 - as PySpark users import theirs
from zset_join.sinks.duckdb_view import DuckDBViewSink

CITIES = ("Oslo", "Rome", "Lima", "Kobe", None)
CATEGORIES = ("books", "tools", "games")
CUSTOMERS, PRODUCTS, NEW_ORDERS, LINES = 60, 30, 20, 3
LATE_BY = 1_000

Rows = dict[str, list[dict[str, Any]]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; the exit code is 1 where a view differs from its batch query."""
    parser = argparse.ArgumentParser(prog="medallion", description="fifteen views over four tables in one pipeline")
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="where the checkpoint and the DuckDB file stay; a new directory")
    parser.add_argument("--executors", action="store_true", help="as one query on Spark's executors")
    given = parser.parse_args(arguments)
    chosen = run_on_executors if given.executors else run
    if given.keep is not None:
        return chosen(given.keep, given.epochs, given.seed)
    with tempfile.TemporaryDirectory(prefix="medallion_") as temporary:
        return chosen(Path(temporary), given.epochs, given.seed)


def run(directory: Path, epochs: int, seed: int) -> int:
    """Run the epochs, print what is shared and what changed, and compare every view."""
    views = medallion()
    file = directory / "shop.duckdb"
    outputs = {name: DuckDBViewSink(file, name) for name in views}
    with Pipeline(views, directory / "checkpoint", outputs=outputs, keep_inputs=True) as pipeline:
        for rows in shop(epochs, seed):
            pipeline.step(rows)
        for node in pipeline.plan.nodes:
            print(f"stage {node.name} serves {', '.join(pipeline.plan.views_of(node.number))}")
        wrong = []
        for name in views:
            is_equal = pipeline.verify(view=name).equal
            counts = pipeline.progress["views"][name]
            print(f"{name}: {counts['answer_rows']} changes in the last epoch, {'equal' if is_equal else 'DIFFERENT'}")
            wrong += [] if is_equal else [name]
        kept = {name: bag(pipeline.view(name)) for name in views}
    with duckdb.connect(str(file), read_only=True) as connection:
        for name, view in kept.items():
            columns = ", ".join(f'"{column}"' for column in views[name].columns)
            if bag(connection.sql(f'SELECT {columns} FROM "{name}"').to_arrow_table()) != view:
                print(f"{name}: DIFFERENT in {file}")
                wrong.append(name)
    print(f"{len(views) - len(set(wrong))} of {len(views)} views equal their batch queries after {epochs} epochs")
    return 1 if wrong else 0


def run_on_executors(directory: Path, epochs: int, seed: int) -> int:
    """Run all epochs as one query on Spark's executors, and compare every view with its batch query."""
    from pyspark.sql.pandas.types import from_arrow_schema

    from zset_join import spark

    session = spark.local_session("medallion", cores=2)
    schemas: dict[str, pa.Schema] = {}

    def stream(name: str, schema: Mapping[str, pa.DataType], **options: Any) -> Any:
        schemas[name] = pa.schema(list(schema.items()))
        (directory / name).mkdir(parents=True)
        types = from_arrow_schema(schemas[name])
        rows = session.readStream.schema(types).option("maxFilesPerTrigger", 1).parquet(str(directory / name))
        return spark.changes(rows, name=name, **options)

    views = medallion(stream)
    for epoch, changed in enumerate(shop(epochs, seed)):
        for name, rows in changed.items():
            pq.write_table(pa.Table.from_pylist(rows, schema=schemas[name]), directory / name / f"{epoch:06}.parquet")
    writer = spark.writeStream(views).options(
        checkpointLocation=str(directory / "checkpoint"), execution="executors", buckets=2
    )
    for name in views:
        writer = writer.view(name).toDuckDB(directory / "shop.duckdb", name)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    report = query.verify()
    print(report)
    print(f"{len(views) - len(report.differing)} of {len(views)} views equal their batch queries after {epochs} epochs")
    return 0 if report.equal else 1


def bag(table: pa.Table) -> Counter[tuple[Any, ...]]:
    """Return how often each row is present."""
    return Counter(tuple(row.values()) for row in table.to_pylist())


def medallion(source: Callable[..., Any] = changes) -> dict[str, View]:
    """Return the views by their names; `source` makes a table of its name, its columns and what its changes mean."""
    orders = table(source, "orders", "order_id", customer_id=pa.int64(), day=pa.int64(), status=pa.string())
    lines = table(source, "lines", "line_id", order_id=pa.int64(), product_id=pa.int64(), quantity=pa.int64())
    customers = table(source, "customers", "customer_id", city=pa.string(), tier=pa.int64())
    products = table(source, "products", "product_id", category=pa.string(), price=pa.int64())

    bronze_orders = orders.where(col("status") != "test")
    bronze_lines = lines.where(col("quantity") > 0)
    bronze_customers = customers.where(col("city").is_not_null())
    bronze_products = products.where(col("price") > 0)

    priced = bronze_lines.join(bronze_products, on="product_id")
    sold = priced.join(bronze_orders, on="order_id").withColumn("amount", col("quantity") * col("price"))
    sales = sold.join(bronze_customers, on="customer_id")

    def by(view: View, *keys: str) -> View:
        return view.groupBy(*keys).agg(F.sum("amount").alias("amount"), F.count().alias("lines"))

    by_city = by(sales, "city")
    return {
        "bronze_orders": bronze_orders,
        "bronze_lines": bronze_lines,
        "bronze_customers": bronze_customers,
        "bronze_products": bronze_products,
        "silver_priced_lines": priced,
        "silver_sales": sales,
        "silver_orders_without_customer": bronze_orders.join(bronze_customers, on="customer_id", how="left_anti"),
        "silver_last_order": bronze_orders.dedup(keys="customer_id", order_by=["day", "order_id"], keep="last"),
        "silver_cities": bronze_customers.select("city").distinct(),
        "gold_by_city": by_city,
        "gold_by_day": by(sales, "day"),
        "gold_by_category": by(sales, "category"),
        "gold_by_city_and_day": by(sales, "city", "day"),
        "gold_customers_by_tier": bronze_customers.groupBy("tier").agg(F.count().alias("customers")),
        "gold_large_cities": by_city.where(col("amount") > 10_000),
    }


def table(source: Callable[..., Any], name: str, key: str, **columns: pa.DataType) -> Any:
    """Return a table whose newest change of a key wins, and whose rows go where `gone` is true."""
    schema = {key: pa.int64(), **columns, "version": pa.int64(), "gone": pa.bool_()}
    return source(
        name, schema, keys=[key], sequence_by="version", apply_as_deletes="gone", except_column_list=["version", "gone"]
    )


def shop(epochs: int, seed: int) -> Iterator[Rows]:
    """Return the changes of the four tables, epoch by epoch."""
    rng = Random(seed)  # noqa: S311 - data of an example
    number = 0
    for epoch in range(epochs):
        rows: Rows = {"orders": [], "lines": [], "customers": [], "products": []}
        changed = (
            (range(CUSTOMERS), range(PRODUCTS))
            if epoch == 0
            else (rng.sample(range(CUSTOMERS), 4), rng.sample(range(PRODUCTS), 2))
        )
        rows["customers"] = [change(rng, epoch, customer(rng, key)) for key in changed[0]]
        rows["products"] = [change(rng, epoch, product(rng, key)) for key in changed[1]]
        again = rng.sample(range(number), min(number, NEW_ORDERS // 4))
        for order in [*range(number, number + NEW_ORDERS), *again]:
            rows["orders"].append(change(rng, epoch, an_order(rng, order, epoch)))
            rows["lines"] += [change(rng, epoch, a_line(rng, order, place)) for place in range(LINES)]
        number += NEW_ORDERS
        yield rows


def change(rng: Random, epoch: int, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row as a change: one of ten is a delete, and after the first epoch one of ten is older than its key."""
    is_late = epoch > 0 and rng.random() < 0.1
    version = epoch * LATE_BY + rng.randrange(LATE_BY) - (3 * LATE_BY if is_late else 0)
    return {**row, "version": version, "gone": epoch > 0 and rng.random() < 0.1}


def customer(rng: Random, number: int) -> dict[str, Any]:
    """Return a customer; some have no city."""
    return {"customer_id": number, "city": rng.choice(CITIES), "tier": rng.randrange(3)}


def product(rng: Random, number: int) -> dict[str, Any]:
    """Return a product; some have no price yet."""
    return {"product_id": number, "category": CATEGORIES[number % len(CATEGORIES)], "price": rng.randrange(0, 50)}


def an_order(rng: Random, number: int, day: int) -> dict[str, Any]:
    """Return an order; some were made to try the shop, some by customers who are absent."""
    status = "test" if rng.random() < 0.05 else rng.choice(("open", "paid"))
    return {"order_id": number, "customer_id": rng.randrange(CUSTOMERS + 3), "day": day // 5, "status": status}


def a_line(rng: Random, order: int, place: int) -> dict[str, Any]:
    """Return a line of an order; some have no quantity."""
    line = {"line_id": order * LINES + place, "order_id": order}
    return {**line, "product_id": rng.randrange(PRODUCTS), "quantity": rng.randrange(0, 5)}


if __name__ == "__main__":
    raise SystemExit(main())
