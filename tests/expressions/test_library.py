"""Functions of the library: the same values and types as Spark's and, where it has them, DuckDB's, by the text written for each.

One table, its NULLs and oddities included; every function of every family is among the expressions.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pytest

from zset_join.core.errors import BadInputError, PlanError
from zset_join.expressions import Call, Expression, Literal, col, describe, lit
from zset_join.expressions.function_types import LIBRARY
from zset_join.expressions.operations import FUNCTIONS
from zset_join.expressions.rows import compute, value_type
from zset_join.expressions.sql_text import to_sql
from zset_join.expressions.tree import walk

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = pa.schema(
    {
        "t": pa.string(),
        "n": pa.int32(),
        "x": pa.float64(),
        "at": pa.timestamp("us"),
        "u": pa.timestamp("us", tz="UTC"),
        "d": pa.date32(),
        "l": pa.list_(pa.string()),
        "j": pa.string(),
    }
)
TIMES = [
    datetime.datetime(2024, 2, 29, 23, 59, 58, 5),
    datetime.datetime(1969, 12, 31, 23, 59, 59, 1),
    None,
    datetime.datetime(2024, 1, 31),
    datetime.datetime(2023, 3, 1),
]
ROWS = pa.table(
    {
        "t": ["a,b,,c", "  Hello world ", None, "", "äb12cd"],
        "n": [1, -2, None, 0, 7],
        "x": [1.5, -2.0, None, 0.0, float("nan")],
        "at": pa.array(TIMES, pa.timestamp("us")),
        "u": pa.array(TIMES, pa.timestamp("us", tz="UTC")),
        "d": pa.array(
            [
                datetime.date(2024, 2, 29),
                datetime.date(1969, 12, 31),
                None,
                datetime.date(2024, 1, 31),
                datetime.date(2023, 3, 1),
            ],
            pa.date32(),
        ),
        "l": [["a", "b"], ["b", None], None, [], ["c"]],
        "j": [
            '{"a":{"b":[1,2.50,"x"]},"s":"it\\"s","n":null,"f":1e3}',
            '{"a": {"b": [ {"c" : true} ]}}',
            None,
            "nope",
            '[1,{"s":"y"}]',
        ],
    }
).cast(SCHEMA)


def made(name: str, *operands: Any) -> Call:
    """Return a call; a text with an @ before it names a column."""
    return Call(name, tuple(col(one[1:]) if isinstance(one, str) and one.startswith("@") else lit(one) for one in operands))


EXPRESSIONS = [
    made("ascii", "@t"),
    made("concat_ws", "-", "@t", "x"),
    made("contains", "@t", "b"),
    made("ends_with", "@t", "c"),
    made("initcap", "@t"),
    made("instr", "@t", "b"),
    made("lpad", "@t", 8, "xy"),
    made("rpad", "@t", 3, "z"),
    made("md5", "@t"),
    made("sha2", "@t", 256),
    made("octet_length", "@t"),
    made("regexp_extract", "@t", "([a-z])([0-9]+)", 2),
    made("regexp_extract", "@t", "b", 0),
    made("regexp_like", "@t", "^[a-z],"),
    made("regexp_replace", "@t", "([a-z])", "<$1>"),
    made("repeat", "@t", 2),
    made("replace", "@t", "b", "zz"),
    made("reverse", "@t"),
    made("soundex", "@t"),
    *(
        made("soundex", one)
        for one in ("Ashcraft", "Pfister", "Hwbcd", "b9b", "Tymczak", "Jackson-Xu", "éa", "a\u0301bb", "", " x")
    ),
    made("split_part", "@t", ",", 2),
    made("split_part", "@t", ",", -1),
    made("translate", "@t", "ab", "x"),
    made("trim_characters", "@t", " a", "both"),
    made("bit_and", "@n", 3),
    made("bit_or", "@n", 4),
    made("bit_xor", "@n", 1),
    made("bit_not", "@n"),
    made("exp", "@x"),
    made("is_nan", "@x"),
    made("ln", "@x"),
    made("log10", "@x"),
    made("power", "@x", 2),
    made("sign", "@x"),
    made("sqrt", "@x"),
    Call("try_cast", (col("t"), Literal(None, pa.int32()))),
    Call("try_cast", (col("j"), Literal(None, pa.date32()))),
    Call("try_cast", (col("t"), Literal(None, pa.decimal128(10, 2)))),
    made("date_format", "@at", "yyyy-MM-dd HH:mm:ss"),
    made("date_format", "@u", "EEE, dd MMM yy"),
    made("date_format", "@d", "yyyy/MM/dd"),
    made("duration_of", 60000000, "@n"),
    made("last_day", "@d"),
    made("make_date", 2024, 2, 28),
    made("time_between", "minute", "@at", datetime.datetime(2024, 3, 1)),
    made("time_between", "month", "@at", datetime.datetime(2024, 3, 1)),
    made("time_between", "year", "@at", datetime.datetime(2024, 3, 1)),
    made("timestamp_of", "second", "@n"),
    made("timestamp_of", "millisecond", "@n"),
    made("unix_time", "second", "@u"),
    made("unix_time", "millisecond", "@u"),
    made("array", 1, "@n"),
    made("array", "a", "@t"),
    made("array_contains", "@l", "b"),
    made("array_join", "@l", "+"),
    made("try_element_at", "@l", 1),
    made("try_element_at", "@l", -1),
    made("size", "@l"),
    made("split", "@t", ","),
    made("split", "@t", "[, ]"),
    made("get_json_object", "@j", "$.a.b[1]"),
    made("get_json_object", "@j", "$.a.b"),
    made("get_json_object", "@j", "$.s"),
    made("get_json_object", "@j", "$.f"),
    made("get_json_object", "@j", "$[1].s"),
    made("get_json_object", "@j", "$.n"),
    made("get_json_object", "@j", "$"),
]


def values(expression: Expression) -> pa.Array:
    columns = {name: ROWS.column(name).combine_chunks() for name in SCHEMA.names}
    computed = compute(expression, columns, ROWS.num_rows)
    assert computed.type == value_type(expression, SCHEMA)
    return computed


def is_written_for_duckdb(expression: Expression) -> bool:
    try:
        to_sql(expression, {"row": SCHEMA}, dialect="duckdb")
    except PlanError:
        return False
    return describe(expression) != "duration_of(60000000, n)"  # DuckDB's intervals are no durations of Arrow.


def test_every_function_of_the_library_is_among_the_expressions() -> None:
    called = {node.operation for expression in EXPRESSIONS for node in walk(expression) if isinstance(node, Call)}

    assert called >= LIBRARY.keys() - {"element_at"}
    assert LIBRARY.keys() <= FUNCTIONS.keys()


@pytest.mark.spark
def test_functions_have_the_values_and_the_types_that_spark_gives(spark: SparkSession) -> None:
    from pyspark.sql.pandas.types import from_arrow_schema

    frame = spark.createDataFrame(ROWS, from_arrow_schema(SCHEMA, prefer_timestamp_ntz=True)).coalesce(1)
    texts = [to_sql(expression, {"row": SCHEMA}, dialect="spark") for expression in EXPRESSIONS]
    answers = frame.selectExpr(*(f"{text} AS e{place}" for place, text in enumerate(texts))).toArrow()
    spark_answers = [answers.column(place).combine_chunks() for place in range(len(EXPRESSIONS))]
    ours = [values(expression) for expression in EXPRESSIONS]

    assert [(text, str(found.to_pylist())) for text, found in zip(texts, ours, strict=True)] == [
        (text, str(found.to_pylist())) for text, found in zip(texts, spark_answers, strict=True)
    ]
    assert [one.type for one in ours if not pa.types.is_list(one.type)] == [
        one.type for one in spark_answers if not pa.types.is_list(one.type)
    ]


@pytest.mark.parametrize("expression", [*filter(is_written_for_duckdb, EXPRESSIONS)], ids=describe)
def test_duckdb_finds_the_same_values_by_the_text_written_for_it(expression: Expression) -> None:
    text = to_sql(expression, {"row": SCHEMA}, dialect="duckdb")
    with duckdb.connect() as database:
        database.register("given", ROWS)
        answer = database.sql(f"SELECT {text} AS answer FROM given").to_arrow_table().column(0).combine_chunks()

    ours = values(expression)
    assert str(ours.to_pylist()) == str(answer.cast(ours.type).to_pylist())


def test_an_element_that_is_not_there_fails_as_in_spark_unless_it_is_tried() -> None:
    with pytest.raises(BadInputError) as failure:
        values(made("element_at", "@l", 2))

    assert failure.value.code == "ARRAY_INDEX"
    assert values(made("try_element_at", "@l", 2)).to_pylist() == ["b", None, None, None, None]


def test_a_date_of_parts_that_are_none_fails() -> None:
    with pytest.raises(BadInputError) as failure:
        values(made("make_date", 2023, 2, 29))

    assert failure.value.code == "INVALID_DATE"


@pytest.mark.parametrize(
    "expression",
    [
        made("regexp_like", "@t", "(?=a)b"),
        made("regexp_extract", "@t", "(a)", 2),
        made("get_json_object", "@j", "$.a[*]"),
        made("get_json_object", "@j", "a"),
        made("date_format", "@at", "qqq"),
        made("split_part", "@t", ",", 0),
        made("sha2", "@t", 100),
        made("repeat", "@t", 10**9),
        made("size", "@t"),
        made("array_contains", "@l", 1),
        made("array", 1, "a"),
        made("bit_and", "@x", 1),
    ],
    ids=describe,
)
def test_what_cannot_be_computed_is_refused_when_it_is_planned(expression: Expression) -> None:
    with pytest.raises(PlanError):
        value_type(expression, SCHEMA)
