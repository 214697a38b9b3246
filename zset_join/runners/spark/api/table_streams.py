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
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.streaming.readwriter import DataStreamReader
from pyspark.sql.types import StringType, StructField, StructType

from zset_join.core.errors import OptionError, PlanError
from zset_join.core.relation import Relation
from zset_join.runners.spark.api.streams import appended_stream, changed_stream
from zset_join.runners.spark.planning.source_stream import SourceStream
from zset_join.runners.spark.rows.conversions import (
    CORRUPT,
    exact_json,
    of_parsed,
    of_text,
    parsed_json,
    parsed_type,
    text_of_parsed,
)
from zset_join.runners.spark.rows.names import column_named, first_line, literal, quoted
from zset_join.runners.spark.rows.schemas import arrow_schema, field_type, refuse_collations, spark_schema

__all__ = [
    "STORED_WEIGHT",
    "UNREAD",
    "ColumnText",
    "checked_stream",
    "file_records",
    "file_rows",
    "json_rows",
    "kafka_records",
    "refuse_collated",
    "schema_of",
    "stored_rows",
    "table_stream",
    "with_columns",
]

STORED_WEIGHT = "_stored_weight"
_TIME, _VALUE, _PLACE = "__time", "__value", "__place"
UNREAD = "_unread_reason"
"""The column of rows of files and topics with the reason, as "CODE:text", why one could not be read; NULL for the others."""
_NOTHING = "\x00nothing\x00"
_BYTE_ORDER_MARK, _HAS_CONTENT = "^\ufeff", r"[^\t\n\x0B\f\r ]"
_BYTE_ORDER_MARK_BYTES = "^\u00ef\u00bb\u00bf"
_ORDER = "_file_order_"
_METADATA = {name: name for name in ("topic", "partition", "offset", "timestamp")}


@dataclass(frozen=True)
class ColumnText:
    """One column of a declared table."""

    name: str
    type: pa.DataType
    text: str | None = None
    is_time: bool = False


def schema_of(rows: DataFrame, name: str) -> pa.Schema:
    schema = arrow_schema(rows.schema, relation=name)
    refuse_collated(schema, name)
    return schema


def refuse_collated(schema: pa.Schema, name: str) -> None:
    """Refuse columns with a collation in a table: SQL compares text by its bytes, wherever a column gets to."""
    refuse_collations(schema, schema.names, relation=name, use="a column of a table of SQL")


def stored_rows(session: SparkSession, directory: str, schema: pa.Schema) -> DataFrame:
    """Return the rows of a table that INSERTs fill, one file an epoch, with their weights."""
    kept = pa.schema([*schema, pa.field(STORED_WEIGHT, pa.int64())])
    return session.readStream.schema(spark_schema(kept)).option("maxFilesPerTrigger", 1).parquet(directory)


def file_rows(
    session: SparkSession,
    path: str,
    form: str,
    given: pa.Schema,
    *,
    options: Mapping[str, str] | None = None,
    name_words: int = 0,  # of eight bytes of its name, which order the rows of a key by their file; 0: they are not
    optional: Collection[str] = (),  # columns that files of Parquet may lack
) -> DataFrame:
    """Return the rows of files, a file an epoch, with the time each was written."""
    # Spark reads a large file in several parts at once, and keeps the order of rows within a part. So rows that are ordered
    # by their file have the place where their part begins; within a part, the later one wins as it comes.
    if form not in ("csv", "json", "parquet"):
        raise OptionError(f"files are read as csv, json, parquet, not as {form}.", code="UNKNOWN_FORMAT", format=form)
    reader, path = _reader_of(session, path)
    order = [F.expr(text).alias(f"{_ORDER}{at}") for at, text in enumerate(_file_order(name_words))]
    about = [F.col("_metadata.file_modification_time").alias(_TIME), *order]
    where = F.expr("concat('file ', _metadata.file_name)").alias(_PLACE)
    if form == "parquet":
        lacking = _lacking(tuple(name for name in given.names if name not in optional))
        lacks = lacking(F.col("_metadata.file_path")).alias(UNREAD)
        rows = reader.schema(spark_schema(given)).format(form).load(path)
        return _with_values(rows.select(*map(column_named, given.names), *about, where, lacks), given).drop(_PLACE)
    if form == "json":
        line = F.expr(f"regexp_replace(value, {literal(_BYTE_ORDER_MARK)}, '')").alias("value")
        texts = reader.option("lineSep", "\n").text(path).select(line, *about, where)
        rows = _of_json(texts.where(f"value RLIKE {literal(_HAS_CONTENT)}"), given)
    else:
        rows = _of_csv(reader, path, given, dict(options or {}), [*about, where])
    return _with_values(rows, given).drop(_PLACE)


