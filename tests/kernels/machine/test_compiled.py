"""Compiled kernels are kept per version of their sources, where there is a place to keep them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from numba.core.event import Event, EventStatus

from zset_join.kernels.machine import compiled
from zset_join.kernels.machine.compiled import CompileNotice, compiled_kernels_directory, kernel

ROOT = Path(__file__).resolve().parents[3]
ASK = "from zset_join.kernels.machine.compiled import compiled_kernels_directory as place; print(place)"


def place_in(environment: dict[str, str]) -> Path:
    """Return where a fresh process with these variables keeps its compiled kernels."""
    done = subprocess.run(
        [sys.executable, "-c", ASK], cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    return Path(done.stdout.strip())


def test_a_kernel_is_kept_under_its_module_and_version() -> None:
    place = Path(compiled._directory_of("zset_join.kernels.join.pairs"))

    assert place.parent == Path(compiled_kernels_directory)
    assert place.name.startswith("zset_join.kernels.join.pairs-")
    assert os.access(place, os.W_OK)


def test_the_environment_may_name_another_place(tmp_path: Path) -> None:
    place = place_in({"NUMBA_CACHE_DIR": str(tmp_path / "kernels")})

    assert place == tmp_path / "kernels" / "zset_join" / "compiled"


def test_kernels_of_another_version_are_cleared_away(tmp_path: Path) -> None:
    ours = tmp_path / "zset_join" / "compiled"
    old = ours / "zset_join.kernels.join.pairs-0123456789abcdef"
    old.mkdir(parents=True)
    (ours / "something else").mkdir()

    subprocess.run(
        [sys.executable, "-c", "import zset_join.kernels.join.pairs"],
        cwd=ROOT,
        env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
        check=True,
    )

    assert not old.exists()
    assert (ours / "something else").is_dir()


def test_what_others_keep_in_a_named_cache_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "compiled-0123456789abcdef").mkdir()

    place_in({"NUMBA_CACHE_DIR": str(tmp_path)})

    assert (tmp_path / "compiled-0123456789abcdef").is_dir()


def test_a_kernel_is_compiled_when_it_is_first_called_and_releases_the_lock() -> None:
    @kernel
    def double(number: int) -> int:
        return 2 * number

    assert double(21) == 42
    assert double.targetoptions["nogil"] is True  # type: ignore[attr-defined]


def digests(root: Path) -> dict[str, str]:
    sources = compiled._Sources(sorted((root / "spill").glob("*.py")), root)
    return {name: sources.digest(f"spill.{name}") for name in ("one", "two", "three")}


def test_a_changed_source_makes_another_digest_of_itself_and_of_all_that_import_it(tmp_path: Path) -> None:
    (tmp_path / "spill").mkdir()
    (tmp_path / "spill" / "one.py").write_text("a = 1\n")
    (tmp_path / "spill" / "two.py").write_text("from spill.one import (\n    a,\n)\n")
    (tmp_path / "spill" / "three.py").write_text("b = 1\n")
    before = digests(tmp_path)

    (tmp_path / "spill" / "one.py").write_text("a = 2\n")

    after = digests(tmp_path)
    assert [name for name in before if before[name] != after[name]] == ["one", "two"]


def test_the_kernels_of_the_cold_stores_are_among_the_sources() -> None:
    with_kernels = {path for path in (ROOT / "spill").glob("*.py") if "\n@kernel" in path.read_text(encoding="utf-8")}

    assert with_kernels
    assert with_kernels <= set(compiled._SOURCES)


def compile_with(notice: CompileNotice, kernel: object) -> None:
    for status in (EventStatus.START, EventStatus.END):
        notice.notify(Event("numba:compile", status, data={"dispatcher": kernel}))


def test_it_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    notice = CompileNotice(after_seconds=0.0)
    notice.kernels.add("ours")

    compile_with(notice, "ours")
    compile_with(notice, "ours")

    assert [record.name for record in caplog.records] == ["zset_join"]
    assert "compiling the kernels of this version" in caplog.text


@pytest.mark.parametrize(("kernel", "after_seconds"), [("ours", 60.0), ("of somebody else", 0.0)])
def test_nothing_is_said_of_short_waits_and_of_other_libraries(
    caplog: pytest.LogCaptureFixture, kernel: str, after_seconds: float
) -> None:
    notice = CompileNotice(after_seconds)
    notice.kernels.add("ours")

    compile_with(notice, kernel)

    assert not caplog.records
