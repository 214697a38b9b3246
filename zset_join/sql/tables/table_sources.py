"""Sources of the tables of a session in process, and their positions.

| table | position |
|---|---|
| `filesystem` with rows, or with records of changes | how many files, whose names are kept beside it |
| `kafka` with JSON rows, or with records of changes | of the topic, by partition |
| `datagen` | how often rows were made |

Records of changes are decoded by queries where the session has a directory, and in memory by `DecodedRecords`.

The law: as of every `zset_join.sources.Source`: `poll` gives what follows the position, and the position behind it. A pipeline
commits it with the epoch that took the rows, so a session that is opened again takes every row once.

`TopicRows`: the rows of a topic of Kafka, as a source of a table: plain JSON as rows, records of changes as they are.

Edge cases: a plain JSON record that cannot be read is refused with its offset, or set aside with `on_bad_input = 'quarantine'`;
names a record lacks are NULL, others are passed over. Columns `METADATA FROM 'offset'` and others (`metadata_of`) are filled
from the record.

Known limits: a topic is read from its beginning.
"""

from __future__ import annotations

import json
import random
import time
import zlib
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from zset_join.changelog.formats import METADATA
from zset_join.connectors.connector import kafka_config, local_path_of
from zset_join.core.errors import BadInputError, PlanError, SqlError, StateError
from zset_join.expressions import Call, Cast, Literal
from zset_join.expressions.rows import named
from zset_join.query import View, changes
from zset_join.query.records import records
from zset_join.runners.local.taking import PartlyRead
from zset_join.sql.tables.catalog import Table
from zset_join.sql.tables.connectors import form_of, has_records, metadata_of, puts_aside, record_options, start_of, texts_of
from zset_join.sql.tables.files import file_name, list_files, part_file, read_file, read_records
from zset_join.sql.tables.table_rows import required_value
from zset_join.sql_expressions.dialects import Statement
from zset_join.sql_expressions.scalars import ScalarBinder
from zset_join.storage import local
from zset_join.zset import ZSet

if TYPE_CHECKING:
    from zset_join.sources.kafka import KafkaSource
    from zset_join.sources.source import UnreadText

__all__ = ["GeneratedRows", "TableSource", "TopicRows", "decoded_rows", "recorded_rows", "source_of"]

_MOST_ROWS = 100_000


class TopicRows:
    """Give the records of a topic: as rows, or as records where others decode them; a source of a table."""

    def __init__(
        self, table: Table, completed: Callable[[Table, pa.Table], pa.Table], settings: Mapping[str, str] | None = None
    ) -> None:
        start_of(table, ("earliest",))
        self._table = table
        self._completed = completed
        self._form = form_of(table.options)
        self._given = pa.schema([one.field for one in table.columns if one.is_given and one.metadata is None])
        self._source: KafkaSource | None = None
        self._is_lenient = puts_aside(settings or {})

    def open(self, position: Any) -> None:
        self.close()
        self._source = self._opened(position)

    def poll(self, *, wait_seconds: float) -> tuple[pa.Table | PartlyRead | None, Any]:
        records, position = self.poll_records(wait_seconds=wait_seconds)
        if not records.num_rows:
            return None, position
        if self._form != "json":
            return texts_of(records), position
        read = self.read(records)
        if isinstance(read, PartlyRead):
            return PartlyRead(self._completed(self._table, read.rows), read.unread), position
        return self._completed(self._table, read), position

    def poll_records(self, *, wait_seconds: float) -> tuple[pa.Table, Any]:
        """Return the next records as they are, and the position behind them."""
        if self._source is None:
            self._source = self._opened(None)
        return self._source.poll(most_rows=_MOST_ROWS, wait_seconds=wait_seconds)

    def close(self) -> None:
        if self._source is not None:
            self._source.close()
        self._source = None

    def _opened(self, position: Any) -> KafkaSource:
        from zset_join.sources.kafka import KafkaSource

        source = KafkaSource(kafka_config(self._table.options), self._table.options["topic"])
        source.open(position)
        return source

    def read(self, records: pa.Table) -> pa.Table | PartlyRead:
        """Return rows of plain JSON, with the metadata of their records; and beside them what cannot be read, if it may be."""
        from zset_join.sources.json_values import part_json_rows

        kept = records.filter(pc.is_valid(records.column("value")))
        rows, bad = part_json_rows(kept.column("value").to_pylist(), self._given)
        if not bad:
            return self._with_metadata(rows, kept)
        if not self._is_lenient:
            self._refuse(bad[0], kept)
        numbers = pa.array([one.number for one in bad], pa.int64())
        is_bad = pc.is_in(pa.array(range(kept.num_rows), pa.int64()), numbers)
        unread = kept.select(["key", "value", "topic", "partition", "offset"]).take(numbers)
        unread = unread.append_column("code", pa.array([one.code for one in bad], pa.string()))
        unread = unread.append_column("reason", pa.array([one.reason for one in bad], pa.string()))
        return PartlyRead(self._with_metadata(rows, kept.filter(pc.invert(is_bad))), unread)

    def _with_metadata(self, rows: pa.Table, records: pa.Table) -> pa.Table:
        columns = {name: rows.column(name) for name in self._given.names if name in rows.column_names}
        for column in self._table.columns:
            if column.metadata is not None:
                columns[column.name] = records.column(metadata_of(self._table.options)[column.metadata]).cast(column.type)
        return pa.table(columns)

    def _refuse(self, first: UnreadText, records: pa.Table) -> None:
        raise BadInputError(
            f'table "{self._table.name}": the record at offset {records.column("offset")[first.number]} of topic '
            f"{records.column('topic')[first.number]} is not a row of it, {first.shown} Correct the producer of the "
            f"topic, or quarantine unreadable records: SET on_bad_input = 'quarantine'.",
            code=first.code,
            relation=self._table.name,
            column=first.column,
        )


