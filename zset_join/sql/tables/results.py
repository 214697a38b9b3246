"""Results of a statement: a message, a query that can be started, or a running query.

A `Query` is a view that the fluent API continues (`query.view`), with `table()` for what it holds now and `start()` for its
changes. A `Running` keeps the changes of its newest epochs and, as every pipeline, the contents of its view.

`StatementContext`: the interface of a session to its statements.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from zset_join.core.errors import SqlError
from zset_join.core.relation import Relation
from zset_join.plan.tree import Operate
from zset_join.query.reading import Reading
from zset_join.runners.local.contents import repeated
from zset_join.runners.local.pipeline import Pipeline
from zset_join.runners.local.prepared import PreparedEpoch
from zset_join.sql.tables.catalog import BoundQuery, Catalog, Table
from zset_join.sql.tables.settings import idle_timeout
from zset_join.sql_expressions.dialects import Statement
from zset_join.stages.aggregate import AggregateRequest
from zset_join.zset import ZSet
from zset_join.zset.protocol import NextDue

if TYPE_CHECKING:
    from zset_join.console import Console

__all__ = ["Message", "Query", "QueryChange", "QueryView", "Running", "StatementContext", "TableWriter"]

_KEPT_EPOCHS = 1000
DELTA = "_tp_delta"


@dataclass(frozen=True)
class Message:
    """The result of a statement that is no query.

    Args:
        text: for users.
        rows: result for programs, if any.
    """

    text: str
    rows: pa.Table | None = None

    def __str__(self) -> str:
        return self.text


class QueryRunner(Protocol):
    """Interface of a session that runs queries."""

    def explain(self, query: Query) -> str:
        """Return a description of a query and of its state."""

    def view_of(self, query: Query) -> Any:
        """Return a query as a view of the fluent API."""

    def start(self, query: Query, *, name: str | None = None, output: Callable[[ZSet], None] | None = None) -> Running:
        """Run a query."""

    def stop(self, running: Running) -> None:
        """End a query that runs."""

    def snapshot(self, query: Query) -> pa.Table:
        """Return the present contents of a query."""

    def pause(self, running: Running) -> None:
        """Pause a query until `resume`."""

    def resume(self, running: Running) -> None:
        """Let a query catch up, and continue."""


@dataclass(eq=False)
class Query:
    """A bound SELECT; nothing runs yet.

    Args:
        session: that has its tables.
        bound: the bound query.
        sql: its text.
        settings: of the query, over those of the session.
        emits_changelog: whether it has EMIT CHANGELOG.
        dialect: of its text; None: that of the session.
        again: binds it to the present meaning of names; None if that is impossible.
    """

    session: QueryRunner
    bound: BoundQuery
    sql: str
    settings: dict[str, str] = field(default_factory=dict)
    emits_changelog: bool = False
    dialect: str | None = None
    again: Callable[[], Query] | None = None

    @property
    def view(self) -> Any:
        """Return it for the fluent API of the engine it runs on."""
        return self.session.view_of(self)

    @property
    def columns(self) -> list[str]:
        """Return the names of its columns."""
        return self.bound.columns

    @property
    def schema(self) -> pa.Schema:
        """Return its columns with their types."""
        return self.bound.view.schema

    def explain(self) -> str:
        """Return a description of the query and its state."""
        return self.session.explain(self)

    def start(self, name: str | None = None) -> Running:
        """Start the query: it begins with the rows of its tables and then follows every change.

        Raises:
            SqlError: it reads stored rows and ends.
        """
        return self.session.start(self, name=name)

    def table(self) -> pa.Table:
        """Return its present contents."""
        return self.session.snapshot(self)


class QueryView:
    """Show one query of a session as a pipeline of its own would be."""

    def __init__(self, given: Callable[[], Pipeline[Any]], name: str, schema: pa.Schema, *, is_paused: bool) -> None:
        self._given = given  # the pipeline is another object when the session has its first settings
        self.progress: Mapping[str, Any] = {}
        self.schema = schema
        self._name = name
        self._is_paused = is_paused

    @property
    def whole(self) -> Pipeline[dict[str, ZSet]]:
        return self._given()

    @property
    def sources(self) -> tuple[str, ...]:
        """Return the names of its sources; while it is paused, none."""
        if self._is_paused:
            return ()
        plan = self.whole.plan
        feeds = [feed for number in plan.stages_of(self._name) for given in plan.nodes[number].feeds for feed in given]
        read = {feed.origin for feed in (*feeds, *plan.view(self._name).feeds)}
        return tuple(source.name for source in plan.sources if source.name in read)

    @property
    def readings(self) -> Mapping[str, Reading]:
        return {name: self.whole.readings[name] for name in self.sources}

    @property
    def epoch(self) -> int:
        """Return the number of the next epoch of the pipeline."""
        return self.whole.epoch

    @property
    def dead_letters(self) -> pa.Table:
        """Return its own, and those of no query, among the dead letters of the last epoch."""
        letters = self.whole.dead_letters
        texts = letters.column("reason").to_pylist() if letters.num_rows else []
        is_own = [not str(text).startswith('query "') or str(text).startswith(f'query "{self._name}":') for text in texts]
        return letters.filter(pa.array(is_own, pa.bool_()))

    def view(self) -> pa.Table:
        return repeated(self.contents(), self.schema)

    def seen(self) -> Callable[[], pa.Table]:
        """Return a reader of the present contents; usable from any thread, unaffected by later changes."""
        return partial(self.whole.snapshot().table, self._name)

    def contents(self) -> ZSet:
        return self.whole.contents(self._name)

    def took(self) -> None:
        """Note the counts of an epoch that the pipeline has taken."""
        counts = self.whole.progress
        if not counts:  # the first views are present before the first epoch
            return
        own, read = counts.get("views", {}).get(self._name, {}), self.sources
        self.progress = {**counts, **own, "rows": {name: rows for name, rows in counts.get("rows", {}).items() if name in read}}

    def next_due(self) -> NextDue:
        """Return when the pipeline has rows to emit though no row arrives."""
        return self.whole.next_due()

    def verify(self) -> Any:
        return self.whole.verify(view=self._name)

    def explain_row(self, row: Mapping[str, Any], *, most_changes: int = 100) -> Any:
        """Return which changes made the rows with given values, and which unmade them."""
        return self.whole.explain_row(row, view=self._name, most_changes=most_changes)


@dataclass(frozen=True)
class TableWriter:
    """Writer of the deltas of a running query into a table of the session, for `session.start(output=)`."""

    insert: Callable[[str, Any], int]
    table: Table
    names: tuple[str, ...]  # of the columns of the query, in order

    def __call__(self, delta: ZSet) -> None:
        """Insert a delta as one epoch; one of no rows is none."""
        if len(delta):
            self.insert(self.table.name, self.rows(delta))

    def rows(self, delta: ZSet) -> pa.Table | ZSet:
        """Return a delta in the form of the table."""
        rows = pa.RecordBatch.from_arrays(delta.rows.columns, names=list(self.names))
        return pa.Table.from_batches([rows]) if self.table.mode == "append" else ZSet(rows, delta.weights)


@dataclass(eq=False)
class Running:
    """A query that runs.

    Args:
        name: its name.
        query: the query.
        pipeline: its view among those of the session's pipeline.
        output: called with every delta, or None.

    Attributes:
        since: the epoch at which it came, where its tables had rows.
        held: while it is paused, the source that has its place in the pipeline.
        is_restored: it was present when the session was opened, and nobody has started it again.
    """

    name: str
    query: Query
    pipeline: QueryView
    output: Callable[[ZSet], None] | None = None
    deltas: deque[ZSet] = field(default_factory=lambda: deque(maxlen=_KEPT_EPOCHS))
    since: int = 0
    held: Relation | None = None
    is_restored: bool = False

    @property
    def is_paused(self) -> bool:
        """Return whether it receives no changes until RESUME."""
        return self.held is not None

    @property
    def writer(self) -> TableWriter | None:
        """Return what writes its deltas into a table of the session; None where it writes elsewhere, or nowhere."""
        return self.output if isinstance(self.output, TableWriter) else None

    @property
    def writes(self) -> str | None:
        """Return the table of the session it writes into; None where it writes elsewhere, or nowhere."""
        return None if self.writer is None else self.writer.table.name

    @property
    def into(self) -> str | None:
        """Return the table that it writes, of the session or outside; None where it writes into none."""
        return self.writes or getattr(self.output, "table_name", None)

    @property
    def whole(self) -> Pipeline[Any]:
        """Return the pipeline that answers it among others."""
        return self.pipeline.whole

    def answer_in(self, prepared: PreparedEpoch) -> ZSet:
        """Return its own answer of an epoch of that pipeline."""
        return prepared.answers[self.name]

    @property
    def retracts(self) -> bool:
        """Return whether it ever retracts a row."""
        return self.query.bound.view.node.relation.mode != "append"

    def is_due(self, now_us: int) -> bool:
        """Return whether an epoch without rows has something to do at a processing time."""
        due = self.pipeline.next_due()
        if due.processing_time_us is not None and due.processing_time_us <= now_us:
            return True
        # A source that has been silent for long enough holds no watermark up, and only an epoch shows it.
        return due.watermark_us is not None and idle_timeout(self.query.settings) is not None

    def reading_of(self, name: str) -> Reading | None:
        """Return how it reads the rows of a table; None where it does not."""
        return self.pipeline.readings.get(name)

    @property
    def reads(self) -> frozenset[str]:
        """Return the tables it reads."""
        return self.query.bound.reads

    def changelog(self) -> pa.Table:
        """Return the changes since the last call, with `_tp_delta` as the last column; retractions first."""
        tables = [changelog_table(delta) for delta in self.deltas if len(delta)]
        self.deltas.clear()
        if not tables:
            return changelog_schema(self.pipeline.schema).empty_table()
        return pa.concat_tables(tables, promote_options="default")  # a change of the query may differ in what is never NULL

    def table(self) -> pa.Table:
        """Return the contents of the view."""
        return self.pipeline.view()

    def progress(self) -> dict[str, Any] | None:
        """Return the progress of its newest epoch: query, epoch, rows in and out, dead letters; None before the first."""
        progress = self.pipeline.progress
        if not progress:
            return None
        rows = sum(progress["rows"].values())
        unread = sum(progress.get("undecodable", {}).values())
        rows, aside = rows + unread, progress["rejected_rows"] + unread
        counted = {"query": self.name, "epoch": progress["epoch"], "rows_in": rows, "rows_out": progress["answer_rows"]}
        return {**counted, "dead_letters": aside} if aside else counted

    def verify(self) -> Any:
        """Compare its contents with the batch query over all input; the report has `equal`.

        Raises:
            OptionError: in process, of a session that does not keep its input: `connect(keep_inputs=True)`.
            PlanError: no batch query is known for a part of it.
        """
        return self.pipeline.verify()

    def console(self, *, port: int = 0) -> Console:
        """Serve a page about its pipeline, which may run other queries, too, until it is closed.

        Args:
            port: of 127.0.0.1; 0 picks a free one. The attribute `url` of the result is the address.

        Raises:
            MissingPackageError: the extra `console` is not installed.
            OptionError: the port is taken.
        """
        return self.whole.console(port=port)

    def stop(self) -> None:
        """Release its state; it answers no more."""
        self.query.session.stop(self)


@dataclass(frozen=True)
class QueryChange:
    """A view with a new text, and the queries that depend on it."""

    name: str
    following: tuple[str, ...]
    queries: Mapping[Running, Query]
    created: str | None = None


def changelog_schema(schema: pa.Schema) -> pa.Schema:
    name = DELTA if DELTA not in schema.names else "_delta"
    return pa.schema([*schema, pa.field(name, pa.int64())])


def changelog_table(delta: ZSet) -> pa.Table:
    """Return a delta as rows, with the weight as the last column."""
    schema = changelog_schema(delta.schema)
    return pa.Table.from_arrays([*delta.rows.columns, pa.array(delta.weights)], schema=schema)


def has_row_of_nothing(bound: BoundQuery) -> bool:
    """Return whether a query aggregates without GROUP BY, whose one row is present before any row of a table, as in Spark."""
    waiting = [bound.view.node]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Operate) and isinstance(node.request, AggregateRequest) and not node.request.group_by:
            return True
        waiting += node.children
    return False


def sorted_rows(table: pa.Table, bound: BoundQuery) -> pa.Table:
    """Return a bounded query's rows in its order, and not more than its limit."""
    if bound.order_by:
        keys, helpers = [], {}
        for place, (name, descending, nulls_first) in enumerate(bound.order_by):
            order, known_order = ("descending" if down else "ascending" for down in (descending, not nulls_first))
            helpers[f"known {place}"] = table.column(name).is_valid().cast(pa.int8())
            helpers[f"value {place}"] = table.column(name)
            keys += [(f"known {place}", known_order), (f"value {place}", order)]
        try:
            table = table.take(pc.sort_indices(pa.table(helpers), sort_keys=keys))
        except (pa.ArrowException, TypeError) as error:
            raise SqlError(f"rows cannot be ordered that way: {error}.", code="NOT_OFFERED") from error
    return table if bound.limit is None else table.slice(0, bound.limit)


class StatementContext(QueryRunner, Protocol):
    """A session, as statements see it.

    Attributes:
        writes: whether queries write where they name a table; not where statements are only checked.
        dialect: of statements.
    """

    writes: bool
    dialect: str

    @property
    def catalog(self) -> Catalog:
        """Return the objects of names."""

    @property
    def running(self) -> list[Running]:
        """Return the queries that run."""

    def query(self, statement: Statement, node: Any, settings: Mapping[str, str], *, emits_changelog: bool) -> Query:
        """Bind a query."""

    def insert(self, name: str, rows: Any) -> int:
        """Add rows to a table."""

    def writer_id(self) -> str | None:
        """Return under which id the statement that runs writes outside; None for a new one."""

    def forget(self, name: str) -> None:
        """Release the state of a dropped table."""

    def add_columns(self, table: Table, queries: Mapping[Running, Query], *, reread: Callable[[], str] | None = None) -> None:
        """Let a table have more columns, and queries that read it be what they were over it; `reread`: where values are."""

    def change(self, change: QueryChange, *, is_preview: bool) -> list[str]:
        """Let queries become others, all or none, or only find out what would differ; return that, line by line."""
