"""Records of JSON that carry the changes of a table: Debezium's, Canal's, Maxwell's, and plain keys with nullable values.

| format          | a record is                              | a delete is              | keys come from         |
|-----------------|------------------------------------------|--------------------------|------------------------|
| `debezium-json` | an envelope with `op`, `before`, `after` | `op` d, keys in `before` | record's key, `before` |
| `canal-json`    | `type`, a list of rows in `data`         | `type` DELETE            | the row                |
| `maxwell-json`  | `type`, a row in `data`                  | `type` delete            | the row                |
| `upsert-json`   | the row as JSON, its key in the key      | no value                 | record's key           |

What all of them become is one line per change: what it does (`upsert`, `delete`, `truncate`; what means no change is left
out), the columns of the table, metadata, and, where it cannot be read, why. Old rows are not read: the primary key says which
row is replaced. Tables without a primary key are read as a changelog by weight: `before` -1, `after` +1, which needs full old
rows.

Debezium writes `__debezium_unavailable_value` for a column that PostgreSQL did not send because it was not touched; such a
column is marked as unavailable, and whoever applies the change takes its value from the row that is there.

Source: the documentation of Debezium 3, Canal and Maxwell; records that a real Debezium wrote.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

import pyarrow as pa

from zset_join.errors import OptionError

__all__ = ["METADATA", "RECORD_FORMATS", "UNAVAILABLE", "RecordFormat", "RecordOptions", "record_format"]

UNAVAILABLE = "__debezium_unavailable_value"

Decimals = Literal["base64", "text"]
TimeUnit = Literal["s", "ms", "us", "ns"]

_INSTANT = pa.timestamp("us", tz="UTC")
METADATA: Mapping[str, pa.DataType] = {
    "operation_time": _INSTANT,
    "record_time": _INSTANT,
    "position": pa.int64(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
}
"""What a record says beside the row: when the change was made in the database, when the record was written, the position in the
database's log (of PostgreSQL, by Debezium: its lsn), and where the record lies in Kafka."""


@dataclass(frozen=True, kw_only=True)
class RecordFormat:
    """Say where a record of one format has what.

    Args:
        name: what users call it.
        operation: path of what it does; none where a NULL value deletes.
        operations: what it says, in lower case, to what it means; what is not there is a bad record.
        row: path of the row that an upsert brings.
        deleted: path of the row, or of the key columns, that a delete takes away.
        old: path of the full old row, for tables without a key.
        is_list: the rows are lists, one record may have several.
        enveloped: the record may stand in `payload`, beside a schema.
        key_in_record_key: the record's key has the key columns, as JSON.
        times: metadata to its path and the unit it has.
        older_times: metadata to its path in records of older writers, which have microseconds nowhere: milliseconds.
        position: path of the position in the database's log.
        decimals: how decimals are written unless options say otherwise.
        counts_times: dates and times without a zone are numbers, unless the writer was told otherwise.
    """

    name: str
    operation: tuple[str, ...] = ()
    operations: Mapping[str, str] = field(default_factory=dict)
    row: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    old: tuple[str, ...] = ()
    is_list: bool = False
    enveloped: bool = False
    key_in_record_key: bool = False
    times: Mapping[str, tuple[tuple[str, ...], TimeUnit]] = field(default_factory=dict)
    older_times: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    position: tuple[str, ...] = ()
    decimals: Decimals = "text"
    counts_times: bool = False


RECORD_FORMATS: Mapping[str, RecordFormat] = {
    one.name: one
    for one in (
        RecordFormat(
            name="debezium-json",
            operation=("op",),
            operations={"c": "upsert", "r": "upsert", "u": "upsert", "d": "delete", "t": "truncate", "m": "ignore"},
            row=("after",),
            deleted=("before",),
            old=("before",),
            enveloped=True,
            key_in_record_key=True,
            times={"operation_time": (("source", "ts_us"), "us"), "record_time": (("ts_us",), "us")},
            older_times={"operation_time": ("source", "ts_ms"), "record_time": ("ts_ms",)},  # Debezium before 2.5
            position=("source", "lsn"),
            decimals="base64",
            counts_times=True,
        ),
        RecordFormat(
            name="canal-json",
            operation=("type",),
            operations={
                "insert": "upsert",
                "update": "upsert",
                "delete": "delete",
                "truncate": "truncate",
                **dict.fromkeys(("create", "alter", "erase", "rename", "cindex", "dindex", "query"), "ignore"),
            },
            row=("data",),
            deleted=("data",),
            is_list=True,
            times={"operation_time": (("es",), "ms"), "record_time": (("ts",), "ms")},
        ),
        RecordFormat(
            name="maxwell-json",
            operation=("type",),
            operations={
                **dict.fromkeys(("insert", "update", "bootstrap-insert"), "upsert"),
                "delete": "delete",
                **dict.fromkeys(("bootstrap-start", "bootstrap-complete"), "ignore"),
                **dict.fromkeys(("table-create", "table-alter", "table-drop"), "ignore"),
                **dict.fromkeys(("database-create", "database-alter", "database-drop"), "ignore"),
            },
            row=("data",),
            deleted=("data",),
            times={"operation_time": (("ts",), "s")},
        ),
        RecordFormat(name="upsert-json", key_in_record_key=True),
    )
}


@dataclass(frozen=True, kw_only=True)
class RecordOptions:
    """Say what a format leaves open.

    Args:
        decimals: `base64` (Debezium's default, the unscaled value) or `text` (digits, as text or as a number).
        time_unit: of timestamps that are written as integers.
        metadata: metadata to the column it becomes, see `METADATA`.

    Raises:
        OptionError: a value that is not allowed.
    """

    decimals: Decimals | None = None
    time_unit: TimeUnit = "us"
    metadata: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.decimals is not None and self.decimals not in get_args(Decimals):
            raise OptionError(
                f"decimals={self.decimals!r} is unknown; use {', '.join(get_args(Decimals))}.",
                code="OPTION_VALUE",
                option="decimals",
            )
        if self.time_unit not in get_args(TimeUnit):
            raise OptionError(
                f"time_unit={self.time_unit!r} is unknown; use {', '.join(get_args(TimeUnit))}.",
                code="OPTION_VALUE",
                option="time_unit",
            )
        unknown = sorted(set(self.metadata) - set(METADATA))
        if unknown:
            raise OptionError(
                f"metadata names {unknown}; there are {', '.join(METADATA)}.",
                code="OPTION_VALUE",
                option="metadata",
                value=unknown,
            )


def record_format(name: str) -> RecordFormat:
    """Return the format of a name.

    Raises:
        OptionError: there is none.

    >>> record_format("debezium-json").deleted
    ('before',)
    """
    if name not in RECORD_FORMATS:
        raise OptionError(f"format={name!r} is unknown; use one of {', '.join(RECORD_FORMATS)}.", code="FORMAT", format=name)
    return RECORD_FORMATS[name]
