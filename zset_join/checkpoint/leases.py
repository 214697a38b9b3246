"""A lease keeps the files of one epoch on the disk while another process reads them, for a limited time.

    leases/<name>.json      epoch, the files that its record lists, until when, and who reads

The law: the holder of a lease that has not run out finds every file of its epoch. The owner of the checkpoint looks for leases
after each commit, before it removes a file; files of an epoch go at the commit of the epoch after the next one at the earliest.
So a reader that has written its lease, and then sees no record newer than the next epoch's, was in time; else it takes a newer
epoch. The owner removes leases that have run out: a reader that died holds nothing up for longer than that.

Where nothing can be written, a query that has stopped is read without a lease.

Clocks of reader and owner must agree to a few seconds, as for `zset_join.checkpoint.owner`.

Cost: one file per lease; one listing per epoch that leaves files behind.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from zset_join.checkpoint.files import CheckpointFiles
from zset_join.checkpoint.owner import owner_seen
from zset_join.checkpoint.reading import read_last
from zset_join.checkpoint.record import CommitRecord
from zset_join.core.errors import OptionError, StateError
from zset_join.storage.folder import Folder

__all__ = ["LEASES", "LEASE_SECONDS", "leased_names", "leased_record"]

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
