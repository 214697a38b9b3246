"""A row is explained by the changes without which it would have come out otherwise."""

from __future__ import annotations

import pyarrow as pa
import pytest

from zset_join import OptionError
from zset_join.lookup import FunctionSource
from zset_join.pipeline import Pipeline, appends, changes
from zset_join.pipeline import functions as F  # noqa: N812 - as PySpark users import theirs
from zset_join.stages import StateTtl


def priced():
    orders = changes("orders", {"id": pa.int64(), "item": pa.string()}, keys="id")
    items = changes("items", {"item": pa.string(), "price": pa.int64()}, keys="item")
    return orders.join(items, "item", "left")


def stepped(view):
    pipeline = Pipeline(view, keep_inputs=True)
    pipeline.step({"orders": [{"id": 1, "item": "nail"}, {"id": 2, "item": "nail"}], "items": [{"item": "bolt", "price": 5}]})
    pipeline.step({"items": [{"item": "nail", "price": 3}, {"item": "nut", "price": 1}]})
    pipeline.step({"orders": [{"id": 1, "item": "bolt"}, {"id": 9, "item": "nut"}]})
    return pipeline


def test_every_epoch_that_touched_a_row_is_reported_with_the_changes_that_caused_it():
    history = stepped(priced()).explain_row({"id": 1})

    assert [(event.epoch, [(change.stream, change.row) for change in event.changes]) for event in history.events] == [
        (0, [("orders", {"id": 1, "item": "nail"})]),
        (1, [("items", {"item": "nail", "price": 3})]),
        (2, [("orders", {"id": 1, "item": "bolt"})]),
    ]
    assert history.events[1].emitted == (
        ({"item": "nail", "id": 1, "price": None}, -1),
        ({"item": "nail", "id": 1, "price": 3}, 1),
    )


def test_a_group_is_explained_by_all_rows_that_changed_it():
    history = stepped(priced().groupBy("price").agg(F.count().alias("n"))).explain_row({"price": 3})

    assert [(event.epoch, [change.stream for change in event.changes]) for event in history.events] == [
        (1, ["items"]),
        (2, ["orders"]),
    ]


def test_a_row_of_a_missing_column_is_refused():
    with pytest.raises(OptionError, match="its columns are"):
        stepped(priced()).explain_row({"colour": 1})


def test_of_changes_of_which_each_was_enough_all_are_reported():
    pipeline = Pipeline(priced().select("item").distinct(), keep_inputs=True)
    pipeline.step({"orders": [{"id": number, "item": item} for number, item in enumerate(["nail", "bolt", "nail", "nut"])]})

    (event,) = pipeline.explain_row({"item": "nail"}).events

    assert [change.row["id"] for change in event.changes] == [0, 2]


def test_too_many_causes_are_refused():
    with pytest.raises(OptionError, match="more than 1 change of epoch 0"):
        stepped(priced().agg(F.count().alias("n"))).explain_row({"n": 2}, most_changes=1)


def test_values_that_python_does_not_have_are_reported_as_text():
    far = pa.array([2**31 - 1], pa.int32()).cast(pa.date32())
    pipeline = Pipeline(
        changes("days", {"day": pa.date32(), "n": pa.int64()}, keys="day").groupBy("n").agg(F.max("day")), keep_inputs=True
    )
    pipeline.step({"days": pa.table({"day": far, "n": [7]})})

    (event,) = pipeline.explain_row({"n": 7}).events

    assert [change.row for change in event.changes] == [{"day": "5881580-07-11", "n": 7}]
    assert list(event.emitted[0][0].values()) == [7, "5881580-07-11"]


def expired(by, *last):
    items = appends("items", {"item": pa.string(), "at": pa.int64()}, watermark=("at", 0))
    after = 10 if by == "event" else "10 seconds"
    pipeline = Pipeline(items.groupBy("item").agg(F.count().alias("n"), state_ttl=StateTtl(after, by=by)), keep_inputs=True)
    pipeline.step({"items": [{"item": "nail", "at": 1}]}, processing_time=1_000_000)
    pipeline.step({"items": [{"item": item, "at": at} for item, at in last]}, processing_time=12_000_000)
    return pipeline.explain_row({"item": "nail"})


def test_a_row_that_time_retracted_is_reported_as_expired():
    history = expired("processing", ("bolt", 2))

    assert history.events[-1].emitted == (({"item": "nail", "n": 1}, -1),)
    assert str(history).endswith("    because rows expired (state_ttl) at 1970-01-01T00:00:12+00:00")


def test_by_event_time_what_moved_the_watermark_is_the_cause_where_one_row_did():
    assert [change.row for change in expired("event", ("bolt", 12)).events[-1].changes] == [{"item": "bolt", "at": 12}]
    assert "the watermark had passed their time" in str(expired("event", ("bolt", 12), ("nut", 13)))


def test_the_external_table_is_not_read_again_and_its_answers_are_those_of_then():
    requested = []

    def prices(keys):
        requested.append(keys.num_rows)
        return pa.table({"item": keys.column("item"), "price": [10 * len(requested)] * keys.num_rows})

    source = FunctionSource(name="prices", schema=pa.schema({"item": pa.string(), "price": pa.int64()}), function=prices)
    items = appends("items", {"id": pa.int64(), "item": pa.string()})
    pipeline = Pipeline(items.lookup_join(source, on="item", how="left"), keep_inputs=True)
    pipeline.step({"items": [{"id": 1, "item": "nail"}, {"id": 2, "item": "bolt"}]})
    pipeline.step({"items": [{"id": 3, "item": "nail"}]})
    before = len(requested)

    history = pipeline.explain_row({"item": "nail"})

    assert len(requested) == before
    assert [(row["id"], row["price"]) for event in history.events for row, _ in event.emitted] == [(1, 10), (3, 20)]
    assert [[change.row["id"] for change in event.changes] for event in history.events] == [[1], [3]]
