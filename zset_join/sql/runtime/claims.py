"""Which rows of queries own the keys of the tables that they write.

Two live rows of queries never claim one key of a table, nor goes a row that no query retracts over a claimed key; see
`zset_join.sql.tables.key_claims`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zset_join.evolution.differences import PlanDiff
from zset_join.runners.local.dead_letters import PartlyRead
from zset_join.runners.local.prepared import PreparedEpoch
from zset_join.sql.runtime.epoch_rows import Rows
from zset_join.sql.tables.catalog import Catalog, Table
from zset_join.sql.tables.key_claims import Claimed, KeyClaims
from zset_join.sql.tables.results import Running, TableWriter
from zset_join.zset import ZSet

__all__ = ["TableClaims", "WrittenRows"]


@dataclass(frozen=True)
class WrittenRows:
    """Rows of a query that the table which it writes takes; see `zset_join.sql.runtime.written_tables.is_fed`."""

    running: Running
    writer: TableWriter
    delta: ZSet
    rows: Rows  # with all columns of the table

    def is_same(self, other: WrittenRows) -> bool:
        mine, its = self.delta, other.delta
        is_alike = self.running is other.running and len(mine) == len(its)
        return is_alike and bool((mine.weights == its.weights).all()) and mine.rows.equals(its.rows)


class TableClaims:
    """Count the claims of running queries, by table.

    Args:
        catalog: has the tables.
        running: the queries, as they are at every call.
        held: returns the rows that a table holds, perhaps with those of retracting queries.
    """

    def __init__(self, catalog: Catalog, running: list[Running], held: Callable[[Table], ZSet]) -> None:
        self._catalog, self._running, self._held = catalog, running, held
        self._tables: dict[str, KeyClaims] = {}

    def of(self, name: str) -> KeyClaims | None:
        """Return which keys of a table are claimed; None where no running query claims any."""
        table = self._catalog.tables.get(name)
        is_claimed = any(one.writes == name and one.retracts for one in self._running)
        if name not in self._tables and is_claimed and table is not None and table.primary_key:
            return self._begun(table, self._held(table))
        return self._tables.get(name)

    def beside(self, running: Running) -> KeyClaims | None:
        """Return which keys are claimed of the table that a query writes; None where no two rows may claim one."""
        writer = running.writer
        if writer is None or not writer.table.primary_key or not running.retracts:
            return None
        claims = self._tables.get(writer.table.name)
        if claims is not None:
            return claims
        others = [one for one in self._running if one.writes == running.writes and one is not running]
        key = running.query.bound.view.node.relation.primary_key
        held = self._held(writer.table)
        if not others and key and set(key) <= set(writer.table.primary_key) and not len(held):
            return None
        return self._begun(writer.table, held)

    def drop(self, name: str | None) -> None:
        """Forget the claims of a table; they are counted again when they are needed."""
        claims = None if name is None else self._tables.pop(name, None)
        if claims is not None:
            claims.close()

    def close(self) -> None:
        for name in [*self._tables]:
            self.drop(name)

    def count(self, running: Running, delta: ZSet) -> None:
        """Count a delta of a query that became another one."""
        if running.writer is not None and running.retracts and running.writes in self._tables:
            self._tables[running.writer.table.name].add([(delta, running.writer.names)])

    def check_change(self, changed: Iterable[Running], differences: Callable[[], PlanDiff]) -> None:
        """Refuse a change of queries after which two live rows would claim a key of a table."""
        writers = [one for one in changed if one.writer is not None and not one.is_paused]
        claims = {one: self.beside(one) for one in writers}
        if not any(claims.values()):
            return
        diff = differences()
        by_table: dict[str, list[Running]] = {}
        for running in writers:
            if claims[running] is not None and running.writes is not None and diff.views[running.name].status == "changed":
                by_table.setdefault(running.writes, []).append(running)
        for queries in by_table.values():
            claimed = [(diff.views[one.name].delta, one.writer.names) for one in queries if one.writer is not None]
            held = claims[queries[0]]
            assert held is not None  # noqa: S101 - only these are listed
            held.check(claimed, queries[0].name)

    def check_epoch(
        self, prepared: PreparedEpoch, given: Mapping[str, Any], written: Sequence[WrittenRows], origin: str
    ) -> list[Callable[[], None]]:
        """Refuse an epoch in which two live rows claim a key; return what counts its rows once it is taken.

        Args:
            prepared: the epoch.
            given: rows of tables that no query wrote.
            written: rows that tables take of queries.
            origin: where `given` comes from, for messages.
        """
        counts: list[Callable[[], None]] = []
        by_table: dict[str, list[Claimed]] = {}
        for running in self._running:
            claims = None if running.writes is None or running.is_paused else self._tables.get(running.writes)
            if claims is None or running.writer is None or not running.retracts:
                continue
            delta = running.answer_in(prepared)
            if len(delta):
                by_table.setdefault(running.writer.table.name, []).append((delta, running.writer.names))
                claims.check(by_table[running.writer.table.name], running.name)
        for name, claimed in by_table.items():
            counts.append(lambda name=name, claimed=claimed: self._tables[name].add(claimed))  # type: ignore[misc]
        others = [
            (one.writer.table.name, one.rows, f'the query "{one.running.name}"') for one in written if not one.running.retracts
        ]
        others += [(name, one.rows if isinstance(one, PartlyRead) else one, origin) for name, one in given.items()]
        for name, rows, whose in others:
            claims = self.of(name)
            if claims is not None:
                claims.check_others(rows, by_table.get(name, []), whose)
                counts.append(lambda claims=claims, rows=rows: claims.add_others(rows))  # type: ignore[misc]
        return counts

    def _begun(self, table: Table, held: ZSet) -> KeyClaims:
        """Count the rows of the queries that retract and write into a table, and of the others that it holds."""
        own: list[Claimed] = [
            (one.pipeline.contents(), one.writer.names)
            for one in self._running
            if one.writer is not None and one.writes == table.name and one.retracts
        ]
        claims = self._tables[table.name] = KeyClaims(table, held, own)
        return claims
