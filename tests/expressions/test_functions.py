"""Functions of one row: each by an example, and each beside what Spark and DuckDB make of the SQL text of the same tree."""

from __future__ import annotations

import datetime
import decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from tests.sweeps import for_each
from zset_join.core.errors import BadInputError, PlanError
from zset_join.expressions import Call, Expression, col, describe, lit
from zset_join.expressions.functions import (
    add_months,
    ceil,
    coalesce,
    concat,
    date_add,
    date_diff,
    date_trunc,
    extract,
    floor,
    greatest,
    least,
    lower,
    ltrim,
    nullif,
    round_half_up,
    rtrim,
    substring,
    trim,
    upper,
    when,
)
from zset_join.expressions.rows import compute, value_type
from zset_join.expressions.sql_text import to_sql

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

D = decimal.Decimal
STAMP = datetime.datetime

SCHEMA = pa.schema(
    {
        "flag": pa.bool_(),
        "small": pa.int8(),
        "n": pa.int32(),
        "big": pa.int64(),
        "x": pa.float64(),
        "f": pa.float32(),
        "price": pa.decimal128(10, 2),
        "rate": pa.decimal128(12, 5),
        "huge": pa.decimal128(38, 10),
        "s": pa.string(),
        "t": pa.string(),
        "day": pa.date32(),
        "at": pa.timestamp("us"),
        "utc": pa.timestamp("us", tz="UTC"),
        "dates": pa.string(),
        "stamps": pa.string(),
        "decimals": pa.string(),
        "booleans": pa.string(),
    }
)
ROWS: list[tuple[Any, ...]] = [
    (True, 1, 2, 2**40, 1.5, 1.25, D("1.50"), D("1.50000"), D("1.5"), "Abc", " a b ", datetime.date(2024, 2, 29), STAMP(2024, 2, 29, 13, 5, 7, 250000), STAMP(2024, 2, 29, 23, 59, 59, tzinfo=datetime.UTC), "2024-2-9", "2024-02-09 7:05:01.25", "1.005", "true"),
    (False, -3, -7, -15, -2.675, -0.5, D("-2.75"), D("2.75001"), D("-3.3333333333"), "50%_\\x", "ß\n", datetime.date(1969, 12, 31), STAMP(1969, 12, 31, 23, 59, 59, 5), STAMP(1969, 12, 31, 23, 59, 59, 5, datetime.UTC), "2024", "1969-12-31T23:59:59", "-7", "No"),
    (True, 5, 25, 35, float("nan"), 2.5, D("0.01"), D("0.01000"), D("7"), "", "xyé𝄞z", datetime.date(2024, 12, 30), STAMP(2024, 12, 30), STAMP(2024, 3, 31, 1, tzinfo=datetime.UTC), " 1999-12 ", "2020-1-1", " 3.14159e2 ", " 1"),
    (None,) * len(SCHEMA),
    (False, 100, 41, 1, 1e15 + 0.5, 1e10, D("99999999.99"), D("-1.50000"), D("0.0000000001"), "a", "a", datetime.date(2023, 1, 1), STAMP(2023, 1, 1, 12), STAMP(2024, 2, 29, 1, tzinfo=datetime.UTC), "2023-01-01T12", "2023-01-01 00:00:00 ", "0", "f"),
]  # fmt: skip

