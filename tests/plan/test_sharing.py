"""Which joins share a table, written down and read back."""

from __future__ import annotations

import json

import pyarrow as pa

from zset_join.pipeline import appends, versioned
from zset_join.plan.query_plan import QueryPlan
from zset_join.stages.shared_table import MOST_READERS

ORDERS = appends("orders", {"id": pa.int64(), "k": pa.string(), "t": pa.int64()}, watermark=("t", 0))
RATES = versioned("rates", {"k": pa.string(), "rate": pa.int64(), "at": pa.int64()}, keys="k", version_by="at", delay=0)


def plan_of(joins: int) -> QueryPlan:
    view = None
    for _ in range(joins):
        one = ORDERS.temporal_join(RATES, on="k", as_of="t")
        view = one if view is None else view.union(one)
    assert view is not None
    return view.plan()


def test_a_plan_with_shared_tables_is_written_down_and_read_back() -> None:
    plan = plan_of(3)

    again = QueryPlan.from_json(json.loads(json.dumps(plan.to_json())))

    assert again == plan
    assert [(state.name, state.readers) for state in again.states] == [("shared_table-0", (0, 1, 2))]
    assert again.state_of[2].stage.to_json() == plan.state_of[0].stage.to_json()


def test_a_table_serves_so_many_joins_and_the_next_one_keeps_a_copy() -> None:
    plan = plan_of(MOST_READERS + 2)

    assert [index.readers for index in plan.shared] == [tuple(range(MOST_READERS)), (MOST_READERS, MOST_READERS + 1)]
    assert plan.copies == ((MOST_READERS, f"a table serves {MOST_READERS} joins, unlike stage 0"),)


def test_the_name_of_a_shared_table_is_made_of_the_table_and_its_key() -> None:
    (index,) = plan_of(2).shared

    assert (index.name, index.columns) == ("rates_by_k", ("k",))
