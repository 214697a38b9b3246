"""The product in miniature: one driver, a few buckets and an output, in one process and without Spark.

What is under test is the product's own: `Ownership`, `Checkpoint`, `BucketState`, `Route`, `HashJoin`, the Parquet changelog
and the DuckDB view. Written here is only what Spark does between them: rows go to the bucket of their primary key,
then to the bucket of their join key; the receipts of the tasks come back to the driver; the driver commits, then publishes.
`Spark` remembers which epochs are complete, as Spark's own commit log does, and names the next one.

Thresholds are so small that within a few epochs logs are merged, snapshots are written and old files are removed.

Memory: kilobytes. Cost: 5 to 20 ms an epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock
from zlib import crc32

import numpy as np
import pyarrow as pa

from faults.histories import History
from faults.outputs import ChangelogOutput, Output, SinkOutput
from faults.sinks import SINKS
from zset_join.checkpoint import clearing as clearing_module
from zset_join.checkpoint import local_state as local_state_module
from zset_join.checkpoint import record as record_module
from zset_join.checkpoint.bucket import BucketState, StageContext
from zset_join.checkpoint.checkpoint import Checkpoint
from zset_join.checkpoint.owner import Ownership
from zset_join.checkpoint.reading import checkpoint_folder, stored_buckets
from zset_join.checkpoint.record import BucketHistory, CommitRecord, LogEntry, PartEntry
from zset_join.checkpoint.snapshot import SnapshotEntry
from zset_join.core.relation import Relation
from zset_join.storage import folder as folder_module
from zset_join.storage.local import synced_together
from zset_join.zset import ZSet

__all__ = ["BUCKETS", "JOIN", "QUERY_ID", "Driver", "Kind", "Place", "Task", "TaskReceipt", "bucket_of", "tiny_thresholds"]

BUCKETS = 2
JOIN = "join"
QUERY_ID = "5f0c7a52-0000-4000-8000-000000000001"
_MERGE_AFTER_FILES = 3
_RECORDS_KEPT = 3
_PATIENCE_SECONDS = 2.0
_SNAPSHOT_AFTER_BYTES = 9_000

Kind = str
"""`changelog`, a Parquet changelog whose parts the tasks write, or the name of one of `faults.sinks.SINKS`."""


@dataclass(frozen=True)
class Place:
    """The paths of one query.

    Args:
        root: a directory of its own.
    """

    root: Path

    @property
    def checkpoint(self) -> Path:
        """Return the checkpoint location."""
        return self.root / "checkpoint"

    @property
    def output(self) -> Path:
        """Return the Parquet changelog."""
        return self.root / "output"

    def output_of(self, kind: Kind) -> Path:
        """Return where an output lies."""
        return self.output if kind == "changelog" else self.root / SINKS[kind].lies

    def local(self, host: str) -> Path:
        """Return where a host keeps mapped state."""
        return self.root / "hosts" / host


@dataclass(frozen=True)
class TaskReceipt:
    """The receipt of a task.

    Args:
        stage: which stage it worked for.
        bucket: which bucket.
        log: the input it logged.
        snapshot: the snapshot it wrote.
        merged: the log files it merged.
        parts: its piece of the answer.
    """

    stage: str
    bucket: int
    log: LogEntry | None = None
    snapshot: SnapshotEntry | None = None
    merged: LogEntry | None = None
    parts: tuple[PartEntry, ...] = ()

    def added_to(self, history: BucketHistory) -> BucketHistory:
        """Return the history with what this task wrote."""
        if self.snapshot is not None:
            history = history.with_snapshot(self.snapshot)
        if self.merged is not None:
            history = history.with_merged(self.merged)
        return history if self.log is None else history.with_log(self.log)


@dataclass(frozen=True)
class Task:
    """One bucket of one stage in one epoch; every call is an attempt of its own.

    Args:
        context: the driver's settings.
        bucket: which bucket.
        inputs: its rows, one delta per input of the operator.
        build: makes the operator.
        schema: columns of the answer.
        output: writes the parts; None for a route, whose answer travels on.
    """

    context: StageContext
    bucket: int
    inputs: tuple[ZSet, ...]
    build: Callable[[str], Any]
    schema: pa.Schema
    output: Output | None = None

    def on_host(self, local_state_dir: Path) -> Task:
        """Return the same task as another host would run it."""
        return replace(self, context=replace(self.context, local_state_dir=str(local_state_dir)))

    def attempt(self) -> tuple[TaskReceipt, ZSet]:
        """Run the task; return its receipt and, for a route, the rows that travel on."""
        if not any(len(delta) for delta in self.inputs) and not self.context.is_work_due(self.bucket):
            return TaskReceipt(self.context.stage, self.bucket), ZSet.empty(self.schema)
        tick = self.context.tick
        with BucketState(self.context, self.bucket, self.build) as state:
            answer = state.operator.answer(tick, self.inputs)
            parts: list[PartEntry] = []
            travelling = ZSet.empty(self.schema)
            if self.output is None:
                travelling = ZSet.concat(answer, schema=self.schema)
            else:
                parts = self.output.write_part(self.context.files, self.bucket, tick, self.schema, answer)
            log = state.log(self.inputs)
            return TaskReceipt(self.context.stage, self.bucket, log, state.snapshot, state.merged, tuple(parts)), travelling


@dataclass
class Driver:
    """One life of the driver process.

    Args:
        history: the query and its input.
        place: where it lies.
        kind: which output.
        host: where tasks run: their mapped state is kept under this name.
        query_id: id of the query.
        on_event: called with "committed" or "complete" and the epoch, the moment it is true.
        local_state_retention_seconds: when unused local state is removed; None for never.
    """

    history: History
    place: Place
    kind: Kind = "changelog"
    host: str = "host-a"
    query_id: str = QUERY_ID
    on_event: Callable[[str, int], None] = lambda _event, _epoch: None
    local_state_retention_seconds: int | None = None
    checkpoint: Checkpoint = field(init=False)
    output: Output = field(init=False)
    relation: Relation = field(init=False)
    _owner: Ownership | None = field(init=False, default=None)
    _is_open: bool = field(init=False, default=False)

    def open(self) -> Driver:
        """Claim the checkpoint, open it and the output, as a query does when it starts in a new process."""
        folder_module._synced.clear()  # what a process holds of the disk dies with it
        operator = self.history.build_join(None)
        self.relation = operator.output
        operator.close()
        location = str(self.place.checkpoint)
        self._owner = Ownership.claim(checkpoint_folder(location), self.query_id)
        with self._owner.reporting_lost_ownership():
            self._open(location, self._owner)
        return self

    def _open(self, location: str, owner: Ownership) -> None:
        self.output = self._make_output()
        self._is_open = True
        self.output.open(self.relation, self.query_id)
        self.checkpoint = Checkpoint(
            location,
            query_id=self.query_id,
            buckets=stored_buckets(location) or BUCKETS,
            description={"how": self.history.how},
            local_state_dir=str(self.place.local(self.host)),
            snapshot_after_bytes=_SNAPSHOT_AFTER_BYTES,
            local_state_retention_seconds=self.local_state_retention_seconds,
            owner=owner,
        )

    def run(self, epochs: Sequence[int]) -> None:
        """Run epochs, one after the other."""
        for epoch in epochs:
            self.run_epoch(epoch)

    def run_epoch(self, epoch: int) -> None:
        """Run one epoch as the runner of a query does: answer, commit, publish; or publish what is committed."""
        with nullcontext() if self._owner is None else self._owner.reporting_lost_ownership():
            self._run_epoch(epoch)

    def _run_epoch(self, epoch: int) -> None:
        record = self.checkpoint.committed(epoch)
        if record is None:
            with synced_together() if epoch % 2 else nullcontext():  # as on a driver, or as by executors
                record = self.checkpoint.commit(self.recorded(epoch, self.answer(epoch)))
        elif not (self.output.has(record) or self.output.can_publish(self.checkpoint.files, record)):
            record = self.checkpoint.take_replay(self.recorded(epoch, self.answer(epoch)))
        self.on_event("committed", epoch)
        if not self.output.has(record):
            self.output.publish(self.checkpoint.files, record)
        self.on_event("complete", epoch)

    def answer(self, epoch: int) -> list[TaskReceipt]:
        """Run all tasks of an epoch; nothing is committed."""
        ran = [task.attempt() for task in self.route_tasks(epoch)]
        receipts = [receipt for receipt, _ in ran]
        return receipts + [task.attempt()[0] for task in self.join_tasks(epoch, [rows for _, rows in ran])]

    def route_tasks(self, epoch: int) -> list[Task]:
        """Return the tasks of the route stages."""
        tick, history = self.history.tick(epoch), self.history
        deltas = history.deltas(epoch)
        tasks = []
        for side in (side for side, is_routed in enumerate(history.routed) if is_routed):
            build = partial(history.build_route, side)
            schema = build(None).output.schema
            context = self.checkpoint.stage(f"route-{side}", tick)
            buckets = self.checkpoint.buckets_of(epoch)
            for bucket, rows in enumerate(_parted(deltas[side], buckets, history.relations[side].primary_key)):
                tasks.append(Task(context, bucket, (rows,), build, schema))
        return tasks

    def join_tasks(self, epoch: int, travelling: Sequence[ZSet]) -> list[Task]:
        """Return the tasks of the join stage.

        Args:
            epoch: the epoch.
            travelling: what the tasks of `route_tasks` sent on, in their order.
        """
        context, buckets = self.checkpoint.stage(JOIN, self.history.tick(epoch)), self.checkpoint.buckets_of(epoch)
        sent = list(travelling)
        parted = []
        for relation, delta, routed in zip(
            self.history.relations, self.history.deltas(epoch), self.history.routed, strict=True
        ):
            rows = ZSet.concat([sent.pop(0) for _ in range(buckets)], schema=delta.schema) if routed else delta
            parted.append(_parted(rows, buckets, relation.join_key, relation.primary_key))
        return [
            Task(
                context,
                bucket,
                tuple(rows[bucket] for rows in parted),
                self.history.build_join,
                self.relation.schema,
                self.output,
            )
            for bucket in range(buckets)
        ]

    def recorded(self, epoch: int, receipts: Sequence[TaskReceipt]) -> CommitRecord:
        """Return the record of an epoch, from the receipts of the attempts that won."""
        histories = dict(self.checkpoint.before(epoch))
        for receipt in receipts:
            key = f"{receipt.stage}/{receipt.bucket}"
            history = receipt.added_to(histories.get(key, BucketHistory()))
            if history != BucketHistory():
                histories[key] = history
        return CommitRecord(
            query_id=self.query_id,
            epoch=epoch,
            processing_time_us=self.history.tick(epoch).processing_time_us,
            histories=histories,
            parts=tuple(part for receipt in receipts for part in receipt.parts),
        )

    def close(self) -> None:
        """Release everything, as a query does when it stops; also when it did not come to open all of it."""
        if self._is_open:
            self.output.close()
        if self._owner is not None:
            self._owner.release()

    def _make_output(self) -> Output:
        return (
            ChangelogOutput(self.place.output)
            if self.kind == "changelog"
            else SinkOutput(SINKS[self.kind].make(self.place.root))
        )


@contextmanager
def tiny_thresholds() -> Iterator[None]:
    """Let logs be merged and records be forgotten after a few epochs, and nobody wait long for a lock."""
    with (
        mock.patch.object(record_module, "MERGE_AFTER_FILES", _MERGE_AFTER_FILES),
        mock.patch.object(clearing_module, "RECORDS_KEPT", _RECORDS_KEPT),
        mock.patch.object(local_state_module, "_PATIENCE_SECONDS", _PATIENCE_SECONDS),
    ):
        yield


def bucket_of(line: Mapping[str, Any], buckets: int, key: Sequence[str], otherwise: Sequence[str] = ()) -> int:
    """Return the bucket of a row; one whose key is NULL goes by its primary key, or by all of its values."""
    values = [line[name] for name in key]
    chosen = values if None not in values else [line[name] for name in otherwise or line]
    return crc32(repr(chosen).encode()) % buckets


def _parted(rows: ZSet, buckets: int, key: Sequence[str], otherwise: Sequence[str] = ()) -> list[ZSet]:
    """Return, per bucket, its rows."""
    chosen = np.array([bucket_of(line, buckets, key, otherwise) for line in rows.rows.to_pylist()], np.int64)
    wanted = [np.flatnonzero(chosen == bucket) for bucket in range(buckets)]
    return [ZSet(rows.rows.take(pa.array(positions)), rows.weights[positions]) for positions in wanted]
