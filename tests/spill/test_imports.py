"""What importing the cold stores brings in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


def modules_after(statement: str) -> set[str]:
    """Return what a fresh process has imported after a statement."""
    code = f"import sys; {statement}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("module", ["spill", "spill.file_pages", "spill.residency", "spill.row_bytes"])
def test_cold_stores_in_files_need_no_database(module: str) -> None:
    assert "duckdb" not in modules_after(f"import {module}")


def test_the_store_in_duckdb_is_the_one_that_imports_it() -> None:
    assert "duckdb" in modules_after("import spill.duckdb_pages")
