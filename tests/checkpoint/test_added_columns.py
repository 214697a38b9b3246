"""A checkpoint goes on with a column more: NULL for the rows that were there before; anything else is refused."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from zset_join.core.errors import StateError
from zset_join.pipeline import Pipeline, View, changes
from zset_join.pipeline import functions as F  # noqa: N812 - PySpark's own habit
from zset_join.pipeline.records import records
from zset_join.sql import connect
from zset_join.tools.inspection import open_state

ORDERS = {"id": pa.int64(), "customer": pa.int64(), "note": pa.string()}
CUSTOMERS = {"customer": pa.int64(), "city": pa.string()}
FIRST = {
    "orders": [{"value": '{"op":"c","after":{"id":1,"customer":7,"note":"a"}}'}],
    "customers": [{"customer": 7, "city": "Rome"}],
}


def joined(more: dict[str, pa.DataType]) -> View:
    orders = records("orders", "debezium-json", {**ORDERS, **more}, keys="id")
    return orders.join(changes("customers", CUSTOMERS, keys="customer"), on="customer")


def grouped(more: dict[str, pa.DataType]) -> View:
    return joined(more).groupBy("city").agg(F.count().alias("orders"))


@pytest.mark.parametrize("snapshot_after_bytes", [1, 64 * 1024 * 1024])
def test_old_rows_have_null_in_a_column_that_was_added(tmp_path: Path, snapshot_after_bytes: int) -> None:
    with Pipeline(joined({}), tmp_path, snapshot_after_bytes=snapshot_after_bytes) as pipeline:
        for _ in range(3):
            pipeline.step(FIRST)
        pipeline.step({"customers": [{"customer": 8, "city": "Oslo"}]})

    with Pipeline(joined({"paid": pa.int32()}), tmp_path, snapshot_after_bytes=snapshot_after_bytes) as pipeline:
        assert [row["paid"] for row in pipeline.view().to_pylist()] == [None]
        pipeline.step({"orders": [{"value": '{"op":"c","after":{"id":2,"customer":7,"note":"b","paid":5}}'}]})
        delta = pipeline.step({"customers": [{"customer": 7, "city": "Bari"}]})
        assert sorted((row[3], weight, row[4]) for row, weight in delta.to_pylist() if row[3]) == [
            (5, -1, "Rome"),
            (5, 1, "Bari"),
        ]

    with open_state(str(tmp_path)) as state:
        assert state.sql("SELECT id, paid FROM join_1_left ORDER BY id").fetchall() == [(1, None), (2, 5)]
    with Pipeline(joined({"paid": pa.int32()}), tmp_path) as pipeline:
        found = sorted((row["id"], row["paid"], row["city"]) for row in pipeline.view().to_pylist())
        assert found == [(1, None, "Bari"), (2, 5, "Bari")]


def test_a_second_column_follows_the_first(tmp_path: Path) -> None:
    more: dict[str, pa.DataType] = {}
    for name in (None, "paid", "at"):
        more |= {} if name is None else {name: pa.int32()}
        with Pipeline(grouped(more), tmp_path) as pipeline:
            pipeline.step(FIRST)
            assert pipeline.view().to_pylist() == [{"city": "Rome", "orders": 1}]


def test_a_value_that_was_not_sent_is_found_in_a_row_from_before(tmp_path: Path) -> None:
    with Pipeline(joined({}), tmp_path) as pipeline:
        pipeline.step(FIRST)

    touched = '{"op":"u","after":{"id":1,"customer":7,"note":"__debezium_unavailable_value","paid":9}}'
    with Pipeline(joined({"paid": pa.int32()}), tmp_path) as pipeline:
        pipeline.step({"orders": [{"value": touched}]})
        assert [(row["note"], row["paid"]) for row in pipeline.view().to_pylist()] == [("a", 9)]


@pytest.mark.parametrize(
    "changed",
    [
        lambda: records("orders", "debezium-json", {"id": pa.int64(), "paid": pa.int32(), **ORDERS}, keys="id"),
        lambda: records("orders", "debezium-json", {**ORDERS, "note": pa.large_string()}, keys="id"),
        lambda: records("orders", "debezium-json", {"id": pa.int64(), "customer": pa.int64()}, keys="id"),
        lambda: records("orders", "debezium-json", {"id": pa.int64(), "customer": pa.int64(), "text": pa.string()}, keys="id"),
        lambda: records("orders", "debezium-json", {**ORDERS, "city": pa.string()}, keys="id"),
    ],
    ids=["in front", "another type", "dropped", "renamed", "a name that the join has"],
)
def test_other_changes_are_refused(tmp_path: Path, changed) -> None:
    with Pipeline(joined({}), tmp_path) as pipeline:
        pipeline.step(FIRST)

    with pytest.raises(StateError, match="made for another query") as refused:
        Pipeline(changed().join(changes("customers", CUSTOMERS, keys="customer"), on="customer"), tmp_path)
    assert refused.value.code == "QUERY_CHANGED"


TABLES = (
    "CREATE TABLE orders (id BIGINT, cid INT, v INT{orders}, PRIMARY KEY (id) NOT ENFORCED) WITH ('connector' = 'filesystem', "
    "'path' = '{place}/orders', 'format' = 'debezium-json'); CREATE TABLE customers (cid INT, name STRING{customers}, PRIMARY "
    "KEY (cid) NOT ENFORCED) WITH ('connector' = 'filesystem', 'path' = '{place}/customers', 'format' = 'debezium-json')"
)
JOIN = "SELECT o.*, c.name{more} FROM orders AS o LEFT JOIN customers AS c ON o.cid = c.cid WHERE o.v > 0"


def rows_of(place: Path, orders: str = "", customers: str = "", query: str = JOIN, more: str = "") -> list[tuple[object, ...]]:
    with connect(dialect="flink", directory=place / "state") as session:
        session.sql(TABLES.format(place=place, orders=orders, customers=customers))
        running = session.sql(query.format(more=more)).start()
        session.read(wait_seconds=0.0)
        return sorted((tuple(row.values()) for row in running.table().to_pylist()), key=str)


def write(place: Path, number: int, table: str, *lines: str) -> None:
    (place / table).mkdir(exist_ok=True)
    (place / table / f"{number}.json").write_text("".join(f"{line}\n" for line in lines))


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    write(tmp_path, 1, "customers", '{"op": "c", "after": {"cid": 1, "name": "Ada"}}')
    write(tmp_path, 1, "orders", *(f'{{"op": "c", "after": {{"id": {n}, "cid": {n}, "v": {n}0}}}}' for n in (1, 2)))
    assert rows_of(tmp_path) == [(1, 1, 10, "Ada"), (2, 2, 20, None)]
    write(tmp_path, 2, "customers", '{"op": "c", "after": {"cid": 2, "name": "Bo", "city": "Rome"}}')
    write(tmp_path, 2, "orders", '{"op": "c", "after": {"id": 3, "cid": 1, "v": 30, "paid": 5}}')
    return tmp_path


def test_a_join_of_sql_goes_on_with_columns_that_its_selections_hand_on(shop: Path) -> None:
    more = {"orders": ", paid BIGINT", "customers": ", city STRING", "more": ", c.city"}
    expected = [(1, 1, 10, None, "Ada", None), (2, 2, 20, None, "Bo", "Rome"), (3, 1, 30, 5, "Ada", None)]

    assert rows_of(shop, **more) == expected
    write(shop, 3, "orders", '{"op": "u", "before": {"id": 1}, "after": {"id": 1, "cid": 1, "v": 10, "paid": 7}}')
    assert rows_of(shop, **more) == [(1, 1, 10, 7, "Ada", None), *expected[1:]]


@pytest.mark.parametrize(
    ("orders", "query"),
    [
        (", paid BIGINT", JOIN.replace("o.v > 0", "coalesce(o.paid, 0) < 9")),
        (", paid BIGINT", JOIN.replace("c.name", "c.name, o.paid + 1 AS more_paid")),
        (", paid BIGINT", JOIN.replace("c.name", "c.name, o.v AS again")),
        (", paid BIGINT", JOIN.replace("o.*", "o.id, o.cid, o.paid AS given, o.v")),
        ("", JOIN.replace("o.*", "o.id, o.cid")),
    ],
    ids=["in a condition", "computed", "an old one twice", "renamed", "one less"],
)
def test_other_selections_are_refused(shop: Path, orders: str, query: str) -> None:
    with pytest.raises(StateError, match="Only columns may be added") as refused:
        rows_of(shop, orders=orders, query=query)
    assert refused.value.code == "QUERY_CHANGED"


def test_a_distinct_view_knows_its_columns(tmp_path: Path) -> None:
    with Pipeline(changes("t", {"a": pa.int64()}).distinct(), tmp_path) as pipeline:
        pipeline.step({"t": [{"a": 1}]})
    with pytest.raises(StateError, match="made for another query"):
        Pipeline(changes("t", {"a": pa.int64(), "b": pa.int64()}).distinct(), tmp_path)
