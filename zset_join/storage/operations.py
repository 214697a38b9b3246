"""The one place every file operation goes through, so that faults can be injected in one place.

The law: whatever the project does to a file is one `Operation`, announced before it happens. An observer is given the
operation and the act; it performs the act (or not), may raise before or after it, may write half of the bytes itself, may
end the process. Without an observer an operation costs one test more than the act alone.

Not covered: what other libraries do to files on their own (DuckDB as an output, delta-rs), and stores to mapped memory. Of a
DuckDB file with cold rows each statement is one operation, whatever files it touches.

>>> seen = []
>>> def note(operation, act):
...     seen.append(operation.kind)
...     return act()
>>> with observe(note):
...     perform("size", "/data/cp/format.json", lambda: 17)
17
>>> seen
['size']

`no_epoch`, `nothing_committed`: a disk that is full, read-only or broken, reported as such: the file, whether the epoch is
committed, and what to do.

The law: what an error states of an epoch follows from whether its commit record is present, which is read after the error;
where it cannot be read, the error states that.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from zset_join.core.errors import StateError

__all__ = [
    "DISK_ERRORS",
    "EpochOutcome",
    "Operation",
    "is_observed",
    "no_epoch",
    "nothing_committed",
    "observe",
    "perform",
    "reporting_full_disk",
    "storage_failure",
]

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Operation:
    """A file operation that is about to run."""

    kind: str
    path: str
    target: str | None = None
    data: memoryview | None = None


Observer = Callable[[Operation, Callable[[], Any]], Any]
"""Is given an operation and the act; returns the act's result, or raises."""

_observer: Observer | None = None


@contextmanager
def observe(observer: Observer) -> Iterator[None]:
    """Put an observer between the project and its files; process-wide, until the context ends."""
    global _observer
    before = _observer
    _observer = observer
    try:
        yield
    finally:
        _observer = before


def is_observed() -> bool:
    """Return whether an observer is given the operations."""
    return _observer is not None


def perform(
    kind: str, path: str, act: Callable[[], _Result], *, target: str | None = None, data: memoryview | None = None
) -> _Result:
    """Do one file operation, by way of the observer if there is one."""
    observer = _observer
    if observer is None:
        return act()
    result: _Result = observer(Operation(kind, path, target, data), act)
    return result


EpochOutcome = Literal["open", "committed", "unknown", "none"]
"""Whether an epoch counts: its commit record is absent, is present, or cannot be looked for; or there is no epoch."""

DISK_ERRORS = {
    number: os.strerror(number)
    for number in (
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EROFS,
        errno.EIO,
        errno.EFBIG,
        errno.ENAMETOOLONG,
        errno.EACCES,
        errno.EPERM,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.ENODEV,
        errno.ENXIO,
        errno.ESTALE,
    )
}
"""The errors of a disk by number, with what they are called."""

_STATED: Mapping[EpochOutcome, str] = {
    "open": "Nothing of this epoch was committed.",
    "committed": "The epoch was committed before: do not send its rows again.",
    "unknown": "Whether this epoch was committed cannot be seen, because its commit record cannot be looked for.",
    "none": "No epoch was changed.",
}


def no_epoch() -> EpochOutcome:
    return "none"


def nothing_committed() -> EpochOutcome:
    return "open"


@contextmanager
def reporting_full_disk(
    places: str, cures: Mapping[EpochOutcome, str], outcome: Callable[[], EpochOutcome] = nothing_committed, **facts: str
) -> Iterator[None]:
    """Raise an error of the disk inside as a `StateError`, `STORAGE_FAILED`.

    >>> with reporting_full_disk("the directory /data/p lies", {"open": "open the pipeline again"}):
    ...     raise OSError(28, "No space left on device")
    Traceback (most recent call last):
        ...
    zset_join.core.errors.StateError: [STORAGE_FAILED] a file operation failed: [Errno 28] No space left on device. Nothing ...
    """
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_ERRORS:
            raise
        raise storage_failure(str(error), places, cures, outcome(), **facts) from error


def storage_failure(
    failure: str, places: str, cures: Mapping[EpochOutcome, str], outcome: EpochOutcome, **facts: str
) -> StateError:
    """Return the error for a disk that refuses an operation; see `reporting_full_disk`."""
    return StateError(
        f"a file operation failed: {failure}. {_STATED[outcome]} Make room, or make it readable and writable, where {places}; "
        f"then {cures[outcome]}.",
        code="STORAGE_FAILED",
        outcome=outcome,
        **facts,
    )
