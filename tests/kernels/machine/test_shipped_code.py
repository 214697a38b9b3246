"""Compiled kernels that come with an installation are loaded where they fit, and only whole ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.compile_shipped import gather
from zset_join.kernels.machine import kept_code
from zset_join.kernels.machine.compiled import kernels_version
from zset_join.kernels.machine.kept_code import PROCESSOR, versions

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = (
    "import sys; from pathlib import Path; from zset_join.kernels.machine import kept_code;"
    "kept_code.SHIPPED = Path(sys.argv[1]); from zset_join.kernels.machine.memory import zero_bytes as kernel;"
    "kernel(0, 0); print(sum(kernel.stats.cache_hits.values()), sum(kernel.stats.cache_misses.values()))"
)


def loaded(shipped: Path, cache: Path, **settings: str) -> str:
    """Return hits and misses of a fresh process that calls one kernel."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache), **settings}
    command = [sys.executable, "-c", PROGRAM, str(shipped)]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return what a wheel would bring: one kernel, compiled for its processor."""
    place = tmp_path_factory.mktemp("built")
    assert loaded(place, place / "cache", NUMBA_CPU_NAME=PROCESSOR, NUMBA_CPU_FEATURES="") == "0 1"
    modules = {file.parent for file in (place / "cache").rglob("*.nbc")}
    assert gather(sorted(modules), place / "shipped") == 1
    return place / "shipped"


def test_an_empty_cache_takes_what_the_installation_brought_unless_settings_differ(built: Path, tmp_path: Path) -> None:
    if not all(kept_code.get_host_cpu_features().get(name) for name in kept_code._FEATURES):
        pytest.skip(f"this processor is no {PROCESSOR}")

    assert loaded(built, tmp_path / "one") == "1 0"
    assert loaded(built, tmp_path / "two", NUMBA_OPT="1") == "0 1"


@pytest.mark.parametrize("damage", ["changed", "lost"])
def test_a_damaged_file_is_reported_and_not_loaded(
    built: Path, damage: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kept_code, "SHIPPED", built)
    monkeypatch.setattr(kept_code, "get_host_cpu_features", lambda: dict.fromkeys(kept_code._FEATURES, True))
    found = kept_code.shipped_code.__wrapped__()
    assert found is not None
    assert found.complete_for == kernels_version
    file = next((built / versions()).rglob("*.nbc"))
    content = file.read_bytes()
    assert found.read(file.parent.name, file.name) == content
    try:
        file.unlink() if damage == "lost" else file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))

        assert found.read(file.parent.name, file.name) is None
    finally:
        file.write_bytes(content)
    assert "is compiled again" in caplog.text
    assert found.read(file.parent.name, "other.nbc") is None


def test_nothing_is_taken_on_a_smaller_processor_or_without_a_list(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kept_code, "SHIPPED", built)
    monkeypatch.setattr(kept_code, "get_host_cpu_features", lambda: {"avx": True})
    assert kept_code.shipped_code.__wrapped__() is None

    monkeypatch.setattr(kept_code, "SHIPPED", tmp_path)
    monkeypatch.setattr(kept_code, "get_host_cpu_features", lambda: dict.fromkeys(kept_code._FEATURES, True))
    (tmp_path / versions()).mkdir()
    assert kept_code.shipped_code.__wrapped__() is None
    assert "cannot be read" in caplog.text
