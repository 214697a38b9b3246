"""Rows as JSON objects, one a text, read as `zset_join.sinks.json_rows` writes them, and as others do.

    read = read_json_rows([b'{"id": 1, "day": "2024-01-02"}'], schema)

The law: what our JSON files and topics are written as is read as the same rows. As in Spark, a name that is missing is NULL,
one that is more is passed over, a number may stand in a text, and bytes are base64. A number where a time is wanted is refused:
it may count seconds, milliseconds or microseconds. Every text is a row, or is told as unread.

Cost: one pass in pyarrow; of texts that it cannot read (numbers in texts, NaN, bytes), one in DuckDB, three times as long.
"""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
import pyarrow.types as pt

from zset_join.changelog.formats import RecordOptions
from zset_join.errors import BadInputError, PlanError
from zset_join.extras import needed_for
from zset_join.sources.json_records import JsonRecordReader
from zset_join.sources.unread import UnreadText

with needed_for("reading rows of JSON"):
    import duckdb

__all__ = ["part_json_rows", "read_json_rows"]

_WRAPPED = "maxwell-json"  # the format whose records are a row and a word beside it


def read_json_rows(texts: Sequence[bytes], schema: pa.Schema) -> pa.Table:
    """Return the rows of JSON texts.

    Args:
        texts: one JSON object each.
        schema: the columns wanted; at least one.

    Raises:
        BadInputError: a text that is no such row; its fact `record` is its number among the texts.

    >>> read_json_rows([b'{"day": "2024-01-02", "n": "7"}'], pa.schema({"day": pa.date32(), "n": pa.int32()})).to_pylist()
    [{'day': datetime.date(2024, 1, 2), 'n': 7}]
    """
    rows, unread = part_json_rows(texts, schema)
    if unread:
        raise BadInputError(unread[0].shown, code=unread[0].code, record=unread[0].number)
    return rows


def part_json_rows(texts: Sequence[bytes], schema: pa.Schema) -> tuple[pa.Table, list[UnreadText]]:
    """Return the rows of JSON texts, and the texts that are no rows.

    Args:
        texts: one JSON object each.
        schema: the columns wanted; at least one.

    Raises:
        BadInputError: a type that JSON cannot hold.

    >>> rows, unread = part_json_rows([b'{"n": 7}', b'{"n": "x"}'], pa.schema({"n": pa.int32()}))
    >>> rows.to_pylist(), unread[0].number, unread[0].reason
    ([{'n': 7}], 1, 'the value of "n" cannot be read as int32')
    """
    if not texts:
        return schema.empty_table(), []
    rows = None if any(pt.is_binary(field.type) for field in schema) else _read_by_pyarrow(texts, schema)
    return _read_and_unread(texts, schema) if rows is None else (rows, [])


def _read_by_pyarrow(texts: Sequence[bytes], schema: pa.Schema) -> pa.Table | None:
    """Return the rows where every value is written as its type is by itself; else None."""
    written = pa.schema([field.with_type(pa.string()) if pt.is_date32(field.type) else field for field in schema])
    options = pj.ParseOptions(explicit_schema=written, unexpected_field_behavior="ignore")
    try:
        rows = pj.read_json(io.BytesIO(b"\n".join(text.replace(b"\n", b" ") for text in texts)), parse_options=options)
        return rows.select(schema.names).cast(schema) if rows.num_rows == len(texts) else None
    except (pa.ArrowException, UnicodeDecodeError):
        return None


def _read_and_unread(texts: Sequence[bytes], schema: pa.Schema) -> tuple[pa.Table, list[UnreadText]]:
    values = pa.array([text.decode("utf-8", errors="replace") for text in texts], pa.string())
    is_object, timed = _looked_at(values, [field.name for field in schema if pt.is_timestamp(field.type)])
    try:
        reader = JsonRecordReader(_WRAPPED, schema, schema.names[:1], RecordOptions(decimals="text"))
    except PlanError as error:
        raise BadInputError(error.message, code="UNDECODABLE_VALUE", record=0) from error
    try:
        wrapped = pc.binary_join_element_wise('{"type":"insert","data":', values, "}", "")
        read = reader.read(pa.table({"key": pa.nulls(len(texts), pa.string()), "value": wrapped}))
    finally:
        reader.close()
    known, lines = np.unique(read.records, return_index=True)  # of every text its first line, if it has one
    is_good = np.zeros(len(texts), bool)
    is_good[known] = np.asarray(pc.is_null(read.rejects))[lines]
    is_good &= np.asarray(is_object, bool) & (np.asarray(timed, object) == "")
    line_of = dict(zip(known.tolist(), lines.tolist(), strict=True))
    unread = []
    for number in np.flatnonzero(~is_good).tolist():
        reason = read.rejects[line_of[number]].as_py() if number in line_of else "UNDECODABLE_RECORD"
        column = "" if not is_object[number] else timed[number] if reason is None else reason.partition(" ")[2]
        expected = str(schema.field(column).type) if column else "JSON object"
        unread.append(UnreadText(number, texts[number], expected, column or None))
    rows = pa.Table.from_batches([read.rows]).select(schema.names)
    return rows.filter(pa.array(is_good[read.records])).cast(schema), unread


def _looked_at(values: pa.Array, times: list[str]) -> tuple[list[bool], list[str]]:
    """Return which texts are objects, and of each the column that has a number where a time is wanted."""
    with duckdb.connect(":memory:", config={"threads": 1}) as connection:
        connection.execute("SET enable_external_access = false")
        connection.register("texts", pa.table({"value": values}))
        query = "SELECT CASE WHEN json_valid(value) THEN json_type(value) END = 'OBJECT' FROM texts"
        is_object = [bool(row[0]) for row in connection.execute(query).fetchall()]
        timed = [""] * len(is_object)
        for name in times:
            query = "SELECT json_type(value, ?) FROM (SELECT CASE WHEN json_valid(value) THEN value END AS value FROM texts)"
            kinds = connection.execute(query, [f"/{name.replace('~', '~0').replace('/', '~1')}"]).fetchall()
            for number, (kind,) in enumerate(kinds):
                if kind in {"UBIGINT", "BIGINT", "DOUBLE", "HUGEINT"}:
                    timed[number] = timed[number] or name
    return is_object, timed
