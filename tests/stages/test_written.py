"""Schemas and relations come back from JSON as they were."""

from __future__ import annotations

import json

import pyarrow as pa

from zset_join import Relation
from zset_join.stages.written import read_relation, write_relation


def test_a_relation_comes_back_from_json_with_its_types_keys_and_time():
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            ("at", pa.timestamp("us", tz="UTC")),
            ("price", pa.decimal128(12, 3)),
            ("tags", pa.list_(pa.string())),
        ]
    )
    relation = Relation(
        name="prices",
        schema=schema,
        join_key=("price",),
        primary_key=("id",),
        sequence_by=("at",),
        mode="upsert",
        event_time="at",
        watermark_delay=5,
    )

    written = json.loads(json.dumps(write_relation(relation)))

    assert read_relation(written) == relation
