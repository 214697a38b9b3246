"""Spark's error about lost Kafka records becomes our own; a real broker is used in `tests/services`."""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import StreamingQueryException

from zset_join.core.errors import StateError
from zset_join.runners.spark.epoch.failures import lost_records

RETENTION = """[STREAM_FAILED] Query [id = 1] terminated with exception: [KAFKA_DATA_LOSS.START_OFFSET_RESET] Some data may have been
lost because they are not available in Kafka any more; either the data was aged out by Kafka or the topic may have been deleted.
If you don't want your streaming query to fail on such cases, set the source option failOnDataLoss to false.
Reason:
Partition orders-0's offset was changed from 3 to 6. This could be either 1) a user error.

JVM stacktrace:
org.apache.spark.sql.kafka010.KafkaIllegalStateException
\tat org.apache.spark"""
IN_A_TASK = """An error occurred while calling o1117.collectToPython.
: org.apache.spark.sql.kafka010.KafkaIllegalStateException: Some data may have been lost because they are not available in Kafka
any more; either the data was aged out by Kafka or the topic may have been deleted before all the data in the
topic was processed.
If you don't want your streaming query to fail on such cases, set the source option failOnDataLoss to false.
Reason: Could not read records in offset [3, 7) for topic partition orders-0
with consumer group spark-kafka-source-executor.
\tat org.apache.spark.sql.kafka010.KafkaExceptions$.couldNotReadOffsetRange(KafkaExceptions.scala:94)"""
DELETED = (
    "An error occurred while calling o1.count: [LOST_TOPIC_PARTITIONS_IN_END_OFFSET_WITH_TRIGGER_AVAILABLENOW] Some of "
    "partitions in Kafka topic(s) have been lost during running query with Trigger.AvailableNow."
)


@pytest.mark.parametrize(
    ("error", "code", "reported"),
    [
        (StreamingQueryException(RETENTION), "KAFKA_DATA_LOSS.START_OFFSET_RESET", "offset was changed from 3 to 6"),
        (Py4JError(IN_A_TASK), "KAFKA_DATA_LOSS", "offset [3, 7) for topic partition orders-0 with consumer group"),
        (Py4JError(DELETED), "LOST_TOPIC_PARTITIONS_IN_END_OFFSET_WITH_TRIGGER_AVAILABLENOW", "have been lost during"),
    ],
)
def test_lost_records_are_reported_with_the_reason_and_what_to_do(error: Exception, code: str, reported: str) -> None:
    found = lost_records(error, "/data/checkpoint")

    assert isinstance(found, StateError)
    assert found.code == "SOURCE_LOST_ROWS"
    assert found.facts["kafka"] == code
    assert reported in found.message
    assert "/data/checkpoint" in found.message
    assert "stacktrace" not in found.message
    assert "KafkaExceptions" not in found.message


def test_other_errors_stay_what_they_are() -> None:
    assert lost_records(ValueError("[KAFKA_DATA_LOSS] no error of Spark"), "/c") is None
    assert lost_records(StreamingQueryException("[DIVIDE_BY_ZERO] Division by zero."), "/c") is None
