"""Examples and small laws of `zset_join.kernels.values.nested`: nested values as blobs."""

from __future__ import annotations

import datetime
import decimal
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from property_tests.profiles import examples
from zset_join.core.errors import KeyTypeError, StateError
from zset_join.kernels.values.nested import (
    canonical_nested,
    decode_nested,
    encode_nested,
    is_nested,
)

NEGATIVE_NAN = struct.unpack("<d", struct.pack("<Q", 0xFFF8000000000001))[0]

# Every leaf type with the Python values that are drawn for it.
LEAVES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-128, 127)),
    (pa.uint16(), st.integers(0, 2**16 - 1)),
    (pa.int32(), st.integers(-2, 2)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float32(), st.sampled_from([0.0, -0.0, 1.5, float("nan"), float("inf")])),
    (pa.float64(), st.sampled_from([0.0, -0.0, 1.5, float("nan"), NEGATIVE_NAN, float("-inf")])),
    (pa.decimal128(10, 2), st.sampled_from([decimal.Decimal("0.00"), decimal.Decimal("-1.25")])),
    (pa.decimal256(60, 1), st.sampled_from([decimal.Decimal("0.0"), decimal.Decimal("-1.2")])),
    (pa.string(), st.sampled_from(["", "a", "a ", "é", "a\0"])),
    (pa.large_string(), st.text(max_size=3)),
    (pa.string_view(), st.text(max_size=3)),
    (pa.binary(), st.binary(max_size=3)),
    (pa.large_binary(), st.binary(max_size=20)),
    (pa.binary(2), st.binary(min_size=2, max_size=2)),
    (pa.date32(), st.dates()),
    (pa.timestamp("us"), st.datetimes()),
    (pa.timestamp("us", tz="UTC"), st.datetimes(timezones=st.just(datetime.UTC))),
    (pa.time64("us"), st.times()),
    (pa.duration("us"), st.timedeltas(datetime.timedelta(days=-9), datetime.timedelta(days=9))),
    (pa.null(), st.none()),
    (pa.dictionary(pa.int32(), pa.string()), st.sampled_from(["x", "yy"])),
]


@st.composite
def typed_values(draw: st.DrawFn, depth: int = 3) -> tuple[pa.DataType, st.SearchStrategy[Any]]:
    """Draw a type together with the strategy of its values, NULL among them."""
    kind = draw(st.sampled_from(["leaf", "list", "large_list", "fixed_size_list", "struct", "map"])) if depth else "leaf"
    if kind == "leaf":
        leaf_type, values = draw(st.sampled_from(LEAVES))
        return leaf_type, st.none() | values
    if kind == "struct":
        parts = draw(st.lists(typed_values(depth - 1), max_size=4))
        names = [f"f{position}" for position in range(len(parts))]
        fields = [pa.field(name, part) for name, (part, _) in zip(names, parts, strict=True)]
        values = st.fixed_dictionaries({name: strategy for name, (_, strategy) in zip(names, parts, strict=True)})
        return pa.struct(fields), st.none() | values
    element_type, elements = draw(typed_values(depth - 1))
    if kind == "map":
        entries = st.lists(st.tuples(st.sampled_from(["k", "l", ""]), elements), max_size=3)
        return pa.map_(pa.string(), element_type), st.none() | entries
    if kind == "fixed_size_list":
        return pa.list_(element_type, 2), st.none() | st.lists(elements, min_size=2, max_size=2)
    make = pa.list_ if kind == "list" else pa.large_list
    return make(element_type), st.none() | st.lists(elements, max_size=10)


@st.composite
def nested_arrays(draw: st.DrawFn) -> pa.Array:
    """Draw an array of a random nested type, often with equal values in it, perhaps as a slice."""
    drawn_type, values = draw(typed_values().filter(lambda drawn: is_nested(drawn[0])))
    distinct = draw(st.lists(values, min_size=1, max_size=5))
    rows = draw(st.lists(st.sampled_from(distinct), max_size=12))
    array = pa.array(rows, drawn_type)
    return array.slice(draw(st.integers(0, len(rows))), draw(st.integers(0, len(rows))))


def plain(value: Any, of_float: Callable[[float], Any]) -> Any:
    """Return a value with its containers as tuples, and its floats as what a function makes of them."""
    if isinstance(value, float):
        return of_float(value)
    if isinstance(value, dict):
        return tuple(plain(part, of_float) for part in value.values())
    return tuple(plain(part, of_float) for part in value) if isinstance(value, list | tuple) else value


def bits(array: pa.Array) -> list[Any]:
    return [plain(value, lambda number: struct.pack("<d", number)) for value in array.to_pylist()]


def normalised(array: pa.Array) -> list[Any]:
    """Return the values such that Spark's key equality is Python's: the oracle of the equality law."""
    return [plain(value, lambda number: "NaN" if number != number else number + 0.0) for value in array.to_pylist()]


def canonical_part(blob: bytes | None) -> bytes | None:
    return None if blob is None else blob[: 4 + int.from_bytes(blob[:4], "little")]


def equal_pairs(values: list[Any]) -> list[tuple[int, int]]:
    return [(i, j) for i, left in enumerate(values) for j, right in enumerate(values) if left == right]


