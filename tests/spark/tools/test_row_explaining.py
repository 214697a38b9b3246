"""Where a row of a view comes from that does more than join."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from tests.spark.api.test_query import Run, join_of
from tests.spark.conftest import Collected, Source
from tests.sweeps import for_each
from zset_join.checkpoint.row_history import RowHistory
from zset_join.core.errors import OptionError
from zset_join.runners.spark.tools.row_explaining import explain_row
from zset_join.spark import JoinedStream
from zset_join.spark import functions as ZF  # noqa: N812 - as PySpark users write F

Explain = Callable[..., RowHistory]


@pytest.fixture
def explain(orders: Source, customers: Source, run: Run) -> Explain:
    """Return a function that explains a row of a join's view; what a view does with its rows is not in the log, so one query will do."""
    orders.add(("i", 1, 10, "pen", 1), ("i", 2, 20, "ink", 1), ("i", 3, 10, "cap", 1))
    customers.add((10, "Ann", 1), (20, "Bobby", 1))
    orders.add(("u", 1, 20, "pen", 2), ("d", 3, None, None, 2))
    customers.add()
    joined = join_of(orders, customers)
    query = run(joined, Collected())

    def explained(view: Callable[[JoinedStream], JoinedStream], most_rows: int = 100, **row: Any) -> RowHistory:
        return explain_row(view(joined).placed, query._runner, row, most_rows=most_rows)

    return explained


def shown(joined: JoinedStream) -> JoinedStream:
    wanted = joined.where("item <> 'cap'")
    return wanted.select(F.col("order_id").alias("id"), F.upper("item").alias("label"), "name")


def by_name(joined: JoinedStream) -> JoinedStream:
    return shown(joined).groupBy("name").agg(ZF.count().alias("n")).withColumnRenamed("name", "who").where("n > 0")


def emitted(history: RowHistory) -> list[list[tuple[tuple[Any, ...], int]]]:
    return [sorted((tuple(row.values()), weight) for row, weight in event.emitted) for event in history.events]


MOVED = [[((1, "PEN", "Ann"), 1)], [((1, "PEN", "Ann"), -1), ((1, "PEN", "Bobby"), 1)]]


def test_rows_are_explained_by_what_the_view_shows_and_groups_by_their_rows(explain: Explain) -> None:
    renamed = explain(shown, id=1)
    filtered = explain(shown, id=3)
    unseen = explain(lambda joined: joined.select("order_id"), order_id=1)
    computed = explain(shown, label="PEN")
    letters = explain(lambda joined: joined.select("order_id", F.length("name").alias("letters")), letters=5, most_rows=9)

    assert emitted(renamed) == emitted(computed) == MOVED
    assert [change.stream for change in renamed.events[0].changes] == ["orders", "customers"]
    assert [change.row["order_id"] for change in computed.events[0].changes if change.stream == "orders"] == [1]
    assert emitted(filtered) == [[], []]
    assert [len(event.changes) for event in filtered.events] == [2, 1]
    assert emitted(unseen) == [[((1,), 1)], []]
    assert emitted(letters) == [[((2, 5), 1)], [((1, 5), 1)]]
    assert explain(shown, label="no such label").events == ()
    with pytest.raises(OptionError, match="more than 1 row of the join had these values") as refused:
        explain(shown, label="PEN", most_rows=1)
    assert refused.value.code == "ROW_QUESTION"

    ann, bobby = explain(by_name, who="Ann"), explain(by_name, who="Bobby")
    by_length = explain(lambda joined: joined.groupBy(F.length("name").alias("letters")).count(), letters=3)
    of_two = explain(lambda joined: joined.groupBy("name").count(), count=2)
    nested = explain(lambda joined: joined.select("name", "item").distinct().groupBy("name").count(), name="Bobby")

    assert emitted(ann) == [[((10, 1, "pen", "Ann"), 1)], [((10, 1, "pen", "Ann"), -1)]]
    assert ann.live_rows == ()
    assert emitted(bobby) == [[((20, 2, "ink", "Bobby"), 1)], [((20, 1, "pen", "Bobby"), 1)]]
    assert [row["order_id"] for row, weight in bobby.live_rows] == [2, 1]
    assert str(bobby).startswith(
        "who='Bobby': 2 epochs touched the rows of its groups since the first epoch\nepoch 0\n  +1 {'customer_id': 20"
    )
    assert [row[1] for event in emitted(by_length) for row, _ in event] == [1, 3, 1, 3]
    assert [row["order_id"] for row, _ in nested.live_rows] == [2, 1]
    assert emitted(of_two) == [[(("Ann", 2), 1)], [(("Ann", 2), -1), (("Bobby", 2), 1)]]
    assert [[change.row.get("order_id") for change in event.changes] for event in of_two.events] == [[1, 3, None], [1]]


@for_each(
    ("view", "row", "why"),
    [
        (by_name, {"n": 2}, r'"n" is made of several rows by an aggregate.* request groups by their key: \[\'who\'\]'),
        (
            lambda joined: shown(joined).groupBy("name").count().groupBy("count").agg(ZF.max("name")),
            {"count": 1},
            "does not show the key",
        ),
        (
            lambda joined: shown(joined).agg(ZF.count().alias("n")),
            {"n": 2},
            "does not show the key.* can be done in Spark only",
        ),
        (shown, {"item": "pen"}, 'the output has no column "item"'),
        (shown, {"id": None}, "has no value"),
        (by_name, {"who": 7}, "is not a value of the column"),
    ],
)
def test_a_question_without_an_answer_is_refused(
    orders: Source, customers: Source, view: Callable[[JoinedStream], JoinedStream], row: dict[str, Any], why: str
) -> None:
    with pytest.raises(OptionError, match=why) as refused:
        explain_row(view(join_of(orders, customers)).placed, object(), row, most_rows=10)  # type: ignore[arg-type]

    assert refused.value.code == "ROW_QUESTION"
