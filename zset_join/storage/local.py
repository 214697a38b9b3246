"""The operations of a local disk, one function each; all of them go through the hook.

Two promises are built from them:

- `write_atomic` and `write_new`: a name that a reader can see belongs to a whole file. They write beside the name, wait for the
  disk, and give the file its name in one step: by `rename`, which replaces, or by `link`, which refuses a name that is taken.
- `LocalFile`: a new file that is on the disk, under its name, once it was synced and its directory was.

Paths may be relative; observers see them absolute. Errors are those of the operating system.

Limits: POSIX. Rename and link are atomic on local file systems; on network mounts as far as they promise it.

Files of one step that wait for the disk at the same time instead of one after the other.

    with synced_together():
        files.create("log/...")             closed, and not yet on the disk
        folder.put_new("commits/...")       waits for all of them and for its own bytes at once; then gives the name

The law: what this thread closes durably inside is on the disk, with its name, before `put_new` gives a name and when the
context ends. Files that still wait when it ends with an error are removed.

While operations are observed, waits come one after the other: what a power cut may leave between them is all that it may leave
while they run at once.

Where a wait took less than `_WORTH_SECONDS`, as in memory, the next ones come one after the other too: threads would cost more.

Cost: by the clock, as much as the longest wait; of many files, one for every `_MOST_WAITING`.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import stat
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zset_join.storage.operations import is_observed, perform

__all__ = [
    "FileLock",
    "LinkError",
    "LocalFile",
    "append",
    "file_marks",
    "file_size",
    "later",
    "link",
    "list_directory",
    "lock_file",
    "make_directories",
    "make_directory",
    "modified_at",
    "overwrite",
    "read_bytes",
    "remove_directory",
    "remove_file",
    "remove_tree",
    "rename",
    "replace",
    "sync_directory",
    "sync_with_others",
    "synced_together",
    "touch",
    "write_atomic",
    "write_new",
]

_THREADS = 8
_MOST_WAITING = 32  # each holds a descriptor
_WORTH_SECONDS = 0.0005


@dataclass(frozen=True)
class _Waiting:
    """A closed file that is not yet on the disk."""

    syncs: Sequence[Callable[[], object]]
    close: Callable[[], object]
    discard: Callable[[], object]


class _Group(threading.local):
    """The files of this thread that wait; None outside of `synced_together`."""

    waiting: list[_Waiting] | None = None


_group = _Group()
_pool: ThreadPoolExecutor | None = None
_is_worth_it = True


@contextmanager
def synced_together() -> Iterator[None]:
    """Let the durable files that this thread closes inside wait for the disk at the same time."""
    before, waiting = _group.waiting, list[_Waiting]()
    _group.waiting = waiting
    try:
        yield
        sync_with_others()
    finally:
        _group.waiting = before
        _discard(waiting)


def later(syncs: Sequence[Callable[[], object]], close: Callable[[], object], discard: Callable[[], object]) -> bool:
    """Put off the waits of a file to those of its group; return whether there is one."""
    if _group.waiting is None:
        return False
    _group.waiting.append(_Waiting(syncs, close, discard))
    if len(_group.waiting) == _MOST_WAITING:
        sync_with_others()
    return True


def sync_with_others(*syncs: Callable[[], object]) -> None:
    """Wait for the disk, together with the files of the group that wait."""
    waiting = [] if _group.waiting is None else _group.waiting
    _all_at_once([*(sync for one in waiting for sync in one.syncs), *syncs])
    while waiting:
        waiting.pop().close()


def _all_at_once(syncs: Sequence[Callable[[], object]]) -> None:
    global _is_worth_it
    is_threaded = _is_worth_it and len(syncs) > 1 and not is_observed()
    begun, own = list[Future[object]](), list(syncs[:1] if is_threaded else syncs)
    try:
        for sync in syncs[1:] if is_threaded else ():
            try:
                begun.append(_threads().submit(sync))
            except RuntimeError:  # no thread begins at the end of the interpreter
                own.append(sync)
        for number, sync in enumerate(own):
            started = time.perf_counter()
            sync()
            if not number:
                _is_worth_it = time.perf_counter() - started > _WORTH_SECONDS
    finally:
        wait(begun)
    for one in begun:
        one.result()


def _threads() -> ThreadPoolExecutor:
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(_THREADS, "zset-join-sync")
    return _pool


def _forget_threads() -> None:
    """Begin without threads in a process that was forked: it has none of them."""
    global _pool
    _pool = None


def _discard(waiting: list[_Waiting]) -> None:
    with suppress(OSError), ExitStack() as discarded:  # the error before counts; no record names these files
        for one in waiting:
            discarded.callback(one.discard)


os.register_at_fork(after_in_child=_forget_threads)


_log = logging.getLogger("zset_join.storage")

_BUFFER_BYTES = 1 << 20
_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


class LocalFile:
    """Write a new file from its beginning to its end.

    Small writes are gathered until a megabyte is present. Nothing is promised before `sync`, and the name is only as durable as
    its directory: call `sync_directory` too.
    """

    def __init__(self, path: str | Path, mode: int = 0o666) -> None:
        self.path = _absolute(path)
        self._waiting = bytearray()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._descriptor: int | None = perform("create", self.path, lambda: os.open(self.path, flags, mode))

    def write(self, data: Any) -> int:
        """Append bytes; returns how many."""
        view = memoryview(data).cast("B")
        if len(view) < _BUFFER_BYTES:
            self._waiting += view
            if len(self._waiting) >= _BUFFER_BYTES:
                self.flush()
        else:
            self.flush()
            self._write_out(view)
        return len(view)

    def flush(self) -> None:
        """Pass everything to the operating system."""
        if self._waiting:
            waiting, self._waiting = self._waiting, bytearray()
            self._write_out(memoryview(waiting))

    def sync(self) -> None:
        """Wait until the disk has all bytes."""
        self.flush()
        descriptor = self._opened()
        perform("sync", self.path, lambda: os.fsync(descriptor))

    def close(self, *, discard: bool = False) -> None:
        """Close; closed already is no error."""
        if self._descriptor is None:
            return
        try:
            if not discard:
                self.flush()
        finally:
            descriptor, self._descriptor = self._descriptor, None
            _close(self.path, descriptor)

    def _write_out(self, view: memoryview) -> None:
        _write_all(self.path, self._opened(), view)

    def _opened(self) -> int:
        if self._descriptor is None:
            raise ValueError(f"{self.path} is closed")
        return self._descriptor


def _write_all(path: str, descriptor: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while len(view):
        rest = view
        view = rest[perform("write", path, lambda rest=rest: os.write(descriptor, rest), data=rest) :]  # type: ignore[misc]


def _close(path: str, descriptor: int) -> None:
    """Close a descriptor, also when an observer has other ideas: the process must not leak it."""
    done = False

    def act() -> None:
        nonlocal done
        done = True
        os.close(descriptor)

    try:
        perform("close", path, act)
    finally:
        if not done:
            os.close(descriptor)


def write_atomic(path: str | Path, data: bytes, *, durable: bool = True) -> None:
    """Replace or make a file in one step: afterwards a reader sees the old file or all of the new one."""
    beside = _written_beside(path, data, durable=durable)
    try:
        replace(beside, path)
    except BaseException:
        _remove_leftover(beside)
        raise
    if durable:
        sync_directory(os.path.dirname(path))  # noqa: PTH120 - as above


def write_new(path: str | Path, data: bytes) -> None:
    """Make a file in one step, on the disk when this returns."""
    # An error of the last step, the sync of the directory, leaves the file there; whether it survives a power cut is open
    # then.
    beside = _written_beside(path, data, durable=True)
    try:
        try:
            link(beside, path)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            _move_if_free(beside, path)
    finally:
        _remove_leftover(beside)
    sync_directory(os.path.dirname(path))  # noqa: PTH120 - as above


def _written_beside(path: str | Path, data: bytes, *, durable: bool) -> str:
    directory, name = os.path.split(path)
    beside = os.path.join(directory, f".{name}.{uuid.uuid4().hex}")  # noqa: PTH118 - parsing paths takes longer
    file = LocalFile(beside)
    try:
        file.write(data)
        if durable:
            file.flush()
            sync_with_others(file.sync)
        file.close()
    except BaseException:
        try:
            file.close(discard=True)
        finally:
            _remove_leftover(beside)
        raise
    return beside


def _remove_leftover(beside: str) -> None:
    """Remove the hidden name a file was written under; one that stays is removed at the next start."""
    try:
        remove_file(beside)
    except OSError as error:
        _log.warning("%s could not be removed and is left behind until the next start: %s", beside, error)


def _move_if_free(beside: str, path: str | Path) -> None:
    """Do what `link` would, on a file system without links: two writers at the same moment are not distinguished."""
    if file_size(path) is not None:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    rename(beside, path)


def read_bytes(path: str | Path) -> bytes | None:
    """Return the bytes of a file, or None when there is none."""
    try:
        return perform("read", _absolute(path), lambda: _all_bytes(path))
    except FileNotFoundError:
        return None


def _all_bytes(path: str | Path) -> bytes:
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - parsing paths takes longer than the call
        return file.read()


def file_size(path: str | Path) -> int | None:
    """Return the size of a file, or None when there is none."""
    try:
        return perform("size", _absolute(path), lambda: os.stat(path).st_size)  # noqa: PTH116 - parsing paths takes longer than the call
    except FileNotFoundError:
        return None


def modified_at(path: str | Path) -> float | None:
    """Return when a file was written or touched last, in seconds since 1970; None when there is none."""
    try:
        return perform("size", _absolute(path), lambda: Path(path).stat().st_mtime)
    except FileNotFoundError:
        return None


def list_directory(directory: str | Path) -> list[str]:
    """Return the names in a directory, sorted; none when it is absent."""
    try:
        return sorted(perform("list", _absolute(directory), lambda: os.listdir(directory)))  # noqa: PTH208 - names are wanted
    except FileNotFoundError:
        return []


def append(path: str | Path, data: bytes) -> None:
    """Append to a file that is present; the bytes are on the disk when this returns."""
    absolute = _absolute(path)
    descriptor = perform("open", absolute, lambda: os.open(absolute, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW))
    try:
        _write_all(absolute, descriptor, data)
        perform("sync", absolute, lambda: os.fsync(descriptor))
    finally:
        _close(absolute, descriptor)


def overwrite(path: str | Path, data: bytes) -> None:
    """Make a file, or write over the bytes of one: neither in one step, nor on the disk when this returns."""
    # For a small file that is written often, proves that it is whole (`trusted_files`), and is not needed where a
    # writer died in between. It costs a tenth of a new file that is renamed, and on ext4 does not wait for the journal. A
    # link is not followed. A file that has other names too is replaced, so that they keep their bytes.
    absolute = _absolute(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = perform("open", absolute, lambda: os.open(absolute, flags, 0o666))
    try:
        status = os.fstat(descriptor)
        if status.st_nlink == 1:
            _write_all(absolute, descriptor, data)
            if status.st_size > len(data):
                perform("truncate", absolute, lambda: os.ftruncate(descriptor, len(data)))
            return
    finally:
        _close(absolute, descriptor)
    write_atomic(absolute, data, durable=False)


class LinkError(OSError):
    """A name that is to be a file or directory of ours is a link, a device, or that of another user."""


def file_marks(directory: str | Path, *, skip: str = "") -> dict[str, list[int]]:
    """Return values that change with a file: device, inode, size and time of change of files below a directory."""
    try:
        return perform("list", _absolute(directory), lambda: dict(_marks_below(str(directory), "", skip)))
    except FileNotFoundError:
        return {}


def _marks_below(directory: str, prefix: str, skip: str) -> Iterator[tuple[str, list[int]]]:
    user = os.geteuid()
    _refuse_link(directory, os.lstat(directory), user)
    with os.scandir(directory) as entries:
        for entry in entries:
            status = entry.stat(follow_symlinks=False)
            _refuse_link(entry.path, status, user)
            if not stat.S_ISDIR(status.st_mode):
                yield prefix + entry.name, [status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns]
            elif entry.name != skip:
                yield from _marks_below(entry.path, f"{prefix}{entry.name}/", "")


def _refuse_link(path: str, status: os.stat_result, user: int) -> None:
    if status.st_uid != user or not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        raise LinkError(errno.ELOOP, "it is a link, no file, or belongs to another user", path)


def rename(path: str | Path, target: str | Path) -> None:
    """Give a file or directory another name; a directory of that name that is not empty is refused."""
    perform("rename", _absolute(path), lambda: Path(path).rename(target), target=_absolute(target))


def replace(path: str | Path, target: str | Path) -> None:
    """Give a file another name; a file of that name is gone in the same step."""
    perform("replace", _absolute(path), lambda: os.replace(path, target), target=_absolute(target))  # noqa: PTH105


def link(path: str | Path, target: str | Path) -> None:
    """Give a file a second name."""
    perform("link", _absolute(path), lambda: os.link(path, target), target=_absolute(target))


def touch(path: str | Path, *, at_seconds: int | None = None) -> None:
    """Set the time a file was written last."""
    perform("touch", _absolute(path), lambda: os.utime(path, None if at_seconds is None else (at_seconds, at_seconds)))


def remove_file(path: str | Path) -> None:
    """Remove a file; one that is gone already is no error."""

    def act() -> None:
        with suppress(FileNotFoundError):
            os.unlink(path)  # noqa: PTH108 - parsing paths takes longer than the call

    perform("remove", _absolute(path), act)


def remove_directory(directory: str | Path) -> None:
    """Remove a directory; one that is gone already is no error."""
    try:
        perform("remove_directory", _absolute(directory), lambda: Path(directory).rmdir())
    except FileNotFoundError:
        return


def remove_tree(directory: str | Path) -> None:
    """Remove a directory and all below it, one operation each; one that is not there is no error. Links are not followed."""
    if Path(directory).is_symlink():
        remove_file(directory)
        return
    for name in list_directory(directory):
        path = Path(directory) / name
        try:
            is_directory = stat.S_ISDIR(path.lstat().st_mode)
        except FileNotFoundError:
            continue  # somebody else removes the same tree
        if is_directory:
            remove_tree(path)
        else:
            remove_file(path)
    remove_directory(directory)


def make_directory(directory: str | Path, mode: int = 0o777) -> None:
    """Make one directory; one that is present already is no error."""
    perform("make_directory", _absolute(directory), lambda: Path(directory).mkdir(mode, exist_ok=True))


def make_directories(directory: str | Path, *, durable: bool = True) -> None:
    """Make a directory and those above it, where they are missing."""
    path = Path(os.path.abspath(directory))  # noqa: PTH100 - as above
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for below in reversed(missing):
        make_directory(below)
        if durable:
            sync_directory(below.parent)


def sync_directory(directory: str | Path) -> None:
    """Put the names in a directory on the disk."""

    def act() -> None:
        descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    perform("sync_directory", _absolute(directory), act)


class FileLock:
    """The lock of a file; `release`, or the end of the object or of the process however it ends, gives it back."""

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self._descriptor: int | None = descriptor

    def release(self) -> None:
        """Give the lock back; given back already is no error."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            _close(self.path, descriptor)

    def __del__(self) -> None:
        """Release a lock that an interrupt left without an owner; a descriptor that is closed already stays so."""
        descriptor = getattr(self, "_descriptor", None)
        if descriptor is not None:
            self._descriptor = None
            os.close(descriptor)


