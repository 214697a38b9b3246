"""Spark's schemas as Arrow's and back, the one way everything here uses.

State and files hold instants in UTC and every field nullable, whatever the session's time zone and the source's nullability
are: both may change between restarts, and the state must not.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type, to_arrow_type
from pyspark.sql.types import DataType, StructType

from zset_join.errors import PlanError

__all__ = ["arrow_schema", "nullable_type", "spark_schema", "spark_type"]


def arrow_schema(schema: StructType, *, relation: str) -> pa.Schema:
    """Return the Arrow schema in which rows of a DataFrame are kept.

    Args:
        schema: the DataFrame's.
        relation: its name, for the message.

    Raises:
        PlanError: a column has a type that Arrow does not carry.
    """
    fields = []
    for field in schema.fields:
        try:
            made = to_arrow_type(field.dataType, timezone="UTC")
        except (PySparkException, TypeError, ValueError, AssertionError) as error:
            raise PlanError(
                f'relation "{relation}": column "{field.name}" has type {field.dataType.simpleString()}, which Arrow does not '
                "carry to Python. Cast it, or leave it out with except_column_list.",
                code="COLUMN_TYPE",
                relation=relation,
                column=field.name,
                type=field.dataType.simpleString(),
            ) from error
        fields.append(pa.field(field.name, nullable_type(made)))
    return pa.schema(fields)


def nullable_type(declared: pa.DataType) -> pa.DataType:
    """Return the type with all nested fields nullable and without metadata."""
    if pa.types.is_struct(declared):
        return pa.struct([_nullable_field(declared.field(i)) for i in range(declared.num_fields)])
    if pa.types.is_map(declared):
        return pa.map_(nullable_type(declared.key_type), nullable_type(declared.item_type))
    if pa.types.is_list(declared):
        return pa.list_(_nullable_field(declared.value_field))
    return declared


def spark_schema(schema: pa.Schema) -> StructType:
    """Return the Spark schema of Arrow rows."""
    made: StructType = from_arrow_schema(schema)
    return made


def spark_type(declared: pa.DataType) -> DataType:
    """Return the Spark type of an Arrow type."""
    return from_arrow_type(declared)


def _nullable_field(field: pa.Field) -> Any:
    return pa.field(field.name, nullable_type(field.type))
