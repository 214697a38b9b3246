"""Every attempt of an epoch, from any state, emits the same rows in the same order."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.checkpoint.query_by_hand import QueryByHand, left_rows, right_rows
from zset_join.zset import ZSet

EPOCHS = 8
KEYS = 20


def history(seed: int) -> list[tuple[ZSet, ZSet]]:
    """Draw epochs of upserts, deletes and key moves on the left, and of a bag that grows and shrinks on the right."""
    rng = random.Random(seed)
    bag: list[tuple[int, float]] = []
    return [(_left(rng), _right(rng, bag)) for _ in range(EPOCHS)]


def _left(rng: random.Random) -> ZSet:
    ids = [rng.randrange(300) for _ in range(rng.randrange(1, 150))]
    rows = [
        (number, rng.choice([None, number % KEYS, rng.randrange(KEYS) // 2 * 2 + number % 2]), f"note {rng.randrange(4)}" * 3)
        for number in ids
    ]
    return left_rows(*rows, weights=[rng.choice([1, 1, 1, -1]) for _ in ids])


def _right(rng: random.Random, bag: list[tuple[int, float]]) -> ZSet:
    gone = [bag.pop(rng.randrange(len(bag))) for _ in range(rng.randrange(1 + len(bag) // 2))]
    new = [(rng.randrange(KEYS), float(rng.randrange(5))) for _ in range(rng.randrange(40))]
    bag += new
    return right_rows(*gone, *new, weights=[-1] * len(gone) + [1] * len(new))


def nothing(query: QueryByHand) -> None:
    """Request the same again."""


def lose_local_state(query: QueryByHand) -> None:
    shutil.rmtree(query.local)


def restart(query: QueryByHand) -> None:
    query.restart()


def restart_elsewhere(query: QueryByHand) -> None:
    query.local = query.local.with_name("another host")
    shutil.rmtree(query.local, ignore_errors=True)
    query.restart()


@pytest.fixture(params=[1 << 40, 4000], ids=["from the log", "from snapshots"])
def query(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[QueryByHand]:
    query = QueryByHand(str(tmp_path / "checkpoint"), tmp_path / "local", snapshot_after_bytes=request.param)
    yield query
    query.stop()


@pytest.mark.parametrize("meanwhile", [nothing, lose_local_state, restart, restart_elsewhere])
@pytest.mark.parametrize("seed", range(2))
def test_an_epoch_answered_again_gives_the_same_rows_in_the_same_order(
    query: QueryByHand, seed: int, meanwhile: Callable[[QueryByHand], None]
) -> None:
    first, second = [], []

    for left, right in history(seed):
        answer, record = query.answer(left, right)
        meanwhile(query)
        again, _ = query.answer(left, right)
        query.checkpoint.commit(record)
        first.append(answer)
        second.append(again)

    assert first == second
    assert sum(len(rows) for answer in first for rows in answer) > 300
