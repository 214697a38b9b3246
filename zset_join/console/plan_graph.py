"""A plan as a graph for the page: sources, stages and views as nodes, feeds as edges, each stage with its facts and its SQL.

The law: it is `QueryPlan.explain` and the batch query of `verify()`, cut into pieces, and adds nothing to them.
"""

from __future__ import annotations

from typing import Any

from zset_join.console.shown import shown_text
from zset_join.core.errors import ZsetJoinError
from zset_join.plan.query_plan import Feed, PlanSource, QueryPlan, one_view
from zset_join.tools.batch import DUCKDB, BatchTimes, batch_parts

__all__ = ["plan_graph"]

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
