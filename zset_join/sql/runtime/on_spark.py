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
"""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from zset_join.changelog import format_named
from zset_join.core.errors import SqlError
from zset_join.plan.query_plan import PlanSource
from zset_join.plan.tree import Node, Read, in_zone, rebuilt
from zset_join.query import View as ProcessView
from zset_join.query.reading import Reading
from zset_join.runners.spark.api.table_streams import schema_of
from zset_join.runners.spark.api.views import View
from zset_join.runners.spark.driver.choosing import refuse_larger_state
from zset_join.runners.spark.driver.polled_rows import PolledRows
from zset_join.runners.spark.driver.staged_rows import StagedRows, remove_on_server
from zset_join.runners.spark.driver.staging import remove_place
from zset_join.runners.spark.frames.facts import is_connect
from zset_join.runners.spark.planning.lowering import lowered
from zset_join.runners.spark.planning.row_steps import ZONE
from zset_join.runners.spark.session import local_session
from zset_join.sql.runtime.runtime import Runtime
from zset_join.sql.runtime.session_directory import SessionDirectory
from zset_join.sql.runtime.spark_tables import SparkTables
from zset_join.sql.tables.arrow_rows import registered
from zset_join.sql.tables.catalog import NamedView, Table
from zset_join.sql.tables.file_names import file_name
from zset_join.sql.tables.files import check_files
from zset_join.sql.tables.results import Query, Running
from zset_join.sql.tables.settings import driver_options, max_waiting_batches, stage_options
from zset_join.sql.tables.table_sources import DecodingCatalog, TableSource, recorded_rows
from zset_join.sql_expressions.positions import Position
from zset_join.zset import ZSet

__all__ = ["SparkRuntime"]

_WAIT_SECONDS = 2.0
_EXECUTORS = (
    "the queries of a session are one pipeline on the driver, and execution = 'executors' requests tasks of Spark's. RESET the "
    "setting; or start the query, or several, beside the session over its tables: "
    'zset_join.spark.writeStream({"a": session.sql("SELECT ...").view, ...}).option("execution", "executors").'
)


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

    def run_as(self, *, once: bool, trigger: str | None) -> None:
        self._mode = "once" if once else "continuous"
        self._trigger = trigger

    # ---------------------------------------------------------------- tables

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

    def is_inserted(self, table: Table) -> bool:
        return table.name not in self.tables.dataframes and super().is_inserted(table)

    def forget(self, name: str) -> None:
        super().forget(name)
        self.tables.forget(name)
        self._remove_place(name)

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

    def start(self, query: Query, *, name: str | None, output: Callable[[ZSet], None] | None) -> Running:
        if query.settings.get("execution") == "executors":
            raise SqlError(_EXECUTORS, code="NOT_OFFERED")
        running = super().start(query, name=name, output=output)
        if self._mode == "interactive" and not self._is_restoring:
            try:
                self.read(wait_seconds=_WAIT_SECONDS)
            except BaseException:
                self.stop(running)
                raise
        return running

    def _take(self, rows: Mapping[str, Any], now_us: int, **more: Any) -> None:
        if rows:  # time that passes may end state
            refuse_larger_state(self._place.pipeline / "local", driver_options(self.catalog.settings))
        super()._take(rows, now_us, **more)

    def settle(self) -> None:
        if self._mode == "interactive":
            self.read(wait_seconds=_WAIT_SECONDS)

    def read(self, *, wait_seconds: float, rounds: int | None = None) -> int:
        for source in self.sources.current.values():
            if isinstance(source, PolledRows | StagedRows):
                source.look()
        return super().read(wait_seconds=wait_seconds, rounds=rounds)

    def view_of(self, query: Query) -> Any:
        return View.of_tree(query.bound.view.node, self.tables.stream)

    def explain(self, query: Query) -> str:
        if query.settings.get("execution") == "executors":
            return str(self.view_of(query).placed.explanation())
        plan = self._fed(self.plan.as_run(query)).plan(keep_state=driver_options(self.plan.settings).keep_state)
        read = [self.catalog.tables[one] for one in sorted(query.bound.reads) if one in self.catalog.tables]
        streams = [self.tables.stream(one.rows.bindings[0].source) for one in read if self.tables.is_read(one)]
        lines = [f"{one.explained()} read by Spark: {', '.join(one.operation) or 'rows'}" for one in streams]
        return "\n".join(["Runs on the driver, in the pipeline of the session", *lines, plan.explain(buckets=1)])

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

    def close(self) -> None:
        super().close()
        if self._is_temporary:
            shutil.rmtree(self._place.path, ignore_errors=True)


class _CatalogOverSpark(DecodingCatalog):
    """Look names up in Spark where the session has none of them."""

    def __init__(self, runtime: SparkRuntime, dialect: str) -> None:
        super().__init__(dialect, recorded_rows)
        self._runtime = runtime

    @property
    def zone(self) -> str:
        return str(self._runtime.spark.conf.get(ZONE))

    def find(self, name: str, *, at: Position | None = None) -> Table | NamedView:
        try:
            return super().find(name, at=at)
        except SqlError:
            if not self._runtime.find_in_spark(name):
                raise
            return super().find(name, at=at)
