"""Client and server share nothing: the client opens no file of a query, and either may die.

Where the tests run as root, the client also may open none: the place belongs to another user, and the client has given up the
right of root to read everything. Elsewhere it is observed what it opens.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.spark.connect.conftest import ClientProcess, Server
from tests.spark.connect.test_served import filled, lines, streams, write
from zset_join.checkpoint.owner import owner_seen
from zset_join.checkpoint.reading import checkpoint_folder
from zset_join.core.errors import ZsetJoinError
from zset_join.runners.spark.driver import choosing

WAIT_SECONDS = 60
ROWS = {(3, 4, "ann"): 1, (1, 6, "ben"): 1}


@pytest.fixture
def own_client(connect_server: Server) -> Iterator[ClientProcess]:
    """Give a client that no other test has."""
    process = ClientProcess(connect_server.url)
    yield process
    process.close()


def _writer(spark: SparkSession, place: Path, *, ends: bool, **options: Any) -> Any:
    orders, names = streams(spark, place)
    view = orders.join(names, on="cust", how="left").select("id", "total", "name")
    writer = view.writeStream.options(checkpointLocation=str(place / "cp"), localStateDir=str(place / "local"), **options)
    if ends:
        writer = writer.trigger(availableNow=True)
    return writer.to("parquet", path=str(place / "out"))


def _query(spark: SparkSession, place: Path, *, ends: bool) -> Any:
    return _writer(spark, place, ends=ends).start()


def _give_up_rights() -> None:
    """Let this thread, and those it starts, open no file that its permissions do not allow."""
    libc, header, rights = ctypes.CDLL(None), (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert not libc.capget(header, rights)
    for kind in range(3):
        rights[kind] &= ~0b110  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH
    assert not libc.capset(header, rights)


def _guarded(spark: SparkSession, place: Path) -> dict[str, Any]:
    """Do all that a client does with a query; return what it found, and the files of the query that it touched."""
    if os.geteuid() == 0:
        _give_up_rights()
        with pytest.raises(PermissionError):
            list(place.iterdir())
    touched: list[str] = []

    def look(event: str, given: tuple[Any, ...]) -> None:
        if event in ("open", "os.listdir", "os.mkdir", "os.rename", "os.remove", "os.scandir") and str(place) in str(given):
            touched.append(f"{event}: {given[0]}")

    sys.addaudithook(look)
    found: dict[str, Any] = {"touched": touched}
    query = _writer(spark, place, ends=False, retainInputLog=True, onBadInput="quarantine").start()
    query.processAllAvailable()
    found["while it runs"] = _requested(query)
    found["progress"] = [one["join"]["epoch"] for one in query.recentProgress if one["join"]]
    found["savepoint"] = query.backup(place / "savepoint").epoch
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choosing, "memory_bytes", lambda: 10)  # of the client
        found["explained"] = query._runner.explanation()
    query.stop()
    found["stopped"] = _requested(query)
    assert query.exception() is None
    with _writer(spark, place, ends=False, retainInputLog=True, onBadInput="quarantine").attach() as stored:
        found["attached"] = _requested(stored)
    return found


def _requested(query: Any) -> dict[str, Any]:
    report = query.verify()
    history = query.explain_row({"id": 1})
    letters = query.dead_letters(stream="orders")
    try:
        query.explain_row({"nothing": 1})
    except ZsetJoinError as error:
        refusal = (error.code, sorted(error.facts))
    return {
        "equal": (report.equal, report.actual_rows, report.differences),
        "live": history.live_rows,
        "held": [
            (held.rows.to_pylist(), held.weights.tolist(), count)
            for held, count in [query.view_rows(query._runner.settings.query.plan.output.name, {"id": 3})]
        ],
        "letters": letters["code"].to_pylist(),
        "refusal": refusal,
    }


def test_a_client_touches_no_file_of_a_query(own_client: ClientProcess, tmp_path: Path) -> None:
    """While the query runs its own process answers questions, afterwards a task does that opens the checkpoint."""
    filled(tmp_path)
    write(tmp_path / "orders", {"op": "u", "id": None, "cust": "a", "total": 9, "t": 9})
    if os.geteuid() == 0:
        os.chown(tmp_path, 1, 1)
        tmp_path.chmod(0o700)

    found = own_client(_guarded, tmp_path)

    assert found["touched"] == []
    assert lines(tmp_path / "out") == ROWS
    answers = found["while it runs"]
    assert answers["equal"] == (True, 2, ())
    assert answers["live"] == (({"id": 1, "total": 6, "name": "ben"}, 1),)
    assert answers["held"] == [([{"id": 3, "total": 4, "name": "ann"}], [1], 1)]
    assert answers["letters"] == ["NULL_PRIMARY_KEY"]
    assert found["stopped"] == found["attached"] == answers
    assert found["progress"] == [0, 1, 2]
    assert found["savepoint"] == 2
    assert f"budget {choosing.memory_bytes() // 2:,} bytes" in found["explained"]


def _started(spark: SparkSession, place: Path) -> int:
    query = _query(spark, place, ends=False)
    query.processAllAvailable()
    return os.getpid()


def _to_its_end(spark: SparkSession, place: Path) -> None:
    query = _query(spark, place, ends=True)
    query.awaitTermination()


def test_a_client_and_its_process_on_the_server_die_and_the_output_is_exact(connect_server: Server, tmp_path: Path) -> None:
    """The process that continues has no local state either: it restores what the checkpoint has."""
    filled(tmp_path)
    first, again = ClientProcess(connect_server.url), ClientProcess(connect_server.url)
    try:
        os.kill(first(_started, tmp_path), signal.SIGKILL)
        write(tmp_path / "orders", {"op": "u", "id": 4, "cust": "a", "total": 9, "t": 9})
        ends = time.monotonic() + WAIT_SECONDS
        while (4, 9, "ann") not in lines(tmp_path / "out") and time.monotonic() < ends:
            time.sleep(0.2)
        assert lines(tmp_path / "out") == {**ROWS, (4, 9, "ann"): 1}
        seen = owner_seen(checkpoint_folder(str(tmp_path / "cp")))
        assert seen is not None
        assert seen[1] == "running"
        os.kill(seen[0].pid, signal.SIGKILL)
        shutil.rmtree(tmp_path / "local", ignore_errors=True)
        write(tmp_path / "orders", {"op": "d", "id": 1, "cust": "b", "total": 6, "t": 10})
        again(_to_its_end, tmp_path)
        assert lines(tmp_path / "out") == {(3, 4, "ann"): 1, (4, 9, "ann"): 1}
    finally:
        first.kill()
        again.kill()
