"""The tables of a join and of its route meet by keys that are equal, whatever their bytes are."""

from __future__ import annotations

import struct

import pyarrow as pa

from zset_join.runners.spark.driver.routed_tables import joined
from zset_join.state.rows.side_snapshot import SNAPSHOT_WEIGHT

OTHER_NAN = struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_0000_0001))[0]


def test_zeros_of_both_signs_are_one_key_and_so_are_all_nans() -> None:
    rows = pa.table({"id": [0.0, OTHER_NAN, 1.5], "v": ["a", "b", "c"], SNAPSHOT_WEIGHT: [1, 1, 1]})
    route = pa.table({"id": [float("nan"), 1.5, -0.0], "order": [20, 30, 10], SNAPSHOT_WEIGHT: [1, 1, 1]})
    schema = pa.schema([*rows.schema, ("order", pa.int64())])

    found = joined(rows, route, schema, ["id"])

    assert found.select(["v", "order"]).to_pylist() == [
        {"v": "a", "order": 10},
        {"v": "b", "order": 20},
        {"v": "c", "order": 30},
    ]