EXPRESSIONS: list[Expression] = [
    when(col("n") > 0, "up").when(col("n") < 0, "down").otherwise("level"),
    when(col("flag"), col("price")).otherwise(col("n")),
    when(col("flag"), col("n")).otherwise(),
    when(col("n") != 2, col("big") / (col("n") - 2)).otherwise(0.0),
    coalesce("price", "rate", lit(0)),
    coalesce(lit(None), "n", lit(1)),
    coalesce("x", "n"),
    coalesce("day", "at"),
    nullif("n", 2),
    nullif("s", lit("")),
    nullif("x", lit(float("nan"))),
    nullif(lit("a"), "s"),
    coalesce(lit(None), "day"),
    coalesce("price", nullif(lit(0), "n")),
    coalesce("huge", nullif(lit(1), "x")),
    greatest("n", "big", lit(3)),
    least("x", "n"),
    greatest("x", lit(0.0)),
    greatest("s", "t"),
    least("day", lit(datetime.date(2024, 1, 1))),
    lower("s"),
    upper("s"),
    trim("t"),
    ltrim("t"),
    rtrim("t"),
    substring("t", 2),
    substring("t", 2, 2),
    substring("t", 0, 2),
    substring("t", -3, 2),
    substring("t", -9, 6),
    substring("t", 1, -1),
    substring("t", col("small"), col("n")),
    concat("s", lit("-"), "t"),
    col("s").length(),
    col("s").like("%b%"),
    col("s").like("50\\%\\_\\\\_"),
    col("s").like("_"),
    col("t").like("%"),
    col("s").like("50=%%", "="),
    col("s").ilike("aB_"),
    round_half_up("x", 2),
    round_half_up("x"),
    round_half_up("f", 0),
    round_half_up("big", -1),
    round_half_up("price", 1),
    round_half_up("price", -1),
    round_half_up("rate", 7),
    floor("x"),
    ceil("price"),
    floor("rate"),
    ceil("n"),
    *(extract(field, "at") for field in ("year", "quarter", "month", "week", "day", "dayofweek", "dayofyear", "hour", "minute", "second")),
    *(extract(field, "day") for field in ("year", "week", "dayofweek", "hour")),
    extract("hour", "utc"),
    *(date_trunc(unit, "at") for unit in ("year", "quarter", "month", "week", "day", "hour", "minute", "second", "millisecond")),
    date_trunc("month", "utc"),
    date_trunc("week", "day"),
    date_add("day", "n"),
    date_diff("day", lit(datetime.date(2024, 1, 1))),
    add_months("day", lit(1)),
    add_months("day", "small"),
    add_months("at", lit(-13)),
    col("at") + datetime.timedelta(days=1, seconds=5),
    col("utc") - datetime.timedelta(minutes=1),
    col("price") / col("rate"),
    col("price") / 3,
    col("price") % col("rate"),
    col("huge") / col("price"),
    col("n") / col("price"),
    col("price").between(0, 2) | col("n").isin(41, 2),
    col("dates").cast("date"),
    col("stamps").cast("timestamp_ntz"),
    col("stamps").cast(pa.timestamp("us", tz="UTC")),
    col("decimals").cast("decimal(8,2)"),
    col("booleans").cast("boolean"),
    col("at").cast("string"),
    col("utc").cast("string"),
    col("price").cast("string"),
    col("huge").cast("string"),
    col("f").cast("string"),
]  # fmt: skip

# DuckDB divides decimals as doubles, rounds doubles by their binary value, has no floor of NaN, writes numbers and times as text in its own way, and reads other texts.
SPARK_ONLY = ("round(x, 2", "floor(x", "huge / price", "price / rate", "price / 3", "n / price", "CAST(x", "CAST(f", "CAST(dates", "CAST(stamps", "CAST(utc", "CAST(booleans", "CAST(decimals", "CAST(at", "substring(t, -9", "substring(t, small")  # fmt: skip
DUCKDB_TOO = [expression for expression in EXPRESSIONS if not describe(expression).startswith(SPARK_ONLY)]


def table() -> pa.Table:
    return pa.table(
        {name: pa.array([row[place] for row in ROWS], SCHEMA.field(name).type) for place, name in enumerate(SCHEMA.names)}
    )


def values(expression: Expression) -> pa.Array:
    columns = {name: table().column(name).combine_chunks() for name in SCHEMA.names}
    computed = compute(expression, columns, len(ROWS))
    assert computed.type == value_type(expression, SCHEMA)
    return computed


def plain(array: pa.Array) -> list[Any]:
    """Return values that compare as they should: NaN by name, an instant by its moment."""
    return ["NaN" if value != value else value for value in array.to_pylist()]


@pytest.fixture(scope="module")
def spark_answers(spark: SparkSession) -> pa.Table:
    from pyspark.sql.pandas.types import from_arrow_schema

    frame = spark.createDataFrame(table(), from_arrow_schema(SCHEMA, prefer_timestamp_ntz=True)).coalesce(1)
    texts = [to_sql(expression, {"row": SCHEMA}, dialect="spark") for expression in EXPRESSIONS]
    return frame.selectExpr(*(f"{text} AS e{place}" for place, text in enumerate(texts))).toArrow()


