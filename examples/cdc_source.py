"""Two tables in PostgreSQL, and an application that changes them: what `cdc_demo` captures.

`orders` has the default REPLICA IDENTITY, so PostgreSQL sends no old rows of it, nor long texts that were not touched;
`customers` has REPLICA IDENTITY FULL. The transactions are drawn from a seed: rows that move to another primary key, deletes,
truncates, long texts left alone (stored apart, as TOAST), NULLs in a column that has a default, several statements at once.

A row of `orders` whose key moves has a short note: what PostgreSQL does not send of a row that gets another key is known to
nobody, see `docs/how-to/describe-inputs.md`. Rows of `customers` may move with long texts, FULL sends them.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import psycopg

__all__ = ["CITY_OF_THE_END", "CUSTOMERS", "ORDERS", "QUERY", "TABLES", "write_the_end", "write_transactions"]

Statement: TypeAlias = tuple[str, Sequence[Any]]

ORDERS, CUSTOMERS = 3_000, 200
CITY_OF_THE_END = "the end"
QUERY = (
    "SELECT c.city, count(*), sum(o.total), count(DISTINCT o.note), max(o.note), min(c.about) "
    "FROM orders AS o JOIN customers AS c ON o.customer_id = c.id GROUP BY c.city"
)
_LONG = "repeat(md5(({})::text), 80)"  # 2,560 characters
_ORDER_MOVES = (
    "UPDATE orders SET id = %s WHERE id = %s AND length(note) < 100 AND NOT EXISTS (SELECT FROM orders WHERE id = %s)"
)
TABLES = (
    "CREATE TABLE customers (id bigint PRIMARY KEY, name text, city text DEFAULT 'nowhere', about text)",
    "CREATE TABLE orders (id bigint PRIMARY KEY, customer_id bigint, total numeric(12, 2), note text)",
    "ALTER TABLE orders ALTER COLUMN note SET STORAGE EXTERNAL",
    "ALTER TABLE customers ALTER COLUMN about SET STORAGE EXTERNAL",
    "ALTER TABLE customers REPLICA IDENTITY FULL",
    (
        f"INSERT INTO customers SELECT n, 'c' || n, CASE WHEN n % 9 > 0 THEN 'city' || n % 9 END, {_LONG.format('n % 50')} "
        f"FROM generate_series(1, {CUSTOMERS}) AS n"
    ),
    (
        f"INSERT INTO orders SELECT n, n % {CUSTOMERS + 20}, n * 1.5, "
        f"CASE WHEN n % 2 = 0 THEN {_LONG.format('n % 400')} ELSE 'short' || n % 7 END FROM generate_series(1, {ORDERS}) AS n"
    ),
)


def write_transactions(
    conninfo: str,
    transactions: int,
    *,
    seed: int,
    report: Callable[[int], None] = lambda _: None,
    truncates: int = 4,
    may_truncate: Callable[[], bool] = lambda: True,
    per_second: float = float("inf"),
) -> int:
    """Commit random transactions.

    A connection that is lost is made again; the transaction that was under way may then have been committed or not.

    Args:
        conninfo: of the database.
        transactions: how many.
        seed: of the choices.
        report: is called with the number of those committed.
        truncates: how many of them empty a table, in turns.
        may_truncate: returns whether one may now. PostgreSQL shows an emptied table to a snapshot from before it was emptied.
        per_second: the most of them in a second.

    Returns:
        How often the connection was lost.
    """
    draw = random.Random(seed)  # noqa: S311 - test data
    lost = number = 0
    started = time.monotonic()
    while number < transactions:
        try:
            with psycopg.connect(conninfo) as connection:
                while number < transactions:
                    number += 1
                    between = transactions // (truncates + 1) if may_truncate() else transactions + 1
                    for statement, values in _transaction(draw, number, between):
                        connection.execute(statement.encode(), values)
                    connection.commit()
                    report(number)
                    ahead = number / per_second - (time.monotonic() - started)
                    if ahead > 0.02:
                        time.sleep(ahead)
        except psycopg.OperationalError:
            lost += 1
            time.sleep(0.2)
    return lost


def write_the_end(conninfo: str) -> None:
    """Write a last order and its customer; once their city is in the view, all that came before has been taken."""
    with psycopg.connect(conninfo) as connection:
        connection.execute("INSERT INTO customers (id, city) VALUES (-1, 'the end')")
        connection.execute("INSERT INTO orders VALUES (-1, -1, 0, 'last')")


def _transaction(draw: random.Random, number: int, between_truncates: int) -> list[Statement]:
    if number % between_truncates == 0:
        table, rows = (("orders", ORDERS), ("customers", CUSTOMERS))[number // between_truncates % 2]
        return [(f"TRUNCATE {table}", []), *(_insert(draw, table) for _ in range(rows // 2))]
    return [_change(draw) for _ in range(draw.choice((1, 1, 1, 2, 3)))]


def _insert(draw: random.Random, table: str) -> Statement:
    if table == "customers":
        customer, what = draw.randrange(1, CUSTOMERS + 20), draw.randrange(50)
        if draw.random() < 0.2:
            return "INSERT INTO customers (id, name) VALUES (%s, 'new') ON CONFLICT DO NOTHING", [customer]
        city = draw.choice([None, *(f"city{one}" for one in range(9))])
        sql = f"INSERT INTO customers VALUES (%s, %s, %s, {_LONG.format('%s::bigint')}) ON CONFLICT DO NOTHING"
        return sql, [customer, f"c{what}", city, what]
    order, customer, what = draw.randrange(1, ORDERS + 500), draw.randrange(1, CUSTOMERS + 20), draw.randrange(400)
    note = _LONG.format("%s::bigint") if draw.random() < 0.5 else "'short' || %s"
    return f"INSERT INTO orders VALUES (%s, %s, %s, {note}) ON CONFLICT DO NOTHING", [order, customer, what / 4, what]


def _change(draw: random.Random) -> Statement:
    order, other = draw.randrange(1, ORDERS + 500), draw.randrange(1, ORDERS + 500)
    customer, next_one = draw.randrange(1, CUSTOMERS + 20), draw.randrange(1, CUSTOMERS + 20)
    city = f"city{draw.randrange(9)}"
    change = draw.choices(
        [
            lambda: ("UPDATE orders SET total = total + 1 WHERE id = %s", [order]),
            lambda: ("UPDATE orders SET customer_id = %s WHERE id = %s", [customer, order]),
            lambda: ("UPDATE orders SET note = note || 'x' WHERE id = %s AND length(note) < 3000", [order]),
            lambda: ("DELETE FROM orders WHERE id = %s", [order]),
            lambda: _insert(draw, "orders"),
            lambda: (_ORDER_MOVES, [other, order, other]),
            lambda: ("UPDATE customers SET city = NULL WHERE id = %s", [customer]),
            lambda: ("UPDATE customers SET city = %s WHERE id = %s", [city, customer]),
            lambda: ("DELETE FROM customers WHERE id = %s", [customer]),
            lambda: _insert(draw, "customers"),
            lambda: (
                "UPDATE customers SET id = %s WHERE id = %s AND NOT EXISTS (SELECT FROM customers WHERE id = %s)",
                [next_one, customer, next_one],
            ),
        ],
        weights=[24, 20, 8, 10, 14, 8, 2, 4, 2, 4, 4],
    )[0]
    return change()
