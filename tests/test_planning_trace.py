"""Planning a query builds no operator: what a SELECT is bound with are shapes, plans and words."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.trace_planning import ORDERS, acts, files_entered
from zset_join.sql import connect

BELOW_SHAPES = ("zset_join/state/", "zset_join/kernels/", "zset_join/operators/", "zset_join/aggregates/", "spill/")
TABLES = """
CREATE TABLE orders (id BIGINT, customer STRING, total BIGINT, made TIMESTAMP, WATERMARK FOR made AS made - INTERVAL '5' SECOND);
CREATE TABLE customers (
    customer STRING, city STRING, changed TIMESTAMP, PRIMARY KEY (customer) NOT ENFORCED,
    WATERMARK FOR changed AS changed - INTERVAL '5' SECOND
);
"""
QUERIES = {
    "a full join": "SELECT o.id, c.city FROM orders o FULL JOIN customers c ON o.customer = c.customer",
    "a semi join": "SELECT id FROM orders WHERE customer IN (SELECT customer FROM customers)",
    "groups": "SELECT customer, count(*) AS n, max(total) AS top FROM orders GROUP BY customer HAVING count(*) > 1",
    "distinct rows": "SELECT DISTINCT customer FROM orders",
    "first rows": """
        SELECT id, customer FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY customer ORDER BY made) AS place FROM orders)
        WHERE place = 1
    """,
    "a temporal join": """
        SELECT o.id, c.city FROM orders o JOIN customers FOR SYSTEM_TIME AS OF o.made c ON o.customer = c.customer
    """,
}


MOST_FILES = {"step": 52, "step of a directory": 73, "evolve of a directory": 95, "CREATE MATERIALIZED VIEW": 120}


def test_an_act_enters_few_files(tmp_path: Path) -> None:
    entered = {name: len(files_entered(act)) for name, act in acts(str(tmp_path)).items()}

    assert {name: count for name, count in entered.items() if count > MOST_FILES[name]} == {}
    assert entered.keys() == MOST_FILES.keys()


def bound(tables: str, query: str) -> list[str]:
    """Return the files that binding a query enters."""
    session = connect(dialect="flink")
    session.sql(tables)
    return files_entered(lambda: session.sql(query))


@pytest.mark.filterwarnings("ignore:.*takes the time of its versions from the column:UserWarning")
@pytest.mark.parametrize("kind", QUERIES)
def test_binding_a_query_builds_no_operator(kind: str) -> None:
    entered = bound(TABLES, QUERIES[kind])

    assert [name for name in entered if name.startswith(BELOW_SHAPES)] == []
    assert any(name.startswith("zset_join/stages/") for name in entered)


def test_binding_a_join_with_groups_enters_few_files() -> None:
    tables, _, query = ORDERS.rpartition(";")

    assert len(bound(tables, query)) <= 50
