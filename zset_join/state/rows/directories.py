"""Directories of state: one operator per directory, and private ones that go with their process.

    <directory>/<name>.lock    held by who has the files `<name>.*`; it names process and host

The law: of two operators over the same files, the second is refused with `DIRECTORY_IN_USE`, in this process or in another.
The kernel frees the lock when a process dies; an operator that was dropped without being closed releases it when it is
collected. Where a checkpoint keeps the files, its bucket has a lock of its own, and processes take turns with mapped files: see
`locked_outside`. File systems without locks do without.

A private directory, for rows on disk that nobody needs later, is among the host's temporary files until it is removed or its
process has ended; what a killed process left is removed when the next one is made beside it. A process that was forked from its
owner holds the lock too. What other users left is theirs to remove.
"""

from __future__ import annotations

import errno
import gc
import os
import shutil
import socket
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from zset_join.core.errors import StateError
from zset_join.state.rows.usage import make_directory
from zset_join.storage.local import FileLock, lock_file
from zset_join.storage.operations import perform

__all__ = ["PrivateDirectory", "hold_directory", "locked_outside", "take_directory"]

_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP})
_is_locked_outside: ContextVar[bool] = ContextVar("is_locked_outside", default=False)


@contextmanager
def locked_outside() -> Iterator[None]:
    """Let operators that are made meanwhile take no lock: somebody else sees to it that they take turns."""
    token = _is_locked_outside.set(True)
    try:
        yield
    finally:
        _is_locked_outside.reset(token)


def hold_directory(holder: object, directory: str | None, name: str) -> Callable[[], object]:
    """Take the lock of the files of one name for an object; return what gives it back, as the end of the object does too."""
    make_directory(directory)
    lock = take_directory(directory, name)
    return _nothing if lock is None else weakref.finalize(holder, lock.release)


def _nothing() -> None:
    """Do nothing."""


def take_directory(directory: str | None, name: str) -> FileLock | None:
    """Take the lock of the files of one name; None for state in memory, and where somebody else sees to it."""
    if directory is None or _is_locked_outside.get():
        return None
    path = Path(directory) / f"{name}.lock"
    try:
        lock = lock_file(path)
        if lock is None:
            gc.collect()  # an operator nobody holds any more may have it
            lock = lock_file(path)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return None
        raise
    if lock is None:
        owner = perform("read", str(path), lambda: path.read_text(encoding="utf-8")).strip()
        raise StateError(
            f"the state in {directory} is in use by another operator ({owner or 'just being opened'}); two operators on one "
            "directory would write over each other. Close the other one first, or give this one a directory of its own.",
            code="DIRECTORY_IN_USE",
            directory=directory,
            owner=owner,
        )
    perform("write", str(path), lambda: path.write_text(f"process {os.getpid()} on {socket.gethostname()}\n", encoding="utf-8"))
    return lock


_PREFIX = "zset_join-cold-"
_LOCK = "lock"


class PrivateDirectory:
    """Make a directory, and remove those beside it whose processes are gone."""

    def __init__(self, parent: str | None = None) -> None:
        _remove_abandoned(Path(tempfile.gettempdir() if parent is None else parent))
        self.path, self._lock = _made(parent)

    def remove(self) -> None:
        """Remove it with all that is in it; removed already is no error."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.release()


def _made(parent: str | None) -> tuple[Path, FileLock]:
    """Return a new directory and its lock; somebody may have taken it for abandoned before it was locked."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        try:
            lock = lock_file(path / _LOCK)
        except FileNotFoundError:
            continue
        if lock is not None:
            return path, lock


def _remove_abandoned(parent: Path) -> None:
    """Remove directories of this user whose lock nobody holds; one without a lock is just being made."""
    with os.scandir(parent) as entries:
        directories = [
            Path(entry.path)
            for entry in entries
            if entry.name.startswith(_PREFIX) and entry.is_dir(follow_symlinks=False) and _is_own(entry)
        ]
    for path in directories:
        if (path / _LOCK).is_file():
            lock = _taken(path / _LOCK)
            if lock is not None:
                shutil.rmtree(path, ignore_errors=True)
                lock.release()


def _is_own(entry: os.DirEntry[str]) -> bool:
    """Return whether this user owns a directory; one that is gone meanwhile is nobody's."""
    try:
        return entry.stat(follow_symlinks=False).st_uid == os.getuid()
    except FileNotFoundError:
        return False


def _taken(path: Path) -> FileLock | None:
    """Take the lock of a directory that may go at any time; None if somebody has it, or it is gone."""
    try:
        return lock_file(path)
    except FileNotFoundError:
        return None
