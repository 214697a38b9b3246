"""One bucket of one stage on the worker: its operator, brought to the state before the epoch.

The law: inside `with BucketState(...) as state`, `state.operator` holds exactly the committed epochs before the tick,
whichever worker opened it last and whatever happened to it. Nothing of the current epoch is folded in; that waits for
the next one. So a retry, a twin attempt and a replay all ask the same state.

The operator lives in mapped files below `localStateDir`. They are a cache: a stamp beside them names the query, the
last log file that was folded in, and the host's boot. If anything does not fit, the cache is wiped and rebuilt from
the snapshot and the log. A lock file keeps a second attempt on the same host waiting.

    <localStateDir>/<query id>/<stage>-<bucket>/{lock, stamp.json, state/}
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Protocol

from zset_join.checkpoint.files import read_bytes, remove_tree
from zset_join.checkpoint.log import LogEntry, LoggedEpoch, merge_logs, read_log, write_log
from zset_join.checkpoint.record import BucketHistory
from zset_join.checkpoint.snapshot import SnapshotEntry, read_snapshot, write_snapshot
from zset_join.errors import StateError
from zset_join.protocol import Operator
from zset_join.tick import Tick
from zset_join.zset import ZSet

__all__ = ["BucketState", "DurableOperator", "StageContext", "default_local_state_dir"]

_FORMAT = 1
_LOCK_SECONDS = 600.0
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class DurableOperator(Operator, Protocol):
    """An operator whose state is mapped files."""

    @property
    def absorbed_epoch(self) -> int:
        """Return the last epoch folded in; -1 when fresh."""
        ...

    def statistics(self) -> dict[str, int]:
        """Return counts for people."""
        ...

    def close(self) -> None:
        """Let go of the files."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StageContext:
    """Say what the tasks of one stage need in one epoch.

    Args:
        query_id: whose state it is.
        stage: name of the stage.
        tick: the epoch to be answered.
        root: root of the checkpoint.
        local_state_dir: where mapped state lives; None for the default place of the host.
        digest: digest of the query's description.
        histories: bucket to what its state is made of; a bucket without state is missing.
        snapshot_buckets: buckets to write a snapshot of.
        merge_buckets: buckets whose log files to merge.
    """

    query_id: str
    stage: str
    tick: Tick
    root: str
    local_state_dir: str | None
    digest: str
    histories: Mapping[int, BucketHistory] = field(default_factory=dict)
    snapshot_buckets: frozenset[int] = frozenset()
    merge_buckets: frozenset[int] = frozenset()

    def has_chores(self, bucket: int) -> bool:
        """Say whether a bucket must be opened even when it has no rows."""
        return bucket in self.snapshot_buckets or bucket in self.merge_buckets


def default_local_state_dir() -> Path:
    """Return where this host keeps mapped state unless told otherwise; the same after a restart."""
    return Path(tempfile.gettempdir()) / f"zset_join-{os.getuid()}"


