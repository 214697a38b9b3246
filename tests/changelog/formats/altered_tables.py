"""Records of a table whose columns were changed while somebody read it with the columns of before."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

__all__ = ["BAD", "COLUMNS", "ROWS", "altered"]

COLUMNS = pa.schema({"id": pa.int32(), "city": pa.string(), "n": pa.int32()})
_WRITTEN: tuple[tuple[str, dict[str, Any]], ...] = (
    ("before", {"id": 1, "city": "Rome", "n": 1}),
    ("before", {"id": 2, "city": "Oslo", "n": 2}),
    ("n is gone", {"id": 2, "city": "Oslo"}),
    ("city is called town", {"id": 3, "town": "Bern", "n": 3}),
    ("paid is new", {"id": 4, "city": "Wien", "n": 4, "paid": True}),
    ("n is a bigint", {"id": 5, "city": "Graz", "n": 5}),
    ("n is a bigint", {"id": 6, "city": "Linz", "n": 5_000_000_000}),
    ("n is a text", {"id": 7, "city": "Bonn", "n": "seven"}),
    ("n is a text", {"id": 8, "city": "Köln", "n": "8"}),
)
ROWS = {
    (1, "Rome", 1): 1,
    (2, "Oslo", None): 1,
    (3, None, 3): 1,
    (4, "Wien", 4): 1,
    (5, "Graz", 5): 1,
    (8, "Köln", 8): 1,
}
"""What the table holds; a value that does not fit its column is bad input, with what it is."""
BAD = ["UNDECODABLE_VALUE", "UNDECODABLE_VALUE"]


def altered() -> pa.Table:
    """Return the records, by Debezium."""
    values = [json.dumps({"op": "u", "after": row, "source": {"lsn": at}}) for at, (_, row) in enumerate(_WRITTEN)]
    keys = [json.dumps({"id": row["id"]}) for _, row in _WRITTEN]
    count = len(values)
    return pa.table(
        {
            "key": keys,
            "value": values,
            "topic": ["t"] * count,
            "partition": pa.array([0] * count, pa.int32()),
            "offset": pa.array(range(count), pa.int64()),
        }
    )
