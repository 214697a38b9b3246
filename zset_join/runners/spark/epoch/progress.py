"""Counts of an epoch for users: `lastProgress["join"]`, and the same for Spark's own listener.

| key | what it counts |
|---|---|
| `epoch`, `replayed` | Spark's batch id; whether the answer was committed before this run |
| `batch` | on the driver, where the query was changed: Spark's batch id; `epoch` is ahead of it by one per change |
| `rows_in`, `retractions_in`, `quarantined` | per stream: rows that arrived, deletes and retractions applied, rows set aside |
| `delta_rows`, `retractions` | rows of the answer, and those of them that retract |
| `fan_out` | the join key that made the most pairs, old and new ones, and how many; None where there was none |
| `corrections` | per temporal and as-of join, by its stage: earlier answers that it retracted; absent without one |
| `state` | what the first join remembered before the epoch, rows and bytes per side; `buckets`: of how many buckets |
| `state_of` | the name of that first join |
| `joins` | the same per further join of a chain, by its stage; absent without one |
| `routes` | the same per route, which remembers the join key of every primary key, by its stage; absent without one |
| `buffered` | of an append-only join: bytes per side after the epoch, and the limit; else None |
| `aggregates` | per aggregate behind the join, by its stage: `groups` before the epoch, bytes, `buckets`; absent without one |
| `stages` | the same per stage of another kind, by its name; absent without one |
| `cold_store` | of hybrid state: where the rows lie that are not in memory, `files` or `duckdb`; absent without it |
| `log_bytes`, `snapshot_bytes` | what the checkpoint holds to make the state from |
| `locality` | buckets whose state was where they ran (`hits`), and had to be fetched (`misses`); `executors` that ran them |
| `rows_by_stage` | rows that reached each input of a stage, by its name |
| `rebuilt_buckets` | buckets whose local state was present and could not be used |
| `seconds` | `total`, and in it `job`, `commit`, `output`; per stage its slowest bucket, and the slowest in each step |

Spark's own progress has no room for them: the `observedMetrics` of a query are computed inside its plan, from rows that arrive
in, and our numbers are known when the function of `foreachBatch` returns. But what Spark reports to a `StreamingQueryListener`
comes after the epoch and to the driver's process, so `join_progress(event.progress)` finds these numbers for it.

Limits: `state` counts the buckets that had rows since the query started; an idle one is not opened to be counted.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

from zset_join.checkpoint.record import CommitRecord
from zset_join.core.shown_values import counted
from zset_join.runners.common.rejected import late_change_counts
from zset_join.runners.spark.planning.stages import StreamPlace, stage_order
from zset_join.runners.spark.worker.receipts import TaskReceipt

__all__ = ["ProgressLog", "epoch_counts", "epoch_line", "epoch_title", "join_progress", "recorded_seconds", "stage_seconds"]

_KEPT = 100
_logs: WeakValueDictionary[str, ProgressLog] = WeakValueDictionary()
_logs_lock = threading.Lock()


@dataclass(slots=True, weakref_slot=True)
class ProgressLog:
    """Keep the progress of the newest epochs of one query."""

    entries: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=_KEPT))

    def publish(self, query_id: str) -> None:
        """Let `join_progress` find it."""
        with _logs_lock:
            _logs[query_id] = self

    def of_epoch(self, epoch: int) -> dict[str, Any] | None:
        """Return the progress of the epoch of one of Spark's batches; None when it has not run here, or long ago.

        Behind a change of the query the epochs of a checkpoint are ahead of Spark's batches; such an entry has its `batch`.
        """
        return next((one for one in reversed(list(self.entries)) if one.get("batch", one["epoch"]) == epoch), None)

    def of_epochs(self, epochs: Sequence[int]) -> dict[int, dict[str, Any] | None]:
        """Return the progress of several epochs, as `of_epoch`."""
        return {epoch: self.of_epoch(epoch) for epoch in epochs}


def join_progress(progress: Any) -> dict[str, Any] | None:
    """Return our numbers that belong to a progress of Spark.

    Args:
        progress: `event.progress` of `StreamingQueryListener.onQueryProgress`, or an entry of `recentProgress`.

    Returns:
        The epoch's numbers; None when the progress is of another query, or of no epoch that ran in this process.

    >>> join_progress({"id": "of another query", "batchId": 3}) is None
    True
    """
    if isinstance(progress, Mapping):
        query_id, epoch = str(progress["id"]), int(progress["batchId"])
    else:
        query_id, epoch = str(progress.id), int(progress.batchId)
    with _logs_lock:
        log = _logs.get(query_id)
    return None if log is None else log.of_epoch(epoch)


def epoch_counts(
    record: CommitRecord,
    receipts: Sequence[TaskReceipt],
    places: Sequence[StreamPlace],
    statistics: Mapping[str, Mapping[str, int]],
    *,
    main_stage: str,
    last: CommitRecord | None,
) -> dict[str, Any]:
    """Return the counts of an epoch, without its seconds."""
    stages = sorted({key.partition("/")[0] for key in statistics}, key=stage_order)
    kinds = ("aggregate-", "join-", "route-")
    aggregates, joins, routes = (
        {stage: _summed(statistics, stage) for stage in stages if stage.startswith(kind) and stage != main_stage}
        for kind in kinds
    )
    others = {stage: _summed(statistics, stage) for stage in stages if stage != main_stage and not stage.startswith(kinds)}
    first = {place: place.first_receipts(receipts) for place in places}
    corrections: dict[str, int] = {}
    for receipt in sorted(receipts, key=lambda receipt: stage_order(receipt.stage)):
        if receipt.corrections is not None:
            corrections[receipt.stage] = corrections.get(receipt.stage, 0) + receipt.corrections
    late = [counted for receipt in receipts for counted in receipt.late_changes.items()]
    fan_outs = [receipt.fan_out for receipt in receipts if receipt.fan_out is not None]
    warm = [receipt.is_warm for receipt in receipts if receipt.is_warm is not None]
    histories = record.histories.values()
    ways = {part.view: part.way for part in reversed(record.parts)}  # several outputs of a view may each have their own
    answer = [part for part in record.parts if part.way == ways[part.view]]
    return {
        "epoch": record.epoch,
        "rows_in": {
            place.name: sum(receipt.rows_in[place.side] for receipt in receipts_of_place)
            for place, receipts_of_place in first.items()
        },
        "retractions_in": {
            place.name: sum(receipt.retractions_in[place.side] for receipt in receipts_of_place)
            for place, receipts_of_place in first.items()
        },
        "quarantined": {place.name: place.put_aside(receipts) for place in places},
        "delta_rows": sum(part.file.rows for part in answer),
        "retractions": sum(part.retractions for part in answer),
        "fan_out": max(fan_outs, key=lambda found: int(found["pairs"]), default=None),
        **({"corrections": corrections} if corrections else {}),
        **late_change_counts(late, {} if last is None else last.progress),
        "state": _summed(statistics, main_stage),
        "state_of": main_stage,
        **({"joins": joins} if joins else {}),
        **({"routes": routes} if routes else {}),
        **({"aggregates": aggregates} if aggregates else {}),
        **({"stages": others} if others else {}),
        "log_bytes": sum(history.log_bytes for history in histories),
        "snapshot_bytes": sum(history.snapshot.bytes for history in histories if history.snapshot is not None),
        "locality": {
            "hits": sum(warm),
            "misses": len(warm) - sum(warm),
            "executors": len({receipt.executor for receipt in receipts if receipt.stage == main_stage}),
        },
        "rows_by_stage": _rows_by_stage(receipts),
        "rebuilt_buckets": sum(receipt.was_rebuilt for receipt in receipts),
    }


def _summed(statistics: Mapping[str, Mapping[str, int]], stage: str) -> dict[str, int]:
    """Return the counts of a stage, added up over its buckets, and their number."""
    buckets = [counts for key, counts in statistics.items() if key.partition("/")[0] == stage]
    state: dict[str, int] = {"buckets": len(buckets)}
    for counts in buckets:
        for name, value in counts.items():
            state[name] = state.get(name, 0) + value
    return state


def stage_seconds(receipts: Sequence[TaskReceipt]) -> dict[str, float]:
    """Return, per stage, the seconds of its slowest bucket (`join`) and of the slowest bucket in every step (`join.answer`)."""
    seconds: dict[str, float] = {}
    for receipt in receipts:
        steps = {f"{receipt.stage}.{step}": value for step, value in receipt.seconds.items()}
        for name, value in {receipt.stage: sum(receipt.seconds.values()), **steps}.items():
            seconds[name] = max(seconds.get(name, 0.0), value)
    return seconds


def recorded_seconds(seconds: Mapping[str, float], before: Mapping[str, float]) -> dict[str, Any]:
    """Return the seconds in the commit record of an epoch: its own, and those that the last one took after its record.

    >>> recorded_seconds({"job": 2.0, "join": 1.0, "join.answer": 0.5}, {"commit": 0.25})
    {'seconds': {'job': 2.0, 'stages': {'join': 1.0}}, 'seconds_before': {'commit': 0.25}}
    """
    stages = {name: round(took, 4) for name, took in seconds.items() if name != "job" and "." not in name}
    parts = {name: round(took, 4) for name, took in seconds.items() if name == "job"}
    return {"seconds": {**parts, "stages": stages}, **({"seconds_before": dict(before)} if before else {})}


def _rows_by_stage(receipts: Sequence[TaskReceipt]) -> dict[str, list[int]]:
    """Return the rows that reached each input of every stage, all buckets."""
    found: dict[str, list[int]] = {}
    for receipt in receipts:
        rows = found.setdefault(receipt.stage, [0] * len(receipt.rows_in))
        found[receipt.stage] = [one + more for one, more in zip(rows, receipt.rows_in, strict=True)]
    return found


def epoch_title(name: str, epoch: int, kinds: Sequence[str]) -> str:
    """Return the title of an epoch's job on Spark's pages: query, epoch and the kinds of its stages; routes are named once."""
    shown = [kind for at, kind in enumerate(kinds) if kind != "route" or "route" not in kinds[:at]]
    return f"{name} epoch {epoch}: {', '.join(shown)}"


def epoch_line(name: str, counts: Mapping[str, Any]) -> str:
    """Return the line that the log has of an epoch.

    >>> epoch_line("v", {"epoch": 3, "rows_in": {"orders": 5}, "delta_rows": 7, "retractions": 2, "seconds": {"total": 0.5}})
    'v epoch 3: 5 rows of orders in, 7 out, 2 of them retractions, 0.500 s'
    """
    rows = ", ".join(f"{counted(count, 'row')} of {stream}" for stream, count in counts["rows_in"].items())
    again = ", replayed" if counts.get("replayed") else ""
    seconds = counts["seconds"]["total"]
    return (
        f"{name} epoch {counts['epoch']}: {rows} in, {counts['delta_rows']} out, {counts['retractions']} of them retractions, "
        f"{seconds:.3f} s{again}"
    )
