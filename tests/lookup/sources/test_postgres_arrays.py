"""Keys as PostgreSQL's binary arrays, against what psycopg makes of the same values."""

from __future__ import annotations

import datetime

import pyarrow as pa
import pytest
from psycopg.adapt import PyFormat, Transformer
from psycopg.types.numeric import Float8, Int8

from zset_join.lookup.sources.postgres import BinaryArray, binary_array

UTC = datetime.UTC
MOMENT = datetime.datetime(1969, 7, 20, 20, 17, 40, 123456)


@pytest.mark.parametrize(
    ("kind", "type_", "values", "as_psycopg"),
    [
        ("bigint[]", pa.int64(), [0, -1, 2**63 - 1, -(2**63)], Int8),
        ("bigint[]", pa.int16(), [5, -7], Int8),
        ("double precision[]", pa.float64(), [0.0, -1.5, float("inf")], Float8),
        ("boolean[]", pa.bool_(), [True, False], bool),
        ("text[]", pa.string(), ["", "a", "größer", "日本", "x" * 300], str),
        ("text[]", pa.large_string(), ["a", ""], str),
        ("bytea[]", pa.binary(), [b"", b"\x00\xff"], bytes),
        ("date[]", pa.date32(), [datetime.date(1815, 12, 10), datetime.date(2026, 1, 1)], lambda day: day),
        ("date[]", pa.date64(), [datetime.date(1815, 12, 10)], lambda day: day),
        ("timestamp[]", pa.timestamp("us"), [MOMENT, datetime.datetime(2026, 1, 1)], lambda at: at),
        ("timestamp[]", pa.timestamp("ms"), [datetime.datetime(2026, 1, 1)], lambda at: at),
        ("timestamptz[]", pa.timestamp("us", "Europe/Paris"), [MOMENT.replace(tzinfo=UTC)], lambda at: at),
    ],
)
def test_the_bytes_are_those_of_psycopg(kind, type_, values, as_psycopg):
    listed = [as_psycopg(value) for value in values]
    dumper = Transformer().get_dumper(listed, PyFormat.BINARY)

    assert binary_array(pa.chunked_array([values], type_), kind) == BinaryArray(bytes(dumper.dump(listed)))


def test_a_slice_and_several_chunks_are_taken_as_what_they_hold():
    texts = pa.chunked_array([pa.array(["no", "a", "bc"]).slice(1), pa.array(["d"])])

    assert binary_array(texts, "text[]") == binary_array(pa.chunked_array([["a", "bc", "d"]]), "text[]")


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (pa.chunked_array([[1, None]], pa.int64()), "bigint[]"),
        (pa.chunked_array([[]], pa.int64()), "bigint[]"),
        (pa.chunked_array([["1.5"]]).cast(pa.decimal128(5, 2)), "numeric[]"),
    ],
)
def test_what_has_no_such_bytes_is_a_list(column, kind):
    assert binary_array(column, kind) == column.to_pylist()
