"""A checkpoint continues with a column more: NULL for the rows that were present before; anything else is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from zset_join.checkpoint.added_columns import added_columns
from zset_join.checkpoint.reading import stored_description
from zset_join.checkpoint.session_texts import SESSION
from zset_join.core.errors import StateError
from zset_join.pipeline import Pipeline, View, changes, records
from zset_join.pipeline import functions as F  # noqa: N812 - PySpark's own habit
from zset_join.runners.local.place import place_of
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


def test_a_selection_may_pass_an_added_column_on_and_make_none_of_others(tmp_path: Path) -> None:
    with Pipeline(joined({}).select("id", "city"), tmp_path) as pipeline:
        pipeline.step(FIRST)

    with pytest.raises(StateError, match="made for another query"):
        Pipeline(joined({}).select("id", F.col("customer").alias("paid"), "city"), tmp_path)
    with Pipeline(joined({"paid": pa.int32()}).select("id", "paid", "city"), tmp_path) as pipeline:
        assert pipeline.view().to_pylist() == [{"id": 1, "paid": None, "city": "Rome"}]


def test_a_distinct_view_has_its_columns(tmp_path: Path) -> None:
    with Pipeline(changes("t", {"a": pa.int64()}).distinct(), tmp_path) as pipeline:
        pipeline.step({"t": [{"a": 1}]})
    with pytest.raises(StateError, match="made for another query"):
        Pipeline(changes("t", {"a": pa.int64(), "b": pa.int64()}).distinct(), tmp_path)


def described(*names: str, **more: object) -> dict[str, object]:
    """Return the description of a join with these columns."""
    return {"kind": "join", "columns": [f"{name}: int64" for name in names], **more}


@pytest.mark.parametrize(
    ("before", "after", "added"),
    [
        (described("a"), described("a", "b"), ("b",)),
        (described("a"), described("a", "b", where="a > 1"), ()),
        (described("a", where="a > 1"), described("a", "b"), ()),
    ],
    ids=["a column", "with a condition", "without its condition"],
)
def test_a_column_is_added_only_where_nothing_else_differs(before, after, added: tuple[str, ...]) -> None:
    assert added_columns({}, {}, before, after) == added


def test_a_checkpoint_without_a_kind_of_session_gets_columns_over_connect(tmp_path: Path) -> None:
    with Pipeline(joined({}), tmp_path) as pipeline:
        pipeline.step(FIRST)
    over_connect = replace(place_of(tmp_path), described=lambda _: {SESSION: "connect"})

    with Pipeline(joined({"paid": pa.int32()}), over_connect) as pipeline:
        assert [row["paid"] for row in pipeline.view().to_pylist()] == [None]
        pipeline.step({})

    stored = stored_description(str(tmp_path))
    assert stored is not None
    assert stored[SESSION] == "connect"
