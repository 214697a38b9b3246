"""Arrow columns to row records and back, where blocks of rows begin and end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from zset_join.kernels.values import columns as c
from zset_join.zset.row_layout import RowLayout

LONG = "longer than the twelve bytes that fit in a slot"
KINDS = {
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "decimal": pa.decimal128(20, 0),
    "wide": pa.decimal256(60, 0),
    "bool": pa.bool_(),
    "string": pa.string(),
    "large string": pa.large_string(),
    "odd width": pa.binary(5),
    "list": pa.list_(pa.int64()),
}


def value(kind: pa.DataType, number: int) -> Any:
    """Return the value of a type that represents a number."""
    if pa.types.is_boolean(kind):
        return number % 2 == 0
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return f"{number}" if number % 2 else f"{LONG} {number}"
    if pa.types.is_fixed_size_binary(kind) and not pa.types.is_decimal(kind):
        return f"{number:05d}".encode()
    return [number, None] if pa.types.is_list(kind) else number % 100


def round_trip(column: pa.Array, order: list[int] | None = None, *, missing: tuple[int, ...] = ()) -> pa.Array:
    """Return a column as it comes back from records; at the positions `missing` there is no record."""
    layout = RowLayout(pa.schema({"before": pa.bool_(), "x": column.type}))
    batch = pa.RecordBatch.from_arrays([pa.nulls(len(column), pa.bool_()), column], ["before", "x"])
    target: Any = np.full(max(1, len(column)) * layout.stride, 0xAA, np.uint8)
    records = layout.encode(batch, [], target, int(target.ctypes.data))
    refs = records.address + layout.stride * np.array(range(len(column)) if order is None else order, np.int64)
    refs[list(missing)] = 0
    (back,) = layout.gather_plan([1]).gather(int(refs.ctypes.data), len(refs), 0)
    back.validate(full=True)
    return back


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 255, 256, 257, 600])
def test_any_number_of_rows_comes_back(kind: pa.DataType, count: int) -> None:
    column = pa.array([value(kind, number) for number in range(count)], kind)

    assert round_trip(column).equals(column)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_missing_record_is_a_null_among_values(kind: pa.DataType) -> None:
    column = pa.array([value(kind, number) for number in range(600)], kind)

    back = round_trip(column, missing=(3, 256, 257, 599))

    expected = [None if number in (3, 256, 257, 599) else value(kind, number) for number in range(600)]
    assert back.equals(pa.array(expected, kind))


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("offset", [1, 8, 13])
def test_a_slice_begins_at_any_bit(kind: pa.DataType, offset: int) -> None:
    column = pa.array([value(kind, number) if number % 3 else None for number in range(40)], kind).slice(offset, 20)

    assert round_trip(column).equals(column)


def test_the_value_below_a_null_is_zero_in_every_record() -> None:
    hidden = pa.Array.from_buffers(pa.int64(), 1, [pa.py_buffer(b"\0"), pa.py_buffer(b"\xff" * 8)], 1)
    layout = RowLayout(pa.schema({"x": pa.int64()}))
    target: Any = np.full(layout.stride, 0xAA, np.uint8)

    layout.encode(pa.RecordBatch.from_arrays([hidden], ["x"]), [], target, int(target.ctypes.data))

    offset = int(layout.columns(["x"]).lines[0, c.OFFSET])
    assert target[offset : offset + 8].tolist() == [0] * 8
