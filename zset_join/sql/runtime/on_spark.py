"""A session whose queries run inside Spark: the same statements, bound to the same plan, one streaming query each.

    session = zset_join.sql.connect(engine="spark", spark=spark, directory="/data/session")
    session.register("orders", orders_df, keys="order_id")          # a streaming DataFrame, a batch one, or rows
    session.sql("CREATE TABLE out (...) WITH ('connector' = 'duckdb', 'path' = 'out.duckdb', 'table-name' = 'revenue')")
    session.sql("INSERT INTO out SELECT customer, sum(total) FROM orders GROUP BY customer")

The law: a query answers with the changes that the session in process answers with, epoch by epoch where its tables are filled
by INSERT. An INSERT is one file of Parquet and one epoch; `settle()` waits until all queries have answered, and every INSERT
does. An INSERT that a rehearsed query cannot answer changes nothing (see `rehearsal`). A query that is not rehearsed and fails
is stopped, and named; the other queries take the INSERT and go on.

A name that the catalog does not have is looked up among Spark's own tables and temporary views. `Query.view` is a view of
`zset_join.spark`, for its fluent API and its own `writeStream`.

Known limits: deltas of `start()` come to the driver; large ones are for a sink. Inserted rows are never thrown away. A
temporary directory ends with the session; with a directory of one's own, statements are run again to go on.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from zset_join.connectors.tables import kafka_config
from zset_join.core.errors import SqlError, StateError, ZsetJoinError
from zset_join.core.relation import Relation
from zset_join.expressions.sql_text import to_sql
from zset_join.plan.query_plan import PlanSource
from zset_join.runners.spark.api.streams import changed_stream
from zset_join.runners.spark.api.table_streams import (
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
    write_stored,
)
from zset_join.runners.spark.api.views import View
from zset_join.runners.spark.planning.source_stream import SourceStream
from zset_join.runners.spark.rows.watermark import within_jump
from zset_join.runners.spark.session import local_session
from zset_join.sinks.sink import Sink
from zset_join.sql.dml.shared_epochs import SharedEpoch, accepted_rows, named_error
from zset_join.sql.dml.writing import table_written
from zset_join.sql.runtime.completing import completed_table
from zset_join.sql.runtime.in_directory import InDirectory, claim_directory
from zset_join.sql.runtime.rehearsal import Rehearsal, write_letters
from zset_join.sql.runtime.runtime import Runtime
from zset_join.sql.runtime.spark_pipeline import RunningOnSpark, SparkPipeline
from zset_join.sql.tables.arrow_rows import registered
from zset_join.sql.tables.catalog import ColumnDefinition, NamedView, Table
from zset_join.sql.tables.connectors import holds_records
from zset_join.sql.tables.feeds import GeneratedFeed, record_form, record_options, start_of
from zset_join.sql.tables.file_names import file_name
from zset_join.sql.tables.file_order import NAME_WORDS
from zset_join.sql.tables.files import csv_options
from zset_join.sql.tables.results import Query, QueryChange, Running, sorted_rows
from zset_join.sql.tables.settings import idle_timeout, stage_options
from zset_join.sql.tables.sink_tables import SinkWriter
from zset_join.sql.tables.stored_tables import StoredTables, refuse_our_columns
from zset_join.sql.tables.table_sources import DecodingCatalog, recorded_rows
from zset_join.sql_expressions.dialects import Statement
from zset_join.sql_expressions.places import Place, SqlWarning
from zset_join.sql_expressions.scalars import ScalarBinder
from zset_join.zset import ZSet

__all__ = ["SparkRuntime"]

_OPTIONS = {
    "cold_store": "cold_store",
    "default_hash_join": "default_hash_join",
    "default_hash_table": "default_hash_table",
    "execution": "execution",
    "join_buffer_policy": "join_buffer_policy",
    "join_max_buffered_bytes": "join_max_buffered_bytes",
    "max_hot_bytes": "max_hot_bytes",
    "max_hot_keys": "max_hot_keys",
    "on_bad_input": "onBadInput",
    "on_evict": "on_evict",
    "tombstone_retention": "tombstoneRetention",
}
"""Settings to options of a query inside Spark."""
_HOT_BYTES = 268_435_456
_MOST_ROWS = 100_000
_READ = ("filesystem", "kafka", "upsert-kafka")
"""Connectors that Spark reads; other tables are stored."""
_STOPPED = (
    "The query is stopped and takes no more epochs; its tables and the other queries have the rows. DROP it or stop it, mend "
    "the rows or the query, and start it again."
)
_REASON = re.compile(r"^[\w.]+(?:Exception|Error): (\S.*)$", re.MULTILINE)
"""The line of a traceback that has the reason."""


class SparkRuntime(InDirectory, Runtime):
    """Run queries inside Spark.

    Args:
        spark: a SparkSession; None: the active one, or a new one on this machine.
        dialect: whose SQL statements are written in.
        clock: returns the processing time in microseconds since 1970, for inserted rows.
        directory: where rows, checkpoints and local state are kept; None: a temporary one.

    Statements wait until queries have answered; after `run_as` with `once` queries run when `read` is called, and end when they
    have answered what there is; else they run, and nobody waits for them.
    """

    def __init__(self, spark: Any, *, dialect: str, clock: Callable[[], int] | None, directory: str | Path | None) -> None:
        super().__init__(_CatalogOverSpark(self, dialect), dialect=dialect, clock=clock)
        self.spark = spark if spark is not None else local_session()
        self._is_temporary = directory is None
        self._directory = Path(tempfile.mkdtemp(prefix="zset_join-sql-") if directory is None else directory).absolute()
        self._directory_lock = claim_directory(self._directory, 1)
        self._dataframes: dict[str, Any] = {}
        self._streams: dict[str, tuple[Table, SourceStream]] = {}
        self._tables = StoredTables(self._directory / "tables")
        self._changed: set[str] = set()
        self._lock = threading.RLock()
        self._owner = threading.get_ident()
        self._rehearsal: Rehearsal | None = None
        self._generated: set[str] = set()
        self._mode: Literal["interactive", "once", "continuous"] = "interactive"
        self._trigger: str | None = None
        self._numbered = 0

    def run_as(self, *, once: bool, trigger: str | None) -> None:
        """Let queries end when they have answered what there is, or run on and on."""
        self._mode = "once" if once else "continuous"
        self._trigger = trigger

    def adopt(self, name: str, rows: Any, *, keys: tuple[str, ...], watermark: tuple[str, int] | None) -> bool:
        """Make a table of a DataFrame, streaming or not, or of a view of `zset_join.spark`; return whether it is one."""
        if isinstance(rows, View):
            self._register_stream(name, rows.stream)
            return True
        if getattr(rows, "isStreaming", None) is None:
            return False
        table, _ = registered(name, schema_of(rows, name), keys=keys, watermark=watermark)
        self.catalog.add(table)
        if rows.isStreaming:
            self._dataframes[name] = rows
        else:
            self._store_batch(table, rows)
        return True

    def check_insert(self, table: Table) -> None:
        """Refuse rows for a table that is filled from outside."""
        if not self._is_stored(table):
            raise SqlError(
                f'"{table.name}" is filled from outside (its connector, or a streaming DataFrame); insert into a table without '
                "one.",
                code="NOT_A_TABLE",
                name=table.name,
            )

    def view_of(self, query: Query) -> Any:
        """Return a query as a view of `zset_join.spark`."""
        return View.of_tree(query.bound.view.node, self._stream)

    def start(self, query: Query, *, name: str | None, output: Callable[[ZSet], None] | None) -> Running:
        """Run a query as a streaming query of Spark.

        A query that writes outside or into a table goes on where its checkpoint ends; any other begins again.
        """
        sink = self._sink(output)
        running = RunningOnSpark(name or self._free_name(output), query, pipeline=_no_pipeline(), output=output)
        running.writer = table_written(output)
        pipeline: Any = self._pipeline_of(running, sink)
        running.pipeline = pipeline
        if running.writer is not None and running.retracts and running.writer.table.primary_key:
            self.settle()
            self._rehearsed([*self.running, running], first=running.name).close()
        self._forget_rehearsal()
        self.running.append(running)
        self._changed |= running.reads
        if self._mode == "once":
            return running
        try:
            pipeline.start(trigger=self._trigger)
            self.settle()
        except BaseException:
            self.stop(running)
            raise
        return running

    def stop(self, running: Running) -> None:
        """End a query that runs."""
        self._forget_rehearsal()
        if running in self.running:
            self.running.remove(running)
            running.pipeline.close()
            if isinstance(running.output, SinkWriter):
                running.output.close()

    def pause(self, running: Running) -> None:
        """End the streaming query until `resume`; its checkpoint stays."""
        self._forget_rehearsal()
        self.pipeline_of(running).close()
        running.is_paused = True

    def resume(self, running: Running) -> None:
        """Let a query go on where its checkpoint ends, also one that an error stopped.

        Raises:
            ZsetJoinError: what stops it again.
        """
        assert isinstance(running, RunningOnSpark)  # noqa: S101 - this session starts no other
        running.is_paused, running.stopped_by = False, None
        self._changed |= running.reads
        if self._mode != "once":
            self.pipeline_of(running).start(trigger=self._trigger)
            self.settle()

    def read(self, *, wait_seconds: float, rounds: int | None = None) -> int:  # noqa: ARG002 - as in process
        """Generate rows, and wait until every query has answered what its sources have; return 0, for Spark counts its epochs.

        Where queries run on and on nobody waits.

        Raises:
            ZsetJoinError: what stopped a query.
        """
        generated = [one for one in self.catalog.tables.values() if one.options.get("connector") == "datagen"]
        for table in [one for one in generated if one.name not in self._generated]:
            self._generated.add(table.name)
            feed, number = GeneratedFeed(table), 0
            while (rows := feed.poll(most_rows=_MOST_ROWS, wait_seconds=0.0)) is not None:
                with self.once(f"generated-{number:09d}"):
                    self.insert(table, rows)
                number += 1
        if self._mode != "continuous":
            self._changed |= {name for running in self.running for name in running.reads}
            self._answer()
        return 0

    def check(self) -> None:
        """Do nothing while all queries run.

        Raises:
            ZsetJoinError: what stopped one.
        """
        for running in self.running:
            self.pipeline_of(running).check()

    def settle(self) -> None:
        """Wait until every query has answered what its tables hold, and what others wrote into them meanwhile.

        Raises:
            ZsetJoinError: what stopped a query.
        """
        if threading.get_ident() != self._owner:
            return  # a query writes into a table; whoever waits for it waits for the readers too
        if self._mode == "interactive":
            self._answer()

    def _answer(self) -> None:
        """Wait until every query has answered; one that fails is stopped, and the others go on.

        Raises:
            ZsetJoinError: what stopped the first query that was stopped.
        """
        failed: list[ZsetJoinError] = []
        while self._changed:
            with self._lock:
                changed, self._changed = self._changed, set()
            for running in list(self.running):
                assert isinstance(running, RunningOnSpark)  # noqa: S101 - this session starts no other
                if not running.reads & changed or running.is_paused:
                    continue
                if running.stopped_by is not None:
                    warnings.warn(
                        SqlWarning(f'query "{running.name}" is stopped and took nothing: {running.stopped_by}'), stacklevel=5
                    )
                    continue
                try:
                    pipeline = self.pipeline_of(running)
                    if self._mode == "once":
                        pipeline.run()
                    else:
                        pipeline.process()
                except Exception as error:  # noqa: BLE001 - raised below; the other queries answer first
                    stopped = _stopping_error(error, running)
                    stopped.__cause__ = error
                    running.stopped_by = stopped
                    failed.append(stopped)
                    self._forget_rehearsal()
        if failed:
            raise failed[0]

    def views(self) -> dict[str, pa.Table]:
        """Raise: inside Spark every query has epochs of its own.

        Raises:
            SqlError: `NOT_OFFERED`.
        """
        raise SqlError(
            "inside Spark every query has epochs of its own, so there is no moment of all of them. Read the table() of each.",
            code="NOT_OFFERED",
        )

    def _publish(self) -> None:
        """Do nothing: see `views`."""

    def advance(self) -> None:
        """Do nothing: inside Spark queries wake up by themselves when something is due."""

    def advance_due(self) -> bool:
        """Return False: see `advance`."""
        return False

    @property
    def changes_queries(self) -> bool:
        """Return that a query of Spark is made again in place of being changed."""
        return False

    def change(self, change: QueryChange, *, is_preview: bool) -> list[str]:
        """Refuse it; statements find out before."""
        raise SqlError(
            f'"{change.name}": inside Spark queries are not changed while they run. Write CREATE OR REPLACE, which makes it '
            f"again{', or EXPLAIN its query' if is_preview else ''}.",
            code="NOT_OFFERED",
            name=change.name,
        )

    def snapshot(self, query: Query) -> pa.Table:
        """Return what a query holds over everything its tables have; a query of its own, which ends.

        Cost: every epoch of its tables is answered again.
        """
        self._numbered += 1
        running = RunningOnSpark(f"snapshot_{self._numbered}", query, pipeline=_no_pipeline())
        pipeline = self._pipeline_of(running, None)
        try:
            pipeline.run()
            return sorted_rows(pipeline.view(), query.bound)
        finally:
            pipeline.close()
            shutil.rmtree(self._place(running.name), ignore_errors=True)

    def explain(self, query: Query) -> str:
        """Return what a query does inside Spark, and what it must remember."""
        return str(self.view_of(query).placed.explanation())

    def forget(self, name: str) -> None:
        """Release what is kept of a dropped table, and end its queries."""
        for running in [one for one in self.running if name in one.reads or one.name == name]:
            self.stop(running)
        self._dataframes.pop(name, None)
        self._generated.discard(name)
        self._streams.pop(name, None)
        self._tables.forget(name)

    def close(self) -> None:
        """End all queries; the Spark session goes on."""
        try:
            self._forget_rehearsal()
            for running in list(self.running):
                self.stop(running)
        finally:
            self._directory_lock.release()
        if self._is_temporary:
            shutil.rmtree(self._directory, ignore_errors=True)

    # ---------------------------------------------------------------- tables

    def _store_batch(self, table: Table, rows: Any) -> None:
        """Keep the rows of a batch DataFrame: Spark writes them as one file, one epoch; they never come to the driver."""
        self._tables.make(table)
        written = self._directory / "written" / file_name(table.name)
        write_stored(rows, str(written))
        self._tables.adopt(table, written, once="registered")

    def _register_stream(self, name: str, stream: SourceStream) -> None:
        shown = pa.schema([stream.schema.field(column) for column in stream.columns])
        refuse_collated(shown, name)
        columns = tuple(ColumnDefinition(field.name, field.type) for field in shown)
        watermark = None
        if stream.event_time is not None and stream.watermark_delay is not None:
            watermark = (stream.event_time, stream.watermark_delay)
        table = Table(name=name, word="TABLE", columns=columns, mode=stream.mode, primary_key=stream.keys, watermark=watermark)
        self.catalog.add(table)
        self._dataframes[name] = stream.dataframe
        self._streams[name] = (table, stream if stream.name == name else replace(stream, name=name))

    def _is_stored(self, table: Table) -> bool:
        return table.name not in self._dataframes and table.options.get("connector") not in _READ

    def _stream(self, source: PlanSource) -> SourceStream:
        """Return the stream of a table that a plan reads."""
        name = source.name
        table = self.catalog.tables.get(name)
        if table is None:
            raise SqlError(f'"{name}" is no table of this session any more; bind the query again.', code="UNKNOWN_TABLE")
        known = self._streams.get(name)
        if known is None or known[0] is not table:
            known = (table, self._made(table, source.relation))
            self._streams[name] = known
        return within_jump(known[1], source.max_watermark_jump)

    def _made(self, table: Table, relation: Relation) -> SourceStream:
        refuse_our_columns(table)
        is_free = table.delta_column is not None  # what deletes a row needs its key alone
        columns = [column.field for column in table.columns if column.is_given]
        given = pa.schema([field.with_nullable(True) if is_free else field for field in columns])
        if table.name in self._dataframes:
            return table_stream(self._dataframes[table.name], relation)
        if self._is_stored(table):
            rows = stored_rows(self.spark, str(self._tables.make(table)), table.schema)
            return table_stream(rows, relation, delta_column=table.delta_column)
        if table.options["connector"] == "filesystem":
            path, read_as = table.options.get("path", ""), table.options.get("format", "json")
            if "://" not in path and not Path(path).exists():
                raise SqlError(f"\"{table.name}\": there is no file at {path}. Give 'path'.", code="NO_FILE", name=table.name)
            if holds_records(table.options):
                return self._of_records(table, relation, file_records(self.spark, path), given, orders_by_offset=False)
            more = csv_options(table) if read_as == "csv" else None
            words = NAME_WORDS if table.is_ordered_by_file else 0
            rows = file_rows(self.spark, path, read_as, given, options=more, name_words=words)
        else:
            form = record_form(table)
            topic, start = table.options["topic"], start_of(table, ("earliest", "latest"))
            records = kafka_records(self.spark, kafka_config(table.options), topic, start=start, name=table.name)
            if form != "json":
                return self._of_records(table, relation, records, given)
            metadata = {column.name: column.metadata for column in table.columns if column.metadata is not None}
            rows = json_rows(records, pa.schema([field for field in given if field.name not in metadata]), metadata)
        return table_stream(with_columns(rows, self._texts(table)), relation, delta_column=table.delta_column)

    def _of_records(
        self, table: Table, relation: Relation, records: Any, given: pa.Schema, *, orders_by_offset: bool = True
    ) -> SourceStream:
        options, form = record_options(table), record_form(table)
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
                tree = ScalarBinder.over(schema, Statement("", (), self.dialect)).bind(column.computed)
                text = to_sql(tree, {"row": schema}, dialect="spark")
            texts.append(ColumnText(column.name, column.type, text, column.is_processing_time))
            before.append((column.name, column.type))
        return texts

    def _feed(self, table: Table, rows: Any, now: int) -> None:
        """Write rows down once every query that is rehearsed has answered them; rows that are put aside are dead letters."""
        if self.statement is None or self._tables.digest_of(table, self.statement) is None:
            self.settle()
            if self._rehearsal is None:
                self._rehearsal = self._rehearsed(self.running)
            others = [one for one in self.running if one.name not in self._rehearsal.names]
            given = accepted_rows(others, table.name, rows, refuses=True)
            with SharedEpoch(self._rehearsal, now) as epoch:
                epoch.answer({table.name: given.rows})
                accepted = epoch.accepted[table.name]
                self._tables.make(table)
                number = self._tables.count(table.name)
                for part, of in ((given, rows), (accepted, given.rows)):
                    write_letters(part, of, table=table.name, file=number, checkpoint_of=self._checkpoint_of)
                self._add(table, accepted.rows, self.statement)
                epoch.commit()
        self.settle()

    def _checkpoint_of(self, query: str) -> Path:
        return self._place(query) / "checkpoint"

    def _rehearsed(self, running: Sequence[Running], *, first: str | None = None) -> Rehearsal:
        """Return a rehearsal of queries; those that are stopped take no part."""
        rehearsal = Rehearsal(self.catalog, self._tables, dialect=self.dialect, clock=self._clock)
        going = [one for one in running if not (one.is_paused or (isinstance(one, RunningOnSpark) and one.stopped_by))]
        try:
            rehearsal.begin(going, is_stored=self._is_stored, is_settled=self._mode == "interactive", first=first)
        except BaseException:
            rehearsal.close()
            raise
        return rehearsal

    def _forget_rehearsal(self) -> None:
        """Begin the rehearsal again with the next INSERT."""
        rehearsal, self._rehearsal = self._rehearsal, None
        if rehearsal is not None:
            rehearsal.close()

    def _add(self, table: Table, rows: Any, once: str | None, digest: str = "") -> None:
        self._tables.make(table)
        self._tables.write(table, rows, once=once, digest=digest)
        with self._lock:
            self._changed.add(table.name)

    def _all_columns(self, table: Table, rows: pa.Table) -> pa.Table:
        return completed_table(table, rows, self._clock(), self.dialect)

    # ---------------------------------------------------------------- queries

    def pipeline_of(self, running: Running) -> SparkPipeline:
        """Return what runs a query of this session."""
        handle: Any = running.pipeline
        pipeline: SparkPipeline = handle
        return pipeline

    def _pipeline_of(self, running: Running, sink: Sink | None) -> SparkPipeline:
        query = running.query
        return SparkPipeline(running, lambda: self.view_of(query), self.options_of(query), sink, self._place(running.name))

    def options_of(self, query: Query) -> dict[str, str]:
        """Return the options of a query inside Spark.

        Raises:
            OptionError: a value that is not allowed.
        """
        settings = query.settings
        stage_options(settings)
        options = {option: settings[name] for name, option in _OPTIONS.items() if name in settings}
        idle_seconds = idle_timeout(settings)
        if idle_seconds:
            options["idleTimeout"] = str(int(idle_seconds))
        is_hybrid = "hybrid" in (settings.get("default_hash_join"), settings.get("default_hash_table"))
        if is_hybrid and not {"max_hot_bytes", "max_hot_keys"} & settings.keys():
            options["max_hot_bytes"] = str(_HOT_BYTES)
        return options


class _CatalogOverSpark(DecodingCatalog):
    """Look names up in Spark where the session has none of them."""

    def __init__(self, runtime: SparkRuntime, dialect: str) -> None:
        super().__init__(dialect, recorded_rows)
        self._runtime = runtime

    def find(self, name: str, *, at: Place | None = None) -> Table | NamedView:
        """Return the table or view of a name; one of Spark's becomes a table of the session.

        Raises:
            SqlError: there is none.
        """
        try:
            return super().find(name, at=at)
        except SqlError:
            spark = self._runtime.spark
            if not name.isidentifier() or not spark.catalog.tableExists(name):
                raise
            self._runtime.adopt(name, spark.table(name), keys=(), watermark=None)
            return super().find(name, at=at)


def _stopping_error(error: Exception, running: Running) -> ZsetJoinError:
    """Return the error that names a query which an error stopped."""
    if isinstance(error, ZsetJoinError):
        return named_error(error, [running], _STOPPED)
    reason = _REASON.search(str(error))
    text = f"{type(error).__name__}: {error}".splitlines()[0] if reason is None else reason[1]
    return StateError(
        f'query "{running.name}": {text} {_STOPPED}',
        code="QUERY_STOPPED",
        query=running.name,
    )


def _no_pipeline() -> Any:
    """Return nothing, where a pipeline comes a line later."""
    return None
