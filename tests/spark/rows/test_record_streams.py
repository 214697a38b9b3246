"""Streams of records and of rows of known formats: what a real Debezium wrote becomes the table it was written of."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from tests.changelog.formats.records import ORDERS, debezium, table_of
from tests.spark.conftest import Collected
from tests.sweeps import for_each
from zset_join.changelog.formats import RecordOptions
from zset_join.changelog.formats.records import UNAVAILABLE
from zset_join.core.errors import OptionError, PlanError
from zset_join.pipeline import Pipeline
from zset_join.query.records import records as records_in_process
from zset_join.spark import JoinQuery, appends, changes

Run = Callable[..., JoinQuery]
RECORDS = "key string, value string, topic string, partition int, offset long"
KEPT = ("id", "customer_id", "amount", "note", "created", "d", "ts", "f")


def stream_of(spark: SparkSession, directory: Path, records: pa.Table) -> DataFrame:
    directory.mkdir()
    lines = [json.dumps(row) for row in records.select(["key", "value", "topic", "partition", "offset"]).to_pylist()]
    (directory / "1.json").write_text("\n".join(lines))
    return spark.readStream.schema(RECORDS).json(str(directory))


def add_records(directory: Path, *files: pa.Table) -> None:
    """Add records to what `stream_of` reads, a file per epoch."""
    directory.mkdir(exist_ok=True)
    for given in files:
        number = len(list(directory.iterdir()))
        path = directory / f"{number:03d}.json"
        lines = [json.dumps(row) for row in given.select(["key", "value", "topic", "partition", "offset"]).to_pylist()]
        path.write_text("\n".join(lines))
        os.utime(path, (1_600_000_000 + number, 1_600_000_000 + number))


def in_process(records_of: Sequence[pa.Table], schema: pa.Schema, columns: Sequence[str]) -> dict[tuple[Any, ...], int]:
    """Return the table of records, as a pipeline without Spark reads it, row to weight."""
    pipeline = Pipeline(
        records_in_process("orders", "debezium-json", schema, keys="id", options=RecordOptions(time_unit="us")).select(*columns)
    )
    for one in records_of:
        pipeline.step({"orders": one})
    return {tuple(row.values()): 1 for row in pipeline.view().to_pylist()}


def beside(spark: SparkSession, directory: Path, schema: str = "customer_id long, name string") -> Any:
    """Return an empty table to join with."""
    directory.mkdir()
    return appends(spark.readStream.schema(schema).json(str(directory)), name="beside")


def without(records: pa.Table, *texts: str) -> pa.Table:
    """Return the records whose values hold none of some texts."""
    return records.filter(
        pa.array([not any(text in (value or "") for text in texts) for value in records["value"].to_pylist()])
    )


def test_records_make_a_stream_with_keys_orders_metadata_and_the_schema_of_their_envelope(
    spark: SparkSession, tmp_path: Path
) -> None:
    df = stream_of(spark, tmp_path / "orders", debezium("orders"))

    stream = changes(df, format="debezium-json", name="orders")

    assert (stream.stream.mode, stream.stream.keys) == ("upsert", ("id",))
    assert stream.stream.functions == ()  # what reads the records is no function of the user's
    assert set(KEPT) <= set(stream.stream.columns)
    assert stream.stream.sequence_by == ("__sequence_0", "__sequence_1")
    assert stream.stream.hidden == (*stream.stream.sequence_by, "__control")

    options = RecordOptions(metadata={"operation_time": "changed_at", "topic": "from"})

    stream = changes(
        stream_of(spark, tmp_path / "with metadata", debezium("orders")),
        format="debezium-json",
        name="orders",
        schema=ORDERS,
        keys="id",
        options=options,
        watermark=("changed_at", "5 seconds"),
        max_watermark_jump="1 hour",
    )

    assert stream.stream.columns[-2:] == ("changed_at", "from")
    assert (stream.stream.event_time, stream.stream.watermark_delay) == ("changed_at", 5_000_000)
    assert (stream.stream.max_watermark_jump, stream.stream.may_reject) == (3_600_000_000, True)
    assert str(stream.stream.schema.field("changed_at").type) == "timestamp[us, tz=UTC]"

    row = {
        "type": "struct",
        "field": "after",
        "fields": [
            {"field": "id", "type": "int32"},
            {
                "field": "total",
                "type": "bytes",
                "name": "org.apache.kafka.connect.data.Decimal",
                "parameters": {"scale": "2", "connect.decimal.precision": "12"},
            },
            {"field": "day", "type": "int32", "name": "io.debezium.time.Date"},
            {"field": "tags", "type": "array", "items": {"type": "string"}},
        ],
    }
    value = {
        "schema": {"type": "struct", "fields": [row]},
        "payload": {"op": "c", "after": {"id": 1, "total": "BNI=", "day": 1, "tags": ["a"]}},
    }
    key = {"schema": {"type": "struct"}, "payload": {"id": 1}}
    sample = spark.createDataFrame([(json.dumps(key), json.dumps(value))], "key string, value string")
    df = stream_of(
        spark,
        tmp_path / "t",
        pa.table({"key": [json.dumps(key)], "value": [json.dumps(value)], "topic": ["t"], "partition": [0], "offset": [0]}),
    )

    stream = changes(df, format="debezium-json", name="t", sample=sample)

    assert stream.stream.keys == ("id",)
    assert [str(kind) for kind in stream.stream.schema.types[:4]] == [
        "int32",
        "decimal128(12, 2)",
        "date32[day]",
        "list<element: string>",
    ]


def test_a_table_in_spark_is_the_one_in_process_with_truncates_values_that_were_not_sent_and_restarts(
    spark: SparkSession, tmp_path: Path, run: Run
) -> None:
    given = debezium("orders")
    text = [value or "" for value in given["value"].to_pylist()]
    again = table_of(
        *(
            {
                "key": '{"id":1}',
                "value": json.dumps({"op": op, "after": row, "source": {"lsn": 10**12 + at}}),
                "offset": 900 + at,
            }
            for at, (op, row) in enumerate(
                [
                    ("c", {"id": 1, "customer_id": 10, "note": "a long text"}),
                    ("u", {"id": 1, "customer_id": 20, "note": UNAVAILABLE}),
                    ("u", {"id": 1, "customer_id": 30, "note": UNAVAILABLE}),
                ]
            )
        )
    )
    files = [given.slice(0, 6), given.slice(6), again.slice(0, 2), again.slice(2)]
    columns = ["customer_id", "id", "note"]
    add_records(tmp_path / "orders", *files[:1])
    spark_records = spark.readStream.schema(RECORDS).option("maxFilesPerTrigger", 1).json(str(tmp_path / "orders"))
    orders = changes(
        spark_records,
        format="debezium-json",
        name="orders",
        schema=ORDERS,
        keys=["id"],
        column_list=["id", "note", "customer_id"],
        options=RecordOptions(time_unit="us"),
    )
    view = orders.join(beside(spark, tmp_path / "beside"), on="customer_id", how="left").select(*columns)
    sink = Collected()
    run(view, sink, buckets=2)
    add_records(tmp_path / "orders", *files[1:3])
    run(view, sink, buckets=2)
    before = sink.total()
    add_records(tmp_path / "orders", *files[3:])

    query = run(view, sink, buckets=2)

    assert any('"op":"t"' in one for one in text)
    assert any(UNAVAILABLE in one for one in text)
    assert before == in_process(files[:3], ORDERS, columns)
    assert sink.total() == in_process(files, ORDERS, columns)
    assert (30, 1, "a long text") in sink.total()
    emitted = spark.createDataFrame([(*row, 1) for row in sink.total()], "customer_id long, id long, note string, _weight long")
    assert query.verify(actual_df=emitted).equal
    assert not query.verify(actual_df=emitted.where("id <> 1")).equal


def test_an_undecodable_record_goes_to_the_dead_letters_with_its_bytes_and_place(
    spark: SparkSession, tmp_path: Path, run: Run
) -> None:
    records = pa.table(
        {
            "key": ['{"id":1}', '{"id":2}', '{"id":3}'],
            "value": ['{"op":"c","after":{"id":1,"v":"a"}}', "{oops", '{"op":"c","after":{"id":"x","v":"a"}}'],
            "topic": ["t"] * 3,
            "partition": [0] * 3,
            "offset": [7, 8, 9],
        }
    )
    table = changes(
        stream_of(spark, tmp_path / "t", records), format="debezium-json", name="t", schema="id int, v string", keys="id"
    )
    sink = Collected()

    run(
        table.join(beside(spark, tmp_path / "beside", "v string, w string"), on="v", how="left"),
        sink,
        onBadInput="quarantine",
        deadLetterPath=str(tmp_path / "dead"),
    )

    assert sink.total() == {("a", 1, None): 1}
    dead = {row["code"]: row["reason"] for row in spark.read.parquet(str(tmp_path / "dead")).collect()}
    assert '"offset":"8"' in dead["UNDECODABLE_RECORD"]
    assert "{oops" in dead["UNDECODABLE_RECORD"]
    assert "UNDECODABLE_VALUE id" in dead["UNDECODABLE_VALUE"]


@for_each(
    ("format_name", "columns", "keys", "mode", "left"),
    [
        (
            "change-data-feed",
            "id long, v string, _change_type string, _commit_version long, _commit_timestamp timestamp",
            ["id"],
            "upsert",
            ("id", "v"),
        ),
        ("change-data-feed", "id long, _change_type string, _commit_version long", None, "changelog", ("id",)),
        ("row-kind", "id long, _row_kind string", ["id"], "upsert", ("id",)),
        ("tp-delta", "id long, _tp_delta int", None, "changelog", ("id",)),
        ("weight", "id long, _weight int", None, "changelog", ("id",)),
    ],
)
def test_formats_of_rows_represent_their_arguments(
    spark: SparkSession, tmp_path: Path, format_name: str, columns: str, keys: Any, mode: str, left: tuple[str, ...]
) -> None:
    stream = changes(spark.readStream.schema(columns).json(str(tmp_path)), name="t", format=format_name, keys=keys)

    assert (stream.stream.mode, stream.stream.columns) == (mode, left)
    assert bool(stream.stream.hidden) == ("_commit_version" in columns and keys is not None)


def test_wrong_arguments_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.readStream.schema(RECORDS).json(str(tmp_path))
    given: list[tuple[dict[str, Any], str]] = [
        ({"format": "debezium"}, "FORMAT"),
        ({"format": "debezium-json", "apply_as_deletes": "true"}, "CONFLICTING_ARGUMENTS"),
        ({"format": "debezium-json", "schema": "id int"}, "MISSING_PRIMARY_KEY"),
        ({"format": "canal-json", "schema": "id int", "keys": []}, "UNKNOWN_COLUMN"),
        ({"format": "debezium-json"}, "NOTHING_SAMPLED"),
        ({"format": "row-kind"}, "UNKNOWN_COLUMN"),
        ({"format": "debezium-json", "schema": 5, "keys": ["id"]}, "ARGUMENT"),
    ]

    def code_of(arguments: dict[str, Any]) -> str:
        with pytest.raises((PlanError, OptionError)) as refused:
            changes(df, name="t", **arguments)
        return str(refused.value.code)

    assert [code_of(arguments) for arguments, _ in given] == [code for _, code in given]


@pytest.mark.parametrize("execution", ["driver", "executors"])
def test_one_table_of_records_is_a_view_with_conditions_and_columns(
    spark: SparkSession, tmp_path: Path, run: Run, execution: str
) -> None:
    columns, sink = ["key", "value", "topic", "partition", "offset"], Collected()
    source = {"db": "shop", "table": "orders"}

    def record(op: str, place: int, before: Any, after: Any) -> dict[str, Any]:
        value = {"op": op, "before": before, "after": after, "source": {**source, "lsn": place}}
        identity = {"id": (after or before)["id"]}
        return dict(zip(columns, (json.dumps(identity), json.dumps(value), "orders", 0, place), strict=True))

    rows = [{"id": n, "amount": n * 10, "note": f"note {n}"} for n in range(4)]
    updated = {"id": 1, "amount": 5, "note": UNAVAILABLE}
    given = [record("c", n, None, row) for n, row in enumerate(rows)]
    given += [record("u", 7, {"id": 1}, updated), record("d", 8, {"id": 2}, None)]
    orders = changes(
        stream_of(spark, tmp_path / "orders", pa.Table.from_pylist(given)),
        format="debezium-json",
        name="orders",
        schema="id long, amount long, note string",
        keys=["id"],
    )

    shown = orders.select("amount", "note").where(F.col("amount") > 0).select(F.upper("note").alias("shown"))
    run(shown, sink, execution=execution)

    assert sink.total() == {("NOTE 1",): 1, ("NOTE 3",): 1}
