"""Rows on disk of a process that was killed are removed by the next one; those of a living one stay."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from zset_join.state.rows.private_directory import PrivateDirectory

OWNER = """
import sys
from zset_join.state.rows.private_directory import PrivateDirectory
held = PrivateDirectory(sys.argv[1])
(held.path / "rows").write_bytes(b"rows")
print(held.path, flush=True)
sys.stdin.read()
"""


def test_what_a_killed_process_left_goes_when_the_next_directory_is_made(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OWNER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        left = Path(owner.stdout.readline().strip())

        while_it_lived = PrivateDirectory(str(tmp_path))
        assert (left / "rows").read_bytes() == b"rows"
        owner.kill()
        owner.wait()
        assert left.is_dir()

        after_it = PrivateDirectory(str(tmp_path))

    assert set(tmp_path.iterdir()) == {while_it_lived.path, after_it.path}


def test_a_directory_goes_when_it_is_removed(tmp_path: Path) -> None:
    first, second = PrivateDirectory(str(tmp_path)), PrivateDirectory(str(tmp_path))
    (first.path / "rows").write_bytes(b"rows")

    first.remove()
    first.remove()

    assert list(tmp_path.iterdir()) == [second.path]


def test_what_others_have_in_the_same_place_stays(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "lock").touch()
    place = tmp_path / "temporary"
    (place / "zset_join-cold-is-just-being-made").mkdir(parents=True)
    (place / "other").mkdir()
    (place / "other" / "lock").touch()
    (place / "zset_join-cold-link").symlink_to(outside)
    before = set(place.iterdir())

    made = PrivateDirectory(str(place))

    assert set(place.iterdir()) == before | {made.path}
    assert (outside / "lock").is_file()


def test_a_place_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        PrivateDirectory(str(tmp_path / "missing"))
