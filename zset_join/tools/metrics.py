"""Prometheus metrics of the newest epoch of a checkpoint: `zset-join metrics CHECKPOINT`.

The law: every number is in a commit record; what the newest record does not contain is omitted, and nothing is estimated.

Gauges are of the newest committed epoch, or of the state after it; counters, whose names end with `_total`, are since the start
of the query. Who scrapes less often than epochs are committed sees some of the gauges.

Cost: one listing and two small files, whatever the query holds. A query may run meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zset_join.checkpoint.reading import no_checkpoint, read_committed
from zset_join.checkpoint.record import LATE_CHANGES_TOTAL, LATE_ROWS_TOTAL, CommitRecord

__all__ = ["METRICS", "Measured", "measured", "measured_record", "metrics_text", "text_of"]

METRICS: Mapping[str, str] = {
    "zset_join_last_epoch": "Number of the newest committed epoch.",
    "zset_join_last_epoch_timestamp_seconds": "Processing time of the newest committed epoch, in seconds since 1970.",
    "zset_join_buckets": "Parts of the state.",
    "zset_join_epoch_rows_in": "Rows of a source in the newest epoch.",
    "zset_join_epoch_late_rows": "Rows of a source in the newest epoch at or before its watermark.",
    "zset_join_late_rows_total": "Rows of a source at or before its watermark since the start of the query.",
    "zset_join_epoch_late_changes": "Changes of an input in the newest epoch that came behind what is kept.",
    "zset_join_late_changes_total": "Changes of an input that came behind what is kept since the start of the query.",
    "zset_join_epoch_answer_rows": "Changed rows of a view in the newest epoch.",
    "zset_join_epoch_retractions": "Rows of a view that the newest epoch retracted.",
    "zset_join_epoch_rejected_rows": "Dead letters of the newest epoch.",
    "zset_join_epoch_seconds": "Wall clock of a part of the newest epoch, in seconds.",
    "zset_join_stage_seconds": "Wall clock of a stage in the newest epoch, in seconds.",
    "zset_join_stage_rows_in": "Rows that reached a stage in the newest epoch.",
    "zset_join_stage_rows_out": "Rows that a stage answered in the newest epoch.",
    "zset_join_stage_log_bytes": "Bytes of the logs of a stage in the checkpoint, all buckets.",
    "zset_join_stage_snapshot_bytes": "Bytes of the snapshots of a stage in the checkpoint, all buckets.",
    "zset_join_stage_state_bytes": "Bytes that a stage held in memory before the newest epoch, one kind of rows each.",
    "zset_join_watermark_timestamp_seconds": "Watermark of a source after the newest epoch, in seconds since 1970.",
    "zset_join_watermark_lag_seconds": "Processing time of the newest epoch minus the watermark of a source, in seconds.",
}
"""Name to its help, in the order of the text. All have the label `query`, the id of the query."""

_US = 1_000_000
_OF_SOURCES = {
    "epoch_late_rows": "late_rows",
    "late_rows_total": LATE_ROWS_TOTAL,
    "epoch_late_changes": "late_changes",
    "late_changes_total": LATE_CHANGES_TOTAL,
}
_STAGE_WATERMARK = "stage:"


@dataclass(frozen=True, slots=True)
class Measured:
    """The values of one checkpoint."""

    query_id: str
    epoch: int | None
    values: Mapping[str, list[tuple[Mapping[str, str], float]]] = field(default_factory=dict)

    def by(self, name: str, label: str) -> dict[str, float]:
        """Return the values of a metric by one of its labels, added up."""
        found: dict[str, float] = {}
        for labels, value in self.values.get(name, ()):
            found[labels.get(label, "")] = found.get(labels.get(label, ""), 0) + value
        return found


def measured(checkpoint: str | Path) -> Measured:
    """Return the numbers of the newest epoch."""
    committed = read_committed(str(checkpoint))
    if committed is None:
        raise no_checkpoint(str(checkpoint))
    return measured_record(committed.files.query_id, committed.buckets, committed.last)


def measured_record(query_id: str, buckets: int, record: CommitRecord | None) -> Measured:
    values: dict[str, list[tuple[Mapping[str, str], float]]] = {"zset_join_buckets": [({}, buckets)]}
    if record is not None:
        for name, labels, value in _of_record(record):
            values.setdefault(name, []).append((labels, value))
    return Measured(query_id, None if record is None else record.epoch, values)


def metrics_text(checkpoint: str | Path) -> str:
    """Return the numbers of the newest epoch in Prometheus' text format, version 0.0.4."""
    return text_of(measured(checkpoint))


