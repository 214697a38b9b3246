"""A DuckDB file that others can read while a query writes it."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pytest

from zset_join.core.errors import OptionError, SinkError
from zset_join.core.relation import Relation
from zset_join.sinks import duckdb_file
from zset_join.sinks.duckdb_file import DuckDBFile
from zset_join.sinks.duckdb_view import DuckDBViewSink
from zset_join.zset import ZSet

READER = """
import sys, duckdb
found = set()
print("ready", flush=True)
while sys.stdin.readline().strip() != "stop":
    for attempt in range(10_000):
        try:
            with duckdb.connect(sys.argv[1], read_only=True) as connection:
                found.add(connection.sql("SELECT count(*), coalesce(sum(k), 0) FROM view").fetchall()[0])
            break
        except duckdb.IOException as error:
            # DuckDB reads the header before it locks, so a file that is cut in between lacks a block of the old one.
            assert "lock" in str(error) or "enough bytes" in str(error), error
    print("read", flush=True)
print(sorted(found), flush=True)
"""
HOLDER = """
import sys, duckdb
connection = duckdb.connect(sys.argv[1], read_only=True)
print("open", flush=True)
sys.stdin.readline()
connection.close()
print("closed", flush=True)
"""


@contextmanager
def program(code: str, path: Path) -> Iterator[subprocess.Popen[str]]:
    """Run another process, and wait for its first line."""
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process


def send_line(process: subprocess.Popen[str], line: str) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def made(path: Path) -> None:
    duckdb.connect(str(path)).close()


def test_outside_of_its_uses_the_file_is_closed(tmp_path: Path) -> None:
    file = DuckDBFile(str(tmp_path / "a.duckdb"), hold_seconds=0)

    with file.held() as outer, file.held() as inner:
        assert inner is outer
        assert file.is_open

    assert not file.is_open


def test_a_file_that_is_used_again_soon_stays_open_and_is_given_back_later(tmp_path: Path) -> None:
    file = DuckDBFile(str(tmp_path / "a.duckdb"), hold_seconds=0.05)

    with file.held() as first:
        pass
    with file.held() as second:
        waiting = [thread for thread in threading.enumerate() if thread.name == "zset_join-duckdb"]
    closers = [thread for thread in threading.enumerate() if thread.name == "zset_join-duckdb"]
    [thread.join() for thread in closers]

    assert second is first
    assert all(thread.finished.is_set() for thread in waiting if isinstance(thread, threading.Timer))
    assert not file.is_open


def test_a_file_that_is_kept_or_lives_in_memory_stays_open(tmp_path: Path) -> None:
    files = [DuckDBFile(str(tmp_path / "a.duckdb"), hold_seconds=None), DuckDBFile(":memory:")]

    for file in files:
        with file.held():
            pass

    assert [file.is_open for file in files] == [True, True]
    [file.close() for file in files]
    assert [file.is_open for file in files] == [False, False]


def test_a_reader_is_waited_for_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(duckdb_file, "_WARN_AFTER_SECONDS", 0.0)
    path = tmp_path / "a.duckdb"
    made(path)
    with program(HOLDER, path) as reader, caplog.at_level(logging.WARNING, "zset_join"):
        release = threading.Timer(0.2, send_line, [reader, "close"])
        release.start()
        with DuckDBFile(str(path)).held() as connection:
            assert connection.execute("SELECT 1").fetchall() == [(1,)]
        release.join()

    assert [record.getMessage()[: len(f"waiting for {path}")] for record in caplog.records] == [f"waiting for {path}"]


def test_a_reader_that_never_closes_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.duckdb"
    made(path)
    with program(HOLDER, path) as reader:
        with (
            pytest.raises(SinkError, match="read_only=True, reads and closes") as caught,
            DuckDBFile(str(path), patience_seconds=0.05).held(),
        ):
            pass
        send_line(reader, "close")

    assert (caught.value.code, caught.value.facts["path"]) == ("SINK_BUSY", str(path))


def test_what_cannot_be_opened_at_all_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "a.duckdb").write_bytes(b"no database" * 1000)

    with pytest.raises(duckdb.Error), DuckDBFile(str(tmp_path / "a.duckdb")).held():
        pass


@pytest.mark.parametrize("option", ["hold_seconds", "patience_seconds"])
def test_negative_times_are_refused(option: str) -> None:
    with pytest.raises(OptionError, match=option):
        DuckDBFile("a.duckdb", **{option: -1.0})


def test_another_process_reads_the_view_all_the_time_and_sees_whole_epochs(tmp_path: Path) -> None:
    path = tmp_path / "views.duckdb"
    rows = ZSet.of({"k": [1, 2, 3]})
    sink = DuckDBViewSink(path, "view", hold_seconds=0)
    sink.open(Relation(name="answer", schema=rows.schema, mode="changelog"), "query")
    with program(READER, path) as reader:
        for epoch in range(20):
            assert reader.stdin is not None
            reader.stdin.write("again\n")
            reader.stdin.flush()
            sink.write(epoch, [rows])
            assert reader.stdout is not None
            assert reader.stdout.readline() == "read\n"
        seen = {int(count): int(total) for count, total in _pairs(_last(reader))}

    sink.close()
    assert seen.keys() <= {3 * epochs for epochs in range(21)}
    assert len(seen) >= 10
    assert all(total == 2 * count for count, total in seen.items())


def _last(reader: subprocess.Popen[str]) -> str:
    assert reader.stdin is not None
    assert reader.stdout is not None
    reader.stdin.write("stop\n")
    reader.stdin.flush()
    return [line for line in reader.stdout if line.startswith("[")][-1]


def _pairs(line: str) -> list[tuple[str, str]]:
    numbers = line.strip("[]()\n").replace("(", "").replace(")", "").split(", ")
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def test_the_log_of_a_file_that_is_always_open_stays_as_short_as_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duckdb_file, "_LEAST_LOG_BYTES", 10_000)
    monkeypatch.setattr(duckdb_file, "_LOG_PER_FILE", 0)
    view, log = DuckDBViewSink(tmp_path / "v.duckdb", "v", hold_seconds=None), tmp_path / "v.duckdb.wal"
    changes = [ZSet.of({"k": [*range(epoch, epoch + 9)]}, weights=[1] * 9) for epoch in range(30)]
    view.open(Relation(name="answer", schema=changes[0].schema, mode="changelog"), "test")

    longest = max(_bytes_after(view, epoch, rows, log) for epoch, rows in enumerate(changes))

    assert 5_000 < longest <= 10_000
    assert view.read().num_rows == 9 * 30
    view.close()


def _bytes_after(view: DuckDBViewSink, epoch: int, rows: ZSet, log: Path) -> int:
    view.write(epoch, [rows])
    return log.stat().st_size if log.exists() else 0
