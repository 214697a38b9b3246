"""Workers are forked from a process that has loaded the engine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.short_lived_jvms import PLAIN_FILES
from zset_join.core.errors import StateError
from zset_join.runners.spark.worker import daemon as worker_daemon

ROOT = Path(__file__).resolve().parents[3]

PROGRAM = """
import json, os, sys
import pyarrow as pa
from zset_join.spark import local_session

def modules(batches):
    loaded = "zset_join.operators.join" in sys.modules
    for _ in batches:
        yield pa.RecordBatch.from_pydict({"loaded": [loaded]})

if __name__ == "__main__":
    session = local_session(cores=1, options={"spark.sql.warehouse.dir": os.getcwd()})
    print("loaded", session.range(1).coalesce(1).mapInArrow(modules, "loaded boolean").collect()[0][0])
    print("files", session.conf.get("spark.sql.streaming.checkpointFileManagerClass", None))
"""


@pytest.mark.spark
def test_a_worker_of_a_local_session_has_the_engine_and_its_checkpoint_starts_no_process_per_file(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)

    ran = subprocess.run(
        [sys.executable, str(program)], cwd=tmp_path, env=_environment(), capture_output=True, text=True, check=False
    )

    assert "loaded True" in ran.stdout, ran.stderr[-2000:]
    assert f"files {PLAIN_FILES}" in ran.stdout


def test_a_daemon_that_cannot_load_kernels_reports_it_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    served = []
    monkeypatch.setattr(worker_daemon, "load_kernels", _no_kernels)
    monkeypatch.setattr(worker_daemon, "manager", lambda: served.append(True))

    worker_daemon.main()

    assert served == [True]
    assert "the cache is damaged" in capsys.readouterr().err


def test_kernels_that_are_not_compiled_yet_hold_nobody_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    done = []
    monkeypatch.setattr(worker_daemon, "compiled_kernels_directory", str(tmp_path))
    monkeypatch.setattr(worker_daemon, "load_kernels", lambda: done.append("loaded"))
    monkeypatch.setattr(worker_daemon, "manager", lambda: done.append("served"))

    worker_daemon.main()

    assert done == ["served"]


def _no_kernels() -> None:
    raise StateError("the cache is damaged")


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}
