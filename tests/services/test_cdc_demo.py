"""The demo as a user starts it, with fewer transactions, in process and inside Spark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_ENDS_WITHIN_SECONDS = 400.0


@pytest.mark.timeout(500)
@pytest.mark.parametrize("engine", ["local", "spark"])
def test_both_outputs_equal_the_query_in_the_source_database(engine: str, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    arguments = ["--engine", engine, "--transactions", "6000", "--keep", str(kept)]
    command = [sys.executable, "-u", "-m", "examples.cdc_demo", *arguments]

    emitted = tmp_path / "said.txt"
    with emitted.open("wb") as output:
        demo = subprocess.Popen(command, cwd=ROOT, env=dict(os.environ), stdout=output, stderr=output, start_new_session=True)
        try:
            code = demo.wait(_ENDS_WITHIN_SECONDS)
        except BaseException as error:
            os.killpg(demo.pid, signal.SIGQUIT)  # each JVM, and the driver, prints what its threads do
            time.sleep(3.0)
            os.killpg(demo.pid, signal.SIGKILL)  # the servers it started as well
            demo.wait(60)
            logs = (emitted, *(kept / name for name in ("driver.log", "connect/connect.log", "kafka/broker.log")))
            raise AssertionError("\n".join(f"== {log.name}:\n{_end_of(log)}" for log in logs)) from error

    assert code == 0, f"{emitted.read_text()}{_end_of(kept / 'driver.log')}"
    assert emitted.read_text().count("equal to the query in the source database") == 2


def _end_of(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-8000:] if log.exists() else "(it did not begin)"