def lock_file(path: str | Path) -> FileLock | None:
    """Take the lock of a file without waiting."""
    # The file is created if it does not exist; a link is not followed. A lock on a file that was removed meanwhile is worth
    # nothing, so the name is looked at again after the lock was taken.
    absolute = _absolute(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    while True:
        lock = FileLock(absolute, descriptor := perform("open", absolute, lambda: os.open(absolute, flags, 0o666)))
        try:
            perform("lock", absolute, lambda held=descriptor: fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB))  # type: ignore[misc]
            if _is_named(absolute, descriptor):
                return lock
        except BlockingIOError:
            lock.release()
            return None
        except BaseException:
            lock.release()
            raise
        lock.release()


def _is_named(path: str, descriptor: int) -> bool:
    """Return whether an open file still has its name."""
    held = os.fstat(descriptor)
    try:
        named = os.stat(path)  # noqa: PTH116 - a pair with fstat
    except FileNotFoundError:
        return False
    return (held.st_dev, held.st_ino) == (named.st_dev, named.st_ino)


def _absolute(path: str | Path) -> str:
    text = os.fspath(path)
    if text.startswith("/") and "/." not in text and "//" not in text and text[-1] != "/":
        return text
    return os.path.abspath(text)  # noqa: PTH100 - Path.absolute() keeps ".." and is slower
