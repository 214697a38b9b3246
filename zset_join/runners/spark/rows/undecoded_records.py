"""Records of JSON as they came, and what is to be read of them, for a runner that decodes them itself.

The law: the rows that a reader makes of them as described here are those of `SourceStream.prepared`, with equal codes and texts
for records that cannot be read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit
from pyspark.sql.types import BinaryType, DataType, IntegralType, StringType

from zset_join.changelog.formats import RecordOptions
from zset_join.runners.spark.rows.row_reading import RAW, REJECT, WEIGHT

__all__ = ["IN_RECORD", "RecordsRead", "UndecodedRecords", "collected_records"]

IN_RECORD = ("topic", "partition", "offset", "key", "value")
"""The columns of Kafka's that go with a record that cannot be read."""
_TYPES: Mapping[str, tuple[type[DataType], str]] = {
    "topic": (StringType, "string"),
    "partition": (IntegralType, "int"),
    "offset": (IntegralType, "bigint"),
}
_ARROW = {"topic": pa.string(), "partition": pa.int32(), "offset": pa.int64()}


@dataclass(frozen=True, kw_only=True)
class RecordsRead:
    """Settings for reading the records of a stream; picklable."""

    name: str
    format_name: str
    table: pa.Schema
    keys: tuple[str, ...]
    options: RecordOptions
    schema: pa.Schema
    order: Mapping[str, str]
    control: str | None


@dataclass(frozen=True, kw_only=True)
class UndecodedRecords:
    """The records of a stream, beside the rows that Spark would read of them."""

    rows: DataFrame = field(repr=False)
    schema: pa.Schema
    read: RecordsRead
    prepared: DataFrame = field(repr=False)


def collected_records(df: DataFrame) -> tuple[DataFrame, pa.Schema] | None:
    """Return records with the columns beside rows, and the types of their own; None where one is of a type Kafka has not."""
    columns, fields = [], []
    for name in IN_RECORD:
        if name not in df.columns:
            continue
        kind = df.schema[name].dataType
        if name in _TYPES:
            expected, cast = _TYPES[name]
            if not isinstance(kind, expected):
                return None
            columns.append(F.col(name).cast(cast).alias(name))
            fields.append(pa.field(name, _ARROW[name]))
        elif isinstance(kind, BinaryType | StringType):
            columns.append(F.col(name))
            fields.append(pa.field(name, pa.binary() if isinstance(kind, BinaryType) else pa.string()))
        else:
            return None
    nothing = F.lit(None).cast("string")
    beside = (F.lit(1).cast("long").alias(WEIGHT), nothing.alias(REJECT), nothing.alias(RAW))
    return df.select(*columns, *beside), pa.schema(fields)
