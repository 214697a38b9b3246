"""One bucket of one stage on the worker: its operator, brought to the state before the epoch.

The law: inside `with BucketState(...) as state`, `state.operator` holds exactly the committed epochs before the tick,
whichever worker opened it last and whatever happened to it. Nothing of the current epoch is folded in; that waits for
the next one. So a retry, a twin attempt and a replay all use the same state.

The operator lives in mapped files on the host (`local_state`), a cache: if anything does not fit, or a file was touched by
another program, it is wiped and rebuilt from the snapshot and the log. An attempt that was overtaken finds files that are ahead
of its epoch, or that belong to a later driver: it is refused, and leaves them alone.

A worker keeps operators open between epochs (`OpenOperators`), since the first touch of every mapped page costs more than
answering, and takes one up again when its files are still whole and stamped with its epoch. Mapped memory is shared, so it sees
epochs that other workers folded. Beside it are the deltas logged last, which need not be read back to be folded. What is taken
is never in there any more, and all is taken under the bucket's lock, so no two attempts share an operator.

Bounds: at most `MOST_OPERATORS` operators, `MOST_FILES` mapped files, each of which holds a descriptor, and `MOST_BYTES` of
working arrays and deltas; the least recently used goes first, and the newest stays. None with working arrays above
`MOST_WORKING_BYTES`; no deltas above `MOST_DELTA_BYTES`. A plan beyond a bound opens all its states in every epoch.

Cost: opening warm files maps them, in time that does not depend on their size; folding costs the rows of the epochs missing.
"""

from __future__ import annotations

import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Generic, Protocol, TypeVar

from zset_join.checkpoint.files import CheckpointFiles
from zset_join.checkpoint.local_state import LocalState, Stamp, default_local_state_dir, remove_unused
from zset_join.checkpoint.record import BucketHistory, LogEntry, LoggedEpoch, merge_logs, read_log, write_log
from zset_join.checkpoint.snapshot import SnapshotEntry, open_snapshot, write_snapshot
from zset_join.core.epochs import Tick
from zset_join.core.errors import StateError
from zset_join.state.rows.directories import locked_outside
from zset_join.state.rows.side import shared_sides
from zset_join.zset import ZSet
from zset_join.zset.protocol import DurableOperator

__all__ = ["BucketState", "KeptOperator", "LoggedDeltas", "OpenOperators", "Reopenable", "StageContext"]

MOST_OPERATORS = 64
MOST_FILES = 512
MOST_BYTES = 1 << 30
MOST_WORKING_BYTES = 128 << 20
MOST_DELTA_BYTES = 64 << 20


class Reopenable(Protocol):
    """Statistics of the operators in here."""

    def is_current(self) -> bool:
        """Return whether the mapped files are still those of the directory, and whole."""

    def working_bytes(self) -> int:
        """Return the bytes of the working arrays."""

    def close(self) -> None:
        """Release the files."""


_Operator = TypeVar("_Operator", bound=Reopenable)


@dataclass(frozen=True, slots=True)
class LoggedDeltas:
    """Hold what one attempt logged."""

    identity: str
    tick: Tick
    deltas: tuple[ZSet, ...]
    bytes: int

    @classmethod
    def small_enough(cls, identity: str, tick: Tick, deltas: Sequence[ZSet]) -> LoggedDeltas | None:
        """Return them if they are worth their memory."""
        held = sum(delta.rows.get_total_buffer_size() + delta.weights.nbytes for delta in deltas)
        return cls(identity, tick, tuple(deltas), held) if held <= MOST_DELTA_BYTES else None


@dataclass(frozen=True, slots=True)
class KeptOperator(Generic[_Operator]):
    """Hold an open operator."""

    operator: _Operator
    logged: LoggedDeltas | None
    files: int


