"""Rows of tables that come from outside: files, Kafka, generated rows.

    for feed in feeds_of(runtime): ...

A feed gives the rows of its table as they come, decoded: a table of rows for an append table, a ZSet of changes for others.
JSON of Debezium, Canal, Maxwell and keyed records with empty values (`upsert-json`, and every `upsert-kafka`), in topics and in
files, become changes of the table by a pipeline of their own, which keeps the rows that updates replace.

Edge cases: a plain JSON record that cannot be read is refused with its offset, or put aside with
`on_bad_input = 'quarantine'`; names a record lacks are NULL, others are passed
over. Columns `METADATA FROM 'offset'` and others (`metadata_of`) are filled from the record.

Known limits: Kafka is read from the beginning of its topic; the position of a session in memory is forgotten when it ends. One
with a directory goes on (`zset_join.sql.tables.table_sources`).
"""

from __future__ import annotations

import random
import warnings
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from zset_join.changelog.formats import RecordOptions
from zset_join.connectors.tables import kafka_config
from zset_join.core.errors import BadInputError, SqlError
from zset_join.core.shown_values import counted
from zset_join.query.reading import Reading, readings_of
from zset_join.runners.local.dead_letters import PartlyRead
from zset_join.sql.tables.catalog import Catalog, Table
from zset_join.sql.tables.connectors import encodings_of, form_of, holds_records, metadata_of
from zset_join.sql.tables.files import list_files, part_file, read_file, read_records
from zset_join.sql.tables.settings import stage_options
from zset_join.sql_expressions.places import SqlWarning
from zset_join.zset import ZSet

if TYPE_CHECKING:
    from zset_join.query import View
    from zset_join.runners.local.pipeline import Pipeline
    from zset_join.sources.kafka import KafkaSource
    from zset_join.sources.unread import UnreadText
    from zset_join.sql.tables.results import Running

__all__ = [
    "Feed",
    "GeneratedFeed",
    "feed_of",
    "feeds_of",
    "puts_aside",
    "record_form",
    "record_options",
    "start_of",
    "texts_of",
]


class FedTables(Protocol):
    """The tables of a session, and its queries.

    Attributes:
        catalog: what names represent.
        running: its queries.
    """

    catalog: Catalog
    running: list[Running]


class Feed(Protocol):
    """What gives the rows of a table."""

    table: Table

    def poll(self, *, most_rows: int, wait_seconds: float) -> pa.Table | ZSet | None:
        """Return rows that have come; None where there are none now."""
        ...

    def close(self) -> None:
        """Release what it reads."""
        ...


def feed_of(table: Table, settings: Mapping[str, str] | None = None) -> Feed | None:
    """Return what gives the rows of a table; None where they come by INSERT alone.

    Raises:
        SqlError: an option that cannot be read so.
    """
    connector = table.options.get("connector")
    if table.word == "SINK":
        return None
    if connector == "filesystem":
        return FileFeed(table, settings)
    if connector in {"kafka", "upsert-kafka"}:
        return KafkaFeed(table, settings)
    if connector == "datagen":
        return GeneratedFeed(table)
    return None


def feeds_of(session: FedTables) -> list[Feed]:
    """Return the feeds of all tables of a session that have one and are not written by a query of it."""
    written = {name for running in session.running for name in [getattr(running.output, "table_name", None)] if name}
    feeds = [feed_of(table, session.catalog.settings) for table in session.catalog.tables.values() if table.name not in written]
    return [feed for feed in feeds if feed is not None]


def puts_aside(settings: Mapping[str, str]) -> bool:
    """Return whether what cannot be read is put aside."""
    return stage_options(settings).on_bad_input == "quarantine"


def _warned(table: Table, read: PartlyRead) -> Any:
    """Return the rows that could be read, and warn of the rest."""
    if read.unread.num_rows:
        _warn(table, read.unread)
    return read.rows


def _warn(table: Table, letters: pa.Table) -> None:
    first = letters.slice(0, 1).to_pylist()[0]
    at = f" ({first['topic']}, partition {first['partition']}, offset {first['offset']})"
    place = "" if first["topic"] is None else at
    warnings.warn(
        SqlWarning(
            f'table "{table.name}": {counted(letters.num_rows, "record")} quarantined, the first{place}: {first["reason"]}. A '
            "session with a directory keeps them, for zset-join dead-letters."
        ),
        stacklevel=5,
    )


