"""How much memory the driver has, and what does not fit into it.

The law: a query is stopped with a code and a cure before the machine, or the container it runs in, kills its process.
"""

from __future__ import annotations

import os
from pathlib import Path

from zset_join.core.errors import ResourceError

__all__ = ["available_bytes", "memory_bytes", "refuse_without_memory"]

_CGROUPS = (
    ("/sys/fs/cgroup", "memory.max", "memory.current", "file"),
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "cache"),
)
_WORK = 2
"""An epoch needs so many times the bytes of its rows beside them: as its operators arrange them, and as its answer."""


def memory_bytes() -> int:
    """Return the bytes of memory of the container of this process, or of the machine."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([total, *(limit for limit, _ in _containers())])


def available_bytes() -> int:
    """Return the bytes that this process may still take, with those that the system can reclaim from its caches."""
    free = [limit - used for limit, used in _containers()]
    lines = (_read(Path("/proc/meminfo")) or "").splitlines()
    free += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    return max(0, min(free)) if free else memory_bytes()


def refuse_without_memory(held: int, epoch: int) -> None:
    """Refuse an epoch whose rows are here and whose answer would not fit into memory; nothing is applied."""
    available = available_bytes()
    if _WORK * held > available:
        raise ResourceError(
            f"the rows of epoch {epoch} have {held:,} bytes, and its answer needs {_WORK} times as many; {available:,} bytes "
            "of memory are left on the driver. Limit what the sources read per epoch: the option maxFilesPerTrigger of files, "
            'maxOffsetsPerTrigger of Kafka; give the driver more memory; or start the query with execution="executors", a new '
            "checkpointLocation and a new output.",
            code="DELTA_TOO_LARGE",
            epoch=epoch,
            bytes=held,
            limit=available // _WORK,
        )


def _containers() -> list[tuple[int, int]]:
    """Return limit and use of the container of this process, where there is one with a limit."""
    found = []
    for folder, most, now, cache in _CGROUPS:
        limit, used = _read(Path(folder) / most), _read(Path(folder) / now)
        if limit is None or used is None or not limit.strip().isdigit():
            continue
        counts = dict(line.split() for line in (_read(Path(folder) / "memory.stat") or "").splitlines())
        found.append((int(limit), int(used) - int(counts.get(cache, 0))))
    return found


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return None
