"""Catalog of a session: tables and streams, views, temporal table functions, and settings.

A name is looked up as it is written, and then without regard to case, where only one fits.

What rows of a table mean: *append* (only ever added), *upsert* (the row of its key), or *changelog* (with weights). It is
*versioned* when it has a primary key and an event time; else it has only its latest rows, and `DESCRIBE` has the reason.

A table with a primary key over files has hidden columns beside those it shows, by which its rows are ordered; see `file_order`.

`BoundQuery`, `FirstRows`: a query that is bound, for a view, a subquery and a running query.

It names the rows and what represents its columns; how it was bound and which runner it has are no part of it.

`with_file_order`: the order of rows of a table with a primary key over files: by the name of their file, then by their place in
it.

The law: among the rows of a key, that of the last file by name wins, and of one file the last one, in whatever order the files
come. So a table has hidden sequence columns: the first bytes of the name, eight to a column, and the place of the row.

Known limits: of names that agree in their first 64 bytes, the file that is read later wins. A query that is started later in
a session without a directory does not have the keys that `_tp_delta` has deleted: a file with an earlier name brings them back.

Memory: 144 bytes a key in the state of a query, in its row and in its sequence.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from sqlglot import exp

from zset_join.core.errors import PlanError, SqlError
from zset_join.lookup.source import LookupSource
from zset_join.query import StateTtl, View, appends, changes
from zset_join.sql_expressions.consumed import Position, near, pick

__all__ = [
    "NAME_WORDS",
    "PROCESSING_TIME_TYPE",
    "BoundQuery",
    "Catalog",
    "ColumnDefinition",
    "FirstRows",
    "Mode",
    "NamedView",
    "Table",
    "TableIndex",
    "TemporalFunction",
    "refuse_our_columns",
    "with_file_order",
]


@dataclass(frozen=True)
class FirstRows:
    """A ROW_NUMBER() that a query around it may turn into the first rows of each key."""

    name: str
    keys: tuple[str, ...]
    order_by: tuple[str, ...]  # as `t` or `price desc`
    state_ttl: StateTtl | None = None
    place: int = 0  # columns of the SELECT list before it


@dataclass(frozen=True, eq=False)
class BoundQuery:
    view: View
    reads: frozenset[str]
    is_bounded: bool = False  # it reads what is stored, and ends
    shows_delta: bool = False
    order_by: tuple[tuple[str, bool, bool], ...] = ()  # column, is descending, NULLs come first
    limit: int | None = None
    first_rows: FirstRows | None = None
    shown: tuple[str, ...] | None = None
    names: frozenset[str] = frozenset()
    processing_times: frozenset[str] = frozenset()  # names in its SELECT list

    @property
    def virtual(self) -> list[str]:
        """Return the names of its SELECT list that are no columns."""
        return sorted(self.processing_times - set(self.columns))

    @property
    def columns(self) -> list[str]:
        return self.view.columns if self.shown is None else list(self.shown)


NAME_WORDS = 8
"""How many words of eight bytes of a name count."""
FILE_ORDER = pa.schema([(f"__sequence_{number}", pa.int64()) for number in range(NAME_WORDS + 1)])
"""The hidden columns; Spark's streams call theirs so too."""


def with_file_order(rows: pa.Table, name: str) -> pa.Table:
    """Return the rows of a file with their hidden columns.

    >>> ordered = [with_file_order(pa.table({"k": [1]}), name).column("__sequence_0")[0].as_py() for name in ("b", "a.b", "a")]
    >>> ordered == sorted(ordered, reverse=True)
    True
    """
    begin = os.fsencode(name)[: 8 * NAME_WORDS].ljust(8 * NAME_WORDS, b"\0")
    # Unsigned words order as bytes do; signed ones with the first bit turned around.
    words = (np.frombuffer(begin, ">u8").astype(np.uint64) ^ np.uint64(1 << 63)).view(np.int64)
    columns = [*(np.full(rows.num_rows, word) for word in words), np.arange(rows.num_rows, dtype=np.int64)]
    for column, values in zip(FILE_ORDER, columns, strict=True):
        rows = rows.append_column(column, pa.array(values))
    return rows


Mode = Literal["append", "upsert", "changelog"]

PROCESSING_TIME_TYPE = pa.timestamp("us", tz="UTC")
"""The type of PROCTIME()."""


