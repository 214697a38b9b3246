"""Spark's schemas as Arrow's and back, the one way everything here uses.

State and files hold instants in UTC and every field nullable, whatever the session's time zone and the source's nullability
are: both may change between restarts, and the state must not.

What Arrow has no place for in a type, a string's collation and the units of an interval, is in the metadata of its field, so
that a view has the types of its inputs and expressions are evaluated under the collation. The engine compares bytes: a column
with a collation passes by, and is refused where equality or order matters (`refuse_collations`). A type that does not come back
from Arrow as it was, such as VARIANT, is refused.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type
from pyspark.sql.types import ArrayType, DataType, DayTimeIntervalType, MapType, StringType, StructField, StructType

from zset_join.core.errors import PlanError

__all__ = ["arrow_schema", "field_type", "refuse_collations", "spark_schema", "spark_type"]

_SPARK_TYPE = b"zset_join.spark_type"
_IN_UTC: dict[str, Any] = (
    {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_type).parameters else {"timestamp_utc": True}
)
"""How `to_arrow_type` is given UTC: PySpark 4.1 has another parameter for it than later versions."""


def arrow_schema(schema: StructType, *, relation: str) -> pa.Schema:
    """Return the Arrow schema in which rows of a DataFrame are kept."""
    fields = []
    for field in schema.fields:
        try:
            arrow_type = to_arrow_type(field.dataType, **_IN_UTC)
        except (PySparkException, TypeError, ValueError, AssertionError) as error:
            raise _not_carried(relation, field) from error
        plain = nullable_type(arrow_type)
        is_complete_in_arrow = _complete_in_arrow(field.dataType, from_arrow_type(plain, prefer_timestamp_ntz=True))
        if is_complete_in_arrow is None:
            raise _not_carried(relation, field)
        wanted = (
            None
            if is_complete_in_arrow
            else {_SPARK_TYPE: json.dumps(StructType([StructField("c", field.dataType)]).jsonValue())}
        )
        fields.append(pa.field(field.name, plain, metadata=wanted))
    return pa.schema(fields)


def field_type(field: pa.Field) -> DataType:
    """Return the Spark type of a column, with what Arrow has no place for."""
    stored_type = (field.metadata or {}).get(_SPARK_TYPE)
    if stored_type is None:
        return spark_type(field.type)
    return StructType.fromJson(json.loads(stored_type))["c"].dataType


def refuse_collations(schema: pa.Schema, columns: Iterable[str], *, relation: str, use: str) -> None:
    """Refuse columns with a collation where equality or order matters."""
    for name in columns:
        collation = _collation(field_type(schema.field(name)))
        if collation is not None:
            raise PlanError(
                f'relation "{relation}": column "{name}" is {use} and has the collation {collation}; the engine '
                f"compares strings by their bytes, and Spark would not. Compare bytes with collate({name}, 'UTF8_BINARY') in "
                "the DataFrame, or a column of yours that is equal where it should be, such as "
                f"lower(collate({name}, 'UTF8_BINARY')).",
                code="COLLATION",
                relation=relation,
                column=name,
                collation=collation,
            )


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
    return StructType([StructField(field.name, field_type(field), field.nullable) for field in schema])


def spark_type(declared: pa.DataType) -> DataType:
    return from_arrow_type(declared, prefer_timestamp_ntz=True)


def _nullable_field(field: pa.Field) -> Any:
    return pa.field(field.name, nullable_type(field.type))


def _not_carried(relation: str, field: StructField) -> PlanError:
    return PlanError(
        f'relation "{relation}": column "{field.name}" has type {field.dataType.simpleString()}, which Arrow does not '
        "carry to Python and back. Cast it (a VARIANT with to_json), or leave it out with except_column_list.",
        code="COLUMN_TYPE",
        relation=relation,
        column=field.name,
        type=field.dataType.simpleString(),
    )


def _complete_in_arrow(given: DataType, back: DataType) -> bool | None:
    """Return whether a type comes back from Arrow unchanged; False where field metadata restores it, None otherwise."""
    if isinstance(given, StringType) and isinstance(back, StringType):
        return _collation(given) is None
    if isinstance(given, DayTimeIntervalType) and isinstance(back, DayTimeIntervalType):
        return given == back
    if isinstance(given, ArrayType) and isinstance(back, ArrayType):
        return _complete_in_arrow(given.elementType, back.elementType)
    if isinstance(given, MapType) and isinstance(back, MapType):
        return _complete([_complete_in_arrow(given.keyType, back.keyType), _complete_in_arrow(given.valueType, back.valueType)])
    if isinstance(given, StructType) and isinstance(back, StructType) and given.names == back.names:
        return _complete([_complete_in_arrow(a.dataType, b.dataType) for a, b in zip(given, back, strict=True)])
    return True if given == back else None


def _complete(parts: list[bool | None]) -> bool | None:
    return None if None in parts else all(parts)


def _collation(kind: DataType) -> str | None:
    """Return the first collation in a type that does not compare bytes."""
    if isinstance(kind, StringType):
        return None if kind.isUTF8BinaryCollation() else str(kind.collation)
    parts: list[DataType] = []
    if isinstance(kind, ArrayType):
        parts = [kind.elementType]
    elif isinstance(kind, MapType):
        parts = [kind.keyType, kind.valueType]
    elif isinstance(kind, StructType):
        parts = [field.dataType for field in kind.fields]
    return next((collation for collation in map(_collation, parts) if collation is not None), None)
