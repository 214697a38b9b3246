"""The tables of a session: the readers of those that connectors fill, what they hold, and what rows become on the way in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from zset_join.core.row_conversion import repeated_positions
from zset_join.evolution.refusals import bad_reread
from zset_join.query import View
from zset_join.runners.local.dead_letters import PartlyRead
from zset_join.runners.local.pipeline import Pipeline
from zset_join.sources.again import rows_again
from zset_join.sql.runtime.completing import completed, completed_table
from zset_join.sql.runtime.epoch_rows import Rows, together
from zset_join.sql.runtime.session_plan import ROWS, SessionPlan
from zset_join.sql.runtime.written_tables import is_fed
from zset_join.sql.tables.arrow_rows import of_table
from zset_join.sql.tables.catalog import Table
from zset_join.sql.tables.table_sources import TableSource
from zset_join.zset import ZSet

__all__ = ["SessionSources", "TableRows"]

_WAIT_SECONDS = 2.0


class SessionSources:
    """Hold the readers of a session, which change together with the plan.

    Args:
        tables: returns the tables of the plan that connectors fill.
        made: returns a reader of a table; with `is_kept`, one whose positions are kept.
        connects_at_once: a reader is opened when the plan has its table, not when it is read.

    Attributes:
        current: the readers by table.
    """

    def __init__(
        self, tables: Callable[[], Mapping[str, Table]], made: Callable[..., TableSource], *, connects_at_once: bool
    ) -> None:
        self.current: dict[str, TableSource] = {}
        self._tables, self._made, self._connects_at_once = tables, made, connects_at_once

    def opened(self, positions: Mapping[str, Any]) -> dict[str, TableSource]:
        """Return the readers of the present tables, at their positions; `settle` or `discard` comes next."""
        opened: dict[str, TableSource] = {}
        try:
            for name, table in self._tables().items():
                opened[name] = known = self.current.get(name) or self._made(table)
                if name not in self.current and self._connects_at_once:
                    known.open(positions.get(name))
        except BaseException:
            self.discard(opened)
            raise
        return opened

    def settle(self, opened: dict[str, TableSource]) -> None:
        """Continue with these readers, and close the others."""
        gone = {name: one for name, one in self.current.items() if name not in opened}
        self.current = opened
        _close(gone)

    def discard(self, opened: Mapping[str, TableSource]) -> None:
        """Close the new ones of these readers."""
        _close({name: one for name, one in opened.items() if name not in self.current})

    def poll(self, wait_seconds: float) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return new rows and the positions behind them, by table."""
        polled: dict[str, Any] = {}
        positions: dict[str, Any] = {}
        for name, source in self.current.items():
            # The first source may wait; after it the others are polled once.
            rows, position = source.poll(wait_seconds=0.02 if polled else wait_seconds)
            if rows is not None:
                polled[name], positions[name] = rows, position
        return polled, positions

    def read_again(self, positions: Mapping[str, Any]) -> None:
        """Go back to the positions of the rows that were taken."""
        for name, source in self.current.items():
            source.open(positions.get(name))

    def all_rows(self, table: Table) -> Iterator[Rows | PartlyRead]:
        """Yield all rows of a connector, for a table that no query reads."""
        source = self._made(table, is_kept=False)
        try:
            source.open(None)
            while (rows := source.poll(wait_seconds=_WAIT_SECONDS)[0]) is not None:
                yield rows
        finally:
            source.close()

    def close(self) -> None:
        _close(self.current)
        self.current = {}


class TableRows:
    """Read the rows of tables, and complete new ones.

    Args:
        pipeline: returns that of the session.
        plan: its views.
        sources: of tables that connectors fill.
        is_inserted: returns whether statements and programs fill a table.
        fed: returns a view over the tables as their sources give them.
        clock: returns the processing time.
        dialect: of computed columns.
    """

    def __init__(
        self,
        pipeline: Callable[[], Pipeline[dict[str, ZSet]]],
        plan: SessionPlan,
        sources: SessionSources,
        *,
        is_inserted: Callable[[Table], bool],
        fed: Callable[[View], View],
        clock: Callable[[], int],
        dialect: str,
    ) -> None:
        self._pipeline, self._plan, self._sources = pipeline, plan, sources
        self._is_inserted, self._fed, self._clock, self._dialect = is_inserted, fed, clock, dialect

    def completed(self, table: Table, rows: Rows, now_us: int) -> Rows:
        """Return rows of a program, statement or query with all columns of their table."""
        return completed(table, rows, now_us, self._dialect, self._plan.catalog.zone)

    def all_columns(self, table: Table, rows: pa.Table) -> pa.Table:
        """Return rows of a connector with all columns of their table."""
        return completed_table(table, rows, self._clock(), self._dialect, zone=self._plan.catalog.zone)

    def again(self, table: Table, place: Callable[[], str]) -> pa.Table:
        """Return the rows of a table that are at a place now, with all its columns.

        Raises:
            OptionError: `REREAD`: they cannot be read.
            SqlError: `SECRET_MISSING`: the place refers to a variable of the environment that is not set.
            StateError: `EVOLVE_REREAD`: they lack a column.
        """
        rows = rows_again(place())
        found = rows.column_names if isinstance(rows, pa.Table) else [*rows]
        missing = [one.name for one in table.columns if one.is_given and one.metadata is None and one.name not in found]
        if missing:
            raise bad_reread(table.name, f"have no column {', '.join(missing)}")
        known = [name for name in found if name in table.schema.names]
        chosen = rows.select(known) if isinstance(rows, pa.Table) else {name: rows[name] for name in known}
        return self.all_columns(table, of_table(table, chosen))

    def own(self, table: Table) -> ZSet:
        """Return the rows that a table holds, without those that queries have in the plan."""
        kept = self._plan.is_kept(table.name)
        return self._pipeline().contents(f"{ROWS}{table.name}") if kept else ZSet.empty(table.schema)

    def _read_whole(self, table: Table) -> Rows | PartlyRead | None:
        """Return the rows of a connector as the sources of a query take them."""
        view, read = self._fed(table.rows), self._sources.all_rows(table)
        if view is table.rows:
            parts = list(read)
            return together(parts) if parts else None
        with Pipeline(view) as pipeline:
            for rows in read:
                pipeline.step({table.name: rows}, processing_time=self._clock())
            return pipeline.contents()

    def held(self, table: Table) -> Rows | PartlyRead | None:
        """Return the rows of a table, those that queries write into it among them."""
        if not self._plan.is_kept(table.name):
            return None if self._is_inserted(table) else self._read_whole(table)
        held = self.own(table)
        parts = [held]
        for running in self._plan.running:
            if running.writer is not None and running.writes == table.name and not is_fed(running):
                rows = running.pipeline.contents()
                given = pa.RecordBatch.from_arrays(rows.rows.columns, names=list(running.writer.names))
                written = self.completed(table, ZSet(given, rows.weights), self._clock())
                assert isinstance(written, ZSet)  # noqa: S101 - as it was given
                parts.append(ZSet(written.rows.select(held.rows.schema.names), written.weights))
        whole = ZSet.concat(parts, schema=held.rows.schema)
        if table.mode != "append":
            return whole
        return pa.Table.from_batches([whole.rows]).take(pa.array(repeated_positions(whole.weights)))


def _close(sources: Mapping[str, TableSource]) -> None:
    for source in sources.values():
        source.close()
