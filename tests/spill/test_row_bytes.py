"""Rows of every type go to the disk and back bit for bit: encoded, packed, stored, fetched, unpacked, gathered."""

from __future__ import annotations

import datetime
import decimal
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from property_tests.cold_histories import DuckDBShelf, FileShelf, MemoryShelf, Shelf, as_codes
from spill.cold_store import cold_rows
from spill.row_bytes import pack_rows, unpack_rows
from zset_join.kernels.values.nested import encode_nested
from zset_join.zset.row_layout import RowLayout

ODD_NAN = struct.unpack("<d", struct.pack("<Q", 0xFFF8DEADBEEF0001))[0]
UTC = datetime.UTC

COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "bool": (pa.bool_(), [True, None, False]),
    "int8": (pa.int8(), [-128, None, 127]),
    "uint64": (pa.uint64(), [0, None, 2**64 - 1]),
    "float16": (pa.float16(), [np.float16("nan"), None, np.float16(-0.0)]),
    "float32": (pa.float32(), [-0.0, None, float("nan")]),
    "float64": (pa.float64(), [-0.0, None, ODD_NAN]),
    "decimal128": (pa.decimal128(38, 10), [decimal.Decimal("-0.0000000001"), None, decimal.Decimal("1E+20")]),
    "decimal256": (pa.decimal256(76, 3), [decimal.Decimal("9" * 70 + ".125"), None, decimal.Decimal("-1.000")]),
    "string": (pa.string(), ["", None, "é and more than twelve bytes \0 of text"]),
    "large_string": (pa.large_string(), ["", None, "x" * 1_000_000]),
    "binary": (pa.binary(), [b"", None, b"\x00\xff" * 20]),
    "fixed_binary": (pa.binary(3), [b"\0\0\0", None, b"abc"]),
    "date": (pa.date32(), [datetime.date(1, 1, 1), None, datetime.date(9999, 12, 31)]),
    "timestamp_ns": (pa.timestamp("ns"), [-(2**62), None, 2**62]),
    "timestamp_zone": (pa.timestamp("us", tz="America/New_York"), [datetime.datetime(1969, 1, 1, tzinfo=UTC), None, 0]),
    "timestamp_s": (pa.timestamp("s", tz="+02:00"), [0, None, -1]),
    "time": (pa.time64("ns"), [1, None, 86_399_999_999_999]),
    "duration": (pa.duration("ns"), [2**62, None, -1]),
    "null": (pa.null(), [None, None, None]),
    "list": (pa.list_(pa.float64()), [[], None, [None, -0.0, ODD_NAN]]),
    "struct": (
        pa.struct([("a", pa.string()), ("b", pa.list_(pa.int8()))]),
        [{"a": None, "b": None}, None, {"a": "", "b": [1, None]}],
    ),
    "map": (pa.map_(pa.string(), pa.decimal128(5, 2)), [[], None, [("k", decimal.Decimal("1.50")), ("l", None)]]),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), ["x", None, "a value beyond twelve bytes"]),
}
SHELVES: dict[str, type[Shelf]] = {"memory": MemoryShelf, "file": FileShelf, "duckdb": DuckDBShelf}


def odd_rows() -> pa.RecordBatch:
    """Return three rows with a column of every type."""
    arrays = [pa.array(values, kind) for kind, values in COLUMNS.values()]
    return pa.RecordBatch.from_arrays(arrays, names=list(COLUMNS))


def encoded(layout: RowLayout, rows: pa.RecordBatch) -> tuple[np.ndarray[Any, Any], Any]:
    """Return the addresses of the row records of a batch, and what keeps them."""
    target = np.zeros(len(rows) * layout.stride + 8, np.uint8)
    made = layout.encode(rows, [], target, int(target.ctypes.data))
    return made.address + layout.stride * np.arange(len(rows), dtype=np.int64), made


def gathered(layout: RowLayout, refs: np.ndarray[Any, Any], heap: int = 0) -> list[pa.Array]:
    """Return the columns of some row records."""
    return layout.gather_plan(range(len(layout.schema))).gather(int(refs.ctypes.data), len(refs), heap)


def raw(array: pa.Array) -> list[bytes | None]:
    """Return the bytes of each value; NaN payloads and signs of zero are part of them."""
    values: list[bytes | None] = encode_nested(pa.StructArray.from_arrays([array], names=["value"])).to_pylist()
    return values


@pytest.mark.parametrize("kind", sorted(SHELVES))
def test_every_type_goes_through_every_store_bit_for_bit(tmp_path: Path, kind: str) -> None:
    rows = odd_rows()
    layout = RowLayout(rows.schema)
    variables = layout.variable_columns()
    refs, _owner = encoded(layout, rows)
    before = gathered(layout, refs)
    shelf = SHELVES[kind](tmp_path)
    store = shelf.open()

    store.put(cold_rows([2, 1, 0], pack_rows(refs, stride=layout.stride, variables=variables.address)))
    found = store.fetch(as_codes([0, 1, 2]))

    back = unpack_rows(found.rows, stride=layout.stride, variables=variables.address)
    order = np.argsort(-found.codes)
    after = gathered(layout, np.ascontiguousarray(back.refs(layout.stride)[order]))
    assert [raw(array) for array in after] == [raw(array) for array in before]
    assert [array.type for array in after] == rows.schema.types
    shelf.close(store)


def test_packed_rows_have_no_links_and_no_addresses() -> None:
    rows = pa.RecordBatch.from_arrays([pa.array(["a text that lies on the heap"] * 2)], names=["text"])
    layout = RowLayout(rows.schema)
    variables = layout.variable_columns()
    refs, _owner = encoded(layout, rows)

    first, second = pack_rows(refs, stride=layout.stride, variables=variables.address).to_pylist()

    assert first == second
    assert len(first) == layout.stride - 8 + len("a text that lies on the heap")


def test_a_slice_of_packed_rows_is_unpacked_alone() -> None:
    rows = pa.RecordBatch.from_arrays([pa.array([1, 2, 3]), pa.array(["x" * 20, "y" * 30, "z"])], names=["n", "text"])
    layout = RowLayout(rows.schema)
    variables = layout.variable_columns()
    refs, _owner = encoded(layout, rows)

    packed = pack_rows(refs, stride=layout.stride, variables=variables.address).slice(1, 2)

    back = unpack_rows(packed, stride=layout.stride, variables=variables.address)
    assert [array.to_pylist() for array in gathered(layout, back.refs(layout.stride))] == [[2, 3], ["y" * 30, "z"]]


@given(st.lists(st.tuples(st.none() | st.binary(max_size=40), st.none() | st.text(max_size=20), st.floats()), max_size=20))
def test_packing_and_unpacking_is_the_identity(lines: list[tuple[bytes | None, str | None, float]]) -> None:
    schema = pa.schema({"b": pa.binary(), "t": pa.string(), "f": pa.float64()})
    arrays = [pa.array([line[at] for line in lines], schema.field(at).type) for at in range(3)]
    layout = RowLayout(schema)
    variables = layout.variable_columns()
    refs, _owner = encoded(layout, pa.RecordBatch.from_arrays(arrays, schema=schema))

    packed = pack_rows(refs, stride=layout.stride, variables=variables.address)
    back = unpack_rows(packed, stride=layout.stride, variables=variables.address)

    assert [raw(array) for array in gathered(layout, back.refs(layout.stride))] == [
        raw(array) for array in gathered(layout, refs)
    ]
