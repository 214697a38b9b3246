"""Expressions give what Spark gives: every operator over a small table of values, NULL, NaN and -0.0 among them."""

from __future__ import annotations

import datetime
import decimal
import itertools
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.sweeps import for_each
from zset_join.core.errors import BadInputError
from zset_join.expressions import Call, Cast, Column, Expression, Literal, check, describe, evaluate, left, lit, right

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import SparkSession

D = decimal.Decimal
UTC = datetime.UTC
NAN = float("nan")

SCHEMA = pa.schema(
    {
        "flag": pa.bool_(),
        "tiny": pa.int8(),
        "int": pa.int32(),
        "big": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "price": pa.decimal128(10, 2),
        "rate": pa.decimal128(12, 5),
        "huge": pa.decimal128(38, 10),
        "text": pa.string(),
        "digits": pa.string(),
        "numeral": pa.string(),
        "bytes": pa.binary(),
        "day": pa.date32(),
        "local": pa.timestamp("us"),
        "instant": pa.timestamp("us", tz="UTC"),
        "span": pa.duration("us"),
    }
)
MIDNIGHT = datetime.datetime(2024, 2, 29)
ROWS: list[tuple[Any, ...]] = [
    (
        True, 1, 2, 2**53, 1.5, 1.5, D("1.50"), D("1.50000"), D("1.5"), "a", " 12 ", "1e2", b"a",
        datetime.date(2024, 2, 29), MIDNIGHT, MIDNIGHT.replace(tzinfo=UTC), datetime.timedelta(minutes=5),
    ),
    (
        False, -3, -7, 2**53 + 1, 0.0, -0.0, D("-2.75"), D("2.75001"), D("-3.3333333333"), "a ", "+0012", "-.5d",
        b"\xff",
        datetime.date(1969, 12, 31), datetime.datetime(1969, 12, 31, 23, 59, 59, 5),
        datetime.datetime(1969, 12, 31, 23, 59, 59, 5, UTC), datetime.timedelta(days=-2, seconds=1),
    ),
    (
        True, 5, 3, -4, -0.0, NAN, D("0.01"), D("0.01000"), D("7"), "é𝄞", "-7", "Infinity", b"",
        datetime.date(2024, 3, 1), MIDNIGHT + datetime.timedelta(days=1, microseconds=1), MIDNIGHT.replace(tzinfo=UTC),
        datetime.timedelta(0),
    ),
    (
        False, 100, 41, 1, NAN, float("inf"), D("99999999.99"), D("-1.5"), D("0.0000000001"), "", "0", "NaN", b"ab",
        datetime.date(2024, 2, 29), MIDNIGHT + datetime.timedelta(hours=12),
        datetime.datetime(2024, 2, 29, 1, tzinfo=UTC), datetime.timedelta(days=1),
    ),
    (None,) * len(SCHEMA),
]  # fmt: skip

ORDERED = ["flag", "tiny", "int", "big", "float", "double", "price", "rate", "text", "bytes", "day", "local", "instant"]
NUMBERS = ["tiny", "int", "big", "float", "double", "price", "rate"]
A_MINUTE = datetime.timedelta(minutes=1)


def comparisons(one: Expression, other: Expression) -> list[Expression]:
    return [one == other, one != other, one < other, one <= other, one > other, one >= other, one.eqNullSafe(other)]


PREDICATES: list[Expression] = [
    *itertools.chain.from_iterable(comparisons(left(name), right(name)) for name in ORDERED),
    *itertools.chain.from_iterable(
        [left(one) < right(other), left(one) == right(other)] for one in NUMBERS for other in NUMBERS if one != other
    ),
    left("span") < right("span"),
    left("span") == A_MINUTE * 5,
    left("flag") & right("flag"),
    left("flag") | right("flag"),
    ~left("flag"),
    left("flag") & lit(None),
    left("flag") | lit(None),
    left("int").isNull(),
    right("double").isNotNull(),
    left("big").between(right("int"), 5),
    left("int").isin(2, 41),
    left("int").isin(2, None),
    left("double").isin(NAN, 0.0),
    left("float").isin(1.5, 0.0),
    left("text").isin(["a", ""]),
    left("price").isin(D("1.5"), 7),
    left("price") < 2,
    left("tiny") > 1.0,
    left("instant") <= datetime.datetime(2024, 2, 29, tzinfo=UTC),
    left("local") <= datetime.datetime(2024, 2, 29),
    left("day") == datetime.date(2024, 2, 29),
    left("text").startswith("a"),
    left("text").startswith(""),
    left("bytes").startswith(b"a"),
    left("int").eqNullSafe(None),
    (right("int") != 3) & (left("big") / (right("int") - 3) > 0),
    (right("int") == 3) | (left("big") % (right("int") - 3) == 0),
]

