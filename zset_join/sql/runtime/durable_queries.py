"""The queries of a session with a directory: each reads its tables from its own position, and commits epochs with it.

The law: queries that share a table which a connector fills advance together: all answer what they have read, then all commit,
or none does and all read it again. With `on_bad_input = 'quarantine'` a row that one of them cannot evaluate by its own WHERE
or SELECT leaves the epoch of all of them.

Known limits: a query that was started later reads from its own position, so an epoch that fails may hold rows that the others
have taken before, and with quarantine such a row is a dead letter of that query alone: a row of an append-only source cannot be
retracted from the others. A crash between two commits leaves queries at different epochs; the next start goes on from both,
and each row is still judged by the steps of all queries of the group that run by then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from zset_join.core.errors import BadInputError, ZsetJoinError
from zset_join.pipeline import Pipeline
from zset_join.pipeline.dead_letters import PartlyRead
from zset_join.pipeline.prepared import PreparedEpoch
from zset_join.sql.dml.shared_epochs import accepted_rows, named_error
from zset_join.sql.tables.key_claims import KeyClaims
from zset_join.sql.tables.results import Running
from zset_join.sql.tables.table_sources import TableSource
from zset_join.zset import ZSet

__all__ = ["DurableRunning", "advance_together", "groups_of"]


@dataclass(eq=False)
class DurableRunning(Running):
    """A query that reads for itself.

    Args:
        pipeline: its own.
        sources: by the names of its tables.
        prepared: an epoch that it has answered already, and the rows of it.
    """

    pipeline: Pipeline
    sources: dict[str, TableSource] = field(default_factory=dict)
    prepared: tuple[Mapping[str, Any], PreparedEpoch] | None = None

    def poll(self, *, wait_seconds: float, only: set[str] | None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return by table the next rows, and the positions behind them."""
        rows: dict[str, Any] = {}
        positions: dict[str, Any] = {}
        for name, source in self.sources.items():
            if only is not None and name not in only:
                continue
            # The first source may wait; after it the others are polled once.
            taken, position = source.poll(wait_seconds=0.02 if rows else wait_seconds)
            if taken is not None:
                rows[name], positions[name] = taken, position
        return rows, positions

    def poll_missed(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return by table what came during a pause, and the positions behind it."""
        polled = {name: source.poll_missed() for name, source in self.sources.items()}
        taken = {name: (rows, position) for name, (rows, position) in polled.items() if rows is not None}
        return {name: rows for name, (rows, _) in taken.items()}, {name: position for name, (_, position) in taken.items()}

    def rewind(self) -> None:
        """Go back to the positions of the last epoch that was committed."""
        for name, source in self.sources.items():
            source.open(self.pipeline.positions.get(name))

    def answered(self, rows: Mapping[str, Any], now_us: int, claims: Mapping[str, KeyClaims]) -> PreparedEpoch:
        """Return an epoch, answered; the one that was prepared where that has the same rows."""
        held, self.prepared = self.prepared, None
        if held is not None:
            if held[0].keys() == rows.keys() and all(_is_same(held[0][name], one) for name, one in rows.items()):
                return held[1]
            held[1].close()
        prepared = self.pipeline.prepare(rows, processing_time=now_us)
        claimed = self._claims(claims)
        if claimed is not None and self.writer is not None and len(prepared.delta):
            try:
                if self.takes_back:
                    claimed.check([(prepared.delta, self.writer.names)], self.name)
                else:
                    claimed.check_others(self.writer.rows(prepared.delta), [], f'the query "{self.name}"')
            except BaseException:
                prepared.close()
                raise
        return prepared

    def commit(self, prepared: PreparedEpoch, positions: Mapping[str, Any], claims: Mapping[str, KeyClaims]) -> None:
        """Take an epoch, and the positions behind it."""
        claimed, before = self._claims(claims), self.pipeline.epoch
        try:
            delta = self.pipeline.commit(prepared, positions=positions)
        finally:
            if self.pipeline.epoch > before and claimed is not None and self.writer is not None and len(prepared.delta):
                if self.takes_back:
                    claimed.add([(prepared.delta, self.writer.names)])
                else:
                    claimed.add_others(self.writer.rows(prepared.delta))
        self.deltas.append(delta)
        if self.output is not None:
            self.output(delta)

    def take(
        self, rows: Mapping[str, Any], positions: Mapping[str, Any], now_us: int, *, claims: Mapping[str, KeyClaims]
    ) -> None:
        """Answer and take an epoch."""
        with self.answered(rows, now_us, claims) as prepared:
            self.commit(prepared, positions, claims)

    def close(self) -> None:
        """Close its sources and its state."""
        for source in self.sources.values():
            source.close()
        self.pipeline.close()

    def _claims(self, claims: Mapping[str, KeyClaims]) -> KeyClaims | None:
        return None if self.writes is None else claims.get(self.writes)


def advance_together(
    group: Sequence[DurableRunning],
    now_us: int,
    claims: Mapping[str, KeyClaims],
    *,
    wait_seconds: float,
    only: set[str] | None = None,
    is_behind: bool = False,
) -> bool:
    """Take an epoch of what has come in each query of a group, in all or in none; return whether there was something.

    Args:
        group: the queries.
        now_us: the processing time.
        claims: by table, which keys are claimed.
        wait_seconds: how long a source without rows is waited for.
        only: tables to read; None for all.
        is_behind: they were paused, and take what they missed at once.

    Raises:
        ZsetJoinError: what stopped it; what was read and not taken is read again by the next call.
    """
    try:
        polled = [(one, *(one.poll_missed() if is_behind else one.poll(wait_seconds=wait_seconds, only=only))) for one in group]
        with ExitStack() as stack:
            answered = []
            for running, rows, positions in polled:
                if not rows:
                    continue
                fed = {name: _accepted(group, running, name, one) for name, one in rows.items()} if len(group) > 1 else rows
                try:
                    prepared = stack.enter_context(_answered_alone(running, fed, now_us, claims))
                except ZsetJoinError as error:
                    raise named_error(error, [running], _REREAD) from error
                answered.append((running, prepared, positions))
            for running, prepared, positions in answered:
                running.commit(prepared, positions, claims)
    except BaseException:
        for one in group:
            one.rewind()
        raise
    return bool(answered)


def groups_of(running: Sequence[DurableRunning]) -> list[list[DurableRunning]]:
    """Return queries in groups: those that share a table, directly or through others, are in one."""
    groups: list[list[DurableRunning]] = []
    for one in running:
        shared = [group for group in groups if any(one.sources.keys() & other.sources.keys() for other in group)]
        groups = [group for group in groups if group not in shared]
        groups.append([*(other for group in shared for other in group), one])
    return groups


_REREAD = "None of the queries that share its tables took the rows; they are read again."


def _answered_alone(
    running: DurableRunning, rows: Mapping[str, Any], now_us: int, claims: Mapping[str, KeyClaims]
) -> PreparedEpoch:
    """Return an epoch, answered; where the query puts bad input aside, without the rows that its own steps raise for."""
    try:
        return running.answered(rows, now_us, claims)
    except BadInputError:
        fed = {name: _accepted([running], running, name, one) for name, one in rows.items()}
        if all(fed[name] is rows[name] for name in rows):
            raise
        return running.answered(fed, now_us, claims)


def _accepted(group: Sequence[DurableRunning], running: DurableRunning, name: str, rows: Any) -> Any:
    """Return what a query is fed of what it has read: rows that some query of its group cannot evaluate are put aside."""
    given = rows.rows if isinstance(rows, PartlyRead) else rows
    accepted = accepted_rows(group, name, given)
    if not accepted.aside:
        return rows
    tables = [rows.unread] if isinstance(rows, PartlyRead) else []
    tables += [accepted.aside[running.name]] if running.name in accepted.aside else []
    return PartlyRead(accepted.rows, pa.concat_tables(tables, promote_options="default")) if tables else accepted.rows


def _is_same(first: Any, second: Any) -> bool:
    """Return whether two are the same rows with the same weights, put aside the same; NaN counts as different."""
    if isinstance(first, PartlyRead) or isinstance(second, PartlyRead):
        if not (isinstance(first, PartlyRead) and isinstance(second, PartlyRead)):
            return False
        return first.unread.to_pylist() == second.unread.to_pylist() and _is_same(first.rows, second.rows)
    (rows, weights), (others, other_weights) = _parts(first), _parts(second)
    return rows.equals(others) and np.array_equal(weights, other_weights)


def _parts(rows: pa.Table | ZSet) -> tuple[pa.Table, Any]:
    if isinstance(rows, ZSet):
        return pa.Table.from_batches([rows.rows]), rows.weights
    return rows, np.ones(rows.num_rows, np.int64)
