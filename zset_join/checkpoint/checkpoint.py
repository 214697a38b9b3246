"""The driver's view of a checkpoint: what is committed, what the next epoch starts from, and how it becomes true.

    <checkpointLocation>/           Spark's own files: offsets/ commits/ metadata ...
    └── zset/
        ├── format.json             query id, number of buckets, description of the query
        ├── owners/                 which driver this checkpoint belongs to
        ├── commits/<epoch>.json    one record per epoch, written last
        ├── log/<stage>-<bucket>/   input deltas, one file per epoch that had rows
        ├── snapshot/<stage>-<bucket>/
        └── delta/                  answers of the newest epochs, until the sink has them for good

The law: `commit` is atomic; before it the epoch left nothing a reader would see, after it every file the record lists
is on the disk. Epochs come without holes. A record that exists is never replaced: a replayed epoch is answered from
it.

The two newest epochs can be gone back to: files that no record lists any more are removed one epoch later. That also leaves
them to a task that lags behind.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from zset_join.checkpoint.bucket import StageContext
from zset_join.checkpoint.files import CheckpointFiles
from zset_join.checkpoint.owner import Ownership
from zset_join.checkpoint.record import BucketHistory, CommitRecord
from zset_join.errors import StateError
from zset_join.storage.folder import Folder, folder_below
from zset_join.storage.sealed import UnknownFormatError, seal, unseal
from zset_join.tick import Tick

__all__ = [
    "CHECKPOINT_FORMAT",
    "Checkpoint",
    "checkpoint_folder",
    "has_commits",
    "stored_buckets",
    "stored_description",
    "stored_query_id",
]

CHECKPOINT_FORMAT = 2
_FORMAT_FILE = "format.json"
_RECORDS_KEPT = 10
_SWEEP_EVERY = 256
_RECORD_NAME = re.compile(r"commits/(\d{20})\.json")
_START_ANEW = "Start with a new checkpointLocation, or bring back the old directory from a copy."


def checkpoint_folder(location: str) -> Folder:
    """Return the folder of our files below a `checkpointLocation`, a path or a URI.

    Raises:
        OptionError: no installed library knows the file system.
    """
    return folder_below(location, "zset")


def stored_buckets(location: str) -> int | None:
    """Return the number of buckets a checkpoint was made with; None when there is no checkpoint yet."""
    found = _read_format(checkpoint_folder(location))
    return None if found is None else int(found["buckets"])


def stored_query_id(location: str) -> str | None:
    """Return the id of the query a checkpoint belongs to; None when there is no checkpoint yet."""
    found = _read_format(checkpoint_folder(location))
    return None if found is None else str(found["query_id"])


def stored_description(location: str) -> Mapping[str, Any] | None:
    """Return the description of the query a checkpoint belongs to; None when there is no checkpoint yet."""
    found = _read_format(checkpoint_folder(location))
    return None if found is None else dict(found["description"])


def has_commits(location: str) -> bool:
    """Say whether an epoch is committed in a checkpoint."""
    return any(_RECORD_NAME.fullmatch(name) for name in checkpoint_folder(location).names("commits"))


class Checkpoint:
    """Open the checkpoint of one query.

    Args:
        location: `checkpointLocation`.
        query_id: id of the streaming query; it stays the same across restarts.
        buckets: number of buckets.
        description: JSON-ready description of the query; a restart with another one is refused.
        local_state_dir: where workers keep mapped state; None for the default place of each host.
        snapshot_after_bytes: see `QueryOptions`.
        retain_input_log: never replace logs by a snapshot.
        local_state_retention_seconds: see `QueryOptions`.
        owner: this driver's claim. Without one nothing is cleared away: what looks like rubbish may be another driver's work.

    Raises:
        StateError: the directory belongs to another query, to another description, or is damaged.
    """

    def __init__(
        self,
        location: str,
        *,
        query_id: str,
        buckets: int,
        description: Mapping[str, Any],
        local_state_dir: str | None = None,
        snapshot_after_bytes: int = 64 * 1024 * 1024,
        retain_input_log: bool = False,
        local_state_retention_seconds: int | None = None,
        owner: Ownership | None = None,
    ) -> None:
        self.files = CheckpointFiles(checkpoint_folder(location), query_id)
        self.query_id = query_id
        self.buckets = buckets
        self._folder = self.files.folder
        self._local_state_dir = local_state_dir
        self._local_state_retention_seconds = local_state_retention_seconds
        self._snapshot_after_bytes = snapshot_after_bytes
        self._retain_input_log = retain_input_log
        self._owner = owner
        self._digest = hashlib.blake2b(_stable_json(description).encode(), digest_size=16).hexdigest()
        self._check_format(description)
        self._garbage: list[str] = []
        self._folder.settle("commits")  # a record that is seen may be built upon: from now on it survives a power cut
        self.last = self._read_last()
        if self.last is not None:
            self.before(self.last.epoch)  # the epoch before it must be there to go back to
        self.opened_at_ns = max(time.time_ns(), 0 if self.last is None else self.last.opened_at_ns + 1)
        if owner is not None:
            self._folder.remove_unfinished("", "commits", "owners")
            self._sweep()

    def committed(self, epoch: int, offsets: str | None = None) -> CommitRecord | None:
        """Return the record of an epoch that is committed already; None when it is the next one.

        Args:
            epoch: the epoch Spark asks for.
            offsets: digest of what Spark says the epoch reads; None when it cannot be told.

        Raises:
            StateError: the epoch is neither the last one nor the one after it, or is the last one with another input.
        """
        if self.last is not None and epoch == self.last.epoch:
            if offsets is not None and self.last.offsets is not None and offsets != self.last.offsets:
                raise StateError(
                    f"epoch {epoch} is committed in the checkpoint {self._folder.location}, and Spark asks for it again with "
                    f"other input: Spark's own files beside it were rolled back. {_START_ANEW}",
                    code="EPOCH_REPLANNED",
                    epoch=epoch,
                )
            return self.last
        expected = 0 if self.last is None else self.last.epoch + 1
        if epoch != expected:
            holds = "no epoch" if self.last is None else f"epochs up to {self.last.epoch}"
            raise StateError(
                f"Spark asks for epoch {epoch}, and the checkpoint {self._folder.location} holds {holds}; epoch {expected} was "
                f"expected. A part of the checkpoint directory was replaced or removed. {_START_ANEW}",
                code="EPOCH_GAP",
                epoch=epoch,
                expected=expected,
            )
        return None

    def stage(self, stage: str, tick: Tick) -> StageContext:
        """Return what the tasks of a stage need to know for the next epoch."""
        before = self.before(tick.epoch)
        histories = {bucket: before.get(f"{stage}/{bucket}", BucketHistory()) for bucket in range(self.buckets)}
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

    def before(self, epoch: int) -> Mapping[str, BucketHistory]:
        """Return what the state consists of before an epoch: the next one, or the last one when it is answered again."""
        if self.last is None:
            return {}
        if epoch > self.last.epoch:
            return self.last.histories
        previous = self._read(epoch - 1)
        return {} if previous is None else previous.histories

    def commit(self, record: CommitRecord) -> CommitRecord:
        """Make an epoch true.

        Returns:
            The record as it was written, with this driver's name.

        Raises:
            StateError: the epoch is not the next one, another driver committed it, or this driver is not the owner any more.
        """
        if self.committed(record.epoch) is not None:
            raise self._committed_twice(record.epoch)
        if self._owner is not None:
            self._owner.check()
        owner = None if self._owner is None else self._owner.mine.token
        record = replace(record, owner=owner, opened_at_ns=self.opened_at_ns)
        name, data = _record_name(record.epoch), record.to_bytes()
        try:
            self._folder.put_new(name, data)
        except FileExistsError as error:
            found = self._folder.read(name)  # an object store may have taken our own request, and its answer was lost
            if found is None or found.to_pybytes() != data:
                raise self._committed_twice(record.epoch) from error
        before, self.last = self.last, record
        self._collect_garbage(before, record)
        if self._owner is not None and record.epoch % _SWEEP_EVERY == _SWEEP_EVERY - 1:
            self._sweep()
        return record

    def answer_again(self, record: CommitRecord) -> CommitRecord:
        """Take a second answer to the last epoch, whose parts were lost; its record on the disk stays as it is.

        Args:
            record: what another attempt at the same rows gave.

        Returns:
            The committed record with the new parts. What else the attempt wrote is removed.

        Raises:
            StateError: the attempt saw other rows.
        """
        last = self.last
        if last is None or record.epoch != last.epoch:
            raise ValueError(f"epoch {record.epoch} is not the last one")
        if _logged_rows(last) != _logged_rows(record):
            raise StateError(
                f"epoch {record.epoch} was answered again because its answer was lost before the output had it, and the "
                "sources gave other rows than when it was committed. Nothing was handed out. Make the sources replayable, and "
                "start anew with a new checkpointLocation and output.",
                code="REPLAY_DIFFERS",
                epoch=record.epoch,
            )
        before = {name for history in self.before(last.epoch).values() for name in history.file_names()}
        for name in record.state_files() - last.state_files() - before:
            self._folder.remove(name)
        self.last = replace(last, parts=record.parts)
        return self.last

    def _committed_twice(self, epoch: int) -> StateError:
        return StateError(
            f"epoch {epoch} of query {self.query_id} was committed already, by another driver; two of them share the "
            f"checkpoint {self._folder.location}. Stop one of them and start this query again: it goes on after that epoch.",
            code="COMMITTED_TWICE",
            epoch=epoch,
        )

    def _collect_garbage(self, before: CommitRecord | None, record: CommitRecord) -> None:
        """Remove what the record before the last one listed and nobody lists any more."""
        for name in self._garbage:
            self._folder.remove(name)
        self._garbage = []
        if before is not None:
            self._garbage = sorted(before.state_files() - record.state_files())
            self._garbage += [part.file.name for part in before.parts if part.file.name.startswith("delta/")]
        if record.epoch >= _RECORDS_KEPT:
            self._folder.remove(_record_name(record.epoch - _RECORDS_KEPT))

    def _sweep(self) -> None:
        """Remove what dead attempts and drivers left behind: files of epochs before the last one that no record lists."""
        if self.last is None:
            return
        listed = self.last.state_files() | {part.file.name for part in self.last.parts}
        listed |= {name for history in self.before(self.last.epoch).values() for name in history.file_names()}
        for under in ("log", "snapshot", "delta"):
            for name in list(self._folder.names(under)):
                epoch = name.rpartition("/")[2].partition("-")[0]
                if epoch.isdecimal() and int(epoch) < self.last.epoch and name not in listed:
                    self._folder.remove(name)
        for name in list(self._folder.names("commits")):
            found = _RECORD_NAME.fullmatch(name)
            if found is not None and int(found[1]) <= self.last.epoch - _RECORDS_KEPT:
                self._folder.remove(name)

    def _wants_snapshot(self, history: BucketHistory) -> bool:
        return not self._retain_input_log and history.has_outgrown(self._snapshot_after_bytes)

    def _read_last(self) -> CommitRecord | None:
        found = [_RECORD_NAME.fullmatch(name) for name in self._folder.names("commits")]
        epochs = [int(match[1]) for match in found if match is not None]
        return self._read(max(epochs)) if epochs else None

    def _read(self, epoch: int) -> CommitRecord | None:
        """Return the record of an epoch; None before the first.

        Raises:
            StateError: it is missing, damaged, or of another query.
        """
        if epoch < 0:
            return None
        name = _record_name(epoch)
        path = self.files.uri(name)
        found = self._folder.read(name)
        try:
            record = CommitRecord.from_bytes(b"" if found is None else found.to_pybytes(), epoch)
        except UnknownFormatError as error:
            raise _unknown_format(path, error) from error
        except (ValueError, KeyError, TypeError) as error:
            what = "is missing" if found is None else f"cannot be read ({error})"
            raise StateError(f"commit record {path} {what}. {_START_ANEW}", code="DAMAGED_FILE", file=path) from error
        if record.query_id != self.query_id:
            raise _foreign(path, record.query_id, self.query_id)
        return record

    def _check_format(self, description: Mapping[str, Any]) -> None:
        made = {"query_id": self.query_id, "buckets": self.buckets, "description": description}
        found = _read_format(self._folder)
        if found is None:
            try:
                self._folder.put_new(_FORMAT_FILE, seal(made, version=CHECKPOINT_FORMAT, name=_FORMAT_FILE))
                return
            except FileExistsError:
                found = _read_format(self._folder)  # another driver was faster: it must be the same query
        if found is None:
            raise StateError(f"{self.files.uri(_FORMAT_FILE)} vanished. {_START_ANEW}", code="DAMAGED_FILE")
        if found["query_id"] != self.query_id:
            raise _foreign(self.files.uri(_FORMAT_FILE), found["query_id"], self.query_id)
        if found["buckets"] != self.buckets:
            raise StateError(
                f"buckets={self.buckets} was given, and the checkpoint {self._folder.location} was made with "
                f"{found['buckets']}; the number is fixed for the life of a checkpoint. Remove the option, or start with a new "
                "checkpointLocation.",
                code="BUCKETS_CHANGED",
                buckets=self.buckets,
                stored=found["buckets"],
            )
        differing = _differences(found["description"], json.loads(_stable_json(description)))
        if differing:
            raise StateError(
                f"the checkpoint {self._folder.location} was made for another query; different: {'; '.join(differing)}. State "
                "cannot be carried over to a changed query: start it with a new checkpointLocation.",
                code="QUERY_CHANGED",
                differences=differing,
            )


def _record_name(epoch: int) -> str:
    return f"commits/{epoch:020d}.json"


def _logged_rows(record: CommitRecord) -> dict[str, int]:
    """Return the rows each bucket logged in the epoch of a record."""
    return {
        key: log.file.rows
        for key, history in record.histories.items()
        for log in history.logs[-1:]
        if log.first_epoch == log.last_epoch == record.epoch
    }


def _read_format(folder: Folder) -> dict[str, Any] | None:
    path = folder.uri(_FORMAT_FILE)
    data = folder.read(_FORMAT_FILE)
    if data is None:
        if any(_RECORD_NAME.fullmatch(name) for name in folder.names("commits")):
            raise StateError(f"{path} is missing beside its commit records. {_START_ANEW}", code="DAMAGED_FILE", file=path)
        return None
    try:
        return unseal(data.to_pybytes(), version=CHECKPOINT_FORMAT, name=_FORMAT_FILE)
    except UnknownFormatError as error:
        raise _unknown_format(path, error) from error
    except ValueError as error:
        raise StateError(f"{path} cannot be read ({error}). {_START_ANEW}", code="DAMAGED_FILE", file=path) from error


def _unknown_format(path: str, error: UnknownFormatError) -> StateError:
    return StateError(
        f"{path} is of format {error.found}, this version reads format {CHECKPOINT_FORMAT}. Use the version of the library "
        "that made it, or start with a new checkpointLocation.",
        code="STATE_FORMAT",
        file=path,
        found=error.found,
        expected=CHECKPOINT_FORMAT,
    )


def _foreign(path: str, found: str, expected: str) -> StateError:
    return StateError(
        f"{path} belongs to query {found}, not to {expected}: Spark's own files in the checkpoint were removed or replaced, "
        f"and the state stayed. {_START_ANEW}",
        code="FOREIGN_STATE",
        found=found,
        expected=expected,
    )


def _stable_json(description: Mapping[str, Any]) -> str:
    return json.dumps(description, sort_keys=True)


def _differences(stored: Any, given: Any, path: str = "") -> list[str]:
    if isinstance(stored, dict) and isinstance(given, dict):
        names = sorted(stored.keys() | given.keys())
        return [line for name in names for line in _differences(stored.get(name), given.get(name), f"{path}.{name}")]
    if stored == given:
        return []
    return [f"{path.lstrip('.')} was {stored!r} and is {given!r}"]