VALUES: list[Expression] = [
    left("tiny").cast("int") + right("tiny"),
    left("int") - right("big"),
    left("int") * right("tiny"),
    left("float") + right("int"),
    left("float") * right("float"),
    left("double") - right("float"),
    left("int") / (right("int") + 100),
    left("int") % right("int"),
    left("double") % right("int"),
    left("double") / (right("tiny") + 0.5),
    1 - left("int"),
    left("int") + lit(None),
    left("price") + right("rate"),
    left("price") - right("int"),
    left("price") * right("rate"),
    left("price") * 3,
    left("huge") * right("rate"),
    left("huge") * right("huge"),
    left("huge").cast("decimal(38,30)") - right("huge").cast("decimal(38,0)"),
    left("huge") + right("price"),
    left("price") + right("double"),
    -left("int"),
    -left("price"),
    -left("span"),
    left("bytes").length(),
    left("local") + right("span"),
    left("local") - right("span"),
    left("local") - right("local"),
    left("instant") - right("instant"),
    left("instant") + A_MINUTE,
    left("span") + right("span"),
    left("span") - A_MINUTE,
    left("digits").cast("int"),
    left("numeral").cast("double"),
    left("big").cast("double"),
    left("double").cast("float"),
    left("price").cast("double"),
    left("huge").cast("float"),
    left("huge").cast("int"),
    left("price").cast("decimal(20,6)"),
]

FAILURES: list[tuple[Expression, str]] = [
    (left("int") / 0 > 1, "DIVIDE_BY_ZERO"),
    (left("double") % -0.0 > 1, "DIVIDE_BY_ZERO"),
    (left("tiny") + left("tiny") > 1, "ARITHMETIC_OVERFLOW"),
    (left("big") * 2**60 > 1, "ARITHMETIC_OVERFLOW"),
    (left("huge").cast("decimal(38,0)") * lit(D("9" * 38)) > 1, "ARITHMETIC_OVERFLOW"),
    (left("big").cast("int") > 1, "CAST_OVERFLOW"),
    (left("double").cast("bigint") > 1, "CAST_OVERFLOW"),
    (left("price").cast("tinyint") > 1, "CAST_OVERFLOW"),
    (left("price").cast("decimal(4,2)") > 1, "CAST_OVERFLOW"),
    (left("text").cast("int") > 1, "CAST_INVALID_INPUT"),
    (left("numeral").cast("bigint") > 1, "CAST_INVALID_INPUT"),
    (left("text").cast("double") > 1, "CAST_INVALID_INPUT"),
]


class ToSpark:
    """Turn a tree into a Spark column; the two rows of a pair are the structs `left` and `right`."""

    def visit_column(self, node: Column) -> SparkColumn:
        from pyspark.sql import functions

        return functions.col(f"{node.side}.{node.name}")

    def visit_literal(self, node: Literal) -> SparkColumn:
        from pyspark.sql import functions

        if pa.types.is_timestamp(node.type) and node.type.tz is None:
            return functions.lit(str(node.value)).cast("timestamp_ntz")
        if isinstance(node.value, bytes):
            return functions.unhex(functions.lit(node.value.hex()))
        return functions.lit(node.value)

    def visit_cast(self, node: Cast, operand: SparkColumn) -> SparkColumn:
        from pyspark.sql.pandas.types import from_arrow_type

        return operand.cast(from_arrow_type(node.type, prefer_timestamp_ntz=True))

    def visit_call(self, node: Call, operands: tuple[SparkColumn, ...]) -> SparkColumn:
        from pyspark.sql import functions

        first, *others = operands
        others_by_name: dict[str, Any] = {
            "eq": lambda: first == others[0],
            "ne": lambda: first != others[0],
            "lt": lambda: first < others[0],
            "le": lambda: first <= others[0],
            "gt": lambda: first > others[0],
            "ge": lambda: first >= others[0],
            "eq_null_safe": lambda: first.eqNullSafe(others[0]),
            "and": lambda: first & others[0],
            "or": lambda: first | others[0],
            "not": lambda: ~first,
            "add": lambda: first + others[0],
            "subtract": lambda: first - others[0],
            "multiply": lambda: first * others[0],
            "divide": lambda: first / others[0],
            "remainder": lambda: first % others[0],
            "negate": lambda: -first,
            "absolute": lambda: functions.abs(first),
            "length": lambda: functions.length(first),
            "is_null": first.isNull,
            "is_not_null": first.isNotNull,
            "starts_with": lambda: functions.startswith(first, others[0]),
            "in": lambda: first.isin(*others),
        }
        return others_by_name[node.operation]()


