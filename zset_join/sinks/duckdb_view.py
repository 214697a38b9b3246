"""A materialized view in a DuckDB file.

The law: after epoch N the view `table` holds every row of the sum of the answers 0..N as often as its weight.
Rows and epochs are written in one transaction, see `transactional_table`.

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

import contextlib
import re
from collections.abc import Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.types as pt
from typing_extensions import override

from zset_join.core.epochs import ChainLink
from zset_join.core.errors import OptionError, SinkError, WeightOverflowError
from zset_join.core.extras import needed_for
from zset_join.core.relation import Relation, with_added_nullable
from zset_join.core.row_conversion import repeated_positions
from zset_join.core.shown_values import counted, shown_key
from zset_join.sinks.duckdb_file import CHUNK, FIND_NAME, HOLD_SECONDS, PATIENCE_SECONDS, DuckDBFile, ViewStatements
from zset_join.sinks.epoch_sink import (
    FIND_ALL,
    TransactionalTable,
    check_names,
    claimed_key,
    given_key,
    repeated_names,
    unheld_row,
)
from zset_join.sinks.sink import StoredEpochs, stored_views
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
_PLACE = re.compile(r":(\w+)")


class DuckDBViewSink(TransactionalTable):
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

    _errors = (duckdb.Error,)
    _same_view = "lower(view) = lower(:view)"

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
        if not named or not 1 <= hash_bits <= 64:
            raise OptionError(
                f"table={table!r}, hash_bits={hash_bits!r}: the name of a view may not be empty, a hash has 1 to 64 bits.",
                code="SINK_OPTION",
                table=table,
                hash_bits=hash_bits,
            )
        self.path = str(path)
        self.table = named
        self.key = given_key(key)
        self._hash_bits = hash_bits
        self._hold_seconds, self._patience_seconds = hold_seconds, patience_seconds
        # DuckDB does not promise the same hashes from one version to the next.
        self._hash_version = f"{duckdb.__version__}/{hash_bits}"
        self._file = DuckDBFile(self.path, self._harden, hold_seconds=hold_seconds, patience_seconds=patience_seconds)
        self._connection: duckdb.DuckDBPyConnection | None = None

    def __repr__(self) -> str:
        return f"DuckDBViewSink({self.path!r}, {self.table!r}, key={self.key!r})"

    def beside(self, name: str) -> DuckDBViewSink:
        return DuckDBViewSink(
            self.path,
            name,
            self.key,
            hash_bits=self._hash_bits,
            hold_seconds=self._hold_seconds,
            patience_seconds=self._patience_seconds,
        )

    @property
    def database(self) -> Hashable:
        return ("duckdb", id(self) if self.path == ":memory:" else str(Path(self.path).resolve()))

    def unfit(self, rows: pa.RecordBatch) -> Sequence[UnfitRows]:
        return unfit_values(rows, lambda kind: within_microseconds(kind) if pt.is_timestamp(kind) and kind.tz else None)

    def read(self) -> pa.Table:
        """Return the rows of the view, repeated by weight, with the types of the output and in no particular order."""
        self._opened()
        with self._using("read"):
            lines = self._connected().sql(self._statements.read()).to_arrow_table()
        weights = lines.column("weight").to_numpy()
        rows = lines.drop_columns(["weight"]).rename_columns(self._schema.names).cast(with_added_nullable(0, self._schema))
        if (weights == 1).all():
            return rows
        return rows.take(pa.array(repeated_positions(weights)))

    def at_rest(self) -> tuple[str, ...]:
        """Close the file until its next use, and return its path: for copies of it."""
        self._file.close()
        return () if self.path == ":memory:" else (self.path,)

    @override
    def close(self) -> None:
        super().close()
        self._file.close()

    # -- opening ------------------------------------------------------------------------------------------------------

    @property
    @override
    def _described(self) -> str:
        return f'view "{self.table}" in "{self.path}"'

    @contextlib.contextmanager
    @override
    def _using(self, what: str) -> Iterator[None]:
        with super()._using(what):
            if self._shared is not None:
                yield
                return
            with self._file.held() as self._connection:
                yield

    @override
    def _connected(self) -> duckdb.DuckDBPyConnection:
        return cast("duckdb.DuckDBPyConnection", self._shared or self._connection)

    @override
    def _run(self, statement: str, **values: Any) -> list[tuple[Any, ...]]:
        return self._connected().execute(_PLACE.sub(r"$\1", statement), values or None).fetchall()

    @override
    def _take(self, output: Relation) -> None:
        super()._take(output)
        self._check_names(output)
        self._statements = ViewStatements(self.table, output.schema, output.field_indices(self._key), hash_bits=self._hash_bits)

    def _check_names(self, output: Relation) -> None:
        names = output.schema.names
        check_names(self._described, names, self._key, refused=repeated_names(names), why="names differ by more than case")

    @override
    def _check_columns(self, output: Relation) -> None:
        self._check_names(output)
        self._refuse_type(output.schema)

    @override
    def _layout(self) -> dict[str, Any]:
        return {**super()._layout(), "hash_version": self._hash_version}

    @staticmethod
    def _harden(connection: duckdb.DuckDBPyConnection) -> None:
        # Other connections of this process share the settings, and an earlier `open` may have locked them.
        if _scalar(connection, "SELECT current_setting('lock_configuration')"):
            return
        connection.execute(f"SET GLOBAL checkpoint_threshold = '{_CHECKPOINT_THRESHOLD}'")
        connection.execute("SET GLOBAL enable_external_access = false")
        connection.execute("SET GLOBAL lock_configuration = true")

    @override
    def _go_on(self, stored: dict[str, Any]) -> None:
        if stored["hash_version"] != self._hash_version:
            if self._may_lack_columns:
                self._add_columns()
            self._connected().execute(self._statements.rehash())
            self._keep_layout()

    @override
    def _make(self) -> None:
        self._refuse_name(is_taken=bool(self._run(FIND_NAME, view=self.table)))
        try:
            self._register(ZSet.empty(self._schema))
            for statement in [*self._statements.create(), self._statements.read()]:
                self._connected().execute(statement)
            self._connected().unregister(CHUNK)
        except (duckdb.Error, pa.ArrowNotImplementedError):
            self._refuse_type(self._schema)
            raise

    @override
    def _widen(self, lacking: int) -> None:
        self._register(ZSet.empty(self._schema))
        types = [kind for (kind,) in self._run(self._statements.types())]
        self._connected().unregister(CHUNK)
        for statement in self._statements.add_columns(types, lacking):
            self._connected().execute(statement)

    def _refuse_type(self, schema: pa.Schema) -> None:
        """Name the column that DuckDB cannot keep, by making a view of each alone and apart from the file."""
        for field in schema:
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

    # -- writing ------------------------------------------------------------------------------------------------------

    @override
    def _write(self, epoch: int, chunks: Iterable[ZSet], link: ChainLink | None) -> tuple[int, int] | None:
        try:
            return super()._write(epoch, chunks, link)
        except duckdb.TransactionException:
            if self._shared is not None or not self._is_there(epoch, link):
                raise  # with others it is undone as a whole
            return None  # another connection was first

    @contextlib.contextmanager
    @override
    def _transaction(self) -> Iterator[None]:
        if self._shared is not None:
            yield
            return
        connection = self._connected()
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
        for chunk in self._checked(epoch, chunks):
            if not len(chunk):
                continue
            self._register(chunk)
            try:
                connection.execute(self._statements.load(first=not loaded))
            finally:
                connection.unregister(CHUNK)
            loaded = True
        return loaded

    @override
    def _apply(self, epoch: int, chunks: Iterable[ZSet]) -> tuple[int, int]:
        if not self._load(epoch, chunks):
            return 0, 0
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
        *row, weight, held = _first_row(self._connected(), self._statements.describe_retraction(delta_row)) or ()
        instead = f"the view holds it {counted(held, 'time')}"
        raise unheld_row(self._described, epoch, self._named(row), weight, instead, key=self._key, retractions=unheld)

    def _refuse_second_row(self, epoch: int, query: str) -> None:
        claimed = _first_row(self._connected(), query)
        if claimed is not None:
            raise claimed_key(self._described, epoch, dict(zip(self._key, claimed, strict=True)))

    def _named(self, row: Sequence[Any]) -> dict[str, Any]:
        return dict(zip(self._schema.names, row, strict=True))

    @override
    def _failed(self, what: str, error: Any) -> SinkError:
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


def _scalar(connection: duckdb.DuckDBPyConnection, query: str) -> Any:
    return connection.execute(query).fetchall()[0][0]


def _first_row(connection: duckdb.DuckDBPyConnection, query: str) -> tuple[Any, ...] | None:
    """Return the first row to be shown, through Arrow: DuckDB's own way needs more packages for some types."""
    table = connection.sql(query).to_arrow_table()
    return shown_key(table.columns, 0) if table.num_rows else None


def stored_epochs(path: str, table: str | None = None, *, patience_seconds: float = 10.0) -> list[StoredEpochs]:
    """Return which epochs the views in a file hold, all in one snapshot; it is opened for reading, and only for that long."""
    file = DuckDBFile(path, hold_seconds=0, patience_seconds=patience_seconds, read_only=True)
    try:
        with file.held() as connection:
            found = connection.execute(FIND_ALL)
            names = [column[0] for column in found.description or ()]
            rows = [dict(zip(names, row, strict=True)) for row in found.fetchall()]
    except duckdb.Error as error:
        raise SinkError(
            f'the views in "{path}" cannot be read: {str(error).splitlines()[0]}. Give a DuckDB file that a query writes.',
            code="SINK_IO",
            path=path,
        ) from error
    return stored_views(rows, table)
