"""Where a row of a view comes from that does more than join."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from tests.spark.api.test_query import Run, join_of
from tests.spark.conftest import Collected, Source
from tests.sweeps import for_each
from zset_join.core.errors import OptionError
from zset_join.runners.spark.tools.logged_stages import explain_row
from zset_join.spark import JoinedStream
from zset_join.spark import functions as ZF  # noqa: N812 - as PySpark users write F
from zset_join.tools.reports import RowHistory

Explain = Callable[..., RowHistory]


@pytest.fixture
def explain(orders: Source, customers: Source, run: Run) -> Explain:
    """Return a function that explains a row of a join's view; its steps are not in the log, so one query will do."""
    orders.add(("i", 1, 10, "pen", 1), ("i", 2, 20, "ink", 1), ("i", 3, 10, "cap", 1))
    customers.add((10, "Ann", 1), (20, "Bobby", 1))
    orders.add(("u", 1, 20, "pen", 2), ("d", 3, None, None, 2))
    customers.add()
    joined = join_of(orders, customers)
    query = run(joined, Collected())

    def explained(view: Callable[[JoinedStream], JoinedStream], most_rows: int = 100, **row: Any) -> RowHistory:
        runner = copy(query._runner)
        runner.query = view(joined).placed
        return explain_row(runner, None, row, most_rows=most_rows)

    return explained


def shown(joined: JoinedStream) -> JoinedStream:
    wanted = joined.where("item <> 'cap'")
    return wanted.select(F.col("order_id").alias("id"), F.upper("item").alias("label"), "name")


def by_name(joined: JoinedStream) -> JoinedStream:
    return shown(joined).groupBy("name").agg(ZF.count().alias("n")).withColumnRenamed("name", "who").where("n > 0")


def emitted(history: RowHistory) -> list[list[tuple[tuple[Any, ...], int]]]:
    return [sorted((tuple(row.values()), weight) for row, weight in event.emitted) for event in history.events]


MOVED = [[((1, "PEN", "Ann"), 1)], [((1, "PEN", "Ann"), -1), ((1, "PEN", "Bobby"), 1)]]


def test_rows_are_explained_by_what_the_view_shows(explain: Explain) -> None:
    renamed = explain(shown, id=1)
    unseen = explain(lambda joined: joined.select("order_id"), order_id=1)
    computed = explain(shown, label="PEN")

    assert emitted(renamed) == emitted(computed) == MOVED
    assert [(change.stream, change.weight) for change in renamed.events[0].changes] == [("orders", 1), ("customers", 1)]
    assert [[change.row["order_id"] for change in event.changes] for event in renamed.events[1:]] == [[1]]
    assert explain(shown, id=3).events == ()
    assert emitted(unseen) == [[((1,), 1)]]
    with pytest.raises(OptionError, match="more than 1 change of epoch 0") as refused:
        explain(shown, label="PEN", most_rows=1)
    assert refused.value.code == "ROW_QUESTION"


def test_groups_are_explained_by_what_changed_their_rows(orders: Source, customers: Source, run: Run) -> None:
    orders.add(("i", 1, 10, "pen", 1), ("i", 2, 20, "ink", 1), ("i", 3, 10, "cap", 1))
    customers.add((10, "Ann", 1), (20, "Bobby", 1))
    orders.add(("u", 1, 20, "pen", 2), ("d", 3, None, None, 2))
    query = run(by_name(join_of(orders, customers)), Collected(), buckets=3)

    bobby = query.explain_row({"who": "Bobby"})

    assert emitted(bobby) == [[(("Bobby", 1), 1)], [(("Bobby", 1), -1), (("Bobby", 2), 1)]]
    assert [[change.row.get("order_id") for change in event.changes] for event in bobby.events] == [[2, None], [1]]
    assert [row for row, _ in bobby.live_rows] == [{"who": "Bobby", "n": 2}]
    assert emitted(query.explain_row({"n": 1})) == [
        [(("Ann", 1), 1), (("Bobby", 1), 1)],
        [(("Ann", 1), -1), (("Bobby", 1), -1)],
    ]


@for_each(
    ("view", "row", "why"),
    [
        (shown, {"item": "pen"}, "its columns are"),
        (by_name, {"who": 7}, "is not a value of the column"),
    ],
)
def test_a_question_without_an_answer_is_refused(
    orders: Source, customers: Source, view: Callable[[JoinedStream], JoinedStream], row: dict[str, Any], why: str
) -> None:
    runner: Any = SimpleNamespace(query=view(join_of(orders, customers)).placed, checkpoint=None)
    with pytest.raises(OptionError, match=why) as refused:
        explain_row(runner, None, row, most_rows=10)

    assert refused.value.code == "ROW_QUESTION"
