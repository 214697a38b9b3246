"""Records of JSON that carry the changes of a table: those of Debezium, Canal, Maxwell, AWS DMS, and keys with nullable values.

| format          | a record is                              | a delete is              | keys come from         |
|-----------------|------------------------------------------|--------------------------|------------------------|
| `debezium-json` | an envelope with `op`, `before`, `after` | `op` d, keys in `before` | record's key, `before` |
| `canal-json`    | `type`, a list of rows in `data`         | `type` DELETE            | the row                |
| `maxwell-json`  | `type`, a row in `data`                  | `type` delete            | the row                |
| `dms-json`      | `metadata`, a row in `data`              | `operation` delete       | the row                |
| `upsert-json`   | the row as JSON, its key in the key      | no value                 | record's key           |

What all of them become is one line per change: what it does (`upsert`, `delete`, `truncate`; what means no change is omitted),
the columns of the table, metadata, and, where it cannot be read, why. Of old rows only the key is read: an update that changes
it is a delete of the old key, then an upsert. Tables without a primary key are read as a changelog by weight: `before` -1,
`after` +1, which needs full old rows; an update without one is bad input.

Debezium writes `__debezium_unavailable_value` for a column that PostgreSQL did not send because it was not touched; such a
column is marked as unavailable, and its value is taken from the row that is present when the change is applied.

A row of this table is all that a format takes: in process, in files, Kafka, Spark and SQL it is read by what is here.

DMS writes control records beside those of data; known ones are omitted, and another one is bad input, for it may change rows.
The key that an update changed is read from `before-image`, to which `FieldName` of `BeforeImageSettings` must be set.

A topic may carry the records of many tables. Options name the ones that are read; others are omitted. Without them a record is
read where its table is called as the source, or its topic ends with the table's name; another one is bad input.

Source: the documentation of Debezium 3, Canal, Maxwell and AWS DMS (to Kafka and Kinesis); records that a real Debezium wrote.
"""

from __future__ import annotations

import base64
import hashlib
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import pyarrow as pa

from zset_join.changelog.formats.rows import ROW_FORMATS
from zset_join.core.errors import OptionError
from zset_join.core.shown_values import near

__all__ = [
    "METADATA",
    "RECORD_FORMATS",
    "UNAVAILABLE",
    "RecordFormat",
    "RecordOptions",
    "TimeUnit",
    "is_record_format",
    "placeholders",
    "record_format",
]

UNAVAILABLE = "__debezium_unavailable_value"

Decimals = Literal["base64", "text"]
TimeUnit = Literal["s", "ms", "us", "ns"]
Binary = Literal["base64", "base64-url", "hex"]

