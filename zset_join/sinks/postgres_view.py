"""A materialized view in PostgreSQL.

The law: after epoch N the view `table` holds every row of the sum of the answers 0..N as often as its weight. Rows
and epochs are written in one transaction, see `transactional_table`; others read the view at the end of an epoch while the
query runs.

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

import re
from collections.abc import Hashable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeAlias, cast

import numpy as np
import pyarrow as pa
from typing_extensions import override

from zset_join.core.errors import OptionError, SinkError
from zset_join.core.extras import needed_for
from zset_join.core.relation import Relation
from zset_join.core.shown_values import counted
from zset_join.lookup.secret import Secret, without_secrets
from zset_join.sinks.epoch_sink import FIND_ALL, TransactionalTable, check_names, claimed_key, given_key, unheld_row
from zset_join.sinks.postgres_sql import RESERVED, PostgresStatements, csv_of, null_patterns, postgres_type, representable
from zset_join.sinks.sink import StoredEpochs, stored_views
from zset_join.sinks.unfit_values import UnfitRows, long_values, text_with_nul, unfit_values
from zset_join.zset import ZSet

with needed_for("a PostgreSQL output", "psycopg"):
    import psycopg

__all__ = ["PostgresViewSink", "stored_epochs"]

_SEND_BYTES = 1 << 20
_MOST_KEY_BYTES = 2_600
_MOST_ROW_BYTES = 400_000_000
_MOST_NAME_BYTES = 63
_PLACE = re.compile(r":(\w+)")

_Connection: TypeAlias = "psycopg.Connection[tuple[Any, ...]]"


class PostgresViewSink(TransactionalTable):
    """Keep the view `table` in a PostgreSQL database equal to the sum of all answers.

    Args:
        conninfo: for libpq, such as `"host=db dbname=shop user=writer"`, or a URI.
        table: name of the view, at most 50 bytes long; it is made in the first schema of the search path.
        key: columns that identify a row of the view; default: the primary key of the output relation, else none.

    Raises:
        OptionError: a name that is empty or too long.
    """

    _errors = (psycopg.Error,)

    def __init__(self, conninfo: str, table: str, key: Sequence[str] | None = None) -> None:
        if not table or len(table.encode()) > 50:
            raise OptionError(f"table={table!r}: the name of a view has 1 to 50 bytes.", code="SINK_OPTION", table=table)
        self.table = table
        self.key = given_key(key)
        self._conninfo = conninfo
        self._connection: _Connection | None = None
        self._database: Hashable = ("postgres", id(self))

    def __repr__(self) -> str:
        return f"PostgresViewSink({self.table!r}, key={self.key!r})"

    def beside(self, name: str) -> PostgresViewSink:
        return PostgresViewSink(self._conninfo, name, self.key)

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
        self._opened()
        with self._using("read"), self._transaction():
            rows = self._connected().execute(self._statements.read()).fetchall()
        columns = list(zip(*rows, strict=True)) or [()] * len(self._schema)
        return pa.table(
            [pa.array(column, field.type) for column, field in zip(columns, self._schema, strict=True)], schema=self._schema
        )

    @property
    def database(self) -> Hashable:
        return self._database

    @override
    def close(self) -> None:
        super().close()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # -- opening ------------------------------------------------------------------------------------------------------

    @property
    @override
    def _described(self) -> str:
        return f'PostgreSQL view "{self.table}"'

    @override
    def _connected(self) -> _Connection:
        return cast("_Connection", self._shared or self._connection)

    @override
    def _transaction(self) -> AbstractContextManager[Any]:
        return self._connected().transaction()

    @override
    def _run(self, statement: str, **values: Any) -> list[tuple[Any, ...]]:
        cursor = self._connected().execute(_PLACE.sub(r"%(\1)s", statement), values)
        return cursor.fetchall() if cursor.description else []

    @override
    def _take(self, output: Relation) -> None:
        super()._take(output)
        self._check_columns(output)
        self._statements = PostgresStatements(self.table, output.schema, self._key)

    @override
    def _check_columns(self, output: Relation) -> None:
        names = output.schema.names
        refused = [name for name in names if name in (*RESERVED, "") or len(name.encode()) > _MOST_NAME_BYTES]
        why = f"names have 1 to {_MOST_NAME_BYTES} bytes and are none of ours ({', '.join(RESERVED)})"
        check_names(self._described, names, self._key, refused=refused, why=why)
        for field in output.schema:
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

    @override
    def _attach(self) -> None:
        # Without autocommit a SELECT between two epochs begins a transaction, and those of epochs are parts of it.
        named = f"zset_join {self.table}"[:63]
        self._connection = psycopg.connect(self._conninfo, application_name=named, autocommit=True)
        info = self._connection.info
        self._database = ("postgres", info.host, info.port, info.dbname, info.user)
        super()._attach()

    @override
    def _lock(self, *, whole: bool) -> None:
        if whole:  # two that start at once would both make the tables
            self._run("SELECT pg_advisory_xact_lock(hashtextextended('zset_join', 0))")
        else:
            self._run("SELECT FROM _zset_join_epochs WHERE view = :view FOR UPDATE", view=self.table)

    @override
    def _make(self) -> None:
        connection = self._connected()
        names = [name.as_string(connection) for name in (self._statements.view, self._statements.base)]
        taken = connection.execute("SELECT to_regclass(%s), to_regclass(%s)", names).fetchone()
        self._refuse_name(is_taken=taken is not None and any(name is not None for name in taken))
        for statement in self._statements.create():
            connection.execute(statement)

    @override
    def _widen(self, lacking: int) -> None:
        for statement in self._statements.add_columns(lacking):
            self._connected().execute(statement)

    # -- writing ------------------------------------------------------------------------------------------------------

    @override
    def _apply(self, epoch: int, chunks: Iterable[ZSet]) -> tuple[int, int]:
        connection, net = self._connected(), self._delta(epoch, chunks).consolidated()
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
            raise claimed_key(self._described, epoch, dict(zip(self._key, twice, strict=True)))
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
            instead = f"the view holds it {counted(held, 'time')}"
            raise unheld_row(self._described, epoch, dict(zip(self._schema.names, row, strict=True)), weight, instead)

    @override
    def _failed(self, what: str, error: Any) -> SinkError:
        if isinstance(error, psycopg.errors.UniqueViolation):
            return SinkError(
                f"{self._described}: two live rows claim one key, {what}: {error.diag.message_detail}. Name more columns in "
                "key=, or leave it out for a view that may hold several.",
                code="SINK_KEY",
                table=self.table,
            )
        message = error.diag.message_primary or _reason(error, self._conninfo)
        return SinkError(
            f"{self._described} could not be {what}: {message}. The view is as it was before the epoch; check that the "
            "server runs, "
            "the rights of the user, and the space on its disk.",
            code="SINK_IO",
            table=self.table,
            state=error.sqlstate,
        )


def stored_epochs(conninfo: str, table: str | None = None) -> list[StoredEpochs]:
    """Return which epochs the views in a database hold, all in one snapshot; it is only read."""
    with needed_for("reading the positions of PostgreSQL"):
        from psycopg.rows import dict_row

    try:
        with psycopg.connect(conninfo, application_name="zset_join position", row_factory=dict_row) as connection:
            connection.read_only = True
            rows = connection.execute(FIND_ALL).fetchall()
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
