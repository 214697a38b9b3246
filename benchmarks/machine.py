"""Environment of a measurement: processor, memory, versions. A benchmark result without these is worthless."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from datetime import UTC, datetime
from pathlib import Path

__all__ = ["describe_machine", "versions"]

_DISTRIBUTIONS = ("duckdb", "numba", "numpy", "polars", "pyarrow", "pyspark")


def describe_machine() -> dict[str, str | int | float]:
    """Return processor, cores, memory, system, load and time of this run."""
    return {
        "processor": _first_value("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        "cores": os.cpu_count() or 0,
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.release()}",
        "load_average": round(os.getloadavg()[0], 2),
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def versions() -> dict[str, str]:
    """Return the versions of Python and of every library that takes part; "absent" where one is not installed."""
    found = {"python": platform.python_version()}
    for name in _DISTRIBUTIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "absent"
    return found


def _first_value(path: str, name: str) -> str:
    file = Path(path)
    if not file.exists():
        return ""
    lines = (line.partition(":") for line in file.read_text(encoding="utf-8").splitlines())
    return next((value.strip() for key, _, value in lines if key.strip() == name), "")
