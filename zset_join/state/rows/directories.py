"""Directories of state: one operator per directory, and private ones that go with their process.

    <directory>/<name>.lock    held by who has the files `<name>.*`; it names process and host

The law: of two operators over the same files, the second is refused with `DIRECTORY_IN_USE`, in this process or in another.
The kernel frees the lock when a process dies; an operator that was dropped without being closed releases it when it is
collected. Where a checkpoint keeps the files, its bucket has a lock of its own, and processes take turns with mapped files: see
`locked_outside`. File systems without locks do without.

A private directory, for rows on disk that nobody needs later, is among the host's temporary files until it is removed or its
process has ended; what a killed process left is removed when the next one is made beside it. A process that was forked from its
owner holds the lock too. What other users left is theirs to remove.

`check_deltas`: usage checks of every operator: inputs, directory and its files, tables to restore, and that it is open.

The law: wrong use is an error with a code and the operator's own words, before anything is changed.

`HashTables`: seeds of key hashes, so that colliding keys cannot be chosen in advance.

The law: a seed changes hashes and nothing else. All tables of one operator share one; state that is mapped from files is opened
again with the seed it was written with. The seed is an option of an operator; a query takes that of its checkpoint. Where
none is given, one is drawn, and kept in the directory of the state, in the file `hash_seed`.

Limits: 32 bits, which protect from keys that were chosen without the seed; a reader of the checkpoint has it.
"""

from __future__ import annotations

import errno
import gc
import hashlib
import os
import secrets
import shutil
import socket
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from zset_join.core.errors import OptionError, PlanError, StateError
from zset_join.core.relation import Relation
from zset_join.shapes.operator_options import OperatorOptions
from zset_join.storage.local import FileLock, lock_file
from zset_join.storage.operations import perform
from zset_join.zset import ZSet

__all__ = [
    "IN_MEMORY",
    "SEED_FILE",
    "HashTables",
    "PrivateDirectory",
    "check_deltas",
    "check_same_epoch",
    "check_tables",
    "choose_seed",
    "closed",
    "hash_key",
    "hold_directory",
    "locked_outside",
    "make_directory",
    "seed_of_query",
]


def check_deltas(operator: str, inputs: Sequence[Relation], deltas: Sequence[ZSet]) -> None:
    if len(deltas) != len(inputs):
        raise PlanError(
            f"{operator} has {len(inputs)} inputs ({', '.join(relation.name for relation in inputs)}) and was given "
            f"{len(deltas)} deltas; give one for each, in this order, an empty one without changes.",
            code="DELTA_COUNT",
            inputs=[relation.name for relation in inputs],
            deltas=len(deltas),
        )


def check_same_epoch(epochs: Iterable[int], directory: str | None) -> None:
    """Refuse local state whose parts were absorbed up to different epochs: the process that wrote it died in between."""
    distinct_epochs = list(dict.fromkeys(epochs))
    if len(distinct_epochs) > 1:
        raise StateError(
            f"the parts of the local state in {directory} are at epochs {' and '.join(map(str, distinct_epochs))}. It is a "
            "cache: delete the directory and it is rebuilt from the checkpoint.",
            code="STATE_HALF_WRITTEN",
            directory=directory,
        )


def check_tables(
    operator: str, wanted: Mapping[str, Sequence[str]], tables: Mapping[str, pa.Table | pa.RecordBatchReader]
) -> None:
    for name, columns in wanted.items():
        missing = ["all of it"] if name not in tables else [one for one in columns if one not in tables[name].schema.names]
        if missing:
            raise StateError(
                f"{operator} is restored from the tables {sorted(wanted)} of its snapshot(); table {name!r} lacks "
                f"{', '.join(missing)}. Give what snapshot() of the same operator returned.",
                code="SNAPSHOT_TABLES",
                table=name,
                missing=missing,
            )


def closed(operator: str) -> StateError:
    return StateError(
        f"{operator} was closed; make a new one, which resumes from the same directory.",
        code="OPERATOR_CLOSED",
        operator=operator,
    )


def make_directory(directory: str | None) -> None:
    if directory is None:
        return
    try:
        os.makedirs(directory, exist_ok=True)  # noqa: PTH103 - a directory is given as text
    except OSError as error:
        raise OptionError(
            f"directory={directory!r} cannot be made: {error}. Give a directory where this process may write.",
            code="DIRECTORY",
            directory=directory,
        ) from error


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


SEED_FILE = "hash_seed"
_MOST = (1 << 32) - 1


def hash_key(hash_bits: int, hash_seed: int) -> int:
    """Return the argument of the kernels: the seed, and below it the bits of a hash that are kept.

    >>> hex(hash_key(32, 7)), hex(hash_key(4, 0))
    ('0x7ffffffff', '0xf0000000')
    """
    mask = ((1 << hash_bits) - 1) << (32 - hash_bits)
    high = hash_seed - (1 << 32) if hash_seed >> 31 else hash_seed  # the word is signed
    return (high << 32) | mask


def seed_of_query(query_id: str) -> int:
    """Return the seed of a query, which all its workers and all its restarts agree on."""
    return int.from_bytes(hashlib.sha256(query_id.encode()).digest()[:4], "little")


def choose_seed(hash_seed: int | None, directory: str | None) -> int:
    """Return the seed that is given, or the one of a directory, or else a new one."""
    if hash_seed is not None:
        if not 0 <= hash_seed <= _MOST:
            raise OptionError(f"hash_seed={hash_seed!r} must be a number from 0 to 2^32 - 1.", code="OPTION_RANGE")
        return hash_seed
    if directory is None:
        return secrets.randbits(32)
    make_directory(directory)
    path = Path(directory) / SEED_FILE
    try:
        written = perform("read", str(path), lambda: path.read_text(encoding="ascii"))
    except FileNotFoundError:
        seed = secrets.randbits(32)
        perform("write", str(path), lambda: path.write_text(f"{seed}\n", encoding="ascii"))
        return seed
    if not written.strip().isdigit() or int(written) > _MOST:
        raise StateError(
            f"{path} does not hold the seed of hashes. The local state is a cache: delete the directory and it is rebuilt from "
            "the checkpoint.",
            code="STATE_HALF_WRITTEN",
            directory=directory,
        )
    return int(written)


@dataclass(frozen=True, slots=True, kw_only=True)
class HashTables:
    """Describe where the tables of an operator's state lie, and how their keys are hashed.

    >>> HashTables(hash_bits=4, hash_seed=7).beside().hash_seed
    7
    """

    directory: str | None = None  # of mapped files; None keeps everything in memory
    hash_bits: int = 32  # fewer than 32 force collisions
    hash_seed: int | None = None  # the same for all tables that are compared; None: that of `directory`, else a new one

    @classmethod
    def of(cls, options: OperatorOptions) -> HashTables:
        """Return those of an operator with their seed; one that is drawn is written to the directory."""
        return cls(directory=options.directory, hash_bits=options.hash_bits, hash_seed=options.hash_seed).seeded()

    def seeded(self) -> HashTables:
        """Return them with their seed; errors as of `of`."""
        return self if self.hash_seed is not None else replace(self, hash_seed=choose_seed(None, self.directory))

    def beside(self) -> HashTables:
        """Return tables in memory whose hashes are those of these."""
        return replace(self, directory=None)

    @property
    def hash_key(self) -> int:
        return hash_key(self.hash_bits, choose_seed(self.hash_seed, self.directory))


IN_MEMORY = HashTables()
