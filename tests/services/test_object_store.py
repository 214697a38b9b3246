"""Checkpoints in a bucket, on moto's server: exactly once without rename, with kills, lost answers and two drivers.

What uses the store runs in a forked process, which dies or ends: the library's threads do not outlive a fork.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from faults.processes import Send, forked
from tests.sweeps import some_of
from tools.servers.object_store import ObjectStoreServer
from zset_join.checkpoint import owner
from zset_join.core.errors import StateError, ZsetJoinError
from zset_join.pipeline import Pipeline, changes, sink
from zset_join.pipeline import functions as F  # noqa: N812 - as PySpark users import theirs
from zset_join.runners.local.directory_plans import Place
from zset_join.sinks.parquet_changelog import read_changelog
from zset_join.storage.folder import open_folder
from zset_join.storage.operations import Operation, observe

ORDERS = {"id": pa.int64(), "customer": pa.string(), "total": pa.int64()}
CUSTOMERS = {"name": pa.string(), "city": pa.string()}
EPOCHS = [
    {"orders": [{"id": 1, "customer": "Ada", "total": 30}], "customers": [{"name": "Ada", "city": "London"}]},
    {"orders": [{"id": 1, "customer": "Ada", "total": 40}, {"id": 2, "customer": "Bob", "total": 5}]},
    {"customers": [{"name": "Bob", "city": "Paris"}]},
]
VIEW = [["London", 40], ["Paris", 5]]


def _revenue() -> Any:
    orders, customers = changes("orders", ORDERS, keys="id"), changes("customers", CUSTOMERS, keys="name")
    return orders.join(customers, [("customer", "name")], "left").groupBy("city").agg(F.sum("total").alias("revenue"))


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectStoreServer]:
    server = ObjectStoreServer().start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def bucket(server: ObjectStoreServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make a bucket, and an empty temporary directory, where the state of a process lies."""
    for name, value in {**server.environment, "TMPDIR": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    return server.bucket(f"bucket-{uuid.uuid4().hex}")


def _alone(work: Callable[[], Any]) -> Any:
    """Return what a function returns in a process of its own."""
    outcome = forked(lambda send: send(work()))
    assert not outcome.error, outcome.error
    return outcome.messages[0]


def _lived(location: str, epochs: int = len(EPOCHS)) -> Any:
    """Run the epochs that are left, and return the view."""
    with Pipeline(_revenue(), location, keep_view=True) as pipeline:
        for given in EPOCHS[pipeline.epoch : epochs]:
            pipeline.step(given)
        return sorted([list(row.values()) for row in pipeline.view().to_pylist()])


def test_a_folder_in_a_bucket_keeps_the_law(server: ObjectStoreServer, bucket: str) -> None:
    def work() -> dict[str, Any]:
        folder = open_folder(f"{bucket}/cp?region=us-east-1")
        folder.put_new("commits/1.json", b"one")
        with pytest.raises(FileExistsError):
            folder.put_new("commits/1.json", b"one")
        large = folder.create("log/large")
        large.write(b"x" * (17 << 20))
        large.close(durable=True)
        given_up = folder.create("log/given up")
        given_up.write(b"x" * (17 << 20))
        given_up.discard()
        folder.put("moved", b"two")
        folder.move("moved", "log/moved")
        folder.remove("nothing")
        found = folder.read("log/moved")
        return {
            "names": sorted(folder.names("")),
            "under": sorted(folder.names("log")),
            "sizes": [folder.size("log/large"), folder.size("log"), folder.size("nothing")],
            "read": None if found is None else found.to_pybytes().decode(),
            "uri": folder.uri("log/moved"),
        }

    assert _alone(work) == {
        "names": ["commits/1.json", "log/large", "log/moved"],
        "under": ["log/large", "log/moved"],
        "sizes": [17 << 20, None, None],
        "read": "two",
        "uri": f"{bucket}/cp/log/moved",
    }


def test_a_put_whose_answer_was_lost_is_its_own(server: ObjectStoreServer, bucket: str) -> None:
    """The second request finds the name taken, by the first one; only its writer shows that it is not another driver's."""
    server.lose("PUT", "commits/1.json")

    def work() -> str:
        folder = open_folder(f"{bucket}/cp")
        folder.put_new("commits/1.json", b"the same bytes")
        with pytest.raises(FileExistsError):
            folder.put_new("commits/1.json", b"the same bytes")
        return "refused"

    with server.counted() as counts:
        assert _alone(work) == "refused"
    assert counts["PUT if-none-match"] == 3


def test_a_store_that_is_down_is_reported_within_seconds_and_its_settings_are_shown_nowhere() -> None:
    settings = "endpoint=http://127.0.0.1:9&region=us-east-1&access_key_id=AKIAX&secret_access_key=hunter2&retry_seconds=1"

    def work() -> list[Any]:
        folder = open_folder(f"s3://bucket/cp?{settings}", option="deadLetterPath")
        shown, begun = [repr(folder)], time.monotonic()
        for act in (lambda: folder.put_new("a", b"1"), lambda: folder.put("a", b"1"), lambda: folder.read("a")):
            with pytest.raises(OSError, match=r"retry_seconds behind the \? of deadLetterPath") as down:
                act()
            shown.append(str(down.value))
        with pytest.raises(ZsetJoinError) as refused:
            Pipeline(_revenue(), f"s3://bucket/cp?{settings}")
        seconds = time.monotonic() - begun
        shown += [str(refused.value), repr(refused.value.facts), "".join(traceback.format_exception(refused.value))]
        return [refused.value.code, seconds < 15, [text for text in shown if "hunter2" in text or "AKIAX" in text]]

    assert _alone(work) == ["DIRECTORY", True, []]


def test_a_process_that_was_forked_behind_the_first_use_is_refused(bucket: str) -> None:
    def work() -> list[Any]:
        folder = open_folder(f"{bucket}/cp")
        folder.put("a", b"1")
        outcome = forked(lambda send: send(list(folder.names(""))))
        return [outcome.messages[0]["error"].count("FORKED_STORE")]

    assert _alone(work) == [1]


def test_an_answer_lost_at_every_put_of_a_life_changes_nothing(server: ObjectStoreServer, bucket: str) -> None:
    for part in ("owners/", "format.json", "stages.json", "log/", "commits/"):
        server.lose("PUT", part)

    assert _alone(lambda: _lived(f"{bucket}/cp")) == VIEW
    assert server.to_lose == []


FAULTS = ("500", "503", "done 500", "cut", "lost", "late", "half")


def _with_changelog(location: str, settings: str) -> Any:
    """Run all epochs into a changelog in the bucket; return the view, and the sum of the changelog."""
    output = sink("parquet", path=f"{location}/changelog{settings}")
    with Pipeline(_revenue(), f"{location}/cp{settings}", outputs=[output]) as pipeline:
        for given in EPOCHS[pipeline.epoch :]:
            pipeline.step(given)
        view = sorted([list(row.values()) for row in pipeline.view().to_pylist()])
    return [view, _net(f"{location}/changelog")]


def _net(location: str) -> list[Any]:
    """Return what the lines of a changelog add up to."""
    net: dict[tuple[Any, ...], int] = {}
    for line in read_changelog(location).to_pylist():
        row = (line["city"], line["revenue"])
        net[row] = net.get(row, 0) + line["_weight"]
    return sorted([*map(list, (row for row, weight in net.items() if weight == 1))]) + [
        w for w in net.values() if w not in (0, 1)
    ]


def _requests(server: ObjectStoreServer, location: str) -> int:
    with server.counted() as counts:
        assert _alone(lambda: _with_changelog(location, "")) == [VIEW, VIEW]
    return sum(counts.values())


def _lives_with_fault(server: ObjectStoreServer, location: str, fault: str, at: int, settings: str) -> list[Any]:
    """Return how a life ended in which a request met a fault, and what the next one finds."""
    with server.counted():
        server.faults = {at: fault}
        first = forked(lambda send: send(_with_changelog(location, settings)))
        server.faults = {}
    following = forked(lambda send: send(_with_changelog(location, "")))
    if fault == "late" and "[COMMITTED_TWICE]" in following.error:  # the record of the first one came while it ran
        return [first.error, _alone(lambda: _with_changelog(location, ""))]
    assert not following.error, following.error
    return [first.error, following.messages[0]]


@pytest.mark.parametrize("fault", some_of(FAULTS, short=("lost",)))
def test_one_fault_at_any_request_is_repeated_or_reported_and_nothing_is_lost_or_doubled(
    server: ObjectStoreServer, bucket: str, tmp_path: Path, fault: str
) -> None:
    _lived(str(tmp_path / "kernels"))  # loaded once, before the forks
    requests = _requests(server, f"{bucket}/whole")
    server.met.clear()
    wrong, reported = [], 0
    for at in range(0, requests, 3 if os.environ.get("FAULTS_PROFILE") == "long" else 60):
        for name, settings in {"repeated": "?timeout=1s", "not": "?retry_seconds=0&timeout=1s"}.items():
            error, found = _lives_with_fault(server, f"{bucket}/{at}-{name}", fault, at, settings)
            reported += bool(error)
            is_known = not error or (name == "not" and "zset_join.core.errors" in error)
            if found != [VIEW, VIEW] or not is_known:
                wrong.append((at, name, server.met[-1:], error[-600:], found))

    sys.stdout.write(f"{fault}: {requests} requests, {len(server.met)} met a fault, {reported} lives ended by it\n")
    assert wrong == []
    assert server.met


def test_a_store_that_ignores_the_condition_is_refused(server: ObjectStoreServer, bucket: str) -> None:
    def work() -> str:
        with pytest.raises(StateError, match="If-None-Match") as refused:
            Pipeline(_revenue(), f"{bucket}/cp")
        return refused.value.code

    server.is_conditional = False
    try:
        assert _alone(work) == "STORE_UNCONDITIONAL"
    finally:
        server.is_conditional = True


def test_the_driver_that_was_taken_for_dead_commits_nothing(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once it looks at the owner before its commit, and once it had looked before the other one came."""

    def work() -> list[Any]:
        found = []
        for has_looked in (False, True):
            location = f"{bucket}/cp-{has_looked}"
            slow = Pipeline(_revenue(), location)
            slow.step(EPOCHS[0])
            with monkeypatch.context() as patched:
                patched.setattr(owner, "_why_it_may_live", lambda *_, **__: "")
                if has_looked:
                    patched.setattr(owner.Ownership, "check", lambda _: None)
                elsewhere = Place(location=location, local_state_dir=f"{tmp_path}/{has_looked}", dead_letters=location)
                with Pipeline(_revenue(), elsewhere) as follower:
                    follower.step(EPOCHS[1])
                    with pytest.raises(StateError) as refused:
                        slow.step(EPOCHS[2])
            found += [refused.value.code, _lived(location)]
        return found

    assert _alone(work) == ["OWNER_LOST", VIEW, "COMMITTED_TWICE", VIEW]


def _operations(location: str) -> list[str]:
    seen: list[str] = []

    def note(operation: Operation, act: Callable[[], Any]) -> Any:
        if operation.path.startswith("s3:"):
            seen.append(operation.kind)
        return act()

    with observe(note):
        _lived(location)
    return seen


def _killed(location: str, number: int, send: Send) -> None:
    """Live, and die behind one operation on the store."""
    left = iter(range(number))

    def die(operation: Operation, act: Callable[[], Any]) -> Any:
        try:
            return act()
        finally:  # a name that is taken, or not there, was an operation too
            if operation.path.startswith("s3:") and next(left, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)

    with observe(die):
        _lived(location)
    send("lived")


def test_a_kill_behind_a_write_leaves_a_checkpoint_that_goes_on(bucket: str) -> None:
    """The next process has no local disk of the one before."""
    operations = _alone(lambda: _operations(f"{bucket}/whole"))

    wrong = []
    for number, kind in enumerate(operations):
        if kind == "put_new" or (kind == "put" and number % 3 == 0):
            location = f"{bucket}/{number}"
            dead = forked(lambda send, number=number, location=location: _killed(location, number, send))
            found = _alone(lambda location=location: _lived(location))
            if dead.signal != signal.SIGKILL or found != VIEW:
                wrong.append((number, kind, dead, found))

    assert wrong == []
    assert operations.count("put_new") >= 3 + 3


def test_an_epoch_costs_few_requests(server: ObjectStoreServer, bucket: str) -> None:
    def life(epochs: int) -> dict[str, int]:
        with server.counted() as counts:
            _alone(lambda: _lived(f"{bucket}/cp", epochs))
        return dict(counts)

    _, one, three = life(0), life(1), life(3)

    sys.stdout.write(f"a start and one epoch: {one}; a start and two epochs: {three}\n")
    assert sum(three.values()) < 60
    assert three["PUT if-none-match"] == 1 + 1 + 2
