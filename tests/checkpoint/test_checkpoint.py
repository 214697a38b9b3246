from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from zset_join.checkpoint.checkpoint import Checkpoint
from zset_join.checkpoint.files import FileEntry, attempt_name
from zset_join.checkpoint.owner import Ownership
from zset_join.checkpoint.reading import checkpoint_folder, stored_buckets, stored_query_id
from zset_join.checkpoint.record import BucketHistory, CommitRecord, LogEntry, PartEntry
from zset_join.checkpoint.snapshot import SnapshotEntry
from zset_join.core.epochs import Tick
from zset_join.core.errors import StateError

QUERY = {"how": "left", "left": {"columns": ["id: int64"]}}


def opened(location: Path, **changed: Any) -> Checkpoint:
    arguments: dict[str, Any] = {"query_id": "q", "buckets": 2, "description": QUERY, **changed}
    return Checkpoint(str(location), **arguments)


def written(checkpoint: Checkpoint, epoch: int, *, size: int = 10) -> LogEntry:
    name = attempt_name(epoch, ".arrows")
    with checkpoint.files.create(f"log/join-0/{name}") as file:
        file.write(b"x" * size)
    return LogEntry(epoch, epoch, name, file.entry(1))


def record(epoch: int, *logs: LogEntry, snapshot: SnapshotEntry | None = None) -> CommitRecord:
    return CommitRecord(
        query_id="q", epoch=epoch, processing_time_us=None, histories={"join/0": BucketHistory(snapshot, tuple(logs))}
    )


