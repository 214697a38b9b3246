"""One bucket with the real join: whatever happens to the local files, the state before the epoch comes back."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from zset_join.checkpoint.bucket import BucketState, DurableOperator, StageContext
from zset_join.checkpoint.log import LogEntry, merge_logs
from zset_join.checkpoint.record import BucketHistory
from zset_join.operators.join import HashJoin
from zset_join.relation import Relation
from zset_join.tick import Tick
from zset_join.zset import ZSet

SCHEMA = pa.schema({"k": pa.int64(), "v": pa.string()})
LEFT = Relation(name="left", schema=SCHEMA, join_key=("k",))
RIGHT = Relation(name="right", schema=SCHEMA, join_key=("k",))


class Query:
    """Drives one bucket the way the Spark runner does, epoch by epoch."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.epoch = 0
        self.history = BucketHistory()
        self.was_rebuilt = False

    def context(self, epoch: int, **changed: object) -> StageContext:
        arguments = {"query_id": "q", "digest": "d", "histories": {0: self.history}, **changed}
        return StageContext(
            stage="join", tick=Tick(epoch), root=str(self.root / "zset"), local_state_dir=str(self.root / "local"), **arguments
        )

    def answer(
        self, left: ZSet, right: ZSet, **changed: object
    ) -> tuple[list[tuple[tuple[object, ...], int]], LogEntry | None]:
        """Answer the current epoch without committing it."""
        with BucketState(self.context(self.epoch, **changed), 0, build) as state:
            rows = [row for chunk in state.operator.answer(Tick(self.epoch), [left, right]) for row in chunk.to_pylist()]
            log = state.log([left, right])
            self.was_rebuilt = state.was_rebuilt
            self.snapshot, self.merged = state.snapshot, state.merged
        return sorted(rows), log

    def run(self, left: ZSet, right: ZSet, **changed: object) -> list[tuple[tuple[object, ...], int]]:
        """Answer and commit."""
        rows, log = self.answer(left, right, **changed)
        self.history = self.history if self.snapshot is None else self.history.with_snapshot(self.snapshot)
        self.history = self.history if self.merged is None else self.history.with_merged(self.merged)
        self.history = self.history if log is None else self.history.with_log(log)
        self.epoch += 1
        return rows

    @property
    def home(self) -> Path:
        return self.root / "local" / "q" / "join-0"


def build(directory: str | None) -> DurableOperator:
    return HashJoin(LEFT, RIGHT, "inner", directory=directory)


def rows(*pairs: tuple[int, str]) -> ZSet:
    return ZSet.of({"k": [k for k, _ in pairs], "v": [v for _, v in pairs]}, schema=SCHEMA)


NOTHING = ZSet.empty(SCHEMA)


@pytest.fixture
def query(tmp_path: Path) -> Query:
    """Give a query after two epochs with one left row each."""
    query = Query(tmp_path)
    query.run(rows((1, "a")), NOTHING)
    query.run(rows((2, "b")), NOTHING)
    return query


def matches(query: Query) -> list[tuple[tuple[object, ...], int]]:
    return query.run(NOTHING, rows((1, "x"), (2, "y")))


EXPECTED = [((1, "a", 1, "x"), 1), ((2, "b", 2, "y"), 1)]


def test_an_epoch_sees_all_epochs_before_it(query: Query) -> None:
    assert matches(query) == EXPECTED
    assert not query.was_rebuilt


def test_the_same_epoch_asked_again_gives_the_same_answer(query: Query) -> None:
    first, _ = query.answer(NOTHING, rows((1, "x")))
    second, _ = query.answer(NOTHING, rows((1, "x")))

    assert first == second == [((1, "a", 1, "x"), 1)]


def test_an_epoch_that_was_not_committed_leaves_no_trace(query: Query) -> None:
    query.answer(rows((1, "never")), NOTHING)

    assert matches(query) == EXPECTED


def test_lost_local_files_are_rebuilt_from_the_log(query: Query) -> None:
    for path in sorted(query.home.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()

    assert matches(query) == EXPECTED


@pytest.mark.parametrize("damage", ["{", '{"format": 1}', json.dumps({"format": 1, "query_id": "other"})])
def test_local_files_with_a_foreign_or_broken_stamp_are_rebuilt(query: Query, damage: str) -> None:
    (query.home / "stamp.json").write_text(damage)

    assert matches(query) == EXPECTED
    assert query.was_rebuilt


def test_local_files_of_another_boot_are_rebuilt(query: Query) -> None:
    stamp = json.loads((query.home / "stamp.json").read_text())
    (query.home / "stamp.json").write_text(json.dumps({**stamp, "boot": "an earlier one"}))

    assert matches(query) == EXPECTED
    assert query.was_rebuilt


def test_local_files_that_went_past_the_stamp_are_rebuilt(query: Query) -> None:
    query.answer(NOTHING, NOTHING)  # folds epoch 1 into the files
    stamp = json.loads((query.home / "stamp.json").read_text())
    (query.home / "stamp.json").write_text(json.dumps({**stamp, "absorbed_epoch": 0}))

    assert matches(query) == EXPECTED
    assert query.was_rebuilt


def test_local_files_ahead_of_the_checkpoint_are_rebuilt(query: Query) -> None:
    before = query.history
    query.run(rows((1, "undone")), NOTHING)
    query.answer(NOTHING, NOTHING)
    query.history, query.epoch = before, 2

    assert matches(query) == EXPECTED
    assert query.was_rebuilt


def test_a_bucket_that_slept_for_epochs_catches_up(query: Query) -> None:
    query.epoch = 40

    assert matches(query) == EXPECTED


def test_a_snapshot_stands_for_the_epochs_it_includes(query: Query) -> None:
    query.run(NOTHING, NOTHING, snapshot_buckets=frozenset({0}))
    assert query.snapshot is not None
    assert query.snapshot.through_epoch == 1
    assert query.history.logs == ()

    assert matches(query) == EXPECTED
    assert not query.was_rebuilt


def test_a_lost_bucket_is_rebuilt_from_snapshot_and_log(query: Query) -> None:
    query.run(rows((2, "c")), NOTHING, snapshot_buckets=frozenset({0}))
    (query.home / "stamp.json").unlink()

    assert matches(query) == [*EXPECTED, ((2, "c", 2, "y"), 1)]
    assert query.was_rebuilt


def test_merged_logs_rebuild_the_same_state(query: Query) -> None:
    merged = merge_logs(query.root / "zset", "log/join-0", query.history.logs)
    query.history = query.history.with_merged(merged)
    (query.home / "stamp.json").unlink()

    assert matches(query) == EXPECTED


def test_local_files_that_end_inside_a_merged_log_go_on_from_there(tmp_path: Path) -> None:
    query = Query(tmp_path)
    query.run(rows((1, "a")), NOTHING)
    query.answer(NOTHING, NOTHING)  # folds epoch 0
    _, second = query.answer(rows((2, "b")), NOTHING)
    assert second is not None
    merged = merge_logs(tmp_path / "zset", "log/join-0", [*query.history.logs, second])
    query.history, query.epoch = BucketHistory(logs=(merged,)), 2

    assert matches(query) == EXPECTED
    assert not query.was_rebuilt


def test_the_files_of_another_query_are_not_touched(query: Query) -> None:
    other, _ = query.answer(NOTHING, rows((1, "x")), query_id="other", histories={})

    assert other == []
    assert matches(query) == EXPECTED
