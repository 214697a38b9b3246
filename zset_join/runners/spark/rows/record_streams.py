"""Streams whose rows are records of a known format, for `changes(df, format=...)`: the format gives keys, order and deletes.

| format                        | rows                                       | order of the changes of a key |
|-------------------------------|--------------------------------------------|-------------------------------|
| `debezium-json`               | `key`, `value` and Kafka's other columns   | position in the log, offset   |
| other formats of records      | the same                                   | offset                        |
| `upsert-json`                 | the same; no value is a delete             | offset                        |
| `change-data-feed`            | `_change_type`, `_commit_version`          | `_commit_version`             |
| `row-kind`                    | `row_kind` or `_row_kind`                  | `sequence_by`                 |
| `weight`, `tp-delta`          | `_weight`, `_tp_delta`                     | none                          |

`change-data-feed` is what Delta and `changes()` of Spark 4.2 give.

The law: `JsonRecordReader` decides what a record means, in process as here; nothing is omitted but records that mean no change.
What cannot be read is rejected, with its bytes and its place in Kafka.

A value that the database did not send, and a truncate, are marked in a control column of the rows: a stage `latest` behind the
stream takes the value from the row that is present, and empties the table. Where no such stage can be (a table without a key,
versions of a temporal join, tables of more than 62 columns) such records are rejected: `UNAVAILABLE_VALUE`, `TRUNCATED`.

The columns are declared (`schema=`) or sampled (`sample=`, or from the source of the stream). A sample may find something else
at the next start, and a query whose columns have changed is refused; declare them where it should last.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit
from pyspark.sql.types import ArrayType, BinaryType, DataType, StructField, StructType

from zset_join.changelog.formats import RecordFormat, RecordOptions, record_format
from zset_join.changelog.formats.record_sql import CHANGE, UNAVAILABLE_BITS
from zset_join.changelog.formats.record_sql import REJECT as LINE_REJECT
from zset_join.core.errors import OptionError, PlanError
from zset_join.runners.spark.frames.facts import reader_of
from zset_join.runners.spark.rows.mapped_records import mapped_records
from zset_join.runners.spark.rows.names import column_named
from zset_join.runners.spark.rows.row_reading import RowOperation
from zset_join.runners.spark.rows.schemas import arrow_schema
from zset_join.runners.spark.rows.undecoded_records import IN_RECORD
from zset_join.shapes.deduplicate import MOST_COLUMNS, TRUNCATE

__all__ = ["RecordTable", "control_of", "declared_schema", "records_as_rows", "reject_partial", "sampled_table"]

_POSITION, _OFFSET, _BAD = "__position", "__offset", "__line_reject"
_RECORD = "__record_"
_SAMPLED_RECORDS = 1_000
_LOGICAL: Mapping[str, pa.DataType] = {
    "io.debezium.time.Date": pa.date32(),
    "io.debezium.time.Timestamp": pa.timestamp("us"),
    "io.debezium.time.MicroTimestamp": pa.timestamp("us"),
    "io.debezium.time.NanoTimestamp": pa.timestamp("us"),
    "io.debezium.time.ZonedTimestamp": pa.timestamp("us", "UTC"),
    "org.apache.kafka.connect.data.Date": pa.date32(),
    "org.apache.kafka.connect.data.Timestamp": pa.timestamp("us"),
}
_CONNECT: Mapping[str, pa.DataType] = {
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "bytes": pa.binary(),
}


@dataclass(frozen=True, kw_only=True)
class RecordTable:
    schema: pa.Schema
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RecordRows:
    rows: DataFrame
    operation: RowOperation
    order: tuple[tuple[str, Column], ...]
    shown: tuple[str, ...]
    may_be_partial: bool
    read: RecordOptions
    order_of: Mapping[str, str]

    @property
    def operation_of_parts(self) -> RowOperation:
        """Return the operations of rows whose control column lists omitted columns: only unreadable ones are rejected."""
        return replace(self.operation, reject=_unreadable())


def records_as_rows(
    df: DataFrame,
    name: str,
    format_name: str,
    table: RecordTable,
    options: RecordOptions,
    *,
    orders_by_offset: bool = True,
) -> RecordRows:
    _check_columns(df, name, format_name, table)
    record = record_format(format_name)
    wanted = dict(options.metadata)
    shown = (*table.schema.names, *wanted.values())
    if table.keys:
        wanted |= {"position": wanted.get("position", _POSITION)} if record.position else {}
        wanted |= {"offset": wanted.get("offset", _OFFSET)} if orders_by_offset and "offset" in df.columns else {}
    options = replace(options, metadata=wanted)
    place = [column for column in IN_RECORD if column in df.columns]
    raw_bytes = [one for one in ("key", "value") if one in place and isinstance(df.schema[one].dataType, BinaryType)]
    place += [f"{one}_base64" for one in raw_bytes]
    kept = {one: f"{_RECORD}{one}" for one in place}
    lines = mapped_records(df, format_name, table.schema, table.keys, options, kept=kept, source=name)
    rows = lines.withColumnRenamed(LINE_REJECT, _BAD)
    sources = ("position", "offset") if orders_by_offset else ("position",)
    ordering = [what for what in sources if what in wanted and table.keys]
    first = F.lit(-1).cast("long")  # MySQL's events have no position; there the offset decides alone
    order = tuple((f"__sequence_{at}", F.coalesce(column_named(wanted[what]), first)) for at, what in enumerate(ordering))
    raw = F.to_json(F.struct(F.col(_BAD).alias("said"), *(F.col(f"{_RECORD}{one}").alias(one) for one in place)))
    operation = RowOperation(
        weight=F.when(F.col(CHANGE) == "delete", F.lit(-1)).otherwise(F.lit(1)).cast("long"),
        reject=reject_partial(_unreadable(), _control_column(range(len(table.schema)))),
        raw=raw,
        used=frozenset([CHANGE]),
    )
    may_be_partial = bool(table.keys) and "truncate" in record.operations.values()
    return RecordRows(
        rows=rows,
        operation=operation,
        order=order,
        shown=shown,
        may_be_partial=may_be_partial,
        read=options,
        order_of={f"__sequence_{at}": wanted[what] for at, what in enumerate(ordering)},
    )


def control_of(records: RecordRows, table: RecordTable, columns: Sequence[str], *, hidden: int) -> Column | None:
    """Return the omitted columns of rows, as bits; None if no column can be omitted or marked."""
    if not records.may_be_partial or len(columns) + hidden > MOST_COLUMNS:
        return None
    places = {column: at for at, column in enumerate(table.schema.names)}
    return _control_column([places.get(column) for column in columns])


def reject_partial(reject: Column, control: Column) -> Column:
    """Return codes for rows that can be no change of a whole row, where nothing fills them."""
    return F.coalesce(reject, F.when(control < 0, F.lit("TRUNCATED")).when(control > 0, F.lit("UNAVAILABLE_VALUE")))


def _unreadable() -> Column:
    return F.when(F.col(_BAD).isNotNull(), F.substring_index(F.col(_BAD), " ", 1))


def _control_column(places: Sequence[int | None]) -> Column:
    """Return the omitted columns of rows, for some columns of the table; None for a column that is always given."""
    bits = F.col(UNAVAILABLE_BITS)
    known = [place for place in places if place is not None and place < MOST_COLUMNS]
    if all(at == place for at, place in enumerate(places) if place is not None):
        left_out = bits.bitwiseAND(F.lit(sum(1 << place for place in known)).cast("long"))
    else:
        moved = [
            F.shiftleft(F.shiftright(bits, place).bitwiseAND(F.lit(1).cast("long")), at)
            for at, place in enumerate(places)
            if place is not None and place < MOST_COLUMNS
        ]
        left_out = reduce(lambda found, one: found.bitwiseOR(one), moved)
    left_out = F.when(F.col(CHANGE) == "delete", F.lit(0)).otherwise(left_out)
    return F.when(F.col(CHANGE) == "truncate", F.lit(TRUNCATE)).otherwise(left_out).cast("long")


def sampled_table(df: DataFrame, name: str, format_name: str, sample: DataFrame | None) -> RecordTable:
    records = (_batch_of_source(df, name) if sample is None else sample).limit(_SAMPLED_RECORDS)
    record = record_format(format_name)
    values = records.selectExpr("CAST(value AS STRING) AS value").where("value IS NOT NULL")
    keys = _key_columns(records) if "key" in records.columns else ()
    first = values.first()
    if first is None:
        raise _nothing_sampled(name)
    connect = _connect_columns(first[0], record)
    if connect is not None:
        return RecordTable(schema=connect, keys=keys)
    inferred = reader_of(values.sparkSession).type_of_json(values)
    if record.enveloped and "payload" in inferred.names and isinstance(inferred["payload"].dataType, StructType):
        inferred = inferred["payload"].dataType
    columns: dict[str, DataType] = {}
    for path in dict.fromkeys([record.row, record.deleted, record.old]):
        columns |= {one.name: one.dataType for one in _row_at(inferred, path) if one.name not in columns}
    if not columns or "_corrupt_record" in columns:
        raise _nothing_sampled(name)
    return RecordTable(
        schema=arrow_schema(StructType([StructField(*one) for one in columns.items()]), relation=name), keys=keys
    )


def declared_schema(schema: Any, name: str) -> pa.Schema:
    """Return the columns as they were declared: as Spark's text, as a StructType or as an Arrow schema."""
    if isinstance(schema, pa.Schema):
        return schema
    declared = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    if not isinstance(declared, StructType):
        raise OptionError(
            f'changes "{name}": schema is a {type(schema).__name__}; expected text such as "id bigint, total decimal(12,2)", a '
            "StructType, or a pyarrow.Schema.",
            code="ARGUMENT",
            argument="schema",
        )
    return arrow_schema(declared, relation=name)


