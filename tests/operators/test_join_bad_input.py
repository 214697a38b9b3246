"""Rows that break the contract of their relation: the epoch fails whole, or they are kept aside and the rest proceeds."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest

from tests.built import built
from tests.epochs import Change, Epochs, delete, insert, upsert
from zset_join.core.epochs import Tick
from zset_join.core.errors import BadInputError, WeightOverflowError
from zset_join.core.relation import Relation
from zset_join.expressions import left, right
from zset_join.operators.join import HashJoin
from zset_join.shapes.operator_options import OperatorOptions
from zset_join.state.rows.side_changes import REJECTION_SCHEMA

COLUMNS = pa.schema({"id": pa.int64(), "k": pa.string(), "seq": pa.int64()})
MOST = 2**63 - 1

APPENDED = Relation(name="clicks", schema=COLUMNS, join_key=("k",))
UPSERTED = Relation(name="orders", schema=COLUMNS, join_key=("k",), primary_key=("id",), sequence_by=("seq",), mode="upsert")
BAG = Relation(name="counts", schema=COLUMNS, join_key=("k",), mode="changelog")
KEYED_BAG = Relation(name="rates", schema=COLUMNS, join_key=("k",), primary_key=("id",), mode="changelog")
OTHER = Relation(name="other", schema=pa.schema({"k": pa.string(), "x": pa.int64()}), join_key=("k",), mode="changelog")

# Relation, code, the bad change, what the message contains.
BAD = [
    pytest.param(
        APPENDED,
        "RETRACTION_IN_APPEND",
        delete((1, "a", 1)),
        r"weight -1 has a negative weight, but .* append-only",
        id="append",
    ),
    pytest.param(
        APPENDED, "RETRACTION_IN_APPEND", delete((1, None, 1)), r"weight -1 has a negative weight", id="append, NULL join key"
    ),
    pytest.param(
        UPSERTED,
        "NULL_PRIMARY_KEY",
        upsert((None, "a", 1)),
        r"key \(None,\) and weight 1 has NULL in its primary key \['id'\]",
        id="upsert",
    ),
    pytest.param(UPSERTED, "NULL_PRIMARY_KEY", delete((None, "a", 1)), r"key \(None,\) and weight -1", id="delete"),
    pytest.param(
        UPSERTED,
        "NULL_SEQUENCE",
        upsert((1, "a", None)),
        r"key \(1,\) and weight 1 has NULL in its sequence \['seq'\]",
        id="sequence",
    ),
    pytest.param(UPSERTED, "NULL_SEQUENCE", delete((1, "a", None)), r"NULL in its sequence", id="sequence of a delete"),
    pytest.param(
        BAG, "ABSENT_ROW", delete((1, "a", 1)), r"key \(1, 'a', 1\) and weight -1 retracts an absent row", id="absent"
    ),
    pytest.param(
        KEYED_BAG, "NULL_PRIMARY_KEY", insert((None, "a", 1)), r"NULL in its primary key \['id'\]", id="keyed changelog"
    ),
    pytest.param(
        KEYED_BAG, "ABSENT_ROW", delete((1, "a", 2)), r"key \(1,\) and weight -1 retracts", id="keyed changelog, absent"
    ),
]

GOOD = (7, "a", 1)


def joined(relation: Relation, how: str = "inner", **options: Any) -> Epochs:
    """Return the join of a relation with `other`, which has one row of key a."""
    join = Epochs(built(HashJoin, relation, OTHER, how, **options))
    join.feed([], insert(("a", 0)))
    return join


# ---------------------------------------------------------------- policy error


@pytest.mark.parametrize("how", ["inner", "left", "left_anti"])
@pytest.mark.parametrize(("relation", "code", "bad", "expected"), BAD)
def test_the_message_names_stream_key_weight_epoch_and_cure(
    relation: Relation, code: str, bad: list[Change], expected: str, how: str
) -> None:
    join = joined(relation, how)

    with pytest.raises(BadInputError, match=expected) as caught:
        join.feed(insert(GOOD) + bad, [])

    error = caught.value
    assert (error.code, error.facts["relation"], error.facts["epoch"]) == (code, relation.name, 1)
    assert (error.facts["weight"], error.facts["rejected_rows"]) == (bad[0][1], 1)
    assert f'relation "{relation.name}", epoch 1' in str(error)
    assert 'set on_bad_input="quarantine"' in str(error)


def test_the_error_counts_all_bad_rows_and_shows_the_first() -> None:
    join = joined(BAG)

    with pytest.raises(BadInputError, match=r"key \(2, 'a', 2\).*\(3 such rows in this epoch; nothing of it was applied\)"):
        join.feed(insert((1, "a", 1)) + delete((2, "a", 2), (3, "a", 3), (4, "a", 4)), [])


def test_retracting_more_copies_than_there_are_is_absent_too() -> None:
    join = joined(BAG)
    join.feed(insert(GOOD, copies=2), [])

    with pytest.raises(BadInputError, match="weight -3 retracts an absent row"):
        join.feed(delete(GOOD, copies=3), [])


# ---------------------------------------------------------------- policy quarantine


@pytest.mark.parametrize(("relation", "code", "bad", "expected"), BAD)
def test_in_quarantine_the_rest_proceeds_and_the_bad_row_is_reported(
    relation: Relation, code: str, bad: list[Change], expected: str
) -> None:
    join = joined(relation, on_bad_input="quarantine")
    deltas = join.deltas(insert(GOOD) + bad, [])

    rejected = join.operator.rejections(Tick(1), deltas)
    answer = join.feed(insert(GOOD) + bad, [])

    assert rejected.schema == REJECTION_SCHEMA
    assert rejected.select(["input", "row", "weight", "code"]).to_pylist() == [
        {"input": relation.name, "row": 1, "weight": bad[0][1], "code": code}
    ]
    assert answer == [((*GOOD, "a", 0), +1)]
    assert join.operator.statistics()["rejected_rows"] == 1  # type: ignore[attr-defined]


def test_of_too_many_retractions_those_that_came_first_count() -> None:
    join = joined(BAG, on_bad_input="quarantine")
    join.feed(insert(GOOD, copies=2), [])
    changes = delete(GOOD) + delete(GOOD) + delete(GOOD)

    rejected = join.operator.rejections(Tick(2), join.deltas(changes, []))

    assert rejected.column("row").to_pylist() == [2]
    assert join.feed(changes, []) == [((*GOOD, "a", 0), -2)]


# ---------------------------------------------------------------- weights are checked, never wrapped


def test_a_row_past_int64_can_be_quarantined() -> None:
    join = Epochs(HashJoin(BAG, OTHER, "left", options=OperatorOptions(on_bad_input="quarantine")))
    join.feed(insert(GOOD, copies=MOST), [])

    assert join.feed(insert(GOOD), []) == []
    assert join.operator.statistics()["rejected_rows"] == 1  # type: ignore[attr-defined]


PRODUCTS = [
    pytest.param(insert(GOOD, copies=2**40), insert(("a", 1), copies=2**40), [], [], id="both new"),
    pytest.param(insert(GOOD, copies=2**40), [], [], insert(("a", 1), copies=2**40), id="the left one known"),
    pytest.param([], insert(("a", 1), copies=2**40), insert(GOOD, copies=2**40), [], id="the right one known"),
    pytest.param(
        insert(GOOD, copies=2**31), insert(("a", 1), copies=2**31), insert(GOOD, copies=2**40), [], id="a known pair grows"
    ),
]


@pytest.mark.parametrize("residual", [None, left("id") > right("x")], ids=["key only", "residual"])
@pytest.mark.parametrize(("left_before", "right_before", "left_now", "right_now"), PRODUCTS)
def test_a_product_of_weights_past_int64_is_an_error_of_its_epoch(
    left_before: list[Change], right_before: list[Change], left_now: list[Change], right_now: list[Change], residual: Any
) -> None:
    join = Epochs(HashJoin(BAG, OTHER, residual=residual))
    epochs = [(left_before, right_before), (left_now, right_now)]

    with pytest.raises(WeightOverflowError, match=r'the join of "counts" and "other", epoch \d: the product') as caught:
        join.feed_all(epochs)

    assert caught.value.code == "WEIGHT_OVERFLOW"
    assert caught.value.facts == {"epoch": join.epoch}


def test_an_overflow_in_the_middle_of_a_large_answer_is_found() -> None:
    join = Epochs(HashJoin(BAG, OTHER, options=OperatorOptions(chunk_rows=2)))
    many = insert(*[("a", number) for number in range(20)])
    join.feed([], [*many, *insert(("a", 99), copies=2**40)])

    with pytest.raises(WeightOverflowError):
        join.feed(insert(GOOD, copies=2**30), [])


@pytest.mark.parametrize("weight", [-MOST - 1, -MOST])
def test_the_most_negative_weight_is_a_retraction_of_an_absent_row(weight: int) -> None:
    join = joined(BAG)

    with pytest.raises(BadInputError, match="retracts an absent row"):
        join.feed([(GOOD, weight)], [])


# ---------------------------------------------------------------- key values that fit no comparison

SECONDS = Relation(name="s", schema=pa.schema({"k": pa.timestamp("s"), "x": pa.int64()}), join_key=("k",))
NANOSECONDS = Relation(name="ns", schema=pa.schema({"k": pa.timestamp("ns"), "y": pa.int64()}), join_key=("k",))


YEAR_2000, YEAR_3000 = dt.datetime(2000, 1, 1), dt.datetime(3000, 1, 1)


def test_a_key_past_the_range_it_is_compared_in_is_bad_input() -> None:
    rows = insert((YEAR_3000, 1), (YEAR_2000, 2), (None, 3))

    with pytest.raises(
        BadInputError, match=r'relation "s", epoch 0: .* join key \[\'k\'\] that does not fit .*; cast it first'
    ) as caught:
        Epochs(HashJoin(SECONDS, NANOSECONDS, "left")).feed(rows, [])

    assert caught.value.code == "KEY_RANGE"
    join = Epochs(HashJoin(SECONDS, NANOSECONDS, "left", options=OperatorOptions(on_bad_input="quarantine")))
    rejected = join.operator.rejections(Tick(0), join.deltas(rows, []))
    assert rejected.select(["row", "code"]).to_pylist() == [{"row": 0, "code": "KEY_RANGE"}]
    assert join.feed(rows, []) == [((None, 3, None, None), +1), ((YEAR_2000, 2, None, None), +1)]
