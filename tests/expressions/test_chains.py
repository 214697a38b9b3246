"""Chains of thousands of operators, built and read where the stack of the caller is nearly used up."""

from __future__ import annotations

import functools
import json
import operator
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import duckdb
import pyarrow as pa
import pytest

from zset_join.core.errors import PlanError
from zset_join.expressions import Expression, col, lit
from zset_join.expressions.rows import compute, rewritten, value_type
from zset_join.expressions.sql_text import to_sql
from zset_join.expressions.written import read_expression, write_expression
from zset_join.query import appends

SCHEMA = pa.schema({"a": pa.int32()})
_T = TypeVar("_T")


def deep(act: Callable[[], _T], *, frames_left: int = 150) -> _T:
    """Run something where so many frames are left."""

    def deeper(frames: int) -> _T:
        return act() if frames <= 0 else deeper(frames - 1)

    depth, frame = 0, sys._getframe()
    while frame.f_back is not None:
        depth, frame = depth + 1, frame.f_back
    return deeper(sys.getrecursionlimit() - depth - frames_left)


def chain(step: Callable[[Any, Any], Any], terms: int) -> Expression:
    return functools.reduce(step, (col("a") != place for place in range(terms)))


@pytest.mark.parametrize(("step", "expected"), [(operator.and_, [False, True]), (operator.or_, [True, True])])
def test_a_chain_of_5000_conditions_is_typed_kept_and_computed_at_any_depth_of_the_stack(
    step: Callable[[Any, Any], Any], expected: list[bool]
) -> None:
    made = deep(lambda: chain(step, 5_000))
    kept = deep(lambda: read_expression(json.loads(json.dumps(write_expression(made)))))

    assert deep(lambda: kept.same_as(made) and hash(kept) == hash(made))
    assert deep(lambda: value_type(rewritten(kept, lambda column: column), SCHEMA)) == pa.bool_()
    assert deep(lambda: compute(kept, {"a": pa.array([7, -1], pa.int32())}, 2)).to_pylist() == expected


def test_a_chain_is_read_by_duckdb_which_counts_levels() -> None:
    text = to_sql(chain(operator.or_, 5_000), {"row": SCHEMA}, dialect="duckdb")

    assert duckdb.sql(f"SELECT {text} FROM (SELECT 7::INTEGER AS a)").fetchall() == [(True,)]


def test_other_operations_within_each_other_have_a_limit_of_their_own() -> None:
    assert deep(lambda: value_type(functools.reduce(operator.add, [col("a")] * 250), SCHEMA)) == pa.int32()
    with pytest.raises(PlanError, match=r"\[EXPRESSION_TOO_DEEP\] an expression has 5000 operations within each other"):
        value_type(functools.reduce(operator.add, [col("a")] * 5_000), SCHEMA)


def test_a_tree_of_many_levels_is_kept_without_nesting() -> None:
    written = write_expression(functools.reduce(operator.add, [col("a")] * 40, lit(1)))

    assert [*written] == ["nodes"]
    assert read_expression(written).same_as(functools.reduce(operator.add, [col("a")] * 40, lit(1)))
    with pytest.raises(PlanError, match="UNKNOWN_EXPRESSION"):
        read_expression({"nodes": [{"call": "not", "operands": [0]}]})


@pytest.mark.parametrize("step", [lambda view: view.where(col("a") > 0), lambda view: view.union(view.where(col("a") > 1))])
def test_steps_behind_each_other_have_a_limit(step: Callable[[Any], Any]) -> None:
    with pytest.raises(PlanError, match=r"\[PLAN_TOO_DEEP\] .* more than 500 steps behind each other"):
        functools.reduce(lambda view, _: step(view), range(5_000), appends("t", SCHEMA))
