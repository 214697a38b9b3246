"""A materialized view in a DuckDB file.

The law: after epoch N the view `table` holds every row of the sum of the answers 0..N as often as its weight.
One transaction writes the rows of an epoch, its number and the query's id (table `_zset_join_epochs`, one line per
view), so a crash leaves the view at the end of an epoch, and an epoch that arrives again changes nothing. Views in one file
that are written `together` share the transaction.

A row is found by a hash and verified by value. Without a key the identity of a row is the whole row; with one it is
the key, at most one row may hold it, and retractions are compared with the stored row by its hash. Equality is
Spark's (NaN, 0.0 and -0.0, NULL, nested values); see `duckdb_sql` for the tables.

What it cannot do is refused, and the epoch is undone: retracting a row that the view does not hold, two live rows
with one key, a weight beyond int64.

Memory: DuckDB's (80 % of the machine by default; it spills to a directory beside the file); one
chunk.

Cost per epoch: follows the delta, plus one scan of 8 bytes per row of the view, plus, where retractions lie
scattered, the blocks they are in. No index: keeping one costs more than the scan.
Scattered deletes leave the file up to twice the size of its rows until a checkpoint of
DuckDB merges blocks.

Others read the file while the query runs, between epochs: it is closed a second after its last use (see `duckdb_file`), and
a reader opens it with `read_only=True`.

Limits: no one can have it open during an epoch. Column names that differ only by case, and empty ones, are refused: DuckDB has
no such columns.
"""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from zset_join.changelog import UpsertFormat, WeightFormat
from zset_join.core.added_columns import adds_columns, with_added_nullable
from zset_join.core.epoch_chain import ChainLink
from zset_join.core.errors import OptionError, SinkError, WeightOverflowError
from zset_join.core.extras import needed_for
from zset_join.core.relation import Relation
from zset_join.core.row_conversion import repeated_positions
from zset_join.core.shown_values import counted, shown_key
from zset_join.sinks.altering import check_adds_columns
from zset_join.sinks.duckdb_file import HOLD_SECONDS, PATIENCE_SECONDS, DuckDBFile
from zset_join.sinks.duckdb_sql import (
    ADD_CHAIN,
    CHUNK,
    CREATE_EPOCHS,
    EPOCHS_COLUMNS,
    FIND_NAME,
    FIND_STORED,
    FIND_VIEW,
    INSERT_VIEW,
    UPDATE_EPOCH,
    UPDATE_LAYOUT,
    UPDATE_VERSION,
    ViewStatements,
)
from zset_join.sinks.sink import Sink, SinkProgress, check_chunk, check_output, is_same_epoch, newest_digests
from zset_join.sinks.stored_epochs import StoredEpochs, stored_views
from zset_join.sinks.unfit_values import UnfitRows, unfit_values, within_microseconds
from zset_join.zset import ZSet

with needed_for("a DuckDB output"):
    import duckdb

__all__ = ["DuckDBViewSink", "stored_epochs"]

# The file is written through in bulk once the log has this size, or several times that of the file. DuckDB's default of 16 MB
# rewrites scattered blocks after every second epoch of 100k rows and halves the throughput; 128 MB are replayed within seconds
# after a crash.
_CHECKPOINT_THRESHOLD = "128MB"
_MAIN = "main."