class FileFeed:
    """Give the rows of files, a file a poll; those that have come since the last one, too."""

    def __init__(self, table: Table, settings: Mapping[str, str] | None = None) -> None:
        self.table = table
        self._decoder = RecordDecoder(table, settings or {}) if holds_records(table.options) else None
        self._is_lenient = puts_aside(settings or {})
        self._seen: set[Path] = set()
        self._left: deque[Path] = deque()

    def poll(self, *, most_rows: int, wait_seconds: float) -> pa.Table | ZSet | None:  # noqa: ARG002 - as the protocol has it
        """Return the rows of the next file, or the changes it means."""
        if not self._left:
            self._left.extend(file for file in list_files(self.table) if file not in self._seen)
        if not self._left:
            return None
        file = self._left.popleft()
        self._seen.add(file)
        if self._decoder is not None:
            return self._decoder.changes(read_records(file))
        return _warned(self.table, part_file(self.table, file)) if self._is_lenient else read_file(self.table, file)

    def close(self) -> None:
        """Begin again at the next poll."""
        self._seen.clear()
        self._left.clear()
        if self._decoder is not None:
            self._decoder.close()


class RecordDecoder:
    """Turn records into changes of their table, by a pipeline that keeps the rows updates replace.

    Args:
        table: of the records.
        settings: of the session; with `on_bad_input = 'quarantine'` a record that cannot be read warns, and is left out.
    """

    def __init__(self, table: Table, settings: Mapping[str, str]) -> None:
        self._table = table
        self._settings = settings
        self._pipeline: Pipeline | None = None
        self._versions: Reading | None = None

    def changes(self, records: pa.Table) -> ZSet:
        """Return what records mean; of a versioned table every change, of others what has changed since the last call.

        Raises:
            BadInputError: a record that cannot be read.
        """
        if self._table.is_versioned:
            return self._read_versions(records)
        if self._pipeline is None:
            from zset_join.runners.local.pipeline import Pipeline

            self._pipeline = Pipeline(self._view(), keep_view=False, options=stage_options(self._settings))
        delta = self._pipeline.step({self._table.name: records})
        if self._pipeline.dead_letters.num_rows:
            _warn(self._table, self._pipeline.dead_letters)
        return delta

    def _view(self) -> View:
        from zset_join.query.records import records as record_view

        table = self._table
        given = pa.schema([(one.name, one.type) for one in table.columns if one.is_given and one.metadata is None])
        return record_view(table.name, form_of(table.options), given, keys=table.primary_key, options=record_options(table))

    def _read_versions(self, records: pa.Table) -> ZSet:
        if self._versions is None:
            self._versions = readings_of([one.of_versions() for one in self._view().bindings])[self._table.name]
        if puts_aside(self._settings):
            delta, unread = self._versions.taken(records)
            if unread is not None:
                _warn(self._table, unread.records)
        else:
            delta = self._versions.delta(records)
        names = [column.name for column in self._table.columns if column.is_given]
        return ZSet(delta.rows.select(names), delta.weights)

    def close(self) -> None:
        """Forget the rows."""
        if self._pipeline is not None:
            self._pipeline.close()
        self._pipeline = self._versions = None


