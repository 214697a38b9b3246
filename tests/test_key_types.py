"""Which key columns can be compared, and as what."""

from __future__ import annotations

import pyarrow as pa
import pytest

from zset_join.core.errors import KeyTypeError
from zset_join.core.key_types import check_key_type, common_key_type, storage_type

UNION = pa.sparse_union([pa.field("a", pa.int64())])
MAP = pa.map_(pa.string(), pa.int64())


@pytest.mark.parametrize(
    ("declared", "stored"),
    [
        (pa.int64(), pa.int64()),
        (pa.dictionary(pa.int8(), pa.string()), pa.string()),
        (pa.dictionary(pa.int8(), pa.string_view()), pa.large_string()),
        (pa.string_view(), pa.large_string()),
        (pa.binary_view(), pa.large_binary()),
        (pa.uuid(), pa.binary(16)),
    ],
)
def test_a_column_is_stored_decoded_and_plain(declared: pa.DataType, stored: pa.DataType) -> None:
    assert storage_type(declared) == stored


@pytest.mark.parametrize(
    ("left", "right", "common"),
    [
        (pa.int8(), pa.int8(), pa.int8()),
        (pa.int32(), pa.int64(), pa.int64()),
        (pa.uint8(), pa.uint32(), pa.uint32()),
        (pa.int8(), pa.uint32(), pa.int64()),
        (pa.int64(), pa.uint64(), pa.decimal128(20, 0)),
        (pa.float16(), pa.float64(), pa.float64()),
        (pa.float32(), pa.float64(), pa.float64()),
        (pa.decimal128(10, 2), pa.decimal128(12, 5), pa.decimal128(13, 5)),
        (pa.decimal128(38, 0), pa.decimal128(38, 38), pa.decimal256(76, 38)),
        (pa.decimal128(10, 2), pa.int32(), pa.decimal128(12, 2)),
        (pa.timestamp("s"), pa.timestamp("us"), pa.timestamp("us")),
        (pa.timestamp("ms", "UTC"), pa.timestamp("us", "Europe/Paris"), pa.timestamp("us", "UTC")),
        (pa.date32(), pa.date64(), pa.date32()),
        (pa.string(), pa.large_string(), pa.large_string()),
        (pa.string(), pa.dictionary(pa.int32(), pa.string()), pa.string()),
        (pa.string(), pa.string_view(), pa.large_string()),
        (pa.binary(), pa.large_binary(), pa.large_binary()),
        (pa.binary(4), pa.binary(), pa.large_binary()),
        (pa.null(), pa.int64(), pa.int64()),
        (pa.list_(pa.int32()), pa.list_(pa.int64()), pa.large_list(pa.int64())),
        (pa.list_(pa.int32(), 2), pa.large_list(pa.int32()), pa.large_list(pa.int32())),
        (
            pa.struct({"a": pa.int32(), "b": pa.string()}),
            pa.struct({"a": pa.int64(), "b": pa.string()}),
            pa.struct({"a": pa.int64(), "b": pa.string()}),
        ),
        (
            pa.list_(pa.struct({"a": pa.float32()})),
            pa.list_(pa.struct({"a": pa.float64()})),
            pa.large_list(pa.struct({"a": pa.float64()})),
        ),
    ],
)
def test_two_columns_are_compared_in_a_type_that_holds_the_values_of_both(
    left: pa.DataType, right: pa.DataType, common: pa.DataType
) -> None:
    assert common_key_type(left, right, left_column="a", right_column="b") == common
    assert common_key_type(right, left, left_column="b", right_column="a") == common


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (pa.int64(), pa.string()),
        (pa.int64(), pa.float64()),
        (pa.int64(), pa.bool_()),
        (pa.int64(), pa.timestamp("us")),
        (pa.float64(), pa.decimal128(10, 2)),
        (pa.string(), pa.binary()),
        (pa.date32(), pa.timestamp("us")),
        (pa.timestamp("us"), pa.timestamp("us", "UTC")),
        (pa.list_(pa.int64()), pa.list_(pa.string())),
        (pa.list_(pa.int64()), pa.int64()),
        (pa.struct({"a": pa.int64()}), pa.struct({"b": pa.int64()})),
        (pa.struct({"a": pa.int64()}), pa.struct({"a": pa.int64(), "b": pa.int64()})),
    ],
)
def test_where_only_the_user_can_decide_a_cast_is_required(left: pa.DataType, right: pa.DataType) -> None:
    with pytest.raises(KeyTypeError, match=r'"order_id" .* and "id" .*; cast one of them explicitly') as caught:
        common_key_type(left, right, left_column="order_id", right_column="id")

    assert caught.value.code == "KEY_TYPES_DIFFER"
    assert caught.value.facts == {"left": str(left), "right": str(right)}


@pytest.mark.parametrize(
    "declared",
    [MAP, UNION, pa.list_(MAP), pa.struct({"a": pa.struct({"m": MAP})}), pa.large_list(UNION), pa.list_(MAP, 2)],
)
def test_a_key_with_a_map_or_a_union_in_it_has_no_equality(declared: pa.DataType) -> None:
    with pytest.raises(KeyTypeError, match=r'relation "orders": key column "attributes"') as caught:
        check_key_type(declared, relation="orders", column="attributes")

    assert caught.value.code == "KEY_TYPE"
    assert caught.value.facts == {"relation": "orders", "column": "attributes", "type": str(declared)}


@pytest.mark.parametrize(
    "declared",
    [
        pa.bool_(),
        pa.uint64(),
        pa.float16(),
        pa.decimal256(60, 3),
        pa.date64(),
        pa.timestamp("ns", "UTC"),
        pa.time32("s"),
        pa.duration("us"),
        pa.binary(3),
        pa.string_view(),
        pa.dictionary(pa.int32(), pa.string()),
        pa.null(),
        pa.list_(pa.struct({"a": pa.list_(pa.float64())})),
    ],
)
def test_every_other_type_can_be_a_key(declared: pa.DataType) -> None:
    check_key_type(declared, relation="orders", column="key")
