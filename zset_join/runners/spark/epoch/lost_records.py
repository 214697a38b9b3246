"""Records that Kafka does not have any more, reported as such, wherever in a query they were missed.

Spark's connector (`failOnDataLoss`, which is true by default) stops a query whose topic begins after the
offset of the query (retention), ends before it (rebuilt, or rewound), or is gone. It does so while it plans an
epoch, or inside a task, as a Java stack trace. All become one `StateError`, SOURCE_LOST_ROWS, as a pipeline in process raises
it. Nothing was committed.

Spark identifies a topic by its name: one that was rebuilt and already has as many records as the query had read looks to it
like the old one. `zset_join.runners.spark.epoch.kafka_topics` detects it.

Limit: a topic of the same id whose log was cut before the offset of the query, and has grown past it since, is not noticed.
"""

from __future__ import annotations

import re

from zset_join.core.errors import StateError, ZsetJoinError
from zset_join.runners.spark.epoch.disk_failures import causes
from zset_join.runners.spark.frames.facts import is_of_spark

__all__ = ["lost_records"]

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
            return _failure(match[1], match[2], location)
        by_task = _MESSAGE_OF_TASKS.search(text)
        if by_task is not None:
            return _failure(_CONDITIONS[0], by_task[1], location)
    return None


def _failure(condition: str, text: str, location: str) -> StateError:
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
