"""Several hundred expressions, as texts, have in process the values and the types that Spark has for the same texts."""

from __future__ import annotations

import datetime
import decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from zset_join.core.errors import BadInputError, SqlError
from zset_join.expressions.rows import compute, value_type
from zset_join.sql_expressions.dialects import parse_expression, split
from zset_join.sql_expressions.scalars import ScalarBinder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TEXTS = Path(__file__).with_name("scalar_texts.txt").read_text("utf-8").splitlines()
D = decimal.Decimal
COLUMNS: dict[str, tuple[str, pa.DataType]] = {
    "flag": ("BOOLEAN", pa.bool_()),
    "ti": ("TINYINT", pa.int8()),
    "si": ("SMALLINT", pa.int16()),
    "i": ("INT", pa.int32()),
    "l": ("BIGINT", pa.int64()),
    "r": ("FLOAT", pa.float32()),
    "f": ("DOUBLE", pa.float64()),
    "p": ("DECIMAL(10,2)", pa.decimal128(10, 2)),
    "q": ("DECIMAL(12,5)", pa.decimal128(12, 5)),
    "h": ("DECIMAL(38,10)", pa.decimal128(38, 10)),
    "s": ("STRING", pa.string()),
    "ns": ("STRING", pa.string()),
    "sp": ("STRING", pa.string()),
    "ds": ("STRING", pa.string()),
    "d": ("DATE", pa.date32()),
    "t": ("TIMESTAMP_NTZ", pa.timestamp("us")),
    "z": ("TIMESTAMP", pa.timestamp("us", tz="UTC")),
}
SCHEMA = pa.schema({name: kind for name, (_, kind) in COLUMNS.items()})
ROWS: list[tuple[str | None, ...]] = [
    ("true", "1", "300", "1", "3000000000", "1.5", "1.5", "1.50", "1.505", "1.5", "abc", "1", " a b ", "2024-02-29 10:11:12",
     "2024-02-29", "2024-02-29 12:34:56.789012", "2024-02-29 12:34:56.789"),
    ("false", "-7", "-32768", "-7", "-9", "-2.25", "-2.5", "-2.75", "2.75001", "-3.3333333333", "a_c", " -12 ", "\tx\n",
     "1969-12-31", "1969-12-31", "1969-12-31 23:59:59.999999", "1969-12-31 23:59:59.5"),
    ("false", "0", "0", "0", "0", "-0.0", "NaN", "0.00", "0.00000", "0", "", "0", "", "1999-01-03",
     "1999-01-03", "2000-01-01 00:00:00", "2000-01-01 00:00:00"),
    (None,) * len(COLUMNS),
    ("true", "3", "12", "25", "12345", "2.5", "0.285", "2.45", "3.14159", "2.5", "b.a.c", "007", "a", "2023-06-15 01:02:03.004",
     "2023-06-15", "2023-06-15 01:02:03.004", "2023-06-15 01:02:03.004"),
]  # fmt: skip


def read(text: str | None, kind: pa.DataType) -> Any:
    """Return the value of a column that a text represents."""
    if text is None or pa.types.is_string(kind):
        return text
    if pa.types.is_boolean(kind):
        return text == "true"
    if pa.types.is_temporal(kind):
        moment = datetime.datetime.fromisoformat(text)
        return moment.date() if pa.types.is_date(kind) else moment.replace(tzinfo=datetime.UTC if kind.tz else None)
    return D(text) if pa.types.is_decimal(kind) else float(text) if pa.types.is_floating(kind) else int(text)


def in_process(text: str) -> pa.Array:
    """Return what an expression is for every row."""
    (statement,) = split(text, dialect="spark")
    tree = ScalarBinder.over(SCHEMA, statement).bind(parse_expression(statement, statement.tokens))
    columns = {
        field.name: pa.array([read(row[place], field.type) for row in ROWS], field.type) for place, field in enumerate(SCHEMA)
    }
    values = compute(tree, columns, len(ROWS))
    assert values.type == value_type(tree, SCHEMA)
    return values


def shown(values: pa.Array) -> tuple[str, list[str | None]]:
    """Return the type, and the values so that NaN equals itself, -0.0 is not 0.0, and 1.0 is not 1.00."""
    if pa.types.is_duration(values.type):
        return "duration", [None if one is None else str(one) for one in values.cast(pa.duration("us")).to_pylist()]
    kind = f"list<{values.type.value_type}>" if pa.types.is_list(values.type) else str(values.type)
    return kind.replace("large_", ""), [None if one is None else repr(one) for one in values.to_pylist()]


@pytest.fixture(scope="module")
def of_spark(spark: SparkSession) -> pa.Table:
    """Evaluate everything in Spark in one query: one column per text."""
    rows = ", ".join(
        f"({', '.join('NULL' if value is None else _quoted(value) for value in (str(number), *row))})"
        for number, row in enumerate(ROWS)
    )
    typed = ", ".join(f"CAST({name} AS {kind}) AS {name}" for name, (kind, _) in COLUMNS.items())
    frame = spark.sql(f"SELECT CAST(row AS INT) AS row, {typed} FROM VALUES {rows} AS given(row, {', '.join(COLUMNS)})")
    chosen = [f"{text} AS e{place}" for place, text in enumerate(TEXTS)]
    return frame.selectExpr("row", *chosen).toArrow().sort_by("row")


def _quoted(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


@pytest.mark.spark
def test_every_text_has_the_values_and_the_type_that_spark_gives(of_spark: pa.Table) -> None:
    differing = []
    for place, text in enumerate(TEXTS):
        theirs, ours = shown(of_spark.column(f"e{place}").combine_chunks()), shown(in_process(text))
        if theirs != ours:
            differing.append((text, theirs, ours))

    assert not differing, "\n".join(map(str, differing))


@pytest.mark.parametrize(
    "text",
    [
        "i | 4 & 3", "i ^ 3 & 1", "ceil(p, 1)", "floor(p, 1)", "to_date(s, 'dd/MM/yyyy')", "split(s, 'b', 1)",
        "regexp_replace(s, 'b', 'X', 2)", "date_format(d, 'D')", "trunc(d, 'day')", "ns + ns", "'3' * '4'",
        "array_contains(array(1, 2), 1.0)", "date_format(t, 'yy/M/d')", "date_format(t, 'h a')",
    ],
)  # fmt: skip
def test_what_would_mean_something_else_is_refused_at_its_place(text: str) -> None:
    with pytest.raises(SqlError):
        in_process(text)


@pytest.mark.parametrize("text", ["floor(1e30)", "ceil(CAST('Infinity' AS DOUBLE))", "substring(s, 1, l)", "'3.5' + i"])
def test_what_fails_in_spark_fails_in_process(text: str) -> None:
    with pytest.raises((BadInputError, SqlError)):
        in_process(text)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("s NOT LIKE 'a%'", [False, False, True, None, True]),
        ("to_date(ds)", [datetime.date(2024, 2, 29), datetime.date(1969, 12, 31), datetime.date(1999, 1, 3), None,
                         datetime.date(2023, 6, 15)]),
        ("datediff(HOUR, d, t)", [12, 23, 8712, None, 1]),
        ("upper(s || 'ß')", ["ABCSS", "A_CSS", "SS", None, "B.A.CSS"]),
        ("concat_ws('-', CAST(NULL AS STRING), CAST(NULL AS STRING))", [""] * 5),
    ],
)  # fmt: skip
def test_some_that_were_wrong_once(text: str, values: list[Any]) -> None:
    assert in_process(text).to_pylist() == values
