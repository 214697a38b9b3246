"""The first use waits for the kernels it calls only; all others are compiled by one process in the background."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
from pathlib import Path

import pytest

from zset_join.kernels.machine.first_use import COMPILE_VARIABLE, compile_rest_in_background, mark_complete, only_one

COMPILES = """
import os, sys
from zset_join.kernels.machine.first_use import mark_complete
print("compiling the kernels", os.environ["ZSET_JOIN_COMPILE"], os.getsid(0) == os.getpid())
mark_complete(sys.argv[1])
"""


@pytest.fixture(autouse=True)
def as_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(COMPILE_VARIABLE, raising=False)


def program(directory: Path) -> tuple[str, ...]:
    return sys.executable, "-c", COMPILES, str(directory)


def test_the_first_use_starts_the_rest_in_a_session_of_its_own_and_a_later_one_does_not(tmp_path: Path) -> None:
    kept = tmp_path / "of the first use"

    process = compile_rest_in_background(str(kept), program=program(kept))

    assert process is not None
    assert os.waitpid(process, 0)[1] == 0
    assert (kept / "background.log").read_text() == "compiling the kernels lazily True\n"
    assert compile_rest_in_background(str(kept), program=program(kept)) is None


def test_where_it_cannot_be_started_the_query_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert compile_rest_in_background(str(tmp_path), program=("/nowhere/python",)) is None
    assert "could not be run in the background" in caplog.text


def test_it_can_be_left_out_and_is_where_nothing_would_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private = tmp_path / "zset_join-kernels-x" / "compiled" / "numba"
    private.mkdir(parents=True)
    assert compile_rest_in_background(str(private), program=program(private)) is None
    monkeypatch.setenv(COMPILE_VARIABLE, "lazily")

    assert compile_rest_in_background(str(tmp_path), program=program(tmp_path)) is None
    assert not list(private.iterdir())


def test_of_two_processes_one_compiles(tmp_path: Path) -> None:
    with only_one(str(tmp_path)) as first, only_one(str(tmp_path)) as second:
        assert (first, second) == (True, False)
    with only_one(str(tmp_path)) as again:
        assert again


def test_a_file_system_without_locks_leaves_nobody_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with only_one(str(tmp_path)) as first:
        assert first


def test_what_another_version_completed_counts_for_that_version_only(tmp_path: Path) -> None:
    mark_complete(str(tmp_path))
    (mark,) = tmp_path.iterdir()
    mark.rename(tmp_path / "complete-0123456789abcdef")

    process = compile_rest_in_background(str(tmp_path), program=program(tmp_path))

    assert process is not None
    assert os.waitpid(process, 0)[1] == 0
    assert mark.exists()
