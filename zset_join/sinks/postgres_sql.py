"""The SQL of a materialized view in PostgreSQL, made once per view, and the text form in which rows go there.

With a key the view is a plain table with the columns of the output, a unique index over the key that takes NULL for a value,
and an index over the key's hash, by which a row is found where its key may have a NULL.
Without one it is a SQL view over a table `<name>__rows`, whose lines carry `_zset_weight`, how often the row is there, and
`_zset_hash`, PostgreSQL's own hash of the row, which finds candidates; rows are compared by value.

Rows travel as CSV through COPY, made by Arrow: NULL is an empty field, every value is quoted. Lists, structs and maps have no
form there and are refused.

Every name of a user goes through psycopg's `Identifier`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.types as pt
from psycopg import sql

from zset_join.zset import ZSet

__all__ = ["EPOCHS", "WEIGHT", "PostgresStatements", "csv_of", "postgres_type"]

WEIGHT = "_zset_weight"
HASH = "_zset_hash"
EPOCHS = sql.Identifier("_zset_join_epochs")
_DELTA = sql.Identifier("_zset_join_delta")
_NET = sql.Identifier("_zset_join_net")
_HEX = np.frombuffer(b"".join(f"{byte:02x}".encode() for byte in range(256)), "<u2")

_TYPES = {
    pa.bool_(): "boolean",
    pa.int8(): "smallint",
    pa.int16(): "smallint",
    pa.int32(): "integer",
    pa.int64(): "bigint",
    pa.uint8(): "smallint",
    pa.uint16(): "integer",
    pa.uint32(): "bigint",
    pa.uint64(): "numeric(20)",
    pa.float32(): "real",
    pa.float64(): "double precision",
    pa.date32(): "date",
}


def postgres_type(data_type: pa.DataType) -> str | None:
    """Return the type of PostgreSQL that keeps every value of an Arrow type, but for times finer than microseconds; else None.

    >>> postgres_type(pa.decimal128(12, 2)), postgres_type(pa.list_(pa.int64()))
    ('numeric(12,2)', None)
    """
    if data_type in _TYPES:
        return _TYPES[data_type]
    if pt.is_string(data_type) or pt.is_large_string(data_type):
        return "text"
    if pt.is_binary(data_type) or pt.is_large_binary(data_type):
        return "bytea"
    if pt.is_decimal(data_type):
        return f"numeric({data_type.precision},{data_type.scale})"
    if pt.is_timestamp(data_type) and data_type.unit != "ns":
        return "timestamptz" if data_type.tz is not None else "timestamp"
    return None


class PostgresStatements:
    """The statements that make, change and read one view.

    Args:
        table: what the user calls the view.
        schema: columns of the output, all of types that `postgres_type` knows.
        key: the key columns; none for a bag.
    """

    def __init__(self, table: str, schema: pa.Schema, key: Sequence[str]) -> None:
        self.key = tuple(key)
        self.view = sql.Identifier(table)
        self.base = sql.Identifier(table if key else f"{table}__rows")
        self._index = sql.Identifier(f"{table}__zset_key")
        self._hash_index = sql.Identifier(f"{table}__zset_hash")
        self._names = [sql.Identifier(name) for name in schema.names]
        self._types = [sql.SQL(postgres_type(field.type) or "") for field in schema]
        self._listed = sql.SQL(", ").join(self._names)

    def create(self) -> list[sql.Composed]:
        """Return the statements that make the table, its index, and for a bag the view over it."""
        columns = sql.SQL(", ").join(sql.SQL("{} {}").format(*pair) for pair in zip(self._names, self._types, strict=True))
        if self.key:
            over = sql.SQL(", ").join(map(sql.Identifier, self.key))
            return [
                sql.SQL("CREATE TABLE {} ({})").format(self.base, columns),
                sql.SQL("CREATE UNIQUE INDEX {} ON {} ({}) NULLS NOT DISTINCT").format(self._index, self.base, over),
                sql.SQL("CREATE INDEX {} ON {} ({})").format(self._hash_index, self.base, self._hash("")),
            ]
        return [
            sql.SQL("CREATE TABLE {} ({}, {} bigint NOT NULL, {} bigint NOT NULL)").format(
                self.base, columns, sql.Identifier(WEIGHT), sql.Identifier(HASH)
            ),
            sql.SQL("CREATE INDEX {} ON {} ({})").format(self._index, self.base, sql.Identifier(HASH)),
            sql.SQL("CREATE VIEW {} AS SELECT {} FROM {}, generate_series(1, {})").format(
                self.view, self._listed, self.base, sql.Identifier(WEIGHT)
            ),
        ]

    def make_delta(self) -> sql.Composed:
        """Return the statement that makes the table of the changes of one epoch, gone with the transaction."""
        columns = sql.SQL(", ").join(sql.SQL("{} {}").format(*pair) for pair in zip(self._names, self._types, strict=True))
        return sql.SQL("CREATE TEMP TABLE {} ({}, {} bigint) ON COMMIT DROP").format(_DELTA, columns, sql.Identifier(WEIGHT))

    def copy_delta(self) -> sql.Composed:
        """Return the statement that takes the changes as CSV."""
        return sql.SQL("COPY {} FROM STDIN (FORMAT csv)").format(_DELTA)

    def make_net(self) -> list[sql.Composed]:
        """Return the statements that add up the weights of equal rows and leave out what cancels out."""
        return [
            sql.SQL(
                "CREATE TEMP TABLE {net} ON COMMIT DROP AS SELECT {columns}, sum({weight})::bigint AS {weight}, {hash} "
                "AS {hashed} "
                "FROM {delta} GROUP BY {columns} HAVING sum({weight}) <> 0"
            ).format(
                net=_NET,
                columns=self._listed,
                weight=sql.Identifier(WEIGHT),
                hash=self._hash(""),
                hashed=sql.Identifier(HASH),
                delta=_DELTA,
            ),
            sql.SQL("ANALYZE {}").format(_NET),
        ]

    def count_net(self) -> sql.Composed:
        """Return the query for the lines of the net change, and the retractions among them."""
        return sql.SQL("SELECT count(*), count(*) FILTER (WHERE {0} < 0) FROM {1}").format(sql.Identifier(WEIGHT), _NET)

    def take_away(self) -> sql.Composed:
        """Return the statement that takes away what is retracted; it says how many lines it found."""
        if self.key:
            return sql.SQL("DELETE FROM {base} AS held USING {net} AS net WHERE net.{weight} = -1 AND {same}").format(
                base=self.base, net=_NET, weight=sql.Identifier(WEIGHT), same=self._same()
            )
        return sql.SQL(
            "UPDATE {base} AS held SET {weight} = held.{weight} + net.{weight} FROM {net} AS net WHERE "
            "{same} AND (net.{weight} > 0 OR held.{weight} >= -net.{weight})"
        ).format(base=self.base, net=_NET, weight=sql.Identifier(WEIGHT), same=self._same())

    def remove_empty(self) -> sql.Composed:
        """Return the statement that removes the lines of a bag that stand for no row any more."""
        return sql.SQL(
            "DELETE FROM {base} AS held USING {net} AS net WHERE held.{hashed} = net.{hashed} AND held.{weight} = 0"
        ).format(base=self.base, net=_NET, weight=sql.Identifier(WEIGHT), hashed=sql.Identifier(HASH))

    def unheld(self) -> sql.Composed:
        """Return the query for one retraction of a row that is not there often enough, before anything is taken away."""
        one = "CASE WHEN held.ctid IS NULL THEN 0 ELSE 1 END"
        held = sql.SQL(one) if self.key else sql.SQL("held.{}").format(sql.Identifier(WEIGHT))
        return sql.SQL(
            "SELECT {columns}, net.{weight}, coalesce({held}, 0) FROM {net} AS net LEFT JOIN {base} AS held ON {match} "
            "WHERE net.{weight} < 0 AND coalesce({held}, 0) < -net.{weight} LIMIT 1"
        ).format(
            columns=self._prefixed("net"),
            weight=sql.Identifier(WEIGHT),
            held=held,
            net=_NET,
            base=self.base,
            match=self._same(),
        )

    def insert(self) -> sql.Composed:
        """Return the statement that adds what is inserted."""
        if self.key:
            return sql.SQL("INSERT INTO {} SELECT {} FROM {} WHERE {} > 0").format(
                self.base, self._listed, _NET, sql.Identifier(WEIGHT)
            )
        return sql.SQL(
            "INSERT INTO {base} SELECT {columns}, net.{weight}, net.{hashed} FROM {net} AS net WHERE net.{weight} > 0 "
            "AND NOT EXISTS "
            "(SELECT FROM {base} AS held WHERE {same})"
        ).format(
            base=self.base,
            columns=self._prefixed("net"),
            net=_NET,
            weight=sql.Identifier(WEIGHT),
            hashed=sql.Identifier(HASH),
            same=self._same(),
        )

    def repeated_weight(self) -> sql.Composed:
        """Return the query for a row of a keyed view that the epoch inserts or retracts more than once."""
        return sql.SQL("SELECT {} FROM {} WHERE abs({}) > 1 LIMIT 1").format(
            sql.SQL(", ").join(map(sql.Identifier, self.key)), _NET, sql.Identifier(WEIGHT)
        )

    def read(self) -> sql.Composed:
        """Return the query for all rows of the view."""
        return sql.SQL("SELECT {} FROM {}").format(self._listed, self.view)

    def _hash(self, table: str) -> sql.Composed:
        """Return the expression for the hash that a row is found by: of its key, or of all of it."""
        names = [sql.Identifier(name) for name in self.key] or self._names
        listed = sql.SQL(", ").join(sql.SQL(f"{table}{{}}").format(name) for name in names)
        return sql.SQL("hash_record_extended(ROW({}), 0)").format(listed)

    def _prefixed(self, table: str) -> sql.Composed:
        return sql.SQL(", ").join(sql.SQL("{}.{}").format(sql.SQL(table), name) for name in self._names)

    def _same(self) -> sql.Composed:
        """Return the condition that a held row is the changed one: its hash by the index, the row by value."""
        found = self._hash("held.") if self.key else sql.SQL("held.{}").format(sql.Identifier(HASH))
        tests = [sql.SQL("held.{0} IS NOT DISTINCT FROM net.{0}").format(name) for name in self._names]
        return sql.SQL(" AND ").join([sql.SQL("{} = net.{}").format(found, sql.Identifier(HASH)), *tests])


def csv_of(delta: ZSet) -> pa.Buffer:
    """Return the lines of a delta as CSV, the weight last. Cost: one pass in C++, and one over the bytes of binary columns."""
    columns = [_hexadecimal(column) if _is_bytes(column.type) else column for column in delta.rows.columns]
    rows = pa.RecordBatch.from_arrays([*columns, pa.array(delta.weights)], names=[*delta.schema.names, WEIGHT])
    sink = pa.BufferOutputStream()
    pa.csv.write_csv(rows, sink, pa.csv.WriteOptions(include_header=False, quoting_style="all_valid"))
    return sink.getvalue()


def _is_bytes(data_type: pa.DataType) -> bool:
    return bool(pt.is_binary(data_type) or pt.is_large_binary(data_type))


def _hexadecimal(column: pa.Array) -> pa.Array:
    r"""Return bytes in PostgreSQL's form, `\x` and two digits each."""
    plain = column.cast(pa.large_binary())
    offsets = np.frombuffer(plain.buffers()[1], np.int64)[plain.offset : plain.offset + len(plain) + 1]
    data = np.frombuffer(plain.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
    written = 2 * (offsets - offsets[0]) + 2 * np.arange(len(offsets))
    made = np.zeros(int(written[-1]) // 2, "<u2")
    starts = written[:-1] // 2
    made[starts] = int.from_bytes(b"\\x", "little")
    body = np.ones(len(made), bool)
    body[starts] = False
    made[body] = _HEX[data]
    validity = plain.is_valid()
    text = pa.Array.from_buffers(pa.large_string(), len(plain), [None, pa.py_buffer(written), pa.py_buffer(made)])
    return pa.compute.if_else(validity, text, pa.scalar(None, pa.large_string()))
