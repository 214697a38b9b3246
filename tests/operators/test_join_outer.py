"""Outer, semi and anti joins by example: what is emitted for one row alone, and when it is retracted.

The rule (docs: semantics, section 4). A row of the preserved side with weight w and degree d0 before and d1 after the epoch:
there before and after, it is padded when d0 > 0 = d1 and unpadded when d0 = 0 < d1; new, it is padded when d1 = 0; gone, it
is unpadded when d0 = 0. The degree counts live rows of the other side, never messages.
"""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.epochs import Change, Epochs, delete, insert, upsert
from zset_join.core.relation import Relation
from zset_join.operators.join import HashJoin

L = Relation(
    name="l",
    schema=pa.schema({"id": pa.string(), "k": pa.int64()}),
    join_key=("k",),
    primary_key=("id",),
    mode="upsert",
)
R = Relation(
    name="r",
    schema=pa.schema({"id": pa.string(), "k": pa.int64(), "v": pa.string()}),
    join_key=("k",),
    primary_key=("id",),
    mode="upsert",
)
NO_LEFT, NO_RIGHT = (None, None), (None, None, None)
LEFT_ROW = ("l", 7)
R1, R2, R3 = ("r1", 7, "one"), ("r2", 7, "two"), ("r3", 7, "three")
R2_NEW = ("r2", 7, "TWO")

Story = list[tuple[str, list[Change], list[Change], list[Change]]]

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

SEMI_STORY: Story = [
    ("without a match it is missing", insert(LEFT_ROW), [], []),
    ("the first match lets it in", [], insert(R1), [(LEFT_ROW, +1)]),
    ("the second match emits nothing", [], insert(R2), []),
    ("one match of two leaves", [], delete(R1), []),
    ("the last match is replaced", [], upsert(R2_NEW), []),
    ("the last match leaves", [], delete(R2_NEW), [(LEFT_ROW, -1)]),
    ("a match comes and goes within one epoch", [], insert(R3) + delete(R3), []),
    ("the left row leaves unseen", delete(LEFT_ROW), [], []),
]

ANTI_STORY: Story = [
    ("without a match it is there", insert(LEFT_ROW), [], [(LEFT_ROW, +1)]),
    ("the first match takes it out", [], insert(R1), [(LEFT_ROW, -1)]),
    ("the second match emits nothing", [], insert(R2), []),
    ("one match of two leaves", [], delete(R1), []),
    ("the last match is replaced", [], upsert(R2_NEW), []),
    ("the last match leaves", [], delete(R2_NEW), [(LEFT_ROW, +1)]),
    ("a match comes and goes within one epoch", [], insert(R3) + delete(R3), []),
    ("the left row leaves", delete(LEFT_ROW), [], [(LEFT_ROW, -1)]),
]

FULL_STORY: Story = [
    ("a left row alone is padded", insert(LEFT_ROW), [], [((*LEFT_ROW, *NO_RIGHT), +1)]),
    (
        "a right row of another key is padded too",
        [],
        insert(("r9", 9, "nine")),
        [((*NO_LEFT, "r9", 9, "nine"), +1)],
    ),
    ("a match unpads the left row", [], insert(R1), [((*LEFT_ROW, *NO_RIGHT), -1), ((*LEFT_ROW, *R1), +1)]),
    (
        "the left row moves to the other key",
        upsert(("l", 9)),
        [],
        [
            ((*LEFT_ROW, *R1), -1),
            ((*NO_LEFT, "r9", 9, "nine"), -1),
            (("l", 9, "r9", 9, "nine"), +1),
            ((*NO_LEFT, *R1), +1),
        ],
    ),
    (
        "both rows of a pair leave together, nothing is padded",
        delete(("l", 9)),
        delete(("r9", 9, None)),
        [(("l", 9, "r9", 9, "nine"), -1)],
    ),
    (
        "a match comes for the row that is left",
        insert(LEFT_ROW),
        [],
        [((*NO_LEFT, *R1), -1), ((*LEFT_ROW, *R1), +1)],
    ),
    (
        "a left row leaves while a right one comes",
        delete(LEFT_ROW),
        insert(R2),
        [((*LEFT_ROW, *R1), -1), ((*NO_LEFT, *R1), +1), ((*NO_LEFT, *R2), +1)],
    ),
]

STORIES = {"left": LEFT_STORY, "left_semi": SEMI_STORY, "left_anti": ANTI_STORY, "full": FULL_STORY}
STEPS = [pytest.param(how, step, id=f"{how}: {story[step][0]}") for how, story in STORIES.items() for step in range(len(story))]


def mirrored(line: Change) -> Change:
    """Return a line of L LEFT JOIN R as R RIGHT JOIN L shows it."""
    row, weight = line
    return (*row[2:], *row[:2]), weight


@pytest.mark.parametrize(("how", "step"), STEPS)
def test_every_step_of_the_story_emits_this_and_nothing_else(how: str, step: int) -> None:
    _, left, right, expected = STORIES[how][step]
    join = Epochs(HashJoin(L, R, how))
    join.feed_all((before[1], before[2]) for before in STORIES[how][:step])

    assert join.feed(left, right) == expected


@pytest.mark.parametrize("step", range(len(LEFT_STORY)), ids=[text for text, *_ in LEFT_STORY])
def test_a_right_join_is_the_left_join_of_the_swapped_sides(step: int) -> None:
    _, left, right, expected = LEFT_STORY[step]
    join = Epochs(HashJoin(R, L, "right"))
    join.feed_all((before[2], before[1]) for before in LEFT_STORY[:step])

    assert sorted(join.feed(right, left), key=repr) == sorted(map(mirrored, expected), key=repr)


