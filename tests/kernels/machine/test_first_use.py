"""The first use compiles all kernels once, shows how far it is, and goes on however that ends."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from zset_join.kernels.machine.first_use import COMPILE_VARIABLE, compile_on_first_use, mark_complete

COMPILES = """
import sys
from pathlib import Path
from zset_join.kernels.machine.first_use import mark_complete
with (Path(sys.argv[1]) / "runs").open("a") as runs:
    runs.write("x")
print("compiling the kernels")
print("  1 of 2: joins, 1 s")
print("  2 of 2: groups, 2 s")
mark_complete(sys.argv[1])
"""


@pytest.fixture(autouse=True)
def as_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(COMPILE_VARIABLE, raising=False)


def program(directory: Path, text: str = COMPILES) -> tuple[str, ...]:
    return sys.executable, "-c", text, str(directory)


def test_the_first_use_compiles_and_shows_how_far_it_is_and_the_second_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    first = compile_on_first_use(str(tmp_path), program=program(tmp_path))
    second = compile_on_first_use(str(tmp_path), program=program(tmp_path))

    assert (first, second, (tmp_path / "runs").read_text()) == (True, False, "x")
    assert f"joins, groups and times into {tmp_path}" in caplog.text
    bars = capsys.readouterr().err.splitlines()
    assert [bar.partition("] ")[2].split(",")[0] for bar in bars] == ["1 of 2", "2 of 2"]
    assert bars[1].endswith("groups done")


def test_another_version_is_compiled_again(tmp_path: Path) -> None:
    mark_complete(str(tmp_path))
    assert not compile_on_first_use(str(tmp_path), program=program(tmp_path))
    (tmp_path / "complete").write_text("another version")

    assert compile_on_first_use(str(tmp_path), program=program(tmp_path))


@pytest.mark.parametrize(
    ("arguments", "why"),
    [((sys.executable, "-c", "raise SystemExit('no compiler')"), "no compiler"), (("/nowhere/python",), "could not be run")],
)
def test_where_it_fails_the_query_goes_on_and_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, arguments: tuple[str, ...], why: str
) -> None:
    assert not compile_on_first_use(str(tmp_path), program=arguments)
    assert why in caplog.text


def test_it_can_be_left_out_and_is_where_nothing_would_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private = tmp_path / "zset_join-kernels-x" / "compiled"
    private.mkdir(parents=True)
    assert not compile_on_first_use(str(private), program=program(private))
    monkeypatch.setenv(COMPILE_VARIABLE, "lazily")

    assert not compile_on_first_use(str(tmp_path), program=program(tmp_path))
    assert not (tmp_path / "runs").exists()
