"""Queries of a session in a directory that become others: ALTER and CREATE OR REPLACE of views.

The law: the queries that change, and the statement of it, become true by one commit record; stages that old and new plan
have in common keep their state and are fed nothing. What is refused leaves plan, statements and claims as they were.

Cost: that of `Pipeline.evolve`; of a query that writes into a table with a key, a `Pipeline.diff` before it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from zset_join.core.errors import SqlError
from zset_join.evolution.differences import PlanDiff
from zset_join.sql.dml.writing import table_written
from zset_join.sql.runtime.durable_plan import ROWS, DurablePlan
from zset_join.sql.runtime.durable_queries import OwnView
from zset_join.sql.runtime.in_process import change_lines, refuse_other_columns, refuse_replaced_rows
from zset_join.sql.tables.catalog import Table
from zset_join.sql.tables.results import Query, QueryChange, Running

__all__ = ["DurableChanges"]


class DurableChanges(DurablePlan):
    def change(self, change: QueryChange, *, is_preview: bool) -> list[str]:
        for running, query in change.queries.items():
            self._check_options(query)
            refuse_replaced_rows(running, query)
            if running.is_paused:
                refuse_other_columns(running, query)
        with self._replaced(change) as keep:
            if is_preview:
                diff: PlanDiff | None = self.pipeline.diff(self._wanted(), as_now=True)
            else:
                self._check_claims(change.queries)
                named = next((one for one in change.queries if one.name == change.name), next(iter(change.queries), None))
                try:
                    diff = self._change({}, of=named)
                finally:
                    keep()
                self._feed_written()
        return [] if diff is None else change_lines(diff, change.queries)

    def add_columns(self, table: Table, queries: Mapping[Running, Query], *, reread: Callable[[], str] | None = None) -> None:
        """Give a table more columns: one change of the plan, in which no query differs."""
        if not self.is_inserted(table) and self._is_given_again(table):
            raise SqlError(
                f'"{table.name}" is what a program registers; register it with the columns that it is to have.',
                code="NOT_OFFERED",
                name=table.name,
            )
        views, source = self._views, self._sources.pop(table.name, None)
        before = [(running, running.query, running.output, running.writer) for running in self.running]
        for running in self.running:
            running.query = queries.get(running, running.query)
            writer = table_written(running.output)
            if writer is not None and running.writes == table.name:
                running.output = running.writer = replace(writer, table=table)
        there = views.get(f"{ROWS}{table.name}")
        lacking = [] if there is None else [one for one in table.columns if one.name not in there.columns]
        defaults = {one.name: one.default.as_py() for one in lacking if one.default is not None}
        try:
            again = None if reread is None else {table.name: partial(self.rows_again, table, reread)}
            self._change({}, defaults={table.name: defaults} if defaults else None, reread=again)
        finally:
            if self._views is not views:
                self.claims.pop(table.name, None)
                if source is not None:
                    source.close()
            elif not self._is_restoring:
                for running, query, output, old in before:
                    running.query, running.output, running.writer = query, output, old
                if source is not None:
                    self._sources[table.name] = source

    @contextmanager
    def _replaced(self, change: QueryChange) -> Iterator[Callable[[], None]]:
        """Let queries be others meanwhile; and for good where the pipeline is of these when `keep` is called."""
        before = [(running, running.query, running.pipeline) for running in change.queries]
        views, is_kept = self._views, False

        def keep() -> None:
            nonlocal is_kept
            is_kept = self._views is not views

        self._replacing = change
        for running, query in change.queries.items():
            running.query = query
            if not running.is_paused:
                running.pipeline = OwnView(self._group, running.name, query.schema)
        try:
            yield keep
        finally:
            self._replacing = None
            if not is_kept:
                for running, old, view in before:
                    running.query, running.pipeline = old, view

    def _check_claims(self, changed: Iterable[Running]) -> None:
        """Refuse a change of queries after which two live rows would claim a key of a table."""
        writers = [one for one in changed if one.writer is not None and not one.is_paused]
        claims = {one: self._claims_beside(one) for one in writers}
        if not any(claims.values()):
            return
        diff = self.pipeline.diff(self._wanted(), as_now=True)
        by_table: dict[str, list[Running]] = {}
        for running in writers:
            if claims[running] is not None and running.writes is not None and diff.views[running.name].status == "changed":
                by_table.setdefault(running.writes, []).append(running)
        for queries in by_table.values():
            claimed = [(diff.views[one.name].delta, one.writer.names) for one in queries if one.writer is not None]
            held = claims[queries[0]]
            assert held is not None  # noqa: S101 - only these are listed
            held.check(claimed, queries[0].name)

    @abstractmethod
    def _check_options(self, query: Query) -> None:
        """Refuse settings that the pipeline cannot give a query."""

    @abstractmethod
    def _feed_written(self) -> None:
        """Let tables take the rows of queries that wait for them."""
