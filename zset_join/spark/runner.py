"""One epoch on the driver.

    committed already? -> no: one Spark job answers it -> commit record -> output
                       -> yes (a replay): the output is given the answer that was committed

The law: an epoch reaches the output exactly when it is committed, and with the answer of its commit record. Rows in = rows
applied + rows quarantined, for every stream and epoch; a difference stops the query.

One Spark job per epoch: the tasks write logs and answers themselves and return one line each. The settings that job needs
(batch size, no adaptive execution, UTC) are set on the batch's own session and put back before a user's function sees it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own habit

from zset_join.checkpoint.checkpoint import Checkpoint
from zset_join.checkpoint.record import BucketHistory, CommitRecord
from zset_join.config import QueryOptions
from zset_join.errors import StateError
from zset_join.plan import RouteNode
from zset_join.relation import Relation
from zset_join.spark.joined import JoinedStream
from zset_join.spark.normalise import TaggedStream
from zset_join.spark.notes import TaskNote, note_of_error
from zset_join.spark.operators import OperatorOptions
from zset_join.spark.outputs import Output
from zset_join.spark.quarantine import reveal
from zset_join.spark.schemas import spark_schema
from zset_join.spark.tasks import JoinTask, RouteTask
from zset_join.tick import Tick

__all__ = ["JOIN_STAGE", "EpochRunner", "route_stage"]

JOIN_STAGE = "join"
_PROGRESS_KEPT = 100
_SIDES = ("left", "right")


def route_stage(side: int) -> str:
    """Return the name of the route stage of a side."""
    return f"route-{_SIDES[side]}"


class EpochRunner:
    """Run the epochs of one query; callable, for `foreachBatch`.

    Args:
        joined: the join.
        tagged: the union of its inputs.
        options: the options of the query.
        buckets: N.
        output: where answers go.
        dead_letter_path: where quarantined rows go.

    Attributes:
        error: what stopped the query, as it was raised here; None while it runs.
        progress: the counts of the newest epochs, oldest first.
        lock: held while an epoch runs.
        is_open: the output is open.
    """

    def __init__(
        self,
        joined: JoinedStream,
        tagged: TaggedStream,
        options: QueryOptions,
        *,
        buckets: int,
        output: Output,
        dead_letter_path: str,
    ) -> None:
        self.error: BaseException | None = None
        self.progress: deque[dict[str, Any]] = deque(maxlen=_PROGRESS_KEPT)
        self.checkpoint: Checkpoint | None = None
        self.lock = threading.Lock()
        self.is_open = False
        self._joined = joined
        self._tagged = tagged
        self._options = options
        self._buckets = buckets
        self._output = output
        self._dead_letter_path = dead_letter_path
        self._operator_options = OperatorOptions(
            on_bad_input=options.on_bad_input,
            tombstone_retention_seconds=options.tombstone_retention_seconds,
            chunk_rows=options.chunk_rows,
        )
        self._order = F.monotonically_increasing_id().alias("order")
        self._statistics: dict[str, dict[str, int]] = {}

    def attach(self, query_id: str) -> None:
        """Open checkpoint and output for a query.

        Raises:
            StateError: the checkpoint does not fit.
            SinkError: the output does not fit.
        """
        self._output.open(self.relation, query_id)
        self.is_open = True
        self.checkpoint = Checkpoint(
            self._options.checkpoint_location,
            query_id=query_id,
            buckets=self._buckets,
            description=self._joined.node.fingerprint(),
            local_state_dir=self._options.local_state_dir,
            snapshot_after_bytes=self._options.snapshot_after_bytes,
            retain_input_log=self._options.retain_input_log,
        )

    @property
    def relation(self) -> Relation:
        """Return the relation of the answer."""
        return self._joined.output

    def __call__(self, batch: DataFrame, epoch: int) -> None:
        """Run one epoch.

        Raises:
            ZsetJoinError: whatever is wrong with input, state or output; the epoch is not committed, or not in the output.
        """
        try:
            with self.lock:
                self._run(batch, epoch)
        except BaseException as error:
            self.error = error
            raise

    def close(self) -> None:
        """Close the output, once no epoch runs."""
        with self.lock:
            self._output.close()
            self.is_open = False

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Keep epochs from running, with the output open, also after the query has stopped."""
        with self.lock:
            if self.is_open:
                yield
                return
            self._output.open(self.relation, self._opened().query_id)
            try:
                yield
            finally:
                self._output.close()

    def contents(self, session: SparkSession) -> DataFrame | None:
        """Return all answers in the output, while paused; None when it cannot be read back."""
        return self._output.contents(session)

    def _run(self, batch: DataFrame, epoch: int) -> None:
        started = time.perf_counter()
        checkpoint = self._opened()
        record = checkpoint.committed(epoch)
        seconds: dict[str, float] = {}
        is_replay = record is not None
        if record is None:
            record = self._evaluate(batch, epoch, seconds)
        elif not self._output.has(epoch) and not self._output.can_publish(checkpoint.root, record):
            record = self._evaluate(batch, epoch, seconds)  # its parts are lost; the state before it is still there
        reveal(self._dead_letter_path, record.quarantined)
        publishing = time.perf_counter()
        if not self._output.has(epoch):
            self._output.publish(batch.sparkSession, checkpoint.root, record)
        finished = time.perf_counter()
        seconds |= {"output": finished - publishing, "total": finished - started}
        rounded = {name: round(value, 4) for name, value in seconds.items()}
        self.progress.append({**record.progress, "replayed": is_replay, "seconds": rounded})

    def _opened(self) -> Checkpoint:
        if self.checkpoint is None:
            raise StateError("the query was not attached to its checkpoint", code="NOT_ATTACHED")
        return self.checkpoint

    def _evaluate(self, batch: DataFrame, epoch: int, seconds: dict[str, float]) -> CommitRecord:
        """Answer an epoch with one Spark job, and commit it."""
        checkpoint = self._opened()
        started = time.perf_counter()
        tick = Tick(epoch, self._watermark())
        with _settings(batch.sparkSession, self._options):
            lines = self._answered(batch, tick).collect()
        notes = [TaskNote.from_json(line[0]) for line in lines]
        evaluated = time.perf_counter()
        self._check(notes, epoch)
        record = self._record(notes, tick)
        checkpoint.commit(record)
        seconds |= {"job": evaluated - started, "commit": time.perf_counter() - evaluated}
        for name in ("open", "fold", "receive", "answer", "log"):
            seconds[f"task_{name}"] = max((note.seconds.get(name, 0.0) for note in notes), default=0.0)
        return record

    def _answered(self, batch: DataFrame, tick: Tick) -> DataFrame:
        """Return the plan of one epoch: its rows are the notes of the tasks."""
        checkpoint, node = self._opened(), self._joined.node
        rows = batch.select("*", self._order).repartitionById(self._buckets, F.col("bucket"))
        shared: dict[str, Any] = {
            "tick": tick,
            "node": node,
            "options": self._operator_options,
            "layout": self._tagged.layout,
            "dead_letter_path": self._dead_letter_path,
        }
        if self._tagged.second_bucket is not None:
            contexts = [
                checkpoint.stage(route_stage(side), tick) if isinstance(node.sides[side], RouteNode) else None
                for side in (0, 1)
            ]
            schema = self._tagged.travelling
            route = RouteTask(contexts=(contexts[0], contexts[1]), schema=schema, **shared)
            rows = rows.mapInArrow(route, spark_schema(schema)).select("*", self._tagged.second_bucket)
            rows = rows.repartitionById(self._buckets, F.col("bucket"))
        task = JoinTask(
            context=checkpoint.stage(JOIN_STAGE, tick),
            output=self.relation.schema,
            parts=self._output.parts,
            **shared,
        )
        return rows.mapInArrow(task, "note string")

    def _watermark(self) -> int:
        """Return the wall-clock time in microseconds; it never goes back."""
        last = self._opened().last
        now = time.time_ns() // 1000
        return now if last is None or last.watermark is None else max(now, last.watermark)

    def _check(self, notes: Sequence[TaskNote], epoch: int) -> None:
        """Raise what a task reported; count rows in against rows applied and quarantined."""
        for note in sorted(notes, key=lambda note: (note.stage == JOIN_STAGE, note.key)):
            error = note_of_error(note)
            if error is not None:
                raise error
        buckets = sorted(note.bucket for note in notes if note.stage == JOIN_STAGE)
        routed = self._tagged.second_bucket is not None
        for side in (0, 1):
            first = [note for note in notes if _is_first(note, side, routed=routed)]
            came = sum(note.rows_in[side] for note in first)
            applied = sum(note.applied[side] for note in first)
            aside = sum(note.quarantined_rows[side] for note in first)
            sent = sum(note.emitted[side] for note in first)
            joined = sum(note.rows_in[side] for note in notes if note.stage == JOIN_STAGE)
            if came != applied + aside or (routed and sent != joined) or buckets != list(range(self._buckets)):
                raise StateError(
                    f"epoch {epoch}: {_SIDES[side]} rows in {came}, applied {applied}, quarantined {aside}, routed {sent}, "
                    f"joined {joined}, buckets {buckets}; rows were lost on the way, nothing was committed. Restart the "
                    "query; if it happens again, report it with the plan that explain() prints.",
                    code="ROWS_LOST",
                    epoch=epoch,
                )

    def _record(self, notes: Sequence[TaskNote], tick: Tick) -> CommitRecord:
        checkpoint = self._opened()
        replaced = checkpoint.before(tick.epoch)
        histories: dict[str, BucketHistory] = dict(replaced)
        for note in notes:
            history = histories.get(note.key, BucketHistory())
            if note.snapshot is not None:
                history = history.with_snapshot(note.snapshot)
            if note.merged is not None:
                history = history.with_merged(note.merged)
            if note.log is not None:
                history = history.with_log(note.log)
            if history != BucketHistory():
                histories[note.key] = history
            if note.statistics:
                self._statistics[note.key] = note.statistics
        record = CommitRecord(
            query_id=checkpoint.query_id,
            epoch=tick.epoch,
            watermark=tick.watermark,
            histories=histories,
            parts=tuple(part for note in notes for part in note.parts),
            quarantined=tuple(part for note in notes for part in note.quarantined),
        )
        return replace(record, progress=self._counts(record, notes))

    def _counts(self, record: CommitRecord, notes: Sequence[TaskNote]) -> dict[str, Any]:
        """Return what `lastProgress` says about the epoch."""
        routed = self._tagged.second_bucket is not None
        state: dict[str, int] = {}
        for key, statistics in self._statistics.items():
            if key.startswith(f"{JOIN_STAGE}/"):
                for name, value in statistics.items():
                    state[name] = state.get(name, 0) + value
        return {
            "epoch": record.epoch,
            "rows_in": {
                name: sum(note.rows_in[side] for note in notes if _is_first(note, side, routed=routed))
                for side, name in enumerate(self._names())
            },
            "quarantined": {
                name: sum(note.quarantined_rows[side] for note in notes) for side, name in enumerate(self._names())
            },
            "delta_rows": sum(part.file.rows for part in record.parts),
            "retractions": sum(part.retractions for part in record.parts),
            "state": state,
            "log_bytes": sum(history.log_bytes for history in record.histories.values()),
            "rebuilt_buckets": sum(note.was_rebuilt for note in notes),
        }

    def _names(self) -> list[str]:
        return [side.relation.name for side in self._joined.node.sides]


def _is_first(note: TaskNote, side: int, *, routed: bool) -> bool:
    """Say whether a note is of the stage that rows of this side reach first."""
    return note.stage in (f"pass-{side}", route_stage(side)) if routed else note.stage == JOIN_STAGE


@contextmanager
def _settings(session: SparkSession, options: QueryOptions) -> Iterator[None]:
    """Set what the job of an epoch needs, and put back what was there."""
    wanted: Mapping[str, str] = {
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(options.max_records_per_batch),
        "spark.sql.execution.arrow.useLargeVarTypes": "false",
        "spark.sql.session.timeZone": "UTC",
    }
    kept = {name: session.conf.get(name, None) for name in wanted}
    for name, value in wanted.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name, before in kept.items():
            if before is None:
                session.conf.unset(name)
            else:
                session.conf.set(name, before)
