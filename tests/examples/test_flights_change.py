"""The example that changes a view of real data while its streams run: a join is added, then its groups change."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("runner", ["process", pytest.param("spark", marks=(pytest.mark.spark, pytest.mark.long))])
@pytest.mark.timeout(1800)
def test_the_changed_view_equals_a_fresh_build(runner: str) -> None:
    # Inside Spark a push runs it with PostgreSQL and Kafka as well, among the tests of services. A process of its own: the example makes a session of Spark, and there is one per process.
    words = [sys.executable, "-m", "examples.flights_change", "--runner", runner, "--rows", "2000", "--epochs", "9"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    printed = done.stdout

    assert done.returncode == 0, printed + done.stderr
    assert "DuckDB: equal" in printed
    assert printed.count("keeps 2 of 4 stages, builds join-2") == 1
    assert printed.count("keeps 3 of 4 stages, builds aggregate-3") == 1
    assert re.search(r"changed in the epochs \d \d\n", printed)
