"""Completion of rows of a table: missing columns get their DEFAULT, the processing time, or a computed value."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from zset_join.core.errors import SqlError
from zset_join.expressions.rows import compute
from zset_join.expressions.zones import expression_in_zone
from zset_join.sql.ddl.definitions import TP_DELTA
from zset_join.sql.tables.added_columns import repeated_default
from zset_join.sql.tables.arrow_rows import fit
from zset_join.sql.tables.catalog import Table
from zset_join.sql.tables.required import check_required
from zset_join.sql_expressions.dialects import Statement
from zset_join.sql_expressions.positions import near
from zset_join.sql_expressions.scalars import ScalarBinder
from zset_join.zset import ZSet, single_batch

__all__ = ["completed", "completed_table"]


def completed(table: Table, rows: pa.Table | ZSet, now_us: int, dialect: str, zone: str = "UTC") -> pa.Table | ZSet:
    """Return rows with all columns of a table, and their weights; see `completed_table`."""
    if isinstance(rows, ZSet):
        given = pa.Table.from_batches([rows.rows])
        return ZSet(single_batch(completed_table(table, given, now_us, dialect, rows.weights, zone)), rows.weights)
    return completed_table(table, rows, now_us, dialect, zone=zone)


def completed_table(
    table: Table, given: pa.Table, now_us: int, dialect: str, weights: Any = None, zone: str = "UTC"
) -> pa.Table:
    known = table.schema.names
    hidden = table.hidden.names
    unknown = [name for name in given.column_names if name not in known and name not in hidden]
    if unknown:
        raise SqlError(
            f'"{table.name}" has no column {", ".join(unknown)}.{near(unknown[0], known)}',
            code="UNKNOWN_COLUMN",
            name=table.name,
        )
    columns: dict[str, pa.Array] = {}
    for column in table.columns:
        if column.name in given.column_names:
            array = given.column(column.name).combine_chunks()
            is_plain = array.type == column.type
            # The metadata of a record is an instant, which a column without a zone has in UTC.
            is_beside = not is_plain and column.metadata is not None
            columns[column.name] = array if is_plain else array.cast(column.type) if is_beside else fit(table, column, array)
        elif column.is_processing_time:
            columns[column.name] = pa.repeat(pa.scalar(now_us, pa.int64()), given.num_rows).cast(column.type)
        elif column.computed is not None:
            schema = pa.schema([(name, array.type) for name, array in columns.items()])
            tree = ScalarBinder.over(schema, Statement("", (), dialect)).bind(column.computed)
            tree = expression_in_zone(tree, {"row": schema}, zone)
            columns[column.name] = compute(tree, columns, given.num_rows).cast(column.type)
        elif column.name == TP_DELTA:
            columns[column.name] = pa.repeat(pa.scalar(1, column.type), given.num_rows)
        else:
            columns[column.name] = repeated_default(column, given.num_rows)
    beside = {name: given.column(name) for name in hidden}
    whole = pa.table({**columns, **beside}, schema=pa.schema([*table.schema, *table.hidden]))
    check_required(table, whole, weights)
    return whole
