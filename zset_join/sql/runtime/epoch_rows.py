"""Rows of an epoch of a session: those that every query can evaluate, rows of several writers, and errors that name queries.

With `on_bad_input = 'quarantine'` a row for which the own WHERE or SELECT of a query raises leaves the epoch, for all queries
and for the table, and is among its dead letters. What fails behind a join or a group fails the epoch.

Known limit: a row that a query of the session wrote is never set aside in the queries that read it; there the epoch fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from zset_join.core.errors import PlanError, ZsetJoinError
from zset_join.runners.local.dead_letters import PartlyRead
from zset_join.runners.local.failing_rows import failing_rows, unread_rows
from zset_join.sql.tables.results import Running
from zset_join.sql.tables.settings import stage_options
from zset_join.zset import ZSet, single_batch

__all__ = ["Rows", "accepted", "as_started", "combined", "in_order", "named_error", "together"]

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
