"""The summary of one epoch, as the charts and the plan show it.

The law: a summary is immutable and small: no rows, at most a few numbers per source, view and stage. What an epoch did not
record is None or missing; nothing is estimated.

Both runners write `progress` into their commit records under names of their own; here they are brought under one set of names.

`plan_graph`: a plan as a graph for the page: sources, stages and views as nodes, feeds as edges, each stage with its facts and
its SQL.

The law: it is `QueryPlan.explain` and the batch query of `verify()`, cut into pieces, and adds nothing to them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from zset_join.checkpoint.record import LATE_CHANGES_TOTAL, LATE_ROWS_TOTAL, CommitRecord
from zset_join.console.watched import shown, shown_text
from zset_join.core.errors import ZsetJoinError
from zset_join.plan.query_plan import Feed, PlanSource, QueryPlan, one_view
from zset_join.tools.batch import DUCKDB, BatchTimes, batch_parts
from zset_join.zset.protocol import NextDue

__all__ = ["EpochSummary", "plan_graph", "summary_of_progress", "summary_of_record"]

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


_MOST_SQL = 20_000


def plan_graph(plan: QueryPlan, *, buckets: int | None) -> dict[str, Any]:
    """Return `nodes` and `edges`, JSON-ready."""
    sql, why_not = _sql_by_stage(plan)
    nodes: list[dict[str, Any]] = [_source(source) for source in plan.sources]
    edges: list[dict[str, Any]] = []
    for node in plan.nodes:
        title, *facts = node.stage.explain(buckets)
        shared = plan.state_of[node.number]
        nodes.append(
            {
                "id": f"stage {node.number}",
                "kind": "stage",
                "name": node.name,
                "state": shared.name,
                "title": shown_text(title),
                "facts": [shown_text(fact.strip()) for fact in facts],
                "tables": {name: list(key.columns) for name, key in node.stage.state_tables.items()},
                "shares_state_with": [plan.nodes[reader].name for reader in shared.readers if reader != node.number],
                "columns": list(node.stage.output.schema.names),
                "key": [list(given.key) for given in node.stage.inputs],
                "inputs": [given.relation.name for given in node.stage.inputs],
                "timed_sources": list(plan.timed_sources(node.number)),
                "waits_for_time": node.stage.waits_for_time,
                "views": list(plan.views_of(node.number)),
                "sql": sql.get(node.number),
                "why_no_sql": why_not,
            }
        )
        for place, (feeds, given) in enumerate(zip(node.feeds, node.stage.inputs, strict=True)):
            edges += [_edge(feed, f"stage {node.number}", place, given.key) for feed in feeds]
    for view in plan.views:
        columns = list(plan.output_of(view.name).schema.names)
        nodes.append(
            {"id": f"view {view.name}", "kind": "view", "name": view.name, "title": f'View "{view.name}"', "columns": columns}
        )
        edges += [_edge(feed, f"view {view.name}", 0, ()) for feed in view.feeds]
    return {"nodes": nodes, "edges": edges}


def _source(source: PlanSource) -> dict[str, Any]:
    relation = source.relation
    facts = [f"mode: {relation.mode}"]
    for what, columns in (("primary key", relation.primary_key), ("newest by", relation.sequence_by)):
        if columns:
            facts.append(f"{what}: {', '.join(columns)}")
    if relation.event_time is not None:
        delay = "" if relation.watermark_delay is None else f", watermark {relation.watermark_delay} behind"
        facts.append(f"event time: {relation.event_time}{delay}")
    if source.has_baseline:
        facts.append("starts from a baseline")
    return {
        "id": f"source {source.name}",
        "kind": "source",
        "name": source.name,
        "title": f'Source "{source.name}"',
        "facts": [shown_text(fact) for fact in facts],
        "columns": [f"{name}: {relation.schema.field(name).type}" for name in source.visible],
    }


def _edge(feed: Feed, target: str, place: int, key: tuple[str, ...]) -> dict[str, Any]:
    origin = f"source {feed.origin}" if isinstance(feed.origin, str) else f"stage {feed.origin}"
    steps = [shown_text(step.describe()) for step in feed.steps]
    return {"from": origin, "to": target, "input": place, "steps": steps, "shuffled_by": list(key)}


def _sql_by_stage(plan: QueryPlan) -> tuple[dict[int, str], str | None]:
    """Return the batch query of every stage by its number; without one, why there is none."""
    found: dict[int, str] = {}
    why_not = None
    for view in plan.views:
        numbers = plan.stages_of(view.name)
        try:
            parts = batch_parts(one_view(plan, view.name), [BatchTimes() for _ in numbers], DUCKDB).parts
        except ZsetJoinError as error:
            why_not = shown_text(str(error))
            continue
        for part in parts:
            kind, _, number = part.name.partition("_")
            if kind == "stage" and number.isdecimal():
                text = part.query if len(part.query) <= _MOST_SQL else part.query[:_MOST_SQL] + "…"
                found.setdefault(numbers[int(number)], text)
    return found, why_not