@settings(max_examples=examples(push=60, nightly=200), deadline=None)
@given(nested_arrays())
def test_decoding_gives_back_every_value_bit_for_bit(array: pa.Array) -> None:
    decoded = decode_nested(encode_nested(array), array.type)

    decoded.validate(full=True)
    assert decoded.type == array.type
    assert bits(decoded) == bits(array)


@settings(max_examples=examples(push=60, nightly=200), deadline=None)
@given(nested_arrays())
def test_two_canonical_parts_are_equal_exactly_when_spark_calls_the_values_equal(array: pa.Array) -> None:
    canonical = [canonical_part(blob) for blob in encode_nested(array).to_pylist()]

    assert equal_pairs(canonical) == equal_pairs(normalised(array))
    assert canonical_nested(array).to_pylist() == canonical


@settings(max_examples=examples(push=20, nightly=50), deadline=None)
@given(nested_arrays())
def test_a_blob_depends_on_nothing_but_its_own_value(array: pa.Array) -> None:
    together = encode_nested(array).to_pylist()
    one_by_one = [encode_nested(array.slice(row, 1)).to_pylist()[0] for row in range(len(array))]

    assert together == one_by_one


def test_a_null_row_stays_null_and_an_empty_list_does_not() -> None:
    blobs = encode_nested(pa.array([None, []], pa.list_(pa.int64())))

    assert blobs.to_pylist() == [None, b"\x04\0\0\0" + b"\0\0\0\0"]


def test_the_layout_of_a_struct_is_flags_then_fixed_fields_then_ends_then_the_rest() -> None:
    rows = pa.array([("ab", 5, None)], pa.struct({"s": pa.string(), "i": pa.int8(), "t": pa.string()}))

    assert encode_nested(rows).to_pylist() == [b"\x0c\0\0\0" + b"\x03" + b"\x05" + b"\x02\0\0\0" + b"\x02\0\0\0" + b"ab"]


@pytest.mark.parametrize(
    ("unsigned", "patterns"),
    [
        (np.uint16, [0x7E01, 0xFC01, 0x8000, 0x7C00, 0x0001]),
        (np.uint32, [0x7FC00001, 0xFF800001, 0x80000000, 0x7F800000, 0x00000001]),
        (np.uint64, [0x7FF8000000000001, 0xFFF0000000000001, 0x8000000000000000, 0x7FF0000000000000, 1]),
    ],
)
def test_nan_payloads_and_negative_zero_keep_their_bits_in_every_float_type(
    unsigned: type[np.unsignedinteger[Any]], patterns: list[int]
) -> None:
    stored = np.array(patterns, unsigned)
    floats = pa.array(stored.view(f"f{stored.itemsize}"))
    rows = pa.StructArray.from_arrays([floats, pa.array(["a", "b", "c", "d", "e"])], ["x", "s"])

    blobs = encode_nested(rows)

    decoded = decode_nested(blobs, rows.type).field("x")
    assert np.frombuffer(decoded.buffers()[1], unsigned)[: len(patterns)].tolist() == patterns
    size = 6 + stored.itemsize
    assert [len(blob) for blob in blobs.to_pylist()] == [4 + 2 * size] * 3 + [4 + size] * 2


def test_what_hides_below_a_null_does_not_reach_the_blob() -> None:
    hidden = pa.array(["secret", "shown"])
    rows = pa.StructArray.from_arrays([hidden], ["s"], mask=pa.array([True, False]))
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2]), rows)

    blobs = encode_nested(lists).to_pylist()

    assert b"secret" not in blobs[0]
    assert b"shown" in blobs[1]


def test_a_dictionary_index_that_hides_below_a_null_is_not_looked_up() -> None:
    hidden = pa.DictionaryArray.from_arrays(pa.array([9, 0], pa.int8()), pa.array(["shown"]), safe=False)
    rows = pa.StructArray.from_arrays([hidden], ["d"], mask=pa.array([True, False]))

    assert decode_nested(encode_nested(rows), rows.type).to_pylist() == [None, {"d": "shown"}]


def test_a_field_that_may_not_be_null_stays_valid_below_a_null_struct() -> None:
    inner = pa.struct([pa.field("x", pa.int32(), nullable=False), pa.field("s", pa.string(), nullable=False)])
    rows = pa.array([{"x": 1, "s": "a"}, None], inner)

    decoded = decode_nested(encode_nested(rows), inner)

    assert decoded.field("x").null_count == decoded.field("s").null_count == 0
    assert decoded.equals(rows)


def test_a_union_inside_is_refused_by_name() -> None:
    unions = pa.UnionArray.from_dense(pa.array([0], pa.int8()), pa.array([0], pa.int32()), [pa.array([7])])

    with pytest.raises(KeyTypeError, match="dense_union") as caught:
        encode_nested(pa.StructArray.from_arrays([unions], ["u"]))

    assert caught.value.code == "UNSUPPORTED_TYPE"


def test_a_blob_of_the_wrong_length_is_reported_as_damage() -> None:
    blobs = pa.array([b"\x04\0\0\0\0\0\0\0", b"\x04\0\0\0\0"], pa.large_binary())

    with pytest.raises(StateError, match="blob 1") as caught:
        decode_nested(blobs, pa.list_(pa.int64()))

    assert caught.value.code == "DAMAGED_BLOB"
