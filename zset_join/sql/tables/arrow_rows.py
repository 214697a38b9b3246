"""Rows inserted by a program, as Arrow: columns of the table get the table's types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from zset_join.conversions import convert_values
from zset_join.core.errors import BadInputError, OptionError
from zset_join.core.shown_values import shown_value
from zset_join.query.given_rows import given_rows
from zset_join.sql.tables.catalog import ColumnDefinition, Mode, Table

__all__ = ["arrow_table", "fit", "of_table", "registered"]


def of_table(table: Table, rows: Any) -> pa.Table:
    """Return rows that are to be inserted with their columns in the types of the table."""
    if isinstance(rows, pa.Table | pa.RecordBatch | pa.Schema):
        return arrow_table(rows)
    if isinstance(rows, Mapping):
        names = list(rows)
    elif hasattr(rows, "columns"):
        names = [str(name) for name in rows.columns]
    else:
        rows = list(rows) if isinstance(rows, Iterable) else rows
        if not isinstance(rows, list) or not all(isinstance(line, Mapping) for line in rows):
            return arrow_table(rows)  # whose error names what it expects
        names = list(dict.fromkeys(name for line in rows for name in line))
    if not names or not set(names) <= set(table.schema.names):
        return arrow_table(rows)
    given = pa.schema([table.schema.field(name) for name in names])
    return pa.Table.from_batches([given_rows(rows, given, table.name, names).whole()])


def fit(table: Table, column: ColumnDefinition, array: pa.Array) -> pa.Array:
    """Return values that are to be inserted in the type of their column."""
    converted = convert_values(array, column.type)
    if converted.unfit is None:
        return converted.values
    row = int(converted.unfit.argmax())
    value = repr(shown_value(array, row))[:100]
    raise BadInputError(
        f'table "{table.name}": row {row} of what is inserted has {value}, of type {array.type}, in column "{column.name}", '
        f"which is of type {column.type} and does not hold it. Nothing was inserted. Cast it first.",
        code="INSERT_TYPE",
        relation=table.name,
        row=row,
        column=column.name,
        value=value,
        expected=str(column.type),
    )


def registered(name: str, rows: Any, *, keys: tuple[str, ...], watermark: tuple[str, int] | None) -> tuple[Table, pa.Table]:
    """Return a table of what a program registers, and its rows."""
    held = arrow_table(rows)
    mode: Mode = "upsert" if keys else "append"
    columns = tuple(ColumnDefinition(field.name, field.type) for field in held.schema)
    table = Table(name=name, word="TABLE", columns=columns, mode=mode, primary_key=keys, watermark=watermark)
    _ = table.rows  # raises where a key or time is absent, before the name is taken
    return table, held


def arrow_table(rows: Any) -> pa.Table:
    if isinstance(rows, pa.Table):
        return rows
    try:
        if isinstance(rows, pa.RecordBatch):
            return pa.Table.from_batches([rows])
        if isinstance(rows, Mapping):
            return pa.table(dict(rows))
        if isinstance(rows, pa.Schema):
            return rows.empty_table()
        if hasattr(rows, "__arrow_c_stream__") or hasattr(rows, "__dataframe__"):
            return pa.table(rows)
        return pa.Table.from_pylist(list(rows))
    except (pa.ArrowException, TypeError, ValueError, AttributeError) as error:
        raise OptionError(
            f"{type(rows).__name__} cannot be converted to an Arrow table: {error}. Pass an Arrow table, a list of dicts, a "
            "dict of columns or a DataFrame.",
            code="NOT_A_TABLE",
        ) from error
