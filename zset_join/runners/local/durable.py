"""A durable pipeline: its epochs, state and view in a directory, in the layout of a Spark checkpoint.

    <directory>/zset/       the checkpoint, with one bucket: epoch log, snapshots, commit records; see zset_join.checkpoint
    <directory>/local/      mapped state, a cache: removing it costs time, never an answer

The law: an epoch counts once its commit record is present, which is written by one atomic rename after everything it lists. A
process that dies before leaves nothing that a reader would see; one that dies after has the epoch, and its answer reaches the
outputs when the directory is opened again. Epoch N is folded into the state when epoch N + 1 begins, so the answer of the last
epoch can be given again.

Cost: one file per stage that rows came to, one for the answer, and the record, each with a wait for the disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from zset_join.checkpoint.answer_parts import ArrowParts, read_arrow_parts
from zset_join.checkpoint.bucket import BucketState, close_kept_operators
from zset_join.checkpoint.checkpoint import Checkpoint
from zset_join.checkpoint.files import attempt_name
from zset_join.checkpoint.reading import changed_plan_of, commit_record_missing, read_record, stored_description
from zset_join.checkpoint.record import BucketHistory, ChangedPlan, CommitRecord, LogEntry, PartEntry, merge_logs, write_log
from zset_join.checkpoint.snapshot import SnapshotEntry, write_snapshot
from zset_join.core.epochs import ChainLink, Tick
from zset_join.core.errors import StateError
from zset_join.core.extras import ReadWhenUsed
from zset_join.core.progress_line import ProgressLine, progress_line
from zset_join.plan.query_plan import PlanSource, QueryPlan
from zset_join.runners.common.stage_bucket import check_stages, dues_after, histories_after
from zset_join.runners.common.workers import Workers
from zset_join.runners.local.contents import Contents
from zset_join.runners.local.directory_plans import (
    DirectoryChange,
    Place,
    claimed,
    described_plan,
    digest_of,
    place_of,
    written_plan,
)
from zset_join.runners.local.engine import AnsweredEpoch, held_sides
from zset_join.runners.local.evolving import Evolution
from zset_join.runners.local.history import (
    WEIGHT,
    InputHistory,
    input_folder,
    load_inputs,
    newest_slots,
    view_folder,
    view_rows,
)
from zset_join.runners.local.prepared import DurableEpoch, OpenStages, closed_unread
from zset_join.runners.local.taking import write_dead_letters
from zset_join.runners.local.watermarks import Watermarks
from zset_join.stages.effect import Effects
from zset_join.stages.stage import StageOptions
from zset_join.state.rows.directories import seed_of_query
from zset_join.storage.local import synced_together
from zset_join.storage.operations import EpochOutcome, no_epoch, nothing_committed, reporting_full_disk
from zset_join.zset import ZSet
from zset_join.zset.protocol import NOTHING_DUE, due_of

__all__ = ["PipelineDirectory"]

_BEGIN, _EARLIER = "begin", "earlier"
"""What the parts of a record are called that hold all rows of a view, and answers of the epoch before it."""
_GivenEpoch: TypeAlias = tuple[int, Mapping[str, ZSet], ChainLink | None, Mapping[str, ZSet]]
_CURES: Mapping[EpochOutcome, str] = {
    "open": "give the pipeline the rows of this epoch again",
    "committed": "open the pipeline again: it continues after this epoch, and its outputs receive missing epochs",
    "unknown": "open the pipeline again: its attribute epoch is the number of the next epoch",
    "none": "open the pipeline again",
}


class PipelineDirectory:
    """The directory of a pipeline; one process at a time.

    Opening changes no file of a directory that holds a query; `begin` does, once nothing refuses the start any more.
    """

    def __init__(
        self,
        directory: str | Path | Place,
        plan: QueryPlan,
        options: StageOptions,
        watermarks: Watermarks,
        contents: Mapping[str, Contents] | None,
        history: InputHistory | None,
        *,
        snapshot_after_bytes: int,
        workers: Workers | None = None,
    ) -> None:
        self._plan, self._workers = plan, Workers(1) if workers is None else workers
        self._watermarks = watermarks
        self._contents = contents
        self._history = history
        self.statistics: dict[str, dict[str, int]] = {}
        self._seconds_before: Mapping[str, Any] = {}
        self.runner = "process"
        self.seconds_outside: Mapping[str, float] = {}
        """Of the next epoch, the seconds of parts that its caller took before it, by their names; for its record."""
        self._snapshot_after_bytes = snapshot_after_bytes
        self.effects = Effects()
        self._stages = OpenStages()
        check_stages((node.stage for node in plan.nodes), options)
        self._is_timed = [node.stage.waits_for_time for node in plan.nodes]
        place = self._place = place_of(directory)
        location = self.location = place.location
        self._dead_letters = place.dead_letters
        self._owner, query_id = claimed(place)
        seed = seed_of_query(query_id) if options.hash_seed is None else options.hash_seed
        self._options = replace(options, hash_seed=seed)
        try:
            with self._owner.reporting_lost_ownership(), self._reporting_full_disk():
                self.checkpoint = Checkpoint(
                    location,
                    query_id=query_id,
                    buckets=1,
                    description=self._described(plan),
                    plan=written_plan(plan),
                    local_state_dir=place.local_state_dir,
                    snapshot_after_bytes=snapshot_after_bytes,
                    retain_input_log=place.retain_input_log,
                    local_state_retention_seconds=place.local_state_retention_seconds,
                    owner=self._owner,
                    begins=False,
                )
                changed = self.checkpoint.changed
                known = plan.sources if changed is None else tuple(map(PlanSource.from_json, changed.sources))
                self._sources = tuple(known)
                self._held = held_sides(plan, self._options, self._workers)
                with progress_line(f"opening {location}") as line:
                    self._load(line)
        except BaseException:
            self._owner.release()
            raise

    def _described(self, plan: QueryPlan) -> dict[str, Any]:
        kept = {"keeps_view": self._contents is not None, "keeps_inputs": self._history is not None}
        return {**described_plan(plan), **kept, **self._place.described(stored_description(self.location))}

    def check_outputs(self, epochs: Mapping[str, int | None]) -> None:
        """Refuse to begin behind outputs that have newer epochs, where the last owner crashed and nothing was restored."""
        newest = -1 if self.last is None else self.last.epoch
        ahead = {name: epoch for name, epoch in epochs.items() if epoch is not None and epoch > newest}
        if ahead and self._place.query_id is None and self._owner.has_crashed_before():
            name, epoch = next(iter(ahead.items()))
            raise commit_record_missing(self.checkpoint.files, newest, epoch, f"{name} ends")

    def begin(self) -> None:
        """Write the description of the directory, as the last step of a start."""
        with self._owner.reporting_lost_ownership(), self._reporting_full_disk():
            self.checkpoint.begin()

    def outcome(self, epoch: int) -> EpochOutcome:
        """Return whether an epoch is committed, from the disk."""
        return self.checkpoint.outcome(epoch)

    @property
    def query_id(self) -> str:
        return self.checkpoint.query_id

    @property
    def last(self) -> CommitRecord | None:
        return self.checkpoint.last

    def next_time_us(self) -> int | None:
        """Return the processing time at which an epoch has rows to emit though no row arrives; None for never."""
        # The last epoch is folded in only by the next one: where rows may wait in it, that one is due now.
        record = self.last
        if record is None:
            return None
        times = [due.processing_time_us for due in record.dues.values() if due.processing_time_us is not None]
        for state in self._plan.states:
            logs = record.histories.get(f"{state.name}/0", BucketHistory()).logs
            is_fed = bool(logs) and logs[-1].last_epoch == record.epoch
            times += [0] if is_fed and any(self._plan.nodes[number].stage.parks for number in state.readers) else []
        idle = self._watermarks.next_idle([number for number, is_timed in enumerate(self._is_timed) if is_timed])
        return min([*times, *([] if idle is None else [idle])], default=None)

    @contextmanager
    def epoch(self, tick: Tick) -> Iterator[DurableEpoch]:
        """Open an epoch: inside, its stages answer in the state before it."""
        reporting = self._reporting_full_disk(lambda: self.outcome(tick.epoch))
        with self._owner.reporting_lost_ownership(), reporting, self._stages.epoch(partial(self._opened, tick)) as epoch:
            yield epoch

    @contextmanager
    def reading(self) -> Iterator[DurableEpoch]:
        """Open the stages to read them, in the state after the last epoch: it is folded in now instead of by the next one."""
        # Where the next epoch is open, its stages are read. Call it under the lock of the pipeline.
        tick = Tick(0 if self.last is None else self.last.epoch + 1)
        opening = partial(self._opened, tick, is_read=True)
        with (
            self._owner.reporting_lost_ownership(),
            self._reporting_full_disk(),
            self._stages.reading(tick.epoch, opening) as epoch,
        ):
            yield epoch

    def _opened(self, tick: Tick, opened: ExitStack, entered: list[BucketState], *, is_read: bool = False) -> DurableEpoch:
        if is_read:
            self._owner.check()  # else it might wait for the states of another process
        return DurableEpoch(
            plan=self._plan,
            checkpoint=self.checkpoint,
            options=self._options,
            workers=self._workers,
            is_timed=self._is_timed,
            effects=self.effects,
            held=self._held,
            opened=opened,
            tick=tick,
            entered=entered,
            is_read=is_read,
        )

    @synced_together()  # the record is named when all that it names is on the disk
    def commit(
        self,
        epoch: DurableEpoch,
        answered: AnsweredEpoch,
        deltas: Mapping[str, ZSet],
        progress: Mapping[str, Any],
        positions: Mapping[str, Any],
        read: str | None = None,
    ) -> CommitRecord:
        begun, seconds = time.perf_counter(), {**self.seconds_outside, **progress["seconds"]}
        receipts = epoch.receipts({number: fed for number, (_, fed) in answered.requested.items()})
        histories = histories_after(self.checkpoint.histories, receipts, {})
        dues = dues_after({} if self.checkpoint.last is None else self.checkpoint.last.dues, receipts)
        self.statistics |= {receipt.stage: receipt.statistics for receipt in receipts}
        tick = Tick(answered.epoch, answered.processing_time_us)
        logged = self._log_views(histories, tick, answered.answers)
        self._log_inputs(histories, tick, deltas)
        parts = [part for name, delta in answered.answers.items() for part in self._answered(tick, name, delta, logged)]
        committed = self.checkpoint.commit(
            CommitRecord(
                query_id=self.query_id,
                epoch=answered.epoch,
                processing_time_us=answered.processing_time_us,
                histories=histories,
                parts=tuple(parts),
                progress={**progress, "seconds": seconds, **self._seconds_before, "remembers": dict(self.statistics)},
                watermarks=self._watermarks.written(answered.times),
                dues=dues,
                positions=positions,
                offsets=digest_of(deltas) if read is None else read,
            )
        )
        self._seconds_before = {"seconds_before": {"commit": round(time.perf_counter() - begun, 6)}}  # for the next record
        self.effects.forget(answered.epoch)  # the log of the epoch has the external rows
        return committed

    def change(self, epoch: DurableEpoch, evolution: Evolution, change: DirectoryChange) -> CommitRecord:
        """Commit the epoch that changes the query to another plan; afterwards the directory belongs to that plan."""
        before, plan, last = self._plan, change.plan, self.checkpoint.last
        assert last is not None  # noqa: S101 - without an epoch there is `change_at_once`
        files, tick = self.checkpoint.files, epoch.tick
        receipts = epoch.receipts({})
        kept = {plan.state_of[number].name for number in evolution.unbuilt}
        there = histories_after(self.checkpoint.histories, receipts, {})
        histories = {key: history for key, history in there.items() if key.rpartition("/")[0] in kept}
        dues = {key: due for key, due in dues_after(last.dues, receipts).items() if key.rpartition("/")[0] in kept}
        statistics = {**self.statistics, **{receipt.stage: receipt.statistics for receipt in receipts}}
        statistics = {name: counts for name, counts in statistics.items() if name in kept}
        for number, operator in evolution.built.items():
            state = plan.state_of[number]
            snapshot = write_snapshot(
                files,
                f"snapshot/{state.name}-0",
                operator.snapshot_readers(),
                through_epoch=tick.epoch,
                identity=attempt_name(tick.epoch, "-changed"),
            )
            histories[f"{state.name}/0"] = BucketHistory(snapshot)
            due = due_of(operator) if state.stage.waits_for_time else NOTHING_DUE
            dues |= {} if due == NOTHING_DUE else {f"{state.name}/0": due}
            statistics[state.name] = dict(operator.statistics())
        newest = newest_slots(self._sources)
        new = (one for one in plan.sources if one.name not in newest or one.name in evolution.columns)
        sources = (*self._sources, *new)
        columns = [{"epoch": tick.epoch, "slot": newest[name], **one.to_json()} for name, one in evolution.columns.items()]
        for number, view in enumerate(plan.views):
            rows = change.begins[view.name] if evolution.begins(view.name) else change.answers[view.name]
            self._carry_view(histories, view.name, view_folder(plan, number), evolution, tick, rows)
        if self._history is not None:
            histories |= {key: there[key] for at in range(len(self._sources)) if (key := f"{input_folder(at)}/0") in there}
        known, self._plan, self._sources = self._sources, plan, sources
        try:
            self._log_inputs(histories, tick, evolution.origin.first_rows)
            answers, begins = change.answers, change.begins
            parts = [part for name, delta in answers.items() for part in self._parts(tick, self._way(name), delta)]
            filled = {name: rows for name, rows in begins.items() if rows is not answers[name]}
            parts += [part for name, rows in filled.items() for part in self._parts(tick, f"{_BEGIN} {name}", rows)]
            if change.is_without_outputs:
                parts += [
                    replace(part, way=f"{_EARLIER} {part.way}") for part in last.parts if not part.way.startswith(_EARLIER)
                ]
            changed = ChangedPlan(
                epoch=tick.epoch,
                changes=1 + (0 if self.checkpoint.changed is None else self.checkpoint.changed.changes),
                before=self.checkpoint.plan_digest,
                description=self._described(plan),
                plan=written_plan(plan),
                sources=tuple(source.to_json() for source in sources),
                begins=tuple(sorted(begins)),
                filled=tuple(sorted(filled)),
                altered=tuple(name for name in sorted(begins) if evolution.adds_columns(name)),
                is_unseen=change.is_without_outputs,
                bare_view=change.bare_view,
                undo_epochs=change.undo_epochs,
                columns=(*(() if self.checkpoint.changed is None else self.checkpoint.changed.columns), *columns),
                note=change.note,
                gone=evolution.gone_after(),
            )
            record = CommitRecord(
                query_id=self.query_id,
                epoch=tick.epoch,
                processing_time_us=tick.processing_time_us,
                histories=histories,
                parts=tuple(parts),
                progress={**change.progress, "remembers": statistics},
                watermarks=change.watermarks.written(change.watermarks.known),
                dues=dues,
                positions=change.positions,
            )
            committed = self.checkpoint.commit_change(record, changed)
        except BaseException:
            self._plan, self._sources = before, known
            raise
        self.statistics = statistics
        self._go_over(change)
        return committed

    def change_at_once(self, change: DirectoryChange) -> None:
        """Change the query of a directory that no epoch has reached."""
        self.checkpoint.begin_with(self._described(change.plan), written_plan(change.plan))
        self._plan = change.plan
        self._sources = change.plan.sources
        self._go_over(change)

    def _go_over(self, change: DirectoryChange) -> None:
        self._watermarks, self._contents = change.watermarks, change.contents
        self._held = held_sides(self._plan, self._options, self._workers)
        self._is_timed = [node.stage.waits_for_time for node in change.plan.nodes]
        effects, self.effects = self.effects, Effects()
        effects.close()

    def _carry_view(
        self, histories: dict[str, BucketHistory], name: str, folder: str, evolution: Evolution, tick: Tick, answer: ZSet
    ) -> None:
        """Let the log of a view continue under a new plan, or begin where its rows are all new."""
        if self._contents is None:
            return
        before = BucketHistory()
        if not evolution.begins(name):
            at = [view.name for view in self._plan.views].index(name)
            before = self.checkpoint.histories.get(f"{view_folder(self._plan, at)}/0", before)
        log = write_log(self.checkpoint.files, f"log/{folder}-0", tick=tick, deltas=[answer])
        _keep(histories, f"{folder}/0", before.after(log=log))

    def _reporting_full_disk(self, outcome: Callable[[], EpochOutcome] = nothing_committed) -> AbstractContextManager[None]:
        return reporting_full_disk(f"the directory {self.location} lies", _CURES, outcome, location=self.location)

    def put_aside(self, epoch: int, letters: pa.Table) -> None:
        write_dead_letters(self._dead_letters, epoch, letters)

    def answers(self, record: CommitRecord) -> Mapping[str, ZSet]:
        """Return the answer of each view in the last epoch, by name; each is read when it is used, before the next epoch."""
        if self.checkpoint.is_moved:  # its answer is in the form of executors; outputs have it
            return {view.name: ZSet.empty(self._plan.output_of(view.name).schema) for view in self._plan.views}
        return ReadWhenUsed((view.name for view in self._plan.views), partial(self._answer, record))

    def newest_answers(self, record: CommitRecord, newest_answer: Mapping[str, ZSet]) -> Iterator[_GivenEpoch]:
        """Yield the epochs that outputs may lack: the one before a change that was made without them, and the newest one."""
        # An epoch has all rows of the views whose outputs begin with it; the one before has none of views that begin later.
        if self.checkpoint.is_moved:
            return
        newest = self._change_in(record)
        if newest is not None and newest.is_unseen:
            before = read_record(self.checkpoint.files, record.epoch - 1)
            later = {*newest.begins} - {*newest.altered}
            names = [view.name for view in self._plan.views if view.name not in later]
            answers = {name: self._read(record, name, (f"{_EARLIER} ", f"{_EARLIER} {name}")) for name in names}
            begins = self._begins(record, self._change_in(before), answers, f"{_EARLIER} ")
            yield record.epoch - 1, answers, None if before is None else before.link, begins
        yield record.epoch, newest_answer, record.link, self._begins(record, newest, newest_answer)

    def _change_in(self, record: CommitRecord | None) -> ChangedPlan | None:
        """Return the change of the query that an epoch is."""
        changed = None if record is None else changed_plan_of(self.checkpoint.files.folder, record)
        return changed if record is not None and changed is not None and changed.epoch == record.epoch else None

    def _begins(
        self, record: CommitRecord, changed: ChangedPlan | None, answers: Mapping[str, ZSet], earlier: str = ""
    ) -> dict[str, ZSet]:
        """Return all rows of the views whose outputs begin with a change, of those that have an answer."""
        return {
            name: self._read(record, name, (f"{earlier}{_BEGIN} {name}",)) if name in changed.filled else answers[name]
            for name in (() if changed is None else changed.begins)
            if changed is not None and name in answers
        }

    def altered_views(self) -> frozenset[str]:
        """Return the views whose outputs may lack columns: an epoch they may not have adds some, or none reached them."""
        record = self.last
        if record is None:
            return frozenset(view.name for view in self._plan.views)
        newest = self._change_in(record)
        if newest is None or self.checkpoint.is_moved:
            return frozenset()
        before = self._change_in(read_record(self.checkpoint.files, record.epoch - 1)) if newest.is_unseen else None
        return frozenset({*newest.altered, *(() if before is None else before.altered)})

    def _answer(self, record: CommitRecord, view: str) -> ZSet:
        return self._read(record, view, (self._way(view),))

    def _read(self, record: CommitRecord, view: str, ways: Collection[str]) -> ZSet:
        schema = self._plan.output_of(view).schema
        parts = [part for part in record.parts if part.way in ways]
        with self._reporting_full_disk(no_epoch):
            chunks = [_with_columns_of(schema, chunk) for chunk in read_arrow_parts(self.checkpoint.files, parts)]
        return ZSet.concat(chunks, schema=schema)

    def _parts(self, tick: Tick, way: str, delta: ZSet) -> list[PartEntry]:
        """Write down what a view answers."""
        written = ArrowParts(durable=True).write(self.checkpoint.files, 0, tick, delta.schema, [delta])
        return [replace(part, way=way) for part in written]

    def _way(self, view: str) -> str:
        """Return the name of a view's answers; the only view has none."""
        return view if len(self._plan.views) > 1 else ""

    def close(self) -> None:
        try:
            self._stages.release_interrupted()
            close_kept_operators(self.checkpoint.opened_at_ns)
            self.effects.close()
        finally:
            epoch = None if self._place.query_id is not None or self.last is None else self.last.epoch
            with self._reporting_full_disk(no_epoch):
                self._owner.release(epoch=epoch)

    def _load(self, line: ProgressLine) -> None:
        record = self.checkpoint.last
        if record is None:
            return
        self._watermarks.load(record.watermarks, record.late_rows)
        if self._contents is not None:
            for name, contents in self._contents.items():
                contents.begin_with(partial(self._summed, name, record))
        if self._history is not None:
            line.now("reading the kept inputs")
            changes = () if self.checkpoint.changed is None else self.checkpoint.changed.columns
            load_inputs(self.checkpoint.files, record, self._sources, self._history, changes)

    def summed_view(self, name: str) -> ZSet:
        """Return the rows of a view after the last epoch, summed from its log, where its stages cannot list them."""
        return self._summed(name, self.last)

    def left_view(self, name: str) -> ZSet:
        """Return the rows of a view after the last epoch of a directory that was closed."""
        try:
            return self.summed_view(name)
        except (StateError, OSError) as error:
            raise closed_unread(name, self.location) from error

    def _summed(self, name: str, record: CommitRecord | None) -> ZSet:
        schema, number = self._plan.output_of(name).schema, [view.name for view in self._plan.views].index(name)
        histories = {} if record is None else record.histories
        kept, rows = histories.get(f"{view_folder(self._plan, number)}/0", BucketHistory()), Contents(schema)
        with progress_line(f"reading view {name} of {self.location}"), self._reporting_full_disk(no_epoch):
            for delta in view_rows(self.checkpoint.files, kept, schema):
                rows.add(delta)
            return rows.rows()

    def _log_inputs(self, histories: dict[str, BucketHistory], tick: Tick, deltas: Mapping[str, ZSet]) -> None:
        """Keep the input, where it is to be kept: one line per epoch of the first source, also where that had no rows."""
        if self._history is None:
            return
        files, newest = self.checkpoint.files, newest_slots(self._sources)
        for number, source in enumerate(self._sources):
            key = f"{input_folder(number)}/0"
            tail = histories.get(key, BucketHistory()).small_tail()
            merged = merge_logs(files, f"log/{input_folder(number)}-0", tail) if tail else None
            delta = deltas.get(source.name) if newest[source.name] == number else None
            delta = ZSet.empty(source.relation.schema) if delta is None else delta
            log = write_log(files, f"log/{input_folder(number)}-0", tick=tick, deltas=[delta], is_due=number == 0)
            _keep(histories, key, histories.get(key, BucketHistory()).after(merged=merged, log=log))

    def _log_views(
        self, histories: dict[str, BucketHistory], tick: Tick, answers: Mapping[str, ZSet]
    ) -> dict[str, LogEntry | None]:
        """Keep what the views hold, as the state of a stage is kept; return the log of the epoch by view."""
        return {
            name: self._log_view(histories, view_folder(self._plan, number), contents, tick, answers[name])
            for number, (name, contents) in enumerate((self._contents or {}).items())
        }

    def _answered(self, tick: Tick, view: str, delta: ZSet, logged: Mapping[str, LogEntry | None]) -> list[PartEntry]:
        """Return the pieces of a view's answer: where the view is kept, its log has them, in the same form."""
        if view not in logged:
            return self._parts(tick, self._way(view), delta)
        log = logged[view]
        retractions = int(np.count_nonzero(delta.weights < 0))
        return [] if log is None else [PartEntry(0, log.file, retractions, "arrow", self._way(view))]

    def _log_view(
        self, histories: dict[str, BucketHistory], folder: str, contents: Contents, tick: Tick, delta: ZSet
    ) -> LogEntry | None:
        files, history = self.checkpoint.files, histories.get(f"{folder}/0", BucketHistory())
        snapshot: SnapshotEntry | None = None
        merged: LogEntry | None = None
        if history.has_outgrown(self._snapshot_after_bytes):
            contents.keep()  # the state is that before the epoch
            rows = contents.rows()
            table = pa.Table.from_batches([rows.rows]).append_column(WEIGHT, pa.array(rows.weights))
            newest = history.logs[-1]
            snapshot = write_snapshot(
                files, f"snapshot/{folder}-0", {"view": table}, through_epoch=newest.last_epoch, identity=newest.identity
            )
        elif history.small_tail():
            merged = merge_logs(files, f"log/{folder}-0", history.small_tail())
        log = write_log(files, f"log/{folder}-0", tick=tick, deltas=[delta])
        _keep(histories, f"{folder}/0", history.after(snapshot=snapshot, merged=merged, log=log))
        return log


def _keep(histories: dict[str, BucketHistory], key: str, history: BucketHistory) -> None:
    if history != BucketHistory():
        histories[key] = history


def _with_columns_of(schema: pa.Schema, delta: ZSet) -> ZSet:
    """Return the answer of an epoch before a view got columns: NULL in them."""
    if delta.schema.names == schema.names:
        return delta
    have = frozenset(delta.schema.names)
    columns = [delta.rows.column(one.name) if one.name in have else pa.nulls(len(delta), one.type) for one in schema]
    return ZSet(pa.RecordBatch.from_arrays(columns, schema=schema), delta.weights)
