"""Failures of an epoch that come as stack traces of Spark's, reported as what they are: a disk, and records that are gone.

A task that cannot write to a disk that is full, read-only or gone is tried again by Spark and then fails as a Java stack trace
with a Python one inside; the driver fails with an OSError. Both become one `StateError` that names the checkpoint, whether the
epoch is committed, and what to do.

Spark's Kafka connector (`failOnDataLoss`, which is true by default) stops a query whose topic begins after the offset of the
query (retention), ends before it (rebuilt, or rewound), or is gone, while it plans an epoch or inside a task. All become one
`StateError`, SOURCE_LOST_ROWS, as a pipeline in process raises it; nothing was committed.

Limits: Spark identifies a topic by its name; `frames.topics` detects one that was rebuilt. One of the same id whose log was cut
before the offset of the query, and has grown past it since, is not noticed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from zset_join.core.errors import StateError, ZsetJoinError
from zset_join.runners.spark.frames.facts import is_of_spark
from zset_join.storage.operations import DISK_ERRORS, EpochOutcome, nothing_committed, storage_failure

__all__ = [
    "causes",
    "disk_failure",
    "foreign_reading",
    "lost_records",
    "other_columns",
    "reading_failed",
    "replanned",
    "rolled_back",
]

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


_CONDITIONS = (
    "KAFKA_DATA_LOSS",
    "LOST_TOPIC_PARTITIONS_IN_END_OFFSET_WITH_TRIGGER_AVAILABLENOW",
    "END_OFFSET_HAS_GREATER_OFFSET_FOR_TOPIC_PARTITION_THAN_LATEST_WITH_TRIGGER_AVAILABLENOW",
)
_MESSAGE = re.compile(rf"\[((?:{'|'.join(_CONDITIONS)})(?:\.\w+)?)\]\s*((?:(?!\n\s*\n|\n\s*at ).)*)", re.DOTALL)
_MESSAGE_OF_TASKS = re.compile(
    r"Some data may have been lost because they are not\s+available((?:(?!\n\s*\n|\n\s*at ).)*)", re.DOTALL
)
"""Inside a task Spark does not name the condition, only its text."""
_REASON = re.compile(r"Reason:\s*(.*)", re.DOTALL)


def lost_records(error: BaseException, location: str) -> StateError | None:
    """Return the error for records that are gone; None when something else went wrong.

    >>> from pyspark.errors import PySparkException
    >>> text = "[KAFKA_DATA_LOSS.PARTITIONS_DELETED] Some data may have been lost. Reason: Partitions t-0 have been deleted."
    >>> print(lost_records(PySparkException(text), "/data/cp").message[:73])
    Kafka has lost records that this query had not read: Partitions t-0 have
    """
    for one in causes(error):
        if isinstance(one, ZsetJoinError):
            return None
        text = str(one) if is_of_spark(one) else ""
        match = _MESSAGE.search(text)
        if match is not None:
            return _lost(match[1], match[2], location)
        by_task = _MESSAGE_OF_TASKS.search(text)
        if by_task is not None:
            return _lost(_CONDITIONS[0], by_task[1], location)
    return None


def _lost(condition: str, text: str, location: str) -> StateError:
    reason = _REASON.search(text)
    message = " ".join((text if reason is None else reason[1]).split()).removesuffix(".")
    return StateError(
        f"Kafka has lost records that this query had not read: {message}. Nothing was committed, and what is missing cannot be "
        f"read any more: start over from a complete topic with a new checkpointLocation (this one is {location}) and a new "
        "output, and give the topic a longer retention. The option failOnDataLoss=false would continue without them, and the "
        "output would be wrong.",
        code="SOURCE_LOST_ROWS",
        location=location,
        kafka=condition,
    )


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
            return _disk(str(one), location, outcome())
        message = _MESSAGE_OF_WORKERS.search(str(one)) if is_of_spark(one) else None
        if message is not None:
            return _disk(message[0], location, outcome())
    return None


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, and what caused it, and so on."""
    while error is not None:
        yield error
        error = error.__cause__


def _disk(message: str, location: str, outcome: EpochOutcome) -> StateError:
    places = f"the checkpoint {location}, localStateDir and the output lie"
    return storage_failure(message, places, _CURES, outcome, location=location)
