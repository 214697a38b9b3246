"""Mapped state of a bucket on a host: a directory, a lock, and a stamp of its content.

    <localStateDir>/<query id>/<stage>-<bucket>/
    ├── lock            held while a task works on the bucket; its time is the last such moment
    ├── stamp.json      query, description, library version, boot of the host, last epoch folded in, driver, seal of the files
    └── state/          the mapped files

The law: the files are used only when the stamp fits, and the stamp is removed before they are changed otherwise.
All of it is a cache: removing or changing any of it costs time, never an answer.

The seal lists every mapped file with device, inode, size and time of change, as the kernel counts them. A file that was
removed, cut, written, replaced or copied since then, or that is a link, breaks it, and the state is rebuilt from the
checkpoint. It is compared when the files are mapped, not per epoch. Files of cold rows carry checksums of their own and are
only looked at for links. A link is removed, never followed: nothing outside the directory is read or written.

The stamp is overwritten in place, under the lock: where its writer dies in between, its checksum does not fit, and the
files are rebuilt.

The files are not synced, so a stamp of an earlier boot does not fit. A task that cannot get the lock in time (another attempt
hangs) works in a private directory beside it, which is removed afterwards.

Directories that nobody has used for seven days are removed by whichever task of whichever query comes by on the
host, if they carry our stamp and nobody holds their lock.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import os
import stat
import tempfile
import time
import uuid
from dataclasses import dataclass, fields
from pathlib import Path

from zset_join.checkpoint.owner import boot_of_host
from zset_join.core.errors import StateError
from zset_join.kernels.machine.compiled import kernels_version
from zset_join.storage import local
from zset_join.storage.trusted_files import seal, unseal

__all__ = ["LOCAL_STATE_RETENTION_SECONDS", "LocalState", "Stamp", "default_local_state_dir", "remove_unused"]

LOCAL_STATE_RETENTION_SECONDS = 7 * 86400
_FORMAT = 2
_NAME = "stamp.json"
_PATIENCE_SECONDS = 60.0
_PRIVATE = "private-"
_SEAL = "files"
_COLD = "cold"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """Identity of the content of the mapped files."""

    query_id: str
    digest: str
    version: str
    boot: str
    folded: str
    absorbed_epoch: int
    opened_at_ns: int

    @classmethod
    def here(cls, *, query_id: str, digest: str, folded: str, absorbed_epoch: int, opened_at_ns: int) -> Stamp:
        """Return a stamp for files this library writes now, on this host."""
        return cls(
            query_id=query_id,
            digest=digest,
            version=_library_version(),
            boot=boot_of_host(),
            folded=folded,
            absorbed_epoch=absorbed_epoch,
            opened_at_ns=opened_at_ns,
        )


def default_local_state_dir() -> Path:
    """Return where this host keeps mapped state by default; the same after a restart."""
    base = Path(tempfile.gettempdir()) / f"zset_join-{os.getuid()}"
    local.make_directory(base, 0o700)
    status = base.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise StateError(
            f"{base}, where local state is kept without localStateDir, belongs to another user or can be written "
            "to by others. Set localStateDir to a directory of your own, or remove that one.",
            code="UNSAFE_LOCAL_STATE",
            directory=str(base),
        )
    return base


class LocalState:
    """The directory of one bucket; made by `LocalState.acquire`."""

    def __init__(self, home: Path, lock: local.FileLock, *, is_private: bool) -> None:
        self.is_private = is_private
        self._home = home
        self._lock = lock
        self._sealed: object = None

    @classmethod
    def acquire(cls, base: Path, query_id: str, bucket: str, *, patience_seconds: float | None = None) -> LocalState:
        """Take the directory of a bucket, or a private one when another attempt does not release it."""
        home = base / query_id / bucket
        deadline = time.monotonic() + (_PATIENCE_SECONDS if patience_seconds is None else patience_seconds)
        while (lock := _lock(home)) is None and time.monotonic() < deadline:
            time.sleep(0.005)
        if lock is not None:
            try:
                _remove_private(home)
            except BaseException:
                lock.release()
                raise
            return cls(home, lock, is_private=False)
        home = home / f"{_PRIVATE}{uuid.uuid4().hex}"
        lock = _lock(home)
        if lock is None:
            raise AssertionError(f"another process locks {home}, which was just created")
        return cls(home, lock, is_private=True)

    @property
    def directory(self) -> str:
        return f"{self._home}/state"

    @property
    def files(self) -> int:
        """Return how many mapped files the stamp that was read or written last is for."""
        return len(self._sealed) if isinstance(self._sealed, dict) else 0

    def read_stamp(self, *, query_id: str, digest: str) -> Stamp | None:
        """Return the stamp, when the files can be used by this query, library and boot."""
        stamp, self._sealed = _read_sealed(self._home)
        if stamp is None:
            return None
        wanted = (query_id, digest, _library_version(), boot_of_host())
        return stamp if (stamp.query_id, stamp.digest, stamp.version, stamp.boot) == wanted else None

    def write_stamp(self, stamp: Stamp) -> None:
        """Write down what the files hold now, with their seal."""
        self._sealed = local.file_marks(self.directory, skip=_COLD)
        body = {part.name: getattr(stamp, part.name) for part in fields(stamp)} | {_SEAL: self._sealed}
        local.overwrite(f"{self._home}/{_NAME}", seal(body, version=_FORMAT, name=_NAME))

    def is_sealed(self) -> bool:
        """Return whether the files are those the stamp that was read or written last is for, unchanged since then."""
        try:
            local.file_marks(f"{self.directory}/{_COLD}")  # for links
            return local.file_marks(self.directory, skip=_COLD) == self._sealed
        except local.LinkError:
            return False

    def seal_again(self, stamp: Stamp) -> None:
        """Write the stamp again where an answer has changed files, as one that moves rows between memory and disk does."""
        if local.file_marks(self.directory, skip=_COLD) != self._sealed:
            self.write_stamp(stamp)

    def start_empty(self) -> bool:
        """Empty the directory; return whether there was anything."""
        had_files = Path(self.directory).exists()
        local.remove_file(self._home / _NAME)
        local.remove_tree(self.directory)
        local.make_directory(self.directory)
        return had_files

    def close(self) -> None:
        """Release it; a private directory is gone afterwards."""
        try:
            if self.is_private:
                local.remove_tree(self._home)
        finally:
            self._lock.release()


def remove_unused(base: Path, retention_seconds: float, *, most: int = 8) -> list[str]:
    """Remove directories of buckets nobody has used for long."""
    removed: list[str] = []
    for query in local.list_directory(base):
        for bucket in local.list_directory(base / query):
            home = base / query / bucket
            if len(removed) < most and _is_unused(home, retention_seconds) and _remove_home(home, retention_seconds):
                removed.append(f"{query}/{bucket}")
        with contextlib.suppress(OSError):  # not empty: others are still used
            local.remove_directory(base / query)
    return removed


def _is_unused(home: Path, retention_seconds: float) -> bool:
    """Return whether a directory is one of ours and was last used long ago."""
    used = local.modified_at(home / "lock")
    return used is not None and time.time() - used > retention_seconds and _read_stamp(home) is not None


def _remove_home(home: Path, retention_seconds: float) -> bool:
    lock = local.lock_file(home / "lock")
    if lock is None:
        return False
    try:
        if not _is_unused(home, retention_seconds):
            return False
        for name in local.list_directory(home):
            if name not in ("lock", _NAME):
                local.remove_tree(home / name)
        local.remove_file(home / _NAME)  # last but the lock: what is left by a crash can still be recognised
        local.remove_file(home / "lock")
        local.remove_directory(home)
    finally:
        lock.release()
    return True


def _remove_private(home: Path) -> None:
    """Remove the private directories of attempts that died."""
    for name in local.list_directory(home):
        if name.startswith(_PRIVATE):
            lock = local.lock_file(home / name / "lock")
            if lock is not None:
                try:
                    local.remove_tree(home / name)
                finally:
                    lock.release()


def _lock(home: Path) -> local.FileLock | None:
    """Take the lock of a directory, which is made where it is missing, and note that it was used."""
    name = f"{home}/lock"
    for path in (str(home.parent), str(home), name):
        if os.path.islink(path):  # noqa: PTH114 - parsing paths takes longer than the call
            local.remove_file(path)
    try:
        lock = local.lock_file(name)
    except FileNotFoundError:
        local.make_directories(home, durable=False)
        lock = local.lock_file(name)
    if lock is not None:
        try:
            local.touch(name)
        except BaseException:
            lock.release()
            raise
    return lock


def _read_stamp(home: Path) -> Stamp | None:
    """Return a stamp that is whole; None for none, and for one that was damaged: the files are rebuilt then."""
    return _read_sealed(home)[0]


def _read_sealed(home: Path) -> tuple[Stamp | None, object]:
    """Return a stamp that is whole, and the marks of the files it is for."""
    name = f"{home}/{_NAME}"
    data = None if os.path.islink(name) else local.read_bytes(name)  # noqa: PTH114 - as above
    if data is None:
        return None, None
    try:
        body = unseal(data, version=_FORMAT, name=_NAME)
        marks = body.pop(_SEAL)
        return Stamp(**body), marks
    except (ValueError, TypeError, KeyError):
        return None, None


@functools.cache
def _library_version() -> str:
    """Return what the bytes of mapped files depend on: the version of the library, and that of its kernels."""
    try:
        version = importlib.metadata.version("zset-join")
    except importlib.metadata.PackageNotFoundError:
        version = "source"
    return f"{version} {kernels_version}"
