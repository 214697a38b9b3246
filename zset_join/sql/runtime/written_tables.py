"""Tables of a session that its queries write: rows of statements and those of the queries, as one plan.

    INSERT INTO totals SELECT customer, sum(total) FROM orders GROUP BY customer

A reader of `totals` reads what statements insert into it UNION ALL the query: so an INSERT into `orders` is one epoch of both,
and there is no copy of the rows. Two live rows never claim one key of such a table (`zset_join.sql.runtime.claims`), so the
union is the table.

The rows of some queries cannot be part of a plan (`is_fed`): those that replace one another by their key, and those that get
the time at which they come. They are rows that the table takes in the epoch that has them, and stay there without the query.

Refused: readers that need the versions of such a table, or the hidden order of its rows.

`accepted`, `as_started`: rows of an epoch of a session: those that every query can evaluate, rows of several writers, and
errors that name queries.

With `on_bad_input = 'quarantine'` a row for which the own WHERE or SELECT of a query raises leaves the epoch, for all queries
and for the table, and is among its dead letters. What fails behind a join or a group fails the epoch.

Known limit: a row that a query of the session wrote is never set aside in the queries that read it; there the epoch fails.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from zset_join.core.errors import PlanError, SqlError, ZsetJoinError
from zset_join.expressions import Cast
from zset_join.expressions.rows import named, plain_column
from zset_join.plan.row_steps import SelectStep
from zset_join.plan.tree import Apply, Merge, Node, Read, rebuilt
from zset_join.query import View
from zset_join.runners.local.feeding import failing_rows, unread_rows
from zset_join.runners.local.taking import PartlyRead
from zset_join.sql.tables.catalog import Table
from zset_join.sql.tables.results import Running
from zset_join.sql.tables.settings import stage_options
from zset_join.sql.tables.table_rows import default_tree, required_value
from zset_join.sql_expressions.dialects import Statement
from zset_join.sql_expressions.scalars import ScalarBinder
from zset_join.zset import ZSet, single_batch

__all__ = ["Rows", "accepted", "as_started", "in_order", "is_fed", "named_error", "read_with_writers", "rows_for", "together"]


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


Rows: TypeAlias = pa.Table | ZSet
NOTHING = "No table and no query took any of the rows."


def accepted(running: Iterable[Running], name: str, given: Rows | PartlyRead) -> Rows | PartlyRead:
    """Return the rows of a table without those for which the own steps of a query that puts bad input aside raise."""
    rows = given.rows if isinstance(given, PartlyRead) else given
    unread = [given.unread] if isinstance(given, PartlyRead) else []
    bad: set[int] = set()
    for one in running:
        reading = one.reading_of(name)
        is_lenient = stage_options(one.query.settings).on_bad_input == "quarantine"
        if name not in one.reads or one.is_paused or reading is None or not is_lenient:
            continue
        try:
            failing = failing_rows(one.query.bound.view.plan(), reading, rows)
        except PlanError as error:
            if error.code != "SPARK_ONLY_STEP":
                raise
            continue  # only Spark can evaluate it, and Spark raises
        new = {place: error for place, error in failing.items() if place not in bad}
        if new:
            unread.append(unread_rows(rows, new, one.name))
            bad |= new.keys()
    if not bad:
        return given
    kept = np.setdiff1d(np.arange(len(rows) if isinstance(rows, ZSet) else rows.num_rows), sorted(bad))
    left = ZSet(rows.rows.take(pa.array(kept)), rows.weights[kept]) if isinstance(rows, ZSet) else rows.take(pa.array(kept))
    return PartlyRead(left, pa.concat_tables(unread, promote_options="default"))


def as_started(running: Sequence[Running], order: Sequence[str]) -> list[Running]:
    """Return queries in the order in which they were started, where the statement of a changed one comes behind others."""
    places = {name: at for at, name in enumerate(order)}
    found, last = [], -1
    for one in running:
        last = places.get(one.name, last)
        found.append((last, one))
    return [one for _, one in sorted(found, key=lambda pair: pair[0])]


def in_order(running: Sequence[Running]) -> list[Running]:
    """Return queries such that each comes after those that write what it reads; there are no circles."""
    ordered: list[Running] = []
    left = list(running)
    while left:
        written = {one.writes for one in left if one.writes is not None}
        ready = [one for one in left if not one.reads & written]
        ordered += ready
        left = [one for one in left if one not in ready]
    return ordered


def named_error(error: ZsetJoinError, running: Sequence[Running], outcome: str = NOTHING) -> ZsetJoinError:
    """Return an error that names the queries it comes from, one or more, and what became of the rows."""
    if error.facts.get("query") is not None:
        return error
    names = [one.name for one in running]
    shown = ", ".join(f'"{name}"' for name in names)
    about = error.message.removeprefix(f"{'view' if len(names) == 1 else 'views'} {shown}: ")
    message = f"{'query' if len(names) == 1 else 'queries'} {shown}: {about} {outcome}"
    facts = {name: fact for name, fact in error.facts.items() if name not in {"message", "code"}}
    return type(error)(message, code=error.code, **{**facts, "query": ", ".join(names)})


def combined(parts: Sequence[Rows]) -> Rows:
    """Return the rows that came from several writers as one delta, retractions first."""
    if len(parts) == 1:
        return parts[0]
    if not any(isinstance(one, ZSet) for one in parts):
        return pa.concat_tables(parts)
    deltas = [one if isinstance(one, ZSet) else _inserted(one) for one in parts]
    whole = ZSet.concat(deltas, schema=deltas[0].schema)
    order = np.argsort(whole.weights > 0, kind="stable")
    return ZSet(whole.rows.take(pa.array(order)), whole.weights[order])


def together(parts: Sequence[Rows | PartlyRead]) -> Rows | PartlyRead:
    """Return the rows of a table that came in parts, with what is known of those that could not be read."""
    rows = combined([one.rows if isinstance(one, PartlyRead) else one for one in parts])
    unread = [one.unread for one in parts if isinstance(one, PartlyRead)]
    return PartlyRead(rows, pa.concat_tables(unread, promote_options="default")) if unread else rows


def _inserted(rows: pa.Table) -> ZSet:
    return ZSet(single_batch(rows), np.ones(rows.num_rows, np.int64))
