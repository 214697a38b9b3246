"""Compiled kernels are kept per version of their sources, where there is a place to keep them."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from numba.core.errors import TypingError
from numba.core.event import Event, EventStatus

from zset_join.kernels.machine import compiled
from zset_join.kernels.machine.compiled import CompileNotice, kernel

ROOT = Path(__file__).resolve().parents[3]
REQUEST = "from zset_join.kernels.machine.compiled import compiled_kernels_directory as place; print(place)"


def place_in(environment: dict[str, str]) -> Path:
    """Return where a fresh process with these variables keeps its compiled kernels."""
    done = subprocess.run(
        [sys.executable, "-c", REQUEST], cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    return Path(done.stdout.strip())


def test_an_attribute_that_another_thread_has_made_since_it_was_missed_is_found() -> None:
    one = kernel(lambda number: number + 1)
    assert one(1) == 2

    assert one.__getattr__("overloads") == one.overloads


def test_versions_that_others_use_stay_and_those_of_last_month_or_beyond_the_eighth_go(tmp_path: Path) -> None:
    now = time.time()
    for number in range(9):
        (tmp_path / f"pairs-{number}").mkdir()
        os.utime(tmp_path / f"pairs-{number}", (now - number, now - number))
    (tmp_path / "old-0").mkdir()
    os.utime(tmp_path / "old-0", (now - 31 * 86400, now - 31 * 86400))

    compiled._remove_old(tmp_path.glob("pairs-*"))
    compiled._remove_old(tmp_path.glob("old-*"))

    assert sorted(path.name for path in tmp_path.iterdir()) == [f"pairs-{number}" for number in range(8)]


def test_another_installation_loads_what_one_compiled_and_not_after_a_change_of_a_part(tmp_path: Path) -> None:
    program = (
        "import numpy; from zset_join.kernels.rows import side; from zset_join.kernels.values.keys import _equal_values as whole;"
        "at = numpy.zeros(3, numpy.uint8).ctypes.data; is_equal = whole(-1, 3, at, 0, at, 0);"
        "print(side.__file__, is_equal, sum(whole.stats.cache_hits.values()))"
    )
    runs = []
    for name in ("one", "two", "changed"):
        for package in ("zset_join", "spill"):
            shutil.copytree(ROOT / package, tmp_path / name / package, ignore=shutil.ignore_patterns("__pycache__"))
        if name == "changed":  # a kernel of another file, which the one that Python calls is linked with
            source = tmp_path / name / "zset_join/kernels/machine/memory.py"
            before = '"""Compare `length` bytes."""\n    position = 0\n'
            text = source.read_text()
            assert before in text
            source.write_text(text.replace(before, before + "    if length == 3:\n        return False\n"))
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(tmp_path / name)}
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        )
        file, *seen = done.stdout.split()
        assert file.startswith(str(tmp_path / name))
        runs.append(seen)

    assert runs == [["True", "0"], ["True", "1"], ["False", "0"]]


@pytest.mark.parametrize("variable", ["NUMBA_OPT", "NUMBA_CPU_NAME", "NUMBA_BOUNDSCHECK"])
def test_settings_that_change_the_code_have_a_place_of_their_own(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.delenv(variable, raising=False)
    before = compiled._environment_key()
    monkeypatch.setenv(variable, "1")

    assert compiled._environment_key() != before


def test_what_others_keep_in_a_named_cache_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "compiled-0123456789abcdef").mkdir()

    place_in({"NUMBA_CACHE_DIR": str(tmp_path)})

    assert (tmp_path / "compiled-0123456789abcdef").is_dir()


@pytest.mark.parametrize("is_on", [True, False])
def test_collections_of_garbage_are_as_before_a_compilation_that_failed_and_one_that_did_not(is_on: bool) -> None:
    @kernel
    def broken(given: int) -> int:
        return given + unknown_name  # noqa: F821 - so numba refuses it

    @kernel
    def whole(given: int) -> int:
        return given + 1

    before = gc.isenabled()
    (gc.enable if is_on else gc.disable)()
    try:
        with pytest.raises(TypingError, match="unknown_name"):
            broken(1)
        assert gc.isenabled() == is_on
        assert whole(1) == 2
        assert gc.isenabled() == is_on
    finally:
        (gc.enable if before else gc.disable)()


def test_a_kernel_with_a_default_is_called_by_name_and_from_another() -> None:
    @kernel
    def scaled(number: int, factor: int = 3) -> int:
        return factor * number

    @kernel
    def twice(number: int) -> int:
        return 2 * scaled(number)

    assert (scaled(2), scaled(factor=5, number=2), twice(2)) == (6, 10, 12)
    assert scaled.targetoptions["nogil"] is True  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        getattr(scaled, "nothing")  # noqa: B009 - mypy would refuse it


def test_a_kernel_is_cheap_before_its_first_call_and_loaded_without_what_only_compiling_needs(tmp_path: Path) -> None:
    program = (
        "import sys; from zset_join.kernels.machine.memory import zero_bytes as kernel; print('_compiler' in kernel.__dict__);"
        "kernel(0, 0); print('_compiler' in kernel.__dict__, 'numba.cpython.unicode' in sys.modules)"
    )
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}

    runs = [
        subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
        for _ in range(2)
    ]

    assert [run.stdout.split() for run in runs] == [["False", "True", "True"], ["False", "True", "False"]]


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


def test_it_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    notice = CompileNotice(after_seconds=0.0)
    notice.kernels.add("ours")

    compile_with(notice, "ours")
    compile_with(notice, "ours")

    assert [record.name for record in caplog.records] == ["zset_join"]
    assert "compiling the kernels this query calls" in caplog.text


@pytest.mark.parametrize(("kernel", "after_seconds"), [("ours", 60.0), ("of somebody else", 0.0)])
def test_nothing_is_logged_of_short_waits_and_of_other_libraries(
    caplog: pytest.LogCaptureFixture, kernel: str, after_seconds: float
) -> None:
    notice = CompileNotice(after_seconds)
    notice.kernels.add("ours")

    compile_with(notice, kernel)

    assert not caplog.records


def test_what_kernels_call_is_compiled_once_for_all_values_and_linked_into_their_callers() -> None:
    @kernel
    def moved(number: int, by: int) -> int:
        return number + by

    @kernel
    def by_one(number: int) -> int:
        return moved(number, 1)

    @kernel
    def by_three(number: int) -> int:
        return by_one(moved(number, 2))

    assert by_three(10) == 13
    assert (len(moved.signatures), len(moved._part.signatures)) == (0, 1)  # type: ignore[attr-defined]
    assert moved(5, 6) == 11  # and Python still may
