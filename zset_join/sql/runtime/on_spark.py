"""A session on Spark: one pipeline with one checkpoint on the driver, whose files, topics and DataFrames Spark reads.

It is the session in a directory, see `runtime`, with other sources: a table that Spark reads is one streaming query of Spark,
which collects and decodes its rows, however many views read the table. Its batches are epochs of all views.

    /data/session/spark/orders/      what Spark has read of a table
    /data/session/pipeline/          everything else: rows, views, and which batch of each table is in them

Over Spark Connect the pipeline is in the client, and `spark/` is on the server, or where `spark_directory` is.

The law: a batch, as an INSERT, is one epoch of all queries and outputs or of none; its number is in the commit record.

A name that the catalog does not have is looked up among Spark's own tables and temporary views. `Query.view` is a view of
`zset_join.spark`, for its fluent API and its own `writeStream`, on executors too.

Memory: the rows of tables and views, on the driver. Known limits: a temporary directory ends with the session.

`SparkTables`: tables of a session as streams of Spark: declared files and topics, DataFrames, and, for the fluent API, inserted
rows.

The law: the rows of a stream are those of the table, with all its columns: computed ones are computed by Spark.
"""

from __future__ import annotations

import shutil
import tempfile
import uuid
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from typing_extensions import override

from zset_join.changelog import format_named
from zset_join.connectors.connector import kafka_config
from zset_join.core.errors import SqlError
from zset_join.core.relation import Relation
from zset_join.core.row_conversion import repeated_positions
from zset_join.expressions.sql_text import to_sql
from zset_join.plan.query_plan import PlanSource
from zset_join.plan.tree import Node, Read, in_zone, rebuilt
from zset_join.query import View as ProcessView
from zset_join.query.reading import Reading
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
    schema_of,
    stored_rows,
    table_stream,
    with_columns,
)
from zset_join.runners.spark.api.views import View
from zset_join.runners.spark.driver.choosing import refuse_larger_state
from zset_join.runners.spark.driver.polled_rows import PolledRows
from zset_join.runners.spark.driver.staged_rows import StagedRows, remove_on_server
from zset_join.runners.spark.driver.staging import remove_place
from zset_join.runners.spark.frames.facts import is_connect
from zset_join.runners.spark.planning.lowering import lowered
from zset_join.runners.spark.planning.row_steps import ZONE
from zset_join.runners.spark.planning.source_stream import SourceStream
from zset_join.runners.spark.rows.watermark import within_jump
from zset_join.runners.spark.session import local_session
from zset_join.sql.runtime import on_executors
from zset_join.sql.runtime.runtime import Runtime
from zset_join.sql.runtime.session_directory import SessionDirectory
from zset_join.sql.tables.catalog import NAME_WORDS, Catalog, ColumnDefinition, NamedView, Table, refuse_our_columns
from zset_join.sql.tables.connectors import form_of, holds_records, record_options, start_of
from zset_join.sql.tables.files import check_files, csv_options, file_name
from zset_join.sql.tables.results import Query, Running
from zset_join.sql.tables.settings import driver_options, max_waiting_batches, stage_options
from zset_join.sql.tables.table_rows import registered
from zset_join.sql.tables.table_sources import TableSource, recorded_rows
from zset_join.sql_expressions.consumed import Position
from zset_join.sql_expressions.dialects import Statement
from zset_join.sql_expressions.scalars import ScalarBinder
from zset_join.storage import local
from zset_join.zset import ZSet

