"""Tables of a session that its queries write: rows of statements and those of the queries, as one plan.

    INSERT INTO totals SELECT customer, sum(total) FROM orders GROUP BY customer

A reader of `totals` reads what statements insert into it UNION ALL the query: so an INSERT into `orders` is one epoch of both,
and there is no copy of the rows. Two live rows never claim one key of such a table (`zset_join.sql.tables.key_claims`), so the
union is the table.

The rows of some queries cannot be part of a plan (`is_fed`): those that replace one another by their key, and those that get
the time at which they come. They are rows that the table takes in the epoch that has them, and stay there without the query.

Refused: readers that need the versions of such a table, or the hidden order of its rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from zset_join.core.errors import PlanError, SqlError
from zset_join.expressions import Cast
from zset_join.expressions.rows import named, plain_column
from zset_join.plan.row_steps import SelectStep
from zset_join.plan.tree import Apply, Merge, Node, Read, rebuilt
from zset_join.query import View
from zset_join.sql.tables.added_columns import default_tree
from zset_join.sql.tables.catalog import Table
from zset_join.sql.tables.required import required_value
from zset_join.sql.tables.results import Running
from zset_join.sql_expressions.dialects import Statement
from zset_join.sql_expressions.scalars import ScalarBinder

__all__ = ["is_fed", "read_with_writers", "rows_for"]


def is_fed(running: Running) -> bool:
    """Return whether the table that a query writes takes its rows, as those of an INSERT."""
    if running.writer is None:
        return False
    table, is_timed = running.writer.table, any(one.is_processing_time for one in running.writer.table.columns)
    return not running.retracts or is_timed if table.primary_key else is_timed and not running.retracts


def rows_for(table: Table, view: View, names: Sequence[str], dialect: str) -> View:
    """Return the rows of a query with all columns of the table that it writes."""
    given = dict(zip(names, view.columns, strict=True))
    named_view = view.select({name: named(column) for name, column in given.items()})
    binder = ScalarBinder.over(named_view.schema, Statement("", (), dialect))
    chosen: dict[str, Any] = {}
    for column in table.rows.schema:
        declared = next(one for one in table.columns if one.name == column.name)
        if declared.is_processing_time:
            raise SqlError(
                f'"{table.name}" has the processing time in "{column.name}" and no primary key, and the query retracts rows: '
                "nothing shows the time at which they came. Give the table a primary key, or leave the column out.",
                code="NOT_OFFERED",
                name=table.name,
            )
        if declared.computed is not None:
            chosen[column.name] = Cast(binder.bind(declared.computed), declared.type)
        elif column.name in given:
            chosen[column.name] = Cast(named(column.name), declared.type)
        else:
            chosen[column.name] = default_tree(declared)
        if declared.is_required or column.name in table.primary_key:
            chosen[column.name] = required_value(chosen[column.name], declared, table.name)
    return named_view.select(chosen)


def read_with_writers(view: View, writers: Mapping[str, Sequence[View]], added: Mapping[str, Collection[str]]) -> View:
    """Return a query that reads what queries write into tables as well."""
    # `added` lists by table the columns that it got later; a selection without these goes before the union, so that what is
    # behind it is fed what it was fed before.
    written = {source.name for source in view.plan().sources} & writers.keys() if writers else set[str]()
    if not written:
        return view
    done: dict[int, Node] = {}
    unions: dict[int, str] = {}

    def change(node: Node) -> Node:
        if isinstance(node, Apply) and isinstance(node.child, Merge) and id(node.child) in unions:
            lost = set(node.child.relation.schema.names) - set(node.relation.schema.names)
            is_narrower = isinstance(node.step, SelectStep) and _picks(node.step)
            if is_narrower and lost and lost <= set(added[unions[id(node.child)]]):
                return Merge(tuple(replace(node, child=part) for part in node.child.parts))
        if not isinstance(node, Read) or node.source.name not in written:
            return node
        if id(node) not in done:
            done[id(node)] = union = Merge((node, *(one.node for one in writers[node.source.name])))
            unions[id(union)] = node.source.name
        return done[id(node)]

    bindings, steps = list(view.bindings), list(view.steps)
    for name in sorted(written):
        for one in writers[name]:
            bindings += [binding for binding in one.bindings if all(binding is not known for known in bindings)]
            steps += one.steps
    try:
        changed = replace(view, node=rebuilt(view.node, change), bindings=tuple(bindings), steps=tuple(steps))
        changed.plan()
    except PlanError as error:
        raise SqlError(
            f"{error.message} The query reads {', '.join(sorted(written))}, which other queries write: it can join and group "
            "these rows, and not have their versions. Read the queries, as views, in place of the table.",
            code="NOT_OFFERED",
        ) from error
    return changed


def _picks(step: SelectStep) -> bool:
    return all(plain_column(expression) == name for name, expression in step.columns)
