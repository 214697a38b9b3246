"""Reading a checkpoint without owning it: the query, the newest commit record or rescaling, the number of buckets.

The law: what is returned is whole and belongs to the query, or reading it raises; nothing is changed. A driver may be at work
meanwhile: the newest record and the one before it are present as long as it has committed less than ten epochs since they were
looked for.

A rescaling is the state after an epoch in another number of buckets, or as another plan has it. It counts exactly when its
record is present, the epoch it was made after is the newest one, and the commit record of that epoch is the very one it was
made after; so an epoch that is retracted takes it along. The next commit record carries number and buckets on. It lists
snapshots written for it under names of their own, never local state of the buckets before.

Cost: one or two listings and a few small files.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from zset_join.checkpoint.files import CHECKPOINT_FORMAT, CheckpointFiles
from zset_join.checkpoint.owner import epoch_at_end
from zset_join.checkpoint.record import PLANS, BucketHistory, ChangedPlan, CommitRecord, read_changed_plan
from zset_join.core.errors import StateError
from zset_join.plan.query_plan import QueryPlan
from zset_join.stages import Stage, read_stage
from zset_join.storage.folder import Folder, folder_below, is_local, local_path
from zset_join.storage.trusted_files import UnknownFormatError, read, seal, unseal

__all__ = [
    "FORMAT_FILE",
    "OF_PLAN",
    "PLAN_FIELD",
    "PLAN_FILE",
    "RECORD_NAME",
    "RESCALINGS",
    "START_FILE",
    "START_OVER",
    "CommittedState",
    "Rescaling",
    "changed_plan_of",
    "checkpoint_folder",
    "commit_record_missing",
    "epoch_of_batch",
    "foreign_state",
    "has_commits",
    "no_checkpoint",
    "plan_before",
    "query_of",
    "query_plan",
    "read_committed",
    "read_format",
    "read_last",
    "read_newest",
    "read_query",
    "read_record",
    "read_rescaling",
    "reads_start",
    "record_digest",
    "record_name",
    "rescaling_numbers",
    "stages_of",
    "stored_buckets",
    "stored_description",
    "stored_plan",
    "stored_query_id",
]

RESCALINGS = "rescalings"
_NAME = re.compile(rf"{RESCALINGS}/(\d{{20}})-(\d{{10}})\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescaling:
    """Hold what is true after a rescaling, until the next epoch."""

    number: int
    query_id: str
    epoch: int
    record: str
    buckets: int
    histories: Mapping[str, BucketHistory]
    owner: str | None
    opened_at_ns: int
    plan: str | None = None

    @property
    def name(self) -> str:
        return f"{RESCALINGS}/{self.epoch:020d}-{self.number:010d}.json"

    def state_files(self) -> set[str]:
        return {name for history in self.histories.values() for name in history.file_names()}

    def to_bytes(self) -> bytes:
        return seal(self, version=CHECKPOINT_FORMAT, name=self.name)

    @classmethod
    def from_bytes(cls, data: bytes, name: str) -> Rescaling:
        return read(cls, unseal(data, version=CHECKPOINT_FORMAT, name=name))


def record_digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def rescaling_numbers(name: str) -> tuple[int, int] | None:
    """Return the epoch and the number of a rescaling by the name of its file; None for another file.

    >>> rescaling_numbers("rescalings/00000000000000000007-0000000002.json")
    (7, 2)
    """
    match = _NAME.fullmatch(name)
    return None if match is None else (int(match[1]), int(match[2]))


FORMAT_FILE = "format.json"
PLAN_FILE = "stages.json"
PLAN_FIELD = "plan"
"""The field of `format.json` with the plan of a query that has changed since it began; it counts instead of `PLAN_FILE`."""
OF_PLAN = "of_plan"
"""The field of `format.json` that names the changed plan in whose place its description and plan are: one with more columns."""
START_FILE = "start/epoch-0"
"""The first file of the source without rows that brings epochs without input; it stays while Spark's files name the source."""
RECORD_NAME = re.compile(r"commits/(\d{20})\.json")
_ZSET_FOLDER = "zset"
_LEVELS_BELOW, _MOST_NAMED, _MOST_LOOKED_AT = 3, 5, 1_000
_Record = TypeVar("_Record")
START_OVER = "Start with a new checkpointLocation, or restore the old directory from a copy."


def checkpoint_folder(location: str) -> Folder:
    """Return the folder of our files below a `checkpointLocation`, a path or a URI."""
    return folder_below(location, _ZSET_FOLDER)


