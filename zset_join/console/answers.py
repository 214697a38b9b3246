"""The answers of `Watched` as the page has them, from what checkpoints, changelogs, pipelines and reports hold.

The law: every answer is JSON-ready and of bounded size. Nothing is kept or claimed for the page; what a query has cleared away
is not shown.

Cost: of changes the files of a few epochs, of a view everything that it holds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from zset_join.checkpoint.answer_parts import read_arrow_parts
from zset_join.checkpoint.files import CheckpointFiles
from zset_join.checkpoint.reading import CommittedState
from zset_join.checkpoint.record import BucketHistory, CommitRecord, PartEntry, read_log
from zset_join.checkpoint.snapshot import read_snapshot
from zset_join.console.watched import MOST_ROWS, Answer, row_text, shown, shown_columns, shown_table, shown_text, typed_values
from zset_join.core.row_conversion import rows_having
from zset_join.evolution.differences import PlanDiff
from zset_join.plan.query_plan import QueryPlan
from zset_join.sinks.changelog_directory import published_name
from zset_join.storage.folder import open_folder
from zset_join.tools.dead_letters import letter_text
from zset_join.tools.reports import RowHistory
from zset_join.zset import ZSet, single_batch

__all__ = [
    "changed_rows",
    "changes_of",
    "differences_of",
    "events_of",
    "letters_of",
    "logged_changes",
    "newest",
    "rows_of_view",
    "verdict",
    "view_rows",
    "waiting_in",
]

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


_MOST_LOGGED = 100
_VIEW, _WEIGHT = "view", "__weight"
_PARQUET = ("changelog", "delta", "parquet")
_SIGNS = ("_weight", "_row_kind", "_change_type")
_CHANGELOG_WAY = re.compile(r"ChangelogParts\(directory='([^']*)'\)")
"""How a part of an answer names the Parquet changelog that it was written for."""


def newest(changes: list[Answer]) -> list[Answer]:
    """Return the newest changes, in the order of epochs, with at most `MOST_ROWS` rows."""
    chosen: list[Answer] = []
    left = MOST_ROWS
    for one in sorted(changes, key=lambda one: -one["epoch"]):
        if left > 0:
            chosen.append({**one, "rows": one["rows"][:left], "weights": one["weights"][:left]})
            left -= len(one["rows"])
    return chosen[::-1]


def logged_changes(committed: CommittedState, plan: QueryPlan, view: str, after: int) -> list[Answer]:
    """Return the newest changes of a view that is kept, from its log; changes that a snapshot absorbed are gone."""
    history = _view_history(committed, plan, view)
    schema = plan.output_of(view).schema
    found: list[Answer] = []
    left = MOST_ROWS
    for log in () if history is None else reversed(history.logs):
        if log.last_epoch <= after or left <= 0:
            break
        of_file = [
            changed_rows(logged.tick.epoch, view, logged.deltas[0], most=MOST_ROWS)
            for logged in read_log(committed.files, log, schemas=[schema])
            if logged.tick.epoch > after and len(logged.deltas[0])
        ][-_MOST_LOGGED:]
        found += of_file
        left -= sum(len(one["rows"]) for one in of_file)
    return found


def changes_of(files: CheckpointFiles, plan: QueryPlan, record: CommitRecord) -> list[Answer]:
    """Return the answer of an epoch if its files still exist, else those of the Parquet changelog."""
    found = []
    for view in plan.views:
        of_view = [part for part in record.parts if len(plan.views) == 1 or view.name in (part.way, part.view)]
        parts = _readable(files, record, of_view)
        rows: list[list[Any]] = []
        weights: list[int] = []
        columns: list[str] = []
        for part, place in parts:
            if len(rows) >= MOST_ROWS:
                break
            if part.form == "arrow":
                for delta in read_arrow_parts(files, [part]):
                    columns = shown_columns(delta.rows.schema)
                    few = shown_table(delta.rows, most=MOST_ROWS - len(rows))
                    weights += delta.weights[: len(few)].tolist()
                    rows += few
                continue
            table = pq.read_table(pa.BufferReader(files.view(part.file) if place is None else place))
            table = table.drop_columns([name for name in _SIGNS if name in table.column_names])
            columns = shown_columns(table.schema)
            few = shown_table(table, most=MOST_ROWS - len(rows))
            weights += [-1 if at < part.retractions else 1 for at in range(len(few))]  # retractions come first
            rows += few
        if rows:
            total = sum(part.file.rows for part, _ in parts)
            found.append(
                {"epoch": record.epoch, "view": view.name, "columns": columns, "rows": rows, "weights": weights, "total": total}
            )
    return found


def _view_history(committed: CommittedState, plan: QueryPlan, view: str) -> BucketHistory | None:
    """Return the files of a kept view; None if it is not kept or empty."""
    number = [one.name for one in plan.views].index(view)
    return committed.histories.get(f"{_VIEW}-{number}/0" if len(plan.views) > 1 else f"{_VIEW}/0")


def view_rows(committed: CommittedState, plan: QueryPlan, view: str) -> ZSet:
    """Return the rows of a kept view, each distinct row with its weight."""
    schema = plan.output_of(view).schema
    history = _view_history(committed, plan, view)
    parts: list[ZSet] = []
    if history is not None and history.snapshot is not None:
        table = read_snapshot(committed.files, history.snapshot)["view"]
        weights = single_batch(table.select([_WEIGHT])).column(0).to_numpy()
        parts.append(ZSet(single_batch(table.drop_columns([_WEIGHT])).cast(schema), weights))
    for log in () if history is None else history.logs:
        parts += [logged.deltas[0] for logged in read_log(committed.files, log, schemas=[schema])]
    if not parts:
        return ZSet.empty(schema)
    return ZSet.concat(parts, schema=schema).consolidated()


def _readable(
    files: CheckpointFiles, record: CommitRecord, parts: Sequence[PartEntry]
) -> list[tuple[PartEntry, pa.Buffer | None]]:
    """Return the parts of the first way of writing whose files are present, each with its bytes where a changelog has them."""
    by_way: dict[str, list[PartEntry]] = {}
    for part in parts:
        by_way.setdefault(part.way, []).append(part)
    for way, of_way in by_way.items():
        if all(part.form in ("arrow", *_PARQUET) and files.folder.size(part.file.name) is not None for part in of_way):
            return [(part, None) for part in of_way]
        directory = _CHANGELOG_WAY.search(way)
        if directory is not None:
            folder = open_folder(directory[1])
            places = [folder.read(published_name(record.epoch, part.file.name)) for part in of_way]
            if all(place is not None for place in places):
                return list(zip(of_way, places, strict=True))
    return []