class BucketState:
    """Hold one bucket while a task works on it.

    Args:
        context: the epoch and what is committed.
        bucket: number of the bucket.
        build: makes the operator over a directory; called again after a wipe.

    Attributes:
        operator: the operator, in the state before the epoch.
        snapshot: the snapshot written on the way, or None.
        merged: the log file merged on the way, or None.
        seconds: wall-clock seconds spent opening and folding.
        was_rebuilt: the mapped files could not be used and were made anew.
    """

    def __init__(self, context: StageContext, bucket: int, build: Callable[[str], DurableOperator]) -> None:
        self.context = context
        self.bucket = bucket
        self.snapshot: SnapshotEntry | None = None
        self.merged: LogEntry | None = None
        self.seconds: dict[str, float] = {}
        self.was_rebuilt = False
        self._build = build
        self._history = context.histories.get(bucket, BucketHistory())
        self._root = Path(context.root)
        base = default_local_state_dir() if context.local_state_dir is None else Path(context.local_state_dir)
        self._folder = f"{context.stage}-{bucket}"
        self._home = base / context.query_id / self._folder
        self._operator: DurableOperator | None = None
        self._lock: IO[bytes] | None = None
        self._folded: str = ""

    @property
    def operator(self) -> DurableOperator:
        """Return the operator, in the state before the epoch."""
        if self._operator is None:
            raise StateError(f"bucket {self._folder} is not open; enter it with `with`.", code="BUCKET_CLOSED")
        return self._operator

    def log(self, deltas: Sequence[ZSet]) -> LogEntry | None:
        """Write this epoch's input to the log; None when it has no rows."""
        return write_log(
            self._root,
            f"log/{self._folder}",
            query_id=self.context.query_id,
            tick=self.context.tick,
            deltas=deltas,
        )

    def __enter__(self) -> BucketState:
        started = time.perf_counter()
        self._home.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(self._home / "lock")
        try:
            self._open()
            opened = time.perf_counter()
            self._fold()
            self._maintain()
        except BaseException:
            self._release()
            raise
        self.seconds = {"open": opened - started, "fold": time.perf_counter() - opened}
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release()

    def _open(self) -> None:
        """Open the mapped files when they are ours and fit; else start anew."""
        stamp = self._read_stamp()
        if stamp is not None and self._is_known(stamp["folded"]):
            try:
                self._operator = self._build(str(self._home / "state"))
            except StateError:
                self._operator = None  # half-written or of another layout: rebuilt below from what is committed
            if self._operator is not None:
                if self._operator.absorbed_epoch == stamp["absorbed_epoch"]:
                    self._folded = stamp["folded"]
                    return
                self._operator.close()
        self._rebuild(had_files=(self._home / "state").exists())

    def _rebuild(self, *, had_files: bool) -> None:
        self.was_rebuilt = had_files
        (self._home / "stamp.json").unlink(missing_ok=True)
        remove_tree(self._home / "state")
        (self._home / "state").mkdir()
        self._operator = self._build(str(self._home / "state"))
        self._folded = ""
        if self._history.snapshot is not None:
            self._operator.restore(read_snapshot(self._root, self._history.snapshot))
            self._folded = self._history.snapshot.identity
        self._write_stamp()

    def _is_known(self, folded: str) -> bool:
        """Say whether the log goes on from where the mapped files end."""
        return folded in self._starts() or any(
            log.first_epoch < log.last_epoch and log.first_epoch <= _epoch_of(folded) < log.last_epoch
            for log in self._history.logs
        )

    def _starts(self) -> list[str]:
        first = "" if self._history.snapshot is None else self._history.snapshot.identity
        return [first, *(log.identity for log in self._history.logs)]

    def _fold(self) -> None:
        """Absorb the committed epochs that the mapped files do not have yet."""
        missing, skipping = self._missing_logs()
        for log in missing:
            for logged in self._read(log):
                if skipping:
                    skipping = logged.identity != self._folded
                    continue
                self.operator.absorb(logged.tick, logged.deltas)
                self._folded = logged.identity
            if skipping:  # the mapped files end with an epoch that was never committed
                self.operator.close()
                self._rebuild(had_files=True)
                self._fold()
                return
        if missing:
            self._write_stamp()

    def _read(self, log: LogEntry) -> Iterator[LoggedEpoch]:
        schemas = [relation.schema for relation in self.operator.inputs]
        return read_log(self._root, log, query_id=self.context.query_id, schemas=schemas)

    def _missing_logs(self) -> tuple[tuple[LogEntry, ...], bool]:
        """Return the log files to read, and whether the first one begins with epochs that are there already."""
        starts = self._starts()
        if self._folded in starts:
            return self._history.logs[starts.index(self._folded) :], False
        at = next(position for position, log in enumerate(self._history.logs) if _epoch_of(self._folded) < log.last_epoch)
        return self._history.logs[at:], True

    def _maintain(self) -> None:
        """Write a snapshot or merge the log, when the driver asked for it."""
        if self.bucket in self.context.snapshot_buckets:
            self.snapshot = write_snapshot(
                self._root,
                f"snapshot/{self._folder}",
                self.operator.snapshot(),
                through_epoch=self._history.logs[-1].last_epoch,
                identity=self._folded,
            )
        elif self.bucket in self.context.merge_buckets:
            self.merged = merge_logs(self._root, f"log/{self._folder}", self._history.small_tail())

    def _read_stamp(self) -> dict[str, Any] | None:
        """Return the stamp of the mapped files when they belong to this query and were not cut off by a crash."""
        data = read_bytes(self._home / "stamp.json")
        if data is None:
            return None
        try:
            stamp: dict[str, Any] = json.loads(data)
        except ValueError:
            return None  # cut off while it was written: the files are rebuilt
        same = all(stamp.get(name) == value for name, value in self._stamp_facts().items())
        return stamp if same else None

    def _write_stamp(self) -> None:
        stamp = {
            **self._stamp_facts(),
            "folded": self._folded,
            "absorbed_epoch": self.operator.absorbed_epoch,
        }
        beside = self._home / f".stamp-{os.getpid()}"
        beside.write_text(json.dumps(stamp))
        beside.replace(self._home / "stamp.json")

    def _stamp_facts(self) -> dict[str, Any]:
        """Return what must be equal for mapped files to be used.

        Files are not synced, so they are trusted only within one boot of the host.
        """
        boot = read_bytes(_BOOT_ID)
        return {
            "format": _FORMAT,
            "query_id": self.context.query_id,
            "digest": self.context.digest,
            "boot": None if boot is None else boot.decode().strip(),
        }

    def _release(self) -> None:
        if self._operator is not None:
            self._operator.close()
            self._operator = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def _epoch_of(identity: str) -> int:
    """Return the epoch an attempt name begins with; -1 for none."""
    return int(identity.partition("-")[0]) if identity else -1


def _lock(path: Path) -> IO[bytes]:
    """Take the lock of a bucket; closing the file gives it back.

    Raises:
        StateError: another process holds it for too long.
    """
    file = path.open("ab")
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        except BlockingIOError:
            if time.monotonic() > deadline:
                file.close()
                raise StateError(
                    f"{path} is held by another process for more than {_LOCK_SECONDS:.0f} seconds; an older attempt of this "
                    "bucket hangs. End that worker, or give this query another localStateDir.",
                    code="STATE_LOCKED",
                    lock=str(path),
                ) from None
            time.sleep(0.005)
