"""Key words order as Spark orders the values, and give the values back."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from zset_join.aggregates.value_codecs import CompositeCodec, codec_of, valid_flags
from zset_join.core.errors import ResourceError
from zset_join.kernels.aggregate.tree import compare_keys

D = Decimal
LONG = "longer than eight bytes"

# Values of each type in Spark's order.
ORDERED: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int8(), [-128, -1, 0, 127]),
    (pa.int64(), [-(2**63), -1, 0, 2**63 - 1]),
    (pa.uint32(), [0, 1, 2**32 - 1]),
    (pa.uint64(), [0, 1, 2**63, 2**64 - 1]),
    (pa.float16(), [-1.0, 0.5]),
    (pa.float32(), [-math.inf, -1.5, 0.0, 1e-40, math.inf, math.nan]),
    (pa.float64(), [-math.inf, -1.5, 0.0, 5e-324, 1e300, math.inf, math.nan]),
    (pa.bool_(), [False, True]),
    (pa.decimal128(5, 2), [D("-1.25"), D("0.00"), D("1.25")]),
    (pa.decimal128(38, 2), [D("-" + "9" * 36), D("-0.01"), D("0.00"), D("1" * 20), D("9" * 36)]),
    (pa.date32(), [dt.date(1, 1, 1), dt.date(1970, 1, 1), dt.date(9999, 12, 31)]),
    (pa.timestamp("ns"), [dt.datetime(1901, 1, 1), dt.datetime(2024, 2, 29)]),
    (pa.timestamp("us", "Asia/Tokyo"), [dt.datetime(1901, 1, 1, tzinfo=dt.UTC), dt.datetime(2024, 2, 29, tzinfo=dt.UTC)]),
    (pa.time32("s"), [dt.time(0), dt.time(23, 59)]),
    (pa.duration("ms"), [dt.timedelta(days=-1), dt.timedelta(0), dt.timedelta(days=1)]),
    (pa.string(), ["", "\0", "a", "a\0", "a ", "aaaaaaaa", "aaaaaaaa\0", LONG, LONG + "!", "z", "é"]),
    (pa.large_binary(), [b"", b"\x00" * 9, b"\x7f", b"\xff" * 8, b"\xff" * 9]),
    (pa.binary(9), [b"\x00" * 9, b"\x00" * 8 + b"\x01"]),
    (pa.dictionary(pa.int32(), pa.string()), ["a", "b"]),
]


def keys_of(array: pa.Array) -> tuple[Any, np.ndarray[Any, np.dtype[np.int64]], list[Any]]:
    """Return the codec of an array, its key words, and what they point into."""
    codec = codec_of(array.type)
    keys = np.zeros((len(array), codec.words), np.int64)
    owners: list[Any] = []
    codec.encode(array, keys, 0, owners)
    return codec, keys, owners


@pytest.mark.parametrize(("kind", "values"), ORDERED, ids=[str(kind) for kind, _ in ORDERED])
def test_key_words_are_in_the_order_of_the_values(kind: pa.DataType, values: list[Any]) -> None:
    codec, keys, owners = keys_of(pa.array(values, kind))

    address, step = int(keys.ctypes.data), 8 * codec.words
    orders = [
        [compare_keys(address + a * step, 0, address + b * step, 0, codec.words, codec.texts) for b in range(len(values))]
        for a in range(len(values))
    ]

    assert orders == [[(a > b) - (a < b) for b in range(len(values))] for a in range(len(values))], owners


@pytest.mark.parametrize(("kind", "values"), ORDERED, ids=[str(kind) for kind, _ in ORDERED])
def test_key_words_give_the_values_back(kind: pa.DataType, values: list[Any]) -> None:
    array = pa.array([*values, None, values[0]], kind).slice(1)
    codec, keys, owners = keys_of(array)

    back = codec.decode(keys, valid_flags(array), 0)

    assert back.type == kind
    assert repr(back.to_pylist()) == repr(array.to_pylist()), owners


def test_equal_floats_have_equal_words() -> None:
    other_nan = np.array([0xFFF8000000000001], np.uint64).view(np.float64)[0]
    _, keys, _ = keys_of(pa.array([0.0, -0.0, math.nan, other_nan]))

    assert (keys[0] == keys[1], keys[2] == keys[3]) == (True, True)


def test_several_values_are_side_by_side_with_a_flag_for_null() -> None:
    codec = CompositeCodec([codec_of(pa.int64()), codec_of(pa.string())], (False, True))
    keys, owners = np.empty((3, codec.words), np.int64), []
    codec.encode([pa.array([1, 2, 3]), pa.array(["a", None, LONG])], keys, owners)

    assert (codec.words, codec.texts, codec.span(1)) == (5, 0b100, (1, 5, 0b10))
    assert codec.decode(0, keys, None, 0).to_pylist() == [1, 2, 3]
    assert codec.decode(1, keys, None, 0).to_pylist() == ["a", None, LONG]


def test_strings_beyond_an_arrow_array_are_refused() -> None:
    codec = codec_of(pa.string())
    keys = np.zeros((2, codec.words), np.int64)
    keys[:, 1] = 1 << 30

    with pytest.raises(ResourceError, match="set chunk_rows to fewer rows"):
        codec.decode(keys, None, 0)