def file_records(session: SparkSession, path: str) -> DataFrame:
    """Return the lines of files as records of changes, a file an epoch: `key`, `value`, `topic`, `partition`, `offset`."""
    # A line is the record, whose `topic` is the file and whose `offset` is the number of its line; or an object of these
    # five, as `zset-join dead-letters --replay` writes it. One task reads a file, so that lines keep their order.
    reader, path = _reader_of(session, path)
    # Bytes as characters of one byte each: what is no UTF-8 stays as it is, and is reported by the line.
    text = f"regexp_replace(decode(CAST(value AS BINARY), 'ISO-8859-1'), {literal(_BYTE_ORDER_MARK_BYTES)}, '')"
    files = reader.text(path, wholetext=True)
    lines = files.selectExpr("_metadata.file_name AS file", f"posexplode(split({text}, '\n')) AS (place, line)")
    lines = lines.where(f"line RLIKE {literal(_HAS_CONTENT)}")
    lines = lines.selectExpr("file", "CAST(place + 1 AS BIGINT) AS place", "encode(line, 'ISO-8859-1') AS line")
    wrapped = (
        "from_json(CAST(line AS STRING), 'key STRING, value STRING, topic STRING, partition INT, offset BIGINT') AS record"
    )
    return lines.selectExpr("file", "place", "line", wrapped).selectExpr(
        "CAST(record.key AS BINARY) AS key",
        "IF(record.topic IS NULL, line, CAST(record.value AS BINARY)) AS value",
        "coalesce(record.topic, file) AS topic",
        "IF(record.topic IS NULL, 0, record.partition) AS partition",
        "IF(record.topic IS NULL, place, record.offset) AS offset",
    )


def _reader_of(session: SparkSession, path: str) -> tuple[DataStreamReader, str]:
    """Return a reader of a directory, or one file of it, a file an epoch; and the directory."""
    reader, place = session.readStream.option("maxFilesPerTrigger", 1), Path(path)
    if "://" not in path and place.is_file():
        return reader.option("pathGlobFilter", place.name), os.fspath(place.parent)
    return reader, path


def _lacking(required: tuple[str, ...]) -> Callable[[Column], Column]:
    """Return a function from the path of a Parquet file to the reason why its rows are unread, or NULL."""
    # Spark reads a column that a file lacks as NULL.

    def reasons(paths: pa.Array) -> pa.Array:
        found = {path: _why_unread(path, required) for path in paths.unique().to_pylist()}
        return pa.array([found[path] for path in paths.to_pylist()], pa.string())

    made: Any = arrow_udf  # its overloads leave out the kind of function that the hints of `reasons` name
    lacking: Callable[[Column], Column] = made(reasons, "string")
    return lacking


@lru_cache(maxsize=64)
def _why_unread(path: str, required: tuple[str, ...]) -> str | None:
    parts = urlsplit(path)
    address = unquote(parts.path) if parts.scheme == "file" else re.sub("^s3[an]://", "s3://", path)
    try:
        names = pq.read_schema(address).names
    except (pa.ArrowException, OSError):  # Spark reads it by a file system, or with credentials, that Arrow has not
        return None
    lacking = next((name for name in required if name not in names), None)
    return None if lacking is None else f'NO_FILE:file {path} has no column "{lacking}"'


