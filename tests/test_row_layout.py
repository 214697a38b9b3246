"""Rows as records: what a record looks like, and that nothing is lost on the way in and out."""

from __future__ import annotations

import ctypes
import datetime as dt
import struct
import uuid
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import zset_join.zset.row_layout
from zset_join.core.errors import PlanError
from zset_join.kernels.values import keys as c
from zset_join.zset.row_layout import EncodedRows, RowLayout

UNION = pa.dense_union([pa.field("a", pa.int64())])
LONG = "longer than the twelve bytes that fit in a slot"
NAN_BITS = np.array([0x7FF8000000000001, 0xFFF8000000000000, 0x8000000000000000], np.uint64)

COLUMNS = {
    "int8": pa.array([-128, None, 127], pa.int8()),
    "uint16": pa.array([0, None, 65_535], pa.uint16()),
    "int32": pa.array([-1, 0, None], pa.int32()),
    "uint64": pa.array([2**64 - 1, 0, None], pa.uint64()),
    "bool": pa.array([True, None, False]),
    "float16": pa.array(np.array([1.5, -0.0, np.inf], np.float16)),
    "float32": pa.array([0.0, None, -0.0], pa.float32()),
    "float64": pa.array(NAN_BITS.view(np.float64)),
    "decimal": pa.array([Decimal("-1.25"), None, Decimal("99999999.99")], pa.decimal128(10, 2)),
    "wide decimal": pa.array([Decimal(10) ** 60, None, -(Decimal(10) ** 60)], pa.decimal256(70, 0)),
    "date": pa.array([dt.date(1969, 12, 31), None, dt.date(9999, 12, 31)]),
    "date64": pa.array([dt.date(1969, 12, 31), None, dt.date(9999, 12, 31)], pa.date64()),
    "local time": pa.array([dt.datetime(2024, 2, 29, 1, 2, 3, 4), None, dt.datetime(1, 1, 1)], pa.timestamp("us")),
    "instant": pa.array([0, None, 1], pa.timestamp("ns", "Europe/Paris")),
    "time": pa.array([dt.time(23, 59), None, dt.time(0)], pa.time32("s")),
    "duration": pa.array([dt.timedelta(days=-1), None, dt.timedelta(0)], pa.duration("ms")),
    "string": pa.array(["", None, LONG]),
    "twelve bytes": pa.array(["x" * 12, "x" * 13, "x" * 11]),
    "large string": pa.array([LONG, "é", None], pa.large_string()),
    "string view": pa.array([LONG, "", None], pa.string_view()),
    "binary": pa.array([b"\0", LONG.encode(), None]),
    "binary view": pa.array([b"\0", LONG.encode(), None], pa.binary_view()),
    "three bytes": pa.array([b"abc", None, b"\0\0\0"], pa.binary(3)),
    "dictionary": pa.array([LONG, None, "a"]).dictionary_encode(),
    "list": pa.array([[1, None], None, []], pa.list_(pa.int64())),
    "fixed list": pa.array([[1.5, None], None, [-0.0, 0.0]], pa.list_(pa.float32(), 2)),
    "struct": pa.array(
        [{"s": LONG, "l": [None]}, None, {"s": None, "l": None}], pa.struct({"s": pa.string(), "l": pa.list_(pa.bool_())})
    ),
    "map": pa.array([[("a", 1)], None, []], pa.map_(pa.string(), pa.int64())),
    "null": pa.nulls(3),
    "uuid": pa.ExtensionArray.from_storage(
        pa.uuid(), pa.array([uuid.UUID(int=7).bytes, None, uuid.UUID(int=0).bytes], pa.binary(16))
    ),
}


def encoded(layout: RowLayout, rows: pa.RecordBatch, sequence: list[Any] | None = None) -> EncodedRows:
    """Return the records of a batch in memory of their own."""
    target = np.full(max(1, rows.num_rows * layout.stride), 0xAA, np.uint8)
    return layout.encode(rows, sequence or [], target, int(target.ctypes.data))


