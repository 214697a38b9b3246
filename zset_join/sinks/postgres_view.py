"""A materialized view in PostgreSQL.

The law: after epoch N the view `table` holds every row of the sum of the answers 0..N as often as its weight. One
transaction writes the rows of an epoch, its number and the query's id (table `_zset_join_epochs`, one line per view), so
others read the view at the end of an epoch while the query runs, a crash leaves it there, and an epoch that arrives again
changes nothing.

Without a key the identity of a row is the whole row; with one at most one row may hold a key, NULL being a value like any
other. What it cannot do is refused and the epoch undone: retracting a row that the view does not hold, two live rows with one
key.

Memory: the answer of one epoch, and its CSV. Cost per epoch: follows the delta; COPY into a temporary table, then an UPDATE, a
DELETE and an INSERT by an index.

Limits: PostgreSQL 15 or newer. Columns of lists, structs, maps, durations and of nanoseconds are refused: cast them. Values
that a view can never hold (see `unfit`): text with the character U+0000, dates and timestamps outside the years 1 to 32767,
keys of more than 2,600 bytes, which no index takes, and rows of more than 400 MB. Passwords belong into the environment
(`PGPASSWORD`), a password file or a service, all of which libpq reads; `conninfo` never appears in a message.
"""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Hashable, Iterable, Iterator, Sequence
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from zset_join.changelog import UpsertFormat, WeightFormat
from zset_join.core.added_columns import adds_columns
from zset_join.core.epoch_chain import ChainLink
from zset_join.core.errors import OptionError, SinkError, ZsetJoinError
from zset_join.core.extras import needed_for
from zset_join.core.relation import Relation
from zset_join.core.shown_values import counted
from zset_join.lookup.secret import Secret, without_secrets
from zset_join.sinks.altering import check_adds_columns
from zset_join.sinks.postgres_sql import (
    EPOCHS,
    RESERVED,
    PostgresStatements,
    csv_of,
    null_patterns,
    postgres_type,
    representable,
)
from zset_join.sinks.sink import Sink, SinkProgress, check_chunk, check_output, is_same_epoch, newest_digests
from zset_join.sinks.stored_epochs import StoredEpochs, stored_views
from zset_join.sinks.unfit_values import UnfitRows, long_values, text_with_nul, unfit_values
from zset_join.zset import ZSet

with needed_for("a PostgreSQL output", "psycopg"):
    import psycopg
    from psycopg import sql

__all__ = ["PostgresViewSink", "stored_epochs"]

_CREATE_EPOCHS = sql.SQL(
    "CREATE TABLE IF NOT EXISTS {} (view text PRIMARY KEY, query_id text NOT NULL, epoch bigint, rows bigint NOT NULL, "
    "retractions bigint NOT NULL, layout text NOT NULL, chain text)"
).format(EPOCHS)
_ADD_CHAIN = sql.SQL("ALTER TABLE {} ADD COLUMN IF NOT EXISTS chain text").format(EPOCHS)
"""Tables of versions without a chain of epochs get its column when they are opened."""
_FIND = sql.SQL("SELECT query_id, epoch, layout, chain FROM {} WHERE view = %s").format(EPOCHS)
_FIND_ALL = sql.SQL("SELECT * FROM {} ORDER BY view").format(EPOCHS)
_INSERT = sql.SQL("INSERT INTO {} VALUES (%s, %s, NULL, 0, 0, %s, NULL)").format(EPOCHS)
_UPDATE = sql.SQL("UPDATE {} SET epoch = %s, rows = %s, retractions = %s, chain = %s WHERE view = %s").format(EPOCHS)
_LAYOUT = sql.SQL("UPDATE {} SET layout = %s WHERE view = %s").format(EPOCHS)
_SEND_BYTES = 1 << 20
_MOST_KEY_BYTES = 2_600
_MOST_ROW_BYTES = 400_000_000

_Connection: TypeAlias = "psycopg.Connection[tuple[Any, ...]]"


