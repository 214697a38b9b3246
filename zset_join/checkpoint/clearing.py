"""Cleaning of a checkpoint: removes unlisted files, old records and leftovers of failed attempts, but no file under a lease.

    leases/<name>.json      epoch, the files that its record lists, until when, and who reads

The law: the two newest epochs can be gone back to, and the holder of a lease that has not run out finds every file of its
epoch. The owner looks for leases after each commit, before it removes a file; files of an epoch go at the commit of the epoch
after the next one at the earliest. So a reader that has written its lease, and then sees no record newer than the next epoch's,
was in time; else it takes a newer epoch. Leases that have run out are removed: a reader that died holds nothing up for longer.
A file that the newest record still has for outputs is tried again after the next commit.

Where nothing can be written, a query that has stopped is read without a lease. Clocks of reader and owner must agree to a few
seconds, as for `zset_join.checkpoint.owner`.

Cost: one file per lease; one listing per epoch that leaves files behind.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from operator import is_not

from zset_join.checkpoint.files import CheckpointFiles
from zset_join.checkpoint.owner import owner_seen
from zset_join.checkpoint.reading import RECORD_NAME, RESCALINGS, CommittedState, read_last, record_name, rescaling_numbers
from zset_join.checkpoint.record import BucketHistory, CommitRecord
from zset_join.core.errors import OptionError, StateError
from zset_join.storage.folder import Folder

__all__ = ["LEASES", "LEASE_SECONDS", "RECORDS_KEPT", "Clearing", "leased_names", "leased_record"]

LEASES = "leases"
LEASE_SECONDS = 600.0
_TIMES = 5
_NOT_WRITABLE = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})


@contextmanager
def leased_record(files: CheckpointFiles, seconds: float = LEASE_SECONDS) -> Iterator[CommitRecord | None]:
    """Give the newest commit record, whose files stay to the end of the block or of the lease; None: no epoch."""
    if type(seconds) not in (int, float) or not 0 < seconds < float("inf"):
        raise OptionError(
            f"lease_seconds={seconds!r}: a lease is positive and finite; expected seconds such as {LEASE_SECONDS:.0f}.",
            code="OPTION_VALUE",
            name="lease_seconds",
            value=seconds,
        )
    record, name, until = read_last(files), f"{LEASES}/{uuid.uuid4().hex}.json", time.time() + seconds
    if record is None:
        yield None
        return
    is_held = False
    try:
        for _ in range(_TIMES):
            is_held = _write(files, name, record, until)
            newest = read_last(files)
            if newest is None or newest.epoch <= record.epoch + 1:
                break
            record = newest
        else:
            raise StateError(
                f"the query of the checkpoint {files.folder.location} commits epochs faster than one of them can be held. Stop "
                "the query, or read a copy of the checkpoint.",
                code="STATE_MOVES_ON",
                location=files.folder.location,
            )
        try:
            yield record
        except StateError as error:
            if error.code == "DAMAGED_FILE" and time.time() > until:
                raise _expired(files, record, seconds) from error
            raise
    finally:
        if is_held:
            files.folder.remove(name)


def leased_names(folder: Folder) -> set[str]:
    """Return the files that leases hold, for the owner of a checkpoint; leases that have run out are removed."""
    held: set[str] = set()
    for name in list(folder.names(LEASES)):
        data = folder.read(name)
        if data is None:
            continue
        try:
            lease = json.loads(data.to_pybytes())
            names, until = {str(one) for one in lease["files"]}, float(lease["until"])
        except (ValueError, KeyError, TypeError):
            folder.remove(name)  # no lease of this library: it holds nothing
            continue
        if until < time.time():
            folder.remove(name)
        else:
            held |= names
    return held


def _write(files: CheckpointFiles, name: str, record: CommitRecord, until: float) -> bool:
    """Write a lease; return whether one is needed: a stopped query on a disk that is only read removes no file."""
    names = sorted(record.state_files() | {part.file.name for part in record.parts})
    reader = {"host": socket.gethostname(), "pid": os.getpid()}
    lease = {"epoch": record.epoch, "until": until, "reader": reader, "files": names}
    try:
        files.folder.put(name, json.dumps(lease).encode())
    except OSError as error:
        seen = owner_seen(files.folder) if error.errno in _NOT_WRITABLE else None
        if seen is not None and seen[1] in {"stopped", "gone"}:
            return False
        raise StateError(
            f"the lease {files.uri(name)}, which keeps the files of epoch {record.epoch} while they are read, cannot be "
            f"written: {error}. Let this process write below {files.uri(LEASES)}, stop the query, or read a copy of the "
            "checkpoint.",
            code="STORAGE_FAILED",
            location=files.folder.location,
        ) from error
    return True


def _expired(files: CheckpointFiles, record: CommitRecord, seconds: float) -> StateError:
    return StateError(
        f"reading epoch {record.epoch} of the checkpoint {files.folder.location} took longer than its lease of {seconds:.0f} "
        "seconds, and the running query has removed files since. Give a longer lease, lease_seconds or --lease-seconds, or "
        "stop the query first.",
        code="LEASE_EXPIRED",
        epoch=record.epoch,
        seconds=seconds,
    )


RECORDS_KEPT = 10
"""As many of the newest commit records are present, or all where there were fewer epochs."""


class Clearing:
    """Clear away what a checkpoint has no use for any more."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._garbage: list[str] = []

    def after(self, before: CommittedState, record: CommitRecord) -> None:
        """Remove what the record before the last one listed and nobody lists any more."""
        removable, self._garbage = self._garbage, []
        if before.last is not None:
            states = (before.last.histories,) if before.rescaling is None else (before.last.histories, before.histories)
            gone = {name for state in states for name in _left_out(state, record.histories)}
            self._garbage = sorted(gone - record.state_files()) if gone else []
            self._garbage += [part.file.name for part in before.last.parts if _is_of_no_state(part.file.name, before.last)]
        held = leased_names(self._folder) | {part.file.name for part in record.parts} if removable else set()
        self._garbage += [name for name in removable if name in held]
        removable = [name for name in removable if name not in held]
        if record.epoch >= RECORDS_KEPT:
            removable.append(record_name(record.epoch - RECORDS_KEPT))
        for name in removable:
            self._folder.remove(name)

    def sweep(self, last: CommitRecord, states: Iterable[Mapping[str, BucketHistory]]) -> None:
        """Remove what dead attempts and drivers left behind: files of epochs before the last one that no record lists."""
        # What only the epoch before the last one needs goes with the next commit.
        of_newest, *of_earlier = (
            {name for history in histories.values() for name in history.file_names()} for histories in states
        )
        kept = last.state_files() | of_newest
        earlier = {name for names in of_earlier for name in names}
        self._garbage = sorted({*self._garbage, *(earlier - kept)})
        listed = kept | earlier | {part.file.name for part in last.parts} | leased_names(self._folder)
        for under in ("log", "snapshot", "delta"):
            for name in list(self._folder.names(under)):
                if _is_before(name, last.epoch) and name not in listed:
                    self._folder.remove(name)
        for name in [*self._folder.names("commits"), *self._folder.names(RESCALINGS)]:
            match = RECORD_NAME.fullmatch(name)
            numbers = (int(match[1]), 0) if match is not None else rescaling_numbers(name)
            if numbers is not None and numbers[0] <= last.epoch - RECORDS_KEPT:
                self._folder.remove(name)


def _is_of_no_state(name: str, record: CommitRecord) -> bool:
    """Return whether a part of a record is present for outputs alone."""
    # It is a file of its own, or the log of a view that has begun again since, which changes carry on that outputs have not
    # seen.
    if name.startswith("delta/"):
        return True
    return name.startswith("log/") and _is_before(name, record.epoch) and name not in record.state_files()


def _is_before(name: str, epoch: int) -> bool:
    written = name.rpartition("/")[2].partition("-")[0]
    return written.isdecimal() and int(written) < epoch


def _left_out(before: Mapping[str, BucketHistory], after: Mapping[str, BucketHistory]) -> Iterator[str]:
    """Yield the files of histories that do not continue, log by log, in later ones; most do, and cost one look."""
    for key, history in before.items():
        later = after.get(key)
        is_longer = later is not None and later.snapshot is history.snapshot and len(later.logs) >= len(history.logs)
        if later is None or not is_longer or any(map(is_not, history.logs, later.logs)):
            yield from history.file_names()
