"""Errors of Spark while it reads a table, translated."""

from __future__ import annotations

from zset_join.core.errors import StateError, ZsetJoinError
from zset_join.runners.spark.epoch.failures import lost_records

__all__ = ["foreign_reading", "other_columns", "reading_failed", "replanned", "rolled_back"]

_WHOLE = "Bring the directory back as a whole, or begin with a new one and a new output."


def foreign_reading(name: str, location: str, found: str | None, expected: str) -> StateError:
    """Return the error where what Spark has read is of another query than the one whose batches are committed."""
    return StateError(
        f'"{name}" was read by the query {expected} of Spark, and {location} is of {found or "none"}: Spark\'s own files there '
        f"were removed or exchanged. {_WHOLE}",
        code="FOREIGN_STATE",
        found=found,
        expected=expected,
    )


def replanned(name: str, location: str, number: int, done: int) -> StateError:
    """Return the error where a batch that is committed comes again over other input."""
    return StateError(
        f'batch {number} of "{name}" is repeated with other input, and batch {done} is committed: Spark\'s own files in '
        f"{location} were rolled back. {_WHOLE}",
        code="EPOCH_REPLANNED",
        epoch=number,
    )


def rolled_back(name: str, location: str, taken: int, done: int) -> StateError:
    """Return the error where a later batch was committed than the one that is, so that rows would be omitted."""
    return StateError(
        f'batch {taken} of "{name}" was committed, and the directory is at {"none" if done < 0 else f"batch {done}"}: it is '
        f"older than what Spark has read in {location}, which would not read the rows between again. {_WHOLE}",
        code="EPOCH_REPLANNED",
        epoch=taken,
    )


def reading_failed(error: BaseException, name: str, location: str) -> BaseException:
    """Return the error that ended a query of Spark that read a table."""
    if isinstance(error, ZsetJoinError):
        return error
    known = lost_records(error, location)
    if known is not None:
        return known
    reason = " ".join(str(error).split("\n\nJVM stacktrace")[0].split())
    return StateError(
        f'"{name}": Spark cannot read it: {reason[:600]}. No query processed these rows; correct the source and read again.',
        code="SOURCE_IO",
        location=location,
    )


def other_columns(name: str, location: str, number: int) -> StateError:
    """Return the refusal of a batch that was read with columns which a stream no longer has."""
    return StateError(
        f'batch {number} of "{name}" waits at {location}, and was read with columns that "{name}" does not have now. Open the '
        "session as it was before, with the same packages, and call read(); then change it.",
        code="EPOCH_REPLANNED",
        name=name,
        epoch=number,
    )
