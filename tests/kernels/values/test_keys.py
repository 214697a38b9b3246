"""When two values are the same: hashing and comparing agree with Spark, column by column."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from zset_join.kernels.values import columns as c
from zset_join.kernels.values.keys import equal_columns, has_null, hash_row, hash_rows, is_null, variable_bytes
from zset_join.zset.row_layout import ColumnTable, EncodedRows, RowLayout

ALL_BITS = 0xFFFFFFFF
NAN = float("nan")
NANS = np.array([0x7FF8000000000000, 0xFFF8000000000001, 0x7FF0000000000001], np.uint64).view(np.float64)
LONG = "the same first twelve bytes, then "


class Rows:
    """The rows of a batch as records."""

    def __init__(self, columns: dict[str, pa.Array], *, null_safe: list[bool] | None = None) -> None:
        batch = pa.RecordBatch.from_pydict(columns)
        self.layout = RowLayout(batch.schema)
        self._target: Any = np.zeros(max(1, batch.num_rows * self.layout.stride), np.uint8)
        self.records: EncodedRows = self.layout.encode(batch, [], self._target, int(self._target.ctypes.data))
        self.columns: ColumnTable = self.layout.columns(list(columns), null_safe=null_safe)

    def at(self, row: int) -> int:
        """Return the address of a row."""
        return self.records.address + row * self.layout.stride

    def hash(self, row: int, mask: int = ALL_BITS) -> int:
        """Return the hash of a row."""
        return int(hash_row(self.at(row), 0, self.columns.address, mask))

    def equal(self, one: int, other: int) -> bool:
        """Compare two rows."""
        return bool(equal_columns(self.at(one), 0, self.columns.address, self.at(other), 0, self.columns.address))


SAME = [
    (pa.int64(), [7, 7]),
    (pa.int64(), [None, None]),
    (pa.float64(), [0.0, -0.0]),
    (pa.float64(), NANS[:2]),
    (pa.float64(), NANS[1:]),
    (pa.float32(), [0.0, -0.0]),
    (pa.float32(), np.array([0x7FC00000, 0xFF800001], np.uint32).view(np.float32)),
    (pa.float16(), np.array([0x7E00, 0xFC01], np.uint16).view(np.float16)),
    (pa.float16(), np.array([0x0000, 0x8000], np.uint16).view(np.float16)),
    (pa.string(), ["", ""]),
    (pa.string(), [LONG + "A", LONG + "A"]),
    (pa.decimal128(20, 2), [Decimal("1.50"), Decimal("1.50")]),
    (pa.binary(5), [b"abcde", b"abcde"]),
    (pa.list_(pa.float64()), [[0.0, NAN, None], [-0.0, NANS[1], None]]),
    (pa.struct({"a": pa.int64()}), [{"a": None}, {"a": None}]),
    (pa.null(), [None, None]),
]
DIFFERENT = [
    (pa.int64(), [0, None]),
    (pa.int64(), [2**40, 2**41]),
    (pa.int8(), [1, -1]),
    (pa.int16(), [1, 256]),
    (pa.bool_(), [False, True]),
    (pa.bool_(), [False, None]),
    (pa.float64(), [NAN, None]),
    (pa.float64(), [1.0, -1.0]),
    (pa.float32(), [1e-45, 0.0]),
    (pa.string(), ["", None]),
    (pa.string(), ["a", "a "]),
    (pa.string(), ["a", "a\0"]),
    (pa.string(), ["x" * 12, "x" * 13]),
    (pa.string(), [LONG + "A", LONG + "B"]),
    (pa.binary(3), [b"abc", b"abd"]),
    (pa.decimal128(38, 0), [Decimal(1), Decimal(2) ** 64 + 1]),
    (pa.decimal256(76, 0), [Decimal(1), Decimal(2) ** 192 + 1]),
    (pa.timestamp("us"), [dt.datetime(2024, 1, 1), dt.datetime(2024, 1, 1, microsecond=1)]),
    (pa.list_(pa.int8()), [[], None]),
    (pa.list_(pa.int8()), [[1, 2], [2, 1]]),
    (pa.struct({"a": pa.string(), "b": pa.string()}), [{"a": "ab", "b": ""}, {"a": "a", "b": "b"}]),
]


@pytest.mark.parametrize(("kind", "values"), SAME, ids=str)
def test_equal_values_are_equal_and_have_one_hash(kind: pa.DataType, values: Any) -> None:
    rows = Rows({"x": pa.array(values, kind)})

    assert rows.equal(0, 1)
    assert rows.hash(0) == rows.hash(1)


@pytest.mark.parametrize(("kind", "values"), DIFFERENT, ids=str)
def test_different_values_are_different_and_so_are_their_hashes(kind: pa.DataType, values: Any) -> None:
    rows = Rows({"x": pa.array(values, kind)})

    assert not rows.equal(0, 1)
    assert rows.hash(0) != rows.hash(1)


@pytest.mark.parametrize(("kind", "values"), DIFFERENT, ids=str)
def test_a_second_column_does_not_change_what_is_equal(kind: pa.DataType, values: Any) -> None:
    rows = Rows({"x": pa.array([*values, values[0]], kind), "y": pa.array([1.5, 1.5, 1.5])})

    assert (rows.equal(0, 1), rows.equal(0, 2)) == (False, True)
    assert rows.hash(0) == rows.hash(2) != rows.hash(1)


def test_the_order_of_columns_matters() -> None:
    rows = Rows({"x": pa.array(["ab", "a"]), "y": pa.array(["c", "bc"])})

    assert not rows.equal(0, 1)
    assert rows.hash(0) != rows.hash(1)


def test_no_columns_are_always_equal() -> None:
    rows = Rows({"x": pa.array([1, 2])})
    nothing = rows.layout.columns([])

    assert equal_columns(rows.at(0), 0, nothing.address, rows.at(1), 0, nothing.address)


def test_columns_of_two_layouts_are_compared_pairwise() -> None:
    one = Rows({"a": pa.array([1]), "k": pa.array(["key"])})
    other = Rows({"k": pa.array([None, "key"]), "b": pa.array([1.5, 2.5])})
    own, foreign = one.layout.columns(["k"]), other.layout.columns(["k"])

    assert equal_columns(one.at(0), 0, own.address, other.at(1), 0, foreign.address)
    assert not equal_columns(one.at(0), 0, own.address, other.at(0), 0, foreign.address)
    assert hash_row(one.at(0), 0, own.address, ALL_BITS) == hash_row(other.at(1), 0, foreign.address, ALL_BITS)


@pytest.mark.parametrize("hash_bits", [1, 4, 8])
def test_a_mask_leaves_the_top_bits_only(hash_bits: int) -> None:
    rows = Rows({"x": pa.array(range(10_000))})
    mask = ((1 << hash_bits) - 1) << (32 - hash_bits)

    codes = {rows.hash(row, mask) for row in range(10_000)}

    assert len(codes) == 1 << hash_bits
    assert all(code & ~mask == 0 for code in codes)


@pytest.mark.parametrize(
    "values",
    [
        pa.array(range(100_000)),
        pa.array([float(number) for number in range(100_000)]),
        pa.array([number << 20 for number in range(100_000)]),
        pa.array([f"key-{number}" for number in range(100_000)]),
        pa.array([f"{LONG}{number}" for number in range(100_000)]),
    ],
    ids=["numbers", "floats", "multiples", "short strings", "long strings"],
)
def test_hashes_of_regular_keys_spread_evenly(values: pa.Array) -> None:
    rows = Rows({"x": values})
    codes, nulls = np.empty(len(values), np.int64), np.empty(len(values), np.uint8)
    hash_rows(rows.at(0), rows.layout.stride, len(values), rows.columns.address, ALL_BITS, codes.ctypes.data, nulls.ctypes.data)

    homes = np.bincount(codes >> 22, minlength=1024)

    # 100,000 keys in 1,024 homes: 98 each; six standard deviations are 60.
    assert homes.min() >= 38
    assert homes.max() <= 158
    assert len(np.unique(codes)) > 99_990


@pytest.mark.parametrize(
    ("null_safe", "marked"),
    [
        ([False, False], [0, 1, 1, 1]),
        ([True, False], [0, 0, 1, 1]),
        ([False, True], [0, 1, 0, 1]),
        ([True, True], [0, 0, 0, 0]),
    ],
)
def test_a_null_under_plain_equality_marks_its_row(null_safe: list[bool], marked: list[int]) -> None:
    rows = Rows({"a": pa.array([1, None, 1, None]), "b": pa.array(["x", "x", None, None])}, null_safe=null_safe)
    codes, nulls = np.empty(4, np.int64), np.empty(4, np.uint8)

    count = hash_rows(rows.at(0), rows.layout.stride, 4, rows.columns.address, ALL_BITS, codes.ctypes.data, nulls.ctypes.data)

    assert (nulls.tolist(), count) == (marked, sum(marked))
    assert [has_null(rows.at(row), rows.columns.address) for row in range(4)] == [bool(mark) for mark in marked]
    assert codes.tolist() == [rows.hash(row) for row in range(4)]


def test_null_bits_are_read_beyond_the_first_byte() -> None:
    rows = Rows({f"c{place}": pa.array([place, None if place % 3 == 0 else place]) for place in range(20)})

    found = [is_null(rows.at(1), rows.columns.address, place) for place in range(20)]

    assert found == [place % 3 == 0 for place in range(20)]


@pytest.mark.parametrize(("text", "inside"), [("", True), ("x" * 12, True), ("x" * 13, False)])
def test_short_strings_are_read_inside_the_record_and_long_ones_where_they_are(text: str, inside: bool) -> None:
    rows = Rows({"x": pa.array([text])})
    slot = rows.at(0) + int(rows.columns.lines[0, c.OFFSET])

    assert (variable_bytes(slot, 0) == slot + 4) is inside
