"""The pairs of a join are those of two dicts, however long a chain is, however many keys meet, and wherever a chunk ends.

The laws draw a dozen changes; here chains pass the blocks they are copied in, and keys the distance they are fetched ahead.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from tests.built import built
from tests.epochs import Change, Epochs, delete, insert, net
from tests.state.side_anatomy import SCHEMA
from zset_join.core.errors import WeightOverflowError
from zset_join.core.relation import Relation
from zset_join.kernels.rows.side import BLOCK_ROWS
from zset_join.operators.join import HashJoin

LEFT, RIGHT = (Relation(name=name, schema=SCHEMA, join_key=("k",), mode="changelog") for name in ("left", "right"))
NOTHING = (None, None, None)
Bag = Counter[tuple[Any, ...]]


def joined(how: str, left: Bag, right: Bag) -> dict[tuple[Any, ...], int]:
    """Return the batch join of two bags whose rows have their key at place 1."""
    keyed: dict[Any, list[tuple[Any, int]]] = {}
    for row, copies in right.items():
        keyed.setdefault(row[1], []).append((row, copies))
    met = {row[1] for row in left} & keyed.keys() - {None}
    if how in ("left_semi", "left_anti"):
        return {row: copies for row, copies in left.items() if (row[1] in met) is (how == "left_semi")}
    found = {row + other: copies * more for row, copies in left.items() if row[1] in met for other, more in keyed[row[1]]}
    if how == "full":
        found |= {row + NOTHING: copies for row, copies in left.items() if row[1] not in met}
        found |= {NOTHING + row: copies for row, copies in right.items() if row[1] not in met}
    return found


def rows(key: str | None, *ids: int) -> list[Change]:
    return insert(*((number, key, "x") for number in ids))


def long_chain(length: int) -> list[tuple[list[Change], list[Change]]]:
    """Return epochs that change both ends of a chain and what it meets."""
    chain = rows("a", *range(length))
    ends, middle = (delete(*(row for row, _ in some)) for some in ([chain[0], chain[-1]], chain[1:-1]))
    return [
        (chain, rows("b", -1)),
        (ends, rows("a", -7, -8, -9)),
        (rows("a", length), delete((-8, "a", "x"))),
        (middle, rows("b", -2)),
    ]


def many_keys(count: int) -> list[tuple[list[Change], list[Change]]]:
    """Return epochs in which so many keys meet, with copies, keys that never match, and rows that come and go."""
    random, keys = Random(count), [None, *(f"k{number}" for number in range(count))]
    left = [((number, key, "x"), random.choice((1, 2))) for number, key in enumerate(keys)]
    right = [((number, key, "y"), random.choice((1, 3))) for number, key in enumerate(keys)]
    some = random.sample(left, len(left) // 2)
    return [
        (left, []),
        ([], right),
        ([(row, -copies) for row, copies in some], [(row, -copies) for row, copies in right[::3]]),
        (some + rows("k0", 7, 8), [*right[::3], *rows("k0", 9), *delete((9, "k0", "x"))]),
    ]


STORIES = {
    **{f"a chain of {count}": long_chain(count) for count in (BLOCK_ROWS - 1, BLOCK_ROWS, BLOCK_ROWS + 1, 2 * BLOCK_ROWS + 7)},
    **{f"{count} keys": many_keys(count) for count in (1, 23, 24, 25, 26, 500)},
}


@pytest.mark.parametrize("how", ["inner", "full", "left_semi", "left_anti"])
@pytest.mark.parametrize("story", STORIES)
def test_the_changes_of_an_epoch_are_those_of_the_batch_join(story: str, how: str) -> None:
    random = Random(len(story))
    joins = [
        Epochs(built(HashJoin, LEFT, RIGHT, how, chunk_rows=chunk_rows, part_changes=part_changes))
        for chunk_rows, part_changes in ((65_536, 1 << 20), (random.randrange(5, 50), 10), (random.randrange(900, 1100), 64))
    ]
    left, right, before = Bag(), Bag(), dict[tuple[Any, ...], int]()
    for changes in STORIES[story]:
        for bag, side in zip((left, right), changes, strict=True):
            for row, copies in side:
                bag[row] += copies
        after = joined(how, +left, +right)
        expected = net([*after.items(), *((row, -copies) for row, copies in before.items())])
        answers = [join.feed(*changes) for join in joins]
        assert [net(answer) for answer in answers] == [expected] * 3
        assert [len(answer) for answer in answers] == [len(expected)] * 3
        before = after


@pytest.mark.parametrize(("one", "other"), [(32, 31), (4, 59), (59, 4)])
@pytest.mark.parametrize("known", [0, 1, 2], ids=["the chain and a change", "a change and the chain", "two changes"])
def test_a_product_of_2_to_the_63_is_refused_and_one_just_below_is_exact(known: int, one: int, other: int) -> None:
    def fed(less: int) -> tuple[Epochs, list[list[Change]]]:
        join = Epochs(HashJoin(LEFT, RIGHT))
        sides = [insert((1, "a", "x"), copies=2**one - less), insert((2, "a", "x"), copies=2**other)]
        join.feed(*(side if at == known else [] for at, side in enumerate(sides)))
        return join, [[] if at == known else side for at, side in enumerate(sides)]

    below, changes = fed(1)
    assert [weight for _, weight in below.feed(*changes)] == [2**63 - 2**other]
    beyond, changes = fed(0)
    with pytest.raises(WeightOverflowError, match="epoch 1"):
        beyond.feed(*changes)
