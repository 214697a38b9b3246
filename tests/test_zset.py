"""A Z-set is a table whose rows carry a signed count."""

from __future__ import annotations

import datetime
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from zset_join.core.errors import BadInputError, PlanError, WeightOverflowError
from zset_join.zset import ZSet, single_batch
from zset_join.zset.zset import RowSums

MOST = 2**63 - 1
NAN = float("nan")
OTHER_NAN = np.array([0xFFF8000000000001], np.uint64).view(np.float64)[0]


def test_rows_count_once_unless_weights_are_given() -> None:
    assert ZSet.of({"x": ["a", "b"]}).to_pylist() == [(("a",), 1), (("b",), 1)]
    assert ZSet.of({"x": ["a", "b"]}, [2, -1]).to_pylist() == [(("a",), 2), (("b",), -1)]


def test_a_given_schema_decides_the_types() -> None:
    schema = pa.schema({"x": pa.int16()})

    assert ZSet.of({"x": [1]}, schema=schema).schema == schema
    assert ZSet.of(pa.RecordBatch.from_pydict({"x": [1]}), schema=schema).schema == schema


@pytest.mark.parametrize(
    "weights", [np.array([1], np.int64), np.array([1, 2], np.int32), np.array([1.0, 2.0]), np.array([[1], [2]], np.int64)]
)
def test_weights_that_do_not_fit_the_rows_are_refused(weights: Any) -> None:
    with pytest.raises(ValueError, match="2 rows need 2 int64 weights"):
        ZSet(pa.RecordBatch.from_pydict({"x": [1, 2]}), weights)


def test_the_empty_z_set_still_has_columns() -> None:
    schema = pa.schema({"x": pa.int64(), "y": pa.list_(pa.string())})

    empty = ZSet.empty(schema)

    assert (len(empty), empty.schema, empty.to_pylist(), empty.total_weight()) == (0, schema, [], 0)


def test_adding_puts_z_sets_behind_each_other() -> None:
    one = ZSet.of({"x": ["a"]}, [1])
    other = ZSet.of({"x": ["a", "b"]}, [-1, 1])

    assert (one + other).to_pylist() == [(("a",), 1), (("a",), -1), (("b",), 1)]


@pytest.mark.parametrize("count", [0, 1, 3])
def test_z_sets_that_are_given_away_come_behind_each_other_too(count: int) -> None:
    parts = [ZSet.of({"x": [number, 7], "y": ["a", None]}, [1, -number]) for number in range(count)]
    expected = ZSet.concat(parts, schema=pa.schema({"x": pa.int64()}))

    found = ZSet.concat_freeing(parts, schema=pa.schema({"x": pa.int64()}))

    assert (found.schema, found.to_pylist()) == (expected.schema, expected.to_pylist())
    assert len(parts) < 2


@pytest.mark.parametrize(
    "cuts", [[(2, 3), (5, 4)], [(0, 3), (4, 4)], [(3, 3), (0, 3)], [(0, 4), (3, 3)], [(1, 1), (2, 0), (2, 7)]]
)
def test_slices_are_brought_together_whether_they_are_consecutive_or_not(cuts: list[tuple[int, int]]) -> None:
    kinds = [pa.int64(), pa.string(), pa.bool_(), pa.list_(pa.int8()), pa.dictionary(pa.int8(), pa.string()), pa.null()]
    values = [[1, None, 3], ["a", None, "long " * 5], [True, None, False], [[1], None, [2, 3]], ["x", None, "y"], [None] * 3]
    columns = [pa.array(given * 3, kind) for given, kind in zip(values, kinds, strict=True)]
    rows = pa.RecordBatch.from_arrays(columns, names=list("abcdef"))
    parts = [ZSet(rows.slice(begin, count), np.ones(count, np.int64)) for begin, count in cuts]
    expected = [row for part in parts for row in part.rows.to_pylist()]

    assert ZSet.concat_freeing(parts, schema=rows.schema).rows.to_pylist() == expected


def test_the_sum_of_no_z_sets_is_the_empty_one_of_the_given_schema() -> None:
    schema = pa.schema({"x": pa.int64()})

    assert ZSet.concat([], schema=schema).schema == schema
    assert len(ZSet.concat([ZSet.empty(schema)] * 3, schema=schema)) == 0


def test_adding_the_empty_z_set_copies_nothing() -> None:
    some = ZSet.of({"x": [1, 2]})

    assert ZSet.concat([ZSet.empty(some.schema), some], schema=some.schema) is some


def test_a_z_set_and_its_negation_sum_to_nothing() -> None:
    some = ZSet.of({"x": ["a", "b", "a"]}, [1, -3, 5])

    assert (some + -some).consolidated().to_pylist() == []
    assert (-some).to_pylist() == [(("a",), -1), (("b",), 3), (("a",), -5)]