_SETTLED_SECONDS = 2.0
"""A directory that was changed a moment ago is listed again: its time counts in steps in which a second file may come."""
Completed = Callable[[Table, pa.Table], pa.Table]


def source_of(
    table: Table,
    completed: Completed,
    settings: Mapping[str, str] | None = None,
    names: Path | None = None,
) -> TableSource:
    connector = table.options.get("connector")
    if connector == "filesystem" and table.word != "SINK":
        return _Files(table, completed, ReadNames(names, table.name), is_lenient=puts_aside(settings or {}))
    if connector in {"kafka", "upsert-kafka"} and table.word != "SINK":
        return TopicRows(table, completed, settings)
    return GeneratedRows(table, completed)


def decoded_rows(table: Table, dialect: str) -> View | None:
    """Return the rows of a table that is fed records of changes, decoded inside the query; None for another table."""
    if not has_records(table):
        return None
    view = records(
        table.name,
        form_of(table.options),
        _given(table),
        keys=table.primary_key,
        watermark=_watermark(table),
        options=record_options(table),
    )
    return _with_all_columns(table, view, dialect)


def recorded_rows(table: Table, dialect: str) -> View | None:
    """Return the rows of a table that is fed records of changes, where its source decodes them; None for another table."""
    if not has_records(table):
        return None
    about = [pa.field(column, METADATA[what]) for what, column in record_options(table).metadata.items()]
    schema = pa.schema([*_given(table), *about])
    return _with_all_columns(table, changes(table.name, schema, keys=table.primary_key, watermark=_watermark(table)), dialect)


def _given(table: Table) -> pa.Schema:
    """Return the columns that records have."""
    return pa.schema([(one.name, one.type) for one in table.columns if one.is_given and one.metadata is None])


def _watermark(table: Table) -> tuple[str, str] | None:
    return None if table.watermark is None else (table.watermark[0], f"{table.watermark[1]} microseconds")


def _with_all_columns(table: Table, view: View, dialect: str) -> View:
    """Return the rows of records with the columns of their table, in its order and types."""
    binder = ScalarBinder.over(view.schema, Statement("", (), dialect))
    chosen: dict[str, Any] = {}
    for column in table.columns:
        if column.is_processing_time:
            chosen[column.name] = Literal(None, column.type)
        elif column.computed is not None:
            chosen[column.name] = Cast(binder.bind(column.computed), column.type)
        else:
            tree = named(column.name)
            chosen[column.name] = tree if view.schema.field(column.name).type == column.type else Cast(tree, column.type)
        if column.is_required and column.name not in table.primary_key:
            chosen[column.name] = required_value(chosen[column.name], column, table.name)
    if list(chosen) == view.columns and not any(isinstance(one, Call | Cast | Literal) for one in chosen.values()):
        return view
    try:
        return replace(view.select(chosen), name=table.name)
    except PlanError as error:
        raise SqlError(error.message, code=error.code) from error


class TableSource(Protocol):
    """A source of the rows of a table; as `zset_join.sources.source.Source`, and rows may have weights.

    One that was not opened is at its beginning.
    """

    def open(self, position: Any) -> None:
        """Go to a position; None is the beginning."""

    def poll(self, *, wait_seconds: float) -> tuple[pa.Table | ZSet | PartlyRead | None, Any]:
        """Return the next rows, None where there are none now, and the position behind them."""

    def close(self) -> None:
        """Release connections."""


class _Files(TableSource):
    """The files of a user, a file a poll."""

    def __init__(self, table: Table, completed: Completed, done: ReadNames, *, is_lenient: bool) -> None:
        self._table = table
        self._is_lenient = is_lenient
        self._completed = completed
        self._done = done
        self._waiting: deque[Path] = deque()
        self._listed_at: float | None = None

    @override
    def open(self, position: Any) -> None:
        self._done.open(position)
        self._waiting.clear()
        self._listed_at = None

    @override
    def poll(self, *, wait_seconds: float) -> tuple[pa.Table | ZSet | PartlyRead | None, Any]:
        changed_at = local.modified_at(local_path_of(self._table.name, self._table.options))
        if not self._waiting and (changed_at is None or changed_at != self._listed_at):
            is_settled = changed_at is not None and time.time() - changed_at > _SETTLED_SECONDS
            self._listed_at = changed_at if is_settled else None
            self._waiting.extend(one for one in list_files(self._table) if one.name not in self._done)
        while self._waiting:
            file = self._waiting[0]
            rows = self._rows(file)
            self._waiting.popleft()
            self._done.add(file.name)
            if isinstance(rows, PartlyRead) or rows.num_rows:
                return rows, self._done.position
        return None, self._done.position

    def _rows(self, file: Path) -> pa.Table | PartlyRead:
        if has_records(self._table):
            return read_records(file)
        if not self._is_lenient:
            return self._completed(self._table, read_file(self._table, file))
        read = part_file(self._table, file)
        rows = self._completed(self._table, read.rows)
        return PartlyRead(rows, read.unread) if read.unread.num_rows else rows

    @override
    def close(self) -> None: ...