@pytest.mark.parametrize("how", STORIES)
def test_the_whole_story_in_one_epoch_emits_only_what_is_left_of_it(how: str) -> None:
    split, whole = Epochs(HashJoin(L, R, how)), Epochs(HashJoin(L, R, how))
    story = STORIES[how]

    split.feed_all((left, right) for _, left, right, _ in story)
    whole.feed([change for _, left, _, _ in story for change in left], [change for _, _, right, _ in story for change in right])

    assert whole.sum() == split.sum()


def test_a_replaced_match_is_not_counted_twice() -> None:
    # The trap of the row "upsert r2 -> r2'": an engine that counts messages has degree 2 here and never pads again.
    join = Epochs(HashJoin(L, R, "left"))
    join.feed(insert(LEFT_ROW), insert(R2))
    join.feed([], upsert(R2_NEW))
    join.feed([], upsert(R2))

    assert join.feed([], delete(R2)) == [((*LEFT_ROW, *R2), -1), ((*LEFT_ROW, *NO_RIGHT), +1)]


def test_a_match_that_moves_from_one_left_row_to_another_pads_the_first() -> None:
    join = Epochs(HashJoin(L, R, "left"))
    join.feed(insert(("l7", 7), ("l8", 8)), insert(R1))

    answer = join.feed([], upsert(("r1", 8, "one")))

    assert answer == [
        (("l7", 7, "r1", 7, "one"), -1),
        (("l8", 8, None, None, None), -1),
        (("l7", 7, None, None, None), +1),
        (("l8", 8, "r1", 8, "one"), +1),
    ]


def test_one_match_is_exchanged_for_another_without_padding_between() -> None:
    join = Epochs(HashJoin(L, R, "left"))
    join.feed(insert(LEFT_ROW), insert(R1))

    answer = join.feed([], delete(R1) + insert(R2))

    assert answer == [((*LEFT_ROW, *R1), -1), ((*LEFT_ROW, *R2), +1)]


def test_an_updated_left_row_keeps_its_padding() -> None:
    wide = Relation(
        name="l",
        schema=pa.schema({"id": pa.string(), "k": pa.int64(), "v": pa.string()}),
        join_key=("k",),
        primary_key=("id",),
        mode="upsert",
    )
    join = Epochs(HashJoin(wide, R, "left"))
    join.feed(insert(("l", 7, "old")), [])

    answer = join.feed(upsert(("l", 7, "new")), [])

    assert answer == [(("l", 7, "old", *NO_RIGHT), -1), (("l", 7, "new", *NO_RIGHT), +1)]


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("left_semi", [(("l", 7), -1), (("l", 8), +1)]),
        ("left_anti", []),
        ("left", [(("l", 7, "r1", 7, "x"), -1), (("l", 8, "r2", 8, "x"), +1)]),
    ],
)
def test_a_row_that_moves_between_two_matched_keys(how: str, expected: list[Change]) -> None:
    join = Epochs(HashJoin(L, R, how))
    join.feed(insert(LEFT_ROW), insert(("r1", 7, "x"), ("r2", 8, "x")))

    assert join.feed(upsert(("l", 8)), []) == expected


# ---------------------------------------------------------------- bags: the weight of a row is its number of copies

BAG_L = Relation(name="l", schema=L.schema, join_key=("k",), mode="changelog")
BAG_R = Relation(name="r", schema=R.schema, join_key=("k",), mode="changelog")


@pytest.mark.parametrize(
    ("how", "alone", "matched"),
    [
        ("left", [((*LEFT_ROW, *NO_RIGHT), +3)], [((*LEFT_ROW, *NO_RIGHT), -3), ((*LEFT_ROW, *R1), +6)]),
        ("left_semi", [], [(LEFT_ROW, +3)]),
        ("left_anti", [(LEFT_ROW, +3)], [(LEFT_ROW, -3)]),
    ],
)
def test_every_copy_of_a_row_is_emitted(how: str, alone: list[Change], matched: list[Change]) -> None:
    join = Epochs(HashJoin(BAG_L, BAG_R, how))

    assert join.feed(insert(LEFT_ROW, copies=3), []) == alone
    assert join.feed([], insert(R1, copies=2)) == matched


def test_a_second_copy_of_a_match_does_not_make_a_semi_join_emit_it_twice() -> None:
    join = Epochs(HashJoin(BAG_L, BAG_R, "left_semi"))
    join.feed(insert(LEFT_ROW), insert(R1))

    assert join.feed([], insert(R1)) == []
    assert join.feed([], delete(R1)) == []
    assert join.feed([], delete(R1)) == [(LEFT_ROW, -1)]


def test_copies_come_and_go_while_the_match_does_too() -> None:
    join = Epochs(HashJoin(BAG_L, BAG_R, "left"))
    join.feed(insert(LEFT_ROW, copies=3), insert(R1))

    answer = join.feed(delete(LEFT_ROW, copies=2), delete(R1))

    assert answer == [((*LEFT_ROW, *R1), -3), ((*LEFT_ROW, *NO_RIGHT), +1)]


def test_append_only_sides_pad_and_unpad_as_well() -> None:
    left = Relation(name="l", schema=L.schema, join_key=("k",))
    right = Relation(name="r", schema=R.schema, join_key=("k",))
    join = Epochs(HashJoin(left, right, "full"))

    assert join.feed(insert(LEFT_ROW, LEFT_ROW), []) == [((*LEFT_ROW, *NO_RIGHT), +1)] * 2
    assert join.feed([], insert(R1)) == [((*LEFT_ROW, *NO_RIGHT), -1)] * 2 + [((*LEFT_ROW, *R1), +1)] * 2
