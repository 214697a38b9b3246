"""NULL in a join key: under `=` it never matches, under `<=>` it is a value like any other."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.epochs import Change, Epochs, delete, insert, upsert
from zset_join.core.errors import BadInputError
from zset_join.core.relation import ChangelogMode, Relation
from zset_join.operators.join import HashJoin


def side(name: str, mode: ChangelogMode = "upsert") -> Relation:
    """Return a relation with an id and a nullable join key."""
    return Relation(
        name=name,
        schema=pa.schema({"id": pa.string(), "k": pa.string()}),
        join_key=("k",),
        primary_key=("id",) if mode == "upsert" else (),
        mode=mode,
    )


LEFT_NULL, RIGHT_NULL = ("l", None), ("r", None)
NOTHING = (None, None)

# Join type, whether NULL matches NULL, what a NULL row of either side emits when it meets the other.
RIGHT_COMES_TO_LEFT = [
    ("inner", False, [], []),
    ("left", False, [((*LEFT_NULL, *NOTHING), +1)], []),
    ("right", False, [], [((*NOTHING, *RIGHT_NULL), +1)]),
    ("full", False, [((*LEFT_NULL, *NOTHING), +1)], [((*NOTHING, *RIGHT_NULL), +1)]),
    ("left_semi", False, [], []),
    ("left_anti", False, [(LEFT_NULL, +1)], []),
    ("inner", True, [], [((*LEFT_NULL, *RIGHT_NULL), +1)]),
    ("left", True, [((*LEFT_NULL, *NOTHING), +1)], [((*LEFT_NULL, *NOTHING), -1), ((*LEFT_NULL, *RIGHT_NULL), +1)]),
    ("right", True, [], [((*LEFT_NULL, *RIGHT_NULL), +1)]),
    ("full", True, [((*LEFT_NULL, *NOTHING), +1)], [((*LEFT_NULL, *NOTHING), -1), ((*LEFT_NULL, *RIGHT_NULL), +1)]),
    ("left_semi", True, [], [(LEFT_NULL, +1)]),
    ("left_anti", True, [(LEFT_NULL, +1)], [(LEFT_NULL, -1)]),
]
TABLE = [
    pytest.param(*line, mode, id=f"{line[0]} {'<=>' if line[1] else '='} {mode}")
    for line in RIGHT_COMES_TO_LEFT
    for mode in ("append", "upsert", "changelog")
]


@pytest.mark.parametrize(("how", "null_safe", "left_alone", "right_comes", "mode"), TABLE)
def test_null_meets_null(
    how: str, null_safe: bool, left_alone: list[Change], right_comes: list[Change], mode: ChangelogMode
) -> None:
    join = Epochs(HashJoin(side("left", mode), side("right", mode), how, null_safe=[null_safe]))

    assert join.feed(insert(LEFT_NULL), []) == left_alone
    assert join.feed([], insert(RIGHT_NULL)) == right_comes


@pytest.mark.parametrize("how", ["left", "full", "left_anti"])
def test_a_preserved_null_row_is_retracted_when_it_leaves(how: str) -> None:
    join = Epochs(HashJoin(side("left"), side("right"), how))
    (came,) = join.feed(insert(LEFT_NULL), [])

    assert join.feed(delete(("l", None)), []) == [(came[0], -1)]


def test_a_null_key_that_gets_a_value_finds_its_match() -> None:
    join = Epochs(HashJoin(side("left"), side("right"), "left"))
    join.feed(insert(LEFT_NULL), insert(("r", "x")))

    answer = join.feed(upsert(("l", "x")), [])

    assert answer == [(("l", None, None, None), -1), (("l", "x", "r", "x"), +1)]


def test_a_key_that_becomes_null_leaves_its_match() -> None:
    join = Epochs(HashJoin(side("left"), side("right"), "left"))
    join.feed(insert(("l", "x")), insert(("r", "x")))

    answer = join.feed(upsert(LEFT_NULL), [])

    assert answer == [(("l", "x", "r", "x"), -1), (("l", None, None, None), +1)]


@pytest.mark.parametrize("how", ["inner", "left", "left_semi", "left_anti"])
def test_a_row_of_the_other_side_that_becomes_null_is_gone(how: str) -> None:
    join = Epochs(HashJoin(side("left"), side("right"), how))
    join.feed(insert(("l", "x")), insert(("r", "x")))
    gone = Epochs(HashJoin(side("left"), side("right"), how))
    gone.feed(insert(("l", "x")), insert(("r", "x")))

    assert join.feed([], upsert(RIGHT_NULL)) == gone.feed([], delete(("r", None)))


@pytest.mark.parametrize(("how", "left_rows", "right_rows"), [("inner", 0, 0), ("left", 1, 0), ("right", 0, 1), ("full", 1, 1)])
def test_a_row_that_can_never_match_is_kept_only_where_it_is_shown(how: str, left_rows: int, right_rows: int) -> None:
    join = Epochs(HashJoin(side("left"), side("right"), how))

    join.feed(insert(LEFT_NULL), insert(RIGHT_NULL))

    counts = join.operator.statistics()  # type: ignore[attr-defined]
    assert (counts["left_rows"], counts["right_rows"]) == (left_rows, right_rows)
    assert (counts["left_keys"], counts["right_keys"]) == (0, 0)


def test_a_retraction_of_a_row_that_was_not_kept_is_not_checked() -> None:
    join = Epochs(HashJoin(side("left", "changelog"), side("right", "changelog"), "inner"))

    assert join.feed(delete(LEFT_NULL), delete(RIGHT_NULL)) == []


def test_where_it_is_shown_the_retraction_of_an_absent_null_row_is_bad_input() -> None:
    join = Epochs(HashJoin(side("left", "changelog"), side("right", "changelog"), "left"))

    with pytest.raises(BadInputError, match="retracts an absent row"):
        join.feed(delete(LEFT_NULL), [])


# ---------------------------------------------------------------- composite keys

PAIR_L = Relation(name="l", schema=pa.schema({"a": pa.int64(), "b": pa.int64()}), join_key=("a", "b"), mode="changelog")
PAIR_R = Relation(name="r", schema=pa.schema({"c": pa.int64(), "d": pa.int64()}), join_key=("c", "d"), mode="changelog")


@pytest.mark.parametrize(
    ("null_safe", "key", "matches"),
    [
        ([False, False], (1, 2), True),
        ([False, False], (None, 2), False),
        ([False, False], (1, None), False),
        ([True, False], (None, 2), True),
        ([True, False], (1, None), False),
        ([False, True], (1, None), True),
        ([False, True], (None, 2), False),
        ([True, True], (None, None), True),
    ],
)
def test_one_null_under_plain_equality_keeps_a_composite_key_from_matching(
    null_safe: list[bool], key: tuple[int | None, int | None], matches: bool
) -> None:
    join = Epochs(HashJoin(PAIR_L, PAIR_R, null_safe=null_safe))

    answer = join.feed(insert(key), insert(key))

    assert answer == [((*key, *key), +1)] * matches


def test_null_under_null_safe_equality_does_not_match_zero_or_another_column() -> None:
    join = Epochs(HashJoin(PAIR_L, PAIR_R, null_safe=[True, True]))

    assert join.feed(insert((None, 0), (0, None), (None, None)), insert((0, 0))) == []
    assert join.feed([], insert((0, None))) == [((0, None, 0, None), +1)]


def test_null_rows_do_not_pile_up_under_one_key() -> None:
    rows = [(f"l{number}", None) for number in range(5_000)]
    join = Epochs(HashJoin(side("left"), side("right"), "left"))

    answer = join.feed(insert(*rows), [])

    assert len(answer) == 5_000
    assert join.feed(delete(*rows[:4_999]), [])[-1][1] == -1
    assert join.sum() == {("l4999", None, None, None): 1}
