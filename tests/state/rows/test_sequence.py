"""Sequence columns become int64 words that order as Spark orders the columns."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from zset_join.core.errors import KeyTypeError
from zset_join.shapes.kept_types import count_sequence_words
from zset_join.state.rows.order_words import sequence_nulls, sequence_words

PAIR = pa.struct({"major": pa.int32(), "minor": pa.decimal128(38, 0)})

# Types, how many words they take, values in ascending order.
ORDERS: list[tuple[pa.DataType, int, list[Any]]] = [
    (pa.int8(), 1, [-128, -1, 0, 127]),
    (pa.uint8(), 1, [0, 127, 128, 255]),
    (pa.int64(), 1, [-(2**63), -1, 0, 2**63 - 1]),
    (pa.uint64(), 1, [0, 2**63 - 1, 2**63, 2**64 - 1]),
    (pa.bool_(), 1, [False, True]),
    (pa.float32(), 1, [-math.inf, -1.5, 0.0, 1.5, math.inf, math.nan]),
    (pa.float64(), 1, [-math.inf, -1e308, -5e-324, 0.0, 5e-324, 1e308, math.inf, math.nan]),
    (pa.date32(), 1, [dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(1970, 1, 1)]),
    (pa.date64(), 1, [dt.date(1969, 12, 31), dt.date(1970, 1, 1)]),
    (pa.timestamp("ns"), 1, [-1, 0, 1]),
    (pa.timestamp("s", "Europe/Paris"), 1, [-1, 0, 1]),
    (pa.time32("s"), 1, [dt.time(0), dt.time(23)]),
    (pa.time64("us"), 1, [dt.time(0), dt.time(0, 0, 0, 1)]),
    (pa.duration("us"), 1, [dt.timedelta(days=-1), dt.timedelta(0), dt.timedelta(microseconds=1)]),
    (pa.decimal128(18, 2), 1, [Decimal("-1.00"), Decimal("0.00"), Decimal("0.01"), Decimal("9999999999999999.99")]),
    (pa.decimal128(19, 0), 2, [Decimal(-1), Decimal(0), Decimal(2**63 - 1), Decimal(2**63), Decimal(10) ** 19 - 1]),
    (
        pa.decimal128(38, 0),
        2,
        [-(Decimal(10) ** 37), -Decimal(2**64), Decimal(-1), Decimal(0), Decimal(2**64), Decimal(10) ** 37],
    ),
    (pa.decimal256(38, 0), 2, [-(Decimal(10) ** 37), Decimal(0), Decimal(10) ** 37]),
    (
        PAIR,
        3,
        [{"major": 1, "minor": Decimal(10) ** 30}, {"major": 2, "minor": Decimal(-1)}, {"major": 2, "minor": Decimal(0)}],
    ),
]
NAMES = [str(kind) for kind, _, _ in ORDERS]


def ranks(array: pa.Array) -> list[tuple[int, ...]]:
    """Return the words of each row, most significant first."""
    return list(zip(*(words.tolist() for words in sequence_words([array])), strict=True))


@pytest.mark.parametrize(("kind", "count", "ascending"), ORDERS, ids=NAMES)
def test_words_order_as_values_do_in_slices_and_beside_nulls_too(kind: pa.DataType, count: int, ascending: list[Any]) -> None:
    array = pa.array(ascending, kind)
    found = ranks(array)

    assert found == sorted(set(found))
    assert {len(words) for words in found} == {count}
    assert [words for at in range(len(array)) for words in ranks(array.slice(at, 1))] == found
    assert ranks(pa.array([None, *ascending], kind))[1:] == found
    assert len(sequence_words([array.slice(0, 0)])) == count
    assert count_sequence_words([kind], relation="orders", columns=["seq"]) == count


def test_zeros_are_equal_and_so_are_all_nans() -> None:
    nans = np.array([0x7FF8000000000000, 0xFFF8000000000001, 0x7FF0000000000001], np.uint64).view(np.float64)

    assert len(set(ranks(pa.array([0.0, -0.0])))) == 1
    assert len(set(ranks(pa.array(nans)))) == 1


def test_a_null_is_found_in_any_column_and_inside_a_struct() -> None:
    numbers = pa.array([1, None, 3, 4])
    structs = pa.array(
        [{"major": 1, "minor": Decimal(1)}, {"major": 1, "minor": Decimal(1)}, {"major": 1, "minor": None}, None], PAIR
    )

    marked = sequence_nulls([numbers, structs])

    assert marked is not None
    assert marked.tolist() == [False, True, True, True]


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        (pa.string(), "seq"),
        (pa.binary(), "seq"),
        (pa.list_(pa.int64()), "seq"),
        (pa.decimal256(39, 0), "seq"),
        (pa.struct({"major": pa.int32(), "minor": pa.string()}), "seq.minor"),
    ],
    ids=str,
)
def test_a_type_without_such_an_order_is_refused_by_name(kind: pa.DataType, column: str) -> None:
    with pytest.raises(KeyTypeError, match=rf'relation "orders": sequence column "{column}" has type') as caught:
        count_sequence_words([kind], relation="orders", columns=["seq"])

    assert (caught.value.code, caught.value.facts["column"]) == ("SEQUENCE_TYPE", column)
