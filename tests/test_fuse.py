"""The fuse in `conftest.py`: a test that cannot be ended ends its process, and the run goes on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = """
import time

import pytest

@pytest.mark.timeout(0.5)
def test_waits_on():
    while True:
        try:
            time.sleep(60)
        except BaseException:
            pass

def test_behind():
    pass
"""


def test_a_test_that_swallows_its_timeout_is_named_and_the_others_run(tmp_path: Path) -> None:
    (tmp_path / "test_stuck.py").write_text(TESTS)
    of_this_tree = ["-c", str(ROOT / "pyproject.toml"), "--confcutdir", str(ROOT), "-p", "conftest"]
    settings = ["-o", "exit_after_timeout=0.5", "-p", "no:cacheprovider", "-n", "1", "--dist", "worksteal"]

    run = subprocess.run(
        [sys.executable, "-m", "pytest", *of_this_tree, *settings, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert "crashed while running" in run.stdout
    assert "::test_waits_on" in run.stdout
    assert "in test_waits_on" in run.stderr
    assert "1 failed, 1 passed" in run.stdout
