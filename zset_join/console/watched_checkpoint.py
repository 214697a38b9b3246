"""A checkpoint as the page shows it: of a query that runs, of one that is stopped, of one that is damaged.

The law: nothing is claimed, repaired or written. What cannot be read is reported in its place; everything else is shown. Damage
is found by comparing every file that the newest commit record lists with its checksum; a checkpoint that has gone on since is
looked at again.

A checkpoint keeps few commit records; the summaries of up to `KEPT_EPOCHS` epochs that were seen are kept here.

Cost: a poll lists one folder, and reads the records that are new. A search for damage reads every listed file once, up to
`MOST_BYTES`; of the rest the size is compared.
"""

from __future__ import annotations

import functools
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zset_join.checkpoint.clearing import RECORDS_KEPT
from zset_join.checkpoint.files import CheckpointFiles, FileEntry
from zset_join.checkpoint.owner import owner_seen
from zset_join.checkpoint.reading import (
    RECORD_NAME,
    CommittedState,
    checkpoint_folder,
    no_checkpoint,
    query_plan,
    read_committed,
    read_record,
    stored_buckets,
    stored_description,
    stored_query_id,
)
from zset_join.checkpoint.record import BucketHistory, CommitRecord
from zset_join.console.answers import (
    changes_of,
    differences_of,
    events_of,
    letters_of,
    logged_changes,
    newest,
    rows_of_view,
    verdict,
    view_rows,
    waiting_in,
)
from zset_join.console.epochs import EpochSummary, plan_graph, summary_of_record
from zset_join.console.state_tables import StateTables
from zset_join.console.watched import Answer, shown, shown_setting, shown_text, typed_values
from zset_join.core.errors import OptionError, StateError, ZsetJoinError
from zset_join.core.hidden_settings import shown as without_secrets
from zset_join.plan.query_plan import QueryPlan
from zset_join.tools.dead_letters import read_letters
from zset_join.tools.metrics import metrics_text
from zset_join.tools.reports import RowHistory
from zset_join.zset import ZSet

__all__ = ["KEPT_EPOCHS", "QueryAnswers", "WatchedCheckpoint", "damage_of", "known_records"]

MOST_BYTES = 512 << 20
_TIMES = 3


def damage_of(location: str) -> dict[str, Any]:
    """Return `checked` files, the `bytes` read and what was `found`, each with `file`, `code` and `what`."""
    for _ in range(_TIMES):
        found: list[dict[str, Any]] = []
        committed = _tried(found, lambda: read_committed(location))
        _tried(found, lambda: query_plan(location))
        if committed is None:
            if not found:
                place = without_secrets(location)
                found.append({"file": place, "code": "NO_CHECKPOINT", "what": f"there is no checkpoint in {place}"})
            return {"checked": 0, "bytes": 0, "found": found}
        checked, read_bytes = 0, 0
        for entry in _listed(committed):
            checked += 1
            if read_bytes + entry.bytes <= MOST_BYTES:
                read_bytes += entry.bytes
                _tried(found, functools.partial(committed.files.check, entry))
            elif committed.files.folder.size(entry.name) != entry.bytes:
                file = committed.files.uri(entry.name)
                found.append({"file": file, "code": "DAMAGED_FILE", "what": f"{file} is missing or of another size"})
        _, broken = known_records(committed.files)
        found += [one for one in broken if one not in found]
        if not found or not _has_moved_on(committed, location):
            return {"checked": checked, "bytes": read_bytes, "found": found}
    return {"checked": checked, "bytes": read_bytes, "found": found}


def known_records(files: CheckpointFiles, *, after: int = -1) -> tuple[list[CommitRecord], list[dict[str, Any]]]:
    """Return the readable commit records after an epoch, oldest first, and errors: unreadable and missing ones."""
    matches = [RECORD_NAME.fullmatch(name) for name in files.folder.names("commits")]
    epochs = {int(match[1]) for match in matches if match is not None}
    if epochs:
        epochs.update(range(max(min(epochs), max(epochs) - RECORDS_KEPT + 1), max(epochs)))
    records: list[CommitRecord] = []
    found: list[dict[str, Any]] = []
    for epoch in sorted(epoch for epoch in epochs if epoch > after):
        record = _tried(found, functools.partial(read_record, files, epoch))
        if record is not None:
            records.append(record)
    return records, found