def pairs() -> tuple[pa.StructArray, pa.StructArray]:
    """Return every pair of rows, as two aligned arrays."""
    rows = [dict(zip(SCHEMA.names, row, strict=True)) for row in ROWS]
    crossed = list(itertools.product(rows, rows))
    row_type = pa.struct(list(SCHEMA))
    return pa.array([one for one, _ in crossed], row_type), pa.array([other for _, other in crossed], row_type)


def columns(rows: pa.StructArray) -> dict[str, pa.Array]:
    return {name: rows.field(name) for name in SCHEMA.names}


@pytest.fixture(scope="module")
def spark_answers(spark: SparkSession) -> pa.Table:
    """Evaluate everything in Spark in one query: one column per expression, one line per pair."""
    from pyspark.sql.pandas.types import from_arrow_schema

    left_rows, right_rows = pairs()
    table = pa.table({"number": pa.array(range(len(left_rows))), "left": left_rows, "right": right_rows})
    # Left to itself, Spark reads a timestamp without zone as an instant.
    frame = spark.createDataFrame(table, from_arrow_schema(table.schema, prefer_timestamp_ntz=True))
    expressions = [*PREDICATES, *VALUES]
    selected = [expression.accept(ToSpark()).alias(f"e{place}") for place, expression in enumerate(expressions)]
    return frame.select("number", *selected).toArrow().sort_by("number")


@pytest.mark.spark
@for_each("place", {describe(predicate): place for place, predicate in enumerate(PREDICATES)})
def test_a_condition_holds_for_the_pairs_for_which_spark_finds_it_true(place: int, spark_answers: pa.Table) -> None:
    left_rows, right_rows = pairs()
    predicate = PREDICATES[place]
    check(predicate, SCHEMA, SCHEMA)

    holds = evaluate(predicate, columns(left_rows), columns(right_rows), len(left_rows))
    is_null = evaluate(predicate.isNull(), columns(left_rows), columns(right_rows), len(left_rows))

    answer = spark_answers.column(f"e{place}").combine_chunks()
    assert holds.tolist() == answer.fill_null(False).to_pylist()
    assert is_null.tolist() == answer.is_null().to_pylist()


@pytest.mark.spark
@for_each("place", {describe(value): place for place, value in enumerate(VALUES)})
def test_an_expression_has_the_value_and_the_type_that_spark_gives(place: int, spark_answers: pa.Table) -> None:
    left_rows, right_rows = pairs()
    answer = spark_answers.column(f"e{len(PREDICATES) + place}").combine_chunks()
    same = VALUES[place].eqNullSafe(right("answer"))
    check(same, SCHEMA, pa.schema({**dict(zip(SCHEMA.names, SCHEMA.types, strict=True)), "answer": answer.type}))

    agrees = evaluate(same, columns(left_rows), {**columns(right_rows), "answer": answer}, len(left_rows))

    differing = [(left_rows[row], right_rows[row], answer[row]) for row in range(len(agrees)) if not agrees[row]]
    assert differing == []


@pytest.mark.spark
@for_each(("condition", "code"), {describe(condition): (condition, code) for condition, code in FAILURES})
def test_what_spark_refuses_to_compute_is_refused_here_as_well(condition: Expression, code: str, spark: SparkSession) -> None:
    left_rows, right_rows = pairs()
    frame = spark.createDataFrame(pa.table({"left": left_rows, "right": right_rows}))

    with pytest.raises(BadInputError) as ours:
        evaluate(condition, columns(left_rows), columns(right_rows), len(left_rows))
    with pytest.raises(Exception, match=r"DIVI|BY_ZERO|OVERFLOW|CAST_INVALID|OUT_OF_RANGE"):
        frame.select(condition.accept(ToSpark())).collect()

    assert ours.value.code == code
