"""The bidirectional join by example: the worked example it was built for, the join formula, and what an epoch is."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.epochs import Change, Epochs, delete, delta_of, insert, net, upsert
from zset_join.core.errors import PlanError, StateError
from zset_join.core.relation import Relation
from zset_join.core.tick import Tick
from zset_join.operators.join import JOIN_TYPES, HashJoin
from zset_join.shapes.operator_options import OperatorOptions
from zset_join.zset import ZSet
from zset_join.zset.protocol import Operator

# Mutable streams with a partial primary key: the join key is the first half of it.
LEFT_MUTABLE = Relation(
    name="left",
    schema=pa.schema({"k": pa.string(), "kk": pa.string(), "v": pa.string()}),
    join_key=("k",),
    primary_key=("k", "kk"),
    mode="upsert",
)
RIGHT_MUTABLE = Relation(
    name="right",
    schema=pa.schema({"k": pa.string(), "kk": pa.string(), "v": pa.string()}),
    join_key=("k",),
    primary_key=("k", "kk"),
    mode="upsert",
)
LEFT_ROWS = [("k1", "kk1", "v1"), ("k1", "kk2", "v2"), ("k1", "kk3", "v3")]
RIGHT_ROWS = [("k1", "kk4", "v4"), ("k1", "kk5", "v5")]

# The same without keys: the identity of a row is the whole row.
A = Relation(name="a", schema=pa.schema({"k": pa.string(), "a": pa.int64()}), join_key=("k",), mode="changelog")
B = Relation(name="b", schema=pa.schema({"k": pa.string(), "b": pa.int64()}), join_key=("k",), mode="changelog")

# A key that moves: orders by id, joined on the customer.
ORDERS = Relation(
    name="orders",
    schema=pa.schema({"id": pa.int64(), "customer": pa.string(), "price": pa.int64()}),
    join_key=("customer",),
    primary_key=("id",),
    mode="upsert",
)
CUSTOMERS = Relation(
    name="customers",
    schema=pa.schema({"name": pa.string(), "city": pa.string()}),
    join_key=("name",),
    primary_key=("name",),
    mode="upsert",
)


def append(relation: Relation) -> Relation:
    """Return the append-only relation of the same columns."""
    return Relation(name=relation.name, schema=relation.schema, join_key=relation.join_key)


@pytest.fixture
def two_by_three() -> Epochs:
    """Give the join of the worked example after its first epoch."""
    join = Epochs(HashJoin(LEFT_MUTABLE, RIGHT_MUTABLE))
    join.feed(insert(*LEFT_ROWS), insert(*RIGHT_ROWS))
    return join


@pytest.fixture
def shop() -> Epochs:
    """Give orders LEFT JOIN customers with two of each."""
    join = Epochs(HashJoin(ORDERS, CUSTOMERS, "left"))
    join.feed(upsert((1, "ann", 10), (2, "bob", 20)), upsert(("ann", "Oslo"), ("bob", "Bonn")))
    return join


# ---------------------------------------------------------------- the worked example


def test_three_rows_and_two_rows_of_one_key_make_six_rows() -> None:
    join = Epochs(HashJoin(LEFT_MUTABLE, RIGHT_MUTABLE))

    answer = join.feed(insert(*LEFT_ROWS), insert(*RIGHT_ROWS))

    assert answer == [
        (("k1", "kk1", "v1", "k1", "kk4", "v4"), +1),
        (("k1", "kk1", "v1", "k1", "kk5", "v5"), +1),
        (("k1", "kk2", "v2", "k1", "kk4", "v4"), +1),
        (("k1", "kk2", "v2", "k1", "kk5", "v5"), +1),
        (("k1", "kk3", "v3", "k1", "kk4", "v4"), +1),
        (("k1", "kk3", "v3", "k1", "kk5", "v5"), +1),
    ]


def test_one_upsert_retracts_three_rows_and_inserts_three_rows(two_by_three: Epochs) -> None:
    answer = two_by_three.feed([], upsert(("k1", "kk5", "v55")))

    assert answer == [
        (("k1", "kk1", "v1", "k1", "kk5", "v5"), -1),
        (("k1", "kk2", "v2", "k1", "kk5", "v5"), -1),
        (("k1", "kk3", "v3", "k1", "kk5", "v5"), -1),
        (("k1", "kk1", "v1", "k1", "kk5", "v55"), +1),
        (("k1", "kk2", "v2", "k1", "kk5", "v55"), +1),
        (("k1", "kk3", "v3", "k1", "kk5", "v55"), +1),
    ]


def test_the_rows_of_the_other_primary_key_are_untouched(two_by_three: Epochs) -> None:
    two_by_three.feed([], upsert(("k1", "kk5", "v55")))

    assert two_by_three.sum() == {
        ("k1", "kk1", "v1", "k1", "kk4", "v4"): 1,
        ("k1", "kk1", "v1", "k1", "kk5", "v55"): 1,
        ("k1", "kk2", "v2", "k1", "kk4", "v4"): 1,
        ("k1", "kk2", "v2", "k1", "kk5", "v55"): 1,
        ("k1", "kk3", "v3", "k1", "kk4", "v4"): 1,
        ("k1", "kk3", "v3", "k1", "kk5", "v55"): 1,
    }


def test_an_update_of_either_side_retracts_what_it_had_made() -> None:
    # The console session of the source: left_mu(i, k, k1) JOIN right_mu(ii, kk, kk1) ON k = kk.
    left = Relation(
        name="left_mu",
        schema=pa.schema({"i": pa.int32(), "k": pa.string(), "k1": pa.string()}),
        join_key=("k",),
        primary_key=("k", "k1"),
        mode="upsert",
    )
    right = Relation(
        name="right_mu",
        schema=pa.schema({"ii": pa.int32(), "kk": pa.string(), "kk1": pa.string()}),
        join_key=("kk",),
        primary_key=("kk", "kk1"),
        mode="upsert",
    )
    join = Epochs(HashJoin(left, right))

    answers = join.feed_all(
        [
            (insert((1, "a", "b")), []),
            ([], insert((11, "a", "bb"))),
            (insert((2, "a", "b")), []),
            ([], insert((22, "a", "bb"))),
        ]
    )

    assert answers == [
        [],
        [((1, "a", "b", 11, "a", "bb"), +1)],
        [((1, "a", "b", 11, "a", "bb"), -1), ((2, "a", "b", 11, "a", "bb"), +1)],
        [((2, "a", "b", 11, "a", "bb"), -1), ((2, "a", "b", 22, "a", "bb"), +1)],
    ]


# ---------------------------------------------------------------- the join formula


def test_rows_that_leave_together_retract_their_pair_once() -> None:
    join = Epochs(HashJoin(A, B))
    join.feed(insert(("x", 1)), insert(("x", 2)))

    answer = join.feed(delete(("x", 1)), delete(("x", 2)))

    assert answer == [(("x", 1, "x", 2), -1)]


def test_rows_that_come_together_make_their_pair_once() -> None:
    join = Epochs(HashJoin(A, B))

    answer = join.feed(insert(("x", 1)), insert(("x", 2)))

    assert answer == [(("x", 1, "x", 2), +1)]


def test_one_that_comes_while_the_other_leaves_never_meets_it() -> None:
    join = Epochs(HashJoin(A, B))
    join.feed(insert(("x", 1)), [])

    answer = join.feed(delete(("x", 1)), insert(("x", 2)))

    assert answer == []


def test_both_sides_update_in_one_epoch_and_only_the_new_pair_stays() -> None:
    join = Epochs(HashJoin(LEFT_MUTABLE, RIGHT_MUTABLE))
    join.feed(insert(("k", "l", "old")), insert(("k", "r", "old")))

    answer = join.feed(upsert(("k", "l", "new")), upsert(("k", "r", "new")))

    assert answer == [(("k", "l", "old", "k", "r", "old"), -1), (("k", "l", "new", "k", "r", "new"), +1)]


def test_weights_multiply() -> None:
    join = Epochs(HashJoin(A, B))

    assert join.feed(insert(("x", 1), copies=2), insert(("x", 2), copies=3)) == [(("x", 1, "x", 2), +6)]
    assert join.feed(delete(("x", 1), copies=1), insert(("x", 2), copies=1)) == [(("x", 1, "x", 2), -2)]
    assert join.sum() == {("x", 1, "x", 2): 1 * 4}


def test_a_bag_counts_copies_that_come_line_by_line() -> None:
    join = Epochs(HashJoin(A, B))

    answer = join.feed(insert(("x", 1), ("x", 1), ("y", 1)), insert(("x", 2), ("x", 2), ("x", 2)))

    assert answer == [(("x", 1, "x", 2), +6)]


def test_append_only_inputs_keep_equal_rows_apart_and_sum_to_the_same() -> None:
    join = Epochs(HashJoin(append(A), append(B)))

    answer = join.feed(insert(("x", 1), ("x", 1)), insert(("x", 2), ("x", 2), ("x", 2)))

    assert net(answer) == {("x", 1, "x", 2): 6}


def test_nothing_in_nothing_out() -> None:
    join = Epochs(HashJoin(A, B, "full"))

    assert join.chunks() == []


# ---------------------------------------------------------------- upserts


def test_an_upsert_that_changes_nothing_emits_nothing(shop: Epochs) -> None:
    assert shop.feed(upsert((1, "ann", 10)), upsert(("bob", "Bonn"))) == []


def test_a_delete_of_an_unknown_key_emits_nothing_and_is_counted(shop: Epochs) -> None:
    assert shop.feed(delete((3, None, None)), delete(("eve", None))) == []
    assert shop.operator.statistics()["unknown_deletes"] == 2  # type: ignore[attr-defined]


def test_a_delete_needs_nothing_but_the_primary_key(shop: Epochs) -> None:
    assert shop.feed(delete((1, None, None)), []) == [((1, "ann", 10, "ann", "Oslo"), -1)]


def test_what_else_a_delete_carries_is_not_read(shop: Epochs) -> None:
    assert shop.feed(delete((1, "bob", 99)), []) == [((1, "ann", 10, "ann", "Oslo"), -1)]


def test_a_row_whose_join_key_moves_leaves_and_arrives_in_the_same_epoch(shop: Epochs) -> None:
    answer = shop.feed(upsert((1, "bob", 10)), [])

    assert answer == [((1, "ann", 10, "ann", "Oslo"), -1), ((1, "bob", 10, "bob", "Bonn"), +1)]


def test_a_row_may_move_to_a_key_that_comes_with_it(shop: Epochs) -> None:
    answer = shop.feed(upsert((1, "cid", 10)), upsert(("cid", "Rome")))

    assert answer == [((1, "ann", 10, "ann", "Oslo"), -1), ((1, "cid", 10, "cid", "Rome"), +1)]


def test_a_row_that_moved_no_longer_hears_of_its_old_key(shop: Epochs) -> None:
    shop.feed(upsert((1, "bob", 10)), [])

    assert shop.feed([], upsert(("ann", "Paris"))) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param(upsert((3, "ann", 1)) + delete((3, None, None)), [], id="absent-absent"),
        pytest.param(
            upsert((3, "ann", 1), (3, "bob", 2)), [((3, "bob", 2, "bob", "Bonn"), +1)], id="absent-present: the last value"
        ),
        pytest.param(
            upsert((1, "bob", 99)) + delete((1, None, None)),
            [((1, "ann", 10, "ann", "Oslo"), -1)],
            id="present-absent: the original value",
        ),
        pytest.param(
            delete((1, None, None)) + upsert((1, "ann", 11)),
            [((1, "ann", 10, "ann", "Oslo"), -1), ((1, "ann", 11, "ann", "Oslo"), +1)],
            id="present-present: original to final",
        ),
        pytest.param(upsert((1, "bob", 99), (1, "ann", 10)), [], id="present-present: back again"),
        pytest.param(delete((1, None, None)) + upsert((1, "ann", 10)), [], id="gone and back"),
    ],
)
def test_several_changes_of_one_key_in_an_epoch_collapse_to_before_and_after(
    shop: Epochs, changes: list[Change], expected: list[Change]
) -> None:
    assert shop.feed(changes, []) == expected


def test_a_deleted_key_can_come_back(shop: Epochs) -> None:
    shop.feed(delete((1, None, None)), [])

    assert shop.feed(upsert((1, "bob", 5)), []) == [((1, "bob", 5, "bob", "Bonn"), +1)]


def test_an_update_to_null_and_back_is_a_change_each_time(shop: Epochs) -> None:
    assert shop.feed([], upsert(("ann", None))) == [
        ((1, "ann", 10, "ann", "Oslo"), -1),
        ((1, "ann", 10, "ann", None), +1),
    ]
    assert shop.feed([], upsert(("ann", "Oslo"))) == [
        ((1, "ann", 10, "ann", None), -1),
        ((1, "ann", 10, "ann", "Oslo"), +1),
    ]


# ---------------------------------------------------------------- the operator protocol


@pytest.mark.parametrize("how", JOIN_TYPES)
def test_a_join_is_an_operator(how: str) -> None:
    join = HashJoin(A, B, how)

    assert isinstance(join, Operator)
    assert join.inputs == (A, B)
    assert (join.output.name, join.output.mode) == (f"a_{how}_b", "changelog")


@pytest.mark.parametrize("how", JOIN_TYPES)
def test_an_answer_changes_nothing_and_can_be_requested_again(how: str) -> None:
    join = Epochs(HashJoin(ORDERS, CUSTOMERS, how))
    join.feed(upsert((1, "ann", 10), (2, "bob", 20)), upsert(("ann", "Oslo")))
    again = join.deltas(delete((1, None, None)) + upsert((3, "ann", 30)), upsert(("bob", "Bonn"), ("ann", "Rome")))
    before = join.operator.snapshot()

    first = [chunk.to_pylist() for chunk in join.operator.answer(Tick(1), again)]
    second = [chunk.to_pylist() for chunk in join.operator.answer(Tick(1), again)]
    copies = [ZSet(delta.rows, delta.weights.copy()) for delta in again]
    third = [chunk.to_pylist() for chunk in join.operator.answer(Tick(1), copies)]

    assert first == second == third
    assert join.operator.snapshot() == before


def test_an_epoch_is_absorbed_once() -> None:
    join = Epochs(HashJoin(A, B))
    join.feed(insert(("x", 1)), [])

    with pytest.raises(StateError, match=r"epoch 0 was absorbed before \(the state is at 0\)") as caught:
        join.operator.absorb(Tick(0), join.deltas(insert(("x", 1)), []))

    assert caught.value.code == "EPOCH_ABSORBED"
    assert join.feed([], insert(("x", 2))) == [(("x", 1, "x", 2), +1)]


def test_the_last_absorbed_epoch_is_known_and_gaps_are_allowed() -> None:
    join = HashJoin(A, B)
    empty = [ZSet.empty(A.schema), ZSet.empty(B.schema)]
    assert join.absorbed_epoch == -1

    join.absorb(Tick(0), empty)
    join.absorb(Tick(41), empty)

    assert join.absorbed_epoch == 41


def test_an_answer_is_read_to_its_end_before_the_next_epoch() -> None:
    join = HashJoin(A, B, "left", options=OperatorOptions(chunk_rows=1))
    deltas = [delta_of(A, insert(("x", 1), ("y", 1))), ZSet.empty(B.schema)]
    answer = join.answer(Tick(0), deltas)
    next(answer)

    join.absorb(Tick(0), deltas)

    with pytest.raises(StateError, match="after its epoch had been absorbed") as caught:
        next(answer)
    assert caught.value.code == "ANSWER_OUTDATED"


def test_an_answer_nobody_finishes_leaves_no_trace() -> None:
    join = HashJoin(A, B, "left", options=OperatorOptions(chunk_rows=1))
    deltas = [delta_of(A, insert(("x", 1), ("y", 1))), ZSet.empty(B.schema)]

    next(join.answer(Tick(0), deltas))

    assert len(list(join.answer(Tick(0), deltas))) == 2


def test_the_output_stays_valid_after_the_join_went_on() -> None:
    join = HashJoin(A, B, "left")
    deltas = [delta_of(A, insert(("a string that is long enough for the heap", 1))), ZSet.empty(B.schema)]
    (chunk,) = join.answer(Tick(0), deltas)

    join.absorb(Tick(0), deltas)
    join.close()

    assert chunk.to_pylist() == [(("a string that is long enough for the heap", 1, None, None), 1)]


def test_a_relation_can_be_joined_with_itself() -> None:
    friends = Relation(
        name="friends",
        schema=pa.schema({"id": pa.int64(), "of": pa.int64()}),
        join_key=("of",),
        primary_key=("id",),
        mode="upsert",
    )
    people = Relation(name="friends", schema=friends.schema, join_key=("id",), primary_key=("id",), mode="upsert")
    join = Epochs(HashJoin(friends, people))

    assert join.feed(upsert((1, 2), (2, 1)), upsert((1, 2), (2, 1))) == [((1, 2, 2, 1), +1), ((2, 1, 1, 2), +1)]


# ---------------------------------------------------------------- deltas that are not of their relation


def test_a_delta_with_other_types_than_its_relation_is_refused() -> None:
    join = HashJoin(A, B)
    narrow = ZSet.of({"k": ["x", "y", "z"], "a": pa.array([1, 2, 3], pa.int32())})

    with pytest.raises(PlanError, match=r'"a".*int64.*int32'):
        list(join.answer(Tick(0), [narrow, ZSet.empty(B.schema)]))


def test_a_delta_without_a_column_of_its_relation_is_refused() -> None:
    join = HashJoin(A, B)

    with pytest.raises(PlanError, match='"a"'):
        list(join.answer(Tick(0), [ZSet.of({"k": ["x"]}), ZSet.empty(B.schema)]))


def test_columns_in_another_order_are_found_by_name() -> None:
    join = HashJoin(A, B, "left")
    swapped = ZSet.of({"a": [1], "k": ["x"]})

    (answer,) = join.answer(Tick(0), [swapped, ZSet.empty(B.schema)])

    assert answer.to_pylist() == [(("x", 1, None, None), 1)]
