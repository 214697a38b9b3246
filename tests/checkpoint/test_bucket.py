"""One bucket with the real join: whatever happens to the local files, the state before the epoch comes back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from zset_join.checkpoint import local_state
from zset_join.checkpoint.bucket import BucketState, StageContext, close_kept_operators
from zset_join.checkpoint.files import CheckpointFiles
from zset_join.checkpoint.local_state import remove_unused
from zset_join.checkpoint.record import BucketHistory, LogEntry, merge_logs
from zset_join.core.epochs import Tick
from zset_join.core.errors import StateError
from zset_join.core.relation import Relation
from zset_join.operators.join import HashJoin
from zset_join.shapes.operator_options import OperatorOptions
from zset_join.storage.local import lock_file
from zset_join.storage.trusted_files import seal, unseal
from zset_join.zset import ZSet
from zset_join.zset.protocol import DurableOperator

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
        rows, log = self.answer(left, right, **changed)
        self.history = self.history if self.snapshot is None else self.history.with_snapshot(self.snapshot)
        self.history = self.history if self.merged is None else self.history.with_merged(self.merged)
        self.history = self.history if log is None else self.history.with_log(log)
        self.epoch += 1
        return rows

    @property
    def files(self) -> CheckpointFiles:
        return CheckpointFiles.at(str(self.root / "zset"), "q")

    @property
    def home(self) -> Path:
        return self.root / "local" / "q" / "join-0"


def build(directory: str | None) -> DurableOperator:
    return HashJoin(LEFT, RIGHT, "inner", options=OperatorOptions(directory=directory))


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


@pytest.mark.parametrize("damage", ["{", '{"format": 1}', json.dumps({"format": 1, "query_id": "other"})])
def test_local_files_with_a_foreign_or_broken_stamp_are_rebuilt(query: Query, damage: str) -> None:
    (query.home / "stamp.json").write_text(damage)

    assert matches(query) == EXPECTED
    assert query.was_rebuilt


@pytest.mark.parametrize("fact", [{"boot": "an earlier one"}, {"version": "0.0.1"}, {"digest": "another"}, {"query_id": "p"}])
def test_local_files_of_another_boot_version_or_query_are_rebuilt(query: Query, fact: dict[str, str]) -> None:
    restamp(query, **fact)

    assert matches(query) == EXPECTED
    assert query.was_rebuilt


def _linked(file: Path, decoy: Path) -> None:
    decoy.write_bytes(file.read_bytes())
    file.unlink()
    file.symlink_to(decoy)


def _exchanged(file: Path, decoy: Path) -> None:
    decoy.write_bytes(file.read_bytes())
    decoy.replace(file)
    decoy.write_bytes(file.read_bytes())


def _written(content: Callable[[bytes], bytes]) -> Callable[[Path, Path], object]:
    return lambda file, _: file.write_bytes(content(file.read_bytes()))


LOCAL_DAMAGES: dict[str, Callable[[Path, Path], object]] = {
    "missing": lambda file, _: file.unlink(),
    "empty": _written(lambda _: b""),
    "cut": _written(lambda data: data[: len(data) // 2]),
    "longer": _written(lambda data: data + bytes(4096)),
    "zeroed": _written(lambda data: bytes(len(data))),
    "flipped": _written(lambda data: bytes(byte ^ 1 for byte in data)),
    "replaced by a copy": _exchanged,
    "a link": _linked,
}


@pytest.mark.parametrize("damage", LOCAL_DAMAGES)
def test_each_local_file_that_was_touched_is_rebuilt_and_nothing_outside_is_written(
    query: Query, tmp_path: Path, damage: str
) -> None:
    assert matches(query) == EXPECTED
    for name in sorted(str(one.relative_to(query.home)) for one in (query.home / "state").rglob("*") if one.is_file()):
        close_kept_operators()
        decoy, file = tmp_path / "decoy", query.home / name
        LOCAL_DAMAGES[damage](file, decoy)
        content = decoy.read_bytes() if decoy.exists() else None

        assert (matches(query), query.was_rebuilt) == (EXPECTED, True), name
        assert content is None or decoy.read_bytes() == content
        close_kept_operators()
        assert (matches(query), query.was_rebuilt) == (EXPECTED, False)


@pytest.mark.parametrize("name", ["lock", "stamp.json", "state", ".", ".."])
def test_a_link_in_place_of_a_directory_lock_or_stamp_is_removed(query: Query, tmp_path: Path, name: str) -> None:
    close_kept_operators()
    place = Path(os.path.normpath(query.home / name))
    place.rename(tmp_path / "outside")
    place.symlink_to(tmp_path / "outside")
    before = _contents(tmp_path / "outside")

    assert matches(query) == EXPECTED

    assert _contents(tmp_path / "outside") == before
    assert not place.is_symlink()


def _contents(path: Path) -> dict[str, tuple[int, bytes]]:
    files = [one for one in [path, *path.rglob("*")] if one.is_file()]
    return {str(one): (one.stat().st_mtime_ns, one.read_bytes()) for one in files}


def test_local_files_that_went_past_the_stamp_are_rebuilt(query: Query) -> None:
    query.answer(NOTHING, NOTHING)  # folds epoch 1 into the files
    restamp(query, absorbed_epoch=0)

    assert matches(query) == EXPECTED
    assert query.was_rebuilt


def test_local_files_ahead_of_a_checkpoint_that_was_brought_back_are_rebuilt(query: Query) -> None:
    before = query.history
    query.run(rows((1, "undone")), NOTHING)
    query.answer(NOTHING, NOTHING)
    query.history, query.epoch = before, 2

    found = query.run(NOTHING, rows((1, "x"), (2, "y")), opened_at_ns=1)

    assert found == EXPECTED
    assert query.was_rebuilt


def test_an_attempt_that_comes_after_its_epoch_was_folded_in_is_refused_and_changes_nothing(query: Query) -> None:
    late = query.context(query.epoch)
    query.run(rows((1, "c")), NOTHING)
    query.answer(NOTHING, NOTHING)  # folds epoch 2
    before = {path.name: path.read_bytes() for path in query.home.rglob("*") if path.is_file()}

    with pytest.raises(StateError, match="came too late") as refused, BucketState(late, 0, build):
        pass

    assert refused.value.code == "STALE_ATTEMPT"
    assert {path.name: path.read_bytes() for path in query.home.rglob("*") if path.is_file()} == before
    assert matches(query) == [EXPECTED[0], ((1, "c", 1, "x"), 1), EXPECTED[1]]
    assert not query.was_rebuilt


def test_an_attempt_for_a_driver_that_was_followed_is_refused(query: Query) -> None:
    query.run(rows((1, "c")), NOTHING, opened_at_ns=9)

    with pytest.raises(StateError, match="came too late"), BucketState(query.context(query.epoch, opened_at_ns=8), 0, build):
        pass


def test_an_attempt_that_resumes_after_its_epoch_was_committed_still_gives_the_same_answer(query: Query) -> None:
    left, right = rows((3, "c")), rows((1, "x"), (3, "z"))
    late = query.context(query.epoch)
    committed = query.run(left, right)

    with BucketState(late, 0, build) as state:
        answered = [row for chunk in state.operator.answer(late.tick, [left, right]) for row in chunk.to_pylist()]

    assert sorted(answered) == committed == [EXPECTED[0], ((3, "c", 3, "z"), 1)]


def test_a_bucket_that_another_attempt_holds_is_answered_in_private(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_state, "_PATIENCE_SECONDS", 0.02)
    with BucketState(query.context(query.epoch), 0, build):
        found = matches(query)
        inside = [path.name for path in query.home.iterdir()]

    assert found == EXPECTED
    assert query.was_rebuilt
    assert sorted(inside) == ["lock", "stamp.json", "state"]


def test_the_private_directory_of_an_attempt_that_died_is_removed(query: Query) -> None:
    left_behind = query.home / "private-1" / "state"
    left_behind.mkdir(parents=True)

    matches(query)

    assert not left_behind.parent.exists()


def test_the_lock_of_a_process_that_died_is_free(query: Query) -> None:
    child = subprocess.Popen([sys.executable, "-c", HOLD, str(query.home / "lock")], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    was_free = lock_file(query.home / "lock")
    child.kill()
    child.wait()
    child.stdout.close()

    assert was_free is None
    assert matches(query) == EXPECTED


def test_local_state_nobody_used_for_long_is_removed_unless_it_is_locked_or_not_ours(query: Query) -> None:
    base = query.root / "local"
    age(query.home / "lock", days=8)
    strange = base / "someone" / "else"
    strange.mkdir(parents=True)
    (strange / "lock").touch()
    age(strange / "lock", days=8)
    lock = lock_file(query.home / "lock")
    assert lock is not None
    age(query.home / "lock", days=8)
    while_locked = remove_unused(base, 7 * 86400)
    lock.release()

    removed = remove_unused(base, 7 * 86400)

    assert (while_locked, removed) == ([], ["q/join-0"])
    assert strange.exists()
    assert not query.home.parent.exists()
    assert matches(query) == EXPECTED


def test_local_state_that_was_used_lately_stays(query: Query) -> None:
    age(query.home / "lock", days=6)

    assert remove_unused(query.root / "local", 7 * 86400) == []


HOLD = "import fcntl, sys, time; f = open(sys.argv[1], 'ab'); fcntl.flock(f, fcntl.LOCK_EX); print('held', flush=True); time.sleep(60)"


def age(path: Path, *, days: int) -> None:
    then = time.time() - days * 86400
    os.utime(path, (then, then))


def restamp(query: Query, **changed: object) -> None:
    path = query.home / "stamp.json"
    stamp = unseal(path.read_bytes(), version=2, name="stamp.json")
    path.write_bytes(seal({**stamp, **changed}, version=2, name="stamp.json"))


def test_a_bucket_that_slept_for_epochs_catches_up(query: Query) -> None:
    query.epoch = 40

    assert matches(query) == EXPECTED


def test_a_snapshot_represents_the_epochs_it_includes(query: Query) -> None:
    query.run(NOTHING, NOTHING, snapshot_buckets=frozenset({0}))
    assert query.snapshot is not None
    assert query.snapshot.through_epoch == 1
    assert query.history.logs == ()

    assert matches(query) == EXPECTED
    assert not query.was_rebuilt


def test_local_files_that_end_inside_a_merged_log_go_on_from_there(tmp_path: Path) -> None:
    query = Query(tmp_path)
    query.run(rows((1, "a")), NOTHING)
    query.answer(NOTHING, NOTHING)  # folds epoch 0
    _, second = query.answer(rows((2, "b")), NOTHING)
    assert second is not None
    merged = merge_logs(query.files, "log/join-0", [*query.history.logs, second])
    query.history, query.epoch = BucketHistory(logs=(merged,)), 2

    assert matches(query) == EXPECTED
    assert not query.was_rebuilt


def test_the_files_of_another_query_are_not_touched(query: Query) -> None:
    other, _ = query.answer(NOTHING, rows((1, "x")), query_id="other", histories={})

    assert other == []
    assert matches(query) == EXPECTED