def reads_start(folder: Folder) -> bool:
    """Return whether a query of a checkpoint has read the source of epochs without input, which Spark then names."""
    return folder.size(START_FILE) is not None


def stored_buckets(location: str) -> int | None:
    """Return the number of buckets a checkpoint has; None when there is no checkpoint yet."""
    committed = read_committed(location)
    return None if committed is None else committed.buckets


def stored_query_id(location: str) -> str | None:
    """Return the id of the query a checkpoint belongs to; None when there is no checkpoint yet."""
    format_file = read_format(checkpoint_folder(location))
    return None if format_file is None else str(format_file["query_id"])


def stored_description(location: str) -> Mapping[str, Any] | None:
    """Return the description of the query a checkpoint belongs to; None when there is no checkpoint yet."""
    known = read_query(checkpoint_folder(location))
    return None if known is None else dict(known["description"])


def stored_plan(location: str) -> Mapping[str, Any]:
    """Return what it takes to build the operators of a query without its program, as the query wrote it down."""
    folder = checkpoint_folder(location)
    return plan_in(location, read_query(folder))


def plan_in(location: str, known: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the plan of what `read_query` or `query_of` gave; the errors are those of `stored_plan`."""
    if known is not None and PLAN_FIELD in known:
        return dict(known[PLAN_FIELD])
    folder = checkpoint_folder(location)
    data = folder.read(PLAN_FILE)
    if data is None:
        path = folder.uri(PLAN_FILE)
        raise StateError(
            f"{path}, which has the plan, is missing. Start the query once, which writes it again; an epoch is not needed.",
            code="PLAN_MISSING",
            file=path,
        )
    return _unsealed(data.to_pybytes(), folder.uri(PLAN_FILE), PLAN_FILE)


def stages_of(location: str) -> dict[str, Stage]:
    """Return the stages of a query by their names, in the order of an epoch; they open the state as the query would."""
    return {one["name"]: read_stage(one["stage"]) for one in stored_plan(location)["stages"]}


def query_plan(location: str) -> QueryPlan:
    """Return the plan of a query, in process or inside Spark."""
    if stored_query_id(location) is None:
        raise no_checkpoint(location)
    return QueryPlan.from_json(stored_plan(location)["plan"])


def has_commits(location: str) -> bool:
    """Return whether an epoch is committed in a checkpoint."""
    return any(RECORD_NAME.fullmatch(name) for name in checkpoint_folder(location).names("commits"))


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedState:
    """Committed content of a checkpoint."""

    files: CheckpointFiles
    first_buckets: int
    last: CommitRecord | None
    rescaling: Rescaling | None

    @property
    def buckets(self) -> int:
        """Return the number of buckets of the next epoch."""
        if self.rescaling is not None:
            return self.rescaling.buckets
        return self.first_buckets if self.last is None else self.last.buckets or self.first_buckets

    @property
    def histories(self) -> Mapping[str, BucketHistory]:
        """Return "stage/bucket" to what the state is made of, after the newest epoch."""
        if self.rescaling is not None:
            return self.rescaling.histories
        return {} if self.last is None else self.last.histories


def read_committed(location: str) -> CommittedState | None:
    """Return what a checkpoint holds; None when there is no checkpoint yet."""
    folder = checkpoint_folder(location)
    format_file = read_format(folder)
    if format_file is None:
        return None
    files = CheckpointFiles(folder, str(format_file["query_id"]))
    last = read_last(files)
    rescaling = None if last is None else read_rescaling(files, last.epoch)
    return CommittedState(files=files, first_buckets=int(format_file["buckets"]), last=last, rescaling=rescaling)


def record_name(epoch: int) -> str:
    return f"commits/{epoch:020d}.json"


def read_last(files: CheckpointFiles) -> CommitRecord | None:
    """Return the newest commit record; None before the first epoch."""
    matches = [RECORD_NAME.fullmatch(name) for name in files.folder.names("commits")]
    epochs = [int(match[1]) for match in matches if match is not None]
    ended, path = epoch_at_end(files.folder)
    if ended is not None and ended > max(epochs, default=-1):
        raise commit_record_missing(files, max(epochs, default=-1), ended, f"the directory was closed ({path})")
    return read_record(files, max(epochs)) if epochs else None


def commit_record_missing(files: CheckpointFiles, newest: int, epoch: int, where: str) -> StateError:
    """Return the error for a directory without the commit records behind its newest one."""
    path, over = files.uri(record_name(epoch)), epoch_at_end(files.folder)[1]
    return StateError(
        f"the commit record {path} is missing: {where} behind epoch {epoch}, and the newest record is "
        + (f"that of epoch {newest}" if newest >= 0 else "none")
        + ". Restore it, or directory and outputs of one time (zset-join restore). To go back instead, make "
        f"{over} an empty file: what epochs {newest + 1} to {epoch} changed is lost until their rows are given again, and an "
        "output that has them takes the same rows only.",
        code="COMMIT_RECORD_MISSING",
        epoch=epoch,
        newest=newest,
        file=path,
    )


def read_record(files: CheckpointFiles, epoch: int) -> CommitRecord | None:
    """Return the record of an epoch; None before the first."""
    if epoch < 0:
        return None
    name = record_name(epoch)
    record = _record(files, name, "commit record", lambda data: CommitRecord.from_bytes(data, epoch))
    if record.query_id != files.query_id:
        raise foreign_state(files.uri(name), record.query_id, files.query_id)
    return record


def _record(files: CheckpointFiles, name: str, what: str, parse: Callable[[bytes], _Record]) -> _Record:
    """Read a record that must be there."""
    path, data = files.uri(name), files.folder.read(name)
    try:
        return parse(b"" if data is None else data.to_pybytes())
    except UnknownFormatError as error:
        raise _unknown_format(path, error) from error
    except (ValueError, KeyError, TypeError) as error:
        state = "is missing" if data is None else f"cannot be read ({error})"
        raise StateError(f"{what} {path} {state}. {START_OVER}", code="DAMAGED_FILE", file=path) from error


def read_rescaling(files: CheckpointFiles, epoch: int, number: int | None = None) -> Rescaling | None:
    """Return the rescaling that counts after an epoch; None when there was none."""
    names = {rescaling_numbers(name): name for name in files.folder.names(RESCALINGS)}
    of_epoch = {numbers[1]: name for numbers, name in names.items() if numbers is not None and numbers[0] == epoch}
    wanted = max(of_epoch, default=None) if number is None else number
    if wanted is None:
        return None
    name = of_epoch.get(wanted, f"{RESCALINGS}/{epoch:020d}-{wanted:010d}.json")
    path = files.uri(name)
    rescaling = _record(files, name, "the record of a rescaling", lambda data: Rescaling.from_bytes(data, name))
    of_record = files.folder.read(record_name(epoch))
    if rescaling.query_id != files.query_id:
        raise foreign_state(path, rescaling.query_id, files.query_id)
    if of_record is not None and rescaling.record == record_digest(of_record.to_pybytes()):
        return rescaling
    if number is None:
        return None
    raise StateError(
        f"the rescaling {path} was made after another commit record of epoch {epoch} than the present one. {START_OVER}",
        code="DAMAGED_FILE",
        file=path,
    )


def read_format(folder: Folder) -> dict[str, Any] | None:
    """Return the checkpoint's owner query; None when there is no checkpoint yet."""
    path = folder.uri(FORMAT_FILE)
    data = folder.read(FORMAT_FILE)
    if data is not None:
        return _unsealed(data.to_pybytes(), path, FORMAT_FILE)
    if any(RECORD_NAME.fullmatch(name) for name in folder.names("commits")):
        raise StateError(f"{path} is missing beside its commit records. {START_OVER}", code="DAMAGED_FILE", file=path)
    return None


def read_query(folder: Folder) -> dict[str, Any] | None:
    """Return what `read_format` does, with the description and the plan that the query has changed to, where it has."""
    known = read_format(folder)
    if known is None or next(iter(folder.names(PLANS)), None) is None:
        return known
    return query_of(folder, known, read_newest(CheckpointFiles(folder, str(known["query_id"]))))


def query_of(folder: Folder, known: dict[str, Any], record: CommitRecord | None) -> dict[str, Any]:
    """Return the description and the plan of a query, as it was in the epoch of a record."""
    changed = None if record is None else changed_plan_of(folder, record)
    if record is None or changed is None or known.get(OF_PLAN) == record.plan:
        return known
    return {**known, "description": changed.description, PLAN_FIELD: changed.plan}


def read_newest(files: CheckpointFiles) -> CommitRecord | None:
    """Return the newest commit record with the plan that counts from here on; None before the first epoch."""
    last = read_last(files)
    rescaling = None if last is None else read_rescaling(files, last.epoch)
    return last if last is None or rescaling is None or rescaling.plan is None else replace(last, plan=rescaling.plan)


def changed_plan_of(folder: Folder, record: CommitRecord) -> ChangedPlan | None:
    """Return what the query of a record has changed to; None where it is as it was made."""
    if record.plan is None:
        return None
    path = folder.uri(f"{PLANS}/{record.plan}.json")
    try:
        return read_changed_plan(folder, record.plan)
    except UnknownFormatError as error:
        raise _unknown_format(path, error) from error
    except (ValueError, KeyError, TypeError) as error:
        raise StateError(
            f"the plan {path}, which the record of epoch {record.epoch} names, cannot be read ({error}). {START_OVER}",
            code="DAMAGED_FILE",
            file=path,
        ) from error


def plan_before(folder: Folder, record: CommitRecord) -> dict[str, Any]:
    """Return the plan that a query had before its last change, as `stored_plan`."""
    changed = changed_plan_of(folder, record)
    before = None if changed is None else changed.before
    if before is not None:
        earlier = changed_plan_of(folder, replace(record, plan=before))
        return {} if earlier is None else dict(earlier.plan)
    known = read_format(folder) or {}
    if PLAN_FIELD in known and OF_PLAN not in known:
        return dict(known[PLAN_FIELD])
    data = folder.read(PLAN_FILE)
    return _unsealed(b"" if data is None else data.to_pybytes(), folder.uri(PLAN_FILE), PLAN_FILE)


def epoch_of_batch(committed: CommittedState, batch: int) -> int:
    """Return the epoch in which a batch of Spark's was taken, or will be: one behind for each change of the query before it."""
    record = committed.last
    changed = None if record is None else changed_plan_of(committed.files.folder, record)
    while record is not None and changed is not None and batch + changed.changes <= changed.epoch:
        record = replace(record, plan=changed.before)
        changed = changed_plan_of(committed.files.folder, record)
    return batch + (0 if changed is None else changed.changes)


def no_checkpoint(location: str) -> StateError:
    """Return the error of a place where no query has run; it names the checkpoints in the directories below."""
    below = _checkpoints_below(location)
    cure = (
        f"Checkpoints below it: {', '.join(below)}; give one of them."
        if below
        else "Give the checkpointLocation of a query that has run, or the directory of a pipeline."
    )
    return StateError(
        f"there is no checkpoint of a query at {location}. {cure}", code="NO_CHECKPOINT", location=location, below=below
    )


def _checkpoints_below(location: str) -> list[str]:
    """Return the first directories below a local one, at most three levels down, that hold a checkpoint."""
    if not is_local(location):
        return []
    found: list[str] = []
    level, looked_at = [Path(local_path(location))], 0
    for _ in range(_LEVELS_BELOW):
        inner: list[Path] = []
        for directory in level:
            try:
                names = sorted(entry.path for entry in os.scandir(directory) if entry.is_dir(follow_symlinks=False))
            except OSError:  # not there, no directory, or not to be read: nothing is found in it
                continue
            for name in names:
                looked_at += 1
                if (Path(name) / _ZSET_FOLDER / FORMAT_FILE).is_file():
                    found.append(name)
                else:
                    inner.append(Path(name))
                if len(found) == _MOST_NAMED or looked_at == _MOST_LOOKED_AT:
                    return found
        level = inner
    return found


def foreign_state(path: str, found: str, expected: str) -> StateError:
    """Return the error about a file of another query."""
    return StateError(
        f"{path} belongs to query {found}, not to {expected}: Spark's own files in the checkpoint were removed or replaced, "
        f"and the state stayed. {START_OVER}",
        code="FOREIGN_STATE",
        found=found,
        expected=expected,
    )


def _unsealed(data: bytes, path: str, name: str) -> dict[str, Any]:
    try:
        return unseal(data, version=CHECKPOINT_FORMAT, name=name)
    except UnknownFormatError as error:
        raise _unknown_format(path, error) from error
    except ValueError as error:
        raise StateError(f"{path} cannot be read ({error}). {START_OVER}", code="DAMAGED_FILE", file=path) from error


def _unknown_format(path: str, error: UnknownFormatError) -> StateError:
    location = path.rpartition(f"/{_ZSET_FOLDER}/")[0]
    removal = f"rm -r {shlex.quote(location)}" if is_local(location) else f"remove {location}"
    return StateError(
        f"{path} is of format {error.found}, and this version reads format {CHECKPOINT_FORMAT} only. Rebuild the state from "
        f"its sources: {removal}, then start the query again, with outputs that are new.",
        code="STATE_FORMAT",
        file=path,
        found=error.found,
        expected=CHECKPOINT_FORMAT,
    )