def refs_of(layout: RowLayout, rows: EncodedRows, order: list[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the record addresses of some rows."""
    return np.array([rows.address + layout.stride * row for row in order], np.int64)


def gathered(layout: RowLayout, rows: EncodedRows, order: list[int]) -> list[pa.Array]:
    """Return all columns of some rows, as they come back out of their records."""
    refs = refs_of(layout, rows, order)
    return layout.gather_plan(range(layout.visible)).gather(int(refs.ctypes.data), len(refs), 0)


def record(layout: RowLayout, rows: EncodedRows, row: int) -> bytes:
    return ctypes.string_at(rows.address + row * layout.stride, layout.stride)


def raw(array: pa.Array) -> list[Any]:
    """Return the values of an array with floats as bits."""
    return [struct.pack("<d", value) if isinstance(value, float) else value for value in array.to_pylist()]


@pytest.mark.parametrize("column", COLUMNS.values(), ids=COLUMNS)
def test_every_value_comes_back_as_it_went_in(column: pa.Array) -> None:
    layout = RowLayout(pa.schema({"x": column.type}))

    (back,) = gathered(layout, encoded(layout, pa.RecordBatch.from_arrays([column], ["x"])), [0, 1, 2])

    back.validate(full=True)
    assert back.type == column.type
    assert raw(back) == raw(column)


@pytest.mark.parametrize("column", COLUMNS.values(), ids=COLUMNS)
@pytest.mark.parametrize(("offset", "count"), [(1, 2), (8, 255), (13, 256), (1, 257), (2, 600)])
def test_rows_of_any_slice_and_any_number_of_blocks_come_back_and_no_record_is_a_null(
    column: pa.Array, offset: int, count: int
) -> None:
    rows = pa.concat_arrays([column] * 205).slice(offset, count)
    layout = RowLayout(pa.schema({"before": pa.bool_(), "x": column.type}))
    records = encoded(layout, pa.RecordBatch.from_arrays([pa.nulls(count, pa.bool_()), rows], ["before", "x"]))
    refs = refs_of(layout, records, list(range(count)))

    for missing in ([], [*range(3, count, 253), count - 1]):
        refs[missing] = 0
        (back,) = layout.gather_plan([1]).gather(int(refs.ctypes.data), count, 0)

        back.validate(full=True)
        assert raw(back) == [None if at in missing else value for at, value in enumerate(raw(rows))]


def test_the_value_below_a_null_is_zero_in_every_record() -> None:
    hidden = pa.Array.from_buffers(pa.int64(), 1, [pa.py_buffer(b"\0"), pa.py_buffer(b"\xff" * 8)], 1)
    layout = RowLayout(pa.schema({"x": pa.int64()}))

    content = record(layout, encoded(layout, pa.RecordBatch.from_arrays([hidden], ["x"])), 0)

    offset = int(layout.columns(["x"]).lines[0, c.OFFSET])
    assert content[offset : offset + 8] == bytes(8)


def test_the_bits_of_a_nan_and_the_sign_of_a_zero_are_kept() -> None:
    layout = RowLayout(pa.schema({"x": pa.float64()}))

    (back,) = gathered(layout, encoded(layout, pa.RecordBatch.from_arrays([COLUMNS["float64"]], ["x"])), [0, 1, 2])

    assert np.frombuffer(back.buffers()[1], np.uint64)[:3].tolist() == NAN_BITS.tolist()


def test_all_types_side_by_side_in_one_record_do_not_disturb_each_other() -> None:
    rows = pa.RecordBatch.from_arrays(list(COLUMNS.values()), list(COLUMNS))
    layout = RowLayout(rows.schema)

    back = gathered(layout, encoded(layout, rows), [2, 0, 1, 0])

    values = [raw(column) for column in rows.columns]
    assert [raw(column) for column in back] == [[column[2], column[0], column[1], column[0]] for column in values]


def test_the_address_zero_represents_no_row_and_gives_nulls() -> None:
    rows = pa.RecordBatch.from_arrays(list(COLUMNS.values()), list(COLUMNS))
    layout = RowLayout(rows.schema)
    nowhere = np.zeros(2, np.int64)

    back = layout.gather_plan(range(layout.visible)).gather(int(nowhere.ctypes.data), 2, 0)

    assert [column.to_pylist() for column in back] == [[None, None]] * len(COLUMNS)


def test_any_columns_can_be_gathered_in_any_order() -> None:
    rows = pa.RecordBatch.from_pydict({"a": [1, 2], "b": ["x", "y"], "c": [True, None]})
    layout = RowLayout(rows.schema)
    records = encoded(layout, rows)
    refs = refs_of(layout, records, [1, 0])

    columns = layout.gather_plan([2, 0, 2]).gather(int(refs.ctypes.data), 2, 0)

    assert [column.to_pylist() for column in columns] == [[None, True], [2, 1], [None, True]]
    assert layout.gather_plan([]).gather(int(refs.ctypes.data), 2, 0) == []


def test_a_record_is_its_head_its_null_bits_and_its_values_widest_first() -> None:
    layout = RowLayout(pa.schema({"small": pa.int8(), "text": pa.string(), "number": pa.int64(), "half": pa.int16()}))
    rows = pa.RecordBatch.from_pydict({"small": [1], "text": ["ab"], "number": [None], "half": [515]}, layout.schema)

    content = record(layout, encoded(layout, rows), 0)

    assert layout.stride == len(content) == 56
    assert content[: c.NULLS] == bytes(21)
    assert content[c.NULLS : 24] == b"\x04\x00\x00"
    assert content[24:40] == b"\x02\0\0\0ab" + bytes(10)
    assert content[40:48] == bytes(8)
    assert content[48:51] == b"\x03\x02" + b"\x01"


def test_a_long_string_is_its_length_its_first_four_bytes_and_where_it_is() -> None:
    text = pa.array([LONG])
    layout = RowLayout(pa.schema({"x": pa.string()}))

    content = record(layout, encoded(layout, pa.RecordBatch.from_arrays([text], ["x"])), 0)

    length, prefix, location = struct.unpack("<I4sQ", content[24:40])
    assert (length, prefix, location) == (len(LONG), b"long", text.buffers()[2].address)


@pytest.mark.parametrize(
    ("types", "stride"),
    [
        ([pa.int64()], 32),
        ([pa.bool_()], 32),
        ([pa.string()], 40),
        ([pa.int64()] * 4, 56),
        ([pa.int64()] * 25, 232),
        ([pa.decimal128(10, 2), pa.int32(), pa.int32()], 48),
        ([pa.null()], 24),
        ([], 24),
    ],
)
def test_a_row_takes_21_bytes_a_bit_per_column_and_its_values(types: list[pa.DataType], stride: int) -> None:
    layout = RowLayout(pa.schema([pa.field(f"c{at}", kind) for at, kind in enumerate(types)]))

    assert layout.stride == stride


def test_hidden_words_take_their_place_before_the_values() -> None:
    schema = pa.schema({"x": pa.int64()})

    plain, ordered = RowLayout(schema), RowLayout(schema, sequence_words=2, has_degree=True)

    assert ordered.stride == plain.stride + 24
    assert (plain.degree_offset, ordered.sequence_offset, ordered.degree_offset) == (-1, 24, 40)


def test_the_words_of_the_sequence_are_in_the_record() -> None:
    layout = RowLayout(pa.schema({"x": pa.int64()}), sequence_words=2)
    words = [np.array([7, 8]), np.array([-1, -2])]

    records = encoded(layout, pa.RecordBatch.from_pydict({"x": [1, 2]}), words)

    assert struct.unpack_from("<qq", record(layout, records, 1), layout.sequence_offset) == (8, -2)


def test_a_key_is_kept_a_second_time_in_the_type_it_is_compared_in() -> None:
    schema = pa.schema({"k": pa.int32(), "x": pa.int64()})
    layout = RowLayout(schema, key_casts=[("k", pa.int64())])

    as_value, as_key = layout.columns(["k"]), layout.columns(["k"], as_key=True)

    assert (as_value.lines[0, c.WIDTH], as_key.lines[0, c.WIDTH]) == (4, 8)
    assert layout.stride == RowLayout(schema).stride + 8


def test_a_key_value_that_no_cast_can_hold_is_null_in_the_key_and_marked() -> None:
    layout = RowLayout(pa.schema({"k": pa.int64()}), key_casts=[("k", pa.int32())])

    rows = encoded(layout, pa.RecordBatch.from_pydict({"k": [7, 2**40, None]}))

    assert rows.unfit is not None
    assert rows.unfit.tolist() == [False, True, False]
    assert gathered(layout, rows, [0, 1, 2])[0].to_pylist() == [7, 2**40, None]


def test_the_null_safe_flag_belongs_to_a_column_of_a_table_and_not_to_the_layout() -> None:
    layout = RowLayout(pa.schema({"a": pa.int64(), "b": pa.int64()}))

    table = layout.columns(["a", "b"], null_safe=[True, False])

    assert table.lines[:, c.NULL_SAFE].tolist() == [1, 0]
    assert layout.columns(["a", "b"]).lines[:, c.NULL_SAFE].tolist() == [0, 0]


def test_column_tables_pick_by_name_by_exclusion_or_by_kind() -> None:
    layout = RowLayout(pa.schema({"a": pa.int32(), "s": pa.string(), "l": pa.list_(pa.int8())}), key_casts=[("a", pa.int64())])

    assert len(layout.visible_columns()) == 3
    assert len(layout.columns_besides(["a", "s"])) == 2
    assert layout.variable_columns().lines[:, c.KIND].tolist() == [c.VARIABLE, c.NESTED]


@pytest.mark.parametrize(
    "kind",
    [
        UNION,
        pa.struct({"u": UNION}),
        pa.list_(pa.list_(UNION)),
        pa.run_end_encoded(pa.int32(), pa.int64()),
        pa.list_view(pa.int64()),
        pa.binary(0),
    ],
)
def test_a_type_that_cannot_be_kept_is_refused_by_the_name_of_its_column(kind: pa.DataType) -> None:
    with pytest.raises(PlanError, match=r'column "odd" has type .*; cast it to another type first') as caught:
        RowLayout(pa.schema({"x": pa.int64(), "odd": kind}))

    assert caught.value.code == "UNSUPPORTED_TYPE"


def test_strings_past_what_one_arrow_array_holds_need_fewer_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zset_join.zset.row_layout, "_MAX_ARROW_BYTES", 2 * len(LONG))
    rows = pa.RecordBatch.from_pydict({"x": [LONG] * 3})
    layout = RowLayout(rows.schema)
    records = encoded(layout, rows)

    assert gathered(layout, records, [0, 1])[0].to_pylist() == [LONG] * 2
    with pytest.raises(OverflowError):
        gathered(layout, records, [0, 1, 2])
