"""Move the state of a stopped query between the two modes: executors and driver.

    every state: its buckets, as an epoch would find them -> the tables of the other mode, one bucket -> a snapshot, read back
      -> one record that makes all of it true

The law: the query answers afterwards what it would have answered, row for row as a Z-set. Until the record is there nothing has
changed: a process that dies on the way leaves the old mode. Nothing is removed before the query has committed its next epoch.

What the other mode's plan is, and which state is which, the program has written down (`planning/other_mode.py`); no program
and no Spark session is needed here. On executors the query has one bucket then; `rescale` gives it more.

Memory: the whole state as Arrow data, twice. Disk: a second set of snapshots.

Limits: refused are stages that wait for a time, queries that drop rows at a limit, and those that were changed in place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from zset_join.checkpoint.bucket import BucketState
from zset_join.checkpoint.checkpoint import Checkpoint
from zset_join.checkpoint.files import attempt_name
from zset_join.checkpoint.owner import Ownership
from zset_join.checkpoint.reading import (
    checkpoint_folder,
    no_checkpoint,
    read_committed,
    stored_description,
    stored_plan,
    stored_query_id,
)
from zset_join.checkpoint.record import BucketHistory, ChangedPlan
from zset_join.checkpoint.snapshot import read_snapshot, write_snapshot
from zset_join.core.epochs import Tick
from zset_join.core.errors import OptionError, StateError
from zset_join.core.options import QueryOptions
from zset_join.core.progress_line import progress_line
from zset_join.core.shown_values import counted
from zset_join.runners.spark.driver.choosing import stored_mode
from zset_join.runners.spark.driver.moved_tables import MovedTables, StateTables, stages_by_name
from zset_join.runners.spark.driver.on_server import once_free
from zset_join.runners.spark.epoch.batches import is_completed
from zset_join.runners.spark.planning.other_mode import OtherMode, StatePair, description_digest, read_other_mode
from zset_join.stages import StageOptions
from zset_join.state.rows.directories import seed_of_query

__all__ = ["MoveReport", "move"]

_FOLDING = StageOptions(on_bad_input="quarantine", tombstone_retention_seconds=100_000 * 86_400)


@dataclass(frozen=True, kw_only=True)
class MoveReport:
    """Report of `move`.

    Args:
        before: the mode that the checkpoint had.
        execution: the one that it has.
        epoch: the last committed epoch, of the moved state.
        rows: rows, deleted keys and groups that were moved, over all states; 0 if nothing was to be done.
    """

    before: str
    execution: str
    epoch: int | None
    rows: int

    def __str__(self) -> str:
        if self.before == self.execution:
            return f'the query runs with execution="{self.execution}" already; nothing was done'
        return f"moved from {self.before} to {self.execution}: {counted(self.rows, 'row')}, after epoch {self.epoch}"


@progress_line("moving the state")
def move(checkpoint: str | Path, *, execution: str, local_state_dir: str | None = None) -> MoveReport:
    """Let a stopped query continue in the other mode.

    A checkpoint of this mode is left unchanged, so the call may be repeated. Start the query with the same option afterwards.

    Args:
        checkpoint: `checkpointLocation` of the query, a path or a URI.
        execution: `driver` or `executors`.
        local_state_dir: `localStateDir` of the query; state that is present is used.

    Returns:
        A report; `print` shows it.

    Raises:
        OptionError: an argument that is not allowed.
        StateError: there is no checkpoint, a driver runs on it, a file of it is damaged, or the state cannot be moved
            (`MOVE_UNKNOWN`, `MOVE_REFUSED`, `EPOCH_UNFINISHED`); nothing was changed.

    Cost: every live row is read and written once, in this process.
    """
    if execution not in ("driver", "executors"):
        raise OptionError(f'execution={execution!r}: expected "driver" or "executors".', code="ARGUMENT", value=execution)
    options = QueryOptions.from_options({"checkpointLocation": checkpoint, "localStateDir": local_state_dir})
    location = options.checkpoint_location
    query_id, description = stored_query_id(location), stored_description(location)
    if query_id is None or description is None:
        raise no_checkpoint(location)
    before, committed = stored_mode(location), read_committed(location)
    if before is None or committed is None:
        raise no_checkpoint(location)
    if before == execution:
        last = committed.last
        return MoveReport(before=before, execution=execution, epoch=None if last is None else last.epoch, rows=0)
    # A server of Connect may still close what its last query held.
    owner = once_free(lambda: Ownership.claim(checkpoint_folder(location), query_id))
    try:
        opened = Checkpoint(
            location,
            query_id=query_id,
            buckets=committed.buckets,
            description=description,
            local_state_dir=options.local_state_dir,
            owner=owner,
        )
        other = _other_mode(opened, location, description, execution)
        rows = _Move(opened, location, other).done()
        epoch = None if opened.last is None else opened.last.epoch
        return MoveReport(before=before, execution=execution, epoch=epoch, rows=rows)
    finally:
        owner.release()


def _other_mode(opened: Checkpoint, location: str, description: Mapping[str, Any], execution: str) -> OtherMode:
    other = read_other_mode(opened.files.folder)
    if other is None or other.of != description_digest(description) or other.mode != execution:
        raise StateError(
            f'the checkpoint {location} does not hold what its query would be with execution="{execution}": it was used by '
            "an older version of the library, or was changed since. Start the query once with this version and stop it; over "
            "Spark Connect, once an epoch has run.",
            code="MOVE_UNKNOWN",
            location=location,
            expected=execution,
        )
    reason = other.refused or _reason(opened, other)
    if reason is not None:
        raise StateError(
            f'the state of the query in {location} cannot be moved to execution="{execution}": {reason}. Nothing was changed. '
            "Keep the mode, or start the query with a new checkpointLocation and a new output.",
            code="MOVE_REFUSED",
            location=location,
            reason=reason,
        )
    if opened.last is not None and not is_completed(location, opened.last.epoch):
        raise StateError(
            f"epoch {opened.last.epoch} of the query in {location} is committed, and its outputs may lack it: Spark has not "
            "completed it. Nothing was changed. Start the query once in the mode that it has, stop it, and call this again.",
            code="EPOCH_UNFINISHED",
            epoch=opened.last.epoch,
        )
    return other


def _reason(opened: Checkpoint, other: OtherMode) -> str | None:
    """Return why a state cannot be moved, as far as the checkpoint shows."""
    if opened.last is None:
        return "no epoch is committed"
    if opened.changed is not None and opened.changed.changes:
        return "the query was changed in place, which executors do not follow"
    if other.description.get("keeps_inputs"):
        return "with retainInputLog the driver keeps everything that came, from the first epoch on; start it without"
    if opened.last.dues:
        return "stages wait for a time"
    return None


class _Move:
    """Move all states of a checkpoint."""

    def __init__(self, opened: Checkpoint, location: str, other: OtherMode) -> None:
        assert opened.last is not None  # noqa: S101 - the caller looks
        self._opened, self._last, self._other = opened, opened.last, other
        self._before = stages_by_name(stored_plan(location))
        self._after = stages_by_name(other.plan)
        self._options = replace(_FOLDING, hash_seed=seed_of_query(opened.query_id))

    def done(self) -> int:
        """Write the snapshots of the other mode and the record that makes them true; return the rows moved."""
        histories: dict[str, BucketHistory] = {}
        rows = 0
        for pair in self._other.pairs:
            for name, tables in self._moved(pair).items():
                rows += sum(table.num_rows for table in tables.values())
                histories[f"{name}/0"] = self._written(name, tables)
        changed = ChangedPlan(
            epoch=-1,
            changes=0,
            before=self._last.plan,
            description=self._other.description,
            plan=self._other.plan,
            sources=self._other.sources,
            bare_view="",  # one view, which is moved: its outputs stay those of the query alone
            note={"moved": self._other.mode},
        )
        self._opened.rescale(1, histories, changed)
        return rows

    def _moved(self, pair: StatePair) -> Mapping[str, StateTables]:
        """Return the tables of a state in the other mode, and of its routes, by the names of the states."""
        moved = MovedTables(
            before=self._before, after=self._after, options=self._options, epoch=self._last.epoch, read=self._read
        )
        return {pair.driver: moved.to_driver(pair)} if self._other.mode == "driver" else moved.to_executors(pair)

    def _read(self, name: str) -> dict[str, list[pa.Table]]:
        """Return the tables of a state after the last epoch, one per bucket."""
        stage, opened, last = self._before[name], self._opened, self._last
        context = opened.stage(name, Tick(last.epoch + 1, last.processing_time_us))
        context = replace(context, snapshot_buckets=frozenset(), merge_buckets=frozenset())
        found: dict[str, list[pa.Table]] = {}
        for bucket in range(opened.buckets):
            with BucketState(context, bucket, partial(stage.build, self._options)) as state:
                for table, rows in state.operator.snapshot().items():
                    found.setdefault(table, []).append(rows)
        return found

    def _written(self, name: str, tables: StateTables) -> BucketHistory:
        """Write a snapshot, and read it back into an operator of the other mode."""
        files, identity = self._opened.files, attempt_name(self._last.epoch, "-moved")
        folder, epoch = f"snapshot/{name}-0", self._last.epoch
        snapshot = write_snapshot(files, folder, tables, through_epoch=epoch, identity=identity)
        operator = self._after[name].build(self._options, None)
        try:
            operator.restore(read_snapshot(files, snapshot))
            found = {table: rows.num_rows for table, rows in operator.snapshot().items()}
        finally:
            operator.close()
        expected = {table: rows.num_rows for table, rows in tables.items()}
        if found != expected:
            raise StateError(
                f"moving {name}: rows written {expected}, read back {found}; rows were lost on the way, and nothing was "
                "changed. Try again; if it happens again, report it.",
                code="ROWS_LOST",
            )
        return BucketHistory(snapshot)
