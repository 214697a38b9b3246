"""What executors read of records: lines, with what a dead letter shows beside those that may become one."""

from __future__ import annotations

import base64
import pickle

import pyarrow as pa

from zset_join.changelog.formats import RecordOptions
from zset_join.changelog.formats.record_sql import CHANGE, REJECT, UNAVAILABLE_BITS
from zset_join.runners.spark.rows.mapped_records import LinesRead

TABLE = pa.schema({"id": pa.int64(), "v": pa.string()})
KEPT = {"value": "shown", "value_base64": "coded", "offset": "at"}
LINES = pa.schema(
    [(name, pa.string()) for name in ("shown", "coded", "at", CHANGE)]
    + [*TABLE, pa.field(UNAVAILABLE_BITS, pa.int64()), pa.field(REJECT, pa.string())]
)


def test_only_lines_that_may_be_dead_letters_come_back_with_their_record() -> None:
    values = [
        b'{"op":"c","after":{"id":1,"v":"a"}}',
        b'{"op":"u","after":{"id":2,"v":"__debezium_unavailable_value"}}',
        b'{"op":"t"}',
        b'{"op":"m"}',
        b'{"op":"d","before":{"id":3}}',
        b'{"op":"c","after":{"id":4,"v":"\xff"}}',
    ]
    read = LinesRead(
        format_name="debezium-json", table=TABLE, keys=("id",), options=RecordOptions(), kept=KEPT, source="t", lines=LINES
    )
    records = pa.record_batch({"value": pa.array(values, pa.binary()), "offset": pa.array(range(6), pa.int64())})

    lines = pa.Table.from_batches(pickle.loads(pickle.dumps(read))(iter([records.slice(0, 0), records, records.slice(0, 1)])))

    texts = [None, values[1].decode(), values[2].decode(), None, values[5].decode(errors="replace"), None]
    assert lines.schema == LINES
    assert lines["shown"].to_pylist() == texts
    assert lines["at"].to_pylist() == [None, "1", "2", None, "5", None]
    assert lines["coded"].to_pylist() == [None] * 4 + [base64.b64encode(values[5]).decode(), None]
    assert lines[CHANGE].to_pylist() == ["upsert", "upsert", "truncate", "delete", None, "upsert"]
    assert lines["id"].to_pylist() == [1, 2, None, 3, None, 1]
    assert lines[UNAVAILABLE_BITS].to_pylist()[:2] == [0, 2]
    assert [str(code).split()[0] for code in lines[REJECT].to_pylist()] == ["None"] * 4 + ["UNDECODABLE_RECORD", "None"]
