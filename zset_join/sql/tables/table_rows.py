"""Rows and columns of a table: rows that a program inserts, columns that are NOT NULL, columns that are added.

`arrow_table`, `fit`: rows inserted by a program, as Arrow: columns of the table get the table's types.

`check_required`, `required_value`: columns that are NOT NULL: a row without a value in one is bad input, where rows enter and
where a query writes them.

| rows | one with NULL |
|---|---|
| that are inserted | the INSERT is refused (`NOT_NULL`), nothing of it is kept |
| of files and topics | the query stops; with `on_bad_input = 'quarantine'` the row is set aside |
| that a query writes | the epoch fails, or the row is set aside, as one that the SELECT of the query cannot compute |

What deletes a row needs its key alone, so it is not checked.

`columns_behind`, `default_tree`: tables that get columns: what was made before reads the columns that there were.

The law: a query over a table with more columns is the same query over a selection of the columns that it had. So `*` of a view
stays what it was, and a stage that reads none of the added columns keeps its state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from zset_join.conversions import convert_values
from zset_join.core.errors import BadInputError, OptionError, SqlError
from zset_join.core.shown_values import shown_value
from zset_join.expressions import Call, Cast, Literal
from zset_join.expressions.rows import named
from zset_join.plan.query_plan import PlanSource
from zset_join.plan.row_steps import SelectStep
from zset_join.plan.tree import Apply, Node, Read, Root, Views, rebuilt
from zset_join.query import View
from zset_join.query.reading import given_rows
from zset_join.sql.tables.catalog import BoundQuery, ColumnDefinition, Mode, Table

__all__ = [
    "check_required",
    "columns_behind",
    "default_tree",
    "fit",
    "of_table",
    "over_more_columns",
    "registered",
    "repeated_default",
    "required_value",
    "with_columns_added",
]


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


def repeated_default(column: ColumnDefinition, count: int) -> pa.Array:
    """Return the values of a column in rows that do not give it."""
    return pa.nulls(count, column.type) if column.default is None else pa.repeat(column.default, count)


def default_tree(column: ColumnDefinition) -> Literal:
    """Return the value of a column in rows that do not give it, as an expression."""
    return Literal(None if column.default is None else column.default.as_py(), column.type)


def with_columns_added(table: Table, columns: tuple[ColumnDefinition, ...]) -> Table:
    names = tuple(column.name for column in columns)
    return replace(table, columns=(*table.columns, *columns), added=(*table.added, *names))


def columns_behind(before: Table, declared: Table) -> tuple[ColumnDefinition, ...]:
    """Return the columns that a table has beyond those of another one that is declared alike; none where it is not."""
    known = {column.name for column in before.columns}
    more = tuple(column for column in declared.columns if column.name not in known)
    return more if replace(declared, columns=_in_order(before, declared), added=before.added) == before else ()


def _in_order(before: Table, declared: Table) -> tuple[ColumnDefinition, ...]:
    """Return the columns that both tables have: in the order of the first one, where columns were added to it."""
    there = {column.name: column for column in declared.columns}
    own = [column.name for column in before.columns if column.name not in before.added]
    shared = [column.name for column in declared.columns if column.name in own]
    behind = [name for name in before.added if name in there]
    return tuple(there[name] for name in (*shared, *behind))


def over_more_columns(queries: Iterable[BoundQuery], table: Table) -> dict[int, BoundQuery]:
    """Return queries over a table that has more columns than when they were bound, by the id of each."""
    # A query that does not read the table is itself. Nodes that queries have in common stay so.
    bounds = {id(bound): bound for bound in queries}
    (whole,) = table.rows.bindings
    made: dict[int, tuple[PlanSource, Node]] = {}
    for one in [one for bound in bounds.values() for one in bound.view.bindings]:
        if one.source.name == table.name and one.source.relation.schema != whole.source.relation.schema:
            jump = one.source.max_watermark_jump
            is_alike = jump == whole.source.max_watermark_jump  # one source of both, so that one query can read both
            source = whole.source if is_alike else replace(whole.source, max_watermark_jump=jump)
            columns = tuple((name, named(name)) for name in one.source.relation.schema.names)
            made[id(one.source)] = source, Apply(Read(source), SelectStep(columns))

    def change(node: Node) -> Node:
        return made[id(node.source)][1] if isinstance(node, Read) and id(node.source) in made else node

    def over(bound: BoundQuery, node: Node) -> BoundQuery:
        if node is bound.view.node:
            return bound
        bindings = tuple(
            replace(whole, source=made[id(one.source)][0], is_of_versions=one.is_of_versions) if id(one.source) in made else one
            for one in bound.view.bindings
        )
        view: View = replace(bound.view, node=node, bindings=bindings)
        return replace(bound, view=view)

    root: Root = rebuilt(Views((), tuple(bound.view.node for bound in bounds.values())), change)
    return {number: over(bound, node) for (number, bound), node in zip(bounds.items(), root.children, strict=True)}
