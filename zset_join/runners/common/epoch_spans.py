"""OpenTelemetry spans of epochs: one per committed epoch, with one below it per part of the epoch and per stage.

    zset_join.epoch             zset_join.view, .query, .epoch, .runner, .rows_in, .rows_out, .retractions, .rejected_rows
      zset_join.answer, ...     the parts, in order: collect, answer or job, commit, output
        zset_join.stage         of every stage that did something: zset_join.stage, .rows_in, .rows_out

Only the API package of OpenTelemetry is used, and only in a process that has imported it, as one has that configures an SDK.

The law: a span is written once its epoch is committed and its outputs have it, from the seconds that were measured; an epoch
that fails has none. Spans of stages begin where their part begins: when each of them ran within it was not measured.

Cost: without OpenTelemetry one look into a dict per epoch; with it some ten microseconds per span.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

__all__ = ["write_epoch_span", "writes_spans"]

_NS = 1_000_000_000
_WORKING = ("answer", "job")
"""The parts in which stages work."""


def writes_spans() -> bool:
    """Return whether this process uses OpenTelemetry."""
    return "opentelemetry.trace" in sys.modules


def write_epoch_span(
    *, view: str, query_id: str | None, runner: str, progress: Mapping[str, Any], parts: Mapping[str, float]
) -> None:
    """Write the span of an epoch that ended just now, where this process uses OpenTelemetry."""
    api: Any = sys.modules.get("opentelemetry.trace")
    if api is None:
        return
    tracer = api.get_tracer("zset_join")
    end = time.time_ns()
    begin = end - sum(_ns(took) for took in parts.values())
    rows_in: Mapping[str, int] = progress.get("rows_in", progress.get("rows", {}))
    rejected = progress.get("quarantined", progress.get("rejected_rows", 0))
    known = {
        "view": view,
        "query": query_id,
        "epoch": progress["epoch"],
        "runner": runner,
        "rows_in": sum(rows_in.values()),
        "rows_out": progress.get("delta_rows", progress.get("answer_rows")),
        "retractions": progress.get("retractions"),
        "rejected_rows": sum(rejected.values()) if isinstance(rejected, Mapping) else rejected,
    }
    epoch = tracer.start_span("zset_join.epoch", start_time=begin, attributes=_named(known))
    inside = api.set_span_in_context(epoch)
    at = begin
    for part, took in parts.items():
        one = tracer.start_span(f"zset_join.{part}", context=inside, start_time=at)
        if part in _WORKING:
            _write_stages(api, tracer, one, at, progress)
        at += _ns(took)
        one.end(end_time=at)
    epoch.end(end_time=end)


def _write_stages(api: Any, tracer: Any, parent: Any, begin: int, progress: Mapping[str, Any]) -> None:
    inside = api.set_span_in_context(parent)
    rows: Mapping[str, Any] = progress.get("rows_by_stage", {})
    if "delta_rows" in progress:  # of executors: `stages` holds counts of states there
        by_stage: Mapping[str, float] = progress.get("seconds", {}).get("stages", {})
        took = {name: (seconds, {"rows_in": sum(rows.get(name, ()))}) for name, seconds in by_stage.items()}
    else:
        work: Mapping[str, Any] = progress.get("stages", {})
        took = {name: (one["seconds"], {what: one[what] for what in ("rows_in", "rows_out")}) for name, one in work.items()}
    for name, (seconds, counts) in took.items():
        span = tracer.start_span(
            "zset_join.stage", context=inside, start_time=begin, attributes=_named({"stage": name, **counts})
        )
        span.end(end_time=begin + _ns(seconds))


def _named(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {f"zset_join.{name}": value for name, value in attributes.items() if value is not None}


def _ns(seconds: float) -> int:
    return int(seconds * _NS)