@dataclass(frozen=True)
class ColumnDefinition:
    name: str
    type: pa.DataType
    computed: exp.Expr | None = None  # from the other columns of an arriving row
    metadata: str | None = None  # the metadata field it is filled from
    is_processing_time: bool = False
    is_required: bool = False
    default: pa.Scalar | None = None

    @property
    def is_given(self) -> bool:
        """Return whether who inserts rows gives it."""
        return self.computed is None and not self.is_processing_time

    @property
    def field(self) -> pa.Field:
        """Return its name, its type, and whether an arriving row may lack it."""
        return pa.field(self.name, self.type, nullable=not self.is_required)


@dataclass(frozen=True)
class Table:
    """A table or stream as it was declared."""

    name: str
    word: str
    columns: tuple[ColumnDefinition, ...]
    mode: Mode
    primary_key: tuple[str, ...] = ()
    watermark: tuple[str, int] | None = None  # event-time column, delay in microseconds
    options: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    delta_column: str | None = None  # its -1 deletes
    lookup: LookupSource | None = None
    version_column: str | None = None  # its larger value wins among changes of a key; None: the later change
    processing_times: tuple[str, ...] = ()  # no columns: names for FOR SYSTEM_TIME AS OF alone
    is_ordered_by_file: bool = False
    added: tuple[str, ...] = ()  # columns that it got later

    @property
    def schema(self) -> pa.Schema:
        """Return the columns that rows have."""
        return pa.schema([(column.name, column.type) for column in self.columns])

    @property
    def hidden(self) -> pa.Schema:
        """Return the columns that rows have beside those of the table, and that nothing shows."""
        return FILE_ORDER if self.is_ordered_by_file else pa.schema([])

    @property
    def shown(self) -> tuple[str, ...]:
        """Return the columns that `*` represents."""
        return tuple(column.name for column in self.columns if column.name != self.delta_column)

    @property
    def is_versioned(self) -> bool:
        """Return whether its rows have versions in event time."""
        return bool(self.primary_key) and self.watermark is not None

    def why(self) -> str:
        """Return whether it is versioned or latest-only, and why."""
        if self.is_versioned and self.watermark is not None:
            key = ", ".join(self.primary_key)
            return f"versioned: it has the primary key ({key}) and the event time {self.watermark[0]}"
        missing = [
            *([] if self.primary_key else ["no primary key"]),
            *([] if self.watermark is not None else ["no event time (WATERMARK FOR ...)"]),
        ]
        return f"latest-only: it has {' and '.join(missing)}"

    @cached_property
    def rows(self) -> View:
        """Return its rows, for the fluent API: one source, however often it is requested."""
        watermark = None if self.watermark is None else (self.watermark[0], f"{self.watermark[1]} microseconds")
        if self.mode == "append":
            return appends(self.name, self.schema, keys=self.primary_key, watermark=watermark)
        if self.delta_column is not None and not self.primary_key:
            return changes(self.name, self.schema, weight_column=self.delta_column, watermark=watermark)
        deletes, hides = None, tuple(self.hidden.names)
        if self.delta_column is not None:
            from zset_join.expressions import col

            deletes, hides = col(self.delta_column) < 0, (self.delta_column, *hides)
        return changes(
            self.name,
            pa.schema([*self.schema, *self.hidden]),
            keys=self.primary_key,
            sequence_by=self.hidden.names if self.version_column is None else (self.version_column,),
            apply_as_deletes=deletes,
            except_column_list=hides,
            watermark=watermark,
        )


@dataclass(frozen=True)
class NamedView:
    name: str
    query: BoundQuery
    sql: str
    is_materialized: bool = False
    columns: tuple[str, ...] = ()  # names that its declaration gives the columns; empty: those of the query
    again: Callable[[], BoundQuery] | None = None  # binds it to what names represent now


@dataclass(frozen=True)
class TemporalFunction:
    """A temporal table function, Flink's older way to name the versions of a table."""

    name: str
    relation: str
    time: str
    key: str


@dataclass(frozen=True)
class TableIndex:
    """An index: columns by which a table or view is kept for joins that look up in it."""

    name: str
    relation: str
    columns: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name} on {self.relation} ({', '.join(self.columns)})"


