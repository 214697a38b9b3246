"""One INSERT as one epoch of all affected queries: all answer, then all absorb it, or none does.

    with SharedEpoch(session, now_us) as epoch:
        epoch.answer({"orders": rows})            nothing has changed
        epoch.commit()                            tables, then queries, then what they write outside

The law: where one query cannot answer, no table and no query has changed, and the error names the query. Queries that write
into tables of the session answer before those that read these, so a query that reads two changed tables has one epoch of both.

With `on_bad_input = 'quarantine'` a row for which the own WHERE or SELECT of a query raises leaves the epoch, for all queries
and for the table, and is among its dead letters. A row that the table cannot keep, as one with NULL in its key, is
a dead letter of every query that reads the table, and in memory there is a warning whether or not there is one. What fails
behind a join or a group fails the epoch.

Known limit: a row that a query of the session wrote is never set aside in the queries that read it; there the epoch fails.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from zset_join.core.errors import BadInputError, PlanError, ZsetJoinError
from zset_join.core.shown_values import counted
from zset_join.runners.local.dead_letters import PartlyRead
from zset_join.runners.local.failing_rows import failing_rows, unread_rows
from zset_join.runners.local.pipeline import Pipeline
from zset_join.runners.local.prepared import PreparedEpoch
from zset_join.sql.tables.catalog import Table
from zset_join.sql.tables.key_claims import Claimed, KeyClaims
from zset_join.sql.tables.results import Running
from zset_join.sql.tables.settings import stage_options
from zset_join.sql.tables.view_groups import GroupView
from zset_join.sql_expressions.positions import SqlWarning
from zset_join.zset import ZSet, single_batch

__all__ = ["Accepted", "SharedEpoch", "accepted_rows", "as_started", "combined", "failing_queries", "in_order", "named_error"]

Rows: TypeAlias = pa.Table | ZSet
_NOTHING = "No table and no query took any of the rows."
_PAUSE = "PAUSE MATERIALIZED VIEW lets the others take rows that one view cannot."


class EpochContext(Protocol):
    """Interface of a session for a shared epoch."""

    running: list[Running]
    claims: dict[str, KeyClaims]

    def table(self, name: str) -> Table:
        """Return a table."""
        ...

    def claims_of(self, name: str) -> KeyClaims | None:
        """Return which keys of a table are claimed; None where no running query claims any."""
        ...

    def completed(self, table: Table, rows: Rows, now_us: int) -> Rows:
        """Return rows with all columns of a table."""
        ...

    def table_pipeline(self, table: Table) -> Pipeline | None:
        """Return the pipeline that holds the rows of a table; None if there is none."""
        ...


@dataclass(frozen=True)
class Accepted:
    """Rows of a table that every query can evaluate."""

    rows: Rows
    aside: Mapping[str, pa.Table] = field(default_factory=dict)  # by query, the rows that failed in it
    places: Mapping[str, Sequence[int]] = field(default_factory=dict)  # by query, their numbers among all that arrived

    def of(self, queries: Sequence[Running]) -> Rows | PartlyRead:
        """Return the input of the pipeline of queries: the query that a row failed in lists it."""
        unread = [self.aside[running.name] for running in queries if running.name in self.aside]
        return PartlyRead(self.rows, pa.concat_tables(unread)) if unread else self.rows


@dataclass(frozen=True)
class _Answered:
    pipeline: Pipeline[Any]
    queries: Sequence[Running]
    rows: dict[str, Any]
    prepared: PreparedEpoch
    is_taken: bool = False  # the pipeline has taken it already: it is of queries that have become others

    def reached(self) -> list[Running]:
        """Return the queries that the epoch is one of: rows reach them, or they have rows to emit without."""
        if len(self.queries) == 1:
            return list(self.queries)
        return [one for one in self.queries if one.reads & self.rows.keys() or len(one.answer_in(self.prepared))]


class SharedEpoch(ExitStack):
    """Answer an epoch in all queries that it reaches, then commit it."""

    def __init__(self, session: EpochContext, now_us: int) -> None:
        super().__init__()
        self.prepared: list[_Answered] = []  # in the order in which they are committed
        self.accepted: dict[str, Accepted] = {}  # what was given, without the rows that were set aside
        self.tables: frozenset[str] = frozenset()
        self._session = session
        self._now_us = now_us
        self._tables: list[tuple[Pipeline, PreparedEpoch]] = []
        self._claimed: dict[str, list[Claimed]] = {}
        self._others: list[tuple[str, Rows, str]] = []

    def answer(
        self,
        given: Mapping[str, Rows],
        *,
        first: Mapping[Running, Mapping[str, Any]] | None = None,  # queries with an epoch in any case, and their input
        changed: Mapping[Running, PreparedEpoch] | None = None,  # each in a pipeline of its own, and its change
    ) -> None:
        self.accepted = {name: Accepted(rows) for name, rows in given.items()}
        try:
            self._answer(first or {}, changed or {})
        except BadInputError:
            aside = {name: accepted_rows(self._session.running, name, rows) for name, rows in given.items()}
            if not any(one.aside for one in aside.values()):
                raise
            self.close()
            self.prepared, self._tables, self._claimed, self._others, self.accepted = [], [], {}, [], aside
            self._answer(first or {}, changed or {})

    def commit(self) -> None:
        with ExitStack() as stack:  # queries may hold rows that their table writes: nobody reads them in between
            for pipeline in (*(table for table, _ in self._tables), *(one.pipeline for one in self.prepared)):
                stack.enter_context(pipeline.lock)
            self._commit()
        self._give_out()

    def _commit(self) -> None:
        for pipeline, prepared in self._tables:
            pipeline.commit(prepared)
        for one in self.prepared:
            if not one.is_taken:
                one.pipeline.commit(one.prepared)
            for running in one.reached():
                delta = running.answer_in(one.prepared)
                running.deltas.append(delta)
                if running.writer is not None and running.retracts and running.writer.table.name in self._session.claims:
                    self._session.claims[running.writer.table.name].add([(delta, running.writer.names)])
        self.claim_others()

    def _give_out(self) -> None:
        failed: list[Exception] = []
        for one in self.prepared:
            for running in one.reached():
                if running.output is not None and running.writer is None:
                    try:
                        running.output(running.answer_in(one.prepared))
                    except Exception as error:  # noqa: BLE001 - raised below; the other outputs have this epoch too
                        failed.append(error)
        for one in self.prepared:
            for running in one.reached():
                if isinstance(running.pipeline, GroupView):
                    running.pipeline.took()
        for pipeline, _ in self._tables:
            _warn_of(next(iter(pipeline.sources)), pipeline.dead_letters)
        if failed:
            raise failed[0]

    def claim_others(self) -> None:
        """Count the rows that the epoch brings to tables and that no retracting query wrote, once the tables have them."""
        for name, rows, _ in self._others:
            claims = self._session.claims_of(name)
            if claims is not None:
                claims.add_others(rows)

    def _answer(self, first: Mapping[Running, Mapping[str, Any]], changed: Mapping[Running, PreparedEpoch]) -> None:
        fed: dict[str, list[Accepted]] = {name: [one] for name, one in self.accepted.items()}
        self._others = [(name, one.rows, "the INSERT") for name, one in self.accepted.items()]
        tables = {name: self._session.table(name) for name in fed}
        begun = [one for one in (*first, *changed) if one not in self._session.running]
        for queries in _pipelines([*self._session.running, *begun]):
            own = next((first[one] for one in queries if one in first), None)
            change = next((changed[one] for one in queries if one in changed), None)
            rows: dict[str, Any] = dict(own or {})
            reads = frozenset[str]().union(*(running.reads for running in queries))
            for name in sorted(reads & fed.keys() & set(queries[0].whole.sources)):
                rows[name] = fed[name][0].of(queries) if len(fed[name]) == 1 else combined([one.rows for one in fed[name]])
            if not rows and own is None and change is None:
                continue
            whole = queries[0].whole
            try:
                prepared = change or self.enter_context(whole.prepare(rows, processing_time=self._now_us))
            except ZsetJoinError as error:
                outcome = _NOTHING if len(self._session.running) == 1 else f"{_NOTHING} {_PAUSE}"
                raise named_error(error, failing_queries(error, queries), outcome) from error
            self.prepared.append(_Answered(whole, queries, rows, prepared, is_taken=change is not None))
            running = queries[0]  # one that writes into a table has a pipeline of its own
            writer = running.writer
            if writer is None or not len(running.answer_in(prepared)):
                continue
            claims = self._session.claims.get(writer.table.name)
            if claims is not None and running.retracts:
                claimed = [*self._claimed.get(writer.table.name, ()), (running.answer_in(prepared), writer.names)]
                claims.check(claimed, running.name)
                self._claimed[writer.table.name] = claimed
            written = self._session.completed(writer.table, writer.rows(running.answer_in(prepared)), self._now_us)
            fed.setdefault(writer.table.name, []).append(Accepted(written))
            if not running.retracts:
                self._others.append((writer.table.name, written, f'the query "{running.name}"'))
            tables[writer.table.name] = writer.table
        self._check_others()
        self.tables = frozenset(fed)
        for name, parts in fed.items():
            pipeline = self._session.table_pipeline(tables[name])
            if pipeline is not None:
                rows_of_table = combined([one.rows for one in parts])
                prepared = self.enter_context(pipeline.prepare({name: rows_of_table}, processing_time=self._now_us))
                self._tables.append((pipeline, prepared))

    def _check_others(self) -> None:
        """Refuse rows of a statement, or of queries that never retract, over the keys of those that do."""
        for name, rows, origin in self._others:
            claims = self._session.claims_of(name)
            if claims is None:
                continue
            claimed = [
                (running.answer_in(one.prepared), running.writer.names)
                for one in self.prepared
                for running in one.queries
                if running.writer is not None
                and running.writes == name
                and running.retracts
                and len(running.answer_in(one.prepared))
            ]
            claims.check_others(rows, claimed, origin)


def accepted_rows(running: Iterable[Running], name: str, rows: Rows) -> Accepted:
    """Return the rows of a table without those for which the own steps of a query that puts bad input aside raise."""
    aside: dict[str, pa.Table] = {}
    places: dict[str, list[int]] = {}
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
            aside[one.name] = unread_rows(rows, new, one.name)
            places[one.name] = sorted(new)
            bad |= new.keys()
    if not bad:
        return Accepted(rows)
    kept = np.setdiff1d(np.arange(len(rows) if isinstance(rows, ZSet) else rows.num_rows), sorted(bad))
    if isinstance(rows, ZSet):
        return Accepted(ZSet(rows.rows.take(pa.array(kept)), rows.weights[kept]), aside, places)
    return Accepted(rows.take(pa.array(kept)), aside, places)


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


def _pipelines(running: Sequence[Running]) -> list[list[Running]]:
    """Return the queries of each pipeline, those that write what others read first; queries that share one write no table."""
    by_pipeline: dict[int, list[Running]] = {}
    for one in (one for one in in_order(running) if not one.is_paused):
        by_pipeline.setdefault(id(one.whole), []).append(one)
    return sorted(by_pipeline.values(), key=lambda queries: len(queries) > 1)


def failing_queries(error: ZsetJoinError, queries: Sequence[Running]) -> Sequence[Running]:
    """Return the queries of a pipeline that cannot be answered."""
    names = error.facts.get("views", ())
    return [one for one in queries if one.name in names] or queries


def named_error(error: ZsetJoinError, running: Sequence[Running], outcome: str = _NOTHING) -> ZsetJoinError:
    """Return an error that names the queries it comes from, one or more, and what became of the rows."""
    if error.facts.get("query") is not None:
        return error
    names = [one.name for one in running]
    shown = ", ".join(f'"{name}"' for name in names)
    about = error.message.removeprefix(f"{'view' if len(names) == 1 else 'views'} {shown}: ")
    message = f"{'query' if len(names) == 1 else 'queries'} {shown}: {about} {outcome}"
    facts = {name: fact for name, fact in error.facts.items() if name not in {"message", "code"}}
    return type(error)(message, code=error.code, **{**facts, "query": ", ".join(names)})


def _warn_of(table: str, letters: pa.Table) -> None:
    """Warn of rows that a table did not take; where no query reads it, nothing else lists them."""
    if letters.num_rows:
        first = letters.slice(0, 1).to_pylist()[0]
        warnings.warn(
            SqlWarning(
                f'table "{table}": {counted(letters.num_rows, "row")} quarantined, the first, {first["row"]}: '
                f"[{first['code']}] {first['reason']}"
            ),
            stacklevel=6,
        )


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


def _inserted(rows: pa.Table) -> ZSet:
    return ZSet(single_batch(rows), np.ones(rows.num_rows, np.int64))
