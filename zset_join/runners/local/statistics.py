"""Counts and limits of a pipeline, for users."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zset_join.plan.query_plan import QueryPlan
from zset_join.runners.local.stage_states import why_together
from zset_join.runners.local.watermarks import Watermarks
from zset_join.stages.stage import StageOptions
from zset_join.zset.protocol import DurableOperator

__all__ = ["explained_budgets", "explained_state", "explained_threads", "statistics_of"]


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