def test_consolidating_brings_every_row_down_to_one_line() -> None:
    bag = ZSet.of({"x": ["a", "b", "a", "c", "b"]}, [1, 1, 2, 1, -1])

    assert bag.consolidated().to_pylist() == [(("a",), 3), (("c",), 1)]


def test_a_z_set_that_is_consolidated_already_is_returned_as_it_is() -> None:
    some = ZSet.of({"x": ["a", "b"]}, [1, -1])
    empty = ZSet.empty(some.schema)

    assert some.consolidated() is some
    assert empty.consolidated() is empty


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.float64(), [NAN, OTHER_NAN]),
        (pa.float64(), [0.0, -0.0]),
        (pa.float32(), [NAN, OTHER_NAN]),
        (pa.float32(), [-0.0, 0.0]),
        (pa.int64(), [None, None]),
        (pa.string(), [None, None]),
        (pa.list_(pa.float64()), [[0.0, NAN, None], [-0.0, OTHER_NAN, None]]),
        (pa.struct({"f": pa.float32()}), [{"f": -0.0}, {"f": 0.0}]),
        (pa.dictionary(pa.int8(), pa.string()), ["a", "a"]),
        (pa.null(), [None, None]),
    ],
)
def test_values_that_spark_calls_the_same_are_one_row(kind: pa.DataType, values: list[Any]) -> None:
    rows = ZSet.of({"x": pa.array(values, kind)}, [2, 3])

    assert [weight for _, weight in rows.consolidated().to_pylist()] == [5]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.string(), ["a", "a "]),
        (pa.string(), ["", None]),
        (pa.string(), ["the same first twelve bytes, A", "the same first twelve bytes, B"]),
        (pa.binary(), [b"a", b"a\0"]),
        (pa.int64(), [0, None]),
        (pa.bool_(), [False, None]),
        (pa.float64(), [NAN, None]),
        (pa.float64(), [NAN, float("inf")]),
        (pa.list_(pa.int8()), [[], None]),
        (pa.list_(pa.int8()), [[], [None]]),
        (pa.struct({"f": pa.int8()}), [{"f": None}, None]),
        (pa.timestamp("us"), [datetime.datetime(2024, 1, 1), datetime.datetime(2024, 1, 1, microsecond=1)]),
    ],
)
def test_values_that_differ_in_spark_are_two_rows(kind: pa.DataType, values: list[Any]) -> None:
    rows = ZSet.of({"x": pa.array(values, kind)}, [2, 3])

    assert [weight for _, weight in rows.consolidated().to_pylist()] == [2, 3]


@pytest.mark.parametrize("kind", [pa.string_view(), pa.binary_view()])
def test_columns_of_views_can_be_consolidated(kind: pa.DataType) -> None:
    rows = ZSet.of({"x": pa.array([b"a", b"a"]).cast(pa.string()).cast(kind)}, [2, 3])

    assert [weight for _, weight in rows.consolidated().to_pylist()] == [5]


def test_the_line_that_stays_is_the_first_one_with_its_own_bits() -> None:
    zeros = ZSet.of({"x": [-0.0, 0.0]})

    (kept,) = zeros.consolidated().rows.column(0).to_pylist()

    assert np.signbit(kept)


def test_all_columns_together_make_a_row() -> None:
    rows = ZSet.of({"x": [1, 1, 1], "y": ["a", "b", "a"]})

    assert rows.consolidated().to_pylist() == [((1, "a"), 2), ((1, "b"), 1)]


def test_a_slice_of_a_batch_is_consolidated_for_itself() -> None:
    rows = pa.RecordBatch.from_pydict({"x": ["a", "b", "c", "b", "a"], "y": [None, True, False, True, None]})

    part = ZSet.of(rows.slice(1, 3)).consolidated()

    assert part.to_pylist() == [(("b", True), 2), (("c", False), 1)]


def test_rows_without_columns_are_all_the_same() -> None:
    nothing = pa.table({"x": [1, 2, 3]}).select([])

    assert ZSet.of(nothing).consolidated().to_pylist() == [((), 3)]


def test_many_lines_of_few_rows_are_summed_exactly() -> None:
    numbers = np.arange(100_000)
    rows = ZSet.of({"x": numbers % 1000}, np.where(numbers % 3 == 0, -1, 1).astype(np.int64))

    summed = rows.consolidated()

    assert len(summed) == 1000
    assert summed.total_weight() == rows.total_weight() == 33_332