__all__ = ["SparkRuntime", "SparkTables"]

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
        self._grows_in: Path | None = None

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

    def grow_in(self, place: Path) -> None:
        """Let the rows of inserted tables be streams from now on that a later run adds to, as files in a directory."""
        self._grows_in = place
        self._written.clear()

    def _of_inserted(self, table: Table, relation: Relation) -> SourceStream:
        """Return the rows that a table holds now as a stream, which ends with them."""
        # On the disk are the newest rows of a table, and those that a DataFrame of this process reads.
        epoch, rows = self._held(table)
        known = self._streams.get(table.name)
        if known is None or known[0] is not table or self._written.get(table.name) != epoch:
            refuse_our_columns(table)
            now, place = _plain(table, rows), self._directory / f"{file_name(table.name)}-{epoch}"
            if self._grows_in is None:
                _write(table, now, place / "rows.parquet")
                frame = stored_rows(self._spark, str(place), table.schema)
                self._shown[place] = weakref.ref(frame)
            else:
                frame = stored_rows(self._spark, str(self._grown(table, now)), table.schema)
            known = self._streams[table.name] = (table, table_stream(frame, relation, delta_column=table.delta_column))
            self._remove_unread(table, place)
            self._written[table.name] = epoch
        return known[1]

    def _grown(self, table: Table, now: ZSet) -> Path:
        """Return the directory of a table after a file with what has changed since its files were written."""
        assert self._grows_in is not None  # noqa: S101 - by `grow_in`
        place = self._grows_in / file_name(table.name)
        files = [name for name in local.list_directory(place) if name.endswith(".parquet")]  # what was cut off is not
        before = [pq.read_table(place / name) for name in files]
        had = [ZSet.of(one.select(now.schema.names), one[STORED_WEIGHT].to_numpy()) for one in before]
        delta = ZSet.concat([now, *(-one for one in had)], schema=now.schema).consolidated()
        if table.mode == "upsert":
            delta = _as_upserts(delta, table.primary_key)
        if len(delta) or not files:
            _write(table, delta, place / f"{len(files):06d}.parquet")
        return place

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


def _plain(table: Table, rows: pa.Table | ZSet | None) -> ZSet:
    """Return the rows of a table without the column of weights that it may show."""
    given = table.schema.empty_table() if rows is None else rows
    weights = np.ones(given.num_rows, np.int64) if isinstance(given, pa.Table) else given.weights
    plain = given if isinstance(given, pa.Table) else pa.Table.from_batches([given.rows])
    schema = pa.schema([field for field in table.schema if field.name != table.delta_column])
    return ZSet.of(plain.select(schema.names).cast(schema), weights)


def _as_upserts(delta: ZSet, keys: Sequence[str]) -> ZSet:
    """Return a difference without the old rows of keys that have a new one."""
    rows = pa.Table.from_batches([delta.rows]).append_column(STORED_WEIGHT, pa.array(delta.weights))
    new = rows.filter(pc.greater(rows[STORED_WEIGHT], 0))
    gone = rows.filter(pc.less(rows[STORED_WEIGHT], 0)).join(new.select(keys), keys=[*keys], join_type="left anti")
    whole = pa.concat_tables([gone, new.select(gone.column_names)])
    return ZSet.of(whole.select(delta.schema.names), whole[STORED_WEIGHT].to_numpy())


def _write(table: Table, rows: ZSet, file: Path) -> None:
    """Write rows of a table, with their weights; equal ones one by one where rows are only added."""
    if table.mode == "append":
        rows = ZSet.of(rows.rows.take(pa.array(repeated_positions(rows.weights))))
    plain = pa.Table.from_batches([rows.rows])
    if table.delta_column is not None:
        plain = plain.append_column(table.delta_column, pa.array(rows.weights))
    stored = plain.select(table.schema.names).cast(table.schema).append_column(STORED_WEIGHT, pa.array(rows.weights))
    encoded = pa.BufferOutputStream()
    pq.write_table(stored, encoded)
    local.make_directories(file.parent)
    local.write_atomic(file, encoded.getvalue().to_pybytes())


_WAIT_SECONDS = 2.0


