"""GROUP BY by example: which changes an epoch emits when rows arrive and leave."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.built import built
from tests.epochs import Epochs, delete, delta_of, insert, lines_of
from zset_join.aggregates import AggregateCall
from zset_join.core.errors import BadInputError, OptionError, PlanError, ResourceError, StateError, WeightOverflowError
from zset_join.core.relation import Relation
from zset_join.core.tick import Tick
from zset_join.expressions import left
from zset_join.operators.aggregate import Aggregate
from zset_join.shapes.operator_options import OperatorOptions
from zset_join.zset.protocol import Operator

D = Decimal
SALES = Relation(name="sales", schema=pa.schema({"shop": pa.string(), "price": pa.int64()}), mode="changelog")
TOTALS = [AggregateCall("count"), AggregateCall("sum", "price"), AggregateCall("avg", "price")]
EXTREMES = [AggregateCall("min", "price"), AggregateCall("max", "price")]


def totals(**options: Any) -> Epochs:
    """Give count, sum and avg of the price per shop."""
    return Epochs(built(Aggregate, SALES, ["shop"], TOTALS, **options))


def values(kind: pa.DataType, *functions: str) -> Epochs:
    """Give aggregates of one column `v` over everything."""
    relation = Relation(name="t", schema=pa.schema({"v": kind}), mode="changelog")
    return Epochs(Aggregate(relation, [], [AggregateCall(function, "v") for function in functions]))


def rows(*column: Any) -> list[tuple[tuple[Any, ...], int]]:
    """Return the changes that insert one-column rows."""
    return insert(*((value,) for value in column))


def gone(*column: Any) -> list[tuple[tuple[Any, ...], int]]:
    """Return the changes that retract one-column rows."""
    return delete(*((value,) for value in column))


# ---------------------------------------------------------------- groups


def test_an_aggregate_is_an_operator() -> None:
    assert isinstance(Aggregate(SALES, ["shop"], TOTALS), Operator)


def test_the_first_row_of_a_group_makes_its_line() -> None:
    assert totals().feed(insert(("A", 3), ("A", 4), ("B", 5))) == [(("A", 2, 7, 3.5), 1), (("B", 1, 5, 5.0), 1)]


def test_a_changed_group_is_retracted_and_inserted() -> None:
    shops = totals()
    shops.feed(insert(("A", 3), ("B", 5)))

    assert shops.feed(insert(("A", 4))) == [(("A", 1, 3, 3.0), -1), (("A", 2, 7, 3.5), 1)]


def test_groups_can_be_read_between_an_answer_and_its_epoch() -> None:
    shops = Aggregate(SALES, ["shop"], TOTALS)
    Epochs(shops).feed(insert(("A", 3), ("B", 5), ("C", 6)))
    deltas = [delta_of(SALES, [*insert(("A", 4)), *delete(("B", 5))])]
    answer = lines_of(shops.answer(Tick(1), deltas))

    before = lines_of(shops.held())
    shops.absorb(Tick(1), deltas)

    assert before == [(("A", 1, 3, 3.0), 1), (("B", 1, 5, 5.0), 1), (("C", 1, 6, 6.0), 1)]
    assert answer == [(("A", 1, 3, 3.0), -1), (("B", 1, 5, 5.0), -1), (("A", 2, 7, 3.5), 1)]
    assert lines_of(shops.held()) == [(("A", 2, 7, 3.5), 2), (("C", 1, 6, 6.0), 1)]


def test_a_group_that_stays_the_same_emits_nothing() -> None:
    shops = Epochs(Aggregate(SALES, ["shop"], EXTREMES))
    shops.feed(insert(("A", 3), ("A", 9)))

    assert shops.feed(insert(("A", 5))) == []


def test_two_changes_that_cancel_out_in_the_answer_emit_nothing() -> None:
    shops = Epochs(Aggregate(SALES, ["shop"], [AggregateCall("avg", "price")]))
    shops.feed(insert(("A", 1), ("A", 3)))

    assert shops.feed([*delete(("A", 1), ("A", 3)), *insert(("A", 2), ("A", 2))]) == []


def test_a_group_whose_last_row_goes_is_gone() -> None:
    shops = totals()
    shops.feed(insert(("A", 3)))

    answer = shops.feed(delete(("A", 3)))

    assert answer == [(("A", 1, 3, 3.0), -1)]
    assert shops.operator.statistics()["groups"] == 0  # type: ignore[attr-defined]


def test_a_group_that_comes_and_goes_in_one_epoch_emits_nothing() -> None:
    assert totals().feed([*insert(("A", 3)), *delete(("A", 3))]) == []


def test_copies_count() -> None:
    assert totals().feed(insert(("A", 3), copies=4)) == [(("A", 4, 12, 3.0), 1)]


def test_rows_with_a_null_key_make_a_group() -> None:
    assert totals().feed(insert((None, 3), (None, 5))) == [((None, 2, 8, 4.0), 1)]


def test_both_zeros_and_all_nans_make_one_group_each() -> None:
    relation = Relation(name="t", schema=pa.schema({"k": pa.float64()}), mode="changelog")
    groups = Epochs(Aggregate(relation, ["k"], [AggregateCall("count")]))

    assert groups.feed(rows(0.0, -0.0, math.nan, -math.nan)) == [(("NaN", 2), 1), ((0.0, 2), 1)]


def test_a_group_of_zeros_shows_the_positive_one() -> None:
    relation = Relation(name="t", schema=pa.schema({"k": pa.float64()}), mode="changelog")
    groups = Epochs(Aggregate(relation, ["k"], [AggregateCall("count")]))

    groups.feed(rows(-0.0))
    ((retracted, _), (inserted, _)) = groups.feed(rows(0.0))

    assert (math.copysign(1, retracted[0]), math.copysign(1, inserted[0])) == (1, 1)


def test_the_key_may_be_composite_and_nested() -> None:
    schema = pa.schema({"a": pa.struct({"x": pa.int32()}), "b": pa.list_(pa.string()), "v": pa.int32()})
    groups = Epochs(Aggregate(Relation(name="t", schema=schema, mode="changelog"), ["a", "b"], [AggregateCall("sum", "v")]))

    answer = groups.feed(insert(({"x": 1}, ["s"], 2), ({"x": 1}, ["s"], 3), ({"x": None}, None, 4)))

    assert answer == [(((1,), ("s",), 5), 1), (((None,), None, 4), 1)]


def test_columns_without_calls_give_the_distinct_keys() -> None:
    shops = Epochs(Aggregate(SALES, ["shop"], []))

    assert shops.feed(insert(("A", 3), ("A", 4))) == [(("A",), 1)]
    assert shops.feed(delete(("A", 3))) == []
    assert shops.feed(delete(("A", 4))) == [(("A",), -1)]


# ---------------------------------------------------------------- without groups


def test_a_global_aggregate_has_its_row_from_the_first_epoch_on() -> None:
    everything = Epochs(Aggregate(SALES, [], TOTALS))

    assert everything.feed() == [((0, None, None), 1)]
    assert everything.feed() == []


def test_a_global_aggregate_emits_the_row_of_its_first_input_at_once() -> None:
    assert Epochs(Aggregate(SALES, [], TOTALS)).feed(insert(("A", 3))) == [((1, 3, 3.0), 1)]


def test_a_global_aggregate_keeps_its_row_when_all_rows_go() -> None:
    everything = Epochs(Aggregate(SALES, [], [*TOTALS, AggregateCall("collect_list", "price")]))
    everything.feed(insert(("A", 3)))

    assert everything.feed(delete(("A", 3))) == [((1, 3, 3.0, (3,)), -1), ((0, None, None, ()), 1)]


# ---------------------------------------------------------------- functions


def test_the_next_best_value_is_known_however_many_go() -> None:
    extremes = values(pa.int32(), "max", "min")
    extremes.feed(rows(10, 9, 8, 7, 6))

    answer = extremes.feed([*gone(10, 9, 8), *rows(5)])

    assert answer == [((10, 6), -1), ((7, 5), 1)]


def test_a_maximum_stays_while_a_copy_of_it_is_left() -> None:
    extremes = values(pa.int32(), "max")
    extremes.feed(rows(10, 10, 3))

    assert extremes.feed(gone(10)) == []
    assert extremes.feed(gone(10)) == [((10,), -1), ((3,), 1)]


def test_nulls_are_no_values() -> None:
    everything = values(pa.int64(), "count", "sum", "avg", "min", "count_distinct", "collect_list")

    assert everything.feed(rows(None, None)) == [((0, None, None, None, 0, ()), 1)]
    assert everything.feed(rows(4)) == [((0, None, None, None, 0, ()), -1), ((1, 4, 4.0, 4, 1, (4,)), 1)]
    assert everything.feed(gone(4)) == [((1, 4, 4.0, 4, 1, (4,)), -1), ((0, None, None, None, 0, ()), 1)]


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()])
def test_the_extreme_of_zeros_is_one_that_is_there(kind: pa.DataType) -> None:
    extremes = values(kind, "min", "max", "count_distinct")

    answers = [extremes.feed(change) for change in (rows(0.0), rows(-0.0), gone(0.0), rows(-5e-324, 3.0), gone(-5e-324, 3.0))]

    assert [str(row) for row, weight in answers[1] if weight > 0] == ["(-0.0, 0.0, 1)"]
    assert [str(row) for row, weight in answers[2] if weight > 0] == ["(-0.0, -0.0, 1)"]
    assert [str(row) for row, weight in answers[4] if weight > 0] == ["(-0.0, -0.0, 1)"]


def test_nan_is_the_largest_float() -> None:
    extremes = values(pa.float64(), "min", "max")

    assert extremes.feed(rows(1.0, math.nan, math.inf)) == [((1.0, "NaN"), 1)]
    assert extremes.feed(gone(math.nan)) == [((1.0, "NaN"), -1), ((1.0, math.inf), 1)]


def test_strings_compare_as_bytes() -> None:
    extremes = values(pa.string(), "min", "max")

    answer = extremes.feed(rows("a longer string, B", "a longer string, A", "a longer string", "é", "z"))

    assert answer == [(("a longer string", "é"), 1)]


@pytest.mark.parametrize(
    ("kind", "low", "high"),
    [
        (pa.bool_(), False, True),
        (pa.uint64(), 0, 2**64 - 1),
        (pa.int8(), -128, 127),
        (pa.float32(), -0.5, 0.5),
        (pa.decimal128(5, 2), D("-1.25"), D("1.25")),
        (pa.decimal128(38, 2), D("-" + "9" * 36), D("9" * 36)),
        (pa.date32(), dt.date(1969, 12, 31), dt.date(2024, 2, 29)),
        (pa.timestamp("us"), dt.datetime(1901, 1, 1), dt.datetime(2024, 2, 29)),
        (pa.duration("us"), dt.timedelta(days=-1), dt.timedelta(days=1)),
        (pa.time64("us"), dt.time(0), dt.time(23)),
        (pa.binary(), b"\x00", b"\xff" * 9),
        (pa.binary(2), b"\x00\x01", b"\xff\x00"),
        (pa.large_string(), "", "x"),
        (pa.dictionary(pa.int32(), pa.string()), "a", "b"),
    ],
    ids=str,
)
def test_min_and_max_give_values_of_the_columns_type(kind: pa.DataType, low: Any, high: Any) -> None:
    extremes = values(kind, "min", "max")

    assert extremes.feed(rows(high, low, high)) == [((low, high), 1)]
    assert extremes.operator.output.schema.types == [kind, kind]


def test_a_sum_of_integers_passes_through_what_no_bigint_holds() -> None:
    total = values(pa.int64(), "sum", "avg")

    assert total.feed(rows(2**63 - 1, 2**63 - 1, -(2**63) + 1)) == [((2**63 - 1, 2.0**63 / 3), 1)]


def test_a_sum_that_leaves_bigint_stops_the_epoch_and_names_the_group() -> None:
    shops = totals()
    shops.feed(insert(("A", 2**63 - 1)))

    with pytest.raises(BadInputError, match=r"sum\(price\) of the group \('A',\) does not fit int64") as caught:
        shops.feed(insert(("A", 1)))

    assert caught.value.code == "AGGREGATE_OVERFLOW"
    assert shops.feed(insert(("B", 1))) == [(("B", 1, 1, 1.0), 1)]


def test_decimals_have_the_digits_that_spark_gives_them() -> None:
    everything = values(pa.decimal128(10, 2), "sum", "avg")

    assert everything.feed(rows(D("0.01"), D("0.02"), D("0.02"))) == [((D("0.05"), D("0.016667")), 1)]
    assert everything.operator.output.schema.types == [pa.decimal128(20, 2), pa.decimal128(14, 6)]


def test_a_decimal_average_is_rounded_half_away_from_zero() -> None:
    average = values(pa.decimal128(38, 36), "avg")

    answer = average.feed(rows(D("-0." + "0" * 35 + "1"), D("0"), D("0"), D("0"), D("0"), D("0"), D("0"), D("0")))

    assert answer == [((D("-0." + "0" * 36 + "13"),), 1)]


def test_a_decimal_sum_of_more_than_38_digits_is_refused() -> None:
    total = values(pa.decimal128(38, 0), "sum")

    with pytest.raises(BadInputError, match="does not fit decimal128"):
        total.feed(rows(D("9" * 38), D("1")))


def test_a_float_sum_is_exact_whatever_came_in_between() -> None:
    total = values(pa.float64(), "sum")
    total.feed(rows(0.1, 1e300, math.inf, math.nan))

    assert total.feed(gone(1e300, math.inf, math.nan)) == [(("NaN",), -1), ((0.1,), 1)]


def test_a_float_sum_does_not_depend_on_the_order() -> None:
    numbers = [0.1] * 10 + [1e16, -1e16, 3e-20]
    forwards, backwards = values(pa.float64(), "sum"), values(pa.float64(), "sum")

    assert forwards.feed(rows(*numbers)) == backwards.feed(rows(*numbers[::-1])) == [((math.fsum(numbers),), 1)]


def test_infinities_of_both_signs_make_nan() -> None:
    total = values(pa.float64(), "sum", "avg")

    assert total.feed(rows(math.inf, 1.0)) == [((math.inf, math.inf), 1)]
    assert total.feed(rows(-math.inf)) == [((math.inf, math.inf), -1), (("NaN", "NaN"), 1)]


def test_variance_is_that_of_the_rows_that_are_left() -> None:
    spread = values(pa.float64(), "var_pop", "var_samp", "stddev_pop")
    spread.feed(rows(1.0, 3.0, 1e200))

    ((_, minus), (row, plus)) = spread.feed(gone(1e200))

    assert (minus, plus, row) == (-1, 1, (1.0, 2.0, 1.0))


def test_the_variance_of_a_sample_needs_two_values() -> None:
    assert values(pa.int32(), "variance", "stddev", "var_pop").feed(rows(7)) == [((None, None, 0.0), 1)]


def test_count_distinct_of_two_columns_leaves_out_rows_with_a_null() -> None:
    pairs = Epochs(Aggregate(SALES, [], [AggregateCall("count_distinct", ("shop", "price"))]))

    assert pairs.feed(insert(("A", 1), ("A", 1), ("A", 2), ("B", 1), ("A", None), (None, 1))) == [((3,), 1)]


def test_max_by_gives_the_value_beside_the_largest_order() -> None:
    best = Epochs(Aggregate(SALES, [], [AggregateCall("max_by", ("shop", "price")), AggregateCall("first", ("shop", "price"))]))

    assert best.feed(insert(("A", 3), ("B", 9), ("C", None))) == [(("B", "A"), 1)]
    assert best.feed(delete(("B", 9))) == [(("B", "A"), -1), (("A", "A"), 1)]


def test_the_value_of_max_by_may_be_null() -> None:
    best = Epochs(Aggregate(SALES, [], [AggregateCall("max_by", ("shop", "price"))]))

    assert best.feed(insert(("A", 3), (None, 9))) == [((None,), 1)]


def test_a_null_beside_the_largest_order_is_the_null_of_no_order_at_all() -> None:
    best = Epochs(Aggregate(SALES, [], [AggregateCall("max_by", ("shop", "price"))]))
    best.feed(insert((None, None)))

    assert best.feed(insert((None, 9))) == []
    assert best.feed(delete((None, 9))) == []
    assert best.feed(insert(("A", 9))) == [((None,), -1), (("A",), 1)]


def test_of_values_with_the_same_order_the_extreme_one_is_taken() -> None:
    calls = [AggregateCall("min_by", ("shop", "price")), AggregateCall("max_by", ("shop", "price"))]

    assert Epochs(Aggregate(SALES, [], calls)).feed(insert(("B", 1), ("A", 1), ("C", 1))) == [(("A", "C"), 1)]


def test_a_new_order_of_the_same_value_emits_nothing() -> None:
    best = Epochs(Aggregate(SALES, [], [AggregateCall("max_by", ("shop", "price"))]))
    best.feed(insert(("A", 3)))

    assert best.feed(insert(("A", 9))) == []


def test_lists_and_sets_come_in_order() -> None:
    collected = values(pa.string(), "collect_list", "collect_set")
    collected.feed(rows("b", "a", "b", None))

    answer = collected.feed([*gone("a"), *rows("c")])

    assert answer == [((("a", "b", "b"), ("a", "b")), -1), ((("b", "b", "c"), ("b", "c")), 1)]


def test_a_set_that_loses_a_copy_emits_nothing() -> None:
    collected = values(pa.string(), "collect_set")
    collected.feed(rows("b", "b"))

    assert collected.feed(gone("b")) == []


def test_nested_values_can_be_collected_and_counted() -> None:
    kind = pa.struct({"x": pa.int32(), "s": pa.string()})
    collected = values(kind, "collect_set", "count_distinct")

    assert collected.feed(rows({"x": 1, "s": "a"}, {"x": 1, "s": "a"})) == [((((1, "a"),), 1), 1)]


def test_a_list_beyond_its_limit_is_refused() -> None:
    relation = Relation(name="t", schema=pa.schema({"v": pa.int32()}), mode="changelog")
    collected = Epochs(Aggregate(relation, [], [AggregateCall("collect_list", "v", limit=2)]))

    with pytest.raises(ResourceError, match="would hold 3 values, more than its limit of 2") as caught:
        collected.feed(rows(1, 1, 2))

    assert caught.value.code == "COLLECT_LIMIT"
    assert collected.feed(rows(1, 2)) == [(((1, 2),), 1)]


def test_a_filter_chooses_the_rows_of_one_call() -> None:
    calls = [
        AggregateCall("count"),
        AggregateCall("count", name="dear", where=left("price") > 5),
        AggregateCall("max", "price", name="cheap", where=left("price") <= 5),
    ]
    shops = Epochs(Aggregate(SALES, ["shop"], calls))

    assert shops.feed(insert(("A", 3), ("A", 9), ("A", None))) == [(("A", 3, 1, 3), 1)]
    assert shops.feed(delete(("A", 3))) == [(("A", 3, 1, 3), -1), (("A", 2, 1, None), 1)]


# ---------------------------------------------------------------- answers


def test_an_answer_comes_in_bounded_chunks_with_retractions_first() -> None:
    shops = totals(chunk_rows=2)
    shops.feed(insert(("A", 1), ("B", 1), ("C", 1)))

    chunks = shops.chunks(insert(("A", 1), ("B", 1), ("C", 1)))

    assert [[weight for _, weight in chunk] for chunk in chunks] == [[-1, -1], [-1, 1], [1, 1]]


def test_an_answer_cannot_be_read_on_after_the_next_question() -> None:
    shops = Aggregate(SALES, ["shop"], TOTALS, options=OperatorOptions(chunk_rows=1))
    deltas = [delta_of(SALES, insert(("A", 1), ("B", 1)))]
    half_read = shops.answer(Tick(0), deltas)
    next(half_read)
    next(shops.answer(Tick(0), deltas))

    with pytest.raises(StateError, match="finish reading an answer"):
        next(half_read)


def test_the_output_is_a_changelog_keyed_by_the_group() -> None:
    output = Aggregate(SALES, ["shop"], TOTALS).output

    assert (output.mode, output.primary_key) == ("changelog", ("shop",))
    assert output.schema.names == ["shop", "count(1)", "sum(price)", "avg(price)"]
    assert [field.nullable for field in output.schema] == [True, False, True, True]


# ---------------------------------------------------------------- bad input


def test_a_retraction_from_an_empty_group_is_refused() -> None:
    with pytest.raises(BadInputError, match=r'"sales", epoch 0: the change with key \(\'A\', 3\) and weight -1') as caught:
        totals().feed(delete(("A", 3)))

    assert caught.value.code == "ABSENT_ROW"


def test_a_retraction_of_a_value_that_is_not_there_is_refused() -> None:
    shops = Epochs(Aggregate(SALES, ["shop"], EXTREMES))
    shops.feed(insert(("A", 3), ("A", 4)))

    with pytest.raises(BadInputError, match=r"key \('A', 5\)"):
        shops.feed(delete(("A", 5)))


def test_a_retraction_of_a_null_that_is_not_there_is_refused() -> None:
    shops = totals()
    shops.feed(insert(("A", 3), ("A", 4)))

    with pytest.raises(BadInputError, match=r"key \('A', None\)"):
        shops.feed(delete(("A", None)))


def test_sums_that_are_left_when_a_group_is_empty_give_a_wrong_retraction_away() -> None:
    shops = totals()
    shops.feed(insert(("A", 3)))

    with pytest.raises(BadInputError, match="its sums are not 0") as caught:
        shops.feed(delete(("A", 4)))

    assert caught.value.code == "GROUP_CONTRADICTION"


def test_under_quarantine_the_bad_rows_are_listed_and_the_rest_is_applied() -> None:
    shops = Aggregate(SALES, ["shop"], EXTREMES, options=OperatorOptions(on_bad_input="quarantine"))
    deltas = [delta_of(SALES, [*insert(("A", 3)), *delete(("A", 5)), *insert(("B", 7))])]

    listed = shops.rejections(Tick(0), deltas).to_pylist()
    answer = Epochs(shops).feed([*insert(("A", 3)), *delete(("A", 5)), *insert(("B", 7))])

    assert [(line["input"], line["row"], line["weight"], line["code"]) for line in listed] == [("sales", 1, -1, "ABSENT_ROW")]
    assert answer == [(("A", 3, 3), 1), (("B", 7, 7), 1)]


def test_a_retraction_before_its_insertion_within_one_epoch_is_legal() -> None:
    shops = Epochs(Aggregate(SALES, ["shop"], EXTREMES))

    assert shops.feed([*delete(("A", 3)), *insert(("A", 3), ("A", 4))]) == [(("A", 4, 4), 1)]


def test_an_append_only_input_takes_no_retraction() -> None:
    relation = Relation(name="sales", schema=SALES.schema)

    with pytest.raises(BadInputError, match="append-only"):
        Epochs(Aggregate(relation, ["shop"], TOTALS)).feed(delete(("A", 3)))


def test_a_row_count_past_int64_is_refused() -> None:
    shops = Epochs(Aggregate(SALES, ["shop"], [AggregateCall("count")]))
    shops.feed(insert(("A", 3), copies=2**63 - 1))

    with pytest.raises(WeightOverflowError, match="raises the number of rows of its group"):
        shops.feed(insert(("A", 4)))


# ---------------------------------------------------------------- state


def test_a_directory_is_opened_where_it_was_left(tmp_path: Path) -> None:
    first = totals(directory=str(tmp_path))
    first.feed(insert(("A", 3)))
    first.operator.close()  # type: ignore[attr-defined]

    second = Epochs(Aggregate(SALES, ["shop"], TOTALS, options=OperatorOptions(directory=str(tmp_path))), first_epoch=1)

    assert second.operator.absorbed_epoch == 0  # type: ignore[attr-defined]
    assert second.feed(insert(("A", 4))) == [(("A", 1, 3, 3.0), -1), (("A", 2, 7, 3.5), 1)]


def test_the_directory_of_another_aggregate_is_refused(tmp_path: Path) -> None:
    totals(directory=str(tmp_path)).operator.close()  # type: ignore[attr-defined]

    with pytest.raises(StateError, match="written for another aggregate"):
        Aggregate(SALES, ["shop"], EXTREMES, options=OperatorOptions(directory=str(tmp_path)))


def test_an_epoch_is_absorbed_once() -> None:
    shops = totals()
    shops.feed(insert(("A", 3)))

    with pytest.raises(StateError, match="was absorbed before"):
        shops.operator.absorb(Tick(0), shops.deltas())


def test_a_snapshot_holds_groups_and_values_as_plain_rows() -> None:
    shops = Epochs(Aggregate(SALES, ["shop"], EXTREMES))
    shops.feed(insert(("A", 3), ("A", 3), ("A", 4)))

    tables = {name: table.to_pylist() for name, table in shops.operator.snapshot().items()}

    assert tables == {
        "groups": [{"shop": "A", "_zset_weight": 3}],
        "values_0": [
            {"shop": "A", "_zset_value_0": 3, "_zset_weight": 2},
            {"shop": "A", "_zset_value_0": 4, "_zset_weight": 1},
        ],
    }


# ---------------------------------------------------------------- refused plans


def test_an_input_in_upsert_mode_is_refused() -> None:
    relation = Relation(name="sales", schema=SALES.schema, primary_key=("shop",), mode="upsert")

    with pytest.raises(PlanError, match="is in upsert mode"):
        Aggregate(relation, ["shop"], TOTALS)


def test_a_group_key_that_does_not_exist_is_refused() -> None:
    with pytest.raises(PlanError, match=r"names \['town'\]"):
        Aggregate(SALES, ["town"], TOTALS)


def test_two_output_columns_of_one_name_are_refused() -> None:
    with pytest.raises(PlanError, match=r"more than one column named \['shop'\]"):
        Aggregate(SALES, ["shop"], [AggregateCall("count", name="shop")])


def test_an_aggregate_without_columns_is_refused() -> None:
    with pytest.raises(PlanError, match="would have no column"):
        Aggregate(SALES, [], [])


def test_a_wrong_policy_is_refused() -> None:
    with pytest.raises(OptionError, match="on_bad_input='drop'"):
        Aggregate(SALES, [], TOTALS, options=OperatorOptions(on_bad_input="drop"))


def test_partial_lines_go_with_sums_under_policy_error_only() -> None:
    with pytest.raises(OptionError, match="preaggregated=True"):
        Aggregate(SALES, [], EXTREMES, preaggregated=True)
