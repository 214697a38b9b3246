from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from zset_join.checkpoint.checkpoint import Checkpoint, stored_buckets, stored_query_id
from zset_join.checkpoint.files import NewFile, attempt_name
from zset_join.checkpoint.log import LogEntry
from zset_join.checkpoint.record import BucketHistory, CommitRecord
from zset_join.checkpoint.snapshot import SnapshotEntry
from zset_join.errors import StateError
from zset_join.tick import Tick

QUERY = {"how": "left", "left": {"columns": ["id: int64"]}}


def opened(location: Path, **changed: Any) -> Checkpoint:
    arguments: dict[str, Any] = {"query_id": "q", "buckets": 2, "description": QUERY, **changed}
    return Checkpoint(str(location), **arguments)


def written(checkpoint: Checkpoint, epoch: int, *, size: int = 10) -> LogEntry:
    name = attempt_name(epoch, ".arrows")
    with NewFile(checkpoint.root, f"log/join-0/{name}") as file:
        file.write(b"x" * size)
    return LogEntry(epoch, epoch, name, file.entry(1))


def record(epoch: int, *logs: LogEntry, snapshot: SnapshotEntry | None = None) -> CommitRecord:
    return CommitRecord(query_id="q", epoch=epoch, watermark=None, histories={"join/0": BucketHistory(snapshot, tuple(logs))})


def test_a_fresh_checkpoint_expects_epoch_0(tmp_path: Path) -> None:
    checkpoint = opened(tmp_path)

    assert checkpoint.committed(0) is None
    assert stored_buckets(str(tmp_path)) == 2
    assert stored_query_id(str(tmp_path)) == "q"


def test_what_was_committed_is_there_after_reopening(tmp_path: Path) -> None:
    checkpoint = opened(tmp_path)
    log = written(checkpoint, 0)
    checkpoint.commit(record(0, log))

    again = opened(tmp_path)

    assert again.committed(0) == record(0, log)
    assert again.committed(1) is None
    assert again.stage("join", Tick(1)).histories == {0: BucketHistory(None, (log,))}


@pytest.mark.parametrize("epoch", [0, 3])
def test_an_epoch_out_of_turn_is_refused(tmp_path: Path, epoch: int) -> None:
    checkpoint = opened(tmp_path)
    checkpoint.commit(record(0))
    checkpoint.commit(record(1))

    with pytest.raises(StateError, match="epoch 2 was expected"):
        checkpoint.committed(epoch)


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"query_id": "other"}, "belongs to query q, not to other"),
        ({"buckets": 8}, "buckets=8 was given.*made with 2"),
        ({"description": {**QUERY, "how": "inner"}}, "how was 'left' and is 'inner'"),
        ({"description": {"how": "left", "left": {"columns": []}}}, "left.columns was"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(tmp_path: Path, changed: dict[str, Any], complaint: str) -> None:
    opened(tmp_path)

    with pytest.raises(StateError, match=complaint):
        opened(tmp_path, **changed)


def test_a_checkpoint_without_its_description_is_refused(tmp_path: Path) -> None:
    checkpoint = opened(tmp_path)
    checkpoint.commit(record(0))
    (checkpoint.root / "format.json").unlink()

    with pytest.raises(StateError, match=r"format.json is missing"):
        opened(tmp_path)


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    checkpoint = opened(tmp_path)
    checkpoint.commit(record(0))
    (checkpoint.root / "commits" / f"{0:020d}.json").write_bytes(b"{")

    with pytest.raises(StateError, match="cannot be read"):
        opened(tmp_path)


def test_an_epoch_that_another_driver_committed_is_refused(tmp_path: Path) -> None:
    mine, other = opened(tmp_path), opened(tmp_path)
    other.commit(record(0))

    with pytest.raises(StateError, match="another driver"):
        mine.commit(record(0))


def test_a_bucket_whose_log_has_outgrown_its_snapshot_gets_a_new_one(tmp_path: Path) -> None:
    checkpoint = opened(tmp_path, snapshot_after_bytes=100)
    small, large = written(checkpoint, 0, size=60), written(checkpoint, 1, size=60)

    checkpoint.commit(record(0, small))
    before = checkpoint.stage("join", Tick(1)).snapshot_buckets
    checkpoint.commit(record(1, small, large))
    after = checkpoint.stage("join", Tick(2)).snapshot_buckets

    assert (before, after) == (frozenset(), frozenset({0}))


def test_a_retained_log_is_never_replaced_by_a_snapshot(tmp_path: Path) -> None:
    checkpoint = opened(tmp_path, snapshot_after_bytes=0, retain_input_log=True)
    checkpoint.commit(record(0, written(checkpoint, 0)))

    assert checkpoint.stage("join", Tick(1)).snapshot_buckets == frozenset()


def test_a_file_nobody_lists_is_removed_one_epoch_later(tmp_path: Path) -> None:
    checkpoint = opened(tmp_path)
    old = written(checkpoint, 0)
    path = checkpoint.root / old.file.name
    checkpoint.commit(record(0, old))
    checkpoint.commit(record(1))
    was_kept = path.exists()

    checkpoint.commit(record(2))

    assert (was_kept, path.exists()) == (True, False)


def test_reopening_clears_what_a_dead_driver_left_but_not_what_a_replay_needs(tmp_path: Path) -> None:
    checkpoint = opened(tmp_path)
    needed, dropped = written(checkpoint, 1), written(checkpoint, 0)
    orphan, in_flight = written(checkpoint, 0), written(checkpoint, 3)
    checkpoint.commit(record(0, dropped))
    checkpoint.commit(record(1, needed))
    checkpoint.commit(record(2))

    again = opened(tmp_path)

    kept = {path.name for path in (again.root / "log" / "join-0").iterdir()}
    assert kept == {needed.identity, in_flight.identity}
    assert orphan.identity not in kept


def test_the_last_epoch_can_be_answered_again_from_the_state_before_it(tmp_path: Path) -> None:
    checkpoint = opened(tmp_path)
    first, second, retried = written(checkpoint, 0), written(checkpoint, 1), written(checkpoint, 1)
    checkpoint.commit(record(0, first))
    checkpoint.commit(record(1, first, second))

    assert checkpoint.before(1) == {"join/0": BucketHistory(None, (first,))}
    checkpoint.commit(record(1, first, retried))

    assert opened(tmp_path).committed(1) == record(1, first, retried)
