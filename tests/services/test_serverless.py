"""The limits of serverless Spark: a Connect session, `availableNow`, no JAR, no RDD, and no disk that outlives a run.

Each run has a server of its own with a disk of its own, which is wiped. The checkpoint and the output are in a bucket that
Spark cannot open, since it has no JAR for it; the inputs play the tables of a platform.
"""

from __future__ import annotations

import shutil
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from faults.processes import forked
from tests.spark.connect.conftest import ClientProcess, Server
from tests.spark.connect.test_served import filled, lines, streams, write
from tools.servers.object_store import ObjectStoreServer
from zset_join.spark import move

WAIT_SECONDS = 120
RECORD = "zset/commits/{:020d}.json"
SPOILT = (("GET", "zset/log/"), ("GET", "zset/commits/"), ("PUT", "zset/log/"), ("PUT", "zset/commits/"), ("PUT", "/out/"))
"""What a run does that restores its state and commits an epoch, by method and part of the path."""


@pytest.fixture
def store() -> Iterator[ObjectStoreServer]:
    store = ObjectStoreServer().start()
    try:
        yield store
    finally:
        store.stop()


@pytest.fixture
def bucket(store: ObjectStoreServer, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    return store.bucket(f"bucket-{uuid.uuid4().hex}")


class Run:
    """A server, its disk, and a client; all of it is gone at the end.

    Args:
        disk: the only disk of the server's processes.
    """

    def __init__(self, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.disk = disk
        disk.mkdir()
        monkeypatch.setenv("TMPDIR", str(disk))
        self.server = Server(disk).start()
        self.client: Any = ClientProcess(self.server.url)

    def kill_client(self) -> None:
        """Kill the client, if it lives."""
        client, self.client = self.client, None
        if client is not None:
            client.kill()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill_client()
        self.server.kill()
        shutil.rmtree(self.disk)


def _query(spark: SparkSession, tables: Path, disk: Path, bucket: str) -> Any:
    orders, names = streams(spark, tables)
    view = orders.join(names, on="cust", how="left").select("id", "total", "name")
    places = {
        "checkpointLocation": f"{bucket}/cp",
        "sparkCheckpointLocation": str(disk / "spark"),
        "localStateDir": str(disk / "state"),
        "retainInputLog": True,
    }
    return view.writeStream.options(**places).trigger(availableNow=True).to("parquet", path=f"{bucket}/out")


def _to_its_end(spark: SparkSession, tables: Path, disk: Path, bucket: str) -> list[int]:
    query = _query(spark, tables, disk, bucket).start()
    query.awaitTermination()
    return [one["join"]["epoch"] for one in query.recentProgress if one["join"]]


def _verified(spark: SparkSession, tables: Path, disk: Path, bucket: str) -> tuple[bool, int]:
    with _query(spark, tables, disk, bucket).attach() as stored:
        report = stored.verify()
    return report.equal, report.actual_rows


def _view(bucket: str) -> list[Any]:
    outcome = forked(lambda send: send(sorted([*row, count] for row, count in lines(f"{bucket}/out").items())))
    assert not outcome.error, outcome.error
    return outcome.messages[0]


def _moved(bucket: str) -> tuple[str, str, bool]:
    report = move(f"{bucket}/cp", execution="executors")
    return report.before, report.execution, report.rows > 0


def _killed_at(run: Run, store: ObjectStoreServer, epoch: int, *, is_done: bool, given: tuple[Any, ...]) -> None:
    """Run until the record of an epoch is put; the server's processes die before the store has it, or right after."""
    died = threading.Event()

    def kill(has_it: bool) -> None:
        if has_it is is_done:
            run.server.kill()
            died.set()

    store.at["PUT", RECORD.format(epoch)] = kill
    ends = threading.Thread(target=_unanswered, args=(run.client, given))
    ends.start()
    assert died.wait(WAIT_SECONDS)
    run.kill_client()
    ends.join()


def _unanswered(client: ClientProcess, given: tuple[Any, ...]) -> None:
    with pytest.raises(BaseException) as seen:
        client(_to_its_end, *given)
    sys.stdout.write(f"what a client sees: {str(seen.value)[:2000]}\n")


def test_runs_without_a_disk_go_on_from_the_bucket_though_they_die_in_a_commit_and_requests_are_cut(
    store: ObjectStoreServer, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = tmp_path
    filled(tables)

    with Run(tmp_path / "first", monkeypatch) as run:
        _killed_at(run, store, 0, is_done=False, given=(tables, run.disk, bucket))
    with Run(tmp_path / "second", monkeypatch) as run:
        _killed_at(run, store, 1, is_done=True, given=(tables, run.disk, bucket))
    write(tables / "orders", {"op": "u", "id": 4, "cust": "a", "total": 9, "t": 9})
    for spoil in (store.cut, store.lose):
        for method, part in SPOILT:
            spoil(method, part)
    with Run(tmp_path / "third", monkeypatch) as run:
        run.client(_to_its_end, tables, run.disk, bucket)
    assert (store.to_cut, store.to_lose) == ([], [])
    write(tables / "orders", {"op": "d", "id": 1, "cust": "b", "total": 6, "t": 10})
    with Run(tmp_path / "fourth", monkeypatch) as run:
        before = dict(store.counts)
        epochs = run.client(_to_its_end, tables, run.disk, bucket)
        counts = {name: count - before.get(name, 0) for name, count in store.counts.items()}
        sys.stdout.write(f"a start, a replayed epoch and a new one: {counts}\n")
        verified = run.client(_verified, tables, run.disk, bucket)
    outcome = forked(lambda send: send(_moved(bucket)))
    assert not outcome.error, outcome.error
    assert outcome.messages == [["driver", "executors", True]]
    assert epochs[-1] > 2
    assert verified == (True, 2)
    assert _view(bucket) == [[3, 4, "ann", 1], [4, 9, "ann", 1]]
