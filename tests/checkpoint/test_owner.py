from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from tests.storage.object_store import ObjectStore, install
from zset_join.checkpoint import owner
from zset_join.checkpoint.checkpoint import Checkpoint
from zset_join.checkpoint.owner import SILENT_SECONDS, Claim, Ownership
from zset_join.checkpoint.record import CommitRecord
from zset_join.core.errors import StateError
from zset_join.storage.folder import Folder, open_folder
from zset_join.storage.operations import Operation, observe
from zset_join.storage.trusted_files import seal


@pytest.fixture(params=["local", "object store"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    install()
    return open_folder({"local": str(tmp_path / "cp"), "object store": "objects://bucket/cp"}[request.param])


@pytest.fixture
def local(tmp_path: Path) -> Folder:
    return open_folder(tmp_path / "cp" / "zset")


def leave_behind(folder: Folder, *, silent_seconds: float = 0.0, **facts: Any) -> Claim:
    """Leave the claim of a driver that ended without releasing it."""
    ownership = Ownership.claim(folder, "q")
    claim = replace(ownership.mine, since=ownership.mine.since - silent_seconds, **facts)
    ownership.release()
    name = f"owners/{claim.number:010d}"
    folder.remove(f"{name}.over")
    folder.remove(f"{name}.json")
    folder.put_new(f"{name}.json", seal(asdict(claim), version=2, name=f"{name}.json"))
    folder.put(f"{name}.beat", json.dumps({"at": time.time() - silent_seconds}).encode())
    return claim


def test_a_claim_has_its_owner_and_time(folder: Folder) -> None:
    ownership = Ownership.claim(folder, "q")
    ownership.release()

    assert (ownership.mine.number, ownership.mine.query_id, ownership.mine.pid) == (1, "q", os.getpid())
    assert f"process {os.getpid()} on host {ownership.mine.host} (query q), since 20" in ownership.mine.describe()


def test_a_second_driver_is_refused_with_the_name_of_the_first(folder: Folder) -> None:
    first = Ownership.claim(folder, "q")

    with pytest.raises(StateError, match=f"in use by process {os.getpid()}") as refused:
        Ownership.claim(folder, "q")

    first.release()
    assert refused.value.code == "CHECKPOINT_IN_USE"
    assert refused.value.facts["owner"] == first.mine.token


def test_the_next_driver_follows_at_once_after_a_release(folder: Folder) -> None:
    Ownership.claim(folder, "q").release()

    second = Ownership.claim(folder, "q")
    second.check()
    second.release()

    assert second.mine.number == 2
    assert [name for name in folder.names("owners") if "0000000001" in name] == []


def test_a_driver_that_was_followed_learns_it_at_its_next_commit(folder: Folder) -> None:
    first = Ownership.claim(folder, "q")
    first.check()
    first.release()
    second = Ownership.claim(folder, "q")

    with pytest.raises(StateError, match="no longer owns the checkpoint") as refused:
        first.check()

    second.release()
    assert refused.value.code == "OWNER_LOST"
    assert refused.value.facts["owner"] == second.mine.token


def test_a_dead_process_of_this_host_is_followed_at_once(folder: Folder) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    leave_behind(folder, pid=dead.pid, process_started="1")

    second = Ownership.claim(folder, "q")
    second.release()

    assert second.mine.number == 2


def test_a_process_number_that_was_used_again_is_not_taken_for_the_owner() -> None:
    install()
    folder = open_folder("objects://bucket/cp")
    leave_behind(folder, process_started="1")  # this process has another start time

    Ownership.claim(folder, "q").release()


def test_an_owner_on_another_host_is_waited_for_as_long_as_it_gives_signs_of_life(folder: Folder) -> None:
    leave_behind(folder, host="elsewhere", boot="another", silent_seconds=SILENT_SECONDS / 2)

    with pytest.raises(StateError, match="on host elsewhere"):
        Ownership.claim(folder, "q")


def test_an_owner_on_another_host_that_was_silent_for_long_is_followed(folder: Folder) -> None:
    leave_behind(folder, host="elsewhere", boot="another", silent_seconds=SILENT_SECONDS + 1)

    Ownership.claim(folder, "q").release()


BARE = {"pid_namespace": "pid:[4026531836]", "machine": "m"}


@pytest.fixture
def bare_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process run outside of containers, on the machine "m"."""
    monkeypatch.setattr(owner, "machine_of_host", lambda: BARE["machine"])
    monkeypatch.setattr(owner, "_pid_namespace", lambda: BARE["pid_namespace"])


def test_a_driver_that_died_with_its_machine_is_followed_at_once_after_the_reboot(folder: Folder, bare_machine: None) -> None:
    leave_behind(folder, boot="an earlier one", **BARE)

    second = Ownership.claim(folder, "q")
    second.release()

    assert second.mine.number == 2


@pytest.mark.parametrize(
    "facts",
    [{"host": "elsewhere"}, {"machine": "another"}, {"machine": ""}, {"pid_namespace": "pid:[4026532000]"}, {"boot": ""}],
    ids=repr,
)
def test_what_is_not_surely_this_machine_is_waited_for(folder: Folder, bare_machine: None, facts: dict[str, str]) -> None:
    leave_behind(folder, silent_seconds=20.0, **{"boot": "an earlier one", **BARE, **facts})

    with pytest.raises(
        StateError, match=r"sign of life was 2\d seconds ago; 90 seconds .* start again in (6\d|70) seconds"
    ) as refused:
        Ownership.claim(folder, "q")

    assert refused.value.code == "CHECKPOINT_IN_USE"


def test_a_container_is_never_taken_for_a_machine(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = {"pid_namespace": "pid:[4026532000]", "machine": "m"}
    monkeypatch.setattr(owner, "machine_of_host", lambda: inside["machine"])
    monkeypatch.setattr(owner, "_pid_namespace", lambda: inside["pid_namespace"])
    leave_behind(folder, boot="an earlier one", **inside)

    with pytest.raises(StateError, match="cannot be seen from this host"):
        Ownership.claim(folder, "q")


def test_a_claim_of_an_earlier_version_lacks_the_machine_and_a_later_one_has_more(folder: Folder) -> None:
    claim = leave_behind(folder)
    body = {name: value for name, value in asdict(claim).items() if name != "machine"} | {"rack": 7}
    name = f"owners/{claim.number:010d}.json"
    folder.remove(name)
    folder.put_new(name, seal(body, version=2, name=name))

    second = Ownership.claim(folder, "q")
    second.release()

    assert second.mine.number == 2


def test_a_sign_of_life_that_was_cut_off_counts_for_nothing(folder: Folder) -> None:
    claim = leave_behind(folder, host="elsewhere", boot="another", silent_seconds=SILENT_SECONDS + 1)
    folder.put(f"owners/{claim.number:010d}.beat", b'{"at": 1e')

    Ownership.claim(folder, "q").release()


def test_an_owner_gives_signs_of_life(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, "BEAT_SECONDS", 0.01)
    beaten = threading.Event()

    def watch(operation: Operation, act: Callable[[], Any]) -> Any:
        found = act()
        if ".beat" in (operation.target or operation.path) and threading.current_thread().name == "zset_join-owner":
            beaten.set()
        return found

    with observe(watch):
        ownership = Ownership.claim(folder, "q")
        came = beaten.wait(10)
        ownership.release()

    assert came


def test_a_sign_of_life_that_cannot_be_written_is_reported_when_the_checkpoint_is_lost(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, "BEAT_SECONDS", 0.01)
    failures = threading.Semaphore(0)

    def fail(operation: Operation, act: Callable[[], Any]) -> Any:
        if ".beat" in (operation.target or operation.path) and threading.current_thread().name == "zset_join-owner":
            failures.release()
            raise OSError(5, "Input/output error")
        return act()

    with observe(fail):
        first = Ownership.claim(folder, "q")
        failures.acquire(timeout=10)
        failures.acquire(timeout=10)  # the second one: the first one has been noted
        follower = replace(first.mine, number=2, token="t", host="elsewhere")
        folder.put_new("owners/0000000002.json", seal(asdict(follower), version=2, name="owners/0000000002.json"))
        with pytest.raises(StateError, match=r"belongs to process .* on host elsewhere.*Input/output error"):
            first.check()
        first.release()


def test_a_record_that_was_cleared_away_while_it_was_written_is_reported_as_overtaken(local: Folder) -> None:
    first = Ownership.claim(local, "q")
    checkpoint = Checkpoint(str(Path(local.location).parent), query_id="q", buckets=1, description={}, owner=first)

    def clear_away(operation: Operation, act: Callable[[], Any]) -> Any:
        if operation.kind == "link" and "commits/" in (operation.target or ""):
            follower = replace(first.mine, number=2, token="t", host="elsewhere")
            if local.size("owners/0000000002.json") is None:
                local.put_new("owners/0000000002.json", seal(asdict(follower), version=2, name="owners/0000000002.json"))
            Path(operation.path).unlink()
        return act()

    with observe(clear_away), pytest.raises(StateError, match=r"belongs to process .* on host elsewhere") as refused:
        checkpoint.commit(CommitRecord(query_id="q", epoch=0, processing_time_us=None))
    first.release()

    assert refused.value.code == "OWNER_LOST"


def test_a_mount_without_locks_goes_by_processes(local: Folder) -> None:
    def no_locks(operation: Operation, act: Callable[[], Any]) -> Any:
        if operation.kind == "lock":
            raise OSError(errno.ENOLCK, "No locks available")
        return act()

    with observe(no_locks):
        first = Ownership.claim(local, "q")
        with pytest.raises(StateError, match="in use by process"):
            Ownership.claim(local, "q")
        first.release()
        Ownership.claim(local, "q").release()


def test_a_claim_of_another_query_is_refused(folder: Folder) -> None:
    Ownership.claim(folder, "another").release()

    with pytest.raises(StateError, match="last owned by a driver of query another") as refused:
        Ownership.claim(folder, "q")

    assert refused.value.code == "FOREIGN_STATE"


@pytest.mark.parametrize("failing", [".beat", ".over"])
def test_a_claim_that_failed_half_way_does_not_keep_its_own_process_out(folder: Folder, failing: str) -> None:
    def fail(operation: Operation, act: Callable[[], Any]) -> Any:
        if failing in (operation.target or operation.path):
            raise OSError(28, "No space left on device")
        return act()

    with pytest.raises(OSError, match="No space left"), observe(fail):
        Ownership.claim(folder, "q").release()

    Ownership.claim(folder, "q").release()


def test_a_damaged_owner_record_is_named(folder: Folder) -> None:
    Ownership.claim(folder, "q").release()
    folder.put("owners/0000000001.json", b'{"format":2,"crc32":"00000000","body":{}}')

    with pytest.raises(StateError, match=r"owner record .* cannot be read") as refused:
        Ownership.claim(folder, "q")

    assert refused.value.code == "DAMAGED_FILE"


def test_two_claims_at_the_same_moment_make_one_owner() -> None:
    install()
    folder = open_folder("objects://bucket/cp")
    claimed: list[Ownership] = []

    def claim_in_between(operation: Operation, act: Callable[[], Any]) -> Any:
        if operation.kind == "put_new" and not claimed:
            claimed.append(None)  # type: ignore[arg-type]  # a mark: the claim below is not watched again
            claimed[0] = Ownership.claim(folder, "q")
        return act()

    with observe(claim_in_between), pytest.raises(StateError, match="in use"):
        Ownership.claim(folder, "q")

    claimed[0].check()
    claimed[0].release()
    assert sum(name.endswith(".json") for name in ObjectStore.objects) == 1


def test_the_lock_is_free_once_its_process_was_killed(local: Folder) -> None:
    child = subprocess.Popen([sys.executable, "-c", CLAIM, local.location], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    with pytest.raises(StateError, match=f"in use by process {child.pid}"):
        Ownership.claim(local, "q")
    child.kill()
    child.wait()
    child.stdout.close()

    ownership = Ownership.claim(local, "q")
    ownership.release()

    assert ownership.mine.number == 2


CLAIM = """
import sys, time
from zset_join.checkpoint.owner import Ownership
from zset_join.storage.folder import open_folder
ownership = Ownership.claim(open_folder(sys.argv[1]), "q")
print("claimed", flush=True)
time.sleep(60)
"""
