"""What can be requested: names, result types, and what is refused."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from zset_join.aggregates import FUNCTIONS, AggregateCall
from zset_join.core.errors import KeyTypeError, PlanError
from zset_join.expressions import left
from zset_join.shapes.aggregate import result_field
from zset_join.stages.written import read_fields, write_fields

SCHEMA = pa.schema(
    {
        "i": pa.int32(),
        "f": pa.float32(),
        "m": pa.decimal128(10, 2),
        "w": pa.decimal128(38, 37),
        "s": pa.string(),
        "l": pa.list_(pa.int32()),
        "p": pa.map_(pa.string(), pa.int32()),
        "u": pa.uint64(),
    }
)


def field_of(function: str, *columns: str) -> pa.Field:
    """Return the output column of a call over the columns above."""
    return result_field(AggregateCall(function, columns), SCHEMA, "t")


@pytest.mark.parametrize(
    ("function", "columns", "name"),
    [
        ("count", (), "count(1)"),
        ("count", ("i",), "count(i)"),
        ("count_distinct", ("i", "s"), "count(DISTINCT i, s)"),
        ("sum", ("i",), "sum(i)"),
        ("mean", ("i",), "mean(i)"),
        ("max_by", ("s", "i"), "max_by(s, i)"),
    ],
)
def test_a_column_is_named_as_spark_names_it(function: str, columns: tuple[str, ...], name: str) -> None:
    assert field_of(function, *columns).name == name


@pytest.mark.parametrize(
    ("function", "columns", "kind", "nullable"),
    [
        ("count", ("s",), pa.int64(), False),
        ("count_distinct", ("l",), pa.int64(), False),
        ("sum", ("i",), pa.int64(), True),
        ("sum", ("f",), pa.float64(), True),
        ("sum", ("m",), pa.decimal128(20, 2), True),
        ("sum", ("w",), pa.decimal128(38, 37), True),
        ("avg", ("i",), pa.float64(), True),
        ("avg", ("m",), pa.decimal128(14, 6), True),
        ("avg", ("w",), pa.decimal128(38, 38), True),
        ("min", ("s",), pa.string(), True),
        ("max", ("u",), pa.uint64(), True),
        ("min_by", ("l", "i"), pa.list_(pa.int32()), True),
        ("stddev", ("m",), pa.float64(), True),
        ("collect_list", ("f",), pa.list_(pa.float32()), False),
        ("collect_set", ("l",), pa.list_(pa.list_(pa.int32())), False),
    ],
)
def test_a_column_has_the_type_that_spark_gives_it(
    function: str, columns: tuple[str, ...], kind: pa.DataType, nullable: bool
) -> None:
    field = field_of(function, *columns)

    assert (field.type, field.nullable) == (kind, nullable)


@pytest.mark.parametrize(
    ("function", "columns"),
    [("sum", ("s",)), ("avg", ("l",)), ("sum", ("u",)), ("min", ("l",)), ("max_by", ("s", "l")), ("var_pop", ("s",))],
)
def test_a_type_that_a_function_does_not_take_is_refused(function: str, columns: tuple[str, ...]) -> None:
    with pytest.raises(PlanError, match=f"{function} does not take") as caught:
        field_of(function, *columns)

    assert caught.value.code == "AGGREGATE_TYPE"


def test_values_that_have_no_equality_cannot_be_collected() -> None:
    with pytest.raises((PlanError, KeyTypeError)):
        field_of("collect_set", "p")


def test_a_column_that_does_not_exist_is_refused() -> None:
    with pytest.raises(PlanError, match=r"names \['x'\]"):
        field_of("sum", "x")


def test_a_filter_over_a_column_that_does_not_exist_is_refused() -> None:
    with pytest.raises(PlanError, match='no column "x"'):
        result_field(AggregateCall("count", name="n", where=left("x") > 1), SCHEMA, "t")


def test_a_call_with_a_filter_needs_a_name() -> None:
    with pytest.raises(PlanError, match="needs a name of its own"):
        AggregateCall("count", where=left("i") > 1)


def test_an_unknown_function_is_refused_with_those_there_are() -> None:
    with pytest.raises(PlanError, match="'median' is unknown; use one of avg, bit_and"):
        AggregateCall("median", "i")


@pytest.mark.parametrize(
    ("function", "columns", "wanted"),
    [("sum", (), "1"), ("count", ("i", "s"), "0 or 1"), ("count_distinct", (), "1 or more"), ("max_by", ("i",), "2")],
)
def test_a_wrong_number_of_columns_is_refused(function: str, columns: tuple[str, ...], wanted: str) -> None:
    with pytest.raises(PlanError, match=f"it takes {wanted}\\."):
        AggregateCall(function, columns)


def test_every_name_of_a_function_represents_one_that_is_its_own_name() -> None:
    assert set(FUNCTIONS.values()) <= set(FUNCTIONS)
    assert [name for name in set(FUNCTIONS.values()) if FUNCTIONS[name] != name] == []


@pytest.mark.parametrize(
    "call",
    [
        AggregateCall("count"),
        AggregateCall("max_by", ("s", "i"), name="latest"),
        AggregateCall("collect_set", "s", limit=7),
        AggregateCall("sum", "i", name="some", where=(left("i") > 3) & left("s").is_null()),
    ],
    ids=lambda call: call.name,
)
def test_a_call_that_was_written_down_comes_back_the_same(call: AggregateCall) -> None:
    written = json.loads(json.dumps(write_fields(call)))

    again = read_fields(AggregateCall, written)

    assert repr(again) == repr(call)
    assert (again.columns, again.limit) == (call.columns, call.limit)
