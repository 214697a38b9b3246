"""The driver's view of a checkpoint: what is committed, what the next epoch starts from, and how it becomes true.

    <checkpointLocation>/           Spark's own files: offsets/ commits/ metadata ...
    └── zset/
        ├── format.json             query id, number of buckets, description of the query
        ├── stages.json             what it takes to build its operators without its program
        ├── plans/<digest>.json     what the query has changed to since, named by a commit record
        ├── owners/                 which driver this checkpoint belongs to
        ├── leases/                 who reads the files of an epoch meanwhile, and until when
        ├── commits/<epoch>.json    one record per epoch, written last
        ├── rescalings/             one record per change of the number of buckets, written last
        ├── log/<stage>-<bucket>/   input deltas, one file per epoch that had rows
        ├── snapshot/<stage>-<bucket>/
        └── delta/                  answers of the newest epochs, until the sink has them for good

The law: `commit` is atomic; before it the epoch left nothing a reader would see, after it every file the record lists
is on the disk. Epochs come without holes. A record that exists is never replaced: a replayed epoch is answered from
it. Opening changes no file; `begin` does, once nothing can refuse the start any more.

The two newest epochs can be gone back to: files that no record lists any more are removed one epoch later, unless a lease
holds them. That also leaves them to a task that lags behind.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from zset_join.checkpoint.bucket import StageContext
from zset_join.checkpoint.clearing import Clearing
from zset_join.checkpoint.descriptions import (
    differences,
    is_of_other_session,
    is_reworded,
    is_same_plan,
    keep_state_of,
    what_to_do,
)
from zset_join.checkpoint.files import CHECKPOINT_FORMAT, CheckpointFiles
from zset_join.checkpoint.owner import Ownership
from zset_join.checkpoint.reading import (
    FORMAT_FILE,
    OF_PLAN,
    PLAN_FIELD,
    PLAN_FILE,
    RESCALINGS,
    START_OVER,
    CommittedState,
    Rescaling,
    changed_plan_of,
    checkpoint_folder,
    foreign_state,
    read_format,
    read_last,
    read_newest,
    read_query,
    read_record,
    read_rescaling,
    record_digest,
    record_name,
    rescaling_numbers,
)
from zset_join.checkpoint.record import CHANGED_TO, BucketHistory, ChangedPlan, CommitRecord, HistoryTexts, write_changed_plan
from zset_join.core.epochs import Tick
from zset_join.core.errors import StateError
from zset_join.storage.operations import EpochOutcome
from zset_join.storage.trusted_files import seal, unseal

__all__ = ["Checkpoint"]

_log = logging.getLogger("zset_join.checkpoint")

_SWEEP_EVERY = 256


class Checkpoint:
    """Open the checkpoint of one query."""

    def __init__(
        self,
        location: str,
        *,
        query_id: str,
        buckets: int,
        description: Mapping[str, Any],
        plan: Mapping[str, Any] | None = None,
        local_state_dir: str | None = None,
        snapshot_after_bytes: int = 64 * 1024 * 1024,
        retain_input_log: bool = False,
        local_state_retention_seconds: int | None = None,
        owner: Ownership | None = None,
        begins: bool = True,
    ) -> None:
        self.files = CheckpointFiles(checkpoint_folder(location), query_id)
        self.query_id = query_id
        self._folder = self.files.folder
        self._local_state_dir = local_state_dir
        self._local_state_retention_seconds = local_state_retention_seconds
        self._snapshot_after_bytes = snapshot_after_bytes
        self._retain_input_log = retain_input_log
        self._owner = owner
        self._plan = plan
        self._unwritten: Mapping[str, Any] | None = None
        self._first_buckets = self._check_format(description, buckets, plan)
        self._digest = self._digest_of_first()
        self._clearing = Clearing(self._folder)
        self._texts = HistoryTexts()
        self._folder.sync_names("commits")  # a record that is seen may be built upon: from now on it survives a power cut
        self._folder.sync_names(RESCALINGS)
        self.last = read_last(self.files)
        self._rescaling = None if self.last is None else read_rescaling(self.files, self.last.epoch)
        newest = None if self.last is None else replace(self.last, plan=self.plan_digest)
        self.changed = None if newest is None else changed_plan_of(self._folder, newest)
        self.buckets = self._committed().buckets
        if buckets != self.buckets:
            raise self._buckets_changed(buckets)
        if self.last is not None:
            self.before(self.last.epoch)  # the epoch before it must be there to go back to
        latest = max((record.opened_at_ns for record in (self.last, self._rescaling) if record is not None), default=-1)
        self.opened_at_ns = max(time.time_ns(), latest + 1)
        if begins:
            self.begin()

    def begin(self) -> None:
        """Confirm the claim, remove what dead drivers left, and write down the query and its plan: the end of a start."""
        # The query is written down last: where anything before fails, the program before this one continues.
        if self._owner is not None:
            self._owner.confirm()
            self._folder.remove_unfinished("", "commits", "owners")
            self._sweep()
        self._write_format()

    def outcome(self, epoch: int) -> EpochOutcome:
        """Return whether an epoch is committed, read from the disk, for use after an error."""
        try:
            return "open" if self._folder.size(record_name(epoch)) is None else "committed"
        except OSError:
            return "unknown"

    def committed(self, epoch: int, offsets: str | None = None) -> CommitRecord | None:
        """Return the record of an epoch that is committed already; None when it is the next one."""
        if self.last is not None and epoch == self.last.epoch:
            if offsets is not None and self.last.offsets is not None and offsets != self.last.offsets:
                raise StateError(
                    f"epoch {epoch} is committed in the checkpoint {self._folder.location}, and Spark requests it again with "
                    f"other input: Spark's own files beside it were rolled back. {START_OVER}",
                    code="EPOCH_REPLANNED",
                    epoch=epoch,
                )
            return self.last
        expected = 0 if self.last is None else self.last.epoch + 1
        if epoch != expected:
            holds = "no epoch" if self.last is None else f"epochs up to {self.last.epoch}"
            raise StateError(
                f"Spark requests epoch {epoch}, and the checkpoint {self._folder.location} holds {holds}; epoch {expected} was "
                f"expected. A part of the checkpoint directory was replaced or removed. {START_OVER}",
                code="EPOCH_GAP",
                epoch=epoch,
                expected=expected,
            )
        return None

    def stage(self, stage: str, tick: Tick) -> StageContext:
        """Return the input of a stage's tasks for the next epoch."""
        before = self.before(tick.epoch)
        histories = {bucket: before.get(f"{stage}/{bucket}", BucketHistory()) for bucket in range(self.buckets_of(tick.epoch))}
        full = [bucket for bucket, history in histories.items() if self._wants_snapshot(history)]
        return StageContext(
            query_id=self.query_id,
            stage=stage,
            tick=tick,
            root=self._folder.location,
            local_state_dir=self._local_state_dir,
            local_state_retention_seconds=self._local_state_retention_seconds,
            digest=self._digest,
            opened_at_ns=self.opened_at_ns,
            histories={bucket: history for bucket, history in histories.items() if history != BucketHistory()},
            snapshot_buckets=frozenset(full[:1]),  # one at a time: a snapshot takes longer than an epoch
            merge_buckets=frozenset(bucket for bucket, history in histories.items() if history.small_tail()),
        )

    @property
    def histories(self) -> Mapping[str, BucketHistory]:
        """Return "stage/bucket" to what the state is made of, after the last epoch."""
        return self._committed().histories

    @property
    def watermarks(self) -> Mapping[str, int]:
        """Return how far event time has come, of streams and of stages, after the last epoch."""
        return {} if self.last is None else self.last.watermarks

    @property
    def buffered(self) -> Mapping[str, tuple[int, int]]:
        """Return what the buckets are known to hold of an append-only join; nothing is known of buckets that are new."""
        return {} if self.last is None or self._rescaling is not None else self.last.buffered

    def before(self, epoch: int) -> Mapping[str, BucketHistory]:
        """Return what the state consists of before an epoch: the next one, or the last one when it is answered again."""
        if self.last is None or epoch > self.last.epoch:
            return self.histories
        previous = read_record(self.files, epoch - 1)
        if previous is None:
            return {}
        if self.last.rescaling != previous.rescaling:
            rescaling = read_rescaling(self.files, previous.epoch, self.last.rescaling)
            if rescaling is not None:
                return rescaling.histories
        return previous.histories

    def buckets_of(self, epoch: int) -> int:
        """Return the number of buckets of an epoch: the next one, or the last one when it is answered again."""
        if self.last is None or epoch > self.last.epoch:
            return self.buckets
        return self.last.buckets or self._first_buckets

    def commit(self, record: CommitRecord) -> CommitRecord:
        if self.committed(record.epoch) is not None:
            raise self._committed_twice(record.epoch)
        if self._owner is not None:
            self._owner.check()
        committed = self._committed()
        number = self._number()
        record = replace(
            record.chained(self.last),
            owner=self._token(),
            opened_at_ns=self.opened_at_ns,
            rescaling=number,
            plan=self.plan_digest if record.plan is None else record.plan,
            buckets=committed.buckets if number else None,
        )
        if not self._put_new(record_name(record.epoch), record.to_bytes(self._texts)):
            raise self._committed_twice(record.epoch)
        self.last, self._rescaling = record, None
        self._tidy_up(committed, record)
        return record

    def commit_change(self, record: CommitRecord, changed: ChangedPlan) -> CommitRecord:
        """Make an epoch true in which the query changes to another plan; the arguments and errors are those of `commit`."""
        # The plan is on the disk before the record that names it.
        if self._owner is not None:
            self._owner.check()
        digest = write_changed_plan(self._folder, changed)
        committed = self.commit(replace(record, plan=digest, offsets=f"{CHANGED_TO}{digest}"))
        self.changed, self._plan = changed, changed.plan
        return committed

    def begin_with(self, description: Mapping[str, Any], plan: Mapping[str, Any]) -> None:
        """Change the query of a checkpoint without an epoch, in one step."""
        if self._owner is not None:
            self._owner.check()
        self._plan, self._unwritten = plan, {**(read_format(self._folder) or {}), "description": description}
        self._digest = self._digest_of_first()
        self._write_format()

    @property
    def plan(self) -> Mapping[str, Any]:
        """Return what it takes to build the operators of the query, as it is now."""
        return self._plan if self._plan is not None else self._stored_plan()

    @property
    def is_moved(self) -> bool:
        """Return whether the last epoch was committed under another plan, in the other mode; outputs have its answer."""
        return self.last is not None and self.plan_digest != self.last.plan

    @property
    def plan_digest(self) -> str | None:
        """Return which plan counts now; None: the one that the checkpoint was made with."""
        moved = None if self._rescaling is None else self._rescaling.plan
        return moved if moved is not None or self.last is None else self.last.plan

    def rescale(self, buckets: int, histories: Mapping[str, BucketHistory], changed: ChangedPlan | None = None) -> None:
        """Let the state after the last epoch consist of another number of buckets, or be that of another plan, in one step."""
        last = self.last
        data = None if last is None else self._folder.read(record_name(last.epoch))
        if last is None or data is None:
            raise StateError(
                f"no epoch is committed in the checkpoint {self._folder.location}: there is no state to rescale. Start the "
                "query with a new checkpointLocation and the option buckets.",
                code="NOTHING_COMMITTED",
                location=self._folder.location,
            )
        if self._owner is not None:
            self._owner.check()
        rescalings = [rescaling_numbers(name) for name in self._folder.names(RESCALINGS)]
        moved = None if self._rescaling is None else self._rescaling.plan
        rescaling = Rescaling(
            number=1 + max([self._number(), *(numbers[1] for numbers in rescalings if numbers is not None)]),
            query_id=self.query_id,
            epoch=last.epoch,
            record=record_digest(data.to_pybytes()),
            buckets=buckets,
            histories=histories,
            owner=self._token(),
            opened_at_ns=self.opened_at_ns,
            plan=write_changed_plan(self._folder, changed) if changed is not None else moved,
        )
        if not self._put_new(rescaling.name, rescaling.to_bytes()):
            raise self._committed_twice(last.epoch)
        self._rescaling, self.buckets = rescaling, buckets

    def take_replay(self, record: CommitRecord) -> CommitRecord:
        """Take a second answer to the last epoch, whose parts were lost; its record on the disk stays as it is."""
        last = self.last
        if last is None or record.epoch != last.epoch:
            raise ValueError(f"epoch {record.epoch} is not the last one")
        if _logged_rows(last) != _logged_rows(record):
            raise StateError(
                f"epoch {record.epoch} was answered again because its answer was lost before the output had it, and the "
                "sources returned other rows than when it was committed. Nothing was emitted. Make the sources replayable, and "
                "start over with a new checkpointLocation and output.",
                code="REPLAY_DIFFERS",
                epoch=record.epoch,
            )
        before = {name for history in self.before(last.epoch).values() for name in history.file_names()}
        for name in record.state_files() - last.state_files() - before:
            self._folder.remove(name)
        self.last = replace(last, parts=record.parts)
        return self.last

    def _committed(self) -> CommittedState:
        return CommittedState(files=self.files, first_buckets=self._first_buckets, last=self.last, rescaling=self._rescaling)

    def _number(self) -> int:
        """Return the number of the last rescaling; 0 when there was none."""
        if self._rescaling is not None:
            return self._rescaling.number
        return 0 if self.last is None else self.last.rescaling

    def _token(self) -> str | None:
        return None if self._owner is None else self._owner.mine.token

    def _put_new(self, name: str, data: bytes) -> bool:
        """Make a record; return whether it is ours."""
        try:
            self._folder.put_new(name, data)
        except FileExistsError:
            stored = self._folder.read(name)  # an object store may have taken our own request, and its answer was lost
            return stored is not None and stored.to_pybytes() == data
        except FileNotFoundError:
            if self._owner is not None:
                self._owner.check()
            raise
        return True

    def _committed_twice(self, epoch: int) -> StateError:
        return StateError(
            f"epoch {epoch} of query {self.query_id} was committed already, by another driver; two of them share the "
            f"checkpoint {self._folder.location}. Stop one of them and start this query again: it continues after that epoch.",
            code="COMMITTED_TWICE",
            epoch=epoch,
        )

    def _tidy_up(self, before: CommittedState, record: CommitRecord) -> None:
        """Remove what a committed epoch leaves without a use; what cannot be removed is logged, and left to a later sweep."""
        try:
            self._clearing.after(before, record)
            if self._owner is not None and record.epoch % _SWEEP_EVERY == _SWEEP_EVERY - 1:
                self._sweep()
        except OSError as error:
            _log.warning(
                "epoch %d is committed in %s, and old files could not be removed: %s. They are tried again later.",
                record.epoch,
                self._folder.location,
                error,
            )

    def _sweep(self) -> None:
        if self.last is not None:
            self._clearing.sweep(self.last, (self.histories, self.before(self.last.epoch)))

    def _wants_snapshot(self, history: BucketHistory) -> bool:
        return not self._retain_input_log and history.has_outgrown(self._snapshot_after_bytes)

    def _check_format(self, description: Mapping[str, Any], buckets: int, plan: Mapping[str, Any] | None) -> int:
        """Compare the query with `format.json`, and keep what `begin` must write there."""
        given = json.loads(_stable_json(description))
        stored = read_query(self._folder)
        if stored is None:
            self._unwritten = {"query_id": self.query_id, "buckets": buckets, "description": description}
            return buckets
        if stored["query_id"] != self.query_id:
            raise foreign_state(self.files.uri(FORMAT_FILE), stored["query_id"], self.query_id)
        differing = differences(stored["description"], given)
        known = int(stored["buckets"])
        if not differing and keep_state_of(stored.get(PLAN_FIELD, plan)) == keep_state_of(plan):
            return known
        is_same = is_reworded(stored["description"], given) or is_of_other_session(stored["description"], given)
        if is_same and plan is not None and is_same_plan(self._stored_plan(), _as_json(plan)):
            last = read_newest(self.files)  # the description counts for the plan that it names
            of_plan = {} if last is None or last.plan is None else {OF_PLAN: last.plan}
            self._unwritten = {**stored, "description": description, **of_plan}
        elif differing:
            raise StateError(
                f"the checkpoint {self._folder.location} was made for another query; different: {'; '.join(differing)}. "
                f"{what_to_do(self._stored_plan(), plan)}",
                code="QUERY_CHANGED",
                differences=differing,
            )
        return known

    def _digest_of_first(self) -> str:
        """Return a digest of how the query is described where its checkpoint began; changed plans leave local state its own."""
        first = self._unwritten or read_format(self._folder) or {}
        return hashlib.blake2b(_stable_json(_as_json(first.get("description", {}))).encode(), digest_size=16).hexdigest()

    def _stored_plan(self) -> Mapping[str, Any]:
        """Return the checkpoint's operators; nothing where they are missing."""
        known = read_query(self._folder)
        if known is not None and PLAN_FIELD in known:
            return dict(known[PLAN_FIELD])
        stored = self._folder.read(PLAN_FILE)
        return {} if stored is None else unseal(stored.to_pybytes(), version=CHECKPOINT_FORMAT, name=PLAN_FILE)

    def _write_format(self) -> None:
        """Write down whose checkpoint it is and its plan, both or neither."""
        # Where the query has changed, its plan goes into `format.json` too: one file changes at once, whatever fails after
        # it.
        unwritten, self._unwritten = self._unwritten, None
        if unwritten is None:
            if self.changed is None:
                self._write_plan()
            return
        before = self._folder.read(FORMAT_FILE)
        if before is not None:
            changed = unwritten if self._plan is None else {**unwritten, PLAN_FIELD: self._plan}
            try:
                self._folder.put(FORMAT_FILE, seal(changed, version=CHECKPOINT_FORMAT, name=FORMAT_FILE))
            except BaseException:
                now = self._folder.read(FORMAT_FILE)
                if now is None or not now.equals(before):  # it failed behind the change
                    self._folder.put(FORMAT_FILE, before.to_pybytes())
                raise
            return
        sealed = seal(unwritten, version=CHECKPOINT_FORMAT, name=FORMAT_FILE)
        self._write_plan(is_new=True)
        try:
            self._folder.put_new(FORMAT_FILE, sealed)
        except FileExistsError:  # another driver was faster: it must be the same query
            self._check_format(unwritten["description"], int(unwritten["buckets"]), self._plan)

    def _write_plan(self, *, is_new: bool = False) -> None:
        """Write the plan down where it is missing or damaged, or was planned with another `keep_state`."""
        plan = self._plan
        if plan is None:
            return
        known = None if is_new else read_format(self._folder)
        if known is not None and PLAN_FIELD in known:
            return
        stored = self._folder.read(PLAN_FILE)
        sealed = seal(plan, version=CHECKPOINT_FORMAT, name=PLAN_FILE)
        if stored is None:
            with contextlib.suppress(FileExistsError):  # another driver was faster: it is of the same description
                self._folder.put_new(PLAN_FILE, sealed)
        elif self._owner is not None and (is_new or not _is_whole(stored.to_pybytes(), plan)):
            self._folder.put(PLAN_FILE, sealed)

    def _buckets_changed(self, given: int) -> StateError:
        return StateError(
            f"buckets={given} was given, and the checkpoint {self._folder.location} has {self.buckets}. Remove the option, or "
            f"stop the query and call zset_join.spark.rescale(checkpoint, buckets={given}).",
            code="BUCKETS_CHANGED",
            buckets=given,
            stored=self.buckets,
        )


def _is_whole(stored: bytes, plan: Mapping[str, Any]) -> bool:
    """Return whether a stored plan can be read and has a plan's `keep_state`; the rest the description compares."""
    try:
        return keep_state_of(unseal(stored, version=CHECKPOINT_FORMAT, name=PLAN_FILE)) == keep_state_of(plan)
    except ValueError:
        return False


def _logged_rows(record: CommitRecord) -> dict[str, int]:
    return {
        key: log.rows
        for key, history in record.histories.items()
        for log in history.logs[-1:]
        if log.first_epoch == log.last_epoch == record.epoch
    }


def _stable_json(description: Mapping[str, Any]) -> str:
    return json.dumps(description, sort_keys=True)


def _as_json(written: Mapping[str, Any]) -> Any:
    return json.loads(_stable_json(written))
