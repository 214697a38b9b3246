"""A worker keeps its operators open between epochs, and the answers are the same."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from tests.checkpoint.query_by_hand import (
    AnswerBuckets,
    Answered,
    QueryByHand,
    answer_buckets,
    left_rows,
    right_rows,
)
from zset_join.checkpoint.bucket import (
    MOST_BYTES,
    MOST_FILES,
    MOST_OPERATORS,
    MOST_WORKING_BYTES,
    KeptOperator,
    LoggedDeltas,
    OpenOperators,
    StageContext,
    close_kept_operators,
)
from zset_join.core.epochs import Tick
from zset_join.zset import ZSet


class Stub:
    """An operator with planned answers."""

    def __init__(self, *, current: bool = True, working_bytes: int = 0) -> None:
        self.current = current
        self.bytes = working_bytes
        self.closed = 0

    def is_current(self) -> bool:
        return self.current

    def working_bytes(self) -> int:
        return self.bytes

    def close(self) -> None:
        self.closed += 1


def keep(kept: OpenOperators[Stub], operator: Stub, directory: str = "/a", driver: int = 1, files: int = 0) -> None:
    kept.keep(directory, driver, KeptOperator(operator, None, files))


def test_what_was_kept_is_taken_once() -> None:
    kept, operator = OpenOperators[Stub](), Stub()
    keep(kept, operator)

    taken = [kept.take("/a", 1), kept.take("/a", 1)]

    assert taken == [KeptOperator(operator, None, 0), None]
    assert operator.closed == 0


def test_an_operator_whose_files_are_others_now_is_closed_instead() -> None:
    kept, operator = OpenOperators[Stub](), Stub(current=False)
    keep(kept, operator)

    assert kept.take("/a", 1) is None
    assert operator.closed == 1


def test_another_driver_does_not_get_it() -> None:
    kept = OpenOperators[Stub]()
    keep(kept, Stub(), driver=1)

    assert kept.take("/a", 2) is None


@pytest.mark.parametrize(
    ("most", "files", "working"),
    [
        (MOST_OPERATORS, 0, 0),
        (MOST_FILES // 10, 10, 0),
        (MOST_BYTES // MOST_WORKING_BYTES, 0, MOST_WORKING_BYTES),
        (1, MOST_FILES + 1, 0),
    ],
    ids=["operators", "files", "bytes", "the newest stays"],
)
def test_the_one_that_was_not_used_for_longest_goes_first(most: int, files: int, working: int) -> None:
    kept = OpenOperators[Stub]()
    operators = [Stub(working_bytes=working) for _ in range(most + 1)]
    for number, operator in enumerate(operators):
        keep(kept, operator, f"/{number}", files=files)

    assert [operator.closed for operator in operators] == [1] + [0] * most


def test_one_with_large_working_arrays_is_not_kept() -> None:
    kept, operator = OpenOperators[Stub](), Stub(working_bytes=MOST_WORKING_BYTES + 1)

    keep(kept, operator)

    assert (operator.closed, kept.take("/a", 1)) == (1, None)


def test_of_two_for_one_place_the_later_stays() -> None:
    kept, first, second = OpenOperators[Stub](), Stub(), Stub()
    keep(kept, first)

    keep(kept, second)

    assert (first.closed, second.closed) == (1, 0)


def test_clearing_closes_all() -> None:
    kept, operators = OpenOperators[Stub](), [Stub(), Stub()]
    keep(kept, operators[0], "/a")
    keep(kept, operators[1], "/b")

    kept.clear()

    assert [operator.closed for operator in operators] == [1, 1]


def test_large_deltas_are_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zset_join.checkpoint.bucket.MOST_DELTA_BYTES", 100)
    small, large = left_rows((1, 1, "x")), left_rows(*[(number, 1, "x" * 50) for number in range(50)])

    assert LoggedDeltas.small_enough("a", Tick(0), [small]) is not None
    assert LoggedDeltas.small_enough("a", Tick(0), [large]) is None


EPOCHS = [
    (left_rows((1, 1, "a"), (2, 2, "b"), (3, 1, "c")), right_rows((1, 1.0), (2, 2.0))),
    (left_rows((1, 1, "new"), (4, 2, "d")), right_rows((1, 9.0))),
    (left_rows(*[(number, number % 7, "many") for number in range(100, 6_000, 2)]), right_rows((3, 3.0))),
    (left_rows((2, None, ""), (104, 1, ""), weights=[-1, -1]), right_rows((2, 2.0), weights=[-1])),
    (left_rows((1, 3, "moved")), right_rows((5, 5.0), (1, 1.5))),
]


@pytest.fixture(scope="module")
def another_worker() -> Iterator[AnswerBuckets]:
    """Give the way to answer in another worker, which begins without open operators.

    Its process is a clean one: a child forked from this one, whose threads may be in Arrow, DuckDB or the compiler, may crash.
    """
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:

        def answer(context: StageContext, left: ZSet, right: ZSet) -> Answered:
            process.submit(close_kept_operators).result()
            return process.submit(answer_buckets, context, left, right).result()

        yield answer


@pytest.mark.parametrize("other", [(), (1,), (2,), (1, 2), (1, 3)], ids=str)
def test_epochs_of_other_workers_in_between_make_no_difference(
    tmp_path: Path, another_worker: AnswerBuckets, other: tuple[int, ...]
) -> None:
    alone, shared = QueryByHand(str(tmp_path / "a"), tmp_path / "la"), QueryByHand(str(tmp_path / "b"), tmp_path / "lb")
    expected, found = [], []

    for epoch in EPOCHS:
        close_kept_operators()
        expected.append(alone.run(*epoch))
    close_kept_operators()
    for number, epoch in enumerate(EPOCHS):
        found.append(shared.run(*epoch, by=another_worker if number in other else None))

    assert found == expected


def test_a_kept_operator_does_not_survive_the_loss_of_its_files(tmp_path: Path) -> None:
    query = QueryByHand(str(tmp_path / "cp"), tmp_path / "local")
    query.run(*EPOCHS[0])
    for file in (tmp_path / "local").rglob("*.rows"):
        file.unlink()

    answer = query.run(*EPOCHS[1])

    alone = QueryByHand(str(tmp_path / "cp2"), tmp_path / "local2")
    assert answer == [alone.run(*epoch) for epoch in EPOCHS[:2]][1]
