"""Tables of a session as streams of Spark: declared files and topics, DataFrames, and, for the fluent API, inserted rows.

The law: the rows of a stream are those of the table, with all its columns: computed ones are computed by Spark.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from zset_join.connectors.tables import kafka_config
from zset_join.core.errors import SqlError
from zset_join.core.relation import Relation
from zset_join.expressions.sql_text import to_sql
from zset_join.plan.query_plan import PlanSource
from zset_join.runners.spark.api.streams import changed_stream
from zset_join.runners.spark.api.table_streams import (
    STORED_WEIGHT,
    ColumnText,
    checked_stream,
    file_records,
    file_rows,
    json_rows,
    kafka_records,
    refuse_collated,
    stored_rows,
    table_stream,
    with_columns,
)
from zset_join.runners.spark.frames.facts import is_connect
from zset_join.runners.spark.planning.source_stream import SourceStream
from zset_join.runners.spark.rows.watermark import within_jump
from zset_join.sql.tables.catalog import Catalog, ColumnDefinition, Table, refuse_our_columns
from zset_join.sql.tables.connectors import form_of, holds_records
from zset_join.sql.tables.file_names import file_name
from zset_join.sql.tables.file_order import NAME_WORDS
from zset_join.sql.tables.files import csv_options
from zset_join.sql.tables.records import record_options, start_of
from zset_join.sql_expressions.dialects import Statement
from zset_join.sql_expressions.scalars import ScalarBinder
from zset_join.storage import local
from zset_join.zset import ZSet

__all__ = ["SparkTables"]

_READ = ("filesystem", "kafka", "upsert-kafka")
"""Connectors whose tables Spark reads."""
Held = Callable[[Table], "tuple[int, pa.Table | ZSet | None]"]


class SparkTables:
    def __init__(self, spark: Any, catalog: Catalog, *, dialect: str, directory: Path, held: Held) -> None:
        self.dataframes: dict[str, Any] = {}
        self._spark = spark
        self._catalog = catalog
        self._dialect = dialect
        self._directory = directory
        self._held = held
        self._streams: dict[str, tuple[Table, SourceStream]] = {}
        self._written: dict[str, int] = {}
        self._shown: dict[Path, weakref.ref[Any]] = {}

    def is_read(self, table: Table) -> bool:
        """Return whether Spark reads the rows of a table; INSERT, or a generator, fills others."""
        return table.name in self.dataframes or (table.options.get("connector") in _READ and table.word != "SINK")

    def register(self, name: str, stream: SourceStream) -> Table:
        """Return the table of a stream of the fluent API, which has its own reading of changes."""
        shown = pa.schema([stream.schema.field(column) for column in stream.columns])
        refuse_collated(shown, name)
        columns = tuple(ColumnDefinition(field.name, field.type) for field in shown)
        watermark = None
        if stream.event_time is not None and stream.watermark_delay is not None:
            watermark = (stream.event_time, stream.watermark_delay)
        table = Table(name=name, word="TABLE", columns=columns, mode=stream.mode, primary_key=stream.keys, watermark=watermark)
        self.dataframes[name] = stream.dataframe
        self._streams[name] = (table, stream if stream.name == name else replace(stream, name=name))
        return table

    def stream(self, source: PlanSource) -> SourceStream:
        name = source.name
        table = self._catalog.tables.get(name)
        if table is None:
            raise SqlError(f'"{name}" is no longer a table of this session; bind the query again.', code="UNKNOWN_TABLE")
        if not self.is_read(table):
            return within_jump(self._of_inserted(table, source.relation), source.max_watermark_jump)
        known = self._streams.get(name)
        if known is None or known[0] is not table:
            known = self._streams[name] = (table, self._made(table, source.relation))
        return within_jump(known[1], source.max_watermark_jump)

    def forget(self, name: str) -> None:
        self.dataframes.pop(name, None)
        self._streams.pop(name, None)
        self._written.pop(name, None)

    def _of_inserted(self, table: Table, relation: Relation) -> SourceStream:
        """Return the rows that a table holds now as a stream, which ends with them."""
        # On the disk are the newest rows of a table, and those that a DataFrame of this process reads.
        epoch, rows = self._held(table)
        known = self._streams.get(table.name)
        if known is None or known[0] is not table or self._written.get(table.name) != epoch:
            place = self._directory / f"{file_name(table.name)}-{epoch}"
            refuse_our_columns(table)
            _write(table, rows, place)
            frame = stored_rows(self._spark, str(place), table.schema)
            self._shown[place] = weakref.ref(frame)
            known = self._streams[table.name] = (table, table_stream(frame, relation, delta_column=table.delta_column))
            self._remove_unread(table, place)
            self._written[table.name] = epoch
        return known[1]

    def _remove_unread(self, table: Table, newest: Path) -> None:
        """Remove earlier rows of a table that no DataFrame of this process reads."""
        begin = f"{file_name(table.name)}-"
        for name in local.list_directory(self._directory):
            place = self._directory / name
            if not name.startswith(begin) or not name.removeprefix(begin).isdigit() or place == newest:
                continue
            if place not in self._shown or self._shown[place]() is None:
                self._shown.pop(place, None)
                local.remove_tree(place)

    def _made(self, table: Table, relation: Relation) -> SourceStream:
        refuse_our_columns(table)
        is_free = table.delta_column is not None  # what deletes a row needs its key alone
        columns = [column.field for column in table.columns if column.is_given]
        given = pa.schema([field.with_nullable(True) if is_free else field for field in columns])
        if table.name in self.dataframes:
            return table_stream(self.dataframes[table.name], relation)
        if table.options["connector"] == "filesystem":
            path, read_as = table.options.get("path", ""), table.options.get("format", "json")
            is_here = "://" not in path and not is_connect(self._spark)
            if is_here and not Path(path).exists():
                raise SqlError(f"\"{table.name}\": there is no file at {path}. Give 'path'.", code="NO_FILE", name=table.name)
            if holds_records(table.options):
                return self._of_records(table, relation, file_records(self._spark, path), given, orders_by_offset=False)
            more = csv_options(table) if read_as == "csv" else None
            words = NAME_WORDS if table.is_ordered_by_file else 0
            optional = {name for name in (*table.added, table.delta_column) if name is not None}
            rows = file_rows(self._spark, path, read_as, given, options=more, name_words=words, optional=optional)
        else:
            form = form_of(table.options)
            topic, start = table.options["topic"], start_of(table, ("earliest", "latest"))
            records = kafka_records(self._spark, kafka_config(table.options), topic, start=start, name=table.name)
            if form != "json":
                return self._of_records(table, relation, records, given)
            metadata = {column.name: column.metadata for column in table.columns if column.metadata is not None}
            rows = json_rows(records, pa.schema([field for field in given if field.name not in metadata]), metadata)
        return table_stream(with_columns(rows, self._texts(table)), relation, delta_column=table.delta_column)

    def _of_records(
        self, table: Table, relation: Relation, records: Any, given: pa.Schema, *, orders_by_offset: bool = True
    ) -> SourceStream:
        options, form = record_options(table), form_of(table.options)
        stream = changed_stream(
            records,
            name=table.name,
            keys=list(table.primary_key),
            format=form,
            schema=pa.schema([field for field in given if field.name not in options.metadata.values()]),
            options=options,
            orders_by_offset=orders_by_offset,
        )
        return checked_stream(stream, relation)

    def _texts(self, table: Table) -> list[ColumnText]:
        """Return how Spark makes the columns of a table."""
        texts: list[ColumnText] = []
        before: list[tuple[str, pa.DataType]] = []
        for column in table.columns:
            text = None
            if column.computed is not None and not column.is_processing_time:
                schema = pa.schema(before)
                tree = ScalarBinder.over(schema, Statement("", (), self._dialect)).bind(column.computed)
                text = to_sql(tree, {"row": schema}, dialect="spark")
            texts.append(ColumnText(column.name, column.type, text, column.is_processing_time))
            before.append((column.name, column.type))
        return texts


def _write(table: Table, rows: pa.Table | ZSet | None, directory: Path) -> None:
    """Write the rows of a table as one file, with their weights."""
    given = rows
    if given is None:
        given = table.schema.empty_table()
    weights = np.ones(given.num_rows, np.int64) if isinstance(given, pa.Table) else given.weights
    plain = given if isinstance(given, pa.Table) else pa.Table.from_batches([given.rows])
    if table.delta_column is not None and table.delta_column not in plain.column_names:
        plain = plain.append_column(table.delta_column, pa.array(weights))
    stored = plain.select(table.schema.names).cast(table.schema).append_column(STORED_WEIGHT, pa.array(weights))
    encoded = pa.BufferOutputStream()
    pq.write_table(stored, encoded)
    local.make_directories(directory)
    local.write_atomic(directory / "rows.parquet", encoded.getvalue().to_pybytes())
