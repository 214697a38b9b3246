"""The epochs of a session: rows of tables, and those that queries write into tables by them, for all queries or for none."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from zset_join.core.errors import BadInputError, ZsetJoinError
from zset_join.core.shown_values import counted
from zset_join.evolution.differences import PlanDiff
from zset_join.runners.local.pipeline import Pipeline
from zset_join.runners.local.prepared import PreparedEpoch
from zset_join.sql.runtime.claims import TableClaims, WrittenRows
from zset_join.sql.runtime.written_tables import NOTHING, Rows, accepted, is_fed, named_error, together
from zset_join.sql.tables.catalog import Table
from zset_join.sql.tables.connectors import SinkWriter
from zset_join.sql.tables.results import Running
from zset_join.sql_expressions.consumed import SqlWarning
from zset_join.zset import ZSet

__all__ = ["SessionEpochs"]

_PAUSE = "PAUSE MATERIALIZED VIEW lets the others take rows that one view cannot."


class SessionEpochs:
    """Take rows as epochs of the pipeline of a session, and show what all queries have taken.

    Attributes:
        unfed: rows that queries have for tables since a change of the plan.
    """

    def __init__(
        self,
        pipeline: Callable[[], Pipeline[dict[str, ZSet]]],
        running: list[Running],
        claims: TableClaims,
        *,
        completed: Callable[[Table, Rows, int], Rows],
        clock: Callable[[], int],
        lists_unread: bool,
    ) -> None:
        self.unfed: list[WrittenRows] = []
        self._given, self._running, self._claims = pipeline, running, claims
        self._completed, self._clock, self._lists_unread = completed, clock, lists_unread
        self._seen: Mapping[str, Callable[[], pa.Table]] = {}

    @property
    def _pipeline(self) -> Pipeline[dict[str, ZSet]]:
        return self._given()

    def views(self) -> dict[str, pa.Table]:
        """Return the contents of all running queries after one common epoch."""
        return {name: read() for name, read in self._seen.items()}

    def publish(self) -> None:
        """Make an epoch visible that all queries have taken: one assignment."""
        self._seen = {running.name: running.pipeline.seen() for running in self._running}

    def show_change(self, diff: PlanDiff) -> None:
        """Show what a change of the plan gave; its rows for tables are `unfed`."""
        failed: list[Exception] = []
        for running in self._running:
            change = diff.views.get(running.name)
            if change is not None and change.status != "unchanged" and not running.is_paused:
                delta = change.added if change.status in {"added", "columns"} else change.delta
                if change.status == "columns":
                    running.deltas.clear()
                failed += _emit(running, delta)
                self.unfed += self._written_rows([(running, delta)], self._clock())
                if change.status != "added":
                    self._claims.count(running, delta)
                running.pipeline.took()
        self.publish()
        if failed:
            raise failed[0]

    def feed_written(self) -> None:
        """Let tables take the rows that queries have for them since a change of the plan."""
        if self.unfed:
            self.take({}, self._clock(), origin=f'the query "{self.unfed[0].running.name}"')

    def restore_written(self) -> None:
        """Find what the last change of the plan has for tables: a process that died had not given it to them."""
        pipeline = self._pipeline
        is_of_change = pipeline.epoch and pipeline.positions.get("changed") == pipeline.epoch - 1
        if is_of_change and any(is_fed(one) for one in self._running):
            answers = pipeline.step(epoch=pipeline.epoch - 1)
            there = [(one, answers[one.name]) for one in self._running if one.name in answers]
            self.unfed += self._written_rows(there, self._clock())
            self.feed_written()

    def take(
        self,
        rows: Mapping[str, Any],
        now_us: int,
        *,
        positions: Mapping[str, Any] | None = None,
        once: str | None = None,
        origin: str = "the INSERT",
    ) -> None:
        """Take rows of tables as one epoch, with what queries write into tables by it, or nothing."""
        pipeline, taken = self._pipeline, rows
        try:
            prepared, written = self._prepared(rows, now_us)
        except BadInputError as error:
            taken = {name: accepted(self._running, name, one) for name, one in rows.items()}
            if all(taken[name] is rows[name] for name in rows):
                raise self._named(error) from error
            try:
                prepared, written = self._prepared(taken, now_us)
            except BadInputError as again:
                raise self._named(again) from again
        except ZsetJoinError as error:
            raise self._named(error) from error
        with prepared:
            counts = self._claims.check_epoch(prepared, taken, written, origin)
            before, epoch = pipeline.positions, pipeline.epoch
            known = {
                **before,
                "read": {**before.get("read", {}), **(positions or {})},
                "once": [*before.get("once", ()), *([] if once is None else [once])],
                "fed": sorted({*before.get("fed", ()), *rows, *(one.writer.table.name for one in written)}),
            }
            try:
                pipeline.commit(prepared, positions=known)
            finally:
                if pipeline.epoch > epoch:
                    self.unfed = []
                    self._took(prepared, counts)

    def _prepared(self, rows: Mapping[str, Any], now_us: int) -> tuple[PreparedEpoch, list[WrittenRows]]:
        """Answer an epoch of rows, and of those that queries write into tables by it."""
        written = list(self.unfed)
        writers = [one for one in self._running if is_fed(one) and not one.is_paused]
        for _ in writers:  # until the answer has no other rows for tables: one query may read what another one writes
            prepared = self._pipeline.prepare(self._together(rows, written), processing_time=now_us)
            answers = [(one, one.answer_in(prepared)) for one in writers]
            found = [*self.unfed, *self._written_rows(answers, now_us)]
            if len(found) == len(written) and all(one.is_same(other) for one, other in zip(found, written, strict=True)):
                return prepared, written
            prepared.close()
            written = found
        return self._pipeline.prepare(self._together(rows, written), processing_time=now_us), written

    def _written_rows(self, answers: Sequence[tuple[Running, ZSet]], now_us: int) -> list[WrittenRows]:
        """Return the rows that tables take of answers of queries."""
        return [
            WrittenRows(running, writer, delta, self._completed(writer.table, writer.rows(delta), now_us))
            for running, delta in answers
            if (writer := running.writer) is not None and is_fed(running) and len(delta)
        ]

    def _together(self, rows: Mapping[str, Any], written: Sequence[WrittenRows]) -> dict[str, Any]:
        parts: dict[str, list[Any]] = {name: [one] for name, one in rows.items()}
        for one in written:
            parts.setdefault(one.writer.table.name, []).append(one.rows)
        return {name: together(given) for name, given in parts.items() if name in self._pipeline.sources}

    def _took(self, prepared: PreparedEpoch, counts: Sequence[Callable[[], None]]) -> None:
        """Show an epoch that counts."""
        for count in counts:
            count()
        failed: list[Exception] = []
        for running in self._running:
            if not running.is_paused:
                failed += _emit(running, running.answer_in(prepared))
                running.pipeline.took()
        self._warn_of_unlisted()
        self.publish()
        if failed:
            raise failed[0]

    def _warn_of_unlisted(self) -> None:
        """Warn of rows that a table did not take and that no query lists, and in memory of records that cannot be read."""
        letters = self._pipeline.dead_letters
        listed = frozenset[str]().union(*(one.reads for one in self._running))
        unlisted: dict[str, list[dict[str, Any]]] = {}
        for one in letters.to_pylist() if letters.num_rows else ():
            is_lost = not self._lists_unread and one["code"].startswith("UNDECODABLE")
            if is_lost or one["source"] not in listed:
                unlisted.setdefault(one["source"], []).append(one)
        for name, (first, *more) in unlisted.items():
            place = f" ({first['topic']}, partition {first['partition']}, offset {first['offset']})"
            where = (place if first["topic"] is not None else "") if first["row"] is None else f", {first['row']}"
            count = counted(1 + len(more), "record" if first["row"] is None else "row")
            text = f'table "{name}": {count} quarantined, the first{where}: [{first["code"]}] {first["reason"]}'
            warnings.warn(SqlWarning(text), stacklevel=6)

    def _named(self, error: ZsetJoinError) -> ZsetJoinError:
        """Return an error that names the queries that cannot be answered, where it is of these."""
        names = set(error.facts.get("views", ()))
        going = [one for one in self._running if one.name in names]
        outcome = NOTHING if len(self._running) == 1 else f"{NOTHING} {_PAUSE}"
        return named_error(error, going, outcome) if going else error


def _emit(running: Running, delta: ZSet) -> list[Exception]:
    """Give a delta to the program that reads a query; return its error, which stops no other query."""
    running.deltas.append(delta)
    if running.output is not None and running.writer is None and not isinstance(running.output, SinkWriter):
        try:
            running.output(delta)
        except Exception as error:  # noqa: BLE001 - the caller raises it behind the other queries
            return [error]
    return []