class Catalog:
    def __init__(self, decoded: Callable[[Table], View | None] | None = None) -> None:
        self._decoded = decoded  # the rows of a table of records that queries decode
        self.indexes: dict[str, TableIndex] = {}
        self.tables: dict[str, Table] = {}
        self.views: dict[str, NamedView] = {}
        self.functions: dict[str, TemporalFunction] = {}
        self.settings: dict[str, str] = {}
        self.sinks: dict[str, str] = {}

    @property
    def zone(self) -> str:
        return "UTC"

    def add(self, entry: Table | NamedView | TemporalFunction, *, at: Position | None = None, replace: bool = False) -> None:
        """Give something its name.

        Raises:
            SqlError: the name is taken.
        """
        decoded = self._decoded(entry) if self._decoded is not None and isinstance(entry, Table) else None
        if decoded is not None:
            entry.__dict__["rows"] = decoded
        self._claim(entry.name, at=at, replace=replace)
        if isinstance(entry, Table):
            self.tables[entry.name] = entry
        elif isinstance(entry, NamedView):
            self.views[entry.name] = entry
        else:
            self.functions[entry.name] = entry

    def add_sink(self, name: str, table: str, *, at: Position | None = None, replace: bool = False) -> None:
        """Give a query that writes into a table its name.

        Raises:
            SqlError: the name is taken.
        """
        self._claim(name, at=at, replace=replace)
        self.sinks[name] = table

    def _claim(self, name: str, *, at: Position | None, replace: bool) -> None:
        if not replace and name in {*self.tables, *self.views, *self.functions, *self.sinks}:
            raise SqlError(f'the name "{name}" is taken. DROP it first, or write CREATE OR REPLACE.', code="NAME_TAKEN", at=at)
        self._forget(name)

    def find(self, name: str, *, at: Position | None = None) -> Table | NamedView:
        """Return the table or view of a name.

        Raises:
            SqlError: there is none.
        """
        known: dict[str, Table | NamedView] = {**self.tables, **self.views}
        entry = pick(known, name)
        if entry is None:
            raise SqlError(
                f'no table or view is called "{name}".{near(name, self.relations())} Create or register it first.',
                code="UNKNOWN_TABLE",
                at=at,
                name=name,
            )
        return entry

    def function(self, name: str, *, at: Position | None = None) -> TemporalFunction:
        """Return a temporal table function.

        Raises:
            SqlError: there is none.
        """
        function = pick(self.functions, name)
        if function is None:
            raise SqlError(
                f'there is no temporal table function "{name}".{near(name, self.functions)} Make it with '
                "session.create_temporal_table_function(name, relation, time, key), or write FOR SYSTEM_TIME AS OF.",
                code="UNKNOWN_TABLE",
                at=at,
                name=name,
            )
        return function

    def is_kept(self, name: str) -> bool:
        """Return whether rows or a running query come after a name: a table, a materialized view, or a sink."""
        view = self.views.get(name)
        return name in self.tables or name in self.sinks or (view is not None and view.is_materialized)

    def relations(self) -> list[str]:
        """Return the names of tables and views."""
        return [*self.tables, *self.views]

    def drop(self, name: str, *, at: Position | None = None, if_exists: bool = False) -> str | None:
        """Forget a name; return it as it was kept.

        Raises:
            SqlError: there is none, or a view reads it, or a sink writes into it.
        """
        sink = pick({name: name for name in self.sinks}, name)
        if sink is not None:
            self._forget(sink)
            return sink
        if if_exists and pick({**self.tables, **self.views}, name) is None:
            return None
        entry = self.find(name, at=at)
        writers = [sink for sink, table in self.sinks.items() if table == entry.name]
        if writers:
            raise SqlError(
                f'"{entry.name}" is written by {", ".join(writers)}. Drop those first.',
                code="STILL_READ",
                at=at,
                name=entry.name,
            )
        readers = self.readers_of(entry.name)
        if readers:
            raise SqlError(
                f'"{entry.name}" is read by {", ".join(readers)}. Drop those first.', code="STILL_READ", at=at, name=entry.name
            )
        self._forget(entry.name)
        return entry.name

    def readers_of(self, name: str) -> list[str]:
        """Return the views whose query names a table or view."""
        return [view.name for view in self.views.values() if name in view.query.names and view.name != name]

    def _forget(self, name: str) -> None:
        kept: Iterable[dict[str, Any]] = (self.tables, self.views, self.functions, self.sinks)
        for entries in kept:
            entries.pop(name, None)
        self.indexes = {one.name: one for one in self.indexes.values() if one.relation != name}


_OURS = re.compile(
    r"_stored_weight|_unread_reason|_file_order_\d+|__(time|value|place|corrupt|(value_|text|of_)\d+)", re.IGNORECASE
)


def refuse_our_columns(table: Table) -> None:
    """Refuse columns of a user that are named as those that hold how a row was read, or its number of copies."""
    columns = [name for name in table.schema.names if _OURS.fullmatch(name)]
    if columns:
        raise PlanError(
            f'the table "{table.name}" has columns {columns}, names that the library keeps for itself beside the rows of a '
            "table; rename them.",
            code="RESERVED_COLUMN",
            name=table.name,
            columns=columns,
        )
