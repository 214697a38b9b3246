"""A checkpoint as the page shows it: of a query that runs, of one that is stopped, of one that is damaged.

The law: nothing is claimed and nothing is written. What cannot be read is reported in its place; everything else is shown.

A checkpoint keeps few commit records; the summaries of up to `KEPT_EPOCHS` epochs that were seen are kept here.

Cost: a poll lists one folder, and reads the records that are new.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from zset_join.checkpoint.answer_parts import read_arrow_parts
from zset_join.checkpoint.files import CheckpointFiles
from zset_join.checkpoint.log import read_log
from zset_join.checkpoint.owner import owner_seen
from zset_join.checkpoint.plan import query_plan
from zset_join.checkpoint.reading import (
    CommittedState,
    checkpoint_folder,
    no_checkpoint,
    read_committed,
    stored_buckets,
    stored_description,
    stored_query_id,
)
from zset_join.checkpoint.record import BucketHistory, CommitRecord
from zset_join.checkpoint.row_history import RowHistory
from zset_join.console.damage import damage_of, known_records
from zset_join.console.epochs import EpochSummary, summary_of_record
from zset_join.console.plan_graph import plan_graph
from zset_join.console.shown import (
    MOST_ROWS,
    matching,
    row_text,
    shown,
    shown_columns,
    shown_table,
    shown_text,
    typed_values,
    weighted,
)
from zset_join.console.state_tables import StateTables
from zset_join.console.view_rows import keeps_views, view_history, view_rows
from zset_join.console.watched import Answer
from zset_join.core.errors import OptionError, StateError, ZsetJoinError
from zset_join.plan.query_plan import QueryPlan
from zset_join.tools.dead_letters import letter_text, read_letters
from zset_join.zset import ZSet

__all__ = ["KEPT_EPOCHS", "WatchedCheckpoint", "changed_rows", "events_of", "letters_of", "rows_of_view", "verdict"]

KEPT_EPOCHS = 1_000
_MOST_LETTERS = 200
_MOST_LOGGED = 100
_PARQUET = ("changelog", "delta", "parquet")

Verify = Callable[[str | None, Callable[[str], None]], Any]
ExplainRow = Callable[[str | None, Mapping[str, Any]], RowHistory]


class WatchedCheckpoint:
    """Watch one checkpoint.

    Args:
        location: `checkpointLocation`, a path or a URI, or the directory of a pipeline.
        verify: compares a view with its batch query, where somebody can; given the view and what to tell each step to.
        explain_row: explains rows of a view, where somebody can; given the view, and columns to values.
        dead_letters: where dead letters are, when `deadLetterPath` put them elsewhere.
    """

    def __init__(
        self,
        location: str | Path,
        *,
        verify: Verify | None = None,
        explain_row: ExplainRow | None = None,
        dead_letters: str | None = None,
    ) -> None:
        self.location = str(location)
        self._verify, self._explain_row, self._letters_path = verify, explain_row, dead_letters
        self._lock = threading.Lock()
        self._seen: dict[int, EpochSummary] = {}
        self._records: dict[int, CommitRecord] = {}
        self._view: tuple[int, str, ZSet] | None = None
        self._state = StateTables(self.location)

    def overview(self) -> Answer:
        """Return what the query is; what is damaged has its message in `trouble`."""
        trouble: list[str] = []

        def tried(read: Callable[[], Any], default: Any) -> Any:
            try:
                return read()
            except (ZsetJoinError, OSError) as error:
                trouble.append(shown_text(str(error)))
                return default

        query_id = tried(lambda: stored_query_id(self.location), None)
        if query_id is None and not trouble:
            trouble.append(str(no_checkpoint(self.location)))
        description = dict(tried(lambda: stored_description(self.location), None) or {})
        buckets = tried(lambda: stored_buckets(self.location), None)
        plan: QueryPlan | None = tried(lambda: query_plan(self.location), None)
        owner = tried(lambda: self._owner(), None)
        return {
            "name": shown_text(self.location),
            "kind": "checkpoint",
            "query_id": query_id,
            "owner": owner,
            "buckets": buckets,
            "plan": None if plan is None else plan_graph(plan, buckets=buckets),
            "views": [] if plan is None else [view.name for view in plan.views],
            "view_columns": {} if plan is None else {v.name: list(plan.output_of(v.name).schema.names) for v in plan.views},
            "options": {shown_text(str(name)): shown(value) for name, value in description.items()},
            "can": {"verify": self._verify is not None, "explain_row": self._explain_row is not None, "search": True},
            "trouble": list(dict.fromkeys(trouble)),
        }

    def epochs(self, after: int) -> Sequence[Answer]:
        """Return the summaries of epochs that are in the checkpoint, or were when this was called before."""
        with self._lock:
            files = self._files()
            for record in self._new_records(files):
                before = self._records.get(record.epoch - 1)
                if before is not None:
                    self._seen[before.epoch] = summary_of_record(before, record)
                self._seen[record.epoch] = summary_of_record(record)
            for epoch in sorted(self._seen)[:-KEPT_EPOCHS]:
                del self._seen[epoch]
            return [self._seen[epoch].to_json() for epoch in sorted(self._seen) if epoch > after]

    def changes(self, *, after: int = -1) -> Answer:
        """Return the newest rows of the changelog, from the epochs whose answers are still there."""
        committed, plan = self._committed(), query_plan(self.location)
        found: list[Answer] = []
        if keeps_views(dict(stored_description(self.location) or {})):
            for view in plan.views:
                found += _logged_changes(committed, plan, view.name, after)
        else:
            records, _ = known_records(
                committed.files, after=max(after, -1 if committed.last is None else committed.last.epoch - 2)
            )
            for record in records:
                found += _changes_of(committed.files, plan, record)
        return {"epochs": _newest(found)}

    def rows(self, table: str | None, where: Mapping[str, str]) -> Answer:
        """Return rows of a view, where the checkpoint keeps it, or of a table of the state."""
        committed, plan = self._committed(), query_plan(self.location)
        kept = keeps_views(dict(stored_description(self.location) or {}))
        views = [view.name for view in plan.views] if kept else []
        epoch = -1 if committed.last is None else committed.last.epoch
        if table is None and views:
            table = views[0]
        if table in views:
            tables = views + self._state_names(epoch)
            return {"tables": tables, "table": table, **rows_of_view(self._view_rows(committed, plan, table, epoch), where)}
        names = self._state.names(epoch)
        chosen = table or next((name for name in names if name != "about"), "about")
        return {"tables": views + names, "table": chosen, **self._state.rows(epoch, chosen, where)}

    def explain_row(self, view: str | None, where: Mapping[str, str]) -> Answer:
        """Return how rows of a view came and went."""
        if self._explain_row is None:
            raise _not_from_here(
                "explain_row", "keep_inputs=True lets a pipeline explain its rows; inside Spark call explain_row()."
            )
        schema = query_plan(self.location).output_of(_view(query_plan(self.location), view)).schema
        return events_of(self._explain_row(view, typed_values(schema, where)))

    def verify(self, view: str | None, tell: Callable[[str], None]) -> Answer:
        """Compare a view with the batch query."""
        if self._verify is None:
            raise _not_from_here(
                "verify", "keep_inputs=True lets a pipeline verify; inside Spark run zset-join verify MODULE:FUNCTION."
            )
        return verdict(self._verify(view, tell))

    def hot_keys(self) -> Answer:
        """Return the keys with the most rows in the state."""
        committed = self._committed()
        return self._state.hot_keys(-1 if committed.last is None else committed.last.epoch)

    def dead_letters(self) -> Answer:
        """Return the newest dead letters."""
        return letters_of(read_letters(self.location, path=self._letters_path))

    def waiting(self) -> Answer:
        """Return what waits for time after the newest epoch."""
        plan = query_plan(self.location)
        last = self.epochs(-1)[-1:]
        return waiting_in(plan, last[0] if last else {})

    def files(self) -> Answer:
        """Return what the checkpoint is made of."""
        committed = self._committed()
        stages = [_history(key, history) for key, history in sorted(committed.histories.items())]
        parts = () if committed.last is None else committed.last.parts
        return {
            "location": shown_text(self.location),
            "owner": self._owner(),
            "buckets": committed.buckets,
            "stages": stages,
            "log_bytes": sum(one["log_bytes"] for one in stages),
            "snapshot_bytes": sum(one["snapshot_bytes"] for one in stages),
            "answer_bytes": sum(part.file.bytes for part in parts),
            "epoch": None if committed.last is None else committed.last.epoch,
            "positions": {} if committed.last is None else {str(k): shown(v) for k, v in committed.last.positions.items()},
        }

    def damage(self) -> Answer:
        """Return what is damaged."""
        return damage_of(self.location)

    def close(self) -> None:
        """Release what was read."""
        self._state.close()

    def _files(self) -> CheckpointFiles:
        query_id = stored_query_id(self.location)
        if query_id is None:
            raise no_checkpoint(self.location)
        return CheckpointFiles(checkpoint_folder(self.location), query_id)

    def _committed(self) -> CommittedState:
        committed = read_committed(self.location)
        if committed is None:
            raise no_checkpoint(self.location)
        return committed

    def _owner(self) -> Answer | None:
        seen = owner_seen(checkpoint_folder(self.location))
        if seen is None:
            return None
        claim, state = seen
        return {"who": shown_text(claim.describe()), "state": state, "since": claim.since, "read_at": time.time()}

    def _new_records(self, files: CheckpointFiles) -> list[CommitRecord]:
        """Return the records that were not read before; of the old ones the newest is kept, to complete its summary."""
        records, _ = known_records(files, after=max(self._records, default=-1))
        if records:
            newest = max(self._records, default=-1)
            kept = {newest: self._records[newest]} if newest in self._records else {}
            self._records = {**kept, **{record.epoch: record for record in records}}
        return records

    def _state_names(self, epoch: int) -> list[str]:
        """Return the tables of the state, where it can be read: a view is shown although a file of the state is damaged."""
        try:
            return self._state.names(epoch)
        except StateError:
            return []

    def _view_rows(self, committed: CommittedState, plan: QueryPlan, view: str, epoch: int) -> ZSet:
        with self._lock:
            if self._view is None or self._view[:2] != (epoch, view):
                self._view = epoch, view, view_rows(committed, plan, view)
            return self._view[2]


def _view(plan: QueryPlan, name: str | None) -> str:
    return plan.view(name or (plan.views[0].name if len(plan.views) == 1 else None)).name


def _not_from_here(what: str, cure: str) -> OptionError:
    return OptionError(f"{what} cannot be answered from the files of this checkpoint. {cure}", code="NOT_FROM_HERE", what=what)


def _newest(changes: list[Answer]) -> list[Answer]:
    """Return the newest changes, in the order of epochs, with at most `MOST_ROWS` rows."""
    chosen: list[Answer] = []
    left = MOST_ROWS
    for one in sorted(changes, key=lambda one: -one["epoch"]):
        if left > 0:
            chosen.append({**one, "rows": one["rows"][:left], "weights": one["weights"][:left]})
            left -= len(one["rows"])
    return chosen[::-1]


def _logged_changes(committed: CommittedState, plan: QueryPlan, view: str, after: int) -> list[Answer]:
    """Return the newest changes of a view that is kept, from its log; what a snapshot took in is not there any more."""
    history = view_history(committed, plan, view)
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


def _changes_of(files: CheckpointFiles, plan: QueryPlan, record: CommitRecord) -> list[Answer]:
    """Return what an epoch answered, where its files are still there: a query clears them away once its outputs have them."""
    found = []
    for view in plan.views:
        parts = [part for part in record.parts if len(plan.views) == 1 or part.way == view.name]
        parts = [part for part in parts if files.folder.size(part.file.name) is not None]
        rows: list[list[Any]] = []
        weights: list[int] = []
        columns: list[str] = []
        for delta in read_arrow_parts(files, [part for part in parts if part.form == "arrow"]):
            columns = shown_columns(delta.rows.schema)
            few = shown_table(delta.rows, most=MOST_ROWS - len(rows))
            weights += delta.weights[: len(few)].tolist()
            rows += few
        for part in parts:
            if part.form in _PARQUET and len(rows) < MOST_ROWS:
                table = pq.read_table(pa.BufferReader(files.view(part.file)))
                columns = shown_columns(table.schema)
                few = shown_table(table, most=MOST_ROWS - len(rows))
                weights += [-1 if at < part.retractions else 1 for at in range(len(few))]  # retractions come first
                rows += few
        if rows:
            total = sum(part.file.rows for part in parts)
            one = {
                "epoch": record.epoch,
                "view": view.name,
                "columns": columns,
                "rows": rows,
                "weights": weights,
                "total": total,
            }
            found.append(one)
    return found


def changed_rows(epoch: int, view: str, delta: ZSet, *, most: int) -> Answer:
    """Return the first rows of a delta for `Watched.changes`."""
    rows = shown_table(delta.rows, most=most)
    columns, weights = shown_columns(delta.rows.schema), delta.weights[: len(rows)].tolist()
    return {"epoch": epoch, "view": view, "columns": columns, "rows": rows, "weights": weights, "total": len(delta)}


def rows_of_view(contents: ZSet, where: Mapping[str, str]) -> Answer:
    """Return the rows of a view that have values, for `Watched.rows`."""
    mask = matching(contents.rows, where)
    few = contents.rows.filter(mask)
    weights = pa.array(contents.weights).filter(mask).slice(0, MOST_ROWS).to_pylist()
    return {"columns": shown_columns(few.schema), "rows": shown_table(few), "weights": weights, "total": few.num_rows}


def events_of(history: RowHistory) -> Answer:
    """Return how rows came and went, for `Watched.explain_row`."""
    events = [
        {
            "epoch": event.epoch,
            "emitted": weighted(event.emitted),
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
    """Return what waits for time, for `Watched.waiting`, from the summary of the newest epoch."""
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
            }
        )
    return {"stages": stages, "epoch": summary.get("epoch"), "at_us": summary.get("at_us")}


def _history(key: str, history: BucketHistory) -> Answer:
    stage, _, bucket = key.rpartition("/")
    snapshot = history.snapshot
    return {
        "stage": stage,
        "bucket": int(bucket),
        "snapshot_epoch": None if snapshot is None else snapshot.through_epoch,
        "snapshot_bytes": 0 if snapshot is None else snapshot.bytes,
        "snapshot_rows": 0 if snapshot is None else sum(entry.rows for entry in snapshot.tables.values()),
        "logs": [
            {"first": one.first_epoch, "last": one.last_epoch, "rows": one.rows, "bytes": one.bytes}
            for one in history.logs[-100:]
        ],
        "log_files": len(history.logs),
        "log_bytes": history.log_bytes,
    }
