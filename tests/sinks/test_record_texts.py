"""Every form as records of JSON."""

from __future__ import annotations

import pyarrow as pa
import pytest

from zset_join.changelog import RecordForm
from zset_join.sinks.record_texts import RecordWriter
from zset_join.zset import ZSet

SCHEMA = pa.schema({"id": pa.int64(), "v": pa.string()})
CHANGE = ZSet.of({"id": [1, 1, 2], "v": ["a", "b", "c"]}, [-1, 1, -1], schema=SCHEMA)


@pytest.mark.parametrize(
    ("form", "values"),
    [
        ("upsert", [None, '{"id":1,"v":"b"}']),
        ("weight", ['{"id":1,"v":"a","_weight":-1}', '{"id":1,"v":"b","_weight":1}', '{"id":2,"v":"c","_weight":-1}']),
        (
            "row_kind",
            ['{"id":1,"v":"a","_row_kind":"-U"}', '{"id":1,"v":"b","_row_kind":"+U"}', '{"id":2,"v":"c","_row_kind":"-D"}'],
        ),
        (
            "change_data_feed",
            [
                '{"id":1,"v":"a","_change_type":"update_preimage","_commit_version":4,"_commit_timestamp":"1970-01-01T00:00:00.000007Z"}',
                '{"id":1,"v":"b","_change_type":"update_postimage","_commit_version":4,"_commit_timestamp":"1970-01-01T00:00:00.000007Z"}',
                '{"id":2,"v":"c","_change_type":"delete","_commit_version":4,"_commit_timestamp":"1970-01-01T00:00:00.000007Z"}',
            ],
        ),
        (
            "debezium",
            [
                '{"before":{"id":1,"v":"a"},"after":{"id":1,"v":"b"},"op":"u"}',
                '{"before":{"id":2,"v":"c"},"after":null,"op":"d"}',
            ],
        ),
    ],
)
def test_a_change_and_a_delete_in_every_form(form: RecordForm, values: list[str | None]) -> None:
    writer = RecordWriter(SCHEMA, form, ["id"])

    records = writer.records(CHANGE, epoch=4, committed_at_us=7)
    writer.close()

    assert [value for _, value, _ in records] == values
    assert {key for key, _, _ in records} == {'{"id":1}', '{"id":2}'}