class KafkaFeed:
    """Give the records of a topic, decoded.

    Args:
        table: declared with the connector kafka or upsert-kafka.

    Raises:
        SqlError: a startup mode that is not supported, or a table that the format cannot fill.
    """

    def __init__(self, table: Table, settings: Mapping[str, str] | None = None) -> None:
        self.table = table
        start_of(table, ("earliest",))
        self.form = record_form(table)
        self._given = pa.schema([one.field for one in table.columns if one.is_given and one.metadata is None])
        self._source: KafkaSource | None = None
        self._decoder = RecordDecoder(table, settings or {})
        self._is_lenient = puts_aside(settings or {})

    def poll(self, *, most_rows: int, wait_seconds: float) -> pa.Table | ZSet | None:
        """Return the rows of the next records, or the changes they mean."""
        records, _ = self.poll_records(most_rows=most_rows, wait_seconds=wait_seconds)
        if not records.num_rows:
            return None
        if self.form != "json":
            return self._decoder.changes(texts_of(records))
        read = self.read(records)
        return _warned(self.table, read) if isinstance(read, PartlyRead) else read

    def open(self, position: Any) -> None:
        """Go to a position of the topic; None is its beginning."""
        self.close()
        self._source = self._opened(position)

    def poll_records(self, *, most_rows: int, wait_seconds: float) -> tuple[pa.Table, Any]:
        """Return the next records as they are, and the position behind them."""
        if self._source is None:
            self._source = self._opened(None)
        return self._source.poll(most_rows=most_rows, wait_seconds=wait_seconds)

    def close(self) -> None:
        """Release the broker."""
        if self._source is not None:
            self._source.close()
        self._decoder.close()
        self._source = None

    def _opened(self, position: Any) -> KafkaSource:
        from zset_join.sources.kafka import KafkaSource

        source = KafkaSource(kafka_config(self.table.options), self.table.options["topic"])
        source.open(position)
        return source

    def read(self, records: pa.Table) -> pa.Table | PartlyRead:
        """Return rows of plain JSON, with the metadata of their records; and beside them what cannot be read, if it may be.

        Raises:
            BadInputError: a record that is no row, where it is not to be put aside.
        """
        from zset_join.sources.json_rows import part_json_rows

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
        for column in self.table.columns:
            if column.metadata is not None:
                columns[column.name] = records.column(metadata_of(self.table.options)[column.metadata]).cast(column.type)
        return pa.table(columns)

    def _refuse(self, first: UnreadText, records: pa.Table) -> None:
        raise BadInputError(
            f'table "{self.table.name}": the record at offset {records.column("offset")[first.number]} of topic '
            f"{records.column('topic')[first.number]} is not a row of it, {first.shown} Correct the producer of the "
            f"topic, or quarantine unreadable records: SET on_bad_input = 'quarantine'.",
            code=first.code,
            relation=self.table.name,
            column=first.column,
        )


class GeneratedFeed:
    """Give rows of numbers and letters: so many, the same for the same seed.

    `fields.c.kind` is random or sequence (with `start`), `min`, `max` and `length` bound what is random.

    Args:
        table: declared with the connector datagen.
    """

    def __init__(self, table: Table) -> None:
        self.table = table
        self._chance = random.Random(int(table.options.get("seed", "0")))  # noqa: S311 - rows to try things out
        self._left = int(table.options["number-of-rows"])
        self._made = 0

    def poll(self, *, most_rows: int, wait_seconds: float) -> pa.Table | None:  # noqa: ARG002 - as the protocol has it
        """Return the next rows."""
        count = min(self._left, most_rows, int(self.table.options.get("rows-per-second", "10000")))
        if count <= 0:
            return None
        given = [one for one in self.table.columns if one.is_given]
        rows = {one.name: self._column(one.name, one.type, count) for one in given}
        self._left -= count
        self._made += count
        return pa.table(rows)

    def close(self) -> None:
        """Do nothing."""

    def _column(self, name: str, kind: pa.DataType, count: int) -> pa.Array:
        options = {
            option.removeprefix(f"fields.{name}."): value
            for option, value in self.table.options.items()
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


def record_options(table: Table) -> RecordOptions:
    """Return how records of changes are read: which columns hold their metadata."""
    known = metadata_of(table.options)
    metadata = {known[one.metadata]: one.name for one in table.columns if one.metadata is not None}
    return RecordOptions(metadata=metadata, **encodings_of(table.options))


def texts_of(records: pa.Table) -> pa.Table:
    """Return records as the decoder of a query takes them."""
    return pa.table(
        {
            # As bytes: a record that is no UTF-8 is bad input of its own.
            name: records.column(name)
            for name in ("key", "value", "topic", "partition", "offset")
        }
    )


def record_form(table: Table) -> str:
    """Return the format of a topic's records."""
    return form_of(table.options)


def start_of(table: Table, offered: tuple[str, ...]) -> str:
    """Return where a topic is read from: `earliest`, or `latest`.

    Args:
        table: of the topic.
        offered: what can be read.

    Raises:
        SqlError: it is to be read from elsewhere.
    """
    given = table.options.get("scan.startup.mode", "earliest")
    mode = given.removesuffix("-offset")
    if mode not in offered:
        raise SqlError(
            f"\"{table.name}\": scan.startup.mode='{given}' is not supported; "
            f"{' and '.join(f'{one}-offset' for one in offered)} {'is' if len(offered) == 1 else 'are'}.",
            code="NOT_OFFERED",
            name=table.name,
        )
    return mode
