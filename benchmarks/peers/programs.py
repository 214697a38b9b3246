"""The programs of other engines: built by cargo in a directory outside the tree, run on one file each."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import tomllib
from pathlib import Path
from typing import Any

__all__ = ["NoCargoError", "build", "run_program", "target_directory", "versions_of_peers"]

PROJECT = Path(__file__).resolve().parent
NAMED = ("differential-dataflow", "timely", "mimalloc", "dbsp")


class NoCargoError(Exception):
    """Cargo is not there, so that no program of another engine can be built."""


def target_directory() -> Path:
    """Return where programs are built: `CARGO_TARGET_DIR`, else `peers-target` in the directory of temporary files."""
    return Path(os.environ.get("CARGO_TARGET_DIR") or Path(tempfile.gettempdir()) / "peers-target")


def build(programs: set[str], *, jobs: int) -> None:
    """Build programs with the versions of `Cargo.lock`; the first build of all took fifteen CPU minutes.

    Args:
        programs: their names.
        jobs: compilers at a time.

    Raises:
        NoCargoError: cargo is not there.
        RuntimeError: it failed.
    """
    cargo = shutil.which("cargo")
    if cargo is None:
        raise NoCargoError("cargo is not on the path; peers are built from their crates, which needs Rust 1.85 or newer.")
    command = [cargo, "build", "--release", "--locked", "--jobs", str(jobs), "--target-dir", str(target_directory())]
    for program in sorted(programs):
        command += ["--bin", program]
    features = ["--features", "dbsp"] if any(program.startswith("dbsp") for program in programs) else []
    if subprocess.run([*command, *features], cwd=PROJECT, check=False).returncode:
        raise RuntimeError(f"{' '.join(command)} in {PROJECT} failed; what it wrote is above.")


def run_program(program: str, *arguments: str) -> dict[str, Any]:
    """Run a program that is built and return its figures.

    Raises:
        RuntimeError: it failed.
    """
    command = [str(target_directory() / "release" / program), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def versions_of_peers() -> list[str]:
    """Return the versions of the crates that the programs are built from, one per line."""
    locked = tomllib.loads((PROJECT / "Cargo.lock").read_text(encoding="utf-8"))["package"]
    return [f"{crate['name']}: {crate['version']}" for crate in locked if crate["name"] in NAMED]
