"""The summary of one epoch, as the charts and the plan show it.

The law: a summary is immutable and small: no rows, at most a few numbers per source, view and stage. What an epoch did not
record is None or missing; nothing is estimated.

Both runners write `progress` into their commit records under names of their own; here they are brought under one set of names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from zset_join.checkpoint.record import LATE_CHANGES_TOTAL, LATE_ROWS_TOTAL, CommitRecord
from zset_join.console.shown import shown
from zset_join.zset.protocol import NextDue

__all__ = ["EpochSummary", "NumbersByName", "summary_of_progress", "summary_of_record"]

NumbersByName = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochSummary:
    """The numbers of one epoch, by the names of sources (`rows_in`, `late_...`), views or stages."""

    epoch: int
    at_us: int | None = None  # processing time
    rows_in: NumbersByName = field(default_factory=dict)
    rows_out: int | None = None
    retractions: int | None = None
    views: NumbersByName = field(default_factory=dict)  # where there are several
    put_aside: int | None = None
    late_rows: NumbersByName = field(default_factory=dict)
    late_rows_total: NumbersByName = field(default_factory=dict)
    late_changes: NumbersByName = field(default_factory=dict)
    late_changes_total: NumbersByName = field(default_factory=dict)
    seconds: NumbersByName = field(default_factory=dict)  # by part of the epoch
    stages: NumbersByName = field(default_factory=dict)
    remembers: NumbersByName = field(default_factory=dict)  # before the epoch
    state_bytes: NumbersByName = field(default_factory=dict)  # in the checkpoint
    watermarks: NumbersByName = field(default_factory=dict)  # of sources, and of stages as `stage:<name>`
    held_by: NumbersByName = field(default_factory=dict)
    dues: NumbersByName = field(default_factory=dict)
    lookups: NumbersByName = field(default_factory=dict)  # since the start of the process
    corrections: NumbersByName = field(default_factory=dict)
    fan_out: Any = None

    def to_json(self) -> dict[str, Any]:
        return {one.name: getattr(self, one.name) for one in fields(self)}


def summary_of_record(record: CommitRecord, following: CommitRecord | None = None) -> EpochSummary:
    """Return the summary of a committed epoch; the record that follows it may hold the time of its commit."""
    sizes: dict[str, int] = {}
    for key, history in record.histories.items():
        stage = key.rpartition("/")[0]
        snapshot = 0 if history.snapshot is None else history.snapshot.bytes
        sizes[stage] = sizes.get(stage, 0) + history.log_bytes + snapshot
    behind = {} if following is None or following.epoch != record.epoch + 1 else following.progress.get("seconds_before", {})
    return summary_of_progress(
        record.epoch,
        record.progress,
        at_us=record.processing_time_us,
        behind=behind,
        state_bytes=sizes,
        watermarks=record.watermarks,
        dues=record.dues,
    )


def summary_of_progress(
    epoch: int,
    progress: Mapping[str, Any],
    *,
    at_us: int | None,
    behind: NumbersByName,
    state_bytes: NumbersByName,
    watermarks: NumbersByName,
    dues: Mapping[str, NextDue],
) -> EpochSummary:
    """Return the summary of an epoch, given what a runner counted, and the seconds of parts that are `behind` that."""
    put_aside = progress.get("quarantined", progress.get("rejected_rows"))
    seconds = {**progress.get("seconds", {}), **behind}
    by_stage = dict(progress.get("stages", {}))
    remembers = dict(progress.get("remembers", {}))
    if "delta_rows" in progress:  # of Spark: `stages` counts states there, beside `joins`, `aggregates` and `routes`
        rows = progress.get("rows_by_stage", {})
        took = seconds.get("stages", {})
        by_stage = {name: _work(took.get(name), rows.get(name)) for name in {**took, **rows}}
        remembers = {
            name: one for group in ("joins", "aggregates", "routes", "stages") for name, one in progress.get(group, {}).items()
        }
        if progress.get("state"):
            remembers = {progress.get("state_of", "first join"): progress["state"], **remembers}
    fan_out = progress.get("fan_out")
    return EpochSummary(
        epoch=epoch,
        at_us=at_us,
        rows_in=dict(progress.get("rows_in", progress.get("rows", {}))),
        rows_out=progress.get("delta_rows", progress.get("answer_rows")),
        retractions=progress.get("retractions"),
        views=dict(progress.get("views", {})),
        put_aside=sum(put_aside.values()) if isinstance(put_aside, dict) else put_aside,
        **{name: dict(progress.get(name, {})) for name in ("late_rows", LATE_ROWS_TOTAL, "late_changes", LATE_CHANGES_TOTAL)},
        seconds={name: one for name, one in seconds.items() if isinstance(one, int | float) and name != "total"},
        stages=by_stage,
        remembers=remembers,
        state_bytes=dict(state_bytes),
        watermarks=dict(watermarks),
        held_by=dict(progress.get("held_by", {})),
        dues=_dues(dues),
        lookups=dict(progress.get("lookups", {})),
        corrections=dict(progress.get("corrections", {})),
        fan_out=None if fan_out is None else {name: shown(one) for name, one in fan_out.items()},
    )


def _work(seconds: float | None, rows: Sequence[int] | None) -> dict[str, Any]:
    """Return the work of a stage; of a query inside Spark it is not recorded how many rows a stage answered."""
    known = {} if seconds is None else {"seconds": seconds}
    return known if rows is None else {**known, "rows_in": sum(rows), "inputs": list(rows)}


def _dues(dues: Mapping[str, NextDue]) -> dict[str, dict[str, int | None]]:
    """Return the earliest due times of all buckets of a stage."""
    earliest: dict[str, dict[str, int | None]] = {}
    for key, due in dues.items():
        one = earliest.setdefault(key.rpartition("/")[0], {"watermark_us": None, "processing_time_us": None})
        for name, time in (("watermark_us", due.watermark_us), ("processing_time_us", due.processing_time_us)):
            before = one[name]
            if time is not None:
                one[name] = time if before is None else min(before, time)
    return earliest
