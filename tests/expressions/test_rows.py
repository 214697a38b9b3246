"""Expressions over one row give a value for every row, in the type they announce."""

from __future__ import annotations

import pyarrow as pa
import pytest

from zset_join import BadInputError, PlanError
from zset_join.expressions import left, lit
from zset_join.expressions.rows import check_condition, columns_read, compute, rows_where

SCHEMA = pa.schema({"a": pa.int64(), "s": pa.string(), "d": pa.decimal128(10, 2)})
COLUMNS = {
    "a": pa.array([1, None, 3]),
    "s": pa.array(["x", "yy", None]),
    "d": pa.array([1, 2, None], pa.decimal128(10, 2)),
}


def test_a_column_is_passed_through_as_it_is():
    assert compute(left("d"), COLUMNS, 3) is COLUMNS["d"]


def test_a_condition_that_is_null_does_not_pass():
    assert rows_where(left("a") < 3, COLUMNS, 3).tolist() == [True, False, False]


def test_a_row_that_divides_by_zero_is_refused_with_the_part_that_fails():
    with pytest.raises(BadInputError, match=r"fails for 1 of 3 rows: left\.a / \(left\.a - 1\) divides by zero"):
        compute(left("a") / (left("a") - 1), COLUMNS, 3)


def test_a_condition_must_be_boolean():
    with pytest.raises(PlanError, match="must be boolean"):
        check_condition(left("a") + 1, SCHEMA)


def test_the_columns_an_expression_reads_are_named():
    assert columns_read((left("a") + 1 < 3) & left("s").is_null()) == {"a", "s"}


def test_literals_that_python_takes_for_equal_are_two_values() -> None:
    columns = {"n": pa.array([1, 0], pa.int64())}

    assert compute(lit(1), columns, 2).to_pylist() == [1, 1]
    assert compute(lit(True), columns, 2).to_pylist() == [True, True]
    assert [str(compute(lit(zero), {}, 1)[0]) for zero in (0.0, -0.0)] == ["0.0", "-0.0"]
