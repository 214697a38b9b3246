"""A disk that is full, read-only or gone, reported as such, wherever in a query it was met.

A task that cannot write is tried again by Spark and then fails as a Java stack trace with a Python one inside; the driver fails
with an OSError. Both become one `StateError` that names the checkpoint, whether the epoch is committed, and what to do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from zset_join.core.errors import StateError, ZsetJoinError
from zset_join.runners.spark.frames.facts import is_of_spark
from zset_join.storage.full_disk import DISK_ERRORS, EpochOutcome, nothing_committed, storage_failure

__all__ = ["causes", "disk_failure"]

_MESSAGE_OF_WORKERS = re.compile(rf"\[Errno \d+\] (?:{'|'.join(map(re.escape, DISK_ERRORS.values()))})[^\n]*")

_CURES: Mapping[EpochOutcome, str] = {
    "open": "start the query again: it continues with this epoch",
    "committed": "start the query again: the output receives this epoch if it lacks it, and the query continues with the next",
    "unknown": "start the query again: it continues at its checkpoint",
}


def disk_failure(
    error: BaseException, location: str, outcome: Callable[[], EpochOutcome] = nothing_committed
) -> StateError | None:
    """Return the error for a disk that does not take what a query writes; None when something else went wrong.

    >>> print(disk_failure(OSError(28, "No space left on device", "/data/log"), "/data/cp").message[:49])
    a file operation failed: [Errno 28] No space left
    """
    for one in causes(error):
        if isinstance(one, ZsetJoinError):
            return None
        if isinstance(one, OSError) and one.errno in DISK_ERRORS:
            return _failure(str(one), location, outcome())
        message = _MESSAGE_OF_WORKERS.search(str(one)) if is_of_spark(one) else None
        if message is not None:
            return _failure(message[0], location, outcome())
    return None


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, and what caused it, and so on."""
    while error is not None:
        yield error
        error = error.__cause__


def _failure(message: str, location: str, outcome: EpochOutcome) -> StateError:
    places = f"the checkpoint {location}, localStateDir and the output lie"
    return storage_failure(message, places, _CURES, outcome, location=location)