@pytest.mark.spark
@for_each("place", {describe(expression): place for place, expression in enumerate(EXPRESSIONS)})
def test_a_function_has_the_values_and_the_type_that_spark_gives(place: int, spark_answers: pa.Table) -> None:
    answer = spark_answers.column(f"e{place}").combine_chunks()
    ours = values(EXPRESSIONS[place])

    assert plain(ours) == plain(answer)
    assert ours.type == answer.type


@pytest.mark.parametrize("expression", DUCKDB_TOO, ids=describe)
def test_duckdb_finds_the_same_values_by_the_text_written_for_it(expression: Expression) -> None:
    import duckdb

    text = to_sql(expression, {"row": SCHEMA}, dialect="duckdb")
    with duckdb.connect() as database:
        database.register("given", table())
        answer = database.sql(f"SELECT {text} AS answer FROM given").to_arrow_table().column(0).combine_chunks()

    assert plain(values(expression)) == plain(answer.cast(value_type(expression, SCHEMA)))


@pytest.mark.parametrize(
    "expression",
    [
        when(col("n"), 1).otherwise(2),
        when(col("flag"), 1).otherwise("a"),
        coalesce("n", "s"),
        upper("n"),
        concat("s", "n"),
        col("s").like("%\\"),
        col("s").like("a\\b"),
        Call("like", (col("s"), col("t"))),
        round_half_up("s"),
        Call("round", (col("x"), col("n"))),
        floor("s"),
        date_trunc("decade", "at"),
        extract("era", "at"),
        extract("hour", "s"),
        date_add("at", lit(1)),
        add_months("s", lit(1)),
        date_diff("at", "day"),
        substring("n", 1),
    ],
    ids=describe,
)
def test_what_a_function_does_not_take_is_refused_with_a_cure(expression: Expression) -> None:
    with pytest.raises(PlanError, match=r"is given .*; it takes .*\. .*") as refused:
        value_type(expression, SCHEMA)

    assert refused.value.code == "TYPE_MISMATCH"


def test_a_wrong_number_of_operands_is_refused() -> None:
    with pytest.raises(PlanError, match="nullif is given 1 operand; it takes 2"):
        value_type(Call("nullif", (col("n"),)), SCHEMA)


@pytest.mark.parametrize(
    ("expression", "code"),
    [
        (when(col("flag"), col("n") / (col("n") - 2)).otherwise(0.0), "DIVIDE_BY_ZERO"),
        (round_half_up(lit(127).cast("tinyint"), -1), "ARITHMETIC_OVERFLOW"),
        (date_add("day", lit(2**31 - 1)), "ARITHMETIC_OVERFLOW"),
        (col("s").cast("decimal(4,2)"), "CAST_INVALID_INPUT"),
        (col("s").cast("date"), "CAST_INVALID_INPUT"),
        (col("price") / 0, "DIVIDE_BY_ZERO"),
        (upper(col("s").cast("int").cast("string")), "CAST_INVALID_INPUT"),
    ],
    ids=str,
)
def test_what_cannot_be_computed_fails_with_its_code(expression: Expression, code: str) -> None:
    with pytest.raises(BadInputError) as failed:
        values(expression)

    assert failed.value.code == code


def test_what_is_not_chosen_cannot_fail() -> None:
    chosen = when(col("n") == 2, 0.0).otherwise(col("big") / (col("n") - 2))

    assert values(chosen).to_pylist()[0] == 0.0
    assert values(when(col("n").isNull(), 0.0).otherwise(coalesce("n", lit(1) / lit(0)))).to_pylist() == [
        2.0,
        -7.0,
        25.0,
        0.0,
        41.0,
    ]


@pytest.mark.parametrize("expression", EXPRESSIONS, ids=describe)
def test_no_rows_have_no_values(expression: Expression) -> None:
    columns = {field.name: pa.array([], field.type) for field in SCHEMA}

    assert len(compute(expression, columns, 0)) == 0