@pytest.mark.parametrize("weights", [[MOST, 1], [-MOST, -2]])
def test_a_weight_past_int64_is_an_error_and_no_number(weights: list[int]) -> None:
    with pytest.raises(WeightOverflowError, match="past int64"):
        ZSet.of({"x": [1, 1]}, weights).consolidated()


def test_the_largest_weight_is_still_a_weight() -> None:
    assert ZSet.of({"x": [1, 1]}, [MOST - 1, 1]).consolidated().to_pylist() == [((1,), MOST)]


@pytest.mark.parametrize("weights", [[MOST, 1], [-MOST, -2], [MOST, -MOST, 7], [-MOST - 1, MOST], [-1, 2**32, -(2**33)]])
def test_a_total_is_exact_even_past_int64(weights: list[int]) -> None:
    assert ZSet.of({"x": weights}, weights).total_weight() == sum(weights)


def test_a_sum_that_only_passes_beyond_int64_on_its_way_is_no_error() -> None:
    assert ZSet.of({"x": [1, 1, 1]}, [MOST, 1, -1]).consolidated().to_pylist() == [((1,), MOST)]


def test_the_one_weight_that_has_no_negative_is_refused() -> None:
    with pytest.raises(WeightOverflowError):
        -ZSet.of({"x": [1]}, [-MOST - 1])


def test_one_batch_is_made_from_a_table_without_copying_it() -> None:
    column = pa.array([1, 2, 3])
    table = pa.table({"x": column})

    batch = single_batch(table)

    assert batch.column(0).buffers()[1].address == column.buffers()[1].address


def test_the_chunks_of_a_table_come_together_in_one_batch() -> None:
    table = pa.table({"x": pa.chunked_array([[1], [], [2, 3]])})

    assert single_batch(table).to_pydict() == {"x": [1, 2, 3]}
    assert single_batch(table.slice(0, 0)).num_rows == 0


@pytest.mark.parametrize(
    "weights",
    [
        [1.0, 0.5],
        np.array([1.0, np.nan]),
        [1, None],
        ["1", "2"],
        [1, 2**63],
        np.array([0, 2**63], np.uint64),
        [1, math.inf],
        [0.5, 2**62 + 1],
    ],
)
def test_a_weight_that_is_no_whole_number_is_refused(weights: Any) -> None:
    with pytest.raises(BadInputError, match="is the number of copies") as refused:
        ZSet.of({"x": [1, 2]}, weights)

    assert refused.value.code == "WEIGHT_NOT_WHOLE"


@pytest.mark.parametrize(
    "weights", [[1.0, -2.0], np.array([1, -2], np.int8), (1, Decimal(-2)), np.array([1.0, -2.0], np.float32)]
)
def test_whole_weights_of_any_type_are_taken(weights: Any) -> None:
    assert ZSet.of({"x": [1, 2]}, weights).weights.tolist() == [1, -2]


def test_a_large_weight_beside_a_float_keeps_its_digits() -> None:
    assert ZSet.of({"x": [1, 2]}, [1.0, 2**62 + 1]).weights.tolist() == [1, 2**62 + 1]


def test_a_zset_is_built_from_plain_rows_by_name_or_by_place():
    columns = {"id": pa.int64(), "name": pa.string()}

    rows = ZSet.from_rows([{"id": 1}, (2, "Bob"), [3, None]], columns, weights=[2, -1, 1])

    assert rows.to_pylist() == [((1, None), 2), ((2, "Bob"), -1), ((3, None), 1)]
    assert len(ZSet.from_rows([], columns)) == 0


@pytest.mark.parametrize(
    ("rows", "weights", "message"),
    [
        ([{"id": 1, "nme": "x"}], None, "'nme'"),
        ([(1,)], None, "1 value for the 2 columns"),
        ([{"id": "one"}], None, "does not fit the columns"),
        ([{"id": 1}], [1, 1], "1 row came with 2 weights"),
    ],
)
def test_a_row_that_does_not_fit_is_refused_with_what_is_wrong(rows, weights, message):
    with pytest.raises(PlanError, match=message):
        ZSet.from_rows(rows, {"id": pa.int64(), "name": pa.string()}, weights=weights)


def test_rows_are_summed_by_what_was_made_once() -> None:
    sums = RowSums(pa.schema({"x": pa.float64()}))
    for values, weights, expected in (
        ([0.0, 1.0, -0.0], [1, 1, -1], [((1.0,), 1)]),
        ([2.0, 2.0], [1, 2], [((2.0,), 3)]),
        ([3.0], [0], []),
        ([4.0], [-2], [((4.0,), -2)]),
    ):
        assert ZSet.of({"x": values}, weights).consolidated(sums).to_pylist() == expected
        assert ZSet.of({"x": values}, weights).consolidated().to_pylist() == expected
