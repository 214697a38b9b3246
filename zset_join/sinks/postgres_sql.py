"""The SQL of a materialized view in PostgreSQL, made once per view, and the text form in which rows go there.

With a key the view is a plain table with the columns of the output and a unique index over the key that takes NULL for a
value. An index is of use only where it is known which key columns are NULL: so changes are worked off by pattern, the bits of
the key columns that are NULL in them.

Without one it is a SQL view over a table `<name>__rows`, whose lines carry `_zset_weight`, how often the row is present, and
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

from zset_join.core.extras import needed_for
from zset_join.zset import ZSet

with needed_for("a PostgreSQL output", "psycopg"):
    from psycopg import sql

__all__ = ["RESERVED", "PostgresStatements", "csv_of", "null_patterns", "postgres_type", "representable"]

RESERVED = ("_zset_weight", "_zset_hash", "_zset_nulls")
_NET = sql.Identifier("_zset_join_net")
_WEIGHT, _HASH, _NULLS = map(sql.Identifier, RESERVED)
_HEX = np.frombuffer(b"".join(f"{byte:02x}".encode() for byte in range(256)), "<u2")

_FIRST_DAY, _LAST_DAY, _SECONDS_PER_DAY = -719_162, 11_248_737, 86_400  # 0001-01-01 and 32767-12-31

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


def representable(kind: pa.DataType) -> tuple[int, int] | None:
    """Return the first and the last date or timestamp of a type that the CSV of Arrow and PostgreSQL both write as it is.

    >>> representable(pa.date32())
    (-719162, 11248737)
    """
    if pt.is_date32(kind):
        return _FIRST_DAY, _LAST_DAY
    if not pt.is_timestamp(kind):
        return None
    per_day = _SECONDS_PER_DAY * {"s": 1, "ms": 1_000, "us": 1_000_000}[kind.unit]
    return _FIRST_DAY * per_day, (_LAST_DAY + 1) * per_day - 1


class PostgresStatements:
    """The statements that make, change and read one view."""

    def __init__(self, table: str, schema: pa.Schema, key: Sequence[str]) -> None:
        self.key = tuple(key)
        self.view = sql.Identifier(table)
        self.base = sql.Identifier(table if key else f"{table}__rows")
        self._index = sql.Identifier(f"{table}__zset_key")
        self._names = [sql.Identifier(name) for name in schema.names]
        self._key = [sql.Identifier(name) for name in key]
        self._others = [sql.Identifier(name) for name in schema.names if name not in key]
        self._types = [sql.SQL(postgres_type(field.type) or "") for field in schema]
        self._listed = sql.SQL(", ").join(self._names)
        self._columns = sql.SQL(", ").join(
            sql.SQL("{} {}").format(*pair) for pair in zip(self._names, self._types, strict=True)
        )

    def create(self) -> list[sql.Composed]:
        """Return the statements that make the table, its index, and for a bag the view over it."""
        if self.key:
            over = sql.SQL(", ").join(self._key)
            return [
                sql.SQL("CREATE TABLE {} ({}) WITH (fillfactor = 80)").format(self.base, self._columns),
                sql.SQL("CREATE UNIQUE INDEX {} ON {} ({}) NULLS NOT DISTINCT").format(self._index, self.base, over),
            ]
        return [
            sql.SQL("CREATE TABLE {} ({}, {} bigint NOT NULL, {} bigint NOT NULL)").format(
                self.base, self._columns, _WEIGHT, _HASH
            ),
            sql.SQL("CREATE INDEX {} ON {} ({})").format(self._index, self.base, _HASH),
            sql.SQL("CREATE VIEW {} AS {}").format(self.view, self._shown()),
        ]

    def _shown(self) -> sql.Composed:
        return sql.SQL("SELECT {} FROM {}, generate_series(1, {})").format(self._listed, self.base, _WEIGHT)

    def add_columns(self, lacking: int) -> list[sql.Composed]:
        """Return the statements that give the table its last columns, and for a bag show them in the view."""
        added = list(zip(self._names, self._types, strict=True))[-lacking:]
        statements = [sql.SQL("ALTER TABLE {} ADD COLUMN {} {}").format(self.base, *one) for one in added]
        if self.key:
            return statements
        hashed = sql.SQL("UPDATE {} SET {} = hash_record_extended(ROW({}), 0)").format(self.base, _HASH, self._listed)
        return [*statements, hashed, sql.SQL("CREATE OR REPLACE VIEW {} AS {}").format(self.view, self._shown())]

    def make_net(self) -> sql.Composed:
        """Return the statement that makes the table of what an epoch changes, gone with the transaction."""
        if self.key:
            return sql.SQL("CREATE TEMP TABLE {} ({}, {} bigint, {} int) ON COMMIT DROP").format(
                _NET, self._columns, _WEIGHT, _NULLS
            )
        hashed = sql.SQL("hash_record_extended(ROW({}), 0)").format(self._listed)
        return sql.SQL("CREATE TEMP TABLE {} ({}, {} bigint, {} bigint GENERATED ALWAYS AS ({}) STORED) ON COMMIT DROP").format(
            _NET, self._columns, _WEIGHT, _HASH, hashed
        )

    def drop_net(self) -> sql.Composed:
        """Return the statement that drops that table, for a transaction that continues."""
        return sql.SQL("DROP TABLE {}").format(_NET)

    def copy_net(self) -> sql.Composed:
        """Return the statement that takes the changes as CSV: every distinct row once, its weight, with a key its pattern."""
        last = [_WEIGHT, _NULLS] if self.key else [_WEIGHT]
        columns = sql.SQL(", ").join([*self._names, *last])
        return sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(_NET, columns)

    def analyze_net(self) -> sql.Composed:
        """Return the statement that lets PostgreSQL plan with what the changes are like."""
        return sql.SQL("ANALYZE {}").format(_NET)

    # -- with a key -----------------------------------------------------------------------------------------------------

    def update(self, nulls: int) -> sql.Composed:
        """Return the statement that replaces the rows of keys that go and come back, of one pattern of NULLs in the key."""
        if not self._others:
            return sql.SQL("SELECT WHERE false").format()
        values = sql.SQL(", ").join(sql.SQL("{0} = come.{0}").format(name) for name in self._others)
        return sql.SQL(
            "UPDATE {base} AS held SET {values} FROM {net} AS gone, {net} AS come WHERE gone.{weight} < 0 "
            "AND come.{weight} > 0 AND gone.{nulls} = {pattern} AND come.{nulls} = {pattern} AND {pair} AND {is_held}"
        ).format(
            base=self.base,
            values=values,
            net=_NET,
            weight=_WEIGHT,
            nulls=_NULLS,
            pattern=sql.Literal(nulls),
            pair=self._same_key("come", "gone", nulls),
            is_held=self._held_by("gone", nulls),
        )

    def delete(self, nulls: int) -> sql.Composed:
        """Return the statement that takes away the rows of keys that go for good, of one pattern."""
        return sql.SQL(
            "DELETE FROM {base} AS held USING {net} AS gone WHERE gone.{weight} < 0 AND gone.{nulls} = {pattern} "
            "AND NOT EXISTS (SELECT FROM {net} AS come WHERE come.{weight} > 0 AND come.{nulls} = {pattern} AND {pair}) "
            "AND {is_held}"
        ).format(
            base=self.base,
            net=_NET,
            weight=_WEIGHT,
            nulls=_NULLS,
            pattern=sql.Literal(nulls),
            pair=self._same_key("come", "gone", nulls),
            is_held=self._held_by("gone", nulls),
        )

    def insert_new(self, nulls: int) -> sql.Composed:
        """Return the statement that adds the rows of keys that arrive and did not go, of one pattern."""
        return sql.SQL(
            "INSERT INTO {base} ({names}) SELECT {columns} FROM {net} AS come WHERE come.{weight} > 0 "
            "AND come.{nulls} = {pattern} AND NOT EXISTS (SELECT FROM {net} AS gone WHERE gone.{weight} < 0 "
            "AND gone.{nulls} = {pattern} AND {pair})"
        ).format(
            base=self.base,
            names=self._listed,
            columns=self._prefixed("come"),
            net=_NET,
            weight=_WEIGHT,
            nulls=_NULLS,
            pattern=sql.Literal(nulls),
            pair=self._same_key("come", "gone", nulls),
        )

    def claimed_twice(self) -> sql.Composed:
        """Return the query for a key that more than one row of the changes goes from, or comes to."""
        over = sql.SQL(", ").join(self._key)
        return sql.SQL("SELECT {over} FROM {net} GROUP BY {over}, {weight} > 0 HAVING sum(abs({weight})) > 1 LIMIT 1").format(
            over=over, net=_NET, weight=_WEIGHT
        )

    # -- without one ----------------------------------------------------------------------------------------------------

    def change_weights(self) -> sql.Composed:
        """Return the statement that changes how often the rows are present that are present already."""
        return sql.SQL(
            "UPDATE {base} AS held SET {weight} = held.{weight} + net.{weight} FROM {net} AS net WHERE {same} "
            "AND held.{weight} >= -net.{weight}"
        ).format(base=self.base, net=_NET, weight=_WEIGHT, same=self._same_row("net"))

    def remove_empty(self) -> sql.Composed:
        """Return the statement that removes the lines that represent no row any more."""
        return sql.SQL(
            "DELETE FROM {base} AS held USING {net} AS net WHERE held.{hashed} = net.{hashed} AND held.{weight} = 0"
        ).format(base=self.base, net=_NET, weight=_WEIGHT, hashed=_HASH)

    def insert_rows(self) -> sql.Composed:
        """Return the statement that adds the rows that were absent."""
        return sql.SQL(
            "INSERT INTO {base} ({names}, {weight}, {hashed}) SELECT {columns}, net.{weight}, net.{hashed} FROM {net} AS net "
            "WHERE net.{weight} > 0 AND NOT EXISTS (SELECT FROM {base} AS held WHERE {same})"
        ).format(
            base=self.base,
            names=self._listed,
            columns=self._prefixed("net"),
            net=_NET,
            weight=_WEIGHT,
            hashed=_HASH,
            same=self._same_row("net"),
        )

    # -- both -------------------------------------------------------------------------------------------------------------

    def unheld(self) -> sql.Composed:
        """Return the query for one retraction of a row that does not exist often enough, before anything is changed."""
        if self.key:
            held = sql.SQL("CASE WHEN held.ctid IS NULL THEN 0 ELSE 1 END")
            pairs = [sql.SQL("held.{0} IS NOT DISTINCT FROM net.{0}").format(name) for name in self._names]
            match: sql.Composable = sql.SQL(" AND ").join(pairs)
        else:
            held, match = sql.SQL("coalesce(held.{}, 0)").format(_WEIGHT), self._same_row("net")  # type: ignore[assignment]
        return sql.SQL(
            "SELECT {columns}, net.{weight}, {held} FROM {net} AS net LEFT JOIN {base} AS held ON {match} "
            "WHERE net.{weight} < 0 AND {held} < -net.{weight} LIMIT 1"
        ).format(columns=self._prefixed("net"), weight=_WEIGHT, held=held, net=_NET, base=self.base, match=match)

    def read(self) -> sql.Composed:
        """Return the query for all rows of the view."""
        return sql.SQL("SELECT {} FROM {}").format(self._listed, self.view)

    def _prefixed(self, table: str) -> sql.Composed:
        return sql.SQL(", ").join(sql.SQL(f"{table}.{{}}").format(name) for name in self._names)

    def _same_key(self, one: str, other: str, nulls: int) -> sql.Composed:
        """Return the condition that two rows have one key, whose NULLs are known: an index answers it."""
        tests = [
            sql.SQL(
                f"{one}.{{0}} IS NULL AND {other}.{{0}} IS NULL" if nulls >> at & 1 else f"{one}.{{0}} = {other}.{{0}}"
            ).format(name)
            for at, name in enumerate(self._key)
        ]
        return sql.SQL(" AND ").join(tests)

    def _held_by(self, table: str, nulls: int) -> sql.Composed:
        """Return the condition that a held row is the one of a change: the key by the index, the rest by value."""
        others = [sql.SQL(f"held.{{0}} IS NOT DISTINCT FROM {table}.{{0}}").format(name) for name in self._others]
        return sql.SQL(" AND ").join([self._same_key("held", table, nulls), *others])

    def _same_row(self, table: str) -> sql.Composed:
        """Return the condition that a held row of a bag is the changed one: its hash by the index, the row by value."""
        tests = [sql.SQL(f"held.{{0}} IS NOT DISTINCT FROM {table}.{{0}}").format(name) for name in self._names]
        return sql.SQL(" AND ").join([sql.SQL(f"held.{{0}} = {table}.{{0}}").format(_HASH), *tests])


def csv_of(delta: ZSet, *more: pa.Array) -> pa.Buffer:
    """Return the lines of a delta as CSV, the weight behind the columns, then what else is given."""
    columns = [_hexadecimal(column) if _is_bytes(column.type) else column for column in delta.rows.columns]
    arrays = [*columns, pa.array(delta.weights), *more]
    rows = pa.RecordBatch.from_arrays(arrays, names=[f"c{at}" for at in range(len(arrays))])
    sink = pa.BufferOutputStream()
    pa.csv.write_csv(rows, sink, pa.csv.WriteOptions(include_header=False, quoting_style="all_valid"))
    return sink.getvalue()


def null_patterns(rows: pa.RecordBatch, key: Sequence[str]) -> pa.Array:
    """Return, per row, the bits of the key columns that are NULL.

    >>> null_patterns(pa.RecordBatch.from_pydict({"a": [1, None], "b": [None, None]}), ["a", "b"]).to_pylist()
    [2, 3]
    """
    bits = np.zeros(rows.num_rows, np.int32)
    for at, name in enumerate(key):
        column = rows.column(name)
        if column.null_count:
            bits |= np.asarray(column.is_null()).astype(np.int32) << at
    return pa.array(bits)


def _is_bytes(data_type: pa.DataType) -> bool:
    return bool(pt.is_binary(data_type) or pt.is_large_binary(data_type))


def _hexadecimal(column: pa.Array) -> pa.Array:
    r"""Return bytes in PostgreSQL's form, `\x` and two digits each."""
    plain = column.cast(pa.large_binary())
    offsets = np.frombuffer(plain.buffers()[1], np.int64)[plain.offset : plain.offset + len(plain) + 1]
    data = np.frombuffer(plain.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
    written = 2 * (offsets - offsets[0]) + 2 * np.arange(len(offsets))
    digits = np.zeros(int(written[-1]) // 2, "<u2")
    starts = written[:-1] // 2
    digits[starts] = int.from_bytes(b"\\x", "little")
    body = np.ones(len(digits), bool)
    body[starts] = False
    digits[body] = _HEX[data]
    validity = plain.is_valid()
    text = pa.Array.from_buffers(pa.large_string(), len(plain), [None, pa.py_buffer(written), pa.py_buffer(digits)])
    return pa.compute.if_else(validity, text, pa.scalar(None, pa.large_string()))
