"""When two values are the same: hashing and comparing agree with Spark, column by column."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from zset_join.kernels.values.keys import equal_columns, has_null, hash_rows, is_null
from zset_join.zset.row_layout import RowLayout

ALL_BITS = 0xFFFFFFFF
NAN = float("nan")
LONG = "the same first twelve bytes, then "


class Rows:
    """The rows of a batch as records, with their hashes."""

    def __init__(self, columns: dict[str, pa.Array], *, null_safe: list[bool] | None = None) -> None:
        batch = pa.RecordBatch.from_pydict(columns)
        self.layout, self.count = RowLayout(batch.schema), batch.num_rows
        self._target: Any = np.zeros(self.count * self.layout.stride, np.uint8)
        self._records = self.layout.encode(batch, [], self._target, int(self._target.ctypes.data))
        self.columns = self.layout.columns(list(columns), null_safe=null_safe)
        self.codes, self.nulls = np.empty(self.count, np.int64), np.empty(self.count, np.uint8)
        self.marked = hash_rows(
            self.at(0), self.layout.stride, self.count, self.columns.address, ALL_BITS, *(
                int(array.ctypes.data) for array in (self.codes, self.nulls))
        )  # fmt: skip

    def at(self, row: int) -> int:
        return self._records.address + row * self.layout.stride

    def equal(self, one: int, other: int) -> bool:
        return bool(equal_columns(self.at(one), 0, self.columns.address, self.at(other), 0, self.columns.address))


def floats(unsigned: Any, *patterns: int) -> Any:
    stored = np.array(patterns, unsigned)
    return stored.view(f"f{stored.itemsize}")


# Types with values; those of one letter are the same.
VALUES: list[tuple[pa.DataType, Any, str]] = [
    (pa.int64(), [7, 7, 0, None, None, 2**40, 2**41], "aabccde"),
    (pa.int8(), [1, -1, None], "abc"),
    (pa.int16(), [1, 256, None], "abc"),
    (pa.bool_(), [False, True, None, True], "abcb"),
    (pa.float64(), [0.0, -0.0, 1.0, -1.0, None], "aabcd"),
    (pa.float64(), floats(np.uint64, 0x7FF8000000000000, 0xFFF8000000000001, 0x7FF0000000000001, 0x7FF0000000000000), "aaab"),
    (pa.float32(), floats(np.uint32, 0x7FC00000, 0xFF800001, 0, 0x80000000, 1), "aabbc"),
    (pa.float16(), floats(np.uint16, 0x7E00, 0xFC01, 0, 0x8000), "aabb"),
    (pa.string(), ["", "", "a", "a ", "a\0", None, "x" * 12, "x" * 13], "aabcdefg"),
    (pa.string(), [LONG + "A", LONG + "A", LONG + "B", LONG[:13]], "aabc"),
    (pa.decimal128(20, 2), [Decimal("1.50"), Decimal("1.50"), None], "aab"),
    (pa.decimal128(38, 0), [Decimal(1), Decimal(2) ** 64 + 1], "ab"),
    (pa.decimal256(76, 0), [Decimal(1), Decimal(2) ** 192 + 1], "ab"),
    (pa.binary(5), [b"abcde", b"abcde", b"abcdf"], "aab"),
    (pa.timestamp("us"), [dt.datetime(2024, 1, 1), dt.datetime(2024, 1, 1, microsecond=1)], "ab"),
    (pa.list_(pa.float64()), [[0.0, NAN, None], [-0.0, -NAN, None], [], None], "aabc"),
    (pa.list_(pa.int8()), [[1, 2], [2, 1]], "ab"),
    (
        pa.struct({"a": pa.string(), "b": pa.string()}),
        [{"a": "ab", "b": ""}, {"a": "a", "b": "b"}, {"a": None, "b": ""}],
        "abc",
    ),
    (pa.null(), [None, None], "aa"),
]


@pytest.mark.parametrize(("kind", "values", "classes"), VALUES, ids=str)
def test_rows_are_equal_and_have_one_hash_where_all_their_values_are_the_same(kind: Any, values: Any, classes: str) -> None:
    column = pa.array(values, kind)
    rows = Rows({"before": pa.array(["a", "ab"] * len(column)), "x": pa.concat_arrays([column, column])})
    named = list(zip("ab" * len(column), classes * 2, strict=True))

    found = [
        (rows.equal(one, other), rows.codes[one] == rows.codes[other]) for one, other in product(range(len(named)), repeat=2)
    ]

    assert found == [(one == other,) * 2 for one, other in product(named, repeat=2)]


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
    codes = Rows({"x": values}).codes

    homes = np.bincount(codes >> 22, minlength=1024)

    # 100,000 keys in 1,024 homes: 98 each; six standard deviations are 60.
    assert homes.min() >= 38
    assert homes.max() <= 158
    assert len(np.unique(codes)) > 99_990


@pytest.mark.parametrize("null_safe", [*product([False, True], repeat=2)], ids=str)
def test_a_null_under_plain_equality_marks_its_row(null_safe: tuple[bool, bool]) -> None:
    rows = Rows({"a": pa.array([1, None, 1, None]), "b": pa.array(["x", "x", None, None])}, null_safe=[*null_safe])

    marked = [int((a and not null_safe[0]) or (b and not null_safe[1])) for b, a in product([False, True], repeat=2)]
    assert (rows.nulls.tolist(), rows.marked) == (marked, sum(marked))
    assert [has_null(rows.at(row), rows.columns.address) for row in range(4)] == [bool(mark) for mark in marked]


def test_null_bits_are_read_beyond_the_first_byte() -> None:
    rows = Rows({f"c{place}": pa.array([place, None if place % 3 == 0 else place]) for place in range(20)})

    found = [is_null(rows.at(1), rows.columns.address, place) for place in range(20)]

    assert found == [place % 3 == 0 for place in range(20)]
