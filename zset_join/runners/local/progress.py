"""The contents of `Pipeline.progress`, and the counts and limits that a pipeline shows.

The law: of every source, rows = rows applied + rows set aside; what cannot be read is no row yet, and counted apart.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from zset_join.checkpoint.record import LATE_CHANGES_TOTAL, LATE_ROWS_TOTAL
from zset_join.plan.query_plan import QueryPlan
from zset_join.runners.common.epoch_spans import write_epoch_span
from zset_join.runners.common.rejected import late_change_counts
from zset_join.runners.local.durable import PipelineDirectory
from zset_join.runners.local.engine import AnsweredEpoch
from zset_join.runners.local.stage_states import why_together
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
    "write_span",
]


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
