"""Spark reads records of JSON as they are read in process."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.changelog.formats.records import CASES
from tests.sweeps import some_of
from zset_join.changelog.formats.record_sql import CHANGE, REJECT, UNAVAILABLE_BITS
from zset_join.runners.spark.rows.json_records import read_records
from zset_join.sources.json_records import JsonRecordReader

SHORT = ("bad records", "values that were not sent, by type")
"""A statement per case takes Spark seconds to plan; test_record_formats.py has a line of every format in one query."""


def shown(value: Any) -> str:
    return repr(value.isoformat() if hasattr(value, "isoformat") else value).replace("+00:00", "")


@pytest.mark.parametrize("name", some_of(sorted(CASES), short=SHORT))
def test_the_lines_are_those_of_the_reader_in_process(spark: SparkSession, name: str) -> None:
    format_name, schema, keys, options, records = CASES[name]
    reader = JsonRecordReader(format_name, schema, keys, options)
    expected = reader.read(records)
    reader.close()

    found = read_records(spark.createDataFrame(records), format_name, schema, keys, options).toArrow()

    reported = pa.table(
        {CHANGE: expected.changes, UNAVAILABLE_BITS: pa.array(expected.unavailable), REJECT: expected.rejects}
        | dict(zip(expected.rows.schema.names, expected.rows.columns, strict=True))
    )
    for column in reported.column_names:
        is_bad = found.column(REJECT).to_pylist()
        lines = zip(found.column(column).to_pylist(), reported.column(column).to_pylist(), is_bad, strict=True)
        compared = [(shown(ours), shown(theirs)) for ours, theirs, bad in lines if bad is None or column in (CHANGE, REJECT)]
        assert [ours for ours, _ in compared] == [theirs for _, theirs in compared], column
