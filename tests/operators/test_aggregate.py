"""GROUP BY and DISTINCT by example: which changes an epoch emits when rows arrive and leave, also behind a join."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.built import built
from tests.epochs import Epochs, delete, delta_of, insert, lines_of, upsert
from zset_join.aggregates import AggregateCall
from zset_join.core.epochs import Tick
from zset_join.core.errors import (
    BadInputError,
    KeyTypeError,
    OptionError,
    PlanError,
    ResourceError,
    StateError,
    WeightOverflowError,
)
from zset_join.core.relation import Relation
from zset_join.expressions import left
from zset_join.operators.aggregate import Aggregate, Distinct
from zset_join.operators.join import HashJoin
from zset_join.shapes.operator_options import OperatorOptions

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


def test_a_group_whose_last_row_goes_is_gone() -> None:
    shops = totals()
    shops.feed(insert(("A", 3)))

    answer = shops.feed(delete(("A", 3)))

    assert answer == [(("A", 1, 3, 3.0), -1)]
    assert shops.operator.statistics()["groups"] == 0  # type: ignore[attr-defined]


def test_a_group_of_zeros_shows_the_positive_one() -> None:
    relation = Relation(name="t", schema=pa.schema({"k": pa.float64()}), mode="changelog")
    groups = Epochs(Aggregate(relation, ["k"], [AggregateCall("count")]))

    groups.feed(rows(-0.0))
    ((retracted, _), (inserted, _)) = groups.feed(rows(0.0))

    assert (math.copysign(1, retracted[0]), math.copysign(1, inserted[0])) == (1, 1)


# ---------------------------------------------------------------- without groups


def test_a_global_aggregate_has_its_row_from_the_first_epoch_on() -> None:
    everything = Epochs(Aggregate(SALES, [], TOTALS))

    assert everything.feed() == [((0, None, None), 1)]
    assert everything.feed() == []


def test_a_global_aggregate_keeps_its_row_when_all_rows_go() -> None:
    everything = Epochs(Aggregate(SALES, [], [*TOTALS, AggregateCall("collect_list", "price")]))
    everything.feed(insert(("A", 3)))

    assert everything.feed(delete(("A", 3))) == [((1, 3, 3.0, (3,)), -1), ((0, None, None, ()), 1)]


# ---------------------------------------------------------------- functions


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()])
def test_the_extreme_of_zeros_is_one_that_is_there(kind: pa.DataType) -> None:
    extremes = values(kind, "min", "max", "count_distinct")

    answers = [extremes.feed(change) for change in (rows(0.0), rows(-0.0), gone(0.0), rows(-5e-324, 3.0), gone(-5e-324, 3.0))]

    assert [str(row) for row, weight in answers[1] if weight > 0] == ["(-0.0, 0.0, 1)"]
    assert [str(row) for row, weight in answers[2] if weight > 0] == ["(-0.0, -0.0, 1)"]
    assert [str(row) for row, weight in answers[4] if weight > 0] == ["(-0.0, -0.0, 1)"]


def test_a_retraction_of_a_zero_takes_the_other_one_where_it_is_not_there() -> None:
    extremes = values(pa.float64(), "min", "max")
    extremes.feed(rows(0.0, -0.0, -0.0, 7.0))

    with pytest.raises(BadInputError, match="ABSENT_ROW"):
        extremes.feed(gone(0.0, 0.0, 0.0, -0.0))
    assert extremes.feed(gone(0.0, 0.0, 0.0)) == [((-0.0, 7.0), -1), ((7.0, 7.0), 1)]


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


def test_the_variance_of_a_sample_needs_two_values() -> None:
    assert values(pa.int32(), "variance", "stddev", "var_pop").feed(rows(7)) == [((None, None, 0.0), 1)]


def test_max_by_gives_the_value_beside_the_largest_order() -> None:
    best = Epochs(Aggregate(SALES, [], [AggregateCall("max_by", ("shop", "price")), AggregateCall("first", ("shop", "price"))]))

    assert best.feed(insert(("A", 3), ("B", 9), ("C", None))) == [(("B", "A"), 1)]
    assert best.feed(delete(("B", 9))) == [(("B", "A"), -1), (("A", "A"), 1)]


def test_lists_and_sets_come_in_order() -> None:
    collected = values(pa.string(), "collect_list", "collect_set")
    collected.feed(rows("b", "a", "b", None))

    answer = collected.feed([*gone("a"), *rows("c")])

    assert answer == [((("a", "b", "b"), ("a", "b")), -1), ((("b", "b", "c"), ("b", "c")), 1)]


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


def test_sums_that_are_left_when_a_group_is_empty_give_a_wrong_retraction_away() -> None:
    shops = totals()
    shops.feed(insert(("A", 3)))

    with pytest.raises(BadInputError, match="its sums are not 0") as caught:
        shops.feed(delete(("A", 4)))

    assert caught.value.code == "GROUP_CONTRADICTION"


def test_a_row_count_past_int64_is_refused() -> None:
    shops = Epochs(Aggregate(SALES, ["shop"], [AggregateCall("count")]))
    shops.feed(insert(("A", 3), copies=2**63 - 1))

    with pytest.raises(WeightOverflowError, match="raises the number of rows of its group"):
        shops.feed(insert(("A", 4)))


# ---------------------------------------------------------------- state


def test_the_directory_of_another_aggregate_is_refused(tmp_path: Path) -> None:
    totals(directory=str(tmp_path)).operator.close()  # type: ignore[attr-defined]

    with pytest.raises(StateError, match="written for another aggregate"):
        Aggregate(SALES, ["shop"], EXTREMES, options=OperatorOptions(directory=str(tmp_path)))


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


def test_partial_lines_go_with_sums_under_policy_error_only() -> None:
    with pytest.raises(OptionError, match="preaggregated=True"):
        Aggregate(SALES, [], EXTREMES, preaggregated=True)


# ---------------------------------------------------------------- DISTINCT

VISITS = Relation(name="visits", schema=pa.schema({"page": pa.string(), "at": pa.float64()}), mode="changelog")


def test_a_row_comes_with_its_first_copy_and_goes_with_its_last() -> None:
    pages = Epochs(Distinct(VISITS))

    assert pages.feed(insert(("a", 1.0), copies=2)) == [(("a", 1.0), 1)]
    assert pages.feed(delete(("a", 1.0))) == []
    assert pages.feed(delete(("a", 1.0))) == [(("a", 1.0), -1)]


@pytest.mark.parametrize(
    ("kind", "made"),
    [
        (pa.float64(), lambda zero: zero),
        (pa.float32(), lambda zero: zero),
        (pa.list_(pa.float64()), lambda zero: [1.5, zero, None]),
        (pa.struct({"x": pa.float64(), "y": pa.list_(pa.float32())}), lambda zero: {"x": zero, "y": [zero]}),
    ],
)
def test_of_two_zeros_the_positive_one_is_shown_whichever_came_and_whichever_is_left(kind, made) -> None:
    values = Epochs(Distinct(Relation(name="values", schema=pa.schema({"v": kind}), mode="changelog")))

    answers = [
        values.feed(change((made(zero),))) for change, zero in ((insert, -0.0), (insert, 0.0), (delete, 0.0), (delete, -0.0))
    ]

    assert [[weight for _, weight in answer] for answer in answers] == [[1], [], [], [-1]]
    assert "-0.0" not in repr(answers)


def test_the_whole_row_is_the_key_of_the_output() -> None:
    assert Distinct(VISITS).output.primary_key == ("page", "at")


def test_a_distinct_of_upserts_is_refused() -> None:
    with pytest.raises(PlanError, match="is in upsert mode"):
        Distinct(Relation(name="visits", schema=VISITS.schema, primary_key=("page",), mode="upsert"))


def test_a_column_without_equality_is_refused() -> None:
    with pytest.raises(KeyTypeError, match="maps and unions have no equality"):
        Distinct(Relation(name="t", schema=pa.schema({"m": pa.map_(pa.string(), pa.int32())}), mode="changelog"))


# ---------------------------------------------------------------- an aggregate over a join

# CREATE MUTABLE STREAM left_mu(i int, k string, k1 string) PRIMARY KEY (k, k1), and the same on the right.
LEFT = Relation(
    name="left_mu",
    schema=pa.schema({"i": pa.int32(), "k": pa.string(), "k1": pa.string()}),
    join_key=("k",),
    primary_key=("k", "k1"),
    mode="upsert",
)
RIGHT = Relation(
    name="right_mu",
    schema=pa.schema({"ii": pa.int32(), "kk": pa.string(), "kk1": pa.string()}),
    join_key=("kk",),
    primary_key=("kk", "kk1"),
    mode="upsert",
)
EXTREMES_OF_BOTH = [
    AggregateCall("count"),
    *(AggregateCall(function, column) for column in ("i", "ii") for function in ("min", "max", "avg")),
]


class JoinThenAggregate:
    """SELECT count(), min(i), max(i), avg(i), min(ii), max(ii), avg(ii) FROM left_mu JOIN right_mu ON k = kk."""

    def __init__(self) -> None:
        self.join = HashJoin(LEFT, RIGHT)
        self.aggregate = Epochs(Aggregate(self.join.output, [], EXTREMES_OF_BOTH))
        self.joined = Epochs(self.join)

    def insert_left(self, *rows: tuple[int, str, str]) -> tuple[object, ...]:
        self.aggregate.feed(self.joined.feed(upsert(*rows), []))
        return self.row()

    def insert_right(self, *rows: tuple[int, str, str]) -> tuple[object, ...]:
        self.aggregate.feed(self.joined.feed([], upsert(*rows)))
        return self.row()

    def row(self) -> tuple[object, ...]:
        """Return the one row that the answers so far add up to."""
        ((row, weight),) = self.aggregate.sum().items()
        assert weight == 1
        return row


def test_the_aggregate_equals_the_historical_query_after_every_insert() -> None:
    query = JoinThenAggregate()

    assert query.insert_left((1, "a", "b")) == (0, None, None, None, None, None, None)
    assert query.insert_right((11, "a", "bb")) == (1, 1, 1, 1.0, 11, 11, 11.0)
    assert query.insert_left((2, "a", "b")) == (1, 2, 2, 2.0, 11, 11, 11.0)
    assert query.insert_right((22, "a", "bb")) == (1, 2, 2, 2.0, 22, 22, 22.0)