def _with_values(rows: DataFrame, given: pa.Schema) -> DataFrame:
    """Return rows of which those without a value in a column that is not nullable count as unread."""
    for field in given:
        if not field.nullable:
            reason = F.concat(F.lit("NOT_NULL:"), F.col(_PLACE), F.lit(f': column "{field.name}" is NULL'))
            rows = rows.withColumn(UNREAD, F.coalesce(F.col(UNREAD), F.when(column_named(field.name).isNull(), reason)))
    return rows


def _file_order(name_words: int) -> list[str]:
    """Return the words of a file name, as in `zset_join.sql.tables.catalog`, and for the place of a row in it."""
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


def _of_csv(
    reader: DataStreamReader, path: str, given: pa.Schema, options: Mapping[str, str], about: Sequence[Column]
) -> DataFrame:
    """Return the rows of files of CSV, every field read as text by Spark's reader."""
    null = options.get("nullValue", "")
    reader = reader.options(**options).option("mode", "PERMISSIVE").option("header", "true").option("enforceSchema", "false")
    # As RFC 4180 has it: a quote is doubled, line ends may be within quotes; `""` is a text, nothing is NULL.
    reader = reader.option("escape", options.get("quote", '"')).option("multiLine", "true")
    reader = reader.option("nullValue", _NOTHING).option("emptyValue", "")
    reader = reader.option("columnNameOfCorruptRecord", CORRUPT)
    schema = StructType([StructField(name, StringType()) for name in [*given.names, CORRUPT]])
    texts = reader.schema(schema).format("csv").load(path)
    wrong = f"concat('UNDECODABLE_RECORD:', {_PLACE}, ': it is no line of {len(given)} fields: ', left({CORRUPT}, 100))"
    fields = [f"nullif({quoted(name)}, {literal(null)})" if null else quoted(name) for name in given.names]
    named = (F.expr(one).alias(name) for one, name in zip(fields, given.names, strict=True))
    rows = texts.select(*named, *about, column_named(CORRUPT))
    rows = rows.withColumn(UNREAD, F.expr(f"CASE WHEN {CORRUPT} IS NOT NULL THEN {wrong} END")).drop(CORRUPT)
    return _checked(rows, {field.name: (quoted(field.name), _of_field(field)) for field in given}, given)


def _of_field(field: pa.Field) -> str:
    """Return the expression for a field of CSV as a value."""
    own, kind = quoted(field.name), field.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return own
    return f"CAST({own} AS BINARY)" if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) else of_text(own, kind)


def _of_json(records: DataFrame, given: pa.Schema) -> DataFrame:
    """Return JSON objects as columns, the other columns of the records, and which could not be read."""
    others = [quoted(name) for name in records.columns if name != "value"]
    fields = {field.name: parsed_type(field.type) for field in given}
    refused = f"concat('UNDECODABLE_RECORD:', {_PLACE}, ': it is no JSON object: ', left(value, 100))"
    exact = records.selectExpr(*others, f"{exact_json('value')} AS __exact", "value")
    parsed = exact.selectExpr(*others, "value", f"{parsed_json('__exact', fields)} AS {_VALUE}")
    is_bad = f"({_VALUE} IS NULL OR {_VALUE}.{CORRUPT} IS NOT NULL)"
    read = parsed.selectExpr(
        *others, f"CASE WHEN NOT {is_bad} THEN {_VALUE} END AS {_VALUE}", f"CASE WHEN {is_bad} THEN {refused} END AS {UNREAD}"
    )
    # A step of its own: an expression that holds a text more than once would be compiled as often.
    texts = [text_of_parsed(f"{_VALUE}.{quoted(field.name)}", field.type) for field in given]
    shown = read.selectExpr(*others, UNREAD, *(f"{text} AS __text{at}" for at, text in enumerate(texts)))
    named = {f"__text{at}": of_parsed(f"__text{at}", field.type) for at, field in enumerate(given)}
    return _checked(shown, dict(zip(given.names, named.items(), strict=True)), given)


