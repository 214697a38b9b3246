"""A mart in SQL, in process: orders that change and are deleted long after their time, rates that come late, fees that change.

    python -m examples.orders_mart

After every epoch each view is compared, row for row, with DuckDB, which computes it from the tables as they are then. No view
sets a bound, so no change is ever late: a delete in June of an order of January counts.
"""

from __future__ import annotations

import datetime
from collections import Counter
from random import Random
from typing import Any

import duckdb
import pyarrow as pa

from zset_join import ZSet
from zset_join.sql import connect

__all__ = ["QUERIES", "Mart", "main"]

TABLES = """
CREATE TABLE orders (id BIGINT PRIMARY KEY NOT ENFORCED, currency STRING, paid BIGINT, made TIMESTAMP(6),
                     WATERMARK FOR made AS made - INTERVAL '1' DAY);
CREATE TABLE rates (currency STRING, rate BIGINT, since TIMESTAMP(6), WATERMARK FOR since AS since - INTERVAL '1' DAY);
CREATE TABLE fees (fee_id BIGINT PRIMARY KEY NOT ENFORCED, currency STRING, fee BIGINT, since TIMESTAMP(6));
CREATE VIEW rate_versions AS SELECT currency, rate, since FROM (
    SELECT *, ROW_NUMBER() OVER (PARTITION BY currency ORDER BY since DESC) AS n FROM rates) AS numbered WHERE n = 1;
SET 'temporal_join_emit' = 'eager';
"""
PRICED = (
    "orders AS o JOIN rate_versions FOR SYSTEM_TIME AS OF o.made AS r ON o.currency = r.currency",
    "orders o ASOF JOIN rates r ON o.currency = r.currency AND o.made >= r.since",
)
FEES = (  # both sides change: an ASOF JOIN
    "orders AS o ASOF LEFT JOIN fees AS f ON o.currency = f.currency AND o.made >= f.since",
    "orders o ASOF LEFT JOIN fees f ON o.currency = f.currency AND o.made >= f.since",
)
QUERIES = {
    "priced": ("SELECT o.id, o.made, o.paid * r.rate AS euro FROM {}", PRICED),
    "revenue": (
        "SELECT o.currency, CAST(sum(o.paid * r.rate) AS BIGINT) AS euro, count(*) AS n FROM {} GROUP BY o.currency",
        PRICED,
    ),
    "with_fees": ("SELECT o.id, f.fee FROM {}", FEES),
}
"""By view its query, and what it reads: here, and in DuckDB."""
CURRENCIES = ("EUR", "USD", "GBP")
SCHEMAS = {
    "orders": pa.schema({"id": pa.int64(), "currency": pa.string(), "paid": pa.int64(), "made": pa.timestamp("us")}),
    "rates": pa.schema({"currency": pa.string(), "rate": pa.int64(), "since": pa.timestamp("us")}),
    "fees": pa.schema({"fee_id": pa.int64(), "currency": pa.string(), "fee": pa.int64(), "since": pa.timestamp("us")}),
}


class Mart:
    """The session with its views, and beside it the tables as they are.

    Args:
        settings: statements before the views are started.
    """

    def __init__(self, settings: str = "") -> None:
        self.session: Any = connect(dialect="flink")
        self.session.sql(TABLES + settings)
        self.views = {name: self.session.sql(query.format(here)).start() for name, (query, (here, _)) in QUERIES.items()}
        self.tables: dict[str, dict[Any, tuple[Any, ...]]] = {name: {} for name in SCHEMAS}

    def change(self, table: str, *rows: tuple[Any, ...]) -> None:
        """Insert rows, or replace those with their keys."""
        for row in rows:
            self.tables[table][row if table == "rates" else row[0]] = row
        self._give(table, rows, 1)

    def delete(self, table: str, *keys: int) -> None:
        """Delete rows by key."""
        self._give(table, [self.tables[table].pop(key) for key in keys], -1)

    def _give(self, table: str, rows: Any, weight: int) -> None:
        columns = dict(zip(SCHEMAS[table].names, map(list, zip(*rows, strict=True)), strict=True))
        if rows:
            self.session.insert(table, ZSet.of(columns, [weight] * len(rows), schema=SCHEMAS[table]))

    def wrong(self) -> dict[str, int]:
        """Return, by view, how many rows differ from DuckDB's."""
        with duckdb.connect() as database:
            for name, rows in self.tables.items():
                lines = [dict(zip(SCHEMAS[name].names, row, strict=True)) for row in rows.values()]
                database.register(name, pa.Table.from_pylist(lines, schema=SCHEMAS[name]))
            wrong = {}
            for name, (query, (_, batch)) in QUERIES.items():
                expected = Counter(database.sql(query.format(batch)).fetchall())
                answered = Counter(tuple(row.values()) for row in self.views[name].table().to_pylist())
                wrong[name] = sum(((expected - answered) + (answered - expected)).values())
        return wrong


def main(epochs: int = 40, settings: str = "") -> int:
    """Run the mart over random days; print what differs, and return it."""
    rng, mart, differences = Random(7), Mart(settings), 0  # noqa: S311 - data of an example
    first = datetime.datetime(2025, 1, 1)  # noqa: DTZ001 - TIMESTAMP has no zone

    def moment(day: int) -> datetime.datetime:
        return first + datetime.timedelta(days=day, seconds=rng.randrange(86_400))

    for day in range(epochs):
        mart.change("orders", *((1000 * day + n, rng.choice(CURRENCIES), rng.randrange(1, 99), moment(day)) for n in range(20)))
        mart.change("rates", *((currency, rng.randrange(1, 9), moment(rng.randrange(day + 1))) for currency in CURRENCIES))
        mart.change("fees", (day % 9, rng.choice(CURRENCIES), rng.randrange(9), moment(rng.randrange(day + 1))))
        known = sorted(mart.tables["orders"])
        for key in rng.sample(known, 4):  # of any day: repriced, or moved to another time
            mart.change("orders", (key, rng.choice(CURRENCIES), rng.randrange(1, 99), moment(rng.randrange(day + 1))))
        mart.delete("orders", *rng.sample(known, 3))
        wrong = mart.wrong()
        differences += sum(wrong.values())
        if any(wrong.values()):
            print(f"day {day}: {wrong}")
    counts = ", ".join(f"{name} {view.table().num_rows}" for name, view in mart.views.items())
    print(f"{epochs} days, {differences} rows different from DuckDB; rows of the views: {counts}")
    return differences


if __name__ == "__main__":
    raise SystemExit(main() != 0)
