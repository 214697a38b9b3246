"""Tables that get columns: what was made before reads the columns that there were.

The law: a query over a table with more columns is the same query over a selection of the columns that it had. So `*` of a view
stays what it was, and a stage that reads none of the added columns keeps its state.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pyarrow as pa

from zset_join.expressions import Literal
from zset_join.expressions.rows import named
from zset_join.plan.query_plan import PlanSource
from zset_join.plan.row_steps import SelectStep
from zset_join.plan.tree import Apply, Node, Read, Root, Views, rebuilt
from zset_join.query import View
from zset_join.sql.tables.bound import BoundQuery
from zset_join.sql.tables.catalog import ColumnDefinition, Table

__all__ = ["columns_behind", "default_tree", "over_more_columns", "repeated_default", "with_columns_added"]


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