def _checked(rows: DataFrame, columns: Mapping[str, tuple[str, str]], given: pa.Schema) -> DataFrame:
    """Return rows with their values; one with a text that is no value is unread, its other columns are kept."""
    texts = {text for text, _ in columns.values()}
    others = [column_named(name) for name in rows.columns if quoted(name) not in texts and name not in texts and name != UNREAD]
    values = [F.expr(value).alias(f"__value_{at}") for at, (_, value) in enumerate(columns.values())]
    rows = rows.select(
        *others,
        *(F.expr(text).alias(f"__of_{at}") for at, text in enumerate(text for text, _ in columns.values())),
        *values,
        UNREAD,
    )
    unread = [column_named(UNREAD)]
    for at, field in enumerate(given):
        reason = literal(f': the value of column "{field.name}" cannot be read as {field.type}: ')
        reason_text = f"concat('UNDECODABLE_VALUE:', {_PLACE}, {reason}, left(__of_{at}, 100))"
        unread.append(F.expr(f"CASE WHEN __of_{at} IS NOT NULL AND __value_{at} IS NULL THEN {reason_text} END"))
    shown = [column_named(f"__value_{at}").alias(name) for at, name in enumerate(columns)]
    return rows.select(*shown, *others, F.coalesce(*unread).alias(UNREAD))


def kafka_records(session: SparkSession, config: Mapping[str, Any], topic: str, *, start: str, name: str) -> DataFrame:
    """Return the records of a topic, by Spark's own connector."""
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
    """Return records of plain JSON as rows, with Kafka's time of each, and which could not be read."""
    about = [F.col(_METADATA[of]).alias(column) for column, of in metadata.items()]
    where = F.expr("concat('offset ', offset, ' of topic ', topic)").alias(_PLACE)
    text = F.col("value").cast("string").alias("value")
    texts = records.where(F.col("value").isNotNull()).select(text, F.col("timestamp").alias(_TIME), where, *about)
    return _with_values(_of_json(texts, given), given).select(*map(column_named, [*given.names, _TIME, *metadata, UNREAD]))


def with_columns(rows: DataFrame, columns: Sequence[ColumnText]) -> DataFrame:
    """Return rows with all columns of their table: computed ones are computed, in order, and what is left over is gone."""
    order = [column_named(name) for name in rows.columns if name.startswith(_ORDER) or name == UNREAD]
    for column in columns:
        kind = field_type(pa.field(column.name, column.type))
        if column.name in rows.columns and column.text is None:
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
    weight = STORED_WEIGHT if STORED_WEIGHT in rows.columns else None
    own = [name for name in (weight, delta_column) if name is not None]
    name, keys = relation.name, list(relation.primary_key)
    unread = UNREAD if UNREAD in rows.columns else None
    if relation.mode == "append":
        stream = appended_stream(rows.drop(*own), name=name, keys=keys or None, unread=unread)
    elif relation.mode == "upsert":
        deletes = " OR ".join(f"{quoted(column)} < 0" for column in own)
        more: dict[str, Any] = {"apply_as_deletes": deletes} if own else {}
        order = [column for column in rows.columns if column.startswith(_ORDER)]
        sequence = order or [column for column in relation.sequence_by if column in rows.columns]
        more |= {"sequence_by": sequence} if sequence else {}
        stream = changed_stream(rows, name=name, keys=keys, except_column_list=[*own, *order], unread=unread, **more)
    else:
        weight_column = delta_column or weight
        given = rows if weight_column is not None else rows.withColumn(STORED_WEIGHT, F.lit(1).cast("long"))
        given = given.drop(weight) if weight is not None and weight != weight_column else given
        stream = changed_stream(given, name=name, weight_column=weight_column or STORED_WEIGHT, unread=unread)
    return checked_stream(stream, relation)


def checked_stream(stream: SourceStream, relation: Relation) -> SourceStream:
    """Return a stream with the event time of its table."""
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
