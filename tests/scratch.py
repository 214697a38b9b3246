"""Scratch space of a run in memory: tests are about the order of operations, not about a disk, which takes milliseconds per sync.

Thirty thousand syncs of a run waited longer than a tenth of it. A host without room in memory keeps its own directory, and so
does who sets `TMPDIR`. The directory is removed when all tests passed; after a failure the next run removes it.

A run holds a lock on its directory. The lock shows to other users and to other containers, which see the same file system but
not this process, that the directory is in use.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

__all__ = ["LEAST_FREE", "remove_scratch", "use_memory"]

LEAST_FREE = 4 << 30
_IN_MEMORY = Path("/dev/shm")
_MEMORY = Path("/proc/meminfo")
_PREFIX = "zset_join-scratch-"


def use_memory(place: Path = _IN_MEMORY) -> Path | None:
    """Let this process and those it starts have their temporary files in memory.

    Args:
        place: a file system in memory.

    Returns:
        The new directory, or None where `TMPDIR` is set, `place` runs no programs, or it or the host has no room.
    """
    if "TMPDIR" in os.environ or not os.access(place, os.W_OK) or os.statvfs(place).f_flag & os.ST_NOEXEC:
        return None
    for left in place.glob(f"{_PREFIX}*"):
        with _locked(left) as is_unused:
            if is_unused:
                remove_scratch(left)
    if min(shutil.disk_usage(place).free, _available()) < LEAST_FREE:
        return None
    scratch = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
    scratch.chmod(0o711)  # PostgreSQL runs as nobody where root runs the tests
    fcntl.flock(os.open(scratch, os.O_RDONLY), fcntl.LOCK_EX)  # until this process ends
    if not scratch.exists():  # another run found it before it was locked
        return use_memory(place)
    os.environ["TMPDIR"] = tempfile.tempdir = str(scratch)
    return scratch


def remove_scratch(scratch: Path) -> None:
    """Remove a directory that `use_memory` made; what a process still writes there is left to the next run."""
    shutil.rmtree(scratch, ignore_errors=True)


def _available() -> int:
    """Return the bytes of memory that the host can give: a file system in memory may be larger."""
    lines = dict(line.split(":") for line in _MEMORY.read_text(encoding="utf-8").splitlines())
    return int(lines["MemAvailable"].split()[0]) << 10


@contextlib.contextmanager
def _locked(left: Path) -> Iterator[bool]:
    """Yield whether no process uses a directory; one of another user counts as used."""
    try:
        descriptor = os.open(left, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
    except OSError:
        yield False
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        yield False
    else:
        yield True
    finally:
        os.close(descriptor)
