"""The driver's view of a checkpoint: what is committed, what the next epoch starts from, and how it becomes true.

    <checkpointLocation>/           Spark's own files: offsets/ commits/ metadata ...
    └── zset/
        ├── format.json             query id, number of buckets, description of the query
        ├── commits/<epoch>.json    one record per epoch, written last
        ├── log/<stage>-<bucket>/   input deltas, one file per epoch that had rows
        ├── snapshot/<stage>-<bucket>/
        └── delta/                  answers of the newest epochs, until the sink has them for good

The law: `commit` is atomic; before it the epoch left nothing a reader would see, after it every file the record lists
is on the disk. Epochs come without holes. A record that exists is never replaced: a replayed epoch is answered from
it.

Files that no record lists any more are removed one epoch later, so that a task that lags behind still finds them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zset_join.checkpoint.bucket import StageContext
from zset_join.checkpoint.files import local_path, read_bytes, remove_files, write_atomic
from zset_join.checkpoint.record import BucketHistory, CommitRecord
from zset_join.errors import StateError
from zset_join.tick import Tick

__all__ = ["Checkpoint", "stored_buckets", "stored_query_id"]

_FORMAT = 1
_FOLDER = "zset"
_RECORDS_KEPT = 10
_START_ANEW = "Start with a new checkpointLocation, or bring back the old directory from a copy."


def stored_buckets(location: str) -> int | None:
    """Return the number of buckets a checkpoint was made with; None when there is no checkpoint yet."""
    found = _read_format(local_path(location) / _FOLDER)
    return None if found is None else int(found["buckets"])


def stored_query_id(location: str) -> str | None:
    """Return the id of the query a checkpoint belongs to; None when there is no checkpoint yet."""
    found = _read_format(local_path(location) / _FOLDER)
    return None if found is None else str(found["query_id"])


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
    ) -> None:
        self.root = local_path(location) / _FOLDER
        self.query_id = query_id
        self.buckets = buckets
        self._local_state_dir = local_state_dir
        self._snapshot_after_bytes = snapshot_after_bytes
        self._retain_input_log = retain_input_log
        self._digest = hashlib.blake2b(_stable_json(description).encode(), digest_size=16).hexdigest()
        self._check_format(description)
        self._garbage: list[str] = []
        self.last = self._read_last()
        self._sweep()

    def committed(self, epoch: int) -> CommitRecord | None:
        """Return the record of an epoch that is committed already; None when it is the next one.

        Raises:
            StateError: the epoch is neither the last one nor the one after it.
        """
        if self.last is not None and epoch == self.last.epoch:
            return self.last
        expected = 0 if self.last is None else self.last.epoch + 1
        if epoch != expected:
            holds = "no epoch" if self.last is None else f"epochs up to {self.last.epoch}"
            raise StateError(
                f"Spark asks for epoch {epoch}, and the checkpoint {self.root} holds {holds}; epoch {expected} was expected. "
                f"A part of the checkpoint directory was replaced or removed. {_START_ANEW}",
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
            root=str(self.root),
            local_state_dir=self._local_state_dir,
            digest=self._digest,
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

    def commit(self, record: CommitRecord) -> None:
        """Make an epoch true; the last epoch may be made anew with another attempt at the same rows.

        Raises:
            StateError: the epoch is neither, or another driver committed it.
        """
        is_again = self.committed(record.epoch) is not None
        path = self._record_path(record.epoch)
        if not is_again and path.exists():
            raise StateError(
                f"epoch {record.epoch} of query {self.query_id} was committed by another driver; two of them share the "
                f"checkpoint {self.root}. Stop one of them.",
                code="COMMITTED_TWICE",
                epoch=record.epoch,
            )
        write_atomic(path, record.to_bytes())
        self._collect_garbage(record)
        self.last = record

    def _collect_garbage(self, record: CommitRecord) -> None:
        """Remove what the record before the last one listed and nobody lists any more."""
        remove_files(self.root, self._garbage)
        self._garbage = []
        if self.last is not None:
            self._garbage = sorted(self.last.state_files() - record.state_files())
            self._garbage += [part.file.name for part in self.last.parts if part.file.name.startswith("delta/")]
        if record.epoch >= _RECORDS_KEPT:
            self._record_path(record.epoch - _RECORDS_KEPT).unlink(missing_ok=True)

    def _sweep(self) -> None:
        """Remove what a driver that died left behind: files of epochs before the last one that no record lists."""
        if self.last is None:
            return
        listed = self.last.state_files() | {part.file.name for part in self.last.parts}
        listed |= {name for history in self.before(self.last.epoch).values() for name in history.file_names()}
        for folder in ("log", "snapshot", "delta"):
            for path in (self.root / folder).glob("*/[0-9]*"):
                name = path.relative_to(self.root).as_posix()
                if name not in listed and int(path.name.partition("-")[0]) < self.last.epoch:
                    path.unlink(missing_ok=True)

    def _wants_snapshot(self, history: BucketHistory) -> bool:
        if self._retain_input_log or not history.logs:
            return False
        stored = 0 if history.snapshot is None else history.snapshot.bytes
        return history.log_bytes > max(self._snapshot_after_bytes, stored)

    def _record_path(self, epoch: int) -> Path:
        return self.root / "commits" / f"{epoch:020d}.json"

    def _read_last(self) -> CommitRecord | None:
        names = sorted(path.name for path in (self.root / "commits").glob("[0-9]*.json"))
        if not names:
            return None
        return self._read(int(names[-1].removesuffix(".json")))

    def _read(self, epoch: int) -> CommitRecord | None:
        """Return the record of an epoch; None before the first.

        Raises:
            StateError: it is missing, damaged, or of another query.
        """
        if epoch < 0:
            return None
        path = self._record_path(epoch)
        try:
            record = CommitRecord.from_bytes(path.read_bytes())
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StateError(
                f"commit record {path} cannot be read ({error}). {_START_ANEW}", code="DAMAGED_FILE", file=str(path)
            ) from error
        if record.query_id != self.query_id:
            raise _foreign(path, record.query_id, self.query_id)
        return record

    def _check_format(self, description: Mapping[str, Any]) -> None:
        found = _read_format(self.root)
        if found is None:
            made = {
                "format": _FORMAT,
                "query_id": self.query_id,
                "buckets": self.buckets,
                "description": description,
            }
            write_atomic(self.root / "format.json", json.dumps(made, indent=1).encode())
            return
        if found["query_id"] != self.query_id:
            raise _foreign(self.root / "format.json", found["query_id"], self.query_id)
        if found["buckets"] != self.buckets:
            raise StateError(
                f"buckets={self.buckets} was given, and the checkpoint {self.root} was made with {found['buckets']}; the "
                "number is fixed for the life of a checkpoint. Remove the option, or start with a new checkpointLocation.",
                code="BUCKETS_CHANGED",
                buckets=self.buckets,
                stored=found["buckets"],
            )
        differing = _differences(found["description"], json.loads(_stable_json(description)))
        if differing:
            raise StateError(
                f"the checkpoint {self.root} was made for another query; different: {'; '.join(differing)}. State cannot be "
                "carried over to a changed query: start it with a new checkpointLocation.",
                code="QUERY_CHANGED",
                differences=differing,
            )


def _read_format(root: Path) -> dict[str, Any] | None:
    path = root / "format.json"
    data = read_bytes(path)
    if data is None:
        if any((root / "commits").glob("[0-9]*.json")):
            raise StateError(f"{path} is missing beside its commit records. {_START_ANEW}", code="DAMAGED_FILE", file=str(path))
        return None
    try:
        found: dict[str, Any] = json.loads(data)
        known = found["format"] == _FORMAT
    except (ValueError, KeyError, TypeError) as error:
        raise StateError(f"{path} cannot be read ({error}). {_START_ANEW}", code="DAMAGED_FILE", file=str(path)) from error
    if not known:
        raise StateError(
            f"{path} is of format {found['format']}, this version reads format {_FORMAT}. Use the version that made it, or "
            "start with a new checkpointLocation.",
            code="STATE_FORMAT",
            file=str(path),
        )
    return found


def _foreign(path: Path, found: str, expected: str) -> StateError:
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