class DuckDBViewSink:
    """Keep the view `table` in a DuckDB file equal to the sum of all answers.

    Args:
        path: the DuckDB file; created if it does not exist.
        table: name of the view, any string; `main.` before it names the schema it is in anyway.
        key: columns that identify a row of the view; at most one live row may hold a key, NULL being a value like any other.
            Default: the primary key of the output relation, else none (the view is a bag).
        hold_seconds: how long the file stays open after an epoch; 0 closes it at once, None keeps others out.
        patience_seconds: how long an epoch waits for others that have the file open.

    >>> from zset_join.core.relation import Relation
    >>> from zset_join.zset import ZSet
    >>> ones = ZSet.of({"k": [1, 1, 2]})
    >>> view = DuckDBViewSink(":memory:", "counts")
    >>> view.open(Relation(name="answer", schema=ones.schema, mode="changelog"), "doctest")
    >>> view.write(0, [ones]).rows
    2
    >>> sorted(view.read().column("k").to_pylist())
    [1, 1, 2]
    >>> view.close()
    """

    def __init__(
        self,
        path: str | Path,
        table: str,
        key: Sequence[str] | None = None,
        *,
        hash_bits: int = 64,
        hold_seconds: float | None = HOLD_SECONDS,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        named = table[len(_MAIN) :] if table[: len(_MAIN)].lower() == _MAIN else table
        if not named or isinstance(key, str) or not 1 <= hash_bits <= 64:
            raise OptionError(
                f"table={table!r}, key={key!r}, hash_bits={hash_bits!r}: the name of a view may not be empty, a key is "
                f"a list of column names, and a hash has 1 to 64 bits.",
                code="SINK_OPTION",
                table=table,
                key=key,
                hash_bits=hash_bits,
            )
        self.path = str(path)
        self.table = named
        self.key = None if key is None else tuple(key)
        self._hash_bits = hash_bits
        self._hold_seconds, self._patience_seconds = hold_seconds, patience_seconds
        # DuckDB does not promise the same hashes from one version to the next.
        self._hash_version = f"{duckdb.__version__}/{hash_bits}"
        self._file = DuckDBFile(self.path, self._harden, hold_seconds=hold_seconds, patience_seconds=patience_seconds)
        self._is_open = False
        self._may_lack_columns = False
        self._shared: duckdb.DuckDBPyConnection | None = None

    def __repr__(self) -> str:
        return f"DuckDBViewSink({self.path!r}, {self.table!r}, key={self.key!r})"

    def open(self, output: Relation, query_id: str, *, may_lack_columns: bool = False) -> None:
        check_output(self._described, output)
        self.close()
        self._query_id = query_id
        self._may_lack_columns = may_lack_columns
        self._take(output)
        self._is_open = True
        try:
            self._file.make_directory()
            with self._held("opened") as connection, self._transaction(connection):
                self._attach(connection)
        except BaseException:
            self.close()
            raise

    def _take(self, output: Relation) -> None:
        """Take rows of these columns."""
        self._key = self.key if self.key is not None else output.primary_key
        self._schema = output.schema
        self.written_as = self._key, UpsertFormat() if self._key else WeightFormat()
        self._check_names()
        self._statements = ViewStatements(self.table, output.schema, output.field_indices(self._key), hash_bits=self._hash_bits)

    def beside(self, name: str) -> DuckDBViewSink:
        return DuckDBViewSink(
            self.path,
            name,
            self.key,
            hash_bits=self._hash_bits,
            hold_seconds=self._hold_seconds,
            patience_seconds=self._patience_seconds,
        )

    def check_altered(self, output: Relation) -> None:
        key = self.key if self.key is not None else output.primary_key
        check_adds_columns(self._described, self._schema, output.schema, self._key, key)
        self._check_names(output.schema)
        self._refuse_type(output.schema)

    def alter(self, output: Relation) -> None:
        self._may_lack_columns = True
        self._take(output)

    def last_epoch(self) -> int | None:
        with self._held("read") as connection:
            return self._stored(connection)[0]

    def has(self, epoch: int, link: ChainLink | None) -> bool:
        with self._held("read") as connection:
            last, digests = self._stored(connection)
        return is_same_epoch(self._described, last, digests.get, epoch, link)

    def write(self, epoch: int, chunks: Iterable[ZSet], *, link: ChainLink | None = None) -> SinkProgress:
        started = perf_counter()
        with self._held(f"written in epoch {epoch}") as connection:
            try:
                with self._transaction(connection):
                    last, digests = self._stored(connection)
                    if is_same_epoch(self._described, last, digests.get, epoch, link):
                        return SinkProgress(epoch, 0, 0, perf_counter() - started, replayed=True)
                    self._add_columns(connection)
                    rows, retractions = self._apply(epoch) if self._load(epoch, chunks) else (0, 0)
                    chain = json.dumps(list(newest_digests(digests, epoch, link).items()))
                    counts = {"epoch": epoch, "rows": rows, "retractions": retractions, "chain": chain}
                    connection.execute(UPDATE_EPOCH, {"view": self.table, **counts})
            except duckdb.TransactionException:
                if self._shared is not None:
                    raise  # it is undone as a whole
                last, digests = self._stored(connection)
                if last is None or last < epoch:
                    raise
                is_same_epoch(self._described, last, digests.get, epoch, link)
                return SinkProgress(epoch, 0, 0, perf_counter() - started, replayed=True)  # another connection was first
        return SinkProgress(epoch, rows, retractions, perf_counter() - started)

    @property
    def database(self) -> Hashable:
        return ("duckdb", id(self) if self.path == ":memory:" else str(Path(self.path).resolve()))

    @contextlib.contextmanager
    def together(self, others: Sequence[Sink]) -> Iterator[None]:
        views = [self, *(other for other in others if isinstance(other, DuckDBViewSink))]
        with self._held("written") as connection, self._transaction(connection):
            for view in views:
                view._shared = connection
            try:
                yield
            finally:
                for view in views:
                    view._shared = None

    def unfit(self, rows: pa.RecordBatch) -> Sequence[UnfitRows]:
        return unfit_values(rows, lambda kind: within_microseconds(kind) if pt.is_timestamp(kind) and kind.tz else None)

    def read(self) -> pa.Table:
        """Return the rows of the view, repeated by weight, with the types of the output and in no particular order."""
        with self._held("read") as connection:
            lines = connection.sql(self._statements.read()).to_arrow_table()
        weights = lines.column("weight").to_numpy()
        rows = lines.drop_columns(["weight"]).rename_columns(self._schema.names).cast(with_added_nullable(0, self._schema))
        if (weights == 1).all():
            return rows
        return rows.take(pa.array(repeated_positions(weights)))

    def at_rest(self) -> tuple[str, ...]:
        """Close the file until its next use, and return its path: for copies of it."""
        self._file.close()
        return () if self.path == ":memory:" else (self.path,)

    def close(self) -> None:
        self._is_open = False
        self._file.close()

    # -- opening ------------------------------------------------------------------------------------------------------

    @property
    def _described(self) -> str:
        return f'view "{self.table}" in "{self.path}"'

    @contextlib.contextmanager
    def _held(self, what: str) -> Iterator[duckdb.DuckDBPyConnection]:
        """Have the file open; what DuckDB refuses is raised as an error of ours."""
        if not self._is_open:
            raise SinkError(f"{self._described} is closed; call open first.", code="SINK_CLOSED", table=self.table)
        try:
            if self._shared is not None:
                self._connection = self._shared
                yield self._shared
                return
            with self._file.held() as connection:
                self._connection = connection
                yield connection
        except duckdb.Error as error:
            raise self._failed(what, error) from error

    def _connected(self) -> duckdb.DuckDBPyConnection:
        """Return the connection, inside of `_held`."""
        return self._connection

    def _check_names(self, schema: pa.Schema | None = None) -> None:
        names = (self._schema if schema is None else schema).names
        folded = [name.lower() for name in names]
        clashes = sorted({name for name in names if folded.count(name.lower()) > 1})
        missing = [name for name in self._key if name not in names]
        if clashes or missing or "" in names or not names:
            raise SinkError(
                f"{self._described} cannot have the columns {names} and the key {list(self._key)}: names must be "
                f"there, differ by more than case, and contain the key"
                + (f"; {clashes} clash" if clashes else "")
                + (f"; {missing} are missing" if missing else "")
                + ". Rename the columns of the output.",
                code="SINK_COLUMNS",
                table=self.table,
                columns=names,
                clashes=clashes,
                missing=missing,
            )

    @staticmethod
    def _harden(connection: duckdb.DuckDBPyConnection) -> None:
        # Other connections of this process share the settings, and an earlier `open` may have locked them.
        if _scalar(connection, "SELECT current_setting('lock_configuration')"):
            return
        connection.execute(f"SET GLOBAL checkpoint_threshold = '{_CHECKPOINT_THRESHOLD}'")
        connection.execute("SET GLOBAL enable_external_access = false")
        connection.execute("SET GLOBAL lock_configuration = true")

    def _attach(self, connection: duckdb.DuckDBPyConnection) -> None:
        connection.execute(CREATE_EPOCHS)
        if ("chain",) not in connection.execute(EPOCHS_COLUMNS).fetchall():
            connection.execute(ADD_CHAIN)
        known = connection.execute(FIND_VIEW, {"view": self.table}).fetchall()
        if not known:
            self._create()
            return
        query_id, epoch, layout, version, _ = known[0]
        self._check_owner(query_id, epoch, json.loads(layout))
        if version != self._hash_version:
            self._add_columns(connection)
            connection.execute(self._statements.rehash())
            connection.execute(UPDATE_VERSION, {"view": self.table, "version": self._hash_version})

    def _stored(self, connection: duckdb.DuckDBPyConnection) -> tuple[int | None, dict[int, str]]:
        """Read the last epoch and the digests of the newest ones from the file: others may have written."""
        described = connection.execute(FIND_VIEW, {"view": self.table}).fetchall()
        if not described:
            return None, {}
        return described[0][1], dict(json.loads(described[0][4] or "[]"))

    def _layout(self) -> dict[str, Any]:
        encoded = base64.b64encode(self._schema.remove_metadata().serialize().to_pybytes()).decode()
        return {"key": list(self._key), "schema": encoded}

    def _create(self) -> None:
        connection = self._connected()
        taken = connection.execute(FIND_NAME, {"view": self.table}).fetchall()
        if taken:
            raise SinkError(
                f"{self._described} cannot be made: the file has a {taken[0][0].lower()} of that name which this "
                f"package did not make. Choose another name or another file.",
                code="SINK_NAME_TAKEN",
                table=self.table,
            )
        try:
            self._register(ZSet.empty(self._schema))
            for statement in [*self._statements.create(), self._statements.read()]:
                connection.execute(statement)
            connection.unregister(CHUNK)
        except (duckdb.Error, pa.ArrowNotImplementedError):
            self._refuse_type()
            raise
        connection.execute(
            INSERT_VIEW,
            {
                "view": self.table,
                "query_id": self._query_id,
                "layout": json.dumps(self._layout()),
                "version": self._hash_version,
            },
        )

    def _add_columns(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Give the view the columns that it lacks; nothing where it has them."""
        if not self._may_lack_columns:
            return
        layout = json.loads(connection.execute(FIND_VIEW, {"view": self.table}).fetchall()[0][2])
        lacking = len(self._schema) - len(_stored_schema(layout))
        if not lacking:
            return
        self._register(ZSet.empty(self._schema))
        types = [kind for (kind,) in connection.execute(self._statements.types()).fetchall()]
        connection.unregister(CHUNK)
        for statement in self._statements.add_columns(types, lacking):
            connection.execute(statement)
        connection.execute(UPDATE_LAYOUT, {"view": self.table, "layout": json.dumps(self._layout())})

    def _refuse_type(self, schema: pa.Schema | None = None) -> None:
        """Name the column that DuckDB cannot keep, by making a view of each alone and apart from the file."""
        for field in self._schema if schema is None else schema:
            statements = ViewStatements("sample", pa.schema([field]), ())
            with duckdb.connect(":memory:") as scratch:
                try:
                    columns = [pa.nulls(0, field.type), pa.nulls(0, pa.int64())]
                    scratch.register(CHUNK, pa.Table.from_arrays(columns, ["c0", "weight"]))
                    for statement in [*statements.create(), statements.read()]:
                        scratch.execute(statement)
                except (duckdb.Error, pa.ArrowNotImplementedError) as error:
                    raise SinkError(
                        f'{self._described} cannot keep column "{field.name}": DuckDB has no type for {field.type} '
                        f"({error}). Cast it in the query.",
                        code="SINK_TYPE",
                        table=self.table,
                        column=field.name,
                        type=str(field.type),
                    ) from error

    def _check_owner(self, query_id: str, epoch: int | None, layout: dict[str, Any]) -> None:
        if query_id != self._query_id:
            raise SinkError(
                f'{self._described} belongs to query "{query_id}" (its last epoch is {epoch}), not to '
                f'"{self._query_id}". Write to another file or table, or delete this one to start over.',
                code="SINK_QUERY_ID",
                table=self.table,
                expected=query_id,
                actual=self._query_id,
            )
        kept = _stored_schema(layout)
        now = self._schema
        if self._may_lack_columns and layout["key"] == list(self._key) and adds_columns(kept, now):
            return
        if layout["key"] != list(self._key) or kept.names != now.names or kept.types != now.types:
            raise SinkError(
                f"{self._described} was made with key {layout['key']} and columns [{_columns(kept)}]; the query now "
                f"has key {list(self._key)} and columns [{_columns(now)}]. Restore the query, or start a new view "
                f"and checkpoint.",
                code="SINK_SCHEMA",
                table=self.table,
            )

    # -- writing ------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _transaction(self, connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
        if self._shared is not None:
            yield
            return
        connection.execute("BEGIN TRANSACTION")
        try:
            yield
            connection.execute("COMMIT")
        except BaseException as failure:
            try:
                connection.execute("ROLLBACK")
            except duckdb.Error as error:
                # A failed COMMIT has rolled back already; the failure itself is what the caller must see.
                failure.add_note(f"ROLLBACK answered: {error}")
            raise
        self._file.shorten_log()

    def _register(self, chunk: ZSet) -> None:
        columns = [*chunk.rows.columns, pa.array(chunk.weights)]
        self._connected().register(CHUNK, pa.Table.from_arrays(columns, names=[*self._statements.columns, "weight"]))

    def _load(self, epoch: int, chunks: Iterable[ZSet]) -> bool:
        """Put the answer into the delta, and return whether there is any."""
        connection = self._connected()
        loaded = False
        for chunk in chunks:
            check_chunk(self._described, epoch, self._schema, chunk)
            if not len(chunk):
                continue
            self._register(chunk)
            try:
                connection.execute(self._statements.load(first=not loaded))
            finally:
                connection.unregister(CHUNK)
            loaded = True
        return loaded

    def _apply(self, epoch: int) -> tuple[int, int]:
        """Bring the base table from before the delta to after it; return lines of the net delta and its retractions."""
        connection, statements = self._connected(), self._statements
        if _scalar(connection, statements.count_repeats()):
            for statement in statements.consolidate():
                connection.execute(statement)
            self._refuse_overflow(epoch)
            connection.execute(statements.take_net())
        rows, retractions = connection.execute(statements.count_delta()).fetchall()[0]
        if retractions or (rows and statements.has_key):
            connection.execute(statements.find_candidates())
            connection.execute(statements.match_retractions())
        if retractions:
            unheld, delta_row, rests = connection.execute(statements.count_unheld()).fetchall()[0]
            if unheld:
                self._refuse_retraction(epoch, unheld, delta_row)
            connection.execute(statements.delete_matched())
            if rests:
                connection.execute(statements.insert_rest())
        if rows > retractions:
            if statements.has_key:
                self._refuse_second_row(epoch, statements.find_repeated_key())
                self._refuse_second_row(epoch, statements.find_taken_key())
            connection.execute(statements.insert())
        return rows, retractions

    def _refuse_overflow(self, epoch: int) -> None:
        overflow = _first_row(self._connected(), self._statements.find_overflow())
        if overflow is not None:
            raise WeightOverflowError(
                f"{self._described}: the weights of row {self._named(overflow[:-1])} add up to {overflow[-1]} in epoch "
                f"{epoch}, which does not fit an int64. Look for a source that repeats rows.",
                table=self.table,
                epoch=epoch,
                row=overflow[:-1],
                weight=overflow[-1],
            )

    def _refuse_retraction(self, epoch: int, unheld: int, delta_row: int) -> None:
        retraction = _first_row(self._connected(), self._statements.describe_retraction(delta_row)) or ()
        *row, weight, held = retraction
        key = dict(zip(self._schema.names, row, strict=True))
        raise SinkError(
            f"{self._described}: epoch {epoch} retracts row {self._named(row)} {counted(-weight, 'time')} and the view holds "
            f"it {counted(held, 'time')}"
            + (f" (key { ({name: key[name] for name in self._key}) })" if self._key else "")
            + (f"; {unheld - 1} more retractions are like it" if unheld > 1 else "")
            + ". The view was changed by others or belongs to another checkpoint: delete both to start over.",
            code="SINK_RETRACTION",
            table=self.table,
            epoch=epoch,
            row=tuple(row),
            weight=weight,
            held=held,
            retractions=unheld,
        )

    def _refuse_second_row(self, epoch: int, query: str) -> None:
        claimed = _first_row(self._connected(), query)
        if claimed is not None:
            raise SinkError(
                f"{self._described}: two live rows claim the key {dict(zip(self._key, claimed, strict=True))} in epoch "
                f"{epoch}. Name more columns in key=, or leave it out for a view that may hold several.",
                code="SINK_KEY",
                table=self.table,
                epoch=epoch,
                key=claimed,
            )

    def _named(self, row: Sequence[Any]) -> dict[str, Any]:
        return dict(zip(self._schema.names, row, strict=True))

    def _failed(self, what: str, error: duckdb.Error) -> SinkError:
        while isinstance(error.__context__, duckdb.Error):  # a rollback that fails as well hides the cause
            error = error.__context__
        cure = "check the path, the space on the disk, and that no other process has the file open"
        if isinstance(error, duckdb.OutOfMemoryException):
            cure = "give this process more memory, of which DuckDB uses 80 %, or smaller epochs"
        return SinkError(
            f"{self._described} could not be {what}: {error}. The view is as it was before; {cure}.",
            code="SINK_IO",
            table=self.table,
            path=self.path,
        )


def _stored_schema(layout: dict[str, Any]) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(layout["schema"])))


def _scalar(connection: duckdb.DuckDBPyConnection, query: str) -> Any:
    return connection.execute(query).fetchall()[0][0]


def _first_row(connection: duckdb.DuckDBPyConnection, query: str) -> tuple[Any, ...] | None:
    """Return the first row to be shown, through Arrow: DuckDB's own way needs more packages for some types."""
    table = connection.sql(query).to_arrow_table()
    return shown_key(table.columns, 0) if table.num_rows else None


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)


def stored_epochs(path: str, table: str | None = None, *, patience_seconds: float = 10.0) -> list[StoredEpochs]:
    """Return which epochs the views in a file hold, all in one snapshot; it is opened for reading, and only for that long."""
    file = DuckDBFile(path, hold_seconds=0, patience_seconds=patience_seconds, read_only=True)
    try:
        with file.held() as connection:
            found = connection.execute(FIND_STORED)
            names = [column[0] for column in found.description or ()]
            rows = [dict(zip(names, row, strict=True)) for row in found.fetchall()]
    except duckdb.Error as error:
        raise SinkError(
            f'the views in "{path}" cannot be read: {str(error).splitlines()[0]}. Give a DuckDB file that a query writes.',
            code="SINK_IO",
            path=path,
        ) from error
    return stored_views(rows, table)
