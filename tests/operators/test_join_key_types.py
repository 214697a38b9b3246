"""Keys of every type, keys of two types, and what rows carry besides: equality is Spark's, values keep their own bits."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.epochs import Epochs, delete, insert, upsert
from zset_join.core.errors import KeyTypeError
from zset_join.core.relation import Relation
from zset_join.core.tick import Tick
from zset_join.operators.join import HashJoin
from zset_join.zset import ZSet

NAN = float("nan")
OTHER_NAN = np.array([0xFFF8000000000001], np.uint64).view(np.float64)[0]
LONG = "longer than the twelve bytes that fit in a slot"
MIDNIGHT = dt.datetime(2024, 2, 29)
NESTED = pa.struct({"n": pa.list_(pa.struct({"x": pa.float64()}))})


def keyed(name: str, *kinds: pa.DataType) -> Relation:
    """Return a bag with a number and key columns of these types."""
    keys = {f"k{place}": kind for place, kind in enumerate(kinds)}
    return Relation(name=name, schema=pa.schema({"n": pa.int64(), **keys}), join_key=tuple(keys), mode="changelog")


def delta(relation: Relation, values: list[Any]) -> ZSet:
    """Return the rows 0, 1, 2 ... with these keys."""
    return ZSet.of({"n": list(range(len(values))), "k0": values}, schema=relation.schema)


def matches(
    left_kind: pa.DataType, left_values: list[Any], right_kind: pa.DataType, right_values: list[Any]
) -> list[tuple[int, int]]:
    """Return which of the values match, by position."""
    left, right = keyed("l", left_kind), keyed("r", right_kind)
    answer = HashJoin(left, right).answer(Tick(0), [delta(left, left_values), delta(right, right_values)])
    return sorted((row[0], row[2]) for chunk in answer for row, _ in chunk.to_pylist())


def diagonal(count: int) -> list[tuple[int, int]]:
    """Return the pairs (0, 0), (1, 1), ..."""
    return [(place, place) for place in range(count)]


DISTINCT = [
    (pa.bool_(), [False, True]),
    (pa.int8(), [-128, -1, 0, 127]),
    (pa.int16(), [-(2**15), 0, 255, 256]),
    (pa.int32(), [-(2**31), -1, 0, 2**31 - 1]),
    (pa.int64(), [-(2**63), -1, 0, 1, 2**63 - 1]),
    (pa.uint8(), [0, 255]),
    (pa.uint16(), [0, 65_535]),
    (pa.uint32(), [0, 2**32 - 1]),
    (pa.uint64(), [0, 2**63, 2**64 - 1]),
    (pa.float16(), np.array([0, 1.5, -1.5, np.inf, np.nan], np.float16).tolist()),
    (pa.float32(), [0.0, 1.5, -1.5, math.inf, NAN]),
    (pa.float64(), [0.0, 5e-324, 1.5, -1.5, math.inf, -math.inf, NAN]),
    (pa.string(), ["", " ", "a", "a ", "A", "é", "e\u0301", "x" * 12, "x" * 13, LONG, LONG + "!"]),
    (pa.large_string(), ["", "a", LONG]),
    (pa.string_view(), ["", "a", LONG]),
    (pa.dictionary(pa.int8(), pa.string()), ["", "a", LONG]),
    (pa.binary(), [b"", b"\0", b"\0\0", b"a", LONG.encode()]),
    (pa.binary(3), [b"abc", b"ab\0", b"\0\0\0"]),
    (pa.uuid(), [bytes(16), bytes(15) + b"\1", b"\1" + bytes(15)]),
    (pa.date32(), [dt.date(1, 1, 1), dt.date(1970, 1, 1), dt.date(2024, 2, 29)]),
    (pa.date64(), [dt.date(1970, 1, 1), dt.date(2024, 2, 29)]),
    (pa.timestamp("us"), [dt.datetime(1, 1, 1), MIDNIGHT, MIDNIGHT + dt.timedelta(microseconds=1)]),
    (pa.timestamp("ns", "Europe/Paris"), [0, 1, 10**18]),
    (pa.time32("ms"), [dt.time(0), dt.time(23, 59, 59, 999_000)]),
    (pa.time64("us"), [dt.time(0), dt.time(0, 0, 0, 1)]),
    (pa.duration("us"), [dt.timedelta(0), dt.timedelta(days=-1), dt.timedelta(microseconds=1)]),
    (pa.decimal128(10, 2), [Decimal("0.00"), Decimal("0.01"), Decimal("-99999999.99")]),
    (pa.decimal256(60, 0), [Decimal(0), Decimal(2) ** 130, -(Decimal(2) ** 130)]),
    (pa.list_(pa.int64()), [[], [None], [0], [0, 0], [1, 2], [2, 1]]),
    (pa.list_(pa.int64(), 2), [[0, 0], [0, None], [None, 0]]),
    (pa.struct({"a": pa.int64(), "b": pa.string()}), [{"a": None, "b": None}, {"a": 1, "b": None}, {"a": 1, "b": ""}]),
    (NESTED, [{"n": None}, {"n": []}, {"n": [None]}, {"n": [{"x": None}]}, {"n": [{"x": 0.0}]}, {"n": [{"x": NAN}]}]),
]


@pytest.mark.parametrize(("kind", "values"), DISTINCT, ids=lambda value: str(value) if isinstance(value, pa.DataType) else "")
def test_different_keys_meet_only_themselves(kind: pa.DataType, values: list[Any]) -> None:
    array = pa.array(np.array(values, np.float16)) if pa.types.is_float16(kind) else pa.array(values, kind)

    assert matches(kind, array, kind, array) == diagonal(len(values))


@pytest.mark.parametrize(
    ("kind", "left_values", "right_values"),
    [
        (pa.float64(), [0.0, NAN], [-0.0, OTHER_NAN]),
        (pa.float32(), [-0.0, NAN], [0.0, OTHER_NAN]),
        (NESTED, [{"n": [{"x": 0.0}, {"x": NAN}]}], [{"n": [{"x": -0.0}, {"x": OTHER_NAN}]}]),
        (pa.list_(pa.float32()), [[None, -0.0]], [[None, 0.0]]),
        (pa.struct({"a": pa.int64()}), [{"a": None}], [{"a": None}]),
    ],
)
def test_values_that_spark_calls_the_same_meet(kind: pa.DataType, left_values: list[Any], right_values: list[Any]) -> None:
    assert matches(kind, left_values, kind, right_values) == diagonal(len(left_values))


def test_a_null_nested_in_a_key_is_equal_to_itself_while_a_null_key_is_not() -> None:
    kind = pa.struct({"a": pa.int64()})

    assert matches(kind, [{"a": None}, None], kind, [{"a": None}, None]) == [(0, 0)]


# Type and keys of the left, type and keys of the right, which of them meet.
MIXED = [
    (pa.int32(), [-1, 7, 2**31 - 1], pa.int64(), [-1, 7, 2**31 - 1], diagonal(3)),
    (pa.int8(), [-1, 7], pa.uint32(), [2**32 - 1, 7], [(1, 1)]),
    (pa.int64(), [-1, 2**62], pa.uint64(), [2**64 - 1, 2**62], [(1, 1)]),
    (pa.float32(), [0.5, NAN, -0.0, 0.1], pa.float64(), [0.5, OTHER_NAN, 0.0, 0.1], diagonal(3)),
    (
        pa.decimal128(10, 2),
        [Decimal("1.50"), Decimal("2.00")],
        pa.decimal128(20, 5),
        [Decimal("1.50000"), Decimal("2.00001")],
        [(0, 0)],
    ),
    (pa.decimal128(10, 0), [Decimal(7), Decimal(8)], pa.int32(), [7, 9], [(0, 0)]),
    (pa.decimal128(38, 0), [Decimal(10) ** 37], pa.decimal128(38, 38), [Decimal("0.1")], []),
    (
        pa.date32(),
        [dt.date(2024, 2, 29), dt.date(1969, 12, 31)],
        pa.date64(),
        [dt.date(2024, 2, 29), dt.date(1970, 1, 1)],
        [(0, 0)],
    ),
    (pa.timestamp("s"), [MIDNIGHT], pa.timestamp("us"), [MIDNIGHT, MIDNIGHT + dt.timedelta(microseconds=1)], [(0, 0)]),
    (pa.timestamp("ms", "UTC"), [0, 1], pa.timestamp("ns", "Europe/Paris"), [0, 1], [(0, 0)]),
    (pa.string(), ["", LONG, "a"], pa.large_string(), ["", LONG, "a "], diagonal(2)),
    (pa.string(), ["", LONG, "a"], pa.dictionary(pa.int32(), pa.string()), ["", LONG, "b"], diagonal(2)),
    (pa.string(), ["", LONG, "a"], pa.string_view(), ["", LONG, "b"], diagonal(2)),
    (pa.binary(2), [b"ab", b"a\0"], pa.binary(), [b"ab", b"a"], [(0, 0)]),
    (pa.binary(), [b"ab", b"a\0"], pa.large_binary(), [b"ab", b"a"], [(0, 0)]),
    (pa.list_(pa.int32()), [[1, None], []], pa.large_list(pa.int64()), [[1, None], [None]], [(0, 0)]),
    (pa.list_(pa.float32(), 2), [[0.0, NAN], [1.0, 2.0]], pa.list_(pa.float64()), [[-0.0, NAN], [1.0]], [(0, 0)]),
    (pa.struct({"a": pa.int16()}), [{"a": 7}, {"a": None}], pa.struct({"a": pa.int64()}), [{"a": 7}, None], [(0, 0)]),
]
MIXED_TYPES = [pytest.param(*case, id=f"{case[0]} = {case[2]}") for case in MIXED]


@pytest.mark.parametrize(("left_kind", "left_values", "right_kind", "right_values", "expected"), MIXED_TYPES)
def test_keys_of_two_types_meet_by_value(
    left_kind: pa.DataType,
    left_values: list[Any],
    right_kind: pa.DataType,
    right_values: list[Any],
    expected: list[tuple[int, int]],
) -> None:
    swapped = sorted((one, other) for other, one in expected)

    assert matches(left_kind, left_values, right_kind, right_values) == expected
    assert matches(right_kind, right_values, left_kind, left_values) == swapped


@pytest.mark.parametrize(("left_kind", "left_values", "right_kind", "right_values", "expected"), MIXED_TYPES)
def test_keys_of_two_types_come_out_in_their_own(
    left_kind: pa.DataType,
    left_values: list[Any],
    right_kind: pa.DataType,
    right_values: list[Any],
    expected: list[tuple[int, int]],
) -> None:
    left, right = keyed("l", left_kind), keyed("r", right_kind)
    join = HashJoin(left, right, "full")

    (answer,) = join.answer(Tick(0), [delta(left, left_values), delta(right, right_values)])

    assert [join.output.schema.field(name).type for name in ("k0", "k0_right")] == [left_kind, right_kind]
    assert answer.rows.schema == join.output.schema
    answer.rows.validate(full=True)


def test_an_upsert_moves_between_keys_of_two_types() -> None:
    orders = Relation(
        name="o",
        schema=pa.schema({"id": pa.int64(), "price": pa.decimal128(10, 2)}),
        join_key=("price",),
        primary_key=("id",),
        mode="upsert",
    )
    steps = Relation(name="s", schema=pa.schema({"price": pa.decimal128(12, 4)}), join_key=("price",), mode="changelog")
    join = Epochs(HashJoin(orders, steps, "left"))
    join.feed(upsert((1, Decimal("1.50"))), insert((Decimal("1.5000"),), (Decimal("2.5000"),)))

    answer = join.feed(upsert((1, Decimal("2.50"))), [])

    assert answer == [
        ((1, Decimal("1.50"), Decimal("1.5000")), -1),
        ((1, Decimal("2.50"), Decimal("2.5000")), +1),
    ]


# ---------------------------------------------------------------- values keep their own bits


def test_a_negative_zero_meets_a_zero_and_both_keep_their_sign() -> None:
    left, right = keyed("l", pa.float64()), keyed("r", pa.float64())

    (answer,) = HashJoin(left, right).answer(Tick(0), [delta(left, [-0.0]), delta(right, [0.0])])

    ((row, _),) = answer.to_pylist()
    assert (math.copysign(1, row[1]), math.copysign(1, row[3])) == (-1, 1)


def test_a_nan_keeps_its_payload_through_the_state() -> None:
    left, right = keyed("l", pa.float64()), keyed("r", pa.float64())
    join = HashJoin(left, right)
    join.absorb(Tick(0), [delta(left, pa.array([OTHER_NAN])), delta(right, [])])

    (answer,) = join.answer(Tick(1), [delta(left, []), delta(right, [NAN])])

    assert np.frombuffer(answer.rows.column("k0").buffers()[1], np.uint64)[0] == 0xFFF8000000000001


def test_an_upsert_that_changes_nothing_but_the_sign_of_a_zero_is_no_change() -> None:
    readings = Relation(
        name="l", schema=pa.schema({"id": pa.int64(), "k": pa.float64()}), join_key=("k",), primary_key=("id",), mode="upsert"
    )
    join = Epochs(HashJoin(readings, keyed("r", pa.float64()), "left"))
    join.feed(upsert((1, 0.0)), [])

    assert join.feed(upsert((1, -0.0)), []) == []


def test_a_retraction_finds_its_row_whatever_the_sign_of_its_zero() -> None:
    join = Epochs(HashJoin(keyed("l", pa.float64()), keyed("r", pa.float64()), "left"))
    join.feed(insert((1, 0.0)), [])

    assert join.feed(delete((1, -0.0)), []) == [((1, 0.0, None, None), -1)]
    assert join.sum() == {}


PAYLOADS = {
    "list of structs": (pa.list_(pa.struct({"s": pa.string(), "f": pa.float32()})), [{"s": LONG, "f": -0.0}, None]),
    "map": (pa.map_(pa.string(), pa.list_(pa.int64())), [("a", [1, None]), ("b", None)]),
    "struct": (
        pa.struct({"m": pa.map_(pa.string(), pa.int8()), "l": pa.list_(pa.binary())}),
        {"m": [("k", 1)], "l": [b"", None]},
    ),
    "fixed size list": (pa.list_(pa.float64(), 3), [1.5, None, NAN]),
    "large list": (pa.large_list(pa.large_string()), [LONG, "", None]),
    "wide decimal": (pa.decimal256(70, 3), Decimal("123456789012345678901234567890123456789012345.678")),
    "month interval": (pa.month_day_nano_interval(), pa.MonthDayNano([1, -2, 3])),
}


@pytest.mark.parametrize(("kind", "value"), PAYLOADS.values(), ids=PAYLOADS)
def test_any_payload_goes_through_state_and_comes_out_whole(kind: pa.DataType, value: Any) -> None:
    rows = Relation(
        name="l", schema=pa.schema({"k": pa.int64(), "payload": kind}), join_key=("k",), primary_key=("k",), mode="upsert"
    )
    other = Relation(name="r", schema=pa.schema({"k": pa.int64()}), join_key=("k",))
    join = HashJoin(rows, other, "left")
    first = ZSet.of({"k": [1, 2], "payload": pa.array([value, None], kind)}, schema=rows.schema)
    join.absorb(Tick(0), [first, ZSet.empty(other.schema)])

    (answer,) = join.answer(Tick(1), [ZSet.empty(rows.schema), ZSet.of({"k": [1, 2]}, schema=other.schema)])

    shown = answer.rows.column("payload").filter(
        pa.array([key is not None for key in answer.rows.column("k_right").to_pylist()])
    )
    assert str(sorted(shown.to_pylist(), key=str)) == str(sorted(pa.array([value, None], kind).to_pylist(), key=str))


@pytest.mark.parametrize("kind", [kind for kind, _ in PAYLOADS.values()], ids=PAYLOADS)
def test_an_update_of_a_payload_from_and_to_null_is_seen(kind: pa.DataType) -> None:
    value = next(value for known, value in PAYLOADS.values() if known == kind)
    rows = Relation(
        name="l", schema=pa.schema({"k": pa.int64(), "payload": kind}), join_key=("k",), primary_key=("k",), mode="upsert"
    )
    join = Epochs(HashJoin(rows, Relation(name="r", schema=pa.schema({"k": pa.int64()}), join_key=("k",)), "left"))
    join.feed(upsert((1, value)), [])

    assert join.feed(upsert((1, value)), []) == []
    assert [weight for _, weight in join.feed(upsert((1, None)), [])] == [-1, +1]
    assert [weight for _, weight in join.feed(upsert((1, value)), [])] == [-1, +1]


# ---------------------------------------------------------------- keys of several columns, and no keys at all


def test_composite_keys_of_many_types_match_as_a_whole() -> None:
    kinds = [pa.string(), pa.float64(), pa.date32(), pa.list_(pa.int8()), pa.bool_(), pa.decimal128(5, 1)]
    key = (LONG, -0.0, dt.date(2024, 2, 29), [1, None], True, Decimal("1.5"))
    join = Epochs(HashJoin(keyed("l", *kinds), keyed("r", *kinds)))

    assert len(join.feed(insert((1, *key)), insert((2, *key)))) == 1
    assert len(join.feed([], insert((3, *key[:-1], Decimal("1.6"))))) == 0
    assert len(join.feed([], insert((4, LONG, 0.0, *key[2:])))) == 1


def test_the_parts_of_a_composite_key_do_not_run_together() -> None:
    join = Epochs(HashJoin(keyed("l", pa.string(), pa.string()), keyed("r", pa.string(), pa.string())))

    assert join.feed(insert((1, "ab", "c")), insert((2, "a", "bc"))) == []


def test_a_primary_key_may_be_nested() -> None:
    kind = pa.struct({"shop": pa.string(), "no": pa.list_(pa.float64())})
    rows = Relation(
        name="l", schema=pa.schema({"id": kind, "k": pa.int64()}), join_key=("k",), primary_key=("id",), mode="upsert"
    )
    join = Epochs(HashJoin(rows, keyed("r", pa.int64()), "left"))
    join.feed(upsert(({"shop": "a", "no": [0.0]}, 1)), [])

    answer = join.feed(upsert(({"shop": "a", "no": [-0.0]}, 2)), [])

    assert [(row[1], weight) for row, weight in answer] == [(1, -1), (2, +1)]


@pytest.mark.parametrize("kind", [pa.map_(pa.string(), pa.int64()), pa.list_(pa.map_(pa.string(), pa.int64()))])
def test_a_map_is_no_key_of_a_join_nor_of_a_relation(kind: pa.DataType) -> None:
    with pytest.raises(KeyTypeError, match='key column "k0"'):
        HashJoin(keyed("l", kind), keyed("r", kind))
    upserts = Relation(
        name="l", schema=pa.schema({"id": kind, "k0": pa.int64()}), join_key=("k0",), primary_key=("id",), mode="upsert"
    )
    with pytest.raises(KeyTypeError, match='key column "id"'):
        HashJoin(upserts, keyed("r", pa.int64()))


def test_key_columns_that_need_a_cast_are_named_when_the_join_is_built() -> None:
    with pytest.raises(KeyTypeError, match=r'"k0" \(int64\) and "k0" \(string\) cannot be compared as they are; cast one'):
        HashJoin(keyed("l", pa.int64()), keyed("r", pa.string()))
