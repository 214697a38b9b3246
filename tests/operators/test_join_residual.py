"""Conditions beyond equal keys: the degree of a row counts the partners that pass the whole ON condition."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tests.epochs import Change, Epochs, delete, insert, upsert
from zset_join.core.errors import BadInputError, PlanError
from zset_join.core.relation import ChangelogMode, Relation
from zset_join.expressions import Expression, left, lit, right
from zset_join.operators.join import JOIN_TYPES, HashJoin

BIDS = Relation(
    name="bids",
    schema=pa.schema({"bid": pa.string(), "item": pa.int64(), "price": pa.int64()}),
    join_key=("item",),
    primary_key=("bid",),
    mode="upsert",
)
OFFERS = Relation(
    name="offers",
    schema=pa.schema({"offer": pa.string(), "item": pa.int64(), "price": pa.int64()}),
    join_key=("item",),
    primary_key=("offer",),
    mode="upsert",
)
DEAL = left("price") >= right("price")
NO_BID = NO_OFFER = (None, None, None)
BID = ("b", 7, 50)
LOW, LOWER, HIGH = ("a1", 7, 40), ("a1", 7, 30), ("a1", 7, 60)
OTHER_LOW = ("a2", 7, 45)

Story = list[tuple[str, list[Change], list[Change], dict[str, list[Change]]]]

# What happens, the bids, the offers, and what each type of join emits for it.
STORY: Story = [
    (
        "a bid is alone",
        insert(BID),
        [],
        {
            "inner": [],
            "left": [((*BID, *NO_OFFER), +1)],
            "right": [],
            "full": [((*BID, *NO_OFFER), +1)],
            "left_semi": [],
            "left_anti": [(BID, +1)],
        },
    ),
    (
        "an offer of the same item that is too high does not match",
        [],
        insert(HIGH),
        {
            "inner": [],
            "left": [],
            "right": [((*NO_BID, *HIGH), +1)],
            "full": [((*NO_BID, *HIGH), +1)],
            "left_semi": [],
            "left_anti": [],
        },
    ),
    (
        "the offer comes down and matches",
        [],
        upsert(LOW),
        {
            "inner": [((*BID, *LOW), +1)],
            "left": [((*BID, *NO_OFFER), -1), ((*BID, *LOW), +1)],
            "right": [((*NO_BID, *HIGH), -1), ((*BID, *LOW), +1)],
            "full": [((*BID, *NO_OFFER), -1), ((*NO_BID, *HIGH), -1), ((*BID, *LOW), +1)],
            "left_semi": [(BID, +1)],
            "left_anti": [(BID, -1)],
        },
    ),
    (
        "the matching offer is replaced by another that matches: the degree stays 1",
        [],
        upsert(LOWER),
        {
            "inner": [((*BID, *LOW), -1), ((*BID, *LOWER), +1)],
            "left": [((*BID, *LOW), -1), ((*BID, *LOWER), +1)],
            "right": [((*BID, *LOW), -1), ((*BID, *LOWER), +1)],
            "full": [((*BID, *LOW), -1), ((*BID, *LOWER), +1)],
            "left_semi": [],
            "left_anti": [],
        },
    ),
    (
        "a second offer matches",
        [],
        insert(OTHER_LOW),
        {
            "inner": [((*BID, *OTHER_LOW), +1)],
            "left": [((*BID, *OTHER_LOW), +1)],
            "right": [((*BID, *OTHER_LOW), +1)],
            "full": [((*BID, *OTHER_LOW), +1)],
            "left_semi": [],
            "left_anti": [],
        },
    ),
    (
        "the first offer goes up and matches no more",
        [],
        upsert(HIGH),
        {
            "inner": [((*BID, *LOWER), -1)],
            "left": [((*BID, *LOWER), -1)],
            "right": [((*BID, *LOWER), -1), ((*NO_BID, *HIGH), +1)],
            "full": [((*BID, *LOWER), -1), ((*NO_BID, *HIGH), +1)],
            "left_semi": [],
            "left_anti": [],
        },
    ),
    (
        "the bid goes down and loses its last match",
        upsert(("b", 7, 10)),
        [],
        {
            "inner": [((*BID, *OTHER_LOW), -1)],
            "left": [((*BID, *OTHER_LOW), -1), (("b", 7, 10, *NO_OFFER), +1)],
            "right": [((*BID, *OTHER_LOW), -1), ((*NO_BID, *OTHER_LOW), +1)],
            "full": [((*BID, *OTHER_LOW), -1), (("b", 7, 10, *NO_OFFER), +1), ((*NO_BID, *OTHER_LOW), +1)],
            "left_semi": [(BID, -1)],
            "left_anti": [(("b", 7, 10), +1)],
        },
    ),
    (
        "the bid goes up past both",
        upsert(("b", 7, 99)),
        [],
        {
            "inner": [(("b", 7, 99, *HIGH), +1), (("b", 7, 99, *OTHER_LOW), +1)],
            "left": [(("b", 7, 10, *NO_OFFER), -1), (("b", 7, 99, *HIGH), +1), (("b", 7, 99, *OTHER_LOW), +1)],
            "right": [
                ((*NO_BID, *HIGH), -1),
                ((*NO_BID, *OTHER_LOW), -1),
                (("b", 7, 99, *HIGH), +1),
                (("b", 7, 99, *OTHER_LOW), +1),
            ],
            "full": [
                (("b", 7, 10, *NO_OFFER), -1),
                ((*NO_BID, *HIGH), -1),
                ((*NO_BID, *OTHER_LOW), -1),
                (("b", 7, 99, *HIGH), +1),
                (("b", 7, 99, *OTHER_LOW), +1),
            ],
            "left_semi": [(("b", 7, 99), +1)],
            "left_anti": [(("b", 7, 10), -1)],
        },
    ),
    (
        "everything leaves at once",
        delete(("b", None, None)),
        delete(("a1", None, None), ("a2", None, None)),
        {
            "inner": [(("b", 7, 99, *HIGH), -1), (("b", 7, 99, *OTHER_LOW), -1)],
            "left": [(("b", 7, 99, *HIGH), -1), (("b", 7, 99, *OTHER_LOW), -1)],
            "right": [(("b", 7, 99, *HIGH), -1), (("b", 7, 99, *OTHER_LOW), -1)],
            "full": [(("b", 7, 99, *HIGH), -1), (("b", 7, 99, *OTHER_LOW), -1)],
            "left_semi": [(("b", 7, 99), -1)],
            "left_anti": [],
        },
    ),
]
STEPS = [pytest.param(how, step, id=f"{how}: {STORY[step][0]}") for how in JOIN_TYPES for step in range(len(STORY))]


def by_sign(lines: list[Change]) -> list[Change]:
    """Return lines in the order `Epochs.feed` gives them."""
    return sorted(lines, key=lambda line: (line[1] > 0, repr(line)))


@pytest.mark.parametrize(("how", "step"), STEPS)
def test_every_step_of_the_story_emits_this_and_nothing_else(how: str, step: int) -> None:
    _, bids, offers, expected = STORY[step]
    join = Epochs(HashJoin(BIDS, OFFERS, how, residual=DEAL))
    join.feed_all((before[1], before[2]) for before in STORY[:step])

    assert join.feed(bids, offers) == by_sign(expected[how])


@pytest.mark.parametrize("how", JOIN_TYPES)
def test_a_restored_join_goes_on_with_the_same_degrees(how: str) -> None:
    reported, restored = (
        Epochs(HashJoin(BIDS, OFFERS, how, residual=DEAL)),
        Epochs(HashJoin(BIDS, OFFERS, how, residual=DEAL), first_epoch=5),
    )
    reported.feed_all((bids, offers) for _, bids, offers, _ in STORY[:5])

    restored.operator.restore(reported.operator.snapshot())

    rest = [(bids, offers) for _, bids, offers, _ in STORY[5:]]
    assert restored.feed_all(rest) == reported.feed_all(rest)


@pytest.mark.parametrize("how", JOIN_TYPES)
def test_a_condition_that_always_holds_changes_nothing(how: str) -> None:
    plain = Epochs(HashJoin(BIDS, OFFERS, how))
    conditioned = Epochs(HashJoin(BIDS, OFFERS, how, residual=lit(True)))
    story = [(bids, offers) for _, bids, offers, _ in STORY]

    assert conditioned.feed_all(story) == plain.feed_all(story)


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("inner", {}),
        ("left", {(*BID, *NO_OFFER): 1}),
        ("right", {(*NO_BID, *LOW): 1}),
        ("full", {(*BID, *NO_OFFER): 1, (*NO_BID, *LOW): 1}),
        ("left_semi", {}),
        ("left_anti", {BID: 1}),
    ],
)
@pytest.mark.parametrize("condition", [lit(False), left("price") < lit(None), right("price").isNull()])
def test_a_condition_that_never_holds_leaves_every_row_alone(
    how: str, expected: dict[tuple[Any, ...], int], condition: Expression
) -> None:
    join = Epochs(HashJoin(BIDS, OFFERS, how, residual=condition))
    join.feed(insert(BID), insert(LOW))

    assert join.sum() == expected


def test_null_in_the_condition_does_not_pass() -> None:
    join = Epochs(HashJoin(BIDS, OFFERS, "left", residual=DEAL))

    assert join.feed(insert(BID), insert(("a1", 7, None))) == [((*BID, *NO_OFFER), +1)]


def test_columns_of_one_side_alone_may_be_tested() -> None:
    join = Epochs(HashJoin(BIDS, OFFERS, "left", residual=right("offer") == "a2"))

    answer = join.feed(insert(BID), insert(LOW, OTHER_LOW))

    assert answer == [((*BID, *OTHER_LOW), +1)]


# ---------------------------------------------------------------- bags


@pytest.mark.parametrize("mode", ["changelog", "append"])
@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("inner", {(*BID, *LOW): 6}),
        ("left", {(*BID, *LOW): 6}),
        ("full", {(*BID, *LOW): 6, (*NO_BID, *HIGH): 1}),
        ("left_semi", {BID: 2}),
        ("left_anti", {}),
    ],
)
def test_copies_multiply_and_a_row_is_matched_or_not_with_all_its_copies(
    how: str, expected: dict[tuple[Any, ...], int], mode: ChangelogMode
) -> None:
    bids = Relation(name="bids", schema=BIDS.schema, join_key=("item",), mode=mode)
    offers = Relation(name="offers", schema=OFFERS.schema, join_key=("item",), mode=mode)
    join = Epochs(HashJoin(bids, offers, how, residual=DEAL))

    join.feed(insert(BID, BID), insert(LOW, HIGH))
    join.feed([], insert(LOW, copies=2))

    assert join.sum() == expected


def test_the_degree_counts_rows_and_not_copies() -> None:
    bids = Relation(name="bids", schema=BIDS.schema, join_key=("item",), mode="changelog")
    offers = Relation(name="offers", schema=OFFERS.schema, join_key=("item",), mode="changelog")
    join = Epochs(HashJoin(bids, offers, "left", residual=DEAL))
    join.feed(insert(BID), insert(LOW, copies=3))

    assert join.feed([], delete(LOW, copies=2)) == [((*BID, *LOW), -2)]
    assert join.feed([], delete(LOW)) == [((*BID, *LOW), -1), ((*BID, *NO_OFFER), +1)]


# ---------------------------------------------------------------- null keys, moving keys, bad conditions


def test_the_residual_is_not_evaluated_on_a_row_whose_key_cannot_match() -> None:
    join = Epochs(HashJoin(BIDS, OFFERS, "full", residual=lit(True)))

    assert join.feed(insert(("b", None, 1)), insert(("a", None, 1))) == [
        (("b", None, 1, *NO_OFFER), +1),
        ((*NO_BID, "a", None, 1), +1),
    ]


def test_a_row_that_moves_to_another_key_is_counted_again_there() -> None:
    join = Epochs(HashJoin(BIDS, OFFERS, "left", residual=DEAL))
    join.feed(insert(BID), insert(LOW, ("a8", 8, 40), ("a9", 9, 99)))

    assert join.feed(upsert(("b", 8, 50)), []) == [((*BID, *LOW), -1), (("b", 8, 50, "a8", 8, 40), +1)]
    assert join.feed(upsert(("b", 9, 50)), []) == [
        (("b", 8, 50, "a8", 8, 40), -1),
        (("b", 9, 50, *NO_OFFER), +1),
    ]
    assert join.feed([], upsert(("a9", 9, 1))) == [(("b", 9, 50, *NO_OFFER), -1), (("b", 9, 50, "a9", 9, 1), +1)]


def test_a_condition_that_is_not_boolean_is_refused_when_the_join_is_built() -> None:
    with pytest.raises(PlanError):
        HashJoin(BIDS, OFFERS, residual=left("price") + right("price"))


def test_a_condition_on_an_unknown_column_is_refused_when_the_join_is_built() -> None:
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
