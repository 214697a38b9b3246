"""The demo as a user starts it, with fewer transactions, in process and inside Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("engine", ["local", "spark"])
def test_both_outputs_equal_the_query_in_the_source_database(engine: str, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "examples.cdc_demo",
        "--engine",
        engine,
        "--transactions",
        "6000",
        "--keep",
        str(tmp_path / "kept"),
    ]

    done = subprocess.run(command, cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, check=False)

    log = tmp_path / "kept" / "driver.log"
    assert done.returncode == 0, f"{done.stdout}{done.stderr}{log.read_text()[-3000:] if log.exists() else ''}"
    assert done.stdout.count("equal to the query in the source database") == 2
