"""How many bytes an append-only join holds over all buckets, and what the query does at its limit.

The law: what a bucket holds is in its receipts and in the commit record, so the driver has the exact sum, also of
buckets that had no rows. `abort` is decided there, before the record is written: the epoch that would reach the limit is not
applied, whatever bucket its rows are in.

`spill` is a budget of the query, as that of `default_hash_join="hybrid"`; rows on disk are counted like those in memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from zset_join.checkpoint.bucket import BucketState, StageContext
from zset_join.checkpoint.checkpoint import Checkpoint
from zset_join.checkpoint.record import BucketHistory, LogEntry, read_log
from zset_join.core.epochs import Tick
from zset_join.core.errors import OptionError, ResourceError
from zset_join.core.options import BufferLimit
from zset_join.runners.spark.planning.stages import PlannedStage
from zset_join.runners.spark.worker.receipts import TaskReceipt
from zset_join.runners.spark.worker.tasks import AppendBuffer
from zset_join.stages import StageOptions
from zset_join.state.join.append_buffer import buffer_full
from zset_join.zset import ZSet
from zset_join.zset.protocol import DurableOperator

__all__ = ["QueryBuffer", "explained_limit", "limited_join"]

_Held = Mapping[str, tuple[int, int]]


def limited_join(planned_stages: Sequence[PlannedStage], limit: BufferLimit) -> PlannedStage | None:
    """Return the join of a query that a limit is for, the append-only one; None where there is none."""
    append_only = [one for one in planned_stages if one.stage.is_append_buffer]
    joins = [one for one in planned_stages if len(one.stage.inputs) > 1]
    names = _names_of((append_only or joins or list(planned_stages))[0])
    limit.check_applies(is_append_only=bool(append_only), left=names[0], right=names[-1])
    if len(joins) > 1 and limit.spills:
        raise OptionError(
            'join_buffer_policy="spill" is about one join of two append-only inputs, and this query has more joins. Set '
            'default_hash_join="hybrid" with max_hot_bytes, which all of them share.',
            code="BUFFER_IN_CHAIN",
            option="join_buffer_policy",
        )
    if len(append_only) > 1 and limit.max_bytes:
        pairs = " and ".join(" with ".join(f'"{name}"' for name in _names_of(one)) for one in append_only)
        raise OptionError(
            f"join_max_buffered_bytes={limit.max_bytes} bounds one join of two append-only inputs, and this query has "
            f'{len(append_only)}: {pairs}. Set join_max_buffered_bytes=0 for no limit, or default_hash_join="hybrid".',
            code="BUFFER_IN_CHAIN",
            option="join_max_buffered_bytes",
        )
    return append_only[0] if append_only else None


def _names_of(planned: PlannedStage) -> list[str]:
    return [given.relation.name for given in planned.stage.inputs]


def explained_limit(planned_stages: Sequence[PlannedStage], limit: BufferLimit) -> list[str]:
    """Return the line of `explain` for the limit of an append-only join; nothing where there is none."""
    limited = limited_join(planned_stages, limit)
    if limited is None or not limit.max_bytes or limit.spills:
        return []
    names = " and ".join(f'"{name}"' for name in _names_of(limited))
    stops = f"the query stops before an epoch that reaches it (join_buffer_policy={limit.policy})"
    bound = f"{limit.max_bytes:,} bytes together (join_max_buffered_bytes); {stops}"
    return [f"Limit: {names} hold less than {bound}"]


class QueryBuffer:
    """How many bytes the buckets of a query hold."""

    def __init__(self, limited: PlannedStage | None, limit: BufferLimit, buckets: int) -> None:
        self.limited = limited
        self.stage = None if limited is None else limited.name
        self._names = ("", "") if limited is None else (_names_of(limited)[0], _names_of(limited)[-1])
        self._is_append_only = limited is not None
        self._limit = limit
        self._buckets = buckets

    def uncounted(self, histories: Mapping[str, BucketHistory], known: _Held) -> frozenset[int]:
        """Return the buckets that hold rows and have not reported how many bytes; they must be opened even without new rows."""
        if not self._is_append_only:
            return frozenset()
        with_state = {key.partition("/")[2] for key in histories if key.partition("/")[0] == self.stage}
        return frozenset(int(bucket) for bucket in with_state - set(known))

    def held(self, known: _Held, receipts: Sequence[TaskReceipt]) -> dict[str, tuple[int, int]]:
        """Return the bytes of every bucket after an epoch: those in its receipt, or those recorded before."""
        # Nothing where nothing is counted: a later count must not start from numbers of today.
        if not self._is_append_only:
            return {}
        held = dict(known)
        for receipt in receipts:
            if receipt.stage == self.stage and receipt.buffered is not None:
                left, right = receipt.buffered["held"]
                held[str(receipt.bucket)] = (left, right)
        return held

    def is_full(self, held: _Held) -> bool:
        """Return whether an epoch after which the buckets hold this must not be committed."""
        limited = self._is_append_only and self._limit.refuses
        return limited and sum(map(sum, held.values())) >= self._limit.max_bytes

    def error(
        self,
        session: SparkSession,
        checkpoint: Checkpoint,
        tick: Tick,
        options: StageOptions,
        held: _Held,
        receipts: Sequence[TaskReceipt],
    ) -> ResourceError:
        """Return the error of an epoch that would reach the limit. Cost: a Spark job that looks at all rows."""
        if self.limited is None:
            raise TypeError("no limit without a join that it is for")
        context, build = checkpoint.stage(self.limited.name, tick), partial(self.limited.stage.build, options)
        logs = {receipt.bucket: receipt.log for receipt in receipts if receipt.stage == self.stage and receipt.log is not None}
        task = _LargestKeyTask(context=context, build=build, logs=logs)
        lines = session.range(0, self._buckets, 1, self._buckets).mapInArrow(task, "receipt string").collect()
        largest_keys = [json.loads(line[0]) for line in lines]
        largest = max(largest_keys, key=lambda line: int(line["bytes"]), default=None)
        sums = (sum(left for left, _ in held.values()), sum(right for _, right in held.values()))
        key = None if largest is None else (tuple(largest["key"]), int(largest["rows"]), int(largest["bytes"]))
        return buffer_full(self._names, sums, self._limit.max_bytes, key, context.tick.epoch)

    def counts(self, held: _Held) -> dict[str, Any] | None:
        """Return the numbers of an epoch, for users; None for a join that is not append-only."""
        if not self._is_append_only:
            return None
        return {
            "left_bytes": sum(left for left, _ in held.values()),
            "right_bytes": sum(right for _, right in held.values()),
            "limit": 0 if self._limit.spills else self._limit.max_bytes,
        }


@dataclass(frozen=True, kw_only=True)
class _LargestKeyTask:
    """Find the largest key of a bucket, with the rows of an epoch that is not committed; callable, for `mapInArrow`."""

    context: StageContext
    build: Callable[[str], DurableOperator]
    logs: Mapping[int, LogEntry]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield one line per bucket that has a key."""
        for bucket in [number for batch in batches for number in batch.column(0).to_pylist()]:
            if bucket not in self.logs and bucket not in self.context.histories:
                continue
            with BucketState(self.context, bucket, self.build) as state:
                largest = self._largest_key(state, bucket)
            if largest is not None:
                key = [value if isinstance(value, bool | int | float | str | None) else str(value) for value in largest[0]]
                yield pa.RecordBatch.from_pydict(
                    {"receipt": [json.dumps({"key": key, "rows": largest[1], "bytes": largest[2]})]}
                )

    def _largest_key(self, state: BucketState, bucket: int) -> tuple[tuple[Any, ...], int, int] | None:
        operator = state.operator
        if not isinstance(operator, AppendBuffer):
            raise TypeError("only what buffers rows has a largest key")
        schemas = [relation.schema for relation in operator.inputs]
        deltas = [ZSet.empty(schema) for schema in schemas]
        if bucket in self.logs:
            for logged in read_log(self.context.files, self.logs[bucket], schemas=schemas):
                deltas = list(logged.deltas)
        return operator.largest_key(self.context.tick, deltas)
