"""Rows as JSON objects, one a text, read as `zset_join.sinks.json_rows` writes them, and as others do.

    rows, unread = part_json_rows([b'{"id": 1, "day": "2024-01-02"}'], schema)

The law: what our JSON files and topics are written as is read as the same rows. As in Spark, a name that is missing is NULL,
one that is more is passed over, a number may be in a text, and bytes are base64. A number where a time is wanted is refused:
it may count seconds, milliseconds or microseconds. Values convert by the rules of `zset_join.conversions`. Every text is a row,
or is listed as unread.

Cost: one pass in pyarrow; where it cannot read a text (numbers in texts, NaN, bytes), text by text, some microseconds each.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
import pyarrow.types as pt

from zset_join.conversions import convert_values
from zset_join.sources.json_values import json_values, parsed_json, within_precision
from zset_join.sources.unread import UnreadText, wanted_text

__all__ = ["part_json_rows", "read_json_objects"]

_ODD = re.compile(rb"(?:\A|\})\s*null|\A\xef\xbb\xbf|-0[\s,\]}]")
"""What pyarrow reads in its own way: `null` for an object, on which it may crash, a byte order mark, the integer -0."""


def part_json_rows(texts: Sequence[bytes], schema: pa.Schema) -> tuple[pa.Table, list[UnreadText]]:
    """Return the rows of JSON texts, and the texts that are no rows.

    >>> rows, unread = part_json_rows([b'{"n": 7}', b'{"n": "x"}'], pa.schema({"n": pa.int32()}))
    >>> rows.to_pylist(), unread[0].number, unread[0].reason
    ([{'n': 7}], 1, 'the value of "n" cannot be read as int32')
    """
    if not texts:
        return schema.empty_table(), []
    rows = read_json_objects(b"\n".join(text.replace(b"\n", b" ") for text in texts), schema)
    return (rows, []) if rows is not None and rows.num_rows == len(texts) else _read_each(texts, schema)


def read_json_objects(text: bytes, schema: pa.Schema) -> pa.Table | None:
    """Return the rows of JSON objects behind each other; None where a value is not written as its type is."""
    if not all(_is_plain(field.type) or _is_in_text(field.type) for field in schema) or _ODD.search(text):
        return None
    written = pa.schema([field.with_type(pa.string()) if _is_in_text(field.type) else field for field in schema])
    try:
        pa.array([text], pa.large_binary()).cast(pa.large_string())  # pyarrow.json takes what is no UTF-8
        options = pj.ParseOptions(explicit_schema=written, unexpected_field_behavior="ignore")
        rows = pj.read_json(pa.BufferReader(text), parse_options=options).select(schema.names)
    except pa.ArrowException:
        return None
    columns = []
    for field in schema:
        column = rows.column(field.name)
        if pt.is_decimal(column.type) and not pc.all(within_precision(column), min_count=0).as_py():
            return None
        converted = convert_values(column, field.type)
        if converted.unfit is not None or (converted.values.null_count and not field.nullable):
            return None
        columns.append(converted.values)
    return pa.table(columns, schema=schema)


def _is_in_text(kind: pa.DataType) -> bool:
    """Return whether JSON has values of a type in texts."""
    return bool(pt.is_date(kind) or pt.is_timestamp(kind))


def _is_plain(kind: pa.DataType) -> bool:
    """Return whether pyarrow reads values of a type from JSON as they are, and refuses others."""
    if pt.is_struct(kind):
        return all(_is_plain(field.type) for field in kind)
    if pt.is_list(kind):
        return _is_plain(kind.value_type)
    is_number = pt.is_integer(kind) or pt.is_floating(kind) or pt.is_decimal128(kind)
    return bool(is_number or pt.is_boolean(kind) or pt.is_string(kind))


def _read_each(texts: Sequence[bytes], schema: pa.Schema) -> tuple[pa.Table, list[UnreadText]]:
    objects: list[dict[str, object]] = []
    is_object = np.ones(len(texts), np.bool_)
    for number, text in enumerate(texts):
        try:
            value = parsed_json(text)
        except ValueError:
            value = None
        is_object[number] = isinstance(value, dict)
        objects.append(value if isinstance(value, dict) else {})
    columns, bad = [], {}
    for field in schema:
        converted = json_values([one.get(field.name) for one in objects], field.type)
        columns.append(converted.values)
        if converted.unfit is not None:
            bad[field.name] = converted.unfit
        if not field.nullable:
            lacks = converted.values.is_null().to_numpy(zero_copy_only=False)
            bad[field.name] = bad.get(field.name, np.zeros(len(texts), np.bool_)) | lacks
    is_good = is_object & ~np.logical_or.reduce([np.zeros(len(texts), np.bool_), *bad.values()])
    unread = []
    for number in np.flatnonzero(~is_good).tolist():
        column = next((name for name, unfit in bad.items() if unfit[number]), None)
        expected = "JSON object" if column is None else wanted_text(schema.field(column))
        unread.append(UnreadText(number, texts[number], expected, column))
    return pa.table(columns, schema=schema).filter(pa.array(is_good)), unread
