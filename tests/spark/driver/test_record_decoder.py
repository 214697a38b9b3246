"""Records that the driver reads itself mean what Spark reads of them for executors."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.changelog.formats.records import CASES, table_of
from tests.spark.rows.test_record_streams import stream_of
from tests.sweeps import some_of
from zset_join.changelog.formats import RecordOptions
from zset_join.runners.spark.api import streams
from zset_join.runners.spark.driver.driver_query import collected_layout, united_rows
from zset_join.runners.spark.driver.record_decoder import SourceRows
from zset_join.runners.spark.planning.source_stream import SourceStream

ODD = table_of(
    {"key": '{"id":1}', "value": '{"op":"c","after":{"id":1,"v":"a"},"source":{"lsn":5}}'},
    {"key": '{"id":1}', "value": '{"op":"u","after":{"id":1,"v":"__debezium_unavailable_value"},"source":{"lsn":6}}'},
    {"key": '{"id":2}', "value": '{"op":"c","after":{"id":2,"v":"\\u0001\\u00e4/\\\\u001f"},"source":{"lsn":"x"}}'},
    {"key": '{"id":1}', "value": '{"op":"d","before":{"id":1},"source":{"lsn":7}}'},
    {"key": '{"id":1}', "value": None},
    {"key": None, "value": '{"op":"t","source":{"lsn":8}}'},
    {"key": None, "value": "{oops \x01\x1f \\u001f é"},
    {"key": '{"id":4}', "value": '{"op":"c","after":{"id":"x","v":"a"}}'},
    {"key": '{"id":5}', "value": '{"op":"c","after":{"id":5,"v":"b"},"source":{"table":"others"}}', "offset": None},
)
SMALL = pa.schema({"id": pa.int64(), "v": pa.string()})
ALL = {**CASES, "odd ones": ("debezium-json", SMALL, ["id"], RecordOptions(), ODD)}


def both(spark: SparkSession, stream: SourceStream, directory: Path) -> tuple[SourceRows, SourceRows]:
    """Return the rows of a stream as the driver reads them, and as executors do."""
    assert stream.undecoded is not None
    found = []
    for number, (one, rows) in enumerate([(False, stream.collected), (True, stream.prepared)]):
        layout = collected_layout({stream.name: stream}, baselines=one)
        tables: list[pa.Table] = []

        def take(batch: DataFrame, _: int, tables: list[pa.Table] = tables) -> None:
            tables.append(batch.toArrow())

        writer = united_rows(layout, {stream.name: rows}).writeStream.option("checkpointLocation", str(directory / f"{number}"))
        writer.trigger(availableNow=True).foreachBatch(take).start().awaitTermination()
        found.append(pickle.loads(pickle.dumps(layout)).parted(pa.concat_tables(tables))[stream.name])
    return found[0], found[1]


def check_same(ours: SourceRows, sparks: SourceRows, keys: Any) -> None:
    assert ours.delta.rows.schema == sparks.delta.rows.schema
    assert repr(ours.delta.rows.to_pylist()) == repr(sparks.delta.rows.to_pylist())
    assert ours.delta.weights.tolist() == sparks.delta.weights.tolist()
    assert [*ours.raw] == [*sparks.raw]
    assert ours.rejected.weights.tolist() == sparks.rejected.weights.tolist()
    assert ours.rejected.rows.select(list(keys)).to_pylist() == sparks.rejected.rows.select(list(keys)).to_pylist()


@pytest.mark.parametrize("name", some_of(sorted(ALL), short=["odd ones"]))
def test_they_are_the_rows_and_the_reasons_that_executors_read(spark: SparkSession, tmp_path: Path, name: str) -> None:
    format_name, schema, keys, options, records = ALL[name]
    given = stream_of(spark, tmp_path / "records", records)
    stream = streams.changed_stream(given, name="t", format=format_name, schema=schema, keys=keys, options=options)
    ours, sparks = both(spark, stream, tmp_path)

    check_same(ours, sparks, keys)


def test_bytes_that_are_no_text_are_rejected_alike_on_executors(spark: SparkSession, tmp_path: Path) -> None:
    good, bad = b'{"op":"c","after":{"id":1,"v":"a"},"source":{"table":"t"}}', b'{"op":"c","after":{"id":2,"v":"\xff"}}'
    schema = pa.schema({"key": pa.binary(), "value": pa.binary(), "offset": pa.int64()})
    columns = [[b'{"id":1}', b"\xfe", b"\xfe", None], [good, good, bad, bad], [4, 5, 6, 7]]
    (tmp_path / "records").mkdir()
    pq.write_table(pa.table(columns, schema=schema), tmp_path / "records" / "1.parquet")
    given = spark.readStream.schema("key binary, value binary, offset long").parquet(str(tmp_path / "records"))
    stream = streams.changed_stream(given, name="t", format="debezium-json", schema=SMALL, keys=["id"])

    ours, sparks = both(spark, stream, tmp_path)

    assert len(ours.rejected) >= 2
    check_same(ours, sparks, ["id"])
