"""What others could have written is not trusted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from zset_join.core.errors import StateError
from zset_join.state.rows.host_memory import Region
from zset_join.storage.trusted_files import is_own, refuse_foreign, why_foreign


def test_what_only_the_user_may_write_is_own(tmp_path: Path) -> None:
    assert is_own(tmp_path)
    assert not is_own(tmp_path / "missing")


@pytest.mark.parametrize(("mode", "reason"), [(0o602, "every user"), (0o620, "its group")])
def test_what_others_may_write_is_foreign(mode: int, reason: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "file").chmod(mode)

    assert reason in str(why_foreign((tmp_path / "file").stat()))


def test_what_belongs_to_another_user_is_foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)

    assert f"belongs to user {user}" in str(why_foreign(tmp_path.stat()))
    assert not is_own(tmp_path)


def test_the_own_group_may_write_to_state(tmp_path: Path) -> None:
    file = tmp_path / "state"
    file.touch()
    file.chmod(0o660)

    refuse_foreign(str(file), file.stat())


@pytest.mark.parametrize("mode", [0o777, 0o702])
def test_state_in_a_directory_that_everybody_may_write_to_is_not_mapped(mode: int, tmp_path: Path) -> None:
    Region(4096, str(tmp_path / "rows")).close()
    tmp_path.chmod(mode)
    try:
        with pytest.raises(StateError, match="every user of the host may write to it") as refused:
            Region(4096, str(tmp_path / "rows"))
    finally:
        tmp_path.chmod(0o700)

    assert refused.value.code == "FOREIGN_FILE"


def test_own_files_in_a_sticky_directory_are_mapped(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)

    Region(4096, str(tmp_path / "rows")).close()


def test_a_file_of_another_user_is_not_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Region(4096, str(tmp_path / "rows")).close()
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)

    with pytest.raises(StateError, match="rows is not trusted"):
        Region(4096, str(tmp_path / "rows"))
