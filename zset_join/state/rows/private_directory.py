"""A directory for rows on disk that nobody needs when their process is gone, among the host's temporary files.

The law: it is present until it is removed, or its process has ended; what a killed process left is removed when the next
directory is made beside it. A lock shows whether its process is present; the host releases it however a process ends.

Edge cases. A process that was forked from its owner holds the lock too. What other users left is theirs to remove.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from zset_join.storage.local import FileLock, lock_file

__all__ = ["PrivateDirectory"]

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
