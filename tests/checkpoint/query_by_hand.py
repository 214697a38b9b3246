"""Drives a join over a checkpoint the way the Spark runner does: open, answer every bucket, commit; restart at will."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from zset_join.checkpoint.bucket import BucketState, StageContext
from zset_join.checkpoint.checkpoint import Checkpoint
from zset_join.checkpoint.owner import Ownership
from zset_join.checkpoint.reading import checkpoint_folder
from zset_join.checkpoint.record import BucketHistory, CommitRecord, LogEntry
from zset_join.checkpoint.snapshot import SnapshotEntry
from zset_join.core.epochs import Tick
from zset_join.core.relation import Relation
from zset_join.operators.join import HashJoin
from zset_join.shapes.operator_options import OperatorOptions
from zset_join.zset import ZSet
from zset_join.zset.protocol import DurableOperator

__all__ = ["BUCKETS", "LEFT", "RIGHT", "QueryByHand", "answer_buckets", "build", "left_rows", "right_rows"]

LEFT = Relation(
    name="left",
    schema=pa.schema({"id": pa.int64(), "k": pa.int64(), "note": pa.string()}),
    join_key=("k",),
    primary_key=("id",),
    mode="upsert",
)
RIGHT = Relation(name="right", schema=pa.schema({"k": pa.int64(), "price": pa.float64()}), join_key=("k",), mode="changelog")
BUCKETS = 2

Rows = list[tuple[tuple[object, ...], int]]
Changed = tuple[SnapshotEntry | None, LogEntry | None, LogEntry | None]
Answered = tuple[list[Rows], list[Changed], int]
AnswerBuckets = Callable[[StageContext, ZSet, ZSet], Answered]


def build(directory: str | None) -> DurableOperator:
    return HashJoin(LEFT, RIGHT, "full", options=OperatorOptions(directory=directory))


def left_rows(*rows: tuple[int, int | None, str], weights: list[int] | None = None) -> ZSet:
    columns = {"id": [row[0] for row in rows], "k": [row[1] for row in rows], "note": [row[2] for row in rows]}
    return ZSet.of(columns, weights, schema=LEFT.schema)


def right_rows(*rows: tuple[int, float], weights: list[int] | None = None) -> ZSet:
    return ZSet.of({"k": [row[0] for row in rows], "price": [row[1] for row in rows]}, weights, schema=RIGHT.schema)


class QueryByHand:
    """A query of two buckets, by parity of the key; join keys of a row never move between them."""

    running: ClassVar[list[QueryByHand]] = []

    def __init__(self, location: str, local: Path, **options: Any) -> None:
        self.location = location
        self.local = local
        self.options = options
        self.rebuilt = 0
        self.start()

    def start(self) -> None:
        self.running.append(self)
        self.owner = Ownership.claim(checkpoint_folder(self.location), "q")
        self.checkpoint = Checkpoint(
            self.location,
            query_id="q",
            buckets=BUCKETS,
            description={"how": "full"},
            local_state_dir=str(self.local),
            owner=self.owner,
            **self.options,
        )

    def stop(self) -> None:
        self.running.remove(self)
        self.owner.release()

    def restart(self) -> None:
        self.stop()
        self.start()

    @property
    def next_epoch(self) -> int:
        return 0 if self.checkpoint.last is None else self.checkpoint.last.epoch + 1

    def answer(
        self, left: ZSet, right: ZSet, epoch: int | None = None, *, by: AnswerBuckets | None = None
    ) -> tuple[list[Rows], CommitRecord]:
        """Answer an epoch without committing it: every bucket's answer, rows in their order, and what to commit.

        `by` answers the buckets, `answer_buckets` in this process or in another one.
        """
        tick = Tick(self.next_epoch if epoch is None else epoch, 1_000_000)
        histories = dict(self.checkpoint.before(tick.epoch))
        answers, changed, rebuilt = (by or answer_buckets)(self.checkpoint.stage("join", tick), left, right)
        self.rebuilt += rebuilt
        for bucket, (snapshot, merged, log) in enumerate(changed):
            history = histories.get(f"join/{bucket}", BucketHistory())
            history = history if snapshot is None else history.with_snapshot(snapshot)
            history = history if merged is None else history.with_merged(merged)
            history = history if log is None else history.with_log(log)
            histories[f"join/{bucket}"] = history
        record = CommitRecord(query_id="q", epoch=tick.epoch, processing_time_us=tick.processing_time_us, histories=histories)
        return answers, replace(record, histories={key: found for key, found in histories.items() if found != BucketHistory()})

    def run(self, left: ZSet, right: ZSet, *, by: AnswerBuckets | None = None) -> Rows:
        """Answer and commit; returns the rows of the answer."""
        answers, record = self.answer(left, right, by=by)
        self.checkpoint.commit(record)
        return sorted((row for answer in answers for row in answer), key=repr)


def answer_buckets(context: StageContext, left: ZSet, right: ZSet) -> Answered:
    """Answer every bucket, as a worker does; returns what goes to the driver, which all can be pickled."""
    answers, changed, rebuilt = [], [], 0
    for bucket in range(BUCKETS):
        deltas = [_of_bucket(left, "k", bucket), _of_bucket(right, "k", bucket)]
        with BucketState(context, bucket, build) as state:
            answers.append([row for chunk in state.operator.answer(context.tick, deltas) for row in chunk.to_pylist()])
            log = state.log(deltas)
        changed.append((state.snapshot, state.merged, log))
        rebuilt += state.was_rebuilt
    return answers, changed, rebuilt


def _of_bucket(delta: ZSet, column: str, bucket: int) -> ZSet:
    keys = delta.rows.column(delta.schema.get_field_index(column)).to_pylist()
    at = [position for position, key in enumerate(keys) if (key or 0) % BUCKETS == bucket]
    return ZSet(delta.rows.take(pa.array(at, pa.int64())), delta.weights[at])