class PostgresViewSink:
    """Keep the view `table` in a PostgreSQL database equal to the sum of all answers.

    Args:
        conninfo: for libpq, such as `"host=db dbname=shop user=writer"`, or a URI.
        table: name of the view, at most 50 bytes long; it is made in the first schema of the search path.
        key: columns that identify a row of the view; default: the primary key of the output relation, else none.

    Raises:
        OptionError: a name that is empty or too long.
    """

    def __init__(self, conninfo: str, table: str, key: Sequence[str] | None = None) -> None:
        if not table or len(table.encode()) > 50 or isinstance(key, str):
            raise OptionError(
                f"table={table!r}, key={key!r}: the name of a view has 1 to 50 bytes, and a key is a list of column names.",
                code="SINK_OPTION",
                table=table,
                key=key,
            )
        self.table = table
        self.key = None if key is None else tuple(key)
        self._conninfo = conninfo
        self._connection: _Connection | None = None
        self._database: Hashable = ("postgres", id(self))
        self._may_lack_columns = False

    def __repr__(self) -> str:
        return f"PostgresViewSink({self.table!r}, key={self.key!r})"

    def open(self, output: Relation, query_id: str, *, may_lack_columns: bool = False) -> None:
        check_output(self._described, output)
        self.close()
        self._query_id, self._may_lack_columns = query_id, may_lack_columns
        self._take(output)
        try:
            self._connection = psycopg.connect(self._conninfo, application_name=f"zset_join {self.table}"[:63])
            info = self._connection.info
            self._database = ("postgres", info.host, info.port, info.dbname, info.user)
            with self._connection.transaction():
                # Two that start at once would both make the tables.
                self._connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", ["zset_join"])
                self._connection.execute(_CREATE_EPOCHS)
                self._connection.execute(_ADD_CHAIN)
                self._attach()
        except psycopg.Error as error:
            self.close()
            raise self._failed("opened", error) from error
        except ZsetJoinError:
            self.close()
            raise

    def _take(self, output: Relation) -> None:
        """Take rows of these columns."""
        self._schema = output.schema
        self._key = self.key if self.key is not None else output.primary_key
        self._check_columns(output.schema)
        self._statements = PostgresStatements(self.table, output.schema, self._key)
        self.written_as = self._key, UpsertFormat() if self._key else WeightFormat()

    def beside(self, name: str) -> PostgresViewSink:
        return PostgresViewSink(self._conninfo, name, self.key)

    def check_altered(self, output: Relation) -> None:
        key = self.key if self.key is not None else output.primary_key
        check_adds_columns(self._described, self._schema, output.schema, self._key, key)
        self._check_columns(output.schema)

    def alter(self, output: Relation) -> None:
        self._may_lack_columns = True
        self._take(output)

    def last_epoch(self) -> int | None:
        try:
            connection = self._connected()
            with connection.transaction():
                return self._stored(connection)[0]
        except psycopg.Error as error:
            raise self._failed("read", error) from error

    def has(self, epoch: int, link: ChainLink | None) -> bool:
        try:
            connection = self._connected()
            with connection.transaction():
                last, digests = self._stored(connection)
        except psycopg.Error as error:
            raise self._failed("read", error) from error
        return is_same_epoch(self._described, last, digests.get, epoch, link)

    def write(self, epoch: int, chunks: Iterable[ZSet], *, link: ChainLink | None = None) -> SinkProgress:
        started = perf_counter()
        connection = self._connected()
        try:
            with connection.transaction():
                connection.execute(sql.SQL("SELECT FROM {} WHERE view = %s FOR UPDATE").format(EPOCHS), [self.table])
                last, digests = self._stored(connection)
                if is_same_epoch(self._described, last, digests.get, epoch, link):
                    return SinkProgress(epoch, 0, 0, perf_counter() - started, replayed=True)
                self._add_columns(connection)
                rows, retractions = self._apply(connection, epoch, chunks)
                chain = json.dumps(list(newest_digests(digests, epoch, link).items()))
                connection.execute(_UPDATE, [epoch, rows, retractions, chain, self.table])
        except psycopg.errors.UniqueViolation as error:
            raise SinkError(
                f"{self._described}: two live rows claim one key in epoch {epoch}: {error.diag.message_detail}. Name "
                "more columns "
                "in key=, or leave it out for a view that may hold several.",
                code="SINK_KEY",
                table=self.table,
                epoch=epoch,
            ) from error
        except psycopg.Error as error:
            raise self._failed(f"written in epoch {epoch}", error) from error
        return SinkProgress(epoch, rows, retractions, perf_counter() - started)

    def unfit(self, rows: pa.RecordBatch) -> Sequence[UnfitRows]:
        found = [*unfit_values(rows, representable), *text_with_nul(rows)]
        if self._key:
            reason = f"makes a key of more than {_MOST_KEY_BYTES} bytes, which no index takes"
            found += long_values(rows, self._key, _MOST_KEY_BYTES, reason)
        return [
            *found,
            *long_values(rows, rows.schema.names, _MOST_ROW_BYTES, f"makes a row of more than {_MOST_ROW_BYTES} bytes"),
        ]

    def read(self) -> pa.Table:
        """Return the rows of the view, in the schema of the output and in no particular order: for checks."""
        connection = self._connected()
        try:
            with connection.transaction():
                rows = connection.execute(self._statements.read()).fetchall()
        except psycopg.Error as error:
            raise self._failed("read", error) from error
        columns = list(zip(*rows, strict=True)) or [()] * len(self._schema)
        return pa.table(
            [pa.array(column, field.type) for column, field in zip(columns, self._schema, strict=True)], schema=self._schema
        )

    @property
    def database(self) -> Hashable:
        return self._database

    @contextlib.contextmanager
    def together(self, others: Sequence[Sink]) -> Iterator[None]:
        shared = self._connected()
        own = [(view, view._connected()) for view in others if isinstance(view, PostgresViewSink)]
        try:
            with shared.transaction():
                for view, _ in own:
                    view._connection = shared
                try:
                    yield
                finally:
                    for view, connection in own:
                        view._connection = connection
        except psycopg.Error as error:
            raise self._failed("written", error) from error

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # -- opening ------------------------------------------------------------------------------------------------------

    @property
    def _described(self) -> str:
        return f'PostgreSQL view "{self.table}"'

    def _connected(self) -> _Connection:
        if self._connection is None:
            raise SinkError(f"{self._described} is closed; call open first.", code="SINK_CLOSED", table=self.table)
        return self._connection

    def _check_columns(self, schema: pa.Schema) -> None:
        names = schema.names
        missing = [name for name in self._key if name not in names]
        reserved = [name for name in names if name in (*RESERVED, "") or len(name.encode()) > 63]
        if missing or reserved or not names:
            raise SinkError(
                f"{self._described} cannot have the columns {names} and the key {list(self._key)}: names have 1 to 63 "
                "bytes and "
                f"are none of ours ({', '.join(RESERVED)}), and the key is among them. Rename the columns of the output.",
                code="SINK_COLUMNS",
                table=self.table,
                columns=names,
                missing=missing,
            )
        for field in schema:
            if postgres_type(field.type) is None:
                raise SinkError(
                    f'{self._described} cannot keep column "{field.name}": there is no type of PostgreSQL for '
                    f"{field.type} here. "
                    "Cast it in the query, a nested column to text with to_json.",
                    code="SINK_TYPE",
                    table=self.table,
                    column=field.name,
                    type=str(field.type),
                )

    def _attach(self) -> None:
        connection = self._connected()
        comment = connection.execute(_FIND, [self.table]).fetchone()
        if comment is not None:
            self._check_owner(*comment[:3])
            return
        taken = connection.execute("SELECT to_regclass(%s), to_regclass(%s)", self._quoted_names(connection)).fetchone()
        if taken is not None and any(name is not None for name in taken):
            raise SinkError(
                f"{self._described} cannot be made: the database has something else of that name. Choose another name, "
                "or drop it.",
                code="SINK_NAME_TAKEN",
                table=self.table,
            )
        for statement in self._statements.create():
            connection.execute(statement)
        connection.execute(_INSERT, [self.table, self._query_id, json.dumps(self._layout())])

    def _add_columns(self, connection: _Connection) -> None:
        """Give the view the columns that it lacks; nothing where it has them."""
        found = connection.execute(_FIND, [self.table]).fetchone() if self._may_lack_columns else None
        lacking = 0 if found is None else len(self._schema) - len(_stored_schema(json.loads(found[2])))
        if not lacking:
            return
        for statement in self._statements.add_columns(lacking):
            connection.execute(statement)
        connection.execute(_LAYOUT, [json.dumps(self._layout()), self.table])

    def _quoted_names(self, connection: _Connection) -> list[str]:
        return [name.as_string(connection) for name in (self._statements.view, self._statements.base)]

    def _layout(self) -> dict[str, Any]:
        return {"key": list(self._key), "schema": base64.b64encode(self._schema.serialize()).decode()}

    def _check_owner(self, query_id: str, epoch: int | None, layout: str) -> None:
        if query_id != self._query_id:
            raise SinkError(
                f'{self._described} belongs to query "{query_id}" (its last epoch is {epoch}), not to '
                f'"{self._query_id}". Write to '
                f"another table, or drop this one and its line in _zset_join_epochs to start over.",
                code="SINK_QUERY_ID",
                table=self.table,
                expected=query_id,
                actual=self._query_id,
            )
        stored = json.loads(layout)
        kept = _stored_schema(stored)
        if self._may_lack_columns and stored["key"] == list(self._key) and adds_columns(kept, self._schema):
            return
        if stored["key"] != list(self._key) or kept.names != self._schema.names or kept.types != self._schema.types:
            raise SinkError(
                f"{self._described} was made with key {stored['key']} and columns {kept.names}; the query now has key "
                f"{list(self._key)} and columns {self._schema.names}, or columns of other types. Restore the query, or start a "
                "new view and checkpoint.",
                code="SINK_SCHEMA",
                table=self.table,
            )

    def _stored(self, connection: _Connection) -> tuple[int | None, dict[int, str]]:
        """Return the last epoch, and the digests of the newest ones."""
        comment = connection.execute(_FIND, [self.table]).fetchone()
        if comment is None:
            raise SinkError(
                f"{self._described} has lost its line in _zset_join_epochs; the view was changed by others. Drop it and "
                "start over.",
                code="SINK_RETRACTION",
                table=self.table,
            )
        return None if comment[1] is None else int(comment[1]), dict(json.loads(comment[3] or "[]"))

    # -- writing ------------------------------------------------------------------------------------------------------

    def _apply(self, connection: _Connection, epoch: int, chunks: Iterable[ZSet]) -> tuple[int, int]:
        """Bring the table from before the answer to after it; return lines of the net change and its retractions."""
        parts = []
        for chunk in chunks:
            check_chunk(self._described, epoch, self._schema, chunk)
            parts.append(chunk)
        net = ZSet.concat(parts, schema=self._schema).consolidated()
        if not len(net):
            return 0, 0
        statements = self._statements
        patterns = [null_patterns(net.rows, self._key)] if self._key else []
        connection.execute(statements.make_net())
        with connection.cursor() as cursor, cursor.copy(statements.copy_net()) as copy:
            data = memoryview(csv_of(net, *patterns))
            for begin in range(0, len(data), _SEND_BYTES):
                copy.write(data[begin : begin + _SEND_BYTES])
        connection.execute(statements.analyze_net())
        retractions = int((net.weights < 0).sum())
        if self._key:
            self._change_keyed(connection, epoch, np.unique(np.asarray(patterns[0])).tolist(), retractions)
        else:
            self._change_bag(connection, epoch, retractions)
        connection.execute(statements.drop_net())  # another view may be next in this transaction
        return len(net), retractions

    def _change_keyed(self, connection: _Connection, epoch: int, patterns: Sequence[int], retractions: int) -> None:
        statements = self._statements
        twice = connection.execute(statements.claimed_twice()).fetchone()
        if twice is not None:
            raise SinkError(
                f"{self._described}: two live rows claim the key {dict(zip(self._key, twice, strict=True))} in epoch {epoch}. "
                "Name more columns in key=, or leave it out for a view that may hold several.",
                code="SINK_KEY",
                table=self.table,
                epoch=epoch,
                key=twice,
            )
        changed = 0
        connection.execute("SAVEPOINT before_the_epoch")
        for pattern in patterns if retractions else ():
            changed += max(0, connection.execute(statements.delete(pattern)).rowcount)
            changed += max(0, connection.execute(statements.update(pattern)).rowcount)
        if changed < retractions:
            connection.execute("ROLLBACK TO SAVEPOINT before_the_epoch")
            self._refuse_unheld(connection, epoch)
            raise SinkError(
                f"{self._described}: epoch {epoch} retracts {counted(retractions, 'row')} and the view holds {changed} of "
                "them. The view was changed by others or belongs to another checkpoint: delete both to start over.",
                code="SINK_RETRACTION",
                table=self.table,
                epoch=epoch,
            )
        for pattern in patterns:
            connection.execute(statements.insert_new(pattern))

    def _change_bag(self, connection: _Connection, epoch: int, retractions: int) -> None:
        statements = self._statements
        if retractions:
            self._refuse_unheld(connection, epoch)
        connection.execute(statements.change_weights())
        connection.execute(statements.insert_rows())
        if retractions:
            connection.execute(statements.remove_empty())

    def _refuse_unheld(self, connection: _Connection, epoch: int) -> None:
        unheld = connection.execute(self._statements.unheld()).fetchone()
        if unheld is not None:
            *row, weight, held = unheld
            raise SinkError(
                f"{self._described}: epoch {epoch} retracts row {dict(zip(self._schema.names, row, strict=True))} "
                f"{counted(-weight, 'time')} "
                f"and the view holds it {counted(held, 'time')}. The view was changed by others or belongs to another "
                "checkpoint: delete both to start over.",
                code="SINK_RETRACTION",
                table=self.table,
                epoch=epoch,
                row=tuple(row),
                weight=weight,
                held=held,
            )

    def _failed(self, what: str, error: psycopg.Error) -> SinkError:
        message = error.diag.message_primary or _reason(error, self._conninfo)
        return SinkError(
            f"{self._described} could not be {what}: {message}. The view is as it was before the epoch; check that the "
            "server runs, "
            "the rights of the user, and the space on its disk.",
            code="SINK_IO",
            table=self.table,
            state=error.sqlstate,
        )


