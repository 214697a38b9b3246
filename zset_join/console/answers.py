"""The answers of `Watched` as the page has them, from what checkpoints, pipelines and reports hold.

The law: every answer is JSON-ready and of bounded size.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from zset_join.console.shown import MOST_ROWS, row_text, shown, shown_columns, shown_table, shown_text, typed_values
from zset_join.console.watched import Answer
from zset_join.core.row_conversion import rows_having
from zset_join.evolution.differences import PlanDiff
from zset_join.plan.query_plan import QueryPlan
from zset_join.tools.dead_letters import letter_text
from zset_join.tools.reports import RowHistory
from zset_join.zset import ZSet

__all__ = ["changed_rows", "differences_of", "events_of", "letters_of", "rows_of_view", "verdict", "waiting_in"]

_MOST_LETTERS = 200
_MOST_SAMPLES = 50


def changed_rows(epoch: int, view: str, delta: ZSet, *, most: int) -> Answer:
    """Return the first rows of a delta for `Watched.changes`."""
    rows = shown_table(delta.rows, most=most)
    columns, weights = shown_columns(delta.rows.schema), delta.weights[: len(rows)].tolist()
    return {"epoch": epoch, "view": view, "columns": columns, "rows": rows, "weights": weights, "total": len(delta)}


def rows_of_view(contents: ZSet, where: Mapping[str, str]) -> Answer:
    """Return the rows of a view that have values, for `Watched.rows`."""
    mask = rows_having(contents.rows, typed_values(contents.rows.schema, where))
    few = contents.rows.filter(mask)
    weights = pa.array(contents.weights).filter(mask).slice(0, MOST_ROWS).to_pylist()
    return {"columns": shown_columns(few.schema), "rows": shown_table(few), "weights": weights, "total": few.num_rows}


def events_of(history: RowHistory) -> Answer:
    """Return how rows arrived and went, for `Watched.explain_row`."""
    events = [
        {
            "epoch": event.epoch,
            "emitted": [[row_text(row), weight] for row, weight in event.emitted],
            "changes": [{"input": one.stream, "row": row_text(one.row), "weight": one.weight} for one in event.changes],
            "is_snapshot": event.is_snapshot,
            "time": event.time,
        }
        for event in history.events[-MOST_ROWS:]
    ]
    return {
        "events": events,
        "is_complete": history.is_complete and len(events) == len(history.events),
        "text": str(history)[:20_000],
    }


def verdict(report: Any) -> Answer:
    """Return a report of `verify()`, of either runner, for `Watched.verify`."""
    differences = [
        {"row": row_text(row), "expected": expected, "actual": actual}
        for row, expected, actual in (getattr(report, "differences", ()) or ())
    ]
    return {
        "equal": report.equal,
        "epoch": report.epoch,
        "expected_rows": report.expected_rows,
        "actual_rows": report.actual_rows,
        "different_rows": report.different_rows,
        "unjudged_rows": getattr(report, "unjudged_rows", 0),
        "differences": differences,
    }


def letters_of(letters: pa.Table) -> Answer:
    """Return the newest dead letters, for `Watched.dead_letters`."""
    newest = letters.slice(max(0, letters.num_rows - _MOST_LETTERS)).to_pylist()[::-1]
    shown_letters = [
        {
            **{
                name: shown(one.get(name))
                for name in ("stream", "epoch", "topic", "partition", "offset", "code", "reason", "replayed")
            },
            "raw": shown_text(letter_text(one)),
        }
        for one in newest
    ]
    return {"letters": shown_letters, "total": letters.num_rows}


def waiting_in(plan: QueryPlan, summary: Mapping[str, Any]) -> Answer:
    """Return the rows that wait for time, for `Watched.waiting`, from the summary of the newest epoch."""
    stages = []
    for node in plan.nodes:
        state = plan.state_of[node.number].name
        due = summary.get("dues", {}).get(state)
        lookups = summary.get("lookups", {}).get(node.name)
        if not (node.stage.waits_for_time or node.stage.parks or due or lookups):
            continue
        watermarks = summary.get("watermarks", {})
        stages.append(
            {
                "stage": node.name,
                "title": shown_text(node.stage.explain(None)[0]),
                "due": due,
                "watermark_us": watermarks.get(f"stage:{node.name}"),
                "held_by": summary.get("held_by", {}).get(node.name),
                "remembers": summary.get("remembers", {}).get(state, {}),
                "lookups": lookups,
                "tables": [f"{state.replace('-', '_')}_{table}" for table in node.stage.state_tables],
            }
        )
    return {"stages": stages, "epoch": summary.get("epoch"), "at_us": summary.get("at_us")}


def differences_of(diff: PlanDiff) -> Answer:
    """Return how the answers of a changed query would differ, for `Watched.diff`: counts and some rows of each view."""
    views = []
    for view in diff.views.values():
        pairs = [] if view.is_empty else view.samples(_MOST_SAMPLES)
        views.append(
            {
                "view": shown_text(view.name),
                "status": view.status,
                "before": view.before,
                "counts": dict(view.counts),
                "pairs": [[None if one is None else row_text(one) for one in pair] for pair in pairs],
            }
        )
    return {"epoch": diff.epoch, "lines": [shown_text(line) for line in diff.lines()], "views": views}
