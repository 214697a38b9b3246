"""The demo as a user starts it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

ROOT = Path(__file__).resolve().parents[2]


def run_demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "examples.flights_demo", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.spark
@pytest.mark.timeout(1800)  # Spark in a process of its own, twice through the data; the fuse is for a busy machine
def test_the_demo_maintains_the_join_and_its_groups_and_finds_both_equal(tmp_path: Path) -> None:
    done = run_demo("--epochs", "3", "--rows", "1000", "--keep", str(tmp_path / "kept"))

    with duckdb.connect(str(tmp_path / "kept" / "flights.duckdb"), read_only=True) as connection:
        counts = connection.execute("SELECT count(*), count(manufacturer) > 0 FROM flights_planes").fetchall()
    assert (done.returncode, done.stdout.count("equal: "), counts) == (0, 2, [(996, True)]), done.stdout + done.stderr
    assert "after epoch 2: " in done.stdout


def test_a_directory_with_files_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")

    done = run_demo("--keep", str(tmp_path))

    assert (done.returncode, "the directory has files in it" in done.stdout) == (2, True)
