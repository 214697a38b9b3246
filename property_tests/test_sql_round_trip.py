"""Laws of queries as text: written and bound again, a query has the same answers, and from the second writing on the same tree.

Views of the fluent API are drawn from seeds, as for `pipeline_plans`; queries as text are drawn as for `test_sql`. Joins by
time and with external tables, which have no form in Spark's own SQL, are listed, over drawn rows; what has no form at all is
refused.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings

from property_tests.pipeline_plans import drawn_steps, drawn_view, sources
from property_tests.profiles import profile_name
from property_tests.sql_queries import queries
from property_tests.test_sql import LEFT, RIGHT
from tests.expressions.test_functions import EXPRESSIONS, SCHEMA
from zset_join.core.errors import PlanError
from zset_join.expressions import col, describe, left, right
from zset_join.expressions.rows import value_type
from zset_join.lookup import FunctionSource, Lookup
from zset_join.pipeline import PROCESSING_TIME, Pipeline, View, appends, changes
from zset_join.pipeline import functions as F  # noqa: N812 - as PySpark users import theirs
from zset_join.plan.tree import drawn
from zset_join.sql import Session, connect
from zset_join.sql.tables.catalog import ColumnDefinition, Table
from zset_join.sql.tables.plan_text import plan_sql
from zset_join.stages import StateTtl
from zset_join.zset import ZSet


def names_of(keys: pa.Table) -> pa.Table:
    """Return the external rows: none, one or two of a key."""
    found = [(k, f"name {k}.{number}", number) for k in keys["k"].to_pylist() for number in range(k % 3)]
    return pa.Table.from_pylist([dict(zip(NAMES.schema.names, row, strict=True)) for row in found], schema=NAMES.schema)


NAMES = FunctionSource(
    name="names", schema=pa.schema({"k": pa.int64(), "name": pa.string(), "n": pa.int64()}), function=names_of
)
PLANS = {"push": 12, "nightly": 400}.get(profile_name(), 12)
TEXTS = {"push": 15, "nightly": 400}.get(profile_name(), 15)


def session_of(views: dict[str, View]) -> Session:
    """Return a session whose tables are sources of the fluent API, beside an external table."""
    session = connect(dialect="spark")
    session.register_lookup(NAMES)
    for name, view in views.items():
        columns = tuple(ColumnDefinition(field.name, field.type) for field in view.schema)
        table = Table(name=name, word="TABLE", columns=columns, mode="changelog")
        table.__dict__["rows"] = view
        session.catalog.tables[name] = table
    return session


def bound(text: str, views: dict[str, View]) -> View:
    with session_of(views) as session:
        made: Any = session.sql(text)
        view: View = made.view
        return view


def bag(delta: ZSet) -> dict[Any, int]:
    found: collections.Counter[Any] = collections.Counter()
    for row, weight in delta.to_pylist():
        found[row] += weight
    return {row: weight for row, weight in found.items() if weight}


def assert_is_its_own_normal_form(view: View, views: dict[str, View]) -> View:
    """Write and bind a view twice; return it as it was bound first."""
    once = bound(plan_sql(view), views)
    twice = bound(plan_sql(once), views)
    assert plan_sql(twice) == plan_sql(once)
    assert drawn(twice.node) == drawn(once.node)
    return once


@pytest.mark.parametrize("seed", range(PLANS))
def test_a_view_written_as_sql_gives_the_same_deltas_and_the_same_tree(seed: int) -> None:
    view = drawn_view(seed)
    once = assert_is_its_own_normal_form(view, sources())
    with Pipeline(view) as fluent, Pipeline(once) as of_sql:
        for step in drawn_steps(seed, epochs=3):
            given_rows = {name: one for name, one in step.items() if name in fluent.sources}
            assert bag(fluent.step(given_rows)) == bag(of_sql.step(given_rows))


@settings(max_examples=TEXTS, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(queries())
def test_a_query_as_text_is_the_same_query_when_it_is_written_again(text: str) -> None:
    views = {"lefts": appends("lefts", LEFT), "rights": appends("rights", RIGHT)}

    assert_is_its_own_normal_form(bound(text, views), views)


@pytest.mark.parametrize("place", range(0, len(EXPRESSIONS), 1 if profile_name() != "push" else 6))
def test_an_expression_written_as_sql_is_read_as_one_of_its_type(place: int) -> None:
    expression = EXPRESSIONS[place]
    views = {"t": appends("t", SCHEMA)}
    once = assert_is_its_own_normal_form(views["t"].select({"e": expression}), views)

    assert pa.types.is_null(value_type(expression, SCHEMA)) or once.schema.field("e").type == value_type(expression, SCHEMA), (
        describe(expression)
    )


def timed_sources() -> dict[str, View]:
    at = pa.timestamp("us", tz="UTC")
    return {
        "orders": appends("orders", {"id": pa.int64(), "k": pa.int64(), "t": at}, watermark=("t", "0 seconds")),
        "rates": changes("rates", {"k": pa.int64(), "n": pa.int64(), "t": at}, keys="k", watermark=("t", "0 seconds")),
        "seen": appends("seen", {"k": pa.int64(), "n": pa.int64(), "t": at}, watermark=("t", "0 seconds")),
    }


def latest_of(seen: View) -> View:
    return seen.dedup(keys="k", order_by="t", keep="last")


LOOKED_UP = Lookup(
    retry_predicate="lookup_miss", retry_strategy="fixed_delay", fixed_delay=timedelta(milliseconds=1), max_attempts=2
)
TIMED: dict[str, Callable[[View, View, View], View]] = {
    "versions": lambda orders, rates, _: orders.temporal_join(
        rates, on="k", as_of="t", how="left", condition=right("n") > left("id")
    ),
    "versions under a condition": lambda orders, rates, _: orders.temporal_join(
        rates.where(col("n") > 2).select("k", "t", n=col("n") * 2), on=[("k", "k")], as_of="t"
    ),
    "versions of a dedup": lambda orders, _, seen: orders.temporal_join(latest_of(seen), on="k", as_of="t", how="left"),
    "by processing time": lambda orders, rates, _: orders.temporal_join(
        rates, on=[("k", "k")], as_of=PROCESSING_TIME, how="left", condition=right("n") > left("id")
    ),
    "groups by processing time": lambda orders, _, seen: orders.temporal_join(
        seen.groupBy("k").agg(F.sum("n").alias("total")), on="k", as_of=PROCESSING_TIME
    ),
    "versions of a dedup that a condition deletes": lambda orders, _, seen: orders.temporal_join(
        latest_of(seen).where(col("n") > 1), on="k", as_of="t", how="left"
    ),
    "versions that conditions and a selection come after": lambda orders, _, seen: orders.temporal_join(
        latest_of(seen).where(col("n") > 0).select("k", "t", m=col("n") * 2).where(col("m") < 8), on="k", as_of="t", how="left"
    ),
    "a dedup by processing time": lambda orders, _, seen: orders.temporal_join(
        latest_of(seen), on="k", as_of=PROCESSING_TIME, how="left"
    ),
    "a dedup by processing time that a condition deletes": lambda orders, _, seen: orders.temporal_join(
        latest_of(seen).where(col("n") > 1).select("k", "t", "n"), on="k", as_of=PROCESSING_TIME, how="left"
    ),
    "a join that ends by time": lambda orders, _, seen: orders.join(
        seen, on="k", how="left", state_ttl=("1 second", StateTtl("7 seconds"))
    ),
    "one side of a join that ends by time": lambda orders, rates, _: orders.join(rates, on="k", state_ttl=(None, "2 seconds")),
    "groups that end by time": lambda orders, *_: orders.groupBy("k").agg(F.sum("id").alias("total"), state_ttl="2 seconds"),
    "distinct rows that end by time": lambda orders, *_: orders.select("k").distinct(state_ttl="2 seconds"),
    "first rows that end by time": lambda _, __, seen: seen.dedup(keys="k", order_by="n", state_ttl="2 seconds"),
    "the nearest row": lambda orders, _, seen: orders.join_asof(
        seen, on=[("k", "k")], left_time="t", right_time="t", op="<", how="left", condition=right("n") > left("id")
    ),
    "the nearest of changing rows": lambda orders, rates, _: orders.join_asof(
        rates.where(col("n") > 2), on="k", left_time="t", right_time="t", op=">="
    ),
    "outside": lambda orders, *_: orders.lookup_join(
        NAMES, on=[("k", "k")], how="left", condition=right("n") < left("id"), hint=LOOKED_UP
    ),
    "outside, by an expression": lambda orders, *_: orders.lookup_join(NAMES, on=[(col("id") + 1, "k")]),
}


def timed_rows(seed: int, epoch: int) -> dict[str, pa.Table]:
    rng = np.random.default_rng((seed, epoch))
    at = pa.timestamp("us", tz="UTC")

    def drawn_rows(first: str) -> pa.Table:
        count = int(rng.integers(1, 8))
        times = pa.array(epoch * 5_000_000 + rng.integers(0, 9, count) * 1_000_000, pa.int64()).cast(at)
        second = "k" if first == "id" else "n"
        return pa.table({first: rng.integers(0, 5, count), second: rng.integers(0, 5, count), "t": times})

    return {"orders": drawn_rows("id"), "rates": drawn_rows("k"), "seen": drawn_rows("k")}


@pytest.mark.filterwarnings("ignore:.*has deletes and takes the time of its versions:UserWarning")
@pytest.mark.parametrize("what", TIMED)
def test_a_join_by_time_written_as_sql_gives_the_same_deltas_and_the_same_tree(what: str) -> None:
    views = timed_sources()
    view = TIMED[what](*views.values())
    once = assert_is_its_own_normal_form(view, views)
    emitted = 0
    with Pipeline(view) as fluent, Pipeline(once) as of_sql:
        for epoch in range(6):
            given_rows = {name: rows for name, rows in timed_rows(7, epoch).items() if name in fluent.sources}
            delta = bag(fluent.step(given_rows))
            assert delta == bag(of_sql.step(given_rows))
            emitted += len(delta)
    assert emitted


@pytest.mark.filterwarnings("ignore:.*has deletes and takes the time of its versions:UserWarning")
@pytest.mark.parametrize(
    ("made", "what"),
    [
        (lambda orders, rates, _: orders.temporal_join(rates, on="k", as_of="t", emit="eager"), 'emit="eager"'),
        (lambda orders, rates, _: orders.temporal_join(rates, on="k", as_of="t", late="drop"), "late="),
        (
            lambda orders, rates, _: orders.temporal_join(rates, on="k", as_of="t", max_watermark_jump="1 hour"),
            "max_watermark_jump=",
        ),
        (
            lambda orders, rates, _: orders.temporal_join(rates, on="k", as_of=PROCESSING_TIME, snapshot="previous"),
            'snapshot="previous"',
        ),
        (
            lambda orders, _, seen: orders.join_asof(seen, on="k", left_time="t", right_time="t", tolerance="1 hour"),
            "tolerance",
        ),
        (lambda orders, *_: orders.lookup_join(NAMES, on=[("k", "k")], constants={"name": "x"}), "constants"),
        (lambda orders, _, seen: orders.join(seen, on="k", state_ttl=StateTtl("1 hour", on_expire="forget")), "forget"),
        (lambda orders, *_: orders.distinct(state_ttl=StateTtl("1 hour", by="event")), "event"),
    ],
)
def test_fluent_only_options_and_settings_are_not_written(made: Callable[[View, View, View], View], what: str) -> None:
    with pytest.raises(PlanError, match=what) as refused:
        plan_sql(made(*timed_sources().values()))

    assert refused.value.code == "NOT_WRITTEN"
