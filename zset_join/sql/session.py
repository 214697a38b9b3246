"""A session: tables, the queries that run over them, and the statements that make and feed them, in this process.

    session = zset_join.sql.connect()
    session.sql("CREATE TABLE orders (id INT, customer STRING, total INT, PRIMARY KEY (id))")
    revenue = session.sql("SELECT customer, sum(total) AS revenue FROM orders GROUP BY customer").start()
    session.sql("INSERT INTO orders VALUES (1, 'Ada', 30)")
    revenue.table()

The law: every INSERT is one epoch of every query that reads the table. A query that is started later begins with what its
tables hold; after every epoch it holds what it would hold had it run from the beginning.

Remembers per table its current rows (upsert and changelog) or all of its rows (append), so that later queries and `FROM
table(t)` have them; `keep_tables=False` keeps none.

Known limits: one thread; everything is in memory.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from zset_join.core.errors import OptionError, SqlError
from zset_join.expressions.rows import compute
from zset_join.lookup.source import LookupSource
from zset_join.pipeline import Pipeline
from zset_join.query.sources import with_jump
from zset_join.sql.bind.queries import QueryBinder
from zset_join.sql.ddl.definitions import TP_DELTA
from zset_join.sql.dml.shared_epochs import SharedEpoch, in_order
from zset_join.sql.dml.writing import table_written
from zset_join.sql.statements import execute
from zset_join.sql.tables.arrow_rows import arrow_table, fit, of_table
from zset_join.sql.tables.catalog import Catalog, ColumnDefinition, Mode, Table, TemporalFunction
from zset_join.sql.tables.key_claims import Claimed, KeyClaims
from zset_join.sql.tables.required import check_required
from zset_join.sql.tables.results import Message, Query, Running, has_row_of_nothing, sorted_rows
from zset_join.sql.tables.settings import idle_timeout, jump_in, stage_options, without_effect
from zset_join.sql.tables.sink_tables import SinkWriter
from zset_join.sql.tables.view_groups import GroupView, ViewGroup
from zset_join.sql_expressions.consumed import check_consumed
from zset_join.sql_expressions.dialects import Statement, split
from zset_join.sql_expressions.places import SqlWarning, near
from zset_join.sql_expressions.scalars import ScalarBinder
from zset_join.stages.stage import StageOptions
from zset_join.zset import ZSet, single_batch

if TYPE_CHECKING:
    from zset_join.sql.tables.feeds import Feed

__all__ = ["Session", "SqlWarning"]

_MOST_ROWS = 100_000


class Session:
    """Run statements in this process; made by `connect`.

    Args:
        dialect: whose SQL statements are written in.
        keep_tables: keep the rows of tables.
        clock: returns the processing time in microseconds since 1970.
        keep_inputs: let running queries keep every change that comes, for `Running.verify()`.

    Attributes:
        writes: whether INSERT INTO ... SELECT writes; where not, it is only planned.
    """

    writes = True

    def __init__(self, *, dialect: str, keep_tables: bool, clock: Callable[[], int] | None, keep_inputs: bool = False) -> None:
        self.catalog = Catalog()
        self.dialect = dialect
        self.running: list[Running] = []
        self._keep_tables = keep_tables
        self._keep_inputs = keep_inputs
        self._clock = clock or (lambda: time.time_ns() // 1000)
        self._stored: dict[str, Pipeline] = {}
        self._groups: list[ViewGroup] = []
        self._fed: set[str] = set()
        self._seen: Mapping[str, Callable[[], pa.Table]] = {}
        self._feeds: list[Feed] = []
        self._held: dict[int, Any] = {}
        self.claims: dict[str, KeyClaims] = {}
        self._is_closing = False
        self._numbered = 0

    def sql(self, text: str, *, dialect: str | None = None) -> Message | Query:
        """Run statements, one after the other; return what the last one gives.

        Args:
            text: one statement or several, with semicolons between them.
            dialect: for this text only.

        Raises:
            SqlError: a statement that cannot be read, or is refused; those before it have run.
            BadInputError: rows that cannot be inserted.
        """
        statements = split(text, dialect=dialect or self.dialect)
        if not statements:
            raise SqlError("there is no statement to run.", code="SQL_SYNTAX")
        last: Message | Query = Message("")
        for statement in statements:
            last = execute(self, statement)
        return last

    def register(
        self, name: str, rows: Any, *, keys: Sequence[str] | str = (), watermark: tuple[str, int] | None = None
    ) -> None:
        """Make a table of an Arrow table, or of anything that becomes one (a list of dicts, a dict of columns, pandas, polars).

        Args:
            name: of the table.
            rows: what it holds; may be empty, then only its columns count.
            keys: columns that identify a row; rows inserted later replace those of their key.
            watermark: event-time column, and the delay of its watermark in microseconds.

        Raises:
            SqlError: the name is taken.
            OptionError: it does not become an Arrow table.
        """
        table = arrow_table(rows)
        key = (keys,) if isinstance(keys, str) else tuple(keys)
        mode: Mode = "upsert" if key else "append"
        columns = tuple(ColumnDefinition(field.name, field.type) for field in table.schema)
        made = Table(name=name, word="TABLE", columns=columns, mode=mode, primary_key=key, watermark=watermark)
        _ = made.rows  # raises where a key or time is not there, before the name is taken
        self.catalog.add(made)
        if table.num_rows:
            self.insert(name, table)

    def register_lookup(self, source: LookupSource) -> None:
        """Make an outside table known by its name, for joins FOR SYSTEM_TIME AS OF PROCTIME().

        Raises:
            SqlError: the name is taken.
            OptionError: it is no source of lookups.
        """
        if not isinstance(getattr(source, "schema", None), pa.Schema):
            raise OptionError(
                f"{type(source).__name__} is no source of lookups, which has a name and a schema; see zset_join.lookup.",
                code="NOT_A_TABLE",
            )
        columns = tuple(ColumnDefinition(field.name, field.type) for field in source.schema)
        self.catalog.add(Table(name=source.name, word="TABLE", columns=columns, mode="append", lookup=source))

    def read(self, *, wait_seconds: float = 2.0) -> int:
        """Take what has come in the files and topics of all tables since the last call; return the number of epochs.

        Args:
            wait_seconds: how long a source that says nothing is waited for.

        Raises:
            SqlError: a source that cannot be read.
            BadInputError: rows that cannot be inserted.
        """
        from zset_join.sql.tables.feeds import feeds_of

        fed = {id(feed.table) for feed in self._feeds}
        self._feeds += [feed for feed in feeds_of(self) if id(feed.table) not in fed]
        known = {id(table) for table in self.catalog.tables.values()}
        epochs, moved = 0, True
        while moved:
            moved = False
            for feed in [one for one in self._feeds if id(one.table) in known]:
                rows = self._held.pop(id(feed), None)
                if rows is None:
                    rows = feed.poll(most_rows=_MOST_ROWS, wait_seconds=wait_seconds)
                if rows is not None:
                    self._held[id(feed)] = rows  # until they are taken: the feed gives them once
                    self.insert(feed.table.name, rows)
                    del self._held[id(feed)]
                    epochs, moved = epochs + 1, True
        return epochs

    def insert(self, name: str, rows: Any) -> int:
        """Add rows to a table, as one epoch of every query that reads it.

        Args:
            name: of the table.
            rows: as for `register`, or a ZSet; columns that are left out are NULL, or computed.

        Returns:
            The number of rows.
        """
        table = self.catalog.tables.get(self.catalog.find(name).name)
        if table is None:
            raise SqlError(f'"{name}" is a view; insert into the tables it reads.', code="NOT_A_TABLE", name=name)
        if table.lookup is not None:
            raise SqlError(f'"{name}" is an outside table; it is read only.', code="NOT_A_TABLE", name=name)
        now = self._clock()
        given = self.completed(table, rows if isinstance(rows, ZSet) else of_table(table, rows), now)
        self._feed(table, given, now)
        return len(given) if isinstance(given, ZSet) else int(given.num_rows)

    def writer_id(self) -> str | None:
        """Return None: a session in memory writes under a new id."""
        return None

    def advance(self) -> None:
        """Let an epoch without rows pass in every query, so that what is due is done."""
        for running in self._by_pipeline():
            self._step(running, {}, self._clock())

    def advance_due(self) -> bool:
        """Let an epoch pass in the queries that are due by now; return whether there were any."""
        now = self._clock()
        due = [running for running in self._by_pipeline() if self._is_due(running, now)]
        for running in due:
            self._step(running, {}, now)
        return bool(due)

    def create_temporal_table_function(self, name: str, relation: str, time: str, key: str) -> None:
        """Name the versions of a table, for `LATERAL TABLE(name(o.time))`.

        Args:
            name: of the function.
            relation: table or view whose rows are the versions.
            time: column with the time of a version.
            key: column that identifies what has versions.

        Raises:
            SqlError: there is no such table or column.
        """
        entry = self.catalog.find(relation)
        columns = entry.schema.names if isinstance(entry, Table) else entry.query.columns
        missing = [column for column in (time, key) if column not in columns]
        if missing:
            raise SqlError(
                f'"{relation}" has no column {", ".join(missing)}.{near(missing[0], columns)}',
                code="UNKNOWN_COLUMN",
                name=relation,
            )
        self.catalog.add(TemporalFunction(name, entry.name, time, key))

    def query(self, statement: Statement, node: Any, settings: Mapping[str, str], *, emits_changelog: bool) -> Query:
        """Bind a query; what cannot be honoured becomes a warning."""
        binder = QueryBinder(self.catalog, statement, {**self.catalog.settings, **settings})
        bound = binder.bind(node)
        check_consumed(node, statement.text, statement.place(0))
        if bound.first_rows is not None:
            raise SqlError(
                f"nothing uses the ROW_NUMBER(): keep the first rows with WHERE {bound.first_rows.name} = 1 around it.",
                code="NOT_OFFERED",
                at=statement.place(0),
            )
        for warning in (*binder.warnings, *without_effect({**self.catalog.settings, **settings})):
            warnings.warn(SqlWarning(warning), stacklevel=4)
        bound = replace(bound, view=with_jump(bound.view, jump_in(binder.settings)), names=frozenset(binder.names))
        return Query(self, bound, statement.sql, dict(binder.settings), emits_changelog)

    def start(self, query: Query, *, name: str | None = None, output: Callable[[ZSet], None] | None = None) -> Running:
        """Run a query; see `Query.start`."""
        if query.bound.is_bounded:
            raise SqlError("this query reads what is stored and ends; take its table().", code="BOUNDED")
        if isinstance(output, SinkWriter):
            output.begin()
        if name is None:
            self._numbered += 1
            name = f"query_{self._numbered}"
        writer = table_written(output)
        group = self._group(name, query, stays_alone=writer is not None)
        running = Running(name, query, group.views[name], output, writer)
        try:
            self._claim(running)
            rows = self._contents(query)
            if rows or has_row_of_nothing(query.bound):
                self._step(running, rows, self._clock())
        except BaseException:
            group.pipeline.close()
            if isinstance(output, SinkWriter):
                output.close()
            raise
        self.running.append(running)
        self._join(group, query)
        self._publish()
        return running

    def pause(self, running: Running) -> None:
        """Let a query take nothing until `resume`; it shows what it holds, and the others go on.

        Raises:
            SqlError: `TABLES_NOT_KEPT`: there is nothing that it could catch up from.
        """
        view = running.pipeline
        if not self._keep_tables and running.reads:
            raise SqlError(
                f'"{running.name}" could not catch up: the session keeps no rows of its tables. Make it with keep_tables=True.',
                code="TABLES_NOT_KEPT",
                name=running.name,
            )
        if isinstance(view, GroupView):
            view.pause()
            self._groups = [group for group in self._groups if group.views]
        running.is_paused = True
        self._publish()

    def resume(self, running: Running) -> None:
        """Let a query catch up with its tables and go on; its first epoch has what became of its rows meanwhile.

        Raises:
            ZsetJoinError: it cannot be answered; it stays as it was.
        """
        paused = running.pipeline
        group = self._group(running.name, running.query, stays_alone=running.writer is not None)
        running.pipeline, running.is_paused = group.views[running.name], False
        try:
            if isinstance(paused, GroupView):
                running.pipeline = running.pipeline.behind(paused)
            self._step(running, self._contents(running.query), self._clock())
        except BaseException:
            if group.pipeline.epoch == 0:
                running.pipeline, running.is_paused = paused, True
                group.pipeline.close()
            raise
        finally:
            if not running.is_paused:
                self._join(group, running.query)
            self._publish()

    def _group(self, name: str, query: Query, *, stays_alone: bool) -> ViewGroup:
        return ViewGroup(
            name,
            query.bound.view,
            options=stage_options(query.settings),
            idle_seconds=idle_timeout(query.settings),
            keep_inputs=self._keep_inputs,
            stays_alone=stays_alone,
        )

    def _join(self, group: ViewGroup, query: Query) -> None:
        """Let a query that holds what its tables do be answered with others, where there are some like it."""
        if self._keep_tables or not query.bound.reads & self._fed:
            for other in self._groups:
                if other.can_take_over(group):
                    other.take_over(group, fed=self._fed)
                    return
        self._groups.append(group)

    def stop(self, running: Running) -> None:
        """End a query that runs."""
        if running in self.running:
            if running.writes is not None and not self._is_closing:
                self.claims_of(running.writes)  # while it is known which rows of the table are its own
            self.running.remove(running)
            self._unclaim(running)
            running.pipeline.close()
            self._groups = [group for group in self._groups if group.views]
            self._publish()
            if isinstance(running.output, SinkWriter):
                running.output.close()

    def snapshot(self, query: Query) -> pa.Table:
        """Return what a query holds over the current contents of its tables."""
        with self._pipeline(query) as pipeline:
            rows = self._contents(query)
            pipeline.step(rows, processing_time=self._clock())
            return sorted_rows(pipeline.view(), query.bound)

    def explain(self, query: Query) -> str:
        """Return what a query does, and what it must remember."""
        return query.bound.view.plan().explain(buckets=1)

    def forget(self, name: str) -> None:
        """Release what is kept of a dropped table."""
        for running in [one for one in self.running if name in one.reads or one.name == name]:
            self.stop(running)
        self._fed.discard(name)
        for kept in (self._stored.pop(name, None), self.claims.pop(name, None)):
            if kept is not None:
                kept.close()

    def close(self) -> None:
        """End all queries."""
        self._is_closing = True
        for running in list(self.running):
            self.stop(running)
        for stored in self._stored.values():
            stored.close()
        for claims in self.claims.values():
            claims.close()
        for feed in self._feeds:
            feed.close()
        self._stored, self._feeds, self.claims, self._is_closing = {}, [], {}, False

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def views(self) -> dict[str, pa.Table]:
        """Return what all running queries hold, by name, all after one and the same INSERT; any thread may call it.

        A paused one shows what it held, and with a directory one that an error stopped what it took last. Cost: of an epoch, a
        reference per query; of a call, the rows that came since the last.
        """
        return {name: read() for name, read in self._seen.items()}

    def _publish(self) -> None:
        """Make an epoch visible that all queries have taken: one assignment."""
        self._seen = {running.name: running.seen() for running in self.running}

    def view_of(self, query: Query) -> Any:
        """Return a query as a view of the fluent API of this session's engine."""
        return query.bound.view

    def settle(self) -> None:
        """Wait until every query has answered what is there; in process it has."""

    def _by_pipeline(self) -> list[Running]:
        """Return a query of each pipeline, in the order in which they write and read."""
        return list({id(running.whole): running for running in in_order(self.running) if not running.is_paused}.values())

    def _pipeline(self, query: Query) -> Pipeline:
        return Pipeline(
            query.bound.view,
            options=stage_options(query.settings),
            idle_timeout_seconds=idle_timeout(query.settings),
            keep_view=True,
            keep_inputs=self._keep_inputs,
        )

    @staticmethod
    def _is_due(running: Running, now: int) -> bool:
        due = running.pipeline.next_due()
        if due.processing_time_us is not None and due.processing_time_us <= now:
            return True
        # A source that has been silent for long enough holds no watermark up, and only an epoch shows it.
        return due.watermark_us is not None and idle_timeout(running.query.settings) is not None

    def _contents(self, query: Query) -> dict[str, Any]:
        known = {source.name for source in query.bound.view.plan().sources}
        return {name: self._stored[name].contents() for name in sorted(query.bound.reads & known) if name in self._stored}

    def _feed(self, table: Table, rows: Any, now: int) -> None:
        """Take rows of a table as one epoch of all queries that they reach, and of what is kept of the table; or of none."""
        with SharedEpoch(self, now) as epoch:
            epoch.answer({table.name: rows})
            self._fed |= epoch.tables
            try:
                epoch.commit()
            finally:  # an output that fails has its epoch, as all queries have
                self._publish()

    def _step(self, running: Running, rows: Mapping[str, Any], now: int) -> None:
        """Take an epoch of one query, and of those that read what it writes; or of none."""
        with SharedEpoch(self, now) as epoch:
            epoch.answer({}, first=(running, rows))
            self._fed |= epoch.tables
            try:
                epoch.commit()
            finally:  # an output that fails has its epoch, as all queries have
                self._publish()

    def table(self, name: str) -> Table:
        """Return a table."""
        return self.catalog.tables[name]

    def kept_rows(self, table: Table) -> Pipeline | None:
        """Return what keeps the rows of a table; None where the session keeps none.

        As a query does, it keeps to the policy for bad input of when it began: at the first rows of the table.
        """
        if self._keep_tables and table.name not in self._stored:
            policy = self.catalog.settings.get("on_bad_input", "error")
            self._stored[table.name] = Pipeline(table.kept(), options=StageOptions(on_bad_input=policy))
        return self._stored.get(table.name)

    def completed(self, table: Table, rows: pa.Table | ZSet, now_us: int) -> pa.Table | ZSet:
        """Return rows with all columns of a table."""
        if isinstance(rows, ZSet):
            completed = self._completed(table, pa.Table.from_batches([rows.rows]), now_us, rows.weights)
            return ZSet(single_batch(completed), rows.weights)
        return self._completed(table, rows, now_us)

    def _unclaim(self, running: Running) -> None:
        """Forget what a query claimed; what it wrote stays in the table, and claims nothing."""
        if running.writer is not None and running.takes_back and running.writer.table.name in self.claims:
            rows = running.pipeline.contents()
            if len(rows):
                self.claims[running.writer.table.name].add([(ZSet(rows.rows, -rows.weights), running.writer.names)])

    def _claim(self, running: Running) -> None:
        """Count which rows of a query claim keys of the table that it writes."""
        claims = self._claims_beside(running)
        if claims is not None and running.writer is not None:
            claims.add([(running.pipeline.contents(), running.writer.names)])

    def _claims_beside(self, running: Running) -> KeyClaims | None:
        """Return which keys are claimed of the table that a query writes; None where no two rows may claim one."""
        writer = running.writer
        if writer is None or not writer.table.primary_key or not running.takes_back:
            return None
        claims = self.claims.get(writer.table.name)
        if claims is not None:
            return claims
        others = [one for one in self.running if one.writes == running.writes]
        key = running.query.bound.view.node.relation.primary_key
        held = self._rows_held(writer.table)
        if not others and key and set(key) <= set(writer.table.primary_key) and held is None:
            return None
        return self._claims_begun(writer.table, held)

    def claims_of(self, name: str) -> KeyClaims | None:
        """Return which keys of a table are claimed; None where no running query claims any."""
        table = self.catalog.tables.get(name)
        is_claimed = any(one.writes == name and one.takes_back for one in self.running)
        if name not in self.claims and is_claimed and table is not None and table.primary_key:
            return self._claims_begun(table, self._rows_held(table))
        return self.claims.get(name)

    def _claims_begun(self, table: Table, held: pa.Table | ZSet | None) -> KeyClaims:
        """Count the rows of the queries that retract and write into a table, and of the others that it holds."""
        own: list[Claimed] = [
            (one.pipeline.contents(), one.writer.names)
            for one in self.running
            if one.writer is not None and one.writes == table.name and one.takes_back
        ]
        claims = self.claims[table.name] = KeyClaims(table, table.schema.empty_table() if held is None else held, own)
        return claims

    def _rows_held(self, table: Table) -> pa.Table | ZSet | None:
        """Return the rows that a table holds, perhaps with those of retracting queries; None for none."""
        stored = self._stored.get(table.name)
        rows = None if stored is None else stored.contents()
        return rows if rows is not None and len(rows) else None

    def _completed(self, table: Table, given: pa.Table, now: int, weights: Any = None) -> pa.Table:
        """Return rows with all columns of a table: what was not given is NULL, or computed.

        Raises:
            SqlError: a column that the table does not have.
            BadInputError: a value that its column does not hold, or NULL where it is NOT NULL.
        """
        known = table.schema.names
        hidden = table.hidden.names
        unknown = [name for name in given.column_names if name not in known and name not in hidden]
        if unknown:
            raise SqlError(
                f'"{table.name}" has no column {", ".join(unknown)}.{near(unknown[0], known)}',
                code="UNKNOWN_COLUMN",
                name=table.name,
            )
        columns: dict[str, pa.Array] = {}
        for column in table.columns:
            if column.name in given.column_names:
                array = given.column(column.name).combine_chunks()
                is_plain = array.type == column.type
                # What a record says beside its row is an instant, which a column without a zone has in UTC.
                is_beside = not is_plain and column.metadata is not None
                columns[column.name] = (
                    array if is_plain else array.cast(column.type) if is_beside else fit(table, column, array)
                )
            elif column.is_processing_time:
                columns[column.name] = pa.repeat(pa.scalar(now, pa.int64()), given.num_rows).cast(column.type)
            elif column.computed is not None:
                schema = pa.schema([(name, array.type) for name, array in columns.items()])
                tree = ScalarBinder.over(schema, Statement("", (), self.dialect)).bind(column.computed)
                columns[column.name] = compute(tree, columns, given.num_rows).cast(column.type)
            elif column.name == TP_DELTA:
                columns[column.name] = pa.repeat(pa.scalar(1, column.type), given.num_rows)
            else:
                columns[column.name] = pa.nulls(given.num_rows, column.type)
        if not set(hidden) <= set(given.column_names):
            raise SqlError(
                f'"{table.name}" has a primary key and is filled by its files, whose names order the rows of a key; insert '
                "into a table without a connector.",
                code="NOT_A_TABLE",
                name=table.name,
            )
        beside = {name: given.column(name) for name in hidden}
        completed = pa.table({**columns, **beside}, schema=pa.schema([*table.schema, *table.hidden]))
        check_required(table, completed, weights)
        return completed
