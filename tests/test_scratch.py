"""The scratch space of a run: in memory where there is room, and removed by the next run when nobody uses it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import scratch
from tests.scratch import LEAST_FREE, use_memory

STAYS = """
import sys
from pathlib import Path
from tests import scratch
scratch.LEAST_FREE = 0
print(scratch.use_memory(Path(sys.argv[1])), flush=True)
sys.stdin.read()
"""
Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.delenv("TMPDIR", raising=False)
    return tmp_path


def with_room(monkeypatch: pytest.MonkeyPatch, *, files: int = LEAST_FREE, memory: int = LEAST_FREE) -> None:
    monkeypatch.setattr(scratch.shutil, "disk_usage", lambda _: Usage(0, 0, files))
    monkeypatch.setattr(scratch, "_available", lambda: memory)


def test_a_directory_that_a_run_uses_stays_and_one_of_a_run_that_was_killed_goes(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_room(monkeypatch)
    (place / "zset_join-scratch-killed" / "files").mkdir(parents=True)
    with subprocess.Popen(
        [sys.executable, "-c", STAYS, str(place)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        used = Path(other.stdout.readline().strip())
        ours = use_memory(place)
        assert ours is not None
        assert tempfile.gettempdir() == str(ours)
        assert set(place.iterdir()) == {ours, used}
        assert ours.stat().st_mode & 0o777 == 0o711
        other.communicate()


@pytest.mark.parametrize("room", [{"files": LEAST_FREE - 1}, {"memory": LEAST_FREE - 1}])
def test_a_host_without_room_keeps_its_own_directory(
    place: Path, monkeypatch: pytest.MonkeyPatch, room: dict[str, int]
) -> None:
    with_room(monkeypatch, **room)
    assert use_memory(place) is None
    assert list(place.iterdir()) == []


def test_a_file_system_that_runs_no_programs_is_not_used(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_room(monkeypatch)
    monkeypatch.setattr(scratch.os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_NOEXEC | os.ST_NOSUID))
    assert use_memory(place) is None
