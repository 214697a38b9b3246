"""Laws of queries as text: written and bound again, a query has the same answers, and from the second writing on the same tree.

Views of the fluent API are drawn from seeds, as for `pipeline_plans`; queries as text are drawn as for `test_sql`.
"""

from __future__ import annotations

import collections
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings

from property_tests.pipeline_plans import drawn_steps, drawn_view, sources
from property_tests.profiles import profile_name
from property_tests.test_sql import LEFT, RIGHT, queries
from tests.expressions.test_functions import EXPRESSIONS, SCHEMA
from zset_join.expressions import describe
from zset_join.expressions.rows import value_type
from zset_join.pipeline import Pipeline, View, appends
from zset_join.plan.tree import drawn
from zset_join.sql import Session, connect
from zset_join.sql.catalog import ColumnDefinition, Table
from zset_join.sql.plan_text import plan_sql
from zset_join.zset import ZSet

PLANS = {"push": 12, "nightly": 400}.get(profile_name(), 12)
TEXTS = {"push": 15, "nightly": 400}.get(profile_name(), 15)


def session_of(views: dict[str, View]) -> Session:
    """Return a session whose tables are sources of the fluent API."""
    session = connect(dialect="spark")
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
