"""One epoch of one bucket of one stage: the same steps in process and in a Spark task.

    must it run?  ->  answer, in the state before  ->  rows it refuses  ->  log what it was fed  ->  receipt

Who runs it brings the rows, opens the state (in memory, or `BucketState` over a checkpoint) and takes the answer away.

The law: nothing here folds an epoch in, so a bucket that runs again in the same state gives the same answer and receipt.

Cost: beside the operator's own, a few calls per bucket that runs.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from zset_join.checkpoint.bucket import BucketState
from zset_join.checkpoint.record import BucketHistory, LogEntry
from zset_join.checkpoint.snapshot import SnapshotEntry
from zset_join.core.epochs import Tick
from zset_join.runners.common.rejected import Rejected, RejectedRows, listed, rejected_rows, taken, without
from zset_join.stages.stage import Stage, StageOptions
from zset_join.zset import ZSet
from zset_join.zset.protocol import NOTHING_DUE, DurableOperator, NextDue, due_of, is_timed

__all__ = [
    "GLOBAL_BUCKET",
    "BucketReceipt",
    "StageBucket",
    "check_stages",
    "dues_after",
    "histories_after",
    "log_input",
    "report",
    "report_due",
    "sifted",
]


@dataclass(slots=True, kw_only=True)
class BucketReceipt:
    stage: str
    bucket: int
    log: LogEntry | None = None
    snapshot: SnapshotEntry | None = None
    merged: LogEntry | None = None
    statistics: dict[str, int] = field(default_factory=dict)
    corrections: int | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    due: list[int | None] | None = None  # event and processing time, by the state before the epoch; None: it never waits
    is_warm: bool | None = None  # local state was present, at most one epoch behind; None: nothing to remember
    was_rebuilt: bool = False

    @property
    def key(self) -> str:
        """Return stage and bucket as commit records name them."""
        return f"{self.stage}/{self.bucket}"


def histories_after(
    before: Mapping[str, BucketHistory], receipts: Iterable[BucketReceipt], states: Mapping[str, str]
) -> dict[str, BucketHistory]:
    """Return the histories after an epoch; `states`: from the name of a stage to that of its state, where they differ."""
    histories = dict(before)
    logs: dict[str, list[LogEntry]] = defaultdict(list)
    for receipt in receipts:
        key = f"{states.get(receipt.stage, receipt.stage)}/{receipt.bucket}"
        if receipt.log is not None:
            logs[key].append(receipt.log)
        if receipt.snapshot is not None or receipt.merged is not None:
            histories[key] = histories.get(key, BucketHistory()).after(snapshot=receipt.snapshot, merged=receipt.merged)
    for key, entries in logs.items():
        histories[key] = histories.get(key, BucketHistory()).with_log(LogEntry.together(entries))
    return histories


def dues_after(before: Mapping[str, NextDue], receipts: Iterable[BucketReceipt]) -> dict[str, NextDue]:
    """Return when stages must next run without input, after an epoch."""
    dues = dict(before)
    for receipt in receipts:
        if receipt.due is not None:
            dues.pop(receipt.key, None)
            due = NextDue(*receipt.due)
            dues |= {} if due == NOTHING_DUE else {receipt.key: due}
    return dues


GLOBAL_BUCKET = 0
"""The bucket of a stage without a key, which alone has its rows; what begins alone begins there."""


def check_stages(stages: Iterable[Stage], options: StageOptions) -> None:
    """Refuse stages that cannot be built with the options of the query: a start calls this before it writes a file."""
    for stage in stages:
        stage.build(options, None).close()


@dataclass(frozen=True, slots=True)
class StageBucket:
    """Run one stage, bucket by bucket."""

    stage: Stage
    shown: pa.Schema
    is_timed: bool
    emits_without_input: bool

    @classmethod
    def of(cls, stage: Stage) -> StageBucket:
        return cls(stage, stage.output.schema, stage.waits_for_time, stage.emits_without_input)

    def begins(self, bucket: int, *, is_first: bool) -> bool:
        """Return whether a bucket answers because it never answered before."""
        return self.emits_without_input and is_first and bucket == GLOBAL_BUCKET

    def answer(self, operator: DurableOperator, tick: Tick, deltas: Sequence[ZSet]) -> Iterator[ZSet]:
        """Yield the answer in pieces, retractions first, with the columns that the stage shows."""
        shown = self.shown
        names = shown.names
        for chunk in operator.answer(tick, deltas):
            if (schema := chunk.rows.schema).equals(shown) or schema.names == names:
                yield chunk
            else:
                columns = [chunk.rows.column(name) for name in names]
                yield ZSet(pa.RecordBatch.from_arrays(columns, schema=shown), chunk.weights)

    def rejected(
        self, operator: DurableOperator, tick: Tick, deltas: Sequence[ZSet], sources: Sequence[str]
    ) -> list[RejectedRows]:
        """Return the rows of its feed that the operator omits, by input, under the name of the source of all its rows."""
        judged = operator.rejections(tick, deltas)
        return list(rejected_rows(judged, operator.inputs, deltas, sources)) if judged.num_rows else []


def sifted(
    operator: DurableOperator, tick: Tick, deltas: Sequence[ZSet], rejected: Sequence[Rejected], *, codes: str
) -> list[ZSet]:
    """Return the deltas of the first inputs without the rows that an operator refuses with codes of this beginning."""
    left = list(deltas)
    names = [relation.name for relation in operator.inputs][: len(left)]
    unasked = [ZSet.empty(relation.schema) for relation in operator.inputs[len(left) :]]
    while True:
        judged = operator.rejections(tick, [*left, *unasked])
        judged = judged.filter(pc.starts_with(judged.column("code"), codes)) if judged.num_rows else judged
        if not judged.num_rows:
            return left
        for number, bad, found, reasons in listed(judged, names):
            rejected[number].add(taken(left[number], bad), found, reasons)
            left[number] = without(left[number], bad)


def report_due(operator: DurableOperator, tick: Tick, receipt: BucketReceipt) -> bool:
    """Return whether a time has come that an operator waits for; the receipt has when it must next run."""
    if not is_timed(operator):
        return False
    due = due_of(operator)
    receipt.due = [due.watermark_us, due.processing_time_us]
    return due.is_due(watermark_us=tick.watermark_us, processing_time_us=tick.processing_time_us)


def log_input(state: BucketState, deltas: Sequence[ZSet], receipt: BucketReceipt, *, is_due: bool) -> None:
    """Write down what an open bucket was fed in the epoch; `is_due`: also where it has no rows."""
    started = time.perf_counter()
    receipt.log = state.log(deltas, is_due=is_due)
    receipt.seconds["log"] = time.perf_counter() - started


def report(state: BucketState, receipt: BucketReceipt) -> None:
    """Report the state of an open bucket, and the files written."""
    receipt.seconds.update(state.seconds)
    receipt.snapshot, receipt.merged = state.snapshot, state.merged
    receipt.is_warm, receipt.was_rebuilt = state.is_warm, state.was_rebuilt
    receipt.statistics |= state.operator.statistics()
