"""Scratch space of a run in memory: tests are about the order of operations, not about a disk, which takes milliseconds per sync.

Thirty thousand syncs of a run waited longer than a tenth of it. A host without room in memory keeps its own directory, and so
does who sets `TMPDIR`. The directory is removed when all tests passed; after a failure the next run removes it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

__all__ = ["LEAST_FREE", "remove_scratch", "use_memory"]

LEAST_FREE = 4 << 30
_IN_MEMORY = Path("/dev/shm")
_PREFIX = "zset_join-tests-"


def use_memory(place: Path = _IN_MEMORY) -> Path | None:
    """Let this process and those it starts have their temporary files in memory.

    Args:
        place: a file system in memory.

    Returns:
        The new directory, or None where `TMPDIR` is set or `place` has no room.
    """
    if "TMPDIR" in os.environ or not os.access(place, os.W_OK) or shutil.disk_usage(place).free < LEAST_FREE:
        return None
    for left in place.glob(f"{_PREFIX}*"):
        if not Path("/proc", left.name.removeprefix(_PREFIX)).exists():
            remove_scratch(left)
    scratch = place / f"{_PREFIX}{os.getpid()}"
    scratch.mkdir(mode=0o711, exist_ok=True)  # PostgreSQL runs as nobody where root runs the tests
    os.environ["TMPDIR"] = tempfile.tempdir = str(scratch)
    return scratch


def remove_scratch(scratch: Path) -> None:
    """Remove a directory that `use_memory` made; what a process still writes there is left to the next run."""
    shutil.rmtree(scratch, ignore_errors=True)
