"""Messages when Spark could not start, or the session is of the wrong kind."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from zset_join.core.errors import PlanError
from zset_join.runners.spark.session import cluster_settings, has_class, local_session


def fake_java(directory: Path, expected: str) -> Path:
    (directory / "bin").mkdir()
    java = directory / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho '{expected}' >&2\n")
    java.chmod(0o755)
    return directory


def test_a_missing_java_is_named_with_the_way_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(PlanError, match=r"Java 17 or newer, and no java is on the PATH. Install a JDK"):
        local_session()


def test_a_java_home_without_java_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    with pytest.raises(PlanError, match=f"JAVA_HOME={tmp_path} has no bin/java"):
        local_session()


@pytest.mark.parametrize("expected", ['java version "1.8.0_392"', 'openjdk version "11.0.21" 2023-10-17', "no idea"])
def test_an_old_java_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, expected: str) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path, expected)))

    with pytest.raises(PlanError, match="Java 17 or newer"):
        local_session()


def test_a_class_that_this_version_of_spark_lacks_is_not_named() -> None:
    package = "org.apache.spark.sql.execution.streaming"

    assert has_class(f"{package}.checkpointing.CheckpointFileManager")
    assert not has_class(f"{package}.CheckpointFileManager")  # where older versions have it


def test_the_settings_for_a_cluster_name_a_daemon_that_can_be_started() -> None:
    settings = cluster_settings()

    assert importlib.util.find_spec(settings["spark.python.daemon.module"]) is not None
    assert settings["spark.shuffle.reduceLocality.enabled"] == "false"


@pytest.mark.parametrize(("version", "is_refused"), [("4.0.1", True), ("3.5.8", True), ("4.1.0", False), ("4.2.0.dev1", False)])
def test_a_pyspark_before_the_first_that_works_is_refused_at_the_import(version: str, *, is_refused: bool) -> None:
    program = f"import pyspark; pyspark.__version__ = {version!r}; import zset_join.runners.spark.installed"

    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert ended.returncode == is_refused
    if is_refused:
        assert "[PYSPARK_VERSION]" in ended.stderr
        assert "pip install 'pyspark>=4.1'" in ended.stderr
