"""Shared part of the in-process runtimes: which rows of queries own the keys of the tables that they write.

Two live rows of queries never claim one key of a table, nor goes a row that no query retracts over a claimed key; see
`zset_join.sql.tables.key_claims`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable

import pyarrow as pa

from zset_join.core.errors import SqlError
from zset_join.evolution.differences import PlanDiff
from zset_join.plan.tree import Node, depends_on_arrival, started
from zset_join.runners.local.pipeline import Pipeline
from zset_join.sql.runtime.runtime import Runtime
from zset_join.sql.tables.catalog import Catalog, Table
from zset_join.sql.tables.key_claims import Claimed, KeyClaims
from zset_join.sql.tables.results import Query, Running
from zset_join.sql.tables.settings import stage_options
from zset_join.stages.own_options import own_of
from zset_join.stages.stage import StageOptions
from zset_join.zset import ZSet

__all__ = ["ProcessRuntime", "change_lines", "refuse_other_columns", "refuse_replaced_rows"]


class ProcessRuntime(Runtime):
    def __init__(self, catalog: Catalog, *, dialect: str, clock: Callable[[], int] | None, keep_inputs: bool = False) -> None:
        super().__init__(catalog, dialect=dialect, clock=clock)
        self.claims: dict[str, KeyClaims] = {}
        self._keep_inputs = keep_inputs

    def table_pipeline(self, table: Table) -> Pipeline | None:  # noqa: ARG002 - in memory
        """Return the pipeline with the rows of a table; None if they are in files or not kept."""
        return None

    def _views_read(self, query: Query) -> list[Running]:
        """Return the queries of the materialized views that a query reads, without those that only these read."""
        found: dict[str, Running] = {}
        waiting, views = [*query.bound.names], self.catalog.views
        kept = {one.name: one for one in self._kept if one.name in views and views[one.name].is_materialized}
        while waiting:
            name = waiting.pop()
            if name in kept:
                found[name] = kept[name]
            elif name in views:
                waiting += views[name].query.names
        return [found[name] for name in sorted(found)]

    def _reads_state(self, query: Query) -> list[Running]:
        """Return the running queries whose rows a query reads, where the tables alone do not show what these are."""
        read = [one for one in self._views_read(query) if one in self.running and not one.is_paused]
        return [one for one in read if depends_on_arrival(self.catalog.views[one.name].query.view.node)]

    @property
    def _kept(self) -> list[Running]:
        """Return the queries whose state others may read."""
        return self.running

    def _started(self, query: Query, node: Node, known: StageOptions, since: int = 0) -> Node:
        """Return rows of a query as it is run: the materialized views in it are those that run.

        Args:
            query: the query.
            node: it, or the same query as others read it.
            known: options of the pipeline; the query has its own where they differ.
            since: the epoch at which it came.
        """
        others = dict[int, Node]()
        for one in self._views_read(query):
            view = self.catalog.views[one.name].query.view.node
            others[id(view)] = self._started(one.query, view, known, one.since)
        own = own_of(stage_options(query.settings))
        return started(node, since=since, own=None if own == own_of(known) else own, others=others)

    def close(self) -> None:
        for running in list(self.running):
            self.stop(running)
        for claims in self.claims.values():
            claims.close()
        self.claims = {}

    def _unclaim(self, running: Running) -> None:
        """Forget what a query claimed; what it wrote stays in the table, and claims nothing."""
        if running.writer is not None and running.retracts and running.writer.table.name in self.claims:
            rows = running.pipeline.contents()
            if len(rows):
                self.claims[running.writer.table.name].add([(ZSet(rows.rows, -rows.weights), running.writer.names)])

    def _claim(self, running: Running) -> None:
        """Count which rows of a query claim keys of the table that it writes."""
        claims = self._claims_beside(running)
        if claims is not None and running.writer is not None:
            claims.add([(running.pipeline.contents(), running.writer.names)])

    def _claims_beside(self, running: Running) -> KeyClaims | None:
        """Return which keys are claimed of the table that a query writes; None where no two rows may claim one."""
        writer = running.writer
        if writer is None or not writer.table.primary_key or not running.retracts:
            return None
        claims = self.claims.get(writer.table.name)
        if claims is not None:
            return claims
        others = [one for one in self.running if one.writes == running.writes and one is not running]
        key = running.query.bound.view.node.relation.primary_key
        held = self._rows_held(writer.table)
        if not others and key and set(key) <= set(writer.table.primary_key) and held is None:
            return None
        return self._claims_begun(writer.table, held)

    def claims_of(self, name: str) -> KeyClaims | None:
        table = self.catalog.tables.get(name)
        is_claimed = any(one.writes == name and one.retracts for one in self.running)
        if name not in self.claims and is_claimed and table is not None and table.primary_key:
            return self._claims_begun(table, self._rows_held(table))
        return self.claims.get(name)

    def _claims_begun(self, table: Table, held: pa.Table | ZSet | None) -> KeyClaims:
        """Count the rows of the queries that retract and write into a table, and of the others that it holds."""
        own: list[Claimed] = [
            (one.pipeline.contents(), one.writer.names)
            for one in self.running
            if one.writer is not None and one.writes == table.name and one.retracts
        ]
        claims = self.claims[table.name] = KeyClaims(table, table.schema.empty_table() if held is None else held, own)
        return claims

    @abstractmethod
    def _rows_held(self, table: Table) -> pa.Table | ZSet | None:
        """Return the rows that a table holds, perhaps with those of retracting queries; None for none."""


def change_lines(diff: PlanDiff, queries: Iterable[Running]) -> list[str]:
    """Return the effect of a change: on stages, on each query, and on rows that are in none."""
    first, *_ = diff.lines()
    views = [str(diff.views[one.name]) for one in queries if one.name in diff.views]
    return [first, *views, *diff.notes()] if views else []


def refuse_replaced_rows(running: Running, query: Query) -> None:
    """Refuse a change of a query whose rows replace one another in its table: what it wrote before stays there."""
    if running.writer is None or not running.writer.table.primary_key:
        return
    still_retracts = query.bound.view.node.relation.mode != "append"
    if not (running.retracts and still_retracts):
        raise SqlError(
            f'"{running.name}" writes rows into "{running.writes}" that replace one another and are never retracted, so the '
            "table would keep those of the previous query. DROP it, and CREATE it again.",
            code="NOT_OFFERED",
            name=running.name,
        )


def refuse_other_columns(running: Running, query: Query) -> None:
    """Refuse other columns of a query that cannot have them now."""
    before, after = running.query.schema, query.schema
    if (before.names, before.types) != (after.names, after.types):
        raise SqlError(
            f'"{running.name}" is paused and holds rows with other columns. RESUME MATERIALIZED VIEW {running.name} first.',
            code="NOT_OFFERED",
            name=running.name,
        )