def _check_columns(df: DataFrame, name: str, format_name: str, table: RecordTable) -> None:
    if "value" not in df.columns:
        raise PlanError(
            f'changes "{name}": format="{format_name}" reads records from a column "value" (and "key", "topic", "partition", '
            f'"offset" where they are known); the columns are {df.columns}.',
            code="UNKNOWN_COLUMN",
            name=name,
            missing=["value"],
        )
    missing = [key for key in table.keys if key not in table.schema.names]
    if missing or not (table.keys or record_format(format_name).old):
        raise PlanError(
            f'changes "{name}": keys={list(table.keys)} must name columns of {table.schema.names}; only records with whole old '
            "rows, as those of debezium-json with REPLICA IDENTITY FULL, can do without.",
            code="UNKNOWN_COLUMN",
            name=name,
            missing=missing,
        )


def _batch_of_source(df: DataFrame, name: str) -> DataFrame:
    batch = reader_of(df.sparkSession).batch_of_source(df)
    if batch is None or "value" not in batch.columns:
        raise _cannot_sample(name)
    return batch


def _key_columns(records: DataFrame) -> tuple[str, ...]:
    keys = records.selectExpr("CAST(key AS STRING) AS key").where("key IS NOT NULL")
    inferred = reader_of(keys.sparkSession).type_of_json(keys)
    if "payload" in inferred.names and isinstance(inferred["payload"].dataType, StructType):
        inferred = inferred["payload"].dataType
    return tuple(name for name in inferred.names if not name.startswith(("_corrupt", "__debezium")))