def path_of(checkpoint: Checkpoint, name: str) -> Path:
    return Path(checkpoint.files.uri(name))


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

    assert again.committed(0) == checkpoint.last
    assert again.last is not None
    assert again.last.histories == record(0, log).histories
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
        ({"buckets": 8}, "buckets=8 was given.*has 2.*rescale"),
        ({"description": {**QUERY, "how": "inner"}}, "how was 'left' and is 'inner'"),
        ({"description": {"how": "left", "left": {"columns": []}}}, "left.columns was"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(tmp_path: Path, changed: dict[str, Any], complaint: str) -> None:
    opened(tmp_path)

    with pytest.raises(StateError, match=complaint):
        opened(tmp_path, **changed)


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
    path = path_of(checkpoint, old.file.name)
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

    owner = Ownership.claim(checkpoint_folder(str(tmp_path)), "q")
    opened(tmp_path)
    before = {path.name for path in path_of(checkpoint, "log/join-0").iterdir()}
    again = opened(tmp_path, owner=owner)
    owner.release()

    kept = {path.name for path in path_of(again, "log/join-0").iterdir()}
    assert kept == {needed.identity, in_flight.identity}
    assert orphan.identity not in kept
    assert orphan.identity in before


def test_the_last_epoch_can_be_answered_again_from_the_state_before_it(tmp_path: Path) -> None:
    checkpoint = opened(tmp_path)
    first, second, retried = written(checkpoint, 0), written(checkpoint, 1), written(checkpoint, 1)
    checkpoint.commit(record(0, first))
    checkpoint.commit(record(1, first, second))
    part = PartEntry(0, FileEntry("delta/0/new", 1, 1, 0), 0, "arrow")

    before = checkpoint.before(1)
    again = checkpoint.take_replay(replace(record(1, first, retried), parts=(part,)))

    assert before == {"join/0": BucketHistory(None, (first,))}
    assert again.parts == (part,)
    assert again.histories == record(1, first, second).histories
    assert not path_of(checkpoint, retried.file.name).exists()
    assert path_of(checkpoint, second.file.name).exists()


def test_a_second_answer_from_other_rows_is_refused(tmp_path: Path) -> None:
    checkpoint = opened(tmp_path)
    checkpoint.commit(record(0, written(checkpoint, 0)))
    other = written(checkpoint, 0)

    with pytest.raises(StateError, match="returned other rows") as refused:
        checkpoint.take_replay(record(0, replace(other, file=replace(other.file, rows=2))))

    assert refused.value.code == "REPLAY_DIFFERS"


def test_a_committed_epoch_is_never_replaced(tmp_path: Path) -> None:
    checkpoint = opened(tmp_path)
    checkpoint.commit(record(0))

    with pytest.raises(StateError, match="committed already"):
        checkpoint.commit(record(0, written(checkpoint, 0)))

    assert opened(tmp_path).last == checkpoint.last


def test_a_replay_that_reads_something_else_is_refused(tmp_path: Path) -> None:
    checkpoint = opened(tmp_path)
    checkpoint.commit(replace(record(0), offsets="a digest"))

    assert checkpoint.committed(0, "a digest") == checkpoint.last
    assert checkpoint.committed(0, None) == checkpoint.last
    with pytest.raises(StateError, match="other input") as refused:
        checkpoint.committed(0, "another digest")
    assert refused.value.code == "EPOCH_REPLANNED"


@pytest.mark.parametrize("name", ["format.json", f"commits/{0:020d}.json"])
def test_every_changed_byte_of_a_description_or_record_is_noticed(tmp_path: Path, name: str) -> None:
    checkpoint = opened(tmp_path)
    checkpoint.commit(record(0))
    path = path_of(checkpoint, name)
    whole = path.read_bytes()
    damaged = [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(len(whole))]
    damaged += [whole[:at] for at in range(len(whole))]

    codes = {refusal_of(tmp_path, path, data) for data in damaged}

    assert codes <= {"DAMAGED_FILE", "STATE_FORMAT"}


@pytest.mark.parametrize("name", ["format.json", f"commits/{0:020d}.json"])
def test_a_newer_layout_is_refused_with_the_cure(tmp_path: Path, name: str) -> None:
    checkpoint = opened(tmp_path)
    checkpoint.commit(record(0))
    path_of(checkpoint, name).write_bytes(b'{"format":10,"crc32":"00000000","body":{}}')

    with pytest.raises(StateError, match="Rebuild the state from its sources: rm -r ") as refused:
        opened(tmp_path)

    assert refused.value.code == "STATE_FORMAT"


def test_an_epoch_can_be_gone_back_to_by_removing_the_last_record(tmp_path: Path) -> None:
    checkpoint = opened(tmp_path)
    logs = [written(checkpoint, epoch) for epoch in range(3)]
    checkpoint.commit(record(0, logs[0]))
    checkpoint.commit(record(1, logs[0], logs[1]))
    checkpoint.commit(record(2, logs[2]))
    path_of(checkpoint, f"commits/{2:020d}.json").unlink()

    again = opened(tmp_path)

    assert again.committed(2) is None
    assert [again.files.read(log.file).size for log in again.before(2)["join/0"].logs] == [10, 10]


def test_a_later_driver_has_a_larger_number_at_any_time_of_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = opened(tmp_path)
    checkpoint.commit(record(0))
    monkeypatch.setattr(time, "time_ns", lambda: 1)

    assert opened(tmp_path).opened_at_ns > checkpoint.opened_at_ns


def test_a_commit_has_its_driver(tmp_path: Path) -> None:
    owner = Ownership.claim(checkpoint_folder(str(tmp_path)), "q")
    checkpoint = opened(tmp_path, owner=owner)

    committed = checkpoint.commit(record(0))
    owner.release()

    assert committed.owner == owner.mine.token
    assert opened(tmp_path).last == committed


def test_a_driver_that_was_followed_by_another_cannot_commit(tmp_path: Path) -> None:
    first = Ownership.claim(checkpoint_folder(str(tmp_path)), "q")
    checkpoint = opened(tmp_path, owner=first)
    first.release()
    second = Ownership.claim(checkpoint_folder(str(tmp_path)), "q")

    with pytest.raises(StateError, match="no longer owns") as refused:
        checkpoint.commit(record(0))

    second.release()
    assert refused.value.code == "OWNER_LOST"
    assert opened(tmp_path).last is None


def refusal_of(location: Path, path: Path, data: bytes) -> str:
    path.write_bytes(data)
    with pytest.raises(StateError) as refused:
        opened(location)
    return refused.value.code
