"""The contents of `Pipeline.progress`, and the counts and limits that a pipeline shows.

The law: of every source, rows = rows applied + rows set aside; what cannot be read is no row yet, and counted apart.

OpenTelemetry spans of epochs: one per committed epoch, with one below it per part of the epoch and per stage.

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
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from zset_join.checkpoint.record import LATE_CHANGES_TOTAL, LATE_ROWS_TOTAL
from zset_join.plan.query_plan import QueryPlan
from zset_join.runners.common.rejected import late_change_counts
from zset_join.runners.local.durable import PipelineDirectory
from zset_join.runners.local.engine import AnsweredEpoch, why_together
from zset_join.runners.local.watermarks import KnownTimes, Watermarks
from zset_join.sources.source import Undecodable
from zset_join.stages.stage import StageOptions
from zset_join.zset import ZSet
from zset_join.zset.protocol import DurableOperator

__all__ = [
    "epoch_counts",
    "explained_budgets",
    "explained_state",
    "explained_threads",
    "statistics_of",
    "write_epoch_span",
    "write_span",
    "writes_spans",
]

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


def statistics_of(
    plan: QueryPlan, watermarks: Watermarks, operators: Mapping[int, DurableOperator], counts: Mapping[str, Mapping[str, int]]
) -> dict[str, Mapping[str, Any]]:
    """Return, per stage, the counts of its operator and its watermark, and per source its event time."""
    known = watermarks.known
    statistics: dict[str, Mapping[str, Any]] = {}
    for node in plan.nodes:
        operator = operators.get(node.number)
        own: Mapping[str, Any] = counts.get(plan.state_of[node.number].name, {})
        if operator is not None:
            own = {**operator.statistics(), "resident_bytes": operator.resident_bytes()}
        statistics[node.name] = {**own, "watermark_us": known.stages[node.number], "held_by": watermarks.holding(node.number)}
    for name, one in known.sources.items():
        statistics[f"source {name}"] = {
            "largest_us": watermarks.largest_us(name),
            "watermark_us": one.watermark_us,
            "late_rows": one.late_rows,
            "active_us": one.active_us,
            "is_idle": watermarks.is_idle(name),
        }
    return statistics


def explained_state(statistics: Mapping[str, Mapping[str, Any]]) -> str:
    """Return what the stages that join keep now, a line per stage that keeps rows, each after a line break."""
    text = ""
    for stage, held in statistics.items():
        kept = [f"{held[f'{side}_rows']:,} {side} rows" for side in ("left", "right") if held.get(f"{side}_rows")]
        size = f" in {held['resident_bytes']:,} bytes" if "resident_bytes" in held else ""
        text += f"\nState: {stage} keeps {' and '.join(kept)}{size}" if kept else ""
    return text


def explained_budgets(options: StageOptions) -> str:
    """Return how much of the state may be in memory, a line per budget, each after a line break."""
    text = ""
    for what, budget in {"rows of joins": options.hot_budget, "groups": options.table_budget}.items():
        if budget is not None:
            cold = budget.describe_cold_store()
            text += f"\nState: of {what} at most {budget.describe()} per stage in memory, the rest on local disk\n  {cold}"
    return text


def explained_threads(plan: QueryPlan, options: StageOptions, threads: int) -> str:
    """Return which stages several threads work on at the same time, and why not on the others, each line after a line break."""
    if threads == 1:
        return ""
    reasons = {state: why_together(state, options) for state in plan.states}
    parted = [str(number) for state, why in reasons.items() if why is None for number in state.readers]
    lines = [f"Threads: {threads}; rows are parted by key in stage {', '.join(parted)}" if parted else f"Threads: {threads}"]
    for state, why in reasons.items():
        if why is not None:
            lines.append(f"  stage {', '.join(map(str, state.readers))} stays in one bucket: {why}")
    return "".join(f"\n{line}" for line in lines)


_DIGITS = 6
_COUNTED = ("answer_rows", "retractions")


def epoch_counts(
    deltas: Mapping[str, ZSet],
    answered: AnsweredEpoch,
    unread: Sequence[Undecodable],
    lookups: Mapping[str, Mapping[str, int]],
    *,
    last: Mapping[str, Any],
    times: KnownTimes | None = None,
) -> dict[str, Any]:
    """Return the counts of an epoch, JSON-ready; `stages` has those that ran."""
    undecodable: dict[str, int] = {}
    for unreadable in unread:
        undecodable[unreadable.source] = undecodable.get(unreadable.source, 0) + unreadable.records.num_rows
    before = (times or answered.times).sources
    late = {name: one.late_rows for name, one in answered.times.sources.items()}
    may_be_late = answered.rejected or LATE_CHANGES_TOTAL in last
    rows = {name: len(delta) for name, delta in deltas.items()}
    views = {name: _counted(delta.weights) for name, delta in answered.answers.items()}
    only = next(iter(views)) if len(views) == 1 else None
    for one in answered.rejected:
        if one.is_of_source:
            rows[one.name] += len(one.rejected)
    return {
        "epoch": answered.epoch,
        "rows": rows,
        **(views[only] if only is not None else {what: sum(one[what] for one in views.values()) for what in _COUNTED}),
        **({} if only is not None else {"views": views}),
        "rejected_rows": sum(len(one.rejected) for one in answered.rejected) if answered.rejected else 0,
        **({"undecodable": undecodable} if undecodable else {}),
        **({"lookups": dict(lookups)} if lookups else {}),
        **({"corrections": answered.corrections} if answered.corrections else {}),
        "seconds": {"answer": round(answered.seconds, _DIGITS)},
        "stages": {
            name: {
                "seconds": round(one.seconds, _DIGITS),
                "rows_in": one.rows_in,
                "rows_out": one.rows_out,
                "inputs": list(one.inputs),
            }
            for name, one in answered.work.items()
        },
        "late_rows": {name: count - before[name].late_rows for name, count in late.items()},
        LATE_ROWS_TOTAL: late,
        **(late_change_counts([(one.name, one.late_changes) for one in answered.rejected], last) if may_be_late else {}),
    }


def write_span(
    view: str, directory: PipelineDirectory | None, progress: Mapping[str, Any], commit: float, output: float
) -> None:
    """Write the span of an epoch that ended just now, given the seconds of its commit and of its outputs."""
    query_id, runner = (None, "process") if directory is None else (directory.query_id, directory.runner)
    parts = {**progress["seconds"], "commit": commit, "output": output}
    write_epoch_span(view=view, query_id=query_id, runner=runner, progress=progress, parts=parts)


def _counted(weights: npt.NDArray[np.int64]) -> dict[str, int]:
    """Return the counts of the answer of a view; retractions come first, so these are not counted one by one."""
    rows = len(weights)
    return {"answer_rows": rows, "retractions": bisect_left(weights, 0) if rows else 0}