def _row_at(kind: DataType, path: Sequence[str]) -> list[StructField]:
    for name in path:
        if not isinstance(kind, StructType) or name not in kind.names:
            return []
        kind = kind[name].dataType
    if isinstance(kind, ArrayType):
        kind = kind.elementType
    return list(kind.fields) if isinstance(kind, StructType) else []


def _connect_columns(text: str, record: RecordFormat) -> pa.Schema | None:
    """Return the columns of Kafka Connect's schema of a record; None where it has none."""
    try:
        envelope = json.loads(text)
    except ValueError:
        return None
    if not record.enveloped or not isinstance(envelope, dict) or not isinstance(envelope.get("schema"), dict):
        return None
    fields = envelope["schema"].get("fields", [])
    row = next((one for one in fields if (one.get("field"),) == record.row), None)
    return None if row is None else pa.schema([(one["field"], _connect_type(one)) for one in row["fields"]])


def _connect_type(field: Mapping[str, Any]) -> pa.DataType:
    logical = str(field.get("name", ""))
    if logical in _LOGICAL:
        return _LOGICAL[logical]
    if logical == "org.apache.kafka.connect.data.Decimal":
        parameters = field.get("parameters", {})
        return pa.decimal128(int(parameters.get("connect.decimal.precision", 38)), int(parameters.get("scale", 0)))
    if field["type"] == "array":
        return pa.list_(_connect_type(field["items"]))
    return _CONNECT.get(str(field["type"]), pa.string())


def _nothing_sampled(name: str) -> PlanError:
    return PlanError(
        f'changes "{name}": the sample has no record with a row in it, so the columns are unknown. Declare them with '
        'schema="id bigint, ...", and keys=[...].',
        code="NOTHING_SAMPLED",
        name=name,
    )


def _cannot_sample(name: str) -> PlanError:
    return PlanError(
        f'changes "{name}": the source of this DataFrame cannot be read as a batch to learn the columns from. Declare '
        'them with schema="id bigint, ..." and keys=[...], or pass sample=, a batch DataFrame of some records.',
        code="NOTHING_SAMPLED",
        name=name,
    )
