"""A disk that is full, read-only or broken, told as what it is: the file, what to do, and that nothing was committed."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from zset_join.errors import StateError

__all__ = ["DISK_ERRORS", "reporting_full_disk", "storage_failure"]

DISK_ERRORS = {number: os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)}
"""The errors of a disk by number, with what they are called."""


@contextmanager
def reporting_full_disk(places: str, cure: str, **facts: str) -> Iterator[None]:
    """Let an error of the disk inside be raised as a `StateError`, `STORAGE_FAILED`.

    Args:
        places: which files are written, for people.
        cure: what to do once there is room.
        facts: what the error carries.

    >>> with reporting_full_disk("the directory /data/p lies", "open the pipeline again"):
    ...     raise OSError(28, "No space left on device")
    Traceback (most recent call last):
        ...
    zset_join.errors.StateError: [STORAGE_FAILED] a file could not be written: [Errno 28] No space left on device. Nothing ...
    """
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_ERRORS:
            raise
        raise storage_failure(str(error), places, cure, **facts) from error


def storage_failure(failure: str, places: str, cure: str, **facts: str) -> StateError:
    """Return the error for a disk that does not take what is written; see `reporting_full_disk`.

    Args:
        failure: what went wrong.
        places: which files are written.
        cure: what to do once there is room.
        facts: what the error carries.
    """
    return StateError(
        f"a file could not be written: {failure}. Nothing of this epoch was committed. Make room, or make it writable, where "
        f"{places}; then {cure}.",
        code="STORAGE_FAILED",
        **facts,
    )
