"""Compiled code is loaded from whole files of one's own, and from nothing else."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from zset_join.core.errors import StateError
from zset_join.kernels.machine import kept_code
from zset_join.kernels.machine.kept_code import KeptCode, find_directory

ROOT = Path(__file__).resolve().parents[3]
USE = """
from zset_join.kernels.machine.compiled import _directory_of, kernel
from zset_join.kernels.machine.memory import shift_right

def twice(number):
    return shift_right(number, 0) * 2

twice.__module__ = "zset_join.kernels.join.pairs"
made = kernel(twice)
print(made(21), sum(made.stats.cache_hits.values()))
"""


class Explosive:
    """What runs code of its own when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return Path.touch, (self.target,)


@pytest.fixture(autouse=True)
def no_named_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)


def use(cache: Path, program: str = USE) -> tuple[str, str]:
    """Compile and call a kernel in a fresh process; return what it printed, and what it logged."""
    file = cache / "program.py"
    file.write_text(program, encoding="utf-8")
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, str(file)], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip(), done.stderr


def kept_in(cache: Path, ending: str) -> list[Path]:
    return sorted(path for path in cache.rglob(f"*twice*.{ending}"))


def test_what_was_kept_is_loaded_and_what_is_damaged_is_recompiled(tmp_path: Path) -> None:
    assert use(tmp_path)[0] == "42 0"
    assert use(tmp_path)[0] == "42 1"
    (data,) = kept_in(tmp_path, "nbc")
    assert data.stat().st_mode & 0o777 == 0o600
    assert data.parents[1].stat().st_mode & 0o777 == 0o700
    whole = data.read_bytes()

    data.write_bytes(whole[40:])
    printed, logged = use(tmp_path)
    assert printed == "42 0"
    assert "is compiled again: the file is damaged" in logged
    assert "Traceback" not in logged
    assert use(tmp_path)[0] == "42 1"
    data.chmod(0o622)
    printed, logged = use(tmp_path)
    assert (printed, "write to it" in logged) == ("42 0", True)


@pytest.mark.parametrize("damage", ["empty", "a byte", "all but a byte", "without its begin", "foreign"])
def test_a_damaged_file_holds_nothing_until_it_is_written_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    file = KeptCode(str(tmp_path), "kernel", "stamp")
    file.save("key", {"code": 1})
    (path,) = tmp_path.glob("*.nbc")
    whole = path.read_bytes()
    broken = {"empty": b"", "a byte": whole[:1], "all but a byte": whole[:-1], "without its begin": whole[40:]}
    path.write_bytes(broken.get(damage, b"x" * 100))

    assert file.load("key") is None
    assert "is compiled again: the file is damaged" in caplog.text
    file.save("key", {"code": 1})
    assert file.load("key") == {"code": 1}


def link_away(file: KeptCode, directory: Path) -> None:
    kept = Path(file.path_of("key"))
    kept.symlink_to(kept.rename(directory / "elsewhere"))


FOREIGN: dict[str, Callable[[KeptCode, Path], object]] = {
    "of somebody else": lambda file, place: Path(file.path_of("key")).write_bytes(pickle.dumps(Explosive(place / "run"))),
    "a link": link_away,
    "of another signature": lambda file, _: (file.save("other", 1), Path(file.path_of("other")).rename(file.path_of("key"))),
    "of another version of the source": lambda _, place: KeptCode(str(place), "kernel", "old").save("key", 1),
    "absent": lambda file, _: Path(file.path_of("key")).unlink(),
}


@pytest.mark.parametrize("plant", FOREIGN.values(), ids=FOREIGN)
def test_a_file_that_is_not_its_own_is_not_loaded(tmp_path: Path, plant: Callable[[KeptCode, Path], object]) -> None:
    file = KeptCode(str(tmp_path), "kernel", "stamp")
    file.save("key", {"code": 1})
    assert file.load("key") == {"code": 1}

    plant(file, tmp_path)

    assert file.load("key") is None
    assert not (tmp_path / "run").exists()


def test_a_full_disk_keeps_nothing_and_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = KeptCode(str(tmp_path / "missing"), "kernel", "stamp")

    file.save("key", {"code": 1})

    assert "was not kept" in caplog.text
    assert file.load("key") is None


def test_a_directory_that_others_may_write_to_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = tmp_path / "cache" / "zset_join"
    shared.mkdir(parents=True)
    shared.chmod(0o777)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    found = find_directory(tmp_path / "beside")

    assert found == tmp_path / "beside" / "compiled"
    assert found.stat().st_mode & 0o777 == found.parent.stat().st_mode & 0o777 == 0o700


def test_installations_of_a_user_share_one_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    assert find_directory(tmp_path / "one") == find_directory(tmp_path / "other") == tmp_path / "zset_join" / "compiled"


def test_a_cache_that_somebody_else_made_first_is_passed_over_for_a_private_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = tmp_path / "zset_join"
    (theirs / "compiled").mkdir(parents=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(kept_code, "is_own", lambda path: tmp_path not in Path(path).parents)

    found = find_directory(tmp_path / "not here" / "nor here")

    assert tmp_path not in found.parents
    assert found.parent.stat().st_mode & 0o777 == 0o700
    assert "Set NUMBA_CACHE_DIR" in caplog.text


def test_a_named_directory_that_others_may_write_to_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "zset_join").mkdir()
    (tmp_path / "zset_join").chmod(0o777)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))

    with pytest.raises(StateError, match="every user of the host may write to it") as refused:
        find_directory(tmp_path)

    assert refused.value.code == "FOREIGN_FILE"
