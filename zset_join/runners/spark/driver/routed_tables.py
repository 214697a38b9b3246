"""The state of a join behind a route, as one table and as two.

    executors   the route: key of a row -> join key and order, and the deleted keys;  the join: the rows that it can match
    driver      the join: all rows with their order, and the deleted keys

The law: `parted(joined(rows, route)) = (rows, route)`. Of a row with NULL in its join key, which an inner join drops, executors
remember key and order alone; the driver then has NULL in its other columns, and no answer ever shows it.

Cost: one hash join of the keys. Memory: the tables again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from zset_join.core.errors import StateError
from zset_join.state.rows.side_snapshot import SNAPSHOT_DEGREE, SNAPSHOT_WEIGHT

__all__ = ["joined", "parted"]

_AT, _OTHER = "__at", "__other"


def joined(rows: pa.Table, route: pa.Table, schema: pa.Schema, key: Sequence[str]) -> pa.Table:
    """Return the rows of a join with the order and the deleted keys that its route remembers."""
    is_live = pc.not_equal(route.column(SNAPSHOT_WEIGHT), 0)
    live = route.filter(is_live)
    at, other = _places(rows, live, key)
    if len(at) != rows.num_rows:
        raise StateError(
            f"the state of a join has {rows.num_rows - len(at)} rows that the route in front of it does not have: the "
            "checkpoint is damaged. Nothing was changed. Bring back an older copy of it.",
            code="STATE_CONTRADICTION",
            rows=rows.num_rows - len(at),
        )
    ordered = live.take(pa.array(other[np.argsort(at)]))
    is_alone = np.ones(live.num_rows, bool)
    is_alone[other] = False
    alone, gone = live.filter(pa.array(is_alone)), route.filter(pc.invert(is_live))
    parts = [_filled(rows, ordered, schema), _filled(alone, alone, schema), _filled(gone, gone, schema)]
    return pa.concat_tables(parts)


def parted(table: pa.Table, rows: pa.Schema, route: pa.Schema, needed: Sequence[str]) -> tuple[pa.Table, pa.Table]:
    """Return the table of a join and that of its route, as executors have them."""
    is_kept = pc.not_equal(table.column(SNAPSHOT_WEIGHT), 0)
    for name in needed:
        is_kept = pc.and_(is_kept, pc.is_valid(table.column(name)))
    return table.filter(is_kept).select(rows.names).cast(rows), table.select(route.names).cast(route)


def _places(rows: pa.Table, route: pa.Table, key: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the places of rows, and those of the entries of the same keys."""
    left = _comparable(rows.select(list(key))).append_column(_AT, pa.array(np.arange(rows.num_rows)))
    same = pa.schema([rows.schema.field(name) for name in key])
    right = _comparable(route.select(list(key)).cast(same)).append_column(_OTHER, pa.array(np.arange(route.num_rows)))
    found = left.join(
        right,
        list(key),
        join_type="inner",
        use_threads=False,
    )
    return found.column(_AT).to_numpy(), found.column(_OTHER).to_numpy()


def _comparable(keys: pa.Table) -> pa.Table:
    """Return keys whose bytes are equal where the keys are: -0.0 is 0.0, and there is one NaN."""
    for at, field in enumerate(keys.schema):
        if pt.is_float32(field.type) or pt.is_float64(field.type):
            values = keys.column(at)
            zero, nan = (pa.scalar(value, field.type) for value in (0.0, float("nan")))
            values = pc.if_else(pc.equal(values, zero), zero, pc.if_else(pc.is_nan(values), nan, values))
            keys = keys.set_column(at, field, values)
    return keys


def _filled(rows: pa.Table, order: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with what is remembered of them; what neither table has is NULL."""
    columns = []
    for field in schema:
        if field.name in rows.column_names:
            columns.append(rows.column(field.name).cast(field.type))
        elif field.name in order.column_names:
            columns.append(order.column(field.name).cast(field.type))
        elif field.name == SNAPSHOT_DEGREE:
            columns.append(pa.chunked_array([np.zeros(rows.num_rows, np.int64)]))
        else:
            columns.append(pa.chunked_array([pa.nulls(rows.num_rows, field.type)]))
    return pa.Table.from_arrays(columns, schema=schema)
