"""The bidirectional join by example: the worked example it was built for, the join formula, outer joins, NULL keys, conditions.

That the sum of all answers is the plain join, for every type of join, mode and key, is what the laws are for.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tests.epochs import Change, Epochs, delete, delta_of, insert, upsert
from zset_join.core.epochs import Tick
from zset_join.core.errors import BadInputError, PlanError, StateError
from zset_join.core.relation import ChangelogMode, Relation
from zset_join.expressions import Expression, left, lit, right
from zset_join.operators.join import JOIN_TYPES, HashJoin
from zset_join.shapes.operator_options import OperatorOptions
from zset_join.zset import ZSet
from zset_join.zset.protocol import Operator

Story = list[tuple[str, list[Change], list[Change], list[Change]]]


def keyed(name: str, columns: dict[str, pa.DataType], join_key: str, *primary_key: str) -> Relation:
    return Relation(name=name, schema=pa.schema(columns), join_key=(join_key,), primary_key=primary_key, mode="upsert")


# Mutable streams with a partial primary key: the join key is the first half of it.
MUTABLE = {"k": pa.string(), "kk": pa.string(), "v": pa.string()}
LEFT_MUTABLE, RIGHT_MUTABLE = (keyed(name, MUTABLE, "k", "k", "kk") for name in ("left", "right"))
LEFT_ROWS = [("k1", "kk1", "v1"), ("k1", "kk2", "v2"), ("k1", "kk3", "v3")]
RIGHT_ROWS = [("k1", "kk4", "v4"), ("k1", "kk5", "v5")]

# The same without keys: the identity of a row is the whole row.
A, B = (
    Relation(name=name, schema=pa.schema({"k": pa.string(), name: pa.int64()}), join_key=("k",), mode="changelog")
    for name in "ab"
)

# A key that moves: orders by id, joined on the customer.
ORDERS = keyed("orders", {"id": pa.int64(), "customer": pa.string(), "price": pa.int64()}, "customer", "id")
CUSTOMERS = keyed("customers", {"name": pa.string(), "city": pa.string()}, "name", "name")


@pytest.fixture
def shop() -> Epochs:
    """Give orders LEFT JOIN customers with two of each."""
    join = Epochs(HashJoin(ORDERS, CUSTOMERS, "left"))
    join.feed(upsert((1, "ann", 10), (2, "bob", 20)), upsert(("ann", "Oslo"), ("bob", "Bonn")))
    return join


# ---------------------------------------------------------------- the worked example


def test_three_rows_and_two_rows_of_one_key_make_six_rows_and_an_upsert_replaces_three_of_them() -> None:
    join = Epochs(HashJoin(LEFT_MUTABLE, RIGHT_MUTABLE))

    assert join.feed(insert(*LEFT_ROWS), insert(*RIGHT_ROWS)) == [
        (("k1", "kk1", "v1", "k1", "kk4", "v4"), +1),
        (("k1", "kk1", "v1", "k1", "kk5", "v5"), +1),
        (("k1", "kk2", "v2", "k1", "kk4", "v4"), +1),
        (("k1", "kk2", "v2", "k1", "kk5", "v5"), +1),
        (("k1", "kk3", "v3", "k1", "kk4", "v4"), +1),
        (("k1", "kk3", "v3", "k1", "kk5", "v5"), +1),
    ]
    assert join.feed([], upsert(("k1", "kk5", "v55"))) == [
        (("k1", "kk1", "v1", "k1", "kk5", "v5"), -1),
        (("k1", "kk2", "v2", "k1", "kk5", "v5"), -1),
        (("k1", "kk3", "v3", "k1", "kk5", "v5"), -1),
        (("k1", "kk1", "v1", "k1", "kk5", "v55"), +1),
        (("k1", "kk2", "v2", "k1", "kk5", "v55"), +1),
        (("k1", "kk3", "v3", "k1", "kk5", "v55"), +1),
    ]


# ---------------------------------------------------------------- the join formula


def test_rows_that_leave_together_retract_their_pair_once() -> None:
    join = Epochs(HashJoin(A, B))
    join.feed(insert(("x", 1)), insert(("x", 2)))

    assert join.feed(delete(("x", 1)), delete(("x", 2))) == [(("x", 1, "x", 2), -1)]


def test_one_that_comes_while_the_other_leaves_never_meets_it() -> None:
    join = Epochs(HashJoin(A, B))
    join.feed(insert(("x", 1)), [])

    assert join.feed(delete(("x", 1)), insert(("x", 2))) == []


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


# ---------------------------------------------------------------- upserts


def test_a_delete_of_an_unknown_key_emits_nothing_and_is_counted(shop: Epochs) -> None:
    assert shop.feed(delete((3, None, None)), delete(("eve", None))) == []
    assert shop.operator.statistics()["unknown_deletes"] == 2  # type: ignore[attr-defined]


def test_a_delete_needs_nothing_but_the_primary_key(shop: Epochs) -> None:
    assert shop.feed(delete((1, None, None)), []) == [((1, "ann", 10, "ann", "Oslo"), -1)]


def test_a_row_whose_join_key_moves_leaves_and_arrives_in_the_same_epoch(shop: Epochs) -> None:
    answer = shop.feed(upsert((1, "bob", 10)), [])

    assert answer == [((1, "ann", 10, "ann", "Oslo"), -1), ((1, "bob", 10, "bob", "Bonn"), +1)]


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
    ],
)
def test_several_changes_of_one_key_in_an_epoch_collapse_to_before_and_after(
    shop: Epochs, changes: list[Change], expected: list[Change]
) -> None:
    assert shop.feed(changes, []) == expected


# ---------------------------------------------------------------- rows alone (docs: semantics, section 4)

L = keyed("l", {"id": pa.string(), "k": pa.int64()}, "k", "id")
R = keyed("r", {"id": pa.string(), "k": pa.int64(), "v": pa.string()}, "k", "id")
NO_LEFT, NO_RIGHT = (None, None), (None, None, None)
LEFT_ROW = ("l", 7)
R1, R2, R3 = ("r1", 7, "one"), ("r2", 7, "two"), ("r3", 7, "three")
R2_NEW = ("r2", 7, "TWO")

# What happens, the left changes, the right changes, the answer.
LEFT_STORY: Story = [
    ("a left row without a match is padded", insert(LEFT_ROW), [], [((*LEFT_ROW, *NO_RIGHT), +1)]),
    ("its first match retracts the padding", [], insert(R1), [((*LEFT_ROW, *NO_RIGHT), -1), ((*LEFT_ROW, *R1), +1)]),
    ("its second match is just one more row", [], insert(R2), [((*LEFT_ROW, *R2), +1)]),
    ("a match of two leaves", [], delete(R1), [((*LEFT_ROW, *R1), -1)]),
    ("the last match is replaced: no padding", [], upsert(R2_NEW), [((*LEFT_ROW, *R2), -1), ((*LEFT_ROW, *R2_NEW), +1)]),
    ("the last match leaves", [], delete(R2_NEW), [((*LEFT_ROW, *R2_NEW), -1), ((*LEFT_ROW, *NO_RIGHT), +1)]),
    ("a match comes and goes within one epoch", [], insert(R3) + delete(R3), []),
    ("the left row leaves", delete(LEFT_ROW), [], [((*LEFT_ROW, *NO_RIGHT), -1)]),
]
SHOWN: dict[str, list[list[Change]]] = {
    "left_semi": [[], [(LEFT_ROW, +1)], [], [], [], [(LEFT_ROW, -1)], [], []],
    "left_anti": [[(LEFT_ROW, +1)], [(LEFT_ROW, -1)], [], [], [], [(LEFT_ROW, +1)], [], [(LEFT_ROW, -1)]],
}
"""What semi and anti joins emit for the same changes."""
R9 = ("r9", 9, "nine")
FULL_STORY: Story = [
    ("a left row alone is padded", insert(LEFT_ROW), [], [((*LEFT_ROW, *NO_RIGHT), +1)]),
    ("a right row of another key is padded too", [], insert(R9), [((*NO_LEFT, *R9), +1)]),
    ("a match unpads the left row", [], insert(R1), [((*LEFT_ROW, *NO_RIGHT), -1), ((*LEFT_ROW, *R1), +1)]),
    (
        "the left row moves to the other key",
        upsert(("l", 9)),
        [],
        [((*LEFT_ROW, *R1), -1), ((*NO_LEFT, *R9), -1), (("l", 9, *R9), +1), ((*NO_LEFT, *R1), +1)],
    ),
    ("both rows of a pair leave together, nothing is padded", delete(("l", 9)), delete(R9), [(("l", 9, *R9), -1)]),
    ("a match comes for the row that is left", insert(LEFT_ROW), [], [((*NO_LEFT, *R1), -1), ((*LEFT_ROW, *R1), +1)]),
    (
        "a left row leaves while a right one comes",
        delete(LEFT_ROW),
        insert(R2),
        [((*LEFT_ROW, *R1), -1), ((*NO_LEFT, *R1), +1), ((*NO_LEFT, *R2), +1)],
    ),
]
STORIES: dict[str, Story] = {
    "left": LEFT_STORY,
    "full": FULL_STORY,
    **{how: [(*step[:3], lines) for step, lines in zip(LEFT_STORY, emitted, strict=True)] for how, emitted in SHOWN.items()},
}


@pytest.mark.parametrize("how", STORIES)
def test_every_step_of_the_story_emits_this_and_nothing_else(how: str) -> None:
    join = Epochs(HashJoin(L, R, how))

    answers = join.feed_all((left_changes, right_changes) for _, left_changes, right_changes, _ in STORIES[how])

    assert dict(zip((step[0] for step in STORIES[how]), answers, strict=True)) == {step[0]: step[3] for step in STORIES[how]}


@pytest.mark.parametrize(
    ("how", "alone", "matched"),
    [
        ("left", [((*LEFT_ROW, *NO_RIGHT), +3)], [((*LEFT_ROW, *NO_RIGHT), -3), ((*LEFT_ROW, *R1), +6)]),
        ("left_semi", [], [(LEFT_ROW, +3)]),
        ("left_anti", [(LEFT_ROW, +3)], [(LEFT_ROW, -3)]),
    ],
)
def test_every_copy_of_a_row_is_emitted(how: str, alone: list[Change], matched: list[Change]) -> None:
    bags = [Relation(name=one.name, schema=one.schema, join_key=("k",), mode="changelog") for one in (L, R)]
    join = Epochs(HashJoin(*bags, how))

    assert join.feed(insert(LEFT_ROW, copies=3), []) == alone
    assert join.feed([], insert(R1, copies=2)) == matched


# ---------------------------------------------------------------- NULL keys: under `=` they never match, under `<=>` they are values


def nullable(name: str, mode: ChangelogMode = "upsert") -> Relation:
    """Return a relation with an id and a nullable join key."""
    keys = ("id",) if mode == "upsert" else ()
    schema = pa.schema({"id": pa.string(), "k": pa.string()})
    return Relation(name=name, schema=schema, join_key=("k",), primary_key=keys, mode=mode)


LEFT_NULL, RIGHT_NULL, NOTHING = ("l", None), ("r", None), (None, None)


@pytest.mark.parametrize(
    ("how", "null_safe", "left_alone", "right_comes"),
    [  # join type, whether NULL matches NULL, what a NULL row of either side emits when it meets the other
        ("inner", False, [], []),
        ("left", False, [((*LEFT_NULL, *NOTHING), +1)], []),
        ("full", False, [((*LEFT_NULL, *NOTHING), +1)], [((*NOTHING, *RIGHT_NULL), +1)]),
        ("left_semi", False, [], []),
        ("left_anti", False, [(LEFT_NULL, +1)], []),
        ("inner", True, [], [((*LEFT_NULL, *RIGHT_NULL), +1)]),
        ("left", True, [((*LEFT_NULL, *NOTHING), +1)], [((*LEFT_NULL, *NOTHING), -1), ((*LEFT_NULL, *RIGHT_NULL), +1)]),
        ("left_anti", True, [(LEFT_NULL, +1)], [(LEFT_NULL, -1)]),
    ],
)
def test_null_meets_null(how: str, null_safe: bool, left_alone: list[Change], right_comes: list[Change]) -> None:
    join = Epochs(HashJoin(nullable("left"), nullable("right"), how, null_safe=[null_safe]))

    assert join.feed(insert(LEFT_NULL), []) == left_alone
    assert join.feed([], insert(RIGHT_NULL)) == right_comes


@pytest.mark.parametrize(("how", "left_rows", "right_rows"), [("inner", 0, 0), ("left", 1, 0), ("right", 0, 1), ("full", 1, 1)])
def test_a_row_that_can_never_match_is_kept_only_where_it_is_shown(how: str, left_rows: int, right_rows: int) -> None:
    join = Epochs(HashJoin(nullable("left"), nullable("right"), how))

    join.feed(insert(LEFT_NULL), insert(RIGHT_NULL))

    counts = join.operator.statistics()  # type: ignore[attr-defined]
    assert (counts["left_rows"], counts["right_rows"]) == (left_rows, right_rows)
    assert (counts["left_keys"], counts["right_keys"]) == (0, 0)


def test_a_retraction_of_an_absent_null_row_is_checked_only_where_the_row_would_be_kept() -> None:
    bags = nullable("left", "changelog"), nullable("right", "changelog")

    assert Epochs(HashJoin(*bags, "inner")).feed(delete(LEFT_NULL), delete(RIGHT_NULL)) == []
    with pytest.raises(BadInputError, match="retracts an absent row"):
        Epochs(HashJoin(*bags, "left")).feed(delete(LEFT_NULL), [])


@pytest.mark.parametrize(
    ("null_safe", "key", "matches"),
    [
        ([False, False], (1, None), False),
        ([True, False], (None, 2), True),
        ([True, False], (1, None), False),
        ([True, True], (None, None), True),
    ],
)
def test_one_null_under_plain_equality_keeps_a_composite_key_from_matching(
    null_safe: list[bool], key: tuple[int | None, int | None], matches: bool
) -> None:
    schema = pa.schema({"a": pa.int64(), "b": pa.int64()})
    pairs = [Relation(name=name, schema=schema, join_key=("a", "b"), mode="changelog") for name in "lr"]

    answer = Epochs(HashJoin(*pairs, null_safe=null_safe)).feed(insert(key), insert(key))

    assert answer == [((*key, *key), +1)] * matches


# ---------------------------------------------------------------- conditions: the degree counts partners that pass all of ON

BIDS = keyed("bids", {"bid": pa.string(), "item": pa.int64(), "price": pa.int64()}, "item", "bid")
OFFERS = keyed("offers", {"offer": pa.string(), "item": pa.int64(), "price": pa.int64()}, "item", "offer")
DEAL = left("price") >= right("price")
NO_BID = NO_OFFER = (None, None, None)
BID, LOWER_BID = ("b", 7, 50), ("b", 7, 10)
LOW, LOWER, HIGH = ("a1", 7, 40), ("a1", 7, 30), ("a1", 7, 60)
DEALS: Story = [
    ("a bid is alone", insert(BID), [], [((*BID, *NO_OFFER), +1)]),
    ("an offer that is too high does not match", [], insert(HIGH), [((*NO_BID, *HIGH), +1)]),
    (
        "the offer comes down and matches",
        [],
        upsert(LOW),
        [((*BID, *NO_OFFER), -1), ((*NO_BID, *HIGH), -1), ((*BID, *LOW), +1)],
    ),
    ("it is replaced by another that matches", [], upsert(LOWER), [((*BID, *LOW), -1), ((*BID, *LOWER), +1)]),
    (
        "the bid goes down and loses its last match",
        upsert(LOWER_BID),
        [],
        [((*BID, *LOWER), -1), ((*LOWER_BID, *NO_OFFER), +1), ((*NO_BID, *LOWER), +1)],
    ),
]


def test_a_row_whose_partners_do_not_pass_the_condition_is_alone() -> None:
    join = Epochs(HashJoin(BIDS, OFFERS, "full", residual=DEAL))

    answers = join.feed_all((bids, offers) for _, bids, offers, _ in DEALS)

    assert answers == [sorted(lines, key=lambda line: (line[1] > 0, repr(line))) for *_, lines in DEALS]


@pytest.mark.parametrize("how", ["inner", "full", "left_anti"])
@pytest.mark.parametrize("condition", [lit(False), left("price") < lit(None), right("price").isNull()])
def test_a_condition_that_never_holds_leaves_every_row_alone(how: str, condition: Expression) -> None:
    alone: dict[str, dict[tuple[Any, ...], int]] = {
        "inner": {},
        "full": {(*BID, *NO_OFFER): 1, (*NO_BID, *LOW): 1},
        "left_anti": {BID: 1},
    }
    join = Epochs(HashJoin(BIDS, OFFERS, how, residual=condition))

    join.feed(insert(BID), insert(LOW))

    assert join.sum() == alone[how]


def test_columns_of_one_side_alone_may_be_tested() -> None:
    join = Epochs(HashJoin(BIDS, OFFERS, "left", residual=right("offer") == "a2"))

    assert join.feed(insert(BID), insert(LOW, ("a2", 7, 45))) == [((*BID, "a2", 7, 45), +1)]


def test_the_degree_counts_rows_and_not_copies() -> None:
    bags = [Relation(name=one.name, schema=one.schema, join_key=("item",), mode="changelog") for one in (BIDS, OFFERS)]
    join = Epochs(HashJoin(*bags, "left", residual=DEAL))
    join.feed(insert(BID), insert(LOW, copies=3))

    assert join.feed([], delete(LOW, copies=2)) == [((*BID, *LOW), -2)]
    assert join.feed([], delete(LOW)) == [((*BID, *LOW), -1), ((*BID, *NO_OFFER), +1)]


def test_a_condition_that_is_not_boolean_or_names_an_unknown_column_is_refused_when_the_join_is_built() -> None:
    with pytest.raises(PlanError):
        HashJoin(BIDS, OFFERS, residual=left("price") + right("price"))
    with pytest.raises(PlanError, match="has no column") as caught:
        HashJoin(BIDS, OFFERS, residual=left("prize") > right("price"))

    assert caught.value.code == "UNKNOWN_COLUMN"


def test_a_condition_that_fails_on_a_pair_fails_the_epoch_and_applies_nothing() -> None:
    join = Epochs(HashJoin(BIDS, OFFERS, "left", residual=left("price") % right("price") == 0))
    join.feed(insert(BID), insert(LOW))
    before = join.operator.snapshot()

    with pytest.raises(BadInputError):
        join.feed([], insert(("a3", 7, 0)))

    assert join.operator.snapshot() == before
    assert join.feed([], insert(("a3", 7, 5))) == [((*BID, *NO_OFFER), -1), ((*BID, "a3", 7, 5), +1)]


# ---------------------------------------------------------------- the operator protocol


@pytest.mark.parametrize("how", JOIN_TYPES)
def test_a_join_is_an_operator(how: str) -> None:
    join = HashJoin(A, B, how)

    assert isinstance(join, Operator)
    assert join.inputs == (A, B)
    assert (join.output.name, join.output.mode) == (f"a_{how}_b", "changelog")


def test_an_epoch_is_absorbed_once_and_gaps_are_allowed() -> None:
    join = Epochs(HashJoin(A, B))
    assert join.operator.absorbed_epoch == -1  # type: ignore[attr-defined]
    join.feed(insert(("x", 1)), [])

    with pytest.raises(StateError, match=r"epoch 0 was absorbed before \(the state is at 0\)") as caught:
        join.operator.absorb(Tick(0), join.deltas(insert(("x", 1)), []))
    join.operator.absorb(Tick(41), join.deltas())

    assert (caught.value.code, join.operator.absorbed_epoch) == ("EPOCH_ABSORBED", 41)  # type: ignore[attr-defined]


def test_an_answer_is_read_to_its_end_before_the_next_epoch() -> None:
    join = HashJoin(A, B, "left", options=OperatorOptions(chunk_rows=1))
    deltas = [delta_of(A, insert(("x", 1), ("y", 1))), ZSet.empty(B.schema)]
    answer = join.answer(Tick(0), deltas)
    next(answer)

    join.absorb(Tick(0), deltas)

    with pytest.raises(StateError, match="after its epoch had been absorbed") as caught:
        next(answer)
    assert caught.value.code == "ANSWER_OUTDATED"


def test_the_output_stays_valid_after_the_join_was_closed() -> None:
    join = HashJoin(A, B, "left")
    deltas = [delta_of(A, insert(("a string that is long enough for the heap", 1))), ZSet.empty(B.schema)]
    (chunk,) = join.answer(Tick(0), deltas)

    join.absorb(Tick(0), deltas)
    join.close()

    assert chunk.to_pylist() == [(("a string that is long enough for the heap", 1, None, None), 1)]


def test_a_delta_without_a_column_of_its_relation_or_with_another_type_is_refused() -> None:
    join = HashJoin(A, B)
    narrow = ZSet.of({"k": ["x", "y", "z"], "a": pa.array([1, 2, 3], pa.int32())})

    with pytest.raises(PlanError, match=r'"a".*int64.*int32'):
        list(join.answer(Tick(0), [narrow, ZSet.empty(B.schema)]))
    with pytest.raises(PlanError, match='"a"'):
        list(join.answer(Tick(0), [ZSet.of({"k": ["x"]}), ZSet.empty(B.schema)]))


def test_columns_in_another_order_are_found_by_name() -> None:
    join = HashJoin(A, B, "left")
    swapped = ZSet.of({"a": [1], "k": ["x"]})

    (answer,) = join.answer(Tick(0), [swapped, ZSet.empty(B.schema)])

    assert answer.to_pylist() == [(("x", 1, None, None), 1)]
