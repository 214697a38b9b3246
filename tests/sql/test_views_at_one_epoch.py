"""Many views of a session in a directory: at every moment they are of one epoch, and each is what DuckDB's query holds."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from examples.medallion import shop
from tests.sweeps import some_of
from zset_join.sql import Session, connect

_ACCOUNTS = 9
_BANK = """
CREATE TABLE accounts (id INT, branch INT, cents INT, PRIMARY KEY (id));
CREATE MATERIALIZED VIEW total AS SELECT sum(cents) AS cents FROM accounts;
CREATE MATERIALIZED VIEW by_account AS SELECT id, cents FROM accounts;
CREATE VIEW counted AS SELECT branch AS part, cents FROM accounts;
CREATE MATERIALIZED VIEW by_part AS SELECT part, sum(cents) AS cents FROM counted GROUP BY part;
"""


@pytest.mark.parametrize("reads", some_of(["2000", "100000"], short=["2000"]))
def test_a_reader_never_sees_two_epochs_while_rows_and_plans_change(tmp_path: Path, reads: str) -> None:
    found: Counter[tuple[int, ...]] = Counter()
    moments: set[tuple[int, int]] = set()
    is_over = threading.Event()
    with connect(directory=tmp_path) as session:
        session.sql(_BANK)
        cents = dict.fromkeys(range(_ACCOUNTS), 100)
        session.insert("accounts", [_account(number, cents) for number in cents])

        def read() -> None:
            while found.total() < int(reads) or epochs < 25:
                seen = session.views()
                found[tuple(sum(seen[name].column("cents").to_pylist()) for name in ("total", "by_account", "by_part"))] += 1
                moments.add((seen["by_part"].num_rows, seen["by_account"].column("cents")[0].as_py()))
            is_over.set()

        epochs = 0
        reader = threading.Thread(target=read)
        reader.start()
        while not is_over.is_set():
            one, other = epochs % _ACCOUNTS, (epochs * 4 + 1) % _ACCOUNTS
            if one != other:  # a transfer: the whole stays
                cents[one], cents[other] = cents[one] - epochs % 7, cents[other] + epochs % 7
                session.insert("accounts", [_account(one, cents), _account(other, cents)])
            if epochs % 10 == 9:
                session.sql(f"ALTER VIEW counted AS SELECT branch % {2 + epochs % 2} AS part, cents FROM accounts")
                session.sql(f"ALTER VIEW counted AS SELECT id % {4 + epochs % 3} AS part, cents FROM accounts")
            epochs += 1
        reader.join()

    assert list(found) == [(100 * _ACCOUNTS,) * 3]
    assert len(moments) > 5


def _account(number: int, cents: dict[int, int]) -> dict[str, int]:
    return {"id": number, "branch": number % 3, "cents": cents[number]}


_TABLES = (
    "CREATE TABLE orders (order_id INT, customer_id INT, day INT, status STRING, PRIMARY KEY (order_id))",
    "CREATE TABLE lines (line_id INT, order_id INT, product_id INT, quantity INT, PRIMARY KEY (line_id))",
    "CREATE TABLE customers (customer_id INT, city STRING, tier INT, PRIMARY KEY (customer_id))",
    "CREATE TABLE products (product_id INT, category STRING, price INT, PRIMARY KEY (product_id))",
)
_BY = "sum(amount) AS amount, count(*) AS n FROM silver_sales GROUP BY"
_LAST = "SELECT *, row_number() OVER (PARTITION BY customer_id ORDER BY day DESC, order_id DESC) AS rn FROM bronze_orders"
_VIEWS = {
    "bronze_orders": "SELECT * FROM orders WHERE status <> 'test'",
    "bronze_lines": "SELECT * FROM lines WHERE quantity > 0",
    "bronze_customers": "SELECT * FROM customers WHERE city IS NOT NULL",
    "bronze_products": "SELECT * FROM products WHERE price > 0",
    "silver_last_order": f"SELECT customer_id, order_id, day FROM ({_LAST}) AS l WHERE rn = 1",
    "silver_priced": "SELECT l.*, p.category, p.price FROM bronze_lines l JOIN bronze_products p ON l.product_id = p.product_id",
    "silver_sales": "SELECT s.line_id, s.category, o.day, c.city, s.quantity * s.price AS amount FROM silver_priced s "
    "JOIN bronze_orders o ON s.order_id = o.order_id JOIN bronze_customers c ON o.customer_id = c.customer_id",
    "silver_lost": "SELECT o.order_id FROM bronze_orders o "
    "WHERE NOT EXISTS (SELECT 1 FROM bronze_customers c WHERE c.customer_id = o.customer_id)",
    "silver_cities": "SELECT DISTINCT city FROM bronze_customers",
    "gold_by_city": f"SELECT city, {_BY} city",
    "gold_by_day": f"SELECT day, {_BY} day",
    "gold_by_category": f"SELECT category, {_BY} category",
    "gold_by_both": f"SELECT city, day, {_BY} city, day",
    "gold_tiers": "SELECT tier, count(*) AS customers FROM bronze_customers GROUP BY tier",
    "gold_large": "SELECT city, amount FROM gold_by_city WHERE amount > 2000",
}


@pytest.mark.parametrize("epochs", some_of(["3", "40"], short=["3"]))
def test_fifteen_views_are_those_of_duckdb_though_the_session_is_opened_again(tmp_path: Path, epochs: str) -> None:
    peer = duckdb.connect()
    for text in _TABLES:
        peer.execute(text.replace("STRING", "VARCHAR"))
    made: list[str] = []
    for number, rows in enumerate(shop(int(epochs), seed=4)):
        with connect(directory=tmp_path) as session:
            assert _shown(session) == _wanted(peer, made)
            for text in _TABLES if not number else ():
                session.sql(text)
            for name in list(_VIEWS)[len(made) : 8 if not number else None]:  # half of them over rows that are present
                session.sql(f"CREATE MATERIALIZED VIEW {name} AS {_VIEWS[name]}")
                peer.execute(f"CREATE VIEW {name} AS {_VIEWS[name]}")
                made.append(name)
            for table, changes in rows.items():
                newest = {row[f"{table[:-1]}_id"]: row for row in changes}.values()
                held = pa.Table.from_pylist([{k: v for k, v in row.items() if k not in {"version", "gone"}} for row in newest])
                session.insert(table, held)
                peer.execute(f"INSERT OR REPLACE INTO {table} SELECT * FROM held")
                gone = [str(row[f"{table[:-1]}_id"]) for row in newest if row["gone"]]
                if gone:
                    for run in (session.sql, peer.execute):
                        run(f"DELETE FROM {table} WHERE {table[:-1]}_id IN ({', '.join(gone)})")
            assert _shown(session) == _wanted(peer, made)
    assert len(made) == 15


def _shown(session: Session) -> dict[str, Counter[Any]]:
    return {name: Counter(map(tuple, map(dict.values, rows.to_pylist()))) for name, rows in session.views().items()}


def _wanted(peer: duckdb.DuckDBPyConnection, names: list[str]) -> dict[str, Counter[Any]]:
    return {name: Counter(peer.execute(f"SELECT * FROM {name}").fetchall()) for name in names}