class OpenOperators(Generic[_Operator]):
    """Keep operators open, by where their files are and which driver they work for."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, int], tuple[KeptOperator[_Operator], int]] = OrderedDict()

    def take(self, directory: str, opened_at_ns: int) -> KeptOperator[_Operator] | None:
        """Return an operator whose files are still the same, and forget it; None when there is none."""
        kept, _ = self._kept.pop((directory, opened_at_ns), (None, 0))
        if kept is not None and not kept.operator.is_current():
            kept.operator.close()
            return None
        return kept

    def keep(self, directory: str, opened_at_ns: int, kept: KeptOperator[_Operator]) -> None:
        """Keep an operator open; close it, or others, where that is too much."""
        working = kept.operator.working_bytes()
        if working > MOST_WORKING_BYTES:
            kept.operator.close()
            return
        replaced, _ = self._kept.pop((directory, opened_at_ns), (None, 0))
        if replaced is not None:
            replaced.operator.close()
        held = working + (0 if kept.logged is None else kept.logged.bytes)
        self._kept[directory, opened_at_ns] = kept, held
        while len(self._kept) > 1 and self._is_too_much():
            _, (oldest, _) = self._kept.popitem(last=False)
            oldest.operator.close()

    def _is_too_much(self) -> bool:
        kept = list(self._kept.values())
        files, held = sum(one.files for one, _ in kept), sum(held for _, held in kept)
        return len(kept) > MOST_OPERATORS or files > MOST_FILES or held > MOST_BYTES

    def clear(self, opened_at_ns: int | None = None) -> None:
        """Close those of one driver, or all."""
        for key in [key for key in list(self._kept) if opened_at_ns in (None, key[1])]:
            kept, _ = self._kept.pop(key, (None, 0))
            if kept is not None:
                kept.operator.close()


_CLEAN_EVERY_SECONDS = 3600.0
_READERS_PATIENCE_SECONDS = 600.0
"""The holder of a state that several stages read is most likely another one of them, and releases it after its answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageContext:
    """Context of the tasks of one stage in one epoch."""

    query_id: str
    stage: str
    tick: Tick
    root: str  # an absolute path or a URI
    local_state_dir: str | None  # None: the default place of the host
    digest: str  # of the query's description
    opened_at_ns: int = 0  # later drivers have larger ones
    histories: Mapping[int, BucketHistory] = field(default_factory=dict)  # a bucket without state is missing
    snapshot_buckets: frozenset[int] = frozenset()
    merge_buckets: frozenset[int] = frozenset()  # whose log files are to be merged
    count_buckets: frozenset[int] = frozenset()  # that must report what they hold
    due_buckets: frozenset[int] = frozenset()  # that wait for a time that has come
    local_state_retention_seconds: int | None = None
    readers: int = 1  # stages that open the state of a bucket in an epoch, one after the other

    @property
    def files(self) -> CheckpointFiles:
        return CheckpointFiles.at(self.root, self.query_id)

    def is_work_due(self, bucket: int) -> bool:
        """Return whether a bucket must be opened even when it has no rows."""
        return any(bucket in chosen for chosen in (self.snapshot_buckets, self.merge_buckets, self.count_buckets))


