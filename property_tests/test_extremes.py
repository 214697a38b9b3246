"""The extremes of every type as keys: they meet themselves and nothing else, and neither statistics nor messages fail.

Values come as the bytes Arrow keeps, for Python has none for many of them: years beyond 9999, text that is not UTF-8.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.built import built
from zset_join.core.epochs import Tick
from zset_join.core.errors import BadInputError
from zset_join.core.relation import Relation
from zset_join.operators.aggregate import Aggregate
from zset_join.operators.join import HashJoin
from zset_join.shapes.aggregate import AggregateCall
from zset_join.zset import ZSet

_TEXTS = [b"", b"\0", b"\xff", b"\xff\xfe", b"a" * 13 + b"\xff", b"a" * 13, b"\xed\xa0\x80", "é".encode(), b"e\xcc\x81"]


def _words(kind: pa.DataType, *values: int) -> pa.Array:
    """Return values by the whole numbers that represent them."""
    width = kind.bit_width
    storage = pa.array(values, {32: pa.int32(), 64: pa.int64()}[width])
    return pa.Array.from_buffers(kind, len(values), storage.buffers())


def _texts(kind: pa.DataType) -> pa.Array:
    made = pa.array(_TEXTS, pa.large_binary() if kind == pa.large_string() else pa.binary())
    return pa.Array.from_buffers(kind, len(made), made.buffers())


def _ends(bits: int) -> tuple[int, ...]:
    return -(1 << (bits - 1)), -1, 0, 1, (1 << (bits - 1)) - 1


def _floats(kind: Any) -> Any:
    ends = np.finfo(kind)
    return np.array([0.0, ends.max, ends.min, ends.smallest_subnormal, np.inf, -np.inf, np.nan], kind)


_NESTED = pa.struct({"n": pa.list_(pa.struct({"x": pa.float64()}))})
_DATES = _words(pa.date32(), *_ends(32))
_DAY = 86_400_000
EXTREMES: dict[str, pa.Array] = {
    str(values.type): values
    for values in (
        *(pa.array(_ends(bits), kind) for bits, kind in ((8, pa.int8()), (16, pa.int16()), (32, pa.int32()), (64, pa.int64()))),
        *(pa.array([0, 1, 2**bits - 1], kind) for bits, kind in ((8, pa.uint8()), (16, pa.uint16()), (64, pa.uint64()))),
        *(pa.array(_floats(kind), made) for kind, made in ((np.float32, pa.float32()), (np.float64, pa.float64()))),
        pa.array([False, True]),
        *(_texts(kind) for kind in (pa.string(), pa.large_string())),
        pa.array(_TEXTS, pa.binary()),
        _DATES,
        _words(pa.date64(), *(_DAY * day for day in (-(2**63 // _DAY), -1, 0, 1, 2**63 // _DAY))),
        *(_words(pa.timestamp(unit, zone), *_ends(64)) for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC")),
        *(_words(pa.duration(unit), *_ends(64)) for unit in ("s", "us")),
        _words(pa.time64("us"), 0, _DAY * 1000 - 1),
        pa.array([0, 10**38 - 1, -(10**38 - 1)], pa.decimal128(38, 0)),
        pa.array([0, 10**76 - 1, -(10**76 - 1)], pa.decimal256(76, 0)),
        pa.StructArray.from_arrays([_DATES, _words(pa.timestamp("us"), *_ends(64))], ["d", "t"]),
        pa.ListArray.from_arrays(list(range(len(_DATES) + 1)), _DATES),
        pa.ListArray.from_arrays(list(range(len(_TEXTS) + 1)), _texts(pa.string())),
        pa.array(_floats(np.float16), pa.float16()),
        pa.array([b"abc", b"ab\0", b"\0\0\0"], pa.binary(3)),
        pa.array([bytes(16), bytes(15) + b"\1", b"\1" + bytes(15)], pa.uuid()),
        pa.array([[0, 0], [0, None], [None, 0]], pa.list_(pa.int64(), 2)),
        pa.array([[], [None], [0], [0, 0], [1, 2], [2, 1]], pa.list_(pa.int64())),
        pa.array([{"n": None}, {"n": []}, {"n": [None]}, {"n": [{"x": None}]}, {"n": [{"x": 0.0}]}], _NESTED),
    )
}
_FEW = {"max_hot_keys": 1}


def rows_of(values: pa.Array, *, first: int = 0) -> ZSet:
    """Return rows with these keys, numbered."""
    return ZSet.of(pa.RecordBatch.from_arrays([pa.array(range(first, first + len(values))), values], ["n", "k"]))


def relation_of(name: str, values: pa.Array, *, key: tuple[str, ...] = ("n",)) -> Relation:
    schema = pa.schema([("n", pa.int64()), ("k", values.type)])
    return Relation(name=name, schema=schema, join_key=("k",), primary_key=key, mode="upsert")


@pytest.mark.parametrize("options", [{}, _FEW], ids=["memory", "hybrid"])
@pytest.mark.parametrize("how", ["inner", "full", "left_semi"])
@pytest.mark.parametrize("kind", sorted(EXTREMES))
def test_extreme_keys_meet_themselves_and_statistics_do_not_fail(kind: str, how: str, options: dict[str, Any]) -> None:
    values = EXTREMES[kind]
    join = built(HashJoin, relation_of("l", values), relation_of("r", values), how, **options)
    nothing = ZSet.empty(relation_of("l", values).schema)
    deltas = [[rows_of(values), nothing], [nothing, rows_of(values, first=100)]]

    for epoch, delta in enumerate(deltas):
        answer = list(join.answer(Tick(epoch), delta))
        join.largest_fan_out()
        join.largest_key(Tick(epoch), delta)
        join.rejections(Tick(epoch), delta)
        join.absorb(Tick(epoch), delta)

    new = [chunk for chunk in answer if chunk.weights.max(initial=0) > 0]
    found = pa.concat_batches([chunk.rows.filter(pa.array(chunk.weights > 0)) for chunk in new])
    order = found.column(0).to_numpy()
    assert sorted(order.tolist()) == list(range(len(values)))
    if how != "left_semi":
        assert (found.column(2).to_numpy() == order + 100).all()
    if "float" not in kind and kind != "double":
        assert found.column(1).equals(values.take(pa.array(order)))
    join.close()


@pytest.mark.parametrize("kind", sorted(EXTREMES))
def test_a_row_with_an_extreme_key_that_is_refused_is_shown(kind: str) -> None:
    values = EXTREMES[kind]
    relation = Relation(name="l", schema=relation_of("l", values).schema, join_key=("k",), mode="changelog")
    join = HashJoin(relation, relation, "inner")

    for row in range(len(values)):
        gone = ZSet.of(rows_of(values.slice(row, 1)).rows, [-1])
        with pytest.raises(BadInputError, match='relation "l", epoch 0') as refused:
            list(join.answer(Tick(0), [gone, ZSet.empty(relation.schema)]))

        assert len(refused.value.facts["key"]) == 2


@pytest.mark.parametrize("kind", sorted(EXTREMES))
def test_extreme_values_are_groups_of_their_own(kind: str) -> None:
    values = EXTREMES[kind]
    relation = Relation(name="l", schema=relation_of("l", values).schema, join_key=("k",), mode="changelog")
    groups = Aggregate(relation, ["k"], [AggregateCall("count", name="rows")])
    twice = ZSet.concat([rows_of(values), rows_of(values, first=100)], schema=relation.schema)

    answer = list(groups.answer(Tick(0), [twice]))

    assert [count for chunk in answer for count in chunk.rows.column("rows").to_pylist()] == [2] * len(values)