_INSTANT = pa.timestamp("us", tz="UTC")
METADATA: Mapping[str, pa.DataType] = {
    "operation_time": _INSTANT,
    "record_time": _INSTANT,
    "position": pa.int64(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
}
"""What a record contains beside the row: when the change was made in the database, when the record was written, its position in
the database's log (of PostgreSQL, by Debezium: its lsn), and where the record is in Kafka."""


@dataclass(frozen=True, kw_only=True)
class RecordFormat:
    """Describe where the parts of a record are, for one format."""

    name: str
    operation: tuple[str, ...] = ()  # a path, as all tuples but `updates`; none: a NULL value deletes
    operations: Mapping[str, str] = field(default_factory=dict)  # in lower case, to the meaning; any other is bad input
    updates: tuple[str, ...] = ()  # operations that replace a row, so a table without a key needs the old one
    row: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()  # the row, or the key columns, that a delete takes away
    old: tuple[str, ...] = ()  # the full old row, for tables without a key
    moved: tuple[str, ...] = ()  # a row with the old values of key columns that an update changed
    database: tuple[str, ...] = ()
    table: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    is_list: bool = False
    enveloped: bool = False  # the record may be in `payload`, beside a schema
    key_in_record_key: bool = False
    times: Mapping[str, tuple[tuple[str, ...], TimeUnit | None]] = field(default_factory=dict)
    older_times: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # milliseconds
    position: tuple[str, ...] = ()
    decimals: Decimals = "text"
    binary: Binary | Literal["latin1"] = "base64"
    counts_times: bool = False


RECORD_FORMATS: Mapping[str, RecordFormat] = {
    one.name: one
    for one in (
        RecordFormat(
            name="debezium-json",
            operation=("op",),
            operations={"c": "upsert", "r": "upsert", "u": "upsert", "d": "delete", "t": "truncate", "m": "ignore"},
            updates=("u",),
            row=("after",),
            deleted=("before",),
            old=("before",),
            moved=("before",),
            database=("source", "db"),
            table=("source", "table"),
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
            moved=("old",),
            database=("database",),
            table=("table",),
            types=("mysqlType",),
            binary="latin1",
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
            moved=("old",),
            database=("database",),
            table=("table",),
            times={"operation_time": (("ts",), "s")},
        ),
        RecordFormat(
            name="dms-json",
            operation=("metadata", "operation"),
            operations={
                **dict.fromkeys(("load", "insert", "update"), "upsert"),
                "delete": "delete",
                **dict.fromkeys(("create-table", "drop-table", "rename-table", "change-columns"), "ignore"),
                **dict.fromkeys(("add-column", "drop-column", "rename-column", "column-type-change"), "ignore"),
            },
            row=("data",),
            deleted=("data",),
            moved=("before-image",),
            database=("metadata", "schema-name"),
            table=("metadata", "table-name"),
            times={
                "operation_time": (("metadata", "commit-timestamp"), None),
                "record_time": (("metadata", "timestamp"), None),
            },
            binary="hex",
        ),
        RecordFormat(name="upsert-json", enveloped=True, key_in_record_key=True),
    )
}


@dataclass(frozen=True, kw_only=True)
class RecordOptions:
    """The choices a format leaves open. A schema beside a record defines the encoding of its columns, and decides.

    Args:
        decimals: how texts in decimal columns are written: `base64` (Debezium's default, the unscaled value) or `text`
            (digits). A JSON number is always itself.
        time_unit: of timestamps that are written as integers: one for all columns, or a unit per column. None: such a number is
            bad input.
        metadata: metadata to the column it becomes, see `METADATA`.
        binary: how bytes are written: `base64`, `base64-url` or `hex`; default: what the format writes, base64 but for Canal.
        database: the databases whose records are read, one name or several; others are omitted. None: all.
        table: the tables whose records are read; others are omitted. None: the one that is called as the source, or at the
            end of its topic; a record of another one is bad input.
        unavailable: what Debezium writes for a value that was not sent (`unavailable.value.placeholder`).

    Raises:
        OptionError: a value that is not allowed.
    """

    decimals: Decimals | None = None
    time_unit: TimeUnit | Mapping[str, TimeUnit] | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    binary: Binary | None = None
    database: str | Sequence[str] | None = None
    table: str | Sequence[str] | None = None
    unavailable: str = UNAVAILABLE

    def __post_init__(self) -> None:
        units = self.time_unit.values() if isinstance(self.time_unit, Mapping) else [self.time_unit]
        given = [("decimals", self.decimals, Decimals), ("binary", self.binary, Binary)]
        for option, value, allowed in [*given, *(("time_unit", unit, TimeUnit) for unit in units)]:
            if value is not None and value not in get_args(allowed):
                raise OptionError(
                    f"{option}={value!r} is unknown; use {', '.join(get_args(allowed))}.", code="OPTION_VALUE", option=option
                )
        if not self.unavailable:
            raise OptionError(
                "unavailable is empty; give the text that represents a value.", code="OPTION_VALUE", option="unavailable"
            )
        unknown = sorted(set(self.metadata) - set(METADATA))
        if unknown:
            raise OptionError(
                f"metadata names {unknown}; there are {', '.join(METADATA)}.",
                code="OPTION_VALUE",
                option="metadata",
                value=unknown,
            )

    def unit_of(self, column: str) -> TimeUnit | None:
        """Return the unit of the numbers in a timestamp column; None where it is not given."""
        return self.time_unit.get(column) if isinstance(self.time_unit, Mapping) else self.time_unit

    @property
    def databases(self) -> tuple[str, ...] | None:
        """Return the databases whose records are read; None for all."""
        return _names(self.database)

    @property
    def tables(self) -> tuple[str, ...] | None:
        """Return the tables whose records are read; None where that is not given."""
        return _names(self.table)


def _names(given: str | Sequence[str] | None) -> tuple[str, ...] | None:
    return given if given is None else (given,) if isinstance(given, str) else tuple(given)


def placeholders(text: str) -> tuple[str, ...]:
    """Return Debezium's placeholders for a value that was not sent, by type, as compact JSON or plain text.

    >>> placeholders("no")[:4]
    ('no', 'bm8=', '["no"]', '["bm8="]')
    """
    data = text.encode()
    encoded = base64.b64encode(data).decode()
    of_uuids = str(uuid.UUID(bytes=hashlib.md5(data, usedforsecurity=False).digest(), version=3))
    # Texts, bytes, arrays of them, of numbers (one per byte), of uuids, and an hstore as JSON.
    lists = [[text], [encoded], list(data), [of_uuids]]
    as_json = [json.dumps(one, separators=(",", ":"), ensure_ascii=False) for one in (*lists, {text: text})]
    return (text, encoded, *as_json)


def record_format(name: str) -> RecordFormat:
    """Return the format of a name.

    >>> record_format("debezium-json").deleted
    ('before',)
    """
    if name not in RECORD_FORMATS:
        raise OptionError(f"format={name!r} is unknown; use one of {', '.join(RECORD_FORMATS)}.", code="FORMAT", format=name)
    return RECORD_FORMATS[name]


def is_record_format(name: str, format_name: str) -> bool:
    """Return whether a format is one of records, not of rows."""
    known = [*RECORD_FORMATS, *ROW_FORMATS]
    if format_name not in known:
        raise OptionError(
            f'changes "{name}": format={format_name!r} is unknown.{near(format_name, known)}',
            code="FORMAT",
            format=format_name,
        )
    return format_name in RECORD_FORMATS