def text_of(found: Measured) -> str:
    """Return numbers in Prometheus' text format, version 0.0.4."""
    lines = []
    for name, meaning in METRICS.items():
        if name not in found.values:
            continue
        lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}"]
        for labels, value in found.values[name]:
            written = ",".join(f'{key}="{_escaped(text)}"' for key, text in {"query": found.query_id, **labels}.items())
            lines.append(f"{name}{{{written}}} {value!r}")
    return "\n".join(lines) + "\n"


def _of_record(record: CommitRecord) -> Iterator[tuple[str, Mapping[str, str], float]]:
    progress = record.progress
    yield "zset_join_last_epoch", {}, record.epoch
    if record.processing_time_us is not None:
        yield "zset_join_last_epoch_timestamp_seconds", {}, record.processing_time_us / _US
    for name, key in (("epoch_rows_in", "rows_in" if "rows_in" in progress else "rows"), *_OF_SOURCES.items()):
        for source, rows in progress.get(key, {}).items():
            yield f"zset_join_{name}", {"source": source}, rows
    yield from _of_views(progress)
    put_aside = progress.get("quarantined", progress.get("rejected_rows"))
    if put_aside is not None:
        yield "zset_join_epoch_rejected_rows", {}, sum(put_aside.values()) if isinstance(put_aside, Mapping) else put_aside
    yield from _of_stages(progress)
    yield from _of_files(record)
    for source, watermark in record.watermarks.items():
        if source.startswith(_STAGE_WATERMARK):
            continue
        yield "zset_join_watermark_timestamp_seconds", {"source": source}, watermark / _US
        if record.processing_time_us is not None:
            yield "zset_join_watermark_lag_seconds", {"source": source}, (record.processing_time_us - watermark) / _US


def _of_views(progress: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, str], float]]:
    """Yield the answers: of each view where there are several, else of the only one, whose label is empty."""
    for view, counts in progress.get("views", {"": progress}).items():
        rows = counts.get("delta_rows", counts.get("answer_rows"))
        if rows is not None:
            yield "zset_join_epoch_answer_rows", {"view": view}, rows
        if counts.get("retractions") is not None:
            yield "zset_join_epoch_retractions", {"view": view}, counts["retractions"]


def _of_stages(progress: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, str], float]]:
    seconds = progress.get("seconds", {})
    for part, took in seconds.items():
        if isinstance(took, int | float):
            yield "zset_join_epoch_seconds", {"part": part}, took
    for stage, took in seconds.get("stages", {}).items():
        yield "zset_join_stage_seconds", {"stage": stage}, took
    groups: tuple[str, ...] = ("remembers",)
    if "delta_rows" in progress:  # of Spark: `stages` counts states there, beside `joins`, `aggregates` and `routes`
        groups = ("joins", "aggregates", "routes", "stages")
        for stage, rows in progress.get("rows_by_stage", {}).items():
            yield "zset_join_stage_rows_in", {"stage": stage}, sum(rows)
    else:
        for stage, work in progress.get("stages", {}).items():
            for name in ("seconds", "rows_in", "rows_out"):
                yield f"zset_join_stage_{name}", {"stage": stage}, work[name]
    states = {stage: held for group in groups for stage, held in progress.get(group, {}).items()}
    if progress.get("state"):
        states = {progress.get("state_of", "first join"): progress["state"], **states}
    for stage, held in states.items():
        for name, count in held.items():
            if name.endswith("_bytes") and isinstance(count, int):
                yield "zset_join_stage_state_bytes", {"stage": stage, "rows": name.removesuffix("_bytes")}, count


def _of_files(record: CommitRecord) -> Iterator[tuple[str, Mapping[str, str], float]]:
    logs: dict[str, int] = {}
    snapshots: dict[str, int] = {}
    for key, history in record.histories.items():
        stage = key.rpartition("/")[0]
        logs[stage] = logs.get(stage, 0) + history.log_bytes
        snapshots[stage] = snapshots.get(stage, 0) + (0 if history.snapshot is None else history.snapshot.bytes)
    for name, sizes in (("log", logs), ("snapshot", snapshots)):
        for stage, size in sizes.items():
            yield f"zset_join_stage_{name}_bytes", {"stage": stage}, size


def _escaped(text: str) -> str:
    r"""Return a text as it is between the quotes of a label.

    >>> _escaped('a"b')
    'a\\"b'
    """
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