class GeneratedRows:
    """Source of generated rows; its position is the number of polls.

    `fields.c.kind` is random or sequence (with `start`), `min`, `max` and `length` bound what is random.
    """

    def __init__(self, table: Table, completed: Callable[[Table, pa.Table], pa.Table]) -> None:
        self._table = table
        self._completed = completed
        self.open(None)

    def open(self, position: Any) -> None:
        self._chance = random.Random(int(self._table.options.get("seed", "0")))  # noqa: S311 - rows to try things out
        self._left = int(self._table.options["number-of-rows"])
        self._made = self._polls = 0
        for _ in range(0 if position is None else int(position["polls"])):
            self._next()

    def poll(self, *, wait_seconds: float) -> tuple[pa.Table | None, Any]:  # noqa: ARG002 - as the protocol has it
        rows = self._next()
        return None if rows is None else self._completed(self._table, rows), {"polls": self._polls}

    def close(self) -> None: ...

    def _next(self) -> pa.Table | None:
        count = min(self._left, _MOST_ROWS, int(self._table.options.get("rows-per-second", "10000")))
        if count <= 0:
            return None
        rows = {one.name: self._column(one.name, one.type, count) for one in self._table.columns if one.is_given}
        self._left -= count
        self._made += count
        self._polls += 1
        return pa.table(rows)

    def _column(self, name: str, kind: pa.DataType, count: int) -> pa.Array:
        options = {
            option.removeprefix(f"fields.{name}."): value
            for option, value in self._table.options.items()
            if option.startswith(f"fields.{name}.")
        }
        if options.get("kind") == "sequence":
            start = int(options.get("start", "1")) + self._made
            return pa.array(range(start, start + count)).cast(kind)
        low, high = int(options.get("min", "0")), int(options.get("max", "100"))
        numbers = [self._chance.randint(low, high) for _ in range(count)]
        if pa.types.is_string(kind):
            length = int(options.get("length", "4"))
            letters = "abcdefghijklmnopqrstuvwxyz"
            return pa.array(["".join(self._chance.choices(letters, k=length)) for _ in range(count)], kind)
        if pa.types.is_boolean(kind):
            return pa.array([number % 2 == 0 for number in numbers])
        whole = pa.array(numbers, pa.int32() if pa.types.is_date(kind) else pa.int64())
        return whole.cast(kind)


class ReadNames:
    """Names of the read files of a table, beside the state so that no commit record repeats them: a name per line, as JSON.

    A position is how many names there are and a checksum of them. A name is on the disk before the position that counts it is
    committed; names behind the committed position are cut off when the session is opened again.

    Memory: the names. Known limit: they are kept for good, also of files that were removed.
    """

    def __init__(self, directory: Path | None, table: str) -> None:
        self._path = None if directory is None else directory / f"{file_name(table)}.names"
        self._table = table
        self._names: dict[str, None] = {}
        self._checksum = 0

    def __contains__(self, name: str) -> bool:
        return name in self._names

    @property
    def position(self) -> dict[str, int]:
        """Return how far it has been read."""
        return {"names": len(self._names), "crc32": self._checksum}

    def open(self, position: Mapping[str, Any] | None) -> None:
        """Go back to a position; None is the beginning."""
        count = 0 if position is None else int(position["names"])
        lines: list[bytes] = []
        if self._path is not None:
            lines = (local.read_bytes(self._path) or b"").split(b"\n")[:-1][:count]
        elif count <= len(self._names):  # in memory: an error sets the query back to where it was
            lines = [json.dumps(name).encode() for name in self._names][:count]
        kept = b"".join(line + b"\n" for line in lines)
        if len(lines) != count or (position is not None and zlib.crc32(kept) != position["crc32"]):
            raise StateError(
                f'the names of the files of table "{self._table}" that this query has read are missing or damaged: '
                f"{self._path}. Restore the whole directory of the session, or begin with a new one.",
                code="DAMAGED_FILE",
                table=self._table,
                file=str(self._path),
            )
        self._names, self._checksum = {json.loads(line): None for line in lines}, zlib.crc32(kept)
        if self._path is not None:
            local.make_directories(self._path.parent)
            local.write_atomic(self._path, kept)

    def add(self, name: str) -> None:
        """Add a name; it is on the disk when this returns."""
        line = json.dumps(name).encode() + b"\n"
        if self._path is not None:
            local.append(self._path, line)
        self._names[name] = None
        self._checksum = zlib.crc32(line, self._checksum)