def _stored_schema(layout: dict[str, Any]) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(layout["schema"])))


def stored_epochs(conninfo: str, table: str | None = None) -> list[StoredEpochs]:
    """Return which epochs the views in a database hold, all in one snapshot; it is only read."""
    with needed_for("reading the positions of PostgreSQL"):
        from psycopg.rows import dict_row

    try:
        with psycopg.connect(conninfo, application_name="zset_join position", row_factory=dict_row) as connection:
            connection.read_only = True
            rows = connection.execute(_FIND_ALL).fetchall()
    except psycopg.Error as error:
        raise SinkError(
            f"the views in a PostgreSQL database cannot be read: {_reason(error, conninfo)}. Check that the server runs, the "
            "rights of the user, and its search path.",
            code="SINK_IO",
            table=table,
            state=error.sqlstate,
        ) from error
    return stored_views(rows, table)


def _reason(error: psycopg.Error, conninfo: str) -> str:
    """Return the client's message, in one line and without the password."""
    emitted = " ".join(str(error).split())
    try:
        password = psycopg.conninfo.conninfo_to_dict(conninfo).get("password")
    except psycopg.ProgrammingError:  # what libpq cannot read, its message may quote
        return f"{type(error).__name__}: the connection string cannot be read"
    return without_secrets(emitted, Secret.given(str(password))) if password else emitted or type(error).__name__
