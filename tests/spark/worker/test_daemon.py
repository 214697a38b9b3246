"""Workers are forked from a process that has loaded the engine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tools.short_lived_jvms import PLAIN_FILES
from zset_join.core.errors import StateError
from zset_join.runners.spark import session
from zset_join.runners.spark.worker import daemon as worker_daemon


def test_a_worker_has_the_engine(spark: SparkSession) -> None:
    def modules(batches: Any) -> Any:
        loaded = "zset_join.operators.join" in sys.modules
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"loaded": [loaded]})

    assert spark.range(1).coalesce(1).mapInArrow(modules, "loaded boolean").collect()[0][0]


def test_a_local_session_forks_its_workers_from_the_engine_and_its_checkpoint_starts_no_process_per_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "")
    monkeypatch.setattr(session, "_check_java", lambda: None)
    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", lambda self: dict(self._options))

    options: Any = session.local_session(cores=1, options={"spark.ui.enabled": "false"})

    assert options["spark.python.daemon.module"] == worker_daemon.__name__
    assert options["spark.sql.streaming.checkpointFileManagerClass"] == PLAIN_FILES
    assert (options["spark.master"], options["spark.ui.enabled"]) == ("local[1]", "false")


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
