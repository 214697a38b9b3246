"""Every type that a column can have has values, NULL among them, that Arrow takes."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest

from zset_join.testing.strategies import other_bits, value_pool

TYPES = [
    pa.bool_(),
    pa.int8(),
    pa.uint64(),
    pa.float32(),
    pa.string(),
    pa.large_string(),
    pa.binary(),
    pa.date32(),
    pa.timestamp("us"),
    pa.timestamp("ms", tz="Asia/Tokyo"),
    pa.decimal128(10, 2),
    pa.struct([("a", pa.int64()), ("b", pa.string())]),
    pa.list_(pa.float64()),
    pa.dictionary(pa.int32(), pa.string()),
]


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_a_pool_has_null_and_other_values_of_its_type(kind: pa.DataType) -> None:
    array = pa.array(list(value_pool(kind)), kind)

    assert 0 < array.null_count < len(array)


def test_a_type_without_values_is_refused() -> None:
    with pytest.raises(TypeError, match="map<string, int64>"):
        value_pool(pa.map_(pa.string(), pa.int64()))


def test_an_equal_value_has_other_bits() -> None:
    assert math.copysign(1, other_bits(0.0)) == -1
    assert math.isnan(other_bits(float("nan")))
    assert other_bits("a") == "a"
