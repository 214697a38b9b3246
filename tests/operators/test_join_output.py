"""What an answer looks like: its columns and their names, its chunks, its keys and values of any type, its largest fan-out."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import zset_join.zset.row_layout
from tests.built import built
from tests.epochs import Change, Epochs, delete, delta_of, insert, lines_of, upsert
from zset_join.core.epochs import Tick
from zset_join.core.errors import KeyTypeError, PlanError
from zset_join.core.relation import Relation
from zset_join.operators.join import HashJoin
from zset_join.shapes.operator_options import OperatorOptions
from zset_join.zset import ZSet

# ---------------------------------------------------------------- columns

STAFF = Relation(
    name="staff",
    schema=pa.schema({"name": pa.string(), "team": pa.int32(), "since": pa.int64()}),
    join_key=("team",),
    mode="changelog",
)
TEAMS = Relation(
    name="teams",
    schema=pa.schema({"name": pa.string(), "team": pa.int32(), "floor": pa.int64()}),
    join_key=("team",),
    mode="changelog",
)


def test_a_full_join_using_keys_of_two_types_shows_both_in_their_common_type() -> None:
    narrow = Relation(name="l", schema=pa.schema({"k": pa.int32(), "x": pa.string()}), join_key=("k",))
    wide = Relation(name="r", schema=pa.schema({"k": pa.int64(), "y": pa.string()}), join_key=("k",))
    join = Epochs(HashJoin(narrow, wide, "full", using=True))

    answer = join.feed(insert((1, "a")), insert((2**40, "b")))

    assert join.operator.output.schema.field("k").type == pa.int64()
    assert answer == [((1, "a", None), +1), ((2**40, None, "b"), +1)]


def test_output_names_replace_all_names() -> None:
    join = Epochs(HashJoin(STAFF, TEAMS, output_names=["who", "a", "b", "c", "d", "e"]))

    assert join.operator.output.schema.names == ["who", "a", "b", "c", "d", "e"]
    assert join.feed(insert(("ann", 7, 2020)), insert(("x", 7, 1))) == [(("ann", 7, 2020, "x", 7, 1), +1)]


@pytest.mark.parametrize("output_names", [["a", "b"], ["a"] * 6, []])
def test_output_names_that_do_not_fit_are_refused(output_names: Sequence[str]) -> None:
    with pytest.raises(PlanError, match="it needs 6 different names") as caught:
        HashJoin(STAFF, TEAMS, output_names=output_names)

    assert caught.value.code == "OUTPUT_NAMES"


def test_a_name_that_clashes_even_with_the_suffix_is_refused() -> None:
    trap = Relation(
        name="l", schema=pa.schema({"team": pa.int32(), "floor": pa.int64(), "floor_right": pa.int64()}), join_key=("team",)
    )

    with pytest.raises(PlanError, match="Rename columns before the join, or pass output_names"):
        HashJoin(trap, TEAMS)


# ---------------------------------------------------------------- chunks

HOT_L = Relation(name="l", schema=pa.schema({"k": pa.string(), "x": pa.int64()}), join_key=("k",), mode="changelog")
HOT_R = Relation(name="r", schema=pa.schema({"k": pa.string(), "y": pa.int64()}), join_key=("k",), mode="changelog")


def test_an_answer_of_many_times_the_buffer_is_whole() -> None:
    # 3,000 changes meet 40 rows: 120,000 lines through room for 4 x 100.
    join = Epochs(HashJoin(HOT_L, HOT_R, options=OperatorOptions(chunk_rows=100)))
    join.feed([], insert(*[("hot", number) for number in range(40)]))

    chunks = join.chunks(insert(*[("hot", number) for number in range(3_000)]), [])
    back = join.chunks(delete(*[("hot", number) for number in range(3_000)]), [])

    assert [len(chunk) for chunk in chunks] == [100] * 1_200
    assert len({row for chunk in chunks for row, _ in chunk}) == 120_000
    assert join.sum() == {}
    assert {weight for chunk in back for _, weight in chunk} == {-1}


@pytest.mark.parametrize(("how", "keys"), [("inner", 30_000), ("full", 3)])
def test_a_large_epoch_still_retracts_first_and_emits_every_line_once(how: str, keys: int) -> None:
    numbers, text = pa.array(range(30_000)), pa.array([f"key {number % keys}" for number in range(30_000)])
    schema = pa.schema({"id": pa.int64(), "k": pa.string(), "v": pa.int64()})
    orders = Relation(name="l", schema=schema, join_key=("k",), primary_key=("id",), mode="upsert")
    parents = Relation(name="r", schema=pa.schema({"k": pa.string()}), join_key=("k",), primary_key=("k",), mode="upsert")
    join = HashJoin(orders, parents, how)
    old, new = (ZSet.of({"id": numbers, "k": text, "v": pa.array([v] * 30_000)}, schema=schema) for v in (0, 1))
    join.absorb(Tick(0), [old, ZSet.of({"k": text.unique()}, schema=parents.schema)])

    chunks = list(join.answer(Tick(1), [new, ZSet.empty(parents.schema)]))

    assert [weight for chunk in chunks for weight in chunk.weights.tolist()] == [-1] * 30_000 + [1] * 30_000
    total = ZSet.concat(chunks, schema=join.output.schema)
    assert total.rows.column("v").to_pylist() == [0] * 30_000 + [1] * 30_000
    assert set(total.rows.column("id").to_pylist()[:30_000]) == set(range(30_000))


def test_a_chunk_whose_strings_exceed_one_arrow_array_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zset_join.zset.row_layout, "_MAX_ARROW_BYTES", 3_000)
    texts = Relation(name="t", schema=pa.schema({"k": pa.int64(), "text": pa.string()}), join_key=("k",))
    keys = Relation(name="k", schema=pa.schema({"k": pa.int64()}), join_key=("k",))
    join = Epochs(HashJoin(texts, keys))

    chunks = join.chunks(insert(*[(1, f"{number}" * 1_000) for number in range(8)]), insert((1,)))

    assert [len(chunk) for chunk in chunks] == [2, 2, 2, 2]
    assert len(join.sum()) == 8


# ---------------------------------------------------------------- keys of two types, values of any type

NAN = float("nan")
OTHER_NAN = np.array([0xFFF8000000000001], np.uint64).view(np.float64)[0]
LONG = "longer than the twelve bytes that fit in a slot"
MIDNIGHT = dt.datetime(2024, 2, 29)


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
    left, right = keyed("l", left_kind), keyed("r", right_kind)
    answer = HashJoin(left, right).answer(Tick(0), [delta(left, left_values), delta(right, right_values)])
    return sorted((row[0], row[2]) for chunk in answer for row, _ in chunk.to_pylist())


def diagonal(count: int) -> list[tuple[int, int]]:
    return [(place, place) for place in range(count)]


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


@pytest.mark.parametrize(
    ("left_kind", "left_values", "right_kind", "right_values", "expected"),
    [pytest.param(*case, id=f"{case[0]} = {case[2]}") for case in MIXED],
)
def test_keys_of_two_types_meet_by_value_and_come_out_in_their_own(
    left_kind: pa.DataType,
    left_values: list[Any],
    right_kind: pa.DataType,
    right_values: list[Any],
    expected: list[tuple[int, int]],
) -> None:
    join = HashJoin(keyed("l", left_kind), keyed("r", right_kind), "full")

    (answer,) = join.answer(Tick(0), [delta(join.inputs[0], left_values), delta(join.inputs[1], right_values)])

    assert matches(left_kind, left_values, right_kind, right_values) == expected
    assert matches(right_kind, right_values, left_kind, left_values) == sorted((one, other) for other, one in expected)
    assert [join.output.schema.field(name).type for name in ("k0", "k0_right")] == [left_kind, right_kind]
    assert answer.rows.schema == join.output.schema
    answer.rows.validate(full=True)


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
def test_any_payload_comes_out_of_the_state_whole_and_its_updates_from_and_to_null_are_seen(
    kind: pa.DataType, value: Any
) -> None:
    schema = pa.schema({"k": pa.int64(), "payload": kind})
    rows = Relation(name="l", schema=schema, join_key=("k",), primary_key=("k",), mode="upsert")
    join = Epochs(HashJoin(rows, Relation(name="r", schema=pa.schema({"k": pa.int64()}), join_key=("k",)), "left"))
    join.feed(upsert((1, value)), [])
    whole = lines_of([ZSet.of({"payload": pa.array([value], kind)})])[0][0]

    assert join.feed(upsert((1, value)), []) == []
    assert [weight for _, weight in join.feed(upsert((1, None)), [])] == [-1, +1]
    assert join.feed(upsert((1, value)), insert((1,))) == [((1, None, None), -1), ((1, *whole, 1), +1)]


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


# ---------------------------------------------------------------- the key that made the most pairs

FAN_SCHEMA = pa.schema({"id": pa.int64(), "k": pa.string(), "n": pa.int32()})
FAN_LEFT = Relation(name="l", schema=FAN_SCHEMA, join_key=("k", "n"), mode="changelog")
FAN_RIGHT = Relation(name="r", schema=FAN_SCHEMA, join_key=("k", "n"), mode="changelog")


def made(key: str | None, count: int, start: int = 0) -> list[Change]:
    """Return insertions of rows with one key."""
    return insert(*[(number, key, 7) for number in range(start, start + count)])


def answered(left: list[Change], right: list[Change], how: str = "inner", **options: Any) -> HashJoin:
    """Return a join whose first answer has been read."""
    join = built(HashJoin, FAN_LEFT, FAN_RIGHT, how, **options)
    list(join.answer(Tick(0), [delta_of(FAN_LEFT, left), delta_of(FAN_RIGHT, right)]))
    return join


@pytest.mark.parametrize(("chunk_rows", "part_changes"), [(65_536, 16_384), (7, 4), (1, 1)])
def test_the_key_with_the_most_pairs_is_reported_whatever_chunks_and_parts(chunk_rows: int, part_changes: int) -> None:
    left = [change for number in range(40) for change in made(f"key {number}", 1 + number % 9, 100 * number)]

    join = answered(left + made("hot", 30), left + made("hot", 9), chunk_rows=chunk_rows, part_changes=part_changes)

    assert join.largest_fan_out() == (270, ("hot", 7))


def test_rows_of_the_state_count_with_the_changes_they_meet() -> None:
    join = HashJoin(FAN_LEFT, FAN_RIGHT)
    join.absorb(Tick(0), [delta_of(FAN_LEFT, []), delta_of(FAN_RIGHT, made("a", 2) + made("b", 50))])
    list(join.answer(Tick(1), [delta_of(FAN_LEFT, made("a", 3) + made("b", 1)), delta_of(FAN_RIGHT, [])]))

    assert join.largest_fan_out() == (50, ("b", 7))


def test_the_next_answer_starts_over_and_a_null_is_reported_as_such() -> None:
    join = answered(made(None, 2), made(None, 3), null_safe=[True, True])
    assert join.largest_fan_out() == (6, (None, 7))
    join.absorb(Tick(0), [delta_of(FAN_LEFT, made("a", 9)), delta_of(FAN_RIGHT, made("a", 9))])

    list(join.answer(Tick(1), [delta_of(FAN_LEFT, made("b", 1)), delta_of(FAN_RIGHT, made("b", 2))]))

    assert join.largest_fan_out() == (2, ("b", 7))


@pytest.mark.parametrize(("how", "key"), [("left_semi", "a"), ("left_anti", "a"), ("full", "b")])
def test_where_no_pair_is_made_there_is_none(how: str, key: str) -> None:
    assert answered(made("a", 3), made(key, 3), how).largest_fan_out() is None
