"""Columns that are NOT NULL: a row without a value in one is bad input, where rows enter and where a query writes them.

| rows | one with NULL |
|---|---|
| that are inserted | the INSERT is refused (`NOT_NULL`), nothing of it is kept |
| of files and topics | the query stops; with `on_bad_input = 'quarantine'` the row is set aside |
| that a query writes | the epoch fails, or the row is set aside, as one that the SELECT of the query cannot compute |

What deletes a row needs its key alone, so it is not checked.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from zset_join.core.errors import BadInputError, SqlError
from zset_join.core.shown_values import shown_value
from zset_join.expressions import Call, Cast, Literal
from zset_join.sql.tables.catalog import ColumnDefinition, Table

__all__ = ["check_required", "required_value"]


def check_required(table: Table, rows: pa.Table, weights: Any = None) -> None:
    for column in table.columns:
        if not column.is_required or not rows.column(column.name).null_count:
            continue
        lacks = pc.is_null(rows.column(column.name)).to_numpy()
        if weights is not None:
            lacks = lacks & (np.asarray(weights) > 0)
        if table.delta_column is not None:
            lacks = lacks & (rows.column(table.delta_column).to_numpy() >= 0)
        if not lacks.any():
            continue
        place = int(lacks.argmax())
        shown = {name: shown_value(rows.column(name).combine_chunks(), place) for name in rows.column_names}
        raise BadInputError(
            f'table "{table.name}": row {place} of what is inserted, {str(shown)[:200]}, has NULL in column "{column.name}", '
            "which is NOT NULL. Nothing was inserted. Give a value, or declare the column without NOT NULL.",
            code="NOT_NULL",
            relation=table.name,
            row=place,
            column=column.name,
        )


def required_value(tree: Any, column: ColumnDefinition, table: str) -> Any:
    """Return an expression with the value of another one, for which a row fails where that is NULL."""
    # No expression raises by itself, so it casts a text that is no number, and the text is the reason. The text depends on
    # the value, so that no optimizer computes it for every row.
    kind = column.type
    if pt.is_nested(kind):
        raise SqlError(
            f'"{table}": NOT NULL is not supported for {column.name}, of type {kind}, of what a query writes. Leave it out.',
            code="NOT_OFFERED",
            name=table,
        )
    text = Literal(f'NULL in column "{column.name}" of "{table}", which is NOT NULL', pa.string())
    nothing = Call("case", (Call("is_null", (tree,)), Literal("", pa.string()), Literal(".", pa.string())))
    failing: Any = Cast(Call("concat", (text, nothing)), pa.int32())
    if pt.is_binary(kind):  # no text becomes one
        either = (Literal(b"", kind), Literal(b"0", kind))
        return Call("coalesce", (tree, Call("case", (Call("is_null", (failing,)), *either))))
    return Call("coalesce", (tree, Cast(failing, kind) if pt.is_integer(kind) else Cast(Cast(failing, pa.string()), kind)))
