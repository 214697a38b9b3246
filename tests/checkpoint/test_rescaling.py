"""The record of a rescaling: when it counts, when it does not, and what stays for a replay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.storage.object_store import install
from zset_join.checkpoint.checkpoint import Checkpoint
from zset_join.checkpoint.files import FileEntry, attempt_name
from zset_join.checkpoint.owner import Ownership
from zset_join.checkpoint.reading import Rescaling, checkpoint_folder, read_committed, stored_buckets
from zset_join.checkpoint.record import BucketHistory, CommitRecord, LogEntry
from zset_join.checkpoint.snapshot import SnapshotEntry
from zset_join.core.epochs import Tick
from zset_join.core.errors import StateError


@pytest.fixture(params=["local", "object store"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    install()
    return {"local": str(tmp_path / "cp"), "object store": "objects://bucket/cp"}[request.param]


def opened(location: str, buckets: int = 2, **options: Any) -> Checkpoint:
    return Checkpoint(location, query_id="q", buckets=buckets, description={}, **options)


def written(checkpoint: Checkpoint, name: str) -> FileEntry:
    with checkpoint.files.create(name) as file:
        file.write(b"rows")
    return file.entry(1)


def logged(checkpoint: Checkpoint, epoch: int, bucket: int) -> LogEntry:
    name = attempt_name(epoch, ".arrows")
    return LogEntry(epoch, epoch, name, written(checkpoint, f"log/join-{bucket}/{name}"))


def committed(checkpoint: Checkpoint, epoch: int, buckets: int) -> CommitRecord:
    """Commit an epoch that had a row in every bucket."""
    histories = {
        f"join/{bucket}": checkpoint.before(epoch)
        .get(f"join/{bucket}", BucketHistory())
        .with_log(logged(checkpoint, epoch, bucket))
        for bucket in range(buckets)
    }
    return checkpoint.commit(CommitRecord(query_id="q", epoch=epoch, processing_time_us=None, histories=histories))


def moved(checkpoint: Checkpoint, epoch: int, buckets: int) -> dict[str, BucketHistory]:
    """Write snapshots for other buckets."""
    made = {}
    for bucket in range(buckets):
        entry = written(checkpoint, f"snapshot/join-{bucket}/{attempt_name(epoch, '-left.parquet')}")
        snapshot = SnapshotEntry(epoch, attempt_name(epoch, "-rescaled"), {"left": entry})
        made[f"join/{bucket}"] = BucketHistory(snapshot)
    return made


@pytest.fixture
def checkpoint(location: str) -> Checkpoint:
    """Give a checkpoint of two buckets and two epochs."""
    checkpoint = opened(location)
    for epoch in (0, 1):
        committed(checkpoint, epoch, 2)
    return checkpoint


def test_a_rescaling_counts_from_the_moment_its_record_is_there(checkpoint: Checkpoint, location: str) -> None:
    before = read_committed(location)
    histories = moved(checkpoint, 1, 3)
    untouched = read_committed(location)
    checkpoint.rescale(3, histories)
    again = opened(location, 3)

    assert before is not None
    assert untouched is not None
    assert untouched.histories == before.histories
    assert stored_buckets(location) == 3
    assert again.histories == checkpoint.histories == histories
    assert sorted(again.stage("join", Tick(2)).histories) == [0, 1, 2]


def test_the_old_number_is_refused_from_then_on(checkpoint: Checkpoint, location: str) -> None:
    checkpoint.rescale(3, moved(checkpoint, 1, 3))

    with pytest.raises(StateError, match=r"buckets=2 was given, and the checkpoint .* has 3") as refused:
        opened(location, 2)

    assert refused.value.code == "BUCKETS_CHANGED"


def test_the_last_epoch_is_answered_again_from_its_own_buckets(checkpoint: Checkpoint, location: str) -> None:
    first = checkpoint.before(1)
    checkpoint.rescale(3, moved(checkpoint, 1, 3))
    again = opened(location, 3)

    assert (again.buckets_of(1), again.buckets_of(2)) == (2, 3)
    assert again.before(1) == first
    assert again.committed(1) == checkpoint.last


def test_an_epoch_that_is_gone_back_to_takes_its_rescaling_with_it(checkpoint: Checkpoint, location: str) -> None:
    checkpoint.rescale(3, moved(checkpoint, 1, 3))
    checkpoint.files.folder.remove(f"commits/{1:020d}.json")
    back = opened(location, 2)
    committed(back, 1, 2)
    after = opened(location, 2)
    after.rescale(5, moved(after, 1, 5))
    found = read_committed(location)

    assert found is not None
    assert found.rescaling is not None
    assert (found.buckets, found.rescaling.number) == (5, 2)


def test_a_rescaling_is_undone_by_removing_its_record(checkpoint: Checkpoint, location: str) -> None:
    histories = checkpoint.histories
    checkpoint.rescale(3, moved(checkpoint, 1, 3))
    (name,) = checkpoint.files.folder.names("rescalings")
    checkpoint.files.folder.remove(name)

    assert opened(location, 2).histories == histories


def test_a_damaged_record_is_never_passed_over(checkpoint: Checkpoint, location: str) -> None:
    checkpoint.rescale(3, moved(checkpoint, 1, 3))
    folder = checkpoint.files.folder
    (name,) = folder.names("rescalings")
    found = folder.read(name)
    assert found is not None
    whole = found.to_pybytes()

    codes = set()
    for at in range(0, len(whole), 7):
        folder.put(name, whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(StateError) as refused:
            stored_buckets(location)
        codes.add(refused.value.code)

    assert codes <= {"DAMAGED_FILE", "STATE_FORMAT"}


def test_old_files_go_when_the_epoch_after_the_next_one_is_committed(checkpoint: Checkpoint, location: str) -> None:
    folder = checkpoint.files.folder
    old = set(folder.names("log"))
    checkpoint.rescale(3, moved(checkpoint, 1, 3))
    committed(checkpoint, 2, 3)
    kept = set(folder.names("log"))
    committed(checkpoint, 3, 3)

    assert old <= kept
    assert old.isdisjoint(folder.names("log"))


def test_what_a_rescaling_that_died_has_written_is_swept_away(checkpoint: Checkpoint, location: str) -> None:
    folder = checkpoint.files.folder
    moved(checkpoint, 1, 3)
    committed(checkpoint, 2, 2)
    committed(checkpoint, 3, 2)
    owner = Ownership.claim(checkpoint_folder(location), "q")
    opened(location, 2, owner=owner)
    owner.release()

    assert list(folder.names("snapshot")) == []


def test_rescalings_are_forgotten_with_the_records_of_their_epochs(checkpoint: Checkpoint, location: str) -> None:
    checkpoint.rescale(3, moved(checkpoint, 1, 3))
    for epoch in range(2, 14):
        committed(checkpoint, epoch, 3)
    owner = Ownership.claim(checkpoint_folder(location), "q")
    opened(location, 3, owner=owner)
    owner.release()

    assert list(checkpoint.files.folder.names("rescalings")) == []
    assert stored_buckets(location) == 3


def test_a_driver_that_was_followed_cannot_rescale(checkpoint: Checkpoint, location: str) -> None:
    folder = checkpoint_folder(location)
    first = Ownership.claim(folder, "q")
    late = opened(location, 2, owner=first)
    first.release()
    Ownership.claim(folder, "q").release()

    with pytest.raises(StateError) as refused:
        late.rescale(3, {})

    assert refused.value.code == "OWNER_LOST"
    assert stored_buckets(location) == 2


def test_a_checkpoint_without_an_epoch_has_nothing_to_rescale(location: str) -> None:
    with pytest.raises(StateError) as refused:
        opened(location).rescale(3, {})

    assert refused.value.code == "NOTHING_COMMITTED"


def test_a_record_keeps_the_plan_that_its_state_is_of() -> None:
    rescaling = Rescaling(
        number=1, query_id="q", epoch=1, record="r", buckets=3, histories={}, owner=None, opened_at_ns=5, plan="digest"
    )

    assert Rescaling.from_bytes(rescaling.to_bytes(), rescaling.name) == rescaling
