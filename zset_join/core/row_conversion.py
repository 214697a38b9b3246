"""Conversion of a delta's columns to their stored form.

A delta has the columns of its relation, by name and type; what is only encoded otherwise (a dictionary, a view, another
offset width, a NULL-free column under a nullable one) is accepted, anything else is refused before a byte is read. Keys that
are compared in a wider type are cast; a value that does not fit marks its row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from zset_join.core.errors import PlanError, ResourceError
from zset_join.core.key_types import storage_type
from zset_join.core.relation import Relation

__all__ = ["cast_key", "conform", "plain", "repeated_positions", "rows_having", "shown_floats", "take_rows"]


def plain(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the array in its storage type: dictionaries decoded, views made plain, extensions unwrapped."""
    if array.type == kind:
        return array
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    return array if array.type == kind else array.cast(kind)


_MOST_COPIES = 100_000_000


def repeated_positions(weights: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the position of every row, as often as its weight."""
    copies = float(weights.sum(dtype=np.float64))
    if copies - len(weights) > _MOST_COPIES:
        raise ResourceError(
            f"as single rows these are {copies:,.0f}, of which {len(weights):,} are different; at most {_MOST_COPIES:,} are "
            "repeated. Read contents(), which has each row once with its weight.",
            code="TOO_MANY_ROWS",
            max_rows=_MOST_COPIES,
        )
    return np.repeat(np.arange(len(weights)), weights)


def take_rows(rows: pa.RecordBatch, positions: npt.NDArray[np.int64]) -> pa.RecordBatch:
    """Return some rows of a batch, views included (pyarrow cannot take from those)."""
    if not rows.num_columns:
        return rows.slice(0, len(positions))
    taken = pa.array(positions)
    try:
        return rows.take(taken)
    except pa.ArrowNotImplementedError:  # a view
        pass
    columns = [plain(column, storage_type(column.type)).take(taken).cast(column.type) for column in rows.columns]
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)


def rows_having(rows: pa.RecordBatch | pa.Table, values: Mapping[str, Any]) -> pa.Array:
    """Return which rows have the given values, as booleans; None finds NULL, and NaN itself."""
    mask = pa.repeat(pa.scalar(True), rows.num_rows)
    for name, value in values.items():
        column = rows.column(name)
        same = _same(column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column, value)
        mask = pc.and_(mask, pc.fill_null(same, False))
    return mask


def _same(column: pa.Array, value: Any) -> pa.Array:
    if value is None:
        return pc.is_null(column)
    if pt.is_nested(column.type):
        return pa.array([one == value for one in column.to_pylist()], pa.bool_())
    kind = pa.float64() if pt.is_floating(column.type) else storage_type(column.type)
    wanted = (value if isinstance(value, pa.Scalar) else pa.scalar(value, column.type)).cast(kind)
    if pt.is_floating(kind) and np.isnan(wanted.as_py()):
        return pc.is_nan(column.cast(kind))
    return pc.equal(column.cast(kind), wanted)


def conform(rows: pa.RecordBatch, relation: Relation) -> pa.RecordBatch:
    """Return the relation's columns of a batch, in its order and types."""
    schema = relation.schema
    if rows.schema.equals(schema):
        return rows
    missing = [name for name in schema.names if name not in rows.schema.names]
    if missing:
        raise PlanError(
            f'relation "{relation.name}": the delta lacks the columns {missing}; it has {rows.schema.names}. A delta has every '
            "column of its relation (NULL where a delete has no payload).",
            code="DELTA_COLUMNS",
            relation=relation.name,
            missing=missing,
        )
    columns = []
    for field in schema:
        column = rows.column(field.name)
        if column.type != field.type:
            stored = storage_type(field.type)
            if not _same_values(storage_type(column.type), stored):
                raise PlanError(
                    f'relation "{relation.name}": column "{field.name}" is {field.type}, but the delta has {column.type}. '
                    "Cast it before the join.",
                    code="DELTA_TYPES",
                    relation=relation.name,
                    column=field.name,
                    delta_type=str(column.type),
                    relation_type=str(field.type),
                )
            column = plain(column, stored).cast(field.type)
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema([field.with_nullable(True) for field in schema]))


def _same_values(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether two storage types differ in their encoding only."""
    if given == wanted or pa.types.is_null(given):
        return True
    for is_kind in (pa.types.is_string, pa.types.is_binary):
        wide = pa.types.is_large_string if is_kind is pa.types.is_string else pa.types.is_large_binary
        if (is_kind(given) or wide(given)) and (is_kind(wanted) or wide(wanted)):
            return True
    if given.num_fields and given.num_fields == wanted.num_fields and given.id == wanted.id:
        return all(
            given.field(at).name == wanted.field(at).name and _same_values(given.field(at).type, wanted.field(at).type)
            for at in range(given.num_fields)
        )
    return False


def shown_floats(array: pa.Array) -> pa.Array:
    """Return the values of a key as Spark shows those of a group: -0.0 as 0.0, every NaN as one, inside of nested ones too."""
    kind = array.type
    if pt.is_float16(kind):
        return shown_floats(array.cast(pa.float32())).cast(kind)  # Arrow computes with wider floats only
    if pt.is_floating(kind):
        return pc.if_else(pc.is_nan(array), pa.scalar(math.nan, kind), pc.add(array, pa.scalar(0.0, kind)))
    if pt.is_struct(kind) and len(kind):
        parts = [shown_floats(array.field(at)) for at in range(len(kind))]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=array.is_null())
    if pt.is_list(kind) and array.offset == 0:
        return pa.ListArray.from_arrays(array.offsets, shown_floats(array.values), type=kind, mask=array.is_null())
    return array


def cast_key(array: pa.Array, kind: pa.DataType) -> tuple[pa.Array, npt.NDArray[np.bool_] | None]:
    """Cast key values to the type they are compared in; return also which do not fit (they become NULL), None when all do."""
    try:
        return array.cast(kind), None
    except pa.ArrowInvalid:
        bad = np.zeros(len(array), np.bool_)
        _mark_unfit(array, kind, 0, len(array), bad)
        kept = pa.array(np.arange(len(array)), mask=bad)
        return array.take(kept).cast(kind), bad


def _mark_unfit(array: pa.Array, kind: pa.DataType, begin: int, end: int, bad: npt.NDArray[np.bool_]) -> None:
    try:
        array.slice(begin, end - begin).cast(kind)
    except pa.ArrowInvalid:
        if end - begin == 1:
            bad[begin] = True
            return
        middle = (begin + end) // 2
        _mark_unfit(array, kind, begin, middle, bad)
        _mark_unfit(array, kind, middle, end, bad)