def _listed(committed: CommittedState) -> Iterator[FileEntry]:
    for history in committed.histories.values():
        if history.snapshot is not None:
            yield from history.snapshot.tables.values()
        for log in history.logs:
            yield from log.files
    if committed.last is not None:
        yield from (part.file for part in committed.last.parts)


def _tried(found: list[dict[str, Any]], read: Any) -> Any:
    try:
        return read()
    except (ZsetJoinError, OSError) as error:
        facts = getattr(error, "facts", {})
        one = {"file": str(facts.get("file", "")), "code": getattr(error, "code", "OS_ERROR"), "what": str(error)}
        if one not in found:
            found.append(one)
        return None


def _has_moved_on(before: CommittedState, location: str) -> bool:
    if stored_query_id(location) is None:
        return False
    now: list[dict[str, Any]] = []
    committed = _tried(now, lambda: read_committed(location))
    if committed is None or committed.last is None or before.last is None:
        return False
    return bool(committed.last.epoch != before.last.epoch)


KEPT_EPOCHS = 1_000
_PLAN_LINE = re.compile(r"line \d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryAnswers:
    """Answers of the process that runs a query, in addition to its checkpoint."""

    verify: Callable[[str | None, Callable[[str], None]], Any] | None = None  # given a view and a reporter of steps
    explain_row: Callable[[str | None, Mapping[str, Any]], RowHistory] | None = None
    # The rows that have values, and how many there are; an `OptionError` with `VERIFY_OUTPUT` where no output can be read.
    view_rows: Callable[[str, Mapping[str, Any]], tuple[ZSet, int]] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    diff: Callable[[], Any] | None = None


class WatchedCheckpoint:
    def __init__(self, location: str | Path, answers: QueryAnswers | None = None, *, dead_letters: str | None = None) -> None:
        self.location = str(location)
        self._answers, self._letters_path = answers or QueryAnswers(), dead_letters
        self._lock = threading.Lock()
        self._seen: dict[int, EpochSummary] = {}
        self._records: dict[int, CommitRecord] = {}
        self._view: tuple[int, str, ZSet] | None = None
        self._has_readable_views = self._answers.view_rows is not None
        self._state = StateTables(self.location)

    def overview(self) -> Answer:
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
        lines = sorted(name for name in description if _PLAN_LINE.fullmatch(str(name)))
        buckets = tried(lambda: stored_buckets(self.location), None)
        plan: QueryPlan | None = tried(lambda: query_plan(self.location), None)
        owner = tried(self._owner, None)
        return {
            "name": shown_setting(self.location),
            "kind": "checkpoint",
            "query_id": query_id,
            "owner": owner,
            "buckets": buckets,
            "plan": None if plan is None else plan_graph(plan, buckets=buckets),
            "views": [] if plan is None else [view.name for view in plan.views],
            "view_columns": {} if plan is None else {v.name: list(plan.output_of(v.name).schema.names) for v in plan.views},
            "described": [shown_setting(str(description[name])) for name in lines],
            "options": {
                shown_text(str(name)): shown_setting(value) for name, value in description.items() if name not in lines
            },
            "in_force": {name: shown_setting(value) for name, value in self._answers.options.items()},
            "can": {
                "verify": self._answers.verify is not None,
                "explain_row": self._answers.explain_row is not None,
                "search": True,
                "diff": self._answers.diff is not None,
            },
            "trouble": list(dict.fromkeys(trouble)),
        }

    def epochs(self, after: int) -> Sequence[Answer]:
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
        committed, plan = self._committed(), query_plan(self.location)
        found: list[Answer] = []
        if self._keeps_views():
            for view in plan.views:
                found += logged_changes(committed, plan, view.name, after)
        else:
            records, _ = known_records(
                committed.files, after=max(after, -1 if committed.last is None else committed.last.epoch - 2)
            )
            for record in records:
                found += changes_of(committed.files, plan, record)
        return {"epochs": newest(found)}

    def rows(self, table: str | None, where: Mapping[str, str]) -> Answer:
        committed, plan = self._committed(), query_plan(self.location)
        kept = self._keeps_views()
        epoch = -1 if committed.last is None else committed.last.epoch
        views = [view.name for view in plan.views] if kept or self._has_readable_views else []
        chosen = table or (views[0] if views else None)
        if chosen in views:
            try:
                found = self._of_view(committed, plan, chosen, where, is_kept=kept)
            except OptionError as error:
                if table is not None or error.code != "VERIFY_OUTPUT":
                    raise
                self._has_readable_views, views = False, []  # no output can be read: its state is shown
            else:
                return {"tables": views + self._state_names(epoch), "table": chosen, **found}
        names = self._state.names(epoch)
        chosen = table or self._state.fullest(epoch)
        return {"tables": views + names, "table": chosen, **self._state.rows(epoch, chosen, where)}

    def explain_row(self, view: str | None, where: Mapping[str, str]) -> Answer:
        if self._answers.explain_row is None:
            raise _not_from_here(
                "explain_row", "keep_inputs=True lets a pipeline explain its rows; inside Spark open query.console()."
            )
        plan = query_plan(self.location)
        name = _view(plan, view)
        return events_of(self._answers.explain_row(name, typed_values(plan.output_of(name).schema, where)))

    def verify(self, view: str | None, report: Callable[[str], None]) -> Answer:
        if self._answers.verify is None:
            raise _not_from_here(
                "verify",
                "keep_inputs=True lets a pipeline verify; inside Spark open query.console(), or run zset-join verify "
                "MODULE:FUNCTION.",
            )
        return verdict(self._answers.verify(view, report))

    def diff(self) -> Answer:
        if self._answers.diff is None:
            raise _not_from_here("diff", "name the changed query: zset-join console DIRECTORY --diff FILE.sql or MODULE:view.")
        return differences_of(self._answers.diff())

    def hot_keys(self) -> Answer:
        committed = self._committed()
        return self._state.hot_keys(-1 if committed.last is None else committed.last.epoch)

    def dead_letters(self) -> Answer:
        return letters_of(read_letters(self.location, path=self._letters_path))

    def waiting(self) -> Answer:
        plan = query_plan(self.location)
        last = self.epochs(-1)[-1:]
        return waiting_in(plan, last[0] if last else {})

    def files(self) -> Answer:
        committed = self._committed()
        stages = [_history(key, history) for key, history in sorted(committed.histories.items())]
        parts = () if committed.last is None else committed.last.parts
        return {
            "location": shown_setting(self.location),
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
        return damage_of(self.location)

    def metrics(self) -> str:
        return metrics_text(self.location)

    def close(self) -> None:
        self._state.close()

    def _keeps_views(self) -> bool:
        return bool((stored_description(self.location) or {}).get("keeps_view"))

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

    def _of_view(
        self, committed: CommittedState, plan: QueryPlan, view: str, where: Mapping[str, str], *, is_kept: bool
    ) -> Answer:
        if is_kept or self._answers.view_rows is None:
            epoch = -1 if committed.last is None else committed.last.epoch
            return rows_of_view(self._view_rows(committed, plan, view, epoch), where)
        found, total = self._answers.view_rows(view, typed_values(plan.output_of(view).schema, where))
        return {**rows_of_view(found, {}), "total": total}

    def _view_rows(self, committed: CommittedState, plan: QueryPlan, view: str, epoch: int) -> ZSet:
        with self._lock:
            if self._view is None or self._view[:2] != (epoch, view):
                self._view = epoch, view, view_rows(committed, plan, view)
            return self._view[2]


def _view(plan: QueryPlan, name: str | None) -> str:
    return plan.view(name or (plan.views[0].name if len(plan.views) == 1 else None)).name


def _not_from_here(what: str, cure: str) -> OptionError:
    return OptionError(f"{what} cannot be answered from the files of this checkpoint. {cure}", code="NOT_FROM_HERE", what=what)


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