class SparkRuntime(Runtime):
    """Run queries on the driver of Spark.

    Rows that Spark reads are taken by `read` and, but after `run_as`, when a query starts: the present content.
    """

    def __init__(
        self,
        spark: Any,
        *,
        dialect: str,
        clock: Callable[[], int] | None,
        directory: str | Path | None,
        keep_inputs: bool = False,
        spark_directory: str | Path | None = None,
        allow_env: Collection[str] = (),
    ) -> None:
        self.spark = spark if spark is not None else local_session()
        self._is_temporary = directory is None
        place = tempfile.mkdtemp(prefix="zset_join-sql-") if directory is None else directory
        catalog = _CatalogOverSpark(self, dialect)
        held = self._place = SessionDirectory(place, layout=5)
        super().__init__(catalog, dialect=dialect, clock=clock, directory=held, keep_inputs=keep_inputs, allow_env=allow_env)
        self.tables = SparkTables(self.spark, catalog, dialect=dialect, directory=held.path / "shown", held=self._held_now)
        self._spark_directory = str(spark_directory or held.path / "spark").rstrip("/")
        self._read_places: set[str] = set()
        self._mode: Literal["interactive", "once", "continuous"] = "interactive"
        self._trigger: str | None = None
        self._nodes: dict[tuple[int, int | None], tuple[PlanSource, Node, Reading]] = {}

    @override
    def run_as(self, *, once: bool, trigger: str | None) -> None:
        self._mode = "once" if once else "continuous"
        self._trigger = trigger

    # ---------------------------------------------------------------- tables

    @override
    def adopt(self, name: str, rows: Any, *, keys: tuple[str, ...], watermark: tuple[str, int] | None) -> bool:
        if isinstance(rows, View):
            self.catalog.add(self.tables.register(name, rows.stream))
            return True
        if not getattr(rows, "isStreaming", False):
            return False
        table, _ = registered(name, schema_of(rows, name).empty_table(), keys=keys, watermark=watermark)
        self.catalog.add(table)
        self.tables.dataframes[name] = rows
        return True

    @override
    def given(self, name: str, rows: Any) -> Any:
        if getattr(rows, "isStreaming", None) is not False:
            return rows
        return rows.toArrow().cast(schema_of(rows, name))

    def find_in_spark(self, name: str) -> bool:
        """Make a table of one of Spark's tables or views, within whichever statement names it; return whether there is one."""
        if not name.isidentifier() or not self.spark.catalog.tableExists(name):
            return False
        rows = self.spark.table(name)
        with self._log.beside(name), self.once(f"found {name}"):
            if not self.adopt(name, rows, keys=(), watermark=None):
                table, held = registered(name, self.given(name, rows), keys=(), watermark=None)
                self.declare(table)
                if held.num_rows and not self._is_restoring:
                    self.insert(table, held)
        return True

    @override
    def is_inserted(self, table: Table) -> bool:
        return table.name not in self.tables.dataframes and super().is_inserted(table)

    @override
    def forget(self, name: str) -> None:
        super().forget(name)
        self.tables.forget(name)
        self._remove_place(name)

    @override
    def _is_given_again(self, table: Table) -> bool:
        return super()._is_given_again(table) or table.name in self.tables.dataframes

    def _held_now(self, table: Table) -> tuple[int, pa.Table | ZSet | None]:
        """Return the rows of a table, and the epoch behind them."""
        is_kept = self._pipeline is not None and self.is_inserted(table)
        return (self.pipeline.epoch, self._rows.held(table)) if is_kept else (0, None)

    def _place_of(self, name: str) -> str:
        return f"{self._spark_directory}/{file_name(name)}"

    def _remove_place(self, name: str) -> None:
        """Remove the rows that Spark has read of a table."""
        if not is_connect(self.spark):
            remove_place(self._place_of(name))
        elif name in self._read_places:
            remove_on_server(self.spark, self._place_of(name))
            self._read_places.discard(name)

    @override
    def _source(self, table: Table, *, is_kept: bool = True) -> TableSource:
        if not self.tables.is_read(table):
            return super()._source(table, is_kept=is_kept)
        name = table.name if is_kept else f"whole-{uuid.uuid4().hex}"
        self._read_places.add(name)
        if is_kept and not self._is_restoring and not self.plan.is_kept(name):  # it is read from its beginning
            self._remove_place(name)
            self._read_places.add(name)
        is_endless = self._mode == "continuous"
        made: Callable[..., TableSource] = partial(PolledRows, is_endless=is_endless, check=partial(check_files, table, set()))
        if is_connect(self.spark):
            most = (lambda: max_waiting_batches(self.catalog.settings)) if is_endless else None
            made = partial(StagedRows, most_waiting=most)
        return made(
            self.tables.stream(table.rows.bindings[0].source),
            self._place_of(name),
            on_bad_input=stage_options(self.plan.settings).on_bad_input,
            is_kept=is_kept,
            trigger=self._trigger,
            max_bytes=lambda: driver_options(self.catalog.settings).max_delta_bytes,
        )

    # ---------------------------------------------------------------- queries

    @override
    def start(self, query: Query, *, name: str | None, output: Callable[[ZSet], None] | None) -> Running:
        if query.settings.get("execution") == "executors":
            return self._start_on_executors(query, name, output)
        running = super().start(query, name=name, output=output)
        if self._mode == "interactive" and not self._is_restoring:
            try:
                self.read(wait_seconds=_WAIT_SECONDS)
            except BaseException:
                self.stop(running)
                raise
        return running

    def _start_on_executors(self, query: Query, name: str | None, output: Callable[[ZSet], None] | None) -> Running:
        if self._mode == "interactive" and not self._is_restoring:
            raise on_executors.refused()
        name = name or self._free_name(output, query)
        running = Running(name, query, self._view_of(name, query), output)
        on_executors.check(running, self.apart)
        self.apart.append(running)
        return running

    @override
    def start_on_executors(self) -> Any:
        self.tables.grow_in(self._place.path / "executors-rows")
        how = {"availableNow": True} if self._mode == "once" else {"processingTime": self._trigger or "0 seconds"}
        return on_executors.start(self.apart, self.view_of, f"{self._place.path}/executors", how)

    @override
    def _take(self, rows: Mapping[str, Any], now_us: int, **more: Any) -> None:
        if rows:  # time that passes may end state
            refuse_larger_state(self._place.pipeline / "local", driver_options(self.catalog.settings))
        super()._take(rows, now_us, **more)

    @override
    def settle(self) -> None:
        if self._mode == "interactive":
            self.read(wait_seconds=_WAIT_SECONDS)

    @override
    def read(self, *, wait_seconds: float, rounds: int | None = None) -> int:
        for source in self.sources.current.values():
            if isinstance(source, PolledRows | StagedRows):
                source.look()
        return super().read(wait_seconds=wait_seconds, rounds=rounds)

    @override
    def view_of(self, query: Query) -> Any:
        return View.of_tree(query.bound.view.node, self.tables.stream)

    @override
    def explain(self, query: Query) -> str:
        if query.settings.get("execution") == "executors":
            return str(self.view_of(query).placed.explanation())
        plan = self._fed(self.plan.as_run(query)).plan(keep_state=driver_options(self.plan.settings).keep_state)
        read = [self.catalog.tables[one] for one in sorted(query.bound.reads) if one in self.catalog.tables]
        streams = [self.tables.stream(one.rows.bindings[0].source) for one in read if self.tables.is_read(one)]
        lines = [f"{one.explained()} read by Spark: {', '.join(one.operation) or 'rows'}" for one in streams]
        return "\n".join(["Runs on the driver, in the pipeline of the session", *lines, plan.explain(buckets=1)])

    @override
    def _fed(self, view: ProcessView) -> ProcessView:
        """Return a query over its tables as Spark gives them: with what orders their changes, which no column shows."""
        made: dict[int, tuple[PlanSource, Node, Reading]] = {}

        def change(node: Node) -> Node:
            if not isinstance(node, Read) or not self._is_read(node.source.name):
                return node
            made[id(node.source)] = self._fed_node(node.source)
            return made[id(node.source)][1]

        node = in_zone(rebuilt(view.node, change), self.catalog.zone)
        if node is view.node:
            return view
        bindings = [
            replace(made[id(one.source)][2], is_of_versions=one.is_of_versions) if id(one.source) in made else one
            for one in view.bindings
        ]
        return replace(view, node=node, bindings=tuple(bindings))

    def _is_read(self, name: str) -> bool:
        table = self.catalog.tables.get(name)
        return table is not None and self.tables.is_read(table)

    def _fed_node(self, source: PlanSource) -> tuple[PlanSource, Node, Reading]:
        """Return the rows of a table as Spark gives them, the same for all queries."""
        key = (id(source), source.max_watermark_jump)
        if key not in self._nodes:
            tree = lowered(Read(source), self.tables.stream, {})
            node = tree.root
            assert isinstance(node, Node)  # noqa: S101 - one view was given
            read = node
            while not isinstance(read, Read):
                (read,) = read.children
            given = read.source.relation.schema
            reading = Reading(source=read.source, given=given, changelog_format=format_named("weight"))
            self._nodes[key] = (source, node, reading)
        return self._nodes[key]

    @override
    def close(self) -> None:
        super().close()
        if self._is_temporary:
            shutil.rmtree(self._place.path, ignore_errors=True)


class _CatalogOverSpark(Catalog):
    """Look names up in Spark where the session has none of them."""

    def __init__(self, runtime: SparkRuntime, dialect: str) -> None:
        super().__init__(partial(recorded_rows, dialect=dialect))
        self._runtime = runtime

    @property
    @override
    def zone(self) -> str:
        return str(self._runtime.spark.conf.get(ZONE))

    @override
    def find(self, name: str, *, at: Position | None = None) -> Table | NamedView:
        try:
            return super().find(name, at=at)
        except SqlError:
            if not self._runtime.find_in_spark(name):
                raise
            return super().find(name, at=at)
