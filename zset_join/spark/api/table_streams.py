"""The streams of tables that are declared by columns and options instead of DataFrames: what SQL inside Spark reads.

    stored     a directory of Parquet files, one per INSERT and epoch, with the weight of each row
    files      JSON, CSV or Parquet files of a user, one per epoch
    kafka      records of JSON in a topic, by Spark's own connector
    dataframe  a streaming DataFrame of the user

A column that is computed is given as Spark SQL text over the others. A column with the processing time holds, of a file, when
it was written, and of a record, Kafka's own time: times that a replay finds again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType, VariantType

from zset_join.changelog.formats.record_spellings import is_exact
from zset_join.errors import OptionError, PlanError
from zset_join.relation import Relation
from zset_join.spark.api.streams import appended_stream, changed_stream
from zset_join.spark.planning.source_stream import SourceStream
from zset_join.spark.rows.conversions import json_value, of_json, of_text
from zset_join.spark.rows.names import column_named, first_line, quoted
from zset_join.spark.rows.schemas import arrow_schema, field_type, refuse_collations, spark_schema, spark_type
from zset_join.spark.rows.typed_records import literal

__all__ = [
    "STORED_WEIGHT",
    "ColumnText",
    "checked_stream",
    "file_rows",
    "json_rows",
    "kafka_records",
    "refuse_collated",
    "schema_of",
    "stored_rows",
    "table_stream",
    "with_columns",
    "write_stored",
]

STORED_WEIGHT = "_stored_weight"
_TIME, _VALUE, _PLACE = "__time", "__value", "__place"
_ORDER = "_file_order_"
_METADATA = {name: name for name in ("topic", "partition", "offset", "timestamp")}


@dataclass(frozen=True)
class ColumnText:
    """One column of a declared table.

    Args:
        name: its name.
        type: its Arrow type.
        text: Spark SQL over the given columns; None for one that is given.
        is_time: it holds the processing time.
    """

    name: str
    type: pa.DataType
    text: str | None = None
    is_time: bool = False


def schema_of(rows: DataFrame, name: str) -> pa.Schema:
    """Return the columns of a DataFrame as Arrow types.

    Raises:
        PlanError: a column with a collation, or of a type that the engine does not keep.
    """
    schema = arrow_schema(rows.schema, relation=name)
    refuse_collated(schema, name)
    return schema


def refuse_collated(schema: pa.Schema, name: str) -> None:
    """Refuse columns with a collation in a table: SQL compares text by its bytes, wherever a column gets to.

    Raises:
        PlanError: `COLLATION`.
    """
    refuse_collations(schema, schema.names, relation=name, use="a column of a table of SQL")


def stored_rows(session: SparkSession, directory: str, schema: pa.Schema) -> DataFrame:
    """Return the rows of a table that INSERTs fill, one file an epoch, with their weights.

    Args:
        session: reads.
        directory: where its files lie.
        schema: the columns of the table.
    """
    kept = pa.schema([*schema, pa.field(STORED_WEIGHT, pa.int64())])
    return session.readStream.schema(spark_schema(kept)).option("maxFilesPerTrigger", 1).parquet(directory)


def write_stored(rows: DataFrame, directory: str) -> None:
    """Write the rows of a batch DataFrame as one file of a table that INSERTs fill.

    Args:
        rows: the columns of the table.
        directory: where the file goes; replaced.
    """
    weighted = rows.withColumn(STORED_WEIGHT, F.lit(1).cast("long"))
    weighted.coalesce(1).write.mode("overwrite").parquet(directory)


def file_rows(
    session: SparkSession,
    path: str,
    form: str,
    given: pa.Schema,
    *,
    options: Mapping[str, str] | None = None,
    name_words: int = 0,
) -> DataFrame:
    """Return the rows of files, a file an epoch, with the time each was written.

    Spark reads a large file in several parts at once, and keeps the order of rows within a part. So rows that are ordered by
    their file have the place where their part begins; within a part, the later one wins as it comes.

    Args:
        session: reads.
        path: a directory, or one file of it.
        form: json, csv or parquet.
        given: the columns that the files have.
        options: more of Spark's reader.
        name_words: where the rows of a key are ordered by their file, how many words of eight bytes of its name count; 0: they
            are not.

    Raises:
        OptionError: files of another format.
    """
    if form not in ("csv", "json", "parquet"):
        raise OptionError(f"files are read as csv, json, parquet, not as {form}.", code="UNKNOWN_FORMAT", format=form)
    schema = spark_schema(given) if form == "parquet" else _as_written(given, form)
    reader = session.readStream.schema(schema).option("maxFilesPerTrigger", 1).options(**dict(options or {}))
    if form != "parquet":
        reader = reader.option("mode", "FAILFAST")
    if form == "csv":
        reader = reader.option("header", "true").option("enforceSchema", "false")
    place = Path(path)
    if "://" not in path and place.is_file():
        reader, path = reader.option("pathGlobFilter", place.name), os.fspath(place.parent)
    rows = reader.format(form).load(path)
    place_of = "concat('file ', _metadata.file_name)"
    order = [F.expr(text).alias(f"{_ORDER}{at}") for at, text in enumerate(_file_order(name_words))]
    return rows.select(*_converted(given, form, "", place_of), F.col("_metadata.file_modification_time").alias(_TIME), *order)


def _file_order(name_words: int) -> list[str]:
    """Return expressions for the words of a file's name, as in `zset_join.sql.file_order`, and for a row's place in it."""
    if not name_words:
        return []
    name, first = "encode(_metadata.file_name, 'UTF-8')", 1 << 63
    unsigned = [
        f"CAST(conv(rpad(hex(substring({name}, {8 * at + 1}, 8)), 16, '0'), 16, 10) AS DECIMAL(20, 0))"
        for at in range(name_words)
    ]
    words = [
        f"CASE WHEN octet_length({name}) > {8 * at} THEN CAST({word} - {first}BD AS BIGINT) ELSE CAST(-{first}BD AS BIGINT) END"
        for at, word in enumerate(unsigned)
    ]
    return [*words, "_metadata.file_block_start"]


def _as_written(given: pa.Schema, form: str) -> StructType:
    """Return the columns of JSON as VARIANT, of CSV as text, but for those that Spark reads as they are."""
    return cast("StructType", _kind_as_written(pa.struct(list(given)), form))


def _kind_as_written(kind: pa.DataType, form: str) -> DataType:
    """Return the type that Spark reads for a type, its members included."""
    if pa.types.is_struct(kind):
        return StructType([StructField(member.name, _kind_as_written(member.type, form)) for member in kind])
    if pa.types.is_list(kind):
        return ArrayType(_kind_as_written(kind.value_type, form))
    if pa.types.is_map(kind):
        return MapType(spark_type(kind.key_type), _kind_as_written(kind.item_type, form))
    if pa.types.is_floating(kind):
        return StringType()
    if not is_exact(kind):
        return spark_type(kind)
    return VariantType() if form == "json" else StringType()


def _converted(given: pa.Schema, form: str, inside: str, place: str) -> list[Column]:
    """Return the columns in their types; a value that does not convert, or a member of one, stops the query.

    Args:
        given: the columns.
        form: json or csv; of parquet, columns are what they are.
        inside: what stands before their names.
        place: expression for where the row is, for the message.
    """
    columns = []
    for field in given:
        own = f"{inside}{quoted(field.name)}"
        reads = form != "parquet" and _kind_as_written(field.type, form) != spark_type(field.type)
        reason = literal(f': the value of column "{field.name}" cannot be read as ')
        refused = f"{place}, {reason}"
        columns.append(F.expr(_read(own, field.type, form, refused) if reads else own).alias(field.name))
    return columns


def _read(own: str, kind: pa.DataType, form: str, refused: str, depth: int = 0) -> str:
    """Return the expression for a value as written in its type.

    Args:
        own: the value as written.
        kind: its type.
        form: json or csv.
        refused: expressions, with commas between them, for the beginning of the message of a refusal.
        depth: how many lists and maps it is in.
    """
    member = f"x{depth}"
    if pa.types.is_struct(kind):
        read = [f"{literal(one.name)}, {_read(f'{own}.{quoted(one.name)}', one.type, form, refused, depth)}" for one in kind]
        return f"CASE WHEN {own} IS NOT NULL THEN named_struct({', '.join(read)}) END"
    if pa.types.is_list(kind):
        return f"transform({own}, {member} -> {_read(member, kind.value_type, form, refused, depth + 1)})"
    if pa.types.is_map(kind):
        return f"transform_values({own}, (k{depth}, {member}) -> {_read(member, kind.item_type, form, refused, depth + 1)})"
    is_float = pa.types.is_floating(kind)
    if not (is_float or is_exact(kind)):
        return own
    is_text = form == "csv" or is_float
    text = own if is_text else json_value(own)
    value = (of_text if is_text else of_json)(text, kind)
    refusal = f"raise_error(concat('UNDECODABLE_VALUE: ', {refused}, {literal(f'{kind}: ')}, {text}))"
    return f"CASE WHEN {text} IS NOT NULL THEN coalesce({value}, {refusal}) END"


def kafka_records(session: SparkSession, config: Mapping[str, Any], topic: str, *, start: str, name: str) -> DataFrame:
    """Return the records of a topic, by Spark's own connector.

    Args:
        session: reads; it must have Spark's Kafka connector.
        config: of Kafka's client.
        topic: which.
        start: `earliest` or `latest`, for a query without a checkpoint.
        name: of the table.

    Raises:
        OptionError: the session has no such connector.
    """
    reader = session.readStream.format("kafka").option("subscribe", topic).option("startingOffsets", start)
    for option, value in config.items():
        reader = reader.option(f"kafka.{option}", str(value))
    try:
        return reader.load()
    except AnalysisException as error:
        raise OptionError(
            f'"{name}": Spark has no Kafka connector here: {first_line(error)} Start the session with '
            "spark.jars.packages=org.apache.spark:spark-sql-kafka-0-10_2.13:VERSION.",
            code="MISSING_PACKAGE",
            package="spark-sql-kafka-0-10",
        ) from error


def json_rows(records: DataFrame, given: pa.Schema, metadata: Mapping[str, str]) -> DataFrame:
    """Return records of plain JSON as rows, with Kafka's time of each; one that cannot be read stops the query.

    Args:
        records: of a topic; those without a value are passed over.
        given: the columns of the JSON objects; what an object lacks is NULL.
        metadata: columns that are filled from the record, and from what of it.
    """
    record = F.from_json(F.col("value").cast("string"), _as_written(given, "json"), {"mode": "FAILFAST"}).alias(_VALUE)
    about = [F.col(_METADATA[of]).alias(column) for column, of in metadata.items()]
    where = F.expr("concat('offset ', offset, ' of topic ', topic)").alias(_PLACE)
    decoded = records.where(F.col("value").isNotNull()).select(record, F.col("timestamp").alias(_TIME), where, *about)
    return decoded.select(*_converted(given, "json", f"{_VALUE}.", _PLACE), F.col(_TIME), *map(column_named, metadata))


def with_columns(rows: DataFrame, columns: Sequence[ColumnText]) -> DataFrame:
    """Return rows with all columns of their table: computed ones are computed, in order, and what is left over is gone.

    Args:
        rows: the given columns, and perhaps the time of each row.
        columns: of the table, in order.
    """
    order = [column_named(name) for name in rows.columns if name.startswith(_ORDER)]
    for column in columns:
        kind = field_type(pa.field(column.name, column.type))
        if column.name in rows.columns:
            rows = rows.withColumn(column.name, column_named(column.name).cast(kind))
            continue
        if column.text is not None:
            value = F.expr(column.text).cast(kind)
        elif column.is_time and _TIME in rows.columns:
            value = F.col(_TIME).cast(kind)
        else:
            value = F.lit(None).cast(kind)
        rows = rows.withColumn(column.name, value)
    return rows.select(*(column_named(column.name) for column in columns), *order)


def table_stream(rows: DataFrame, relation: Relation, *, delta_column: str | None = None) -> SourceStream:
    """Return the stream of a table.

    Args:
        rows: its columns; and `STORED_WEIGHT`, where rows say so how many of them come or go, and what orders them by file.
        relation: what they are to be: name, columns, keys, mode, event time.
        delta_column: the column of `rows` whose -1 deletes; None where there is none.

    Raises:
        PlanError: columns of other types than those of the relation.
    """
    weight = STORED_WEIGHT if STORED_WEIGHT in rows.columns else None
    own = [name for name in (weight, delta_column) if name is not None]
    name, keys = relation.name, list(relation.primary_key)
    if relation.mode == "append":
        stream = appended_stream(rows.drop(*own), name=name, keys=keys or None)
    elif relation.mode == "upsert":
        deletes = " OR ".join(f"{quoted(column)} < 0" for column in own)
        more: dict[str, Any] = {"apply_as_deletes": deletes} if own else {}
        order = [column for column in rows.columns if column.startswith(_ORDER)]
        sequence = order or [column for column in relation.sequence_by if column in rows.columns]
        more |= {"sequence_by": sequence} if sequence else {}
        stream = changed_stream(rows, name=name, keys=keys, except_column_list=[*own, *order], **more)
    else:
        weight_column = delta_column or weight
        given = rows if weight_column is not None else rows.withColumn(STORED_WEIGHT, F.lit(1).cast("long"))
        given = given.drop(weight) if weight is not None and weight != weight_column else given
        stream = changed_stream(given, name=name, weight_column=weight_column or STORED_WEIGHT)
    return checked_stream(stream, relation)


def checked_stream(stream: SourceStream, relation: Relation) -> SourceStream:
    """Return a stream with the event time of its table.

    Raises:
        PlanError: columns of other types than those of the table.
    """
    hidden = [column for column in stream.hidden if column in relation.schema.names]
    shown = pa.schema([stream.schema.field(column) for column in (*stream.columns, *hidden)])
    name = relation.name
    if shown.names != relation.schema.names or shown.types != relation.schema.types:
        raise PlanError(
            f'the table "{name}" is declared with {relation.schema.to_string(show_field_metadata=False)}, and its rows have '
            f"{shown.to_string(show_field_metadata=False)}. Declare the columns as they are.",
            code="SOURCE_SCHEMA",
            name=name,
        )
    return replace(stream, event_time=relation.event_time, watermark_delay=relation.watermark_delay)
