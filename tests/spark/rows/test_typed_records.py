"""Values read as they are give the lines that texts give, whatever was written."""

from __future__ import annotations

import random

import pyarrow as pa
import pyarrow.types as pt
import pytest
from pyspark.sql import SparkSession

from property_tests.record_fuzz import METADATA, SCHEMA, record
from tests.sweeps import some_of
from zset_join.changelog.formats import RecordOptions, record_format
from zset_join.changelog.formats.record_sql import RecordStatements
from zset_join.runners.spark.rows.json_records import _SparkDialect, read_records
from zset_join.runners.spark.rows.typed_records import IS_TYPED, TypedRecords


def fuzzed(format_name: str, records: int) -> pa.Table:
    """Return records of which most are good, and the others broken in every way that we could think of."""
    draw = random.Random(7)
    made = [record(draw, format_name) for _ in range(records)]
    texts = [[None if one is None else one.decode(errors="replace") for one in column] for column in zip(*made, strict=True)]
    return pa.table({"key": texts[0], "value": texts[1], "offset": pa.array(range(records), pa.int64())})


@pytest.mark.parametrize(
    ("format_name", "decimals"),
    some_of(
        {
            "debezium-json, base64": ("debezium-json", "base64"),
            "debezium-json, text": ("debezium-json", "text"),
            "maxwell-json": ("maxwell-json", None),
            "upsert-json": ("upsert-json", None),
        },
        short=(),
    ),
)
def test_values_and_texts_give_the_same_lines(spark: SparkSession, format_name: str, decimals: str | None) -> None:
    options = RecordOptions(decimals=decimals, time_unit="us", metadata=METADATA)
    records = spark.createDataFrame(fuzzed(format_name, 1_500)).coalesce(1)

    def lines(*, values_first: bool) -> list[str]:
        read = read_records(records, format_name, SCHEMA, ["id"], options, values_first=values_first)
        found = read.toArrow()
        counted = [
            column.cast(pa.int64()) if pt.is_temporal(column.type) and not pt.is_date(column.type) else column
            for column in found.columns
        ]
        counted = [column.cast(pa.int32()) if pt.is_date(column.type) else column for column in counted]
        return [repr(line) for line in pa.table(counted, found.column_names).to_pylist()]

    assert lines(values_first=True) == lines(values_first=False)


def test_ordinary_records_are_read_as_values_and_others_are_left_for_texts(spark: SparkSession) -> None:
    schema = pa.schema({"id": pa.int64(), "at": pa.timestamp("us"), "note": pa.string(), "price": pa.decimal128(9, 2)})
    options = RecordOptions(decimals="text", time_unit="us")
    good = '{"op":"%s","before":{"id":1},"after":{"id":1,"at":%s,"note":%s,"price":%s}}'
    records = {
        good % ("u", 5, '"x"', '"1.50"'): True,
        good % ("d", 5, '"x"', '"1.50"'): True,
        good % ("c", "null", '"__debezium_unavailable_value"', '"__debezium_unavailable_value"'): True,
        good % ("t", 5, '"x"', '"1.50"'): False,
        good % ("u", '"2024-01-02"', '"x"', '"1.50"'): False,
        good % ("u", 5, '"x"', '"much"'): False,
        '{"op":"d","before":null}': False,
        "noise": False,
    }
    statements = RecordStatements(
        record=record_format("debezium-json"), schema=schema, keys=["id"], options=options, dialect=_SparkDialect()
    )
    values = TypedRecords(statements=statements)

    rows = spark.createDataFrame(pa.table({"key": ["{}"] * len(records), "value": list(records)})).coalesce(1)
    for step in values.steps([], "value"):
        rows = rows.selectExpr(*step)

    assert [row[0] for row in rows.select(IS_TYPED).collect()] == list(records.values())
