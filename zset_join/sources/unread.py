"""Unreadable input of a source: texts of rows and records, each with its error.

    rows, unread = read_csv_rows(text, schema, CsvForm())
    letters = unread_records(unread, topic="1.csv")

Memory: the texts that cannot be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

__all__ = ["Undecodable", "UnreadText", "unread_records", "wanted_text"]

_SHOWN = 200
_RECORDS = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("code", pa.string()),
        ("reason", pa.string()),
    ]
)


@dataclass(frozen=True)
class UnreadText:
    number: int  # of a file, the line it begins in, from 1; of texts, its number among them, from 0
    text: bytes
    expected: str
    column: str | None = None  # None where the text is no row at all

    @property
    def code(self) -> str:
        return "UNDECODABLE_RECORD" if self.column is None else "UNDECODABLE_VALUE"

    @property
    def reason(self) -> str:
        if self.column is None:
            return f"it is no {self.expected}"
        return f'the value of "{self.column}" cannot be read as {self.expected}'

    @property
    def shown(self) -> str:
        return f"{self.reason}: {self.text[:_SHOWN].decode('utf-8', errors='replace')}"


@dataclass(frozen=True)
class Undecodable:
    source: str
    records: pa.Table  # `code`, `reason`, and `key`, `value`, `topic`, `partition`, `offset` of a record, or `row` as JSON


def unread_records(unread: Sequence[UnreadText], *, topic: str) -> pa.Table:
    """Return texts as records that cannot be read: `value` has the bytes, `offset` the number."""
    lines = [
        {"value": one.text, "topic": topic, "partition": 0, "offset": one.number, "code": one.code, "reason": one.reason}
        for one in unread
    ]
    return pa.Table.from_pylist(lines, schema=_RECORDS)


def wanted_text(field: pa.Field) -> str:
    """Return the accepted values of a column, as text."""
    return f"{field.type}{'' if field.nullable else ' NOT NULL'}"