class BucketState:
    """Hold one bucket while a task works on it."""

    def __init__(
        self,
        context: StageContext,
        bucket: int,
        build: Callable[[str], DurableOperator],
        hold: Callable[[DurableOperator], bool] | None = None,
    ) -> None:
        # `hold` lets the operator hold rows with those of other states, and returns whether it dropped its own for them.
        self.context = context
        self.bucket = bucket
        self.snapshot: SnapshotEntry | None = None
        self.merged: LogEntry | None = None
        self.seconds: dict[str, float] = {}
        self.was_rebuilt = False
        self._build, self._hold = build, _held_alone if hold is None else hold
        self._history = context.histories.get(bucket, BucketHistory())
        # The mapped files were here, at most one epoch behind; None for a bucket that remembers nothing yet.
        self.is_warm: bool | None = False if self._history != BucketHistory() else None
        self._files = context.files
        self._folder = f"{context.stage}-{bucket}"
        self._base = default_local_state_dir() if context.local_state_dir is None else Path(context.local_state_dir)
        self._operator: DurableOperator | None = None
        self._local: LocalState | None = None
        self._folded: str = ""
        self._logged: LoggedDeltas | None = None

    @property
    def operator(self) -> DurableOperator:
        """Return the operator, in the state before the epoch."""
        if self._operator is None:
            raise self._not_open()
        return self._operator

    def log(self, deltas: Sequence[ZSet], *, is_due: bool = False) -> LogEntry | None:
        """Write this epoch's input to the log; None when it has no rows, unless it is due."""
        entry = write_log(self._files, f"log/{self._folder}", tick=self.context.tick, deltas=deltas, is_due=is_due)
        if entry is not None:
            self._logged = LoggedDeltas.small_enough(entry.identity, self.context.tick, deltas)
        return entry

    def __enter__(self) -> BucketState:
        started = time.perf_counter()
        patience = None if self.context.readers == 1 else _READERS_PATIENCE_SECONDS
        self._local = LocalState.acquire(self._base, self.context.query_id, self._folder, patience_seconds=patience)
        try:
            self._open()
            opened = time.perf_counter()
            self._fold()
            self._hold_rows()
            self._maintain()
        except BaseException:
            self.release()
            raise
        self.seconds = {"open": opened - started, "fold": time.perf_counter() - opened}
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and not self._opened().is_private:
            with contextlib.suppress(OSError):  # a full disk: the seal stays broken, and the files are rebuilt
                self._opened().seal_again(self._stamp())
            kept = KeptOperator(self.operator, self._logged, self._opened().files)
            _kept_open.keep(self._opened().directory, self.context.opened_at_ns, kept)
            self._operator = None
        self.release()
        if error is None and self.context.local_state_retention_seconds is not None and _cleaning_is_due():
            remove_unused(self._base, self.context.local_state_retention_seconds)

    def _open(self) -> None:
        """Open the mapped files when they are ours and fit; else start over."""
        stamp = self._opened().read_stamp(query_id=self.context.query_id, digest=self.context.digest)
        if stamp is not None:
            self._refuse_if_overtaken(stamp)
            if self._is_known(stamp.folded):
                self._operator = self._operator_over_the_files()
                if self._operator is not None:
                    if self._operator.absorbed_epoch == stamp.absorbed_epoch:
                        self._folded = stamp.folded
                        self.is_warm = None if self.is_warm is None else len(self._missing_logs()[0]) <= 1
                        return
                    self._operator.close()
        self._rebuild()

    def _operator_over_the_files(self) -> DurableOperator | None:
        """Return the operator this process kept open, or a new one; None where the files are half-written or do not fit."""
        directory = self._opened().directory
        kept = _kept_open.take(directory, self.context.opened_at_ns)
        if kept is not None:
            self._logged = kept.logged
            return kept.operator
        if not self._opened().is_sealed():
            return None
        try:
            with locked_outside():
                return self._build(directory)
        except StateError:
            return None  # rebuilt from what is committed

    def _refuse_if_overtaken(self, stamp: Stamp) -> None:
        """Raise when the epoch, or the driver, has been left behind by the one the files are for."""
        # Files that are ahead although an earlier driver left them are not a sign of that: the checkpoint was brought back
        # from a copy, and they are rebuilt.
        context = self.context
        is_ahead = stamp.absorbed_epoch >= context.tick.epoch
        if stamp.opened_at_ns > context.opened_at_ns or (is_ahead and stamp.opened_at_ns == context.opened_at_ns):
            raise StateError(
                f"this attempt at epoch {context.tick.epoch} of bucket {self._folder} came too late: the local state is at "
                f"epoch {stamp.absorbed_epoch} already, so that epoch was committed by another attempt. Nothing was read or "
                "changed, and no action is needed.",
                code="STALE_ATTEMPT",
                epoch=context.tick.epoch,
                absorbed_epoch=stamp.absorbed_epoch,
            )

    def _rebuild(self) -> None:
        local = self._opened()
        self.is_warm = None if self.is_warm is None else False
        self.was_rebuilt = local.start_empty() or local.is_private
        with locked_outside():
            self._operator = self._build(local.directory)
        self._folded = ""
        if self._history.snapshot is not None:
            self._operator.restore(open_snapshot(self._files, self._history.snapshot))
            self._folded = self._history.snapshot.identity
        self._write_stamp()

    def _is_known(self, folded: str) -> bool:
        """Return whether the log continues from where the mapped files end."""
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
                self._rebuild()
                self._fold()
                return
        if missing:
            self._write_stamp()

    def _hold_rows(self) -> None:
        """Hold rows that other states have too with these; start over where those that it held so are gone."""
        is_new = self._hold(self.operator)
        if any(side.lacks_rows for side in shared_sides(self.operator)):
            self.operator.close()
            self._rebuild()
            self._fold()
            is_new = self._hold(self.operator)
        if is_new:
            self._write_stamp()

    def _read(self, log: LogEntry) -> Iterator[LoggedEpoch]:
        logged, self._logged = self._logged, None
        if logged is not None and logged.identity == log.identity and not log.is_merged and not log.more:
            return iter((LoggedEpoch(logged.tick, logged.deltas, logged.identity),))
        return read_log(self._files, log, schemas=[relation.schema for relation in self.operator.inputs])

    def _missing_logs(self) -> tuple[tuple[LogEntry, ...], bool]:
        """Return the log files to read, and whether the first one begins with epochs that are present already."""
        starts = self._starts()
        if self._folded in starts:
            return self._history.logs[starts.index(self._folded) :], False
        at = next(position for position, log in enumerate(self._history.logs) if _epoch_of(self._folded) < log.last_epoch)
        return self._history.logs[at:], True

    def _maintain(self) -> None:
        """Write a snapshot or merge the log, when the driver requested it."""
        if self.bucket in self.context.snapshot_buckets:
            self.snapshot = write_snapshot(
                self._files,
                f"snapshot/{self._folder}",
                self.operator.snapshot_readers(),
                through_epoch=self._history.logs[-1].last_epoch,
                identity=self._folded,
            )
        elif self.bucket in self.context.merge_buckets:
            self.merged = merge_logs(self._files, f"log/{self._folder}", self._history.small_tail())

    def _write_stamp(self) -> None:
        self._opened().write_stamp(self._stamp())

    def _stamp(self) -> Stamp:
        context = self.context
        return Stamp.here(
            query_id=context.query_id,
            digest=context.digest,
            folded=self._folded,
            absorbed_epoch=self.operator.absorbed_epoch,
            opened_at_ns=context.opened_at_ns,
        )

    def _opened(self) -> LocalState:
        if self._local is None:
            raise self._not_open()
        return self._local

    def _not_open(self) -> StateError:
        return StateError(f"bucket {self._folder} is not open; enter it with `with`.", code="BUCKET_CLOSED")

    def release(self) -> None:
        """Close the operator and release the lock; done already is no error."""
        try:
            operator, self._operator = self._operator, None
            if operator is not None:
                operator.close()
        finally:
            if self._local is not None:
                self._local.close()
                self._local = None


_kept_open: OpenOperators[DurableOperator] = OpenOperators()
_next_cleaning = 0.0


def close_kept_operators(opened_at_ns: int | None = None) -> None:
    """Close what this process keeps open between epochs, as its end would; that of one driver, or all."""
    _kept_open.clear(opened_at_ns)


def _held_alone(operator: DurableOperator) -> bool:
    for side in shared_sides(operator):
        side.hold_with(None)
    return False


def _cleaning_is_due() -> bool:
    """Return whether this process has not looked for unused state for an hour."""
    global _next_cleaning
    now = time.monotonic()
    if now < _next_cleaning:
        return False
    _next_cleaning = now + _CLEAN_EVERY_SECONDS
    return True


def _epoch_of(identity: str) -> int:
    """Return the epoch an attempt name begins with; -1 for none."""
    return int(identity.partition("-")[0]) if identity else -1
